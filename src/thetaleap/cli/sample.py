"""``thetaleap sample``."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from .. import __version__, files, sampling
from ..conditioning.templates import GAP, read_prompt, read_template, read_templates
from ..conditioning.wrappers import constrained, guided, tempered
from ..control import Blocks
from ..control.parallel import Window, one_at_a_time
from ..core.checks import require, require_count, require_number
from ..core.evaluation import Denoiser
from ..core.free import FREE, read_tokens
from ..evaluation.choice import AUTO, GRIDS, Budget, Choice, choose, needs_model, written
from ..models.hf.prefix_reuse import ApproximatePrefix, approximate_prefix
from ..registry import SOLVERS, full_name
from ..sampling import Moment, Samples
from .base import print_lines
from .errors import about, retyped
from .options import (
    METHOD,
    REUSE,
    SEED,
    Device,
    DeviceMap,
    Dtype,
    TrustRemoteCode,
    opened,
    option,
    require_no_clash,
    with_hyper_parameters,
)
from .preview import show, summary

AS_NEEDED = [name for name, solver in SOLVERS.loaded().items() if solver.evaluations is None]
"""Solvers that take no budget of evaluations."""

_budget, _place, _given, _output = (
    partial(option, panel) for panel in ("How much, and when", "Model", "What is given", "Samples")
)

CHOSEN = "[cyan]auto[/] takes what measured best for such a model and budget."
NFE = (
    "The most network evaluations to spend on a sample, at least 1. Other solvers than auto need this or --steps, but for "
    f"{' and '.join(AS_NEEDED)}, which spend what they need."
)
TOLERANCE = (
    "The error to allow, in nats per position, in place of --nfe: each sample then spends what it needs. For multistep, "
    "and for tweedie (with masks, with --planner fixed-count or low-discrepancy)."
)
DELTA = (
    "The time at which to stop, from 0 (data) to below the model's horizon; the noise that is left is drawn in one more "
    "evaluation."
)
TEMPLATE = (
    "What is given, with gaps: text, as in 'To be, ___ not to be', where each _ is one token to write; token numbers "
    "and _ with spaces between for models without text. Positions after the end are for the sampler too."
)
PROMPTS = 'A file with a template or a prompt on each line: {"template": "..."} or {"prompt": "..."}.'
OUT = (
    "The file to write: .parquet or .jsonl (tokens, evaluations, text and prompt), .npy (tokens), .txt (text), or .png "
    "(pictures, of models that have some). Each says how it was made."
)
FIRST = (
    "The number of the first sample, to continue a run: with the --out of an interrupted one, samples are added to it. "
    "Of --prompts, samples before it are left out."
)
LABELS = (
    "The class of the samples, for models that take labels, or several with commas between, which they take in turn."
)
GUIDANCE = "How far to go towards the labels, at least 0; an evaluation then counts as two."
WINDOW = (
    "Run ahead of the network: evaluate up to so many guessed states of each sample together, or as many as guesses earn "
    "(auto), and keep them as far as they prove right. The samples of --window 1 in fewer rounds; without, others of the "
    "same law. (The window of multistep: --solver 'Multistep(window=2)'.)"
)
EXACT = (
    "Draw one position at a time, in an order and with a --window that take few rounds, in place of a solver and its "
    "budget; for masked models."
)
VQGAN = "The file of the decoder that makes pictures of codes; for maskgit."


@with_hyper_parameters(before="length")
def sample(
    model: Annotated[
        str,
        typer.Argument(
            help="A model by name, KIND:SOURCE, or a folder of thetaleap train: [cyan]thetaleap models[/] lists them.",
            metavar="MODEL",
        ),
    ],
    solver: Annotated[str, typer.Option(help=f"{METHOD} {CHOSEN}", metavar="NAME")] = AUTO,
    why: Annotated[bool, typer.Option("--why", help="Say what was measured that [cyan]auto[/] goes by.")] = False,
    nfe: Annotated[int | None, _budget(NFE, show="32, or one for each position")] = None,
    tolerance: Annotated[float | None, _budget(TOLERANCE, show=False)] = None,
    steps: Annotated[int | None, _budget("The number of steps, at least 1, instead of --nfe.", show=False)] = None,
    grid: Annotated[
        str | None, _budget(f"How the steps are spaced in time: {', '.join(GRIDS)}.", show="uniform", metavar="NAME")
    ] = None,
    delta: Annotated[float | None, _budget(DELTA, show="0 if the solver can step there, else 0.001")] = None,
    window: Annotated[str | None, _budget(WINDOW, show="none; auto with --exact", metavar="N|auto")] = None,
    exact: Annotated[bool, _budget(EXACT, "--exact", show=False)] = False,
    length: Annotated[int | None, _place("Positions, for models that leave it open.", show="the model's own")] = None,
    device: Device = None,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    vqgan: Annotated[Path | None, _place(VQGAN, show=False)] = None,
    template: Annotated[str | None, _given(TEMPLATE, show=False)] = None,
    prompt: Annotated[str | None, _given("Text that samples begin with.", show=False)] = None,
    prompts: Annotated[Path | None, _given(PROMPTS, show=False)] = None,
    labels: Annotated[str | None, _given(LABELS, "--labels", "--label", show=False, metavar="N,N,...")] = None,
    guidance: Annotated[float | None, _given(GUIDANCE, show=False)] = None,
    gap: Annotated[str, _given("The character that stands for a gap.", metavar="CHARACTER")] = GAP,
    temperature: Annotated[
        float | None, _given("Logits are divided by it; 0 takes the likeliest value.", show=False)
    ] = None,
    top_k: Annotated[int | None, _given("Keep so many of the likeliest values.", show=False)] = None,
    top_p: Annotated[
        float | None, _given("Keep the likeliest values of so much probability together.", show=False)
    ] = None,
    allow: Annotated[str | None, _given("Text of the only tokens that may be written.", show=False)] = None,
    forbid: Annotated[str | None, _given("Text of tokens that may not be written.", show=False)] = None,
    block: Annotated[
        int | None, _given("Run the solver in blocks of so many positions, from left to right.", show=False)
    ] = None,
    approximate_reuse: Annotated[bool, _given(REUSE, "--approximate-reuse", show=False)] = False,
    num: Annotated[
        int | None, _output("How many samples, at least 1; of each prompt.", show="16, 1 for a file of prompts")
    ] = None,
    seed: Annotated[
        int, _output(f"{SEED} Sample i depends on the seed and i alone, not on --num or --batch-size.")
    ] = 0,
    first: Annotated[int, _output(FIRST)] = 0,
    batch_size: Annotated[int | None, _output("Samples run together, at least 1.", show="as fits 128 MiB")] = None,
    out: Annotated[Path | None, _output(OUT, show="none, show them")] = None,
    force: Annotated[bool, _output("Replace the file if it exists.", "--force", show=False)] = False,
    **hyper: Any,
) -> None:
    """Draw samples from a model, and write them to a file or show them.

    Ctrl-C keeps the samples that are finished, and says how to go on.

    Example: [cyan]thetaleap sample chain64 --nfe 16 --num 1000 --out x.parquet[/]
    """
    options = locals()
    require_no_clash(solver, sample)
    ahead = _window(window, exact)
    if exact:
        others = {name: options[name] for name in ("nfe", "tolerance", "steps", "grid", "delta", "block")}
        for name, value in {"solver": None if solver == AUTO else solver, **others, **hyper}.items():
            require(value is None, name, value, "--exact draws one position at a time; leave out one of the two")
    given = [name for name in ("template", "prompt", "prompts") if options[name] is not None]
    for pair in (given, ["nfe", "steps"]):
        if len(pair) > 1 and all(options[name] is not None for name in pair):
            raise ValueError(f"{' and '.join(f'--{name} {options[name]}' for name in pair)}: give one of them")
    require_count("num", 1 if num is None else num)
    require_count("first", first, least=0)
    require_count("batch_size", 1 if batch_size is None else batch_size)
    require(0 <= seed < 2**64, "seed", seed, "give a whole number from 0 to 2^64 - 1")
    if block is not None:
        require_count("block", block)
    reason = "--approximate-reuse is within blocks; give it too, as in --block 32"
    require(block is not None or not approximate_reuse, "block", block, reason)
    known = model.startswith(("llada:", "dream:"))
    require(known or not approximate_reuse, "approximate_reuse", True, "is for llada and dream; leave it out")
    continued = out is not None and first > 0 and not force and out.is_file() and out.suffix.lower() != files.PNG
    if out is not None:
        files.check_target(out, force or continued)
    budget = Budget(nfe, steps, tolerance, grid, delta)
    choice = None if exact or needs_model(solver) else choose(None, solver, hyper, budget)
    names = ("length", "device", "dtype", "device_map", "trust_remote_code", "vqgan")
    denoiser = opened(model, **{name: options[name] for name in names})
    words = getattr(denoiser, "tokenizer", None)
    _check_format(denoiser, out)
    rows = _template(denoiser, template, prompt, prompts, gap)
    each = num if num is not None else 16 if prompts is None else 1
    positions = None if rows is None else max(1, int((rows == FREE).sum(1).max()))
    if rows is not None:
        rows = rows.repeat_interleave(each, 0)[0 if prompts is None else first :]
        require(len(rows) > 0, "first", first, "there are no more samples; give a smaller number")
    every = each if rows is None else len(rows)
    reused = approximate_prefix(denoiser, block) if block is not None and approximate_reuse else None
    shaped = _guided(reused or denoiser, labels, guidance, range(first, first + every))
    shaped = _shaped(shaped, temperature, top_k, top_p, allow, forbid)
    if exact:
        choice = Choice(one_at_a_time(shaped)[0], None, AUTO)
    elif choice is None:
        choice = choose(shaped, solver, hyper, replace(budget, positions=positions))
        nfe, measured = choice.nfe, f" {choice.evidence}" if why else ""
        typer.echo(f"{solver}: {written(choice.solver)} at {nfe} evaluations. {choice.reason}{measured}", err=True)
    method = choice.solver if block is None else Blocks(choice.solver, block)
    walk = {"nfe": nfe, "tolerance": tolerance, "steps": steps, "grid": choice.spacing, "delta": delta}
    told = ("template", "prompt", "temperature", "top_k", "top_p", "allow", "forbid", "labels", "guidance")
    asked = {name: options[name] for name in told if options[name] is not None}
    asked |= {"gap": gap} if gap != GAP else {}
    asked |= {"approximate_reuse": True} if reused is not None else {}
    card = {"model": full_name(model), "solver": repr(method), **walk, **asked, "seed": seed, "version": __version__}
    card |= {"first": first} if first > 0 else {}
    card |= {name: value for name, value in (("exact", exact or None), ("window", ahead)) if value is not None}
    before, card = _before(out, card, first) if continued and out is not None else (None, card)
    start, kept, stopped = time.perf_counter(), Kept(), False
    try:
        samples = sampling.sample(
            shaped,
            AUTO if exact else method,
            nfe=nfe,
            tolerance=tolerance,
            steps=steps,
            grid=choice.grid,
            window=ahead,
            exact=exact,
            num=every,
            template=rows,
            seed=seed,
            first=first,
            delta=delta,
            batch_size=batch_size,
            on_step=kept,
        )
    except KeyboardInterrupt:
        samples, stopped = kept.samples(), True
    done, seconds = 0 if samples is None else len(samples.x), time.perf_counter() - start
    if samples is not None and out is None:
        show(denoiser, samples, first)
    elif samples is not None and out is not None and out.suffix.lower() == files.PNG:
        files.write_pictures(out, files.image_grid(files.pictures(denoiser, samples.x)), card)
    elif samples is not None and out is not None:
        text = None if words is None else [words.decode(row) for row in samples.x.tolist()]
        files.write(out, samples, card, text, _prompts(template or prompt, prompts, each, first, done), before)
    if stopped:
        _interrupted(first, done, every, out, prompts)
    assert samples is not None
    print_lines({**summary(full_name(model), method, samples, seconds, out, ahead), **_reuse(reused)})


def _window(text: str | None, exact: bool) -> Window | None:
    """What --window says."""
    if text is None:
        return "auto" if exact else None
    require(text == "auto" or (text.isdigit() and int(text) > 0), "window", text, "give a whole number, or auto")
    return "auto" if text == "auto" else int(text)


def _interrupted(first: int, done: int, every: int, out: Path | None, prompts: Path | None) -> None:
    """Say what is kept, and how to go on."""
    went, changes = "no sample was finished; with a smaller --batch-size some are sooner", dict[str, Any]()
    if done > 0:
        went = f"{done} of {every} samples were finished, and are {'shown' if out is None else f'in {out}'}"
        changes = {"first": first + done, "force": None} | ({"num": every - done} if prompts is None else {})
        if out is not None and out.suffix.lower() == files.PNG:
            changes["out"] = out.with_stem(f"{out.stem}-{first + done}")
    typer.echo(f"interrupted: {went}\nto go on: {retyped(**changes)}", err=True)
    raise typer.Exit(130)


class Kept:
    """The batches that are finished when a run is interrupted."""

    def __init__(self) -> None:
        self.batches: list[Moment] = []

    def __call__(self, moment: Moment) -> None:
        if moment.step > 0:
            self.batches.pop()
        self.batches.append(moment)

    def samples(self) -> Samples | None:
        """Those of all batches but the last, which may be half done."""
        whole = [(one.x, one.nfe, one.spent, one.rounds) for one in self.batches[:-1]]
        if not whole:
            return None
        x, nfe, spent, rounds = (torch.cat(parts).cpu() for parts in zip(*whole, strict=True))
        return Samples(x, nfe, spent, rounds, {})


def _check_format(model: Denoiser, out: Path | None) -> None:
    """Raise ``ValueError`` unless samples of the model can be written as the ending says."""
    if out is not None and out.suffix.lower() == files.PNG:
        with about("out", out):
            files.require_pictures(model)
    if out is not None and out.suffix.lower() == ".txt":
        good = getattr(model, "tokenizer", None) is not None
        require(good, "out", str(out), "this model has no text; give a .parquet, .jsonl or .npy file")


def _before(out: Path, card: files.Card, first: int) -> tuple[files.Columns, files.Card]:
    """The samples that a continued run adds to, and their card, if they are of the same run."""
    columns, old = files.read_columns(out, "out")
    held = old.get("first", 0) + len(next(iter(columns.values())))
    remedy = f"{str(out)!r} ends with sample {held - 1}; give --first {held}, another file, or --force to replace it"
    require(held == first, "first", first, remedy)
    for name, value in (dict.fromkeys(old) | card).items():
        remedy = f"the samples in {str(out)!r} were made with {old.get(name)!r}; use that, or another file"
        require(name in ("first", "version") or old.get(name) == value, name, value, remedy)
    return columns, old


def _prompts(text: str | None, prompts: Path | None, each: int, first: int, num: int) -> list[str] | None:
    """What was given to each of `num` samples."""
    if prompts is None:
        return None if text is None else [text] * num
    lines = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [next(iter(json.loads(lines[n // each]).values())) for n in range(first, first + num)]


def _template(model: Denoiser, template: str | None, prompt: str | None, prompts: Path | None, gap: str) -> Any:
    require(len(gap) == 1, "gap", gap, "give one character")
    if prompts is not None:
        rows, name, typed = read_templates(model, prompts, gap), "prompts", str(prompts)
    elif template is not None or prompt is not None:
        name, typed = ("prompt", str(prompt)) if template is None else ("template", template)
        with about(name, typed):
            row = read_prompt(model, typed) if template is None else read_template(model, typed, gap)
        rows = row.unsqueeze(0)
    else:
        return None
    largest, states = int(rows.max()), model.process.states
    require(largest < states, name, typed, f"{largest} is no token; they are 0 to {states - 1}, and {gap} is a gap")
    return rows


def _shaped(
    model: Denoiser,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    allow: str | None,
    forbid: str | None,
) -> Denoiser:
    for name, text in (("allow", allow), ("forbid", forbid)):
        if text is not None:
            with about(name, text):
                model = constrained(model, **{name: read_tokens(model, name, text)})
    if temperature is None and top_k is None and top_p is None:
        return model
    return tempered(model, 1.0 if temperature is None else temperature, top_k, top_p)


def _guided(model: Denoiser, labels: str | None, guidance: float | None, numbers: range) -> Denoiser:
    if labels is None:
        require(guidance is None, "guidance", guidance, "goes towards a label; give --labels")
        return model
    parts = [part.strip() for part in labels.split(",")]
    good = all(part.isdigit() for part in parts)
    require(good, "labels", labels, "give whole numbers with commas between, as in 3 or 0,1,2")
    taken = getattr(model, "classes", None) is not None
    require(taken, "labels", labels, "this model takes none; leave it out")
    require_number("guidance", guidance or 0.0, 0, math.inf, closed="low")
    every = [int(part) for part in parts]
    with about("labels", labels):
        return guided(model, guidance or 0.0, [every[n % len(every)] for n in numbers])


def _reuse(model: ApproximatePrefix | None) -> dict[str, str]:
    if model is None:
        return {}
    partial, every = model.runs.partial, model.runs.partial + model.runs.full
    return {"approximate": f"{partial} of {every} runs of the network were on part of the positions"}
