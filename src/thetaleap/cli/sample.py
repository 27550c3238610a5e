"""``thetaleap sample``."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from .. import __version__, files, sampling
from ..conditioning.templates import GAP
from ..control import Blocks
from ..control.parallel import Window, one_at_a_time
from ..core.checks import require, require_count
from ..core.evaluation import Denoiser
from ..core.free import FREE
from ..evaluation.choice import AUTO, GRIDS, Budget, Choice, choose, flag, needs_model, written
from ..jobs import Draw, part_size_of, settled
from ..jobs.fingerprint import fingerprint
from ..models.hf.prefix_reuse import ApproximatePrefix, Reuse
from ..models.hf.raw_rates import RawRates
from ..registry import SOLVERS, full_name
from ..sampling import Moment, Samples
from .asked import Asked, prompts_of, template_of
from .base import print_lines, require_folder
from .errors import about, retyped
from .many import (
    ENGINE_OPTIONS,
    Address,
    CpusPerWorker,
    EngineName,
    GpusPerWorker,
    InShard,
    PartSize,
    Workers,
    check_many,
    draw_into,
    engine_of,
)
from .options import (
    DUAL,
    METHOD,
    REUSE,
    SEED,
    Device,
    DeviceMap,
    Dtype,
    TrustRemoteCode,
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
    "(pictures, of models that have some). Each says how it was made. Or a folder, for many: the same command goes on "
    "where it was interrupted."
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
LEGACY = (
    "Draw from the score ratios of a network as they are, as published code does, in place of a solver; for sedd. For a "
    "poor network this is another law."
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
    legacy: Annotated[bool, _budget(LEGACY, "--legacy", show=False)] = False,
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
    approximate_dual: Annotated[bool, _given(DUAL, "--approximate-dual", show=False)] = False,
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
    part_size: PartSize = None,
    shard: InShard = None,
    engine: EngineName = None,
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
    cpus_per_worker: CpusPerWorker = None,
    **hyper: Any,
) -> None:
    """Draw samples from a model, and write them to a file or a folder, or show them.

    Ctrl-C keeps the samples that are finished, and says how to go on.

    Example: [cyan]thetaleap sample chain64 --nfe 16 --num 1000 --out x.parquet[/]; many:
    [cyan]thetaleap sample shakespeare --nfe 16 --num 100000 --out samples/ --engine ray[/]
    """
    options = locals()
    require_no_clash(solver, sample)
    ahead = _window(window, exact)
    if exact:
        others = {name: options[name] for name in ("nfe", "tolerance", "steps", "grid", "delta", "block")}
        for name, value in {"solver": None if solver == AUTO else solver, **others, **hyper}.items():
            require(value is None, name, value, "--exact draws one position at a time; leave out one of the two")
    if legacy:
        require(
            model.startswith("sedd:"), "legacy", True, "is for sedd, whose networks give score ratios; leave it out"
        )
        others = {"solver": None if solver == AUTO else solver, "tolerance": tolerance, "exact": exact or None}
        for name, value in {**others, **hyper}.items():
            require(value is None, name, value, "--legacy is a solver by itself; leave out one of the two")
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
    reusing = [name for name in ("approximate_reuse", "approximate_dual") if options[name]]
    require(len(reusing) < 2, "approximate_dual", True, "keeps more than --approximate-reuse; give one of the two")
    for name in reusing:
        reason = f"{flag(name)} is within blocks; give it too, as in --block 32"
        require(block is not None, "block", block, reason)
        require(model.startswith(("llada:", "dream:")), name, True, "is for llada and dream; leave it out")
    folder = out if out is not None and files.is_folder(out) else None
    drawer = engine_of(engine, **{name: options[name] for name in ENGINE_OPTIONS})
    check_many(folder is not None, part_size, shard, drawer, force)
    continued = out is not None and first > 0 and not force and out.is_file() and out.suffix.lower() != files.PNG
    if folder is not None:
        require_folder(folder)
    elif out is not None:
        files.check_target(out, force or continued)
    budget = Budget(nfe, steps, tolerance, grid, delta)
    method = RawRates() if legacy else solver
    choice = None if exact or needs_model(method) else choose(None, method, hyper, budget)
    names = ("length", "device", "dtype", "device_map", "trust_remote_code", "vqgan")
    shaping = ("labels", "guidance", "temperature", "top_k", "top_p", "allow", "forbid")
    source = Asked(
        model,
        {name: options[name] for name in names},
        **{name: options[name] for name in shaping},
        reuse=Reuse(block, approximate_dual) if block is not None and reusing else None,
    )
    # workers with GPUs open the model there; here, where there may be none, it is only asked what it is
    denoiser = (replace(source, options={**source.options, "device": None}) if gpus_per_worker else source).open()
    words = getattr(denoiser, "tokenizer", None)
    _check_format(denoiser, out)
    rows = template_of(denoiser, template, prompt, prompts, gap)
    each = num if num is not None else 16 if prompts is None else 1
    positions = None if rows is None else max(1, int((rows == FREE).sum(1).max()))
    if rows is not None and (prompts is not None or folder is None):
        rows = rows.repeat_interleave(each, 0)[0 if prompts is None else first :]
        require(len(rows) > 0, "first", first, "there are no more samples; give a smaller number")
    every = each if rows is None or prompts is None else len(rows)
    reused = source.reused(denoiser)
    # of a job, each part is shaped by itself
    shaped = source.around(reused or denoiser, range(first, first + (every if folder is None else 1)))
    if exact:
        choice = Choice(one_at_a_time(shaped)[0], None, AUTO)
    elif choice is None:
        choice = choose(shaped, solver, hyper, replace(budget, positions=positions))
        nfe, measured = choice.nfe, f" {choice.evidence}" if why else ""
        typer.echo(f"{solver}: {written(choice.solver)} at {nfe} evaluations. {choice.reason}{measured}", err=True)
    method = choice.solver if block is None else Blocks(choice.solver, block)
    walk = {"nfe": nfe, "tolerance": tolerance, "steps": steps, "grid": choice.spacing, "delta": delta}
    asked = {name: options[name] for name in ("template", "prompt", *shaping) if options[name] is not None}
    asked |= {"gap": gap} if gap != GAP else {}
    asked |= dict.fromkeys(reusing, True)
    card = {"model": full_name(model), "solver": repr(method), **walk, **asked, "seed": seed, "version": __version__}
    card |= {"first": first} if first > 0 else {}
    card |= {name: value for name, value in (("exact", exact or None), ("window", ahead)) if value is not None}
    before, card = _before(out, card, first) if continued and out is not None else (None, card)
    how = {"nfe": nfe, "tolerance": tolerance, "steps": steps, "grid": choice.grid, "delta": delta, "window": ahead}
    how |= {"solver": AUTO if exact else method, "exact": exact, "seed": seed, "batch_size": batch_size}
    if folder is not None:
        table = None if rows is None else rows[0] if prompts is None else rows
        about = {**card, **{name: str(options[name]) for name in names if options[name]}, "batch_size": batch_size}
        about |= {} if prompts is None else {"prompts": fingerprint(rows)}
        about |= {"weights": fingerprint(denoiser), "device": "cuda" if gpus_per_worker else denoiser.device.type}
        draw = Draw(
            replace(source, options={**source.options, "device": device or ("cuda" if gpus_per_worker else None)}),
            settled(shaped, how, table),
            every,
            first,
            part_size_of(every, part_size),
            table,
            prompts_of(template or prompt, prompts, each, first, every),
            {name: value for name, value in about.items() if value is not None},
        )
        return draw_into(folder, draw, written(method), denoiser, drawer, shard)
    start, kept, stopped = time.perf_counter(), Kept(), False
    try:
        samples = sampling.sample(shaped, **how, num=every, template=rows, first=first, on_step=kept)
    except KeyboardInterrupt:
        samples, stopped = kept.samples(), True
    done, seconds = 0 if samples is None else len(samples.x), time.perf_counter() - start
    if samples is not None and out is None:
        show(denoiser, samples, first)
    elif samples is not None and out is not None and out.suffix.lower() == files.PNG:
        files.write_pictures(out, files.image_grid(files.pictures(denoiser, samples.x)), card)
    elif samples is not None and out is not None:
        text = None if words is None else [words.decode(row) for row in samples.x.tolist()]
        files.write(out, samples, card, text, prompts_of(template or prompt, prompts, each, first, done), before)
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


def _reuse(model: ApproximatePrefix | None) -> dict[str, str]:
    if model is None:
        return {}
    partial, every = model.runs.partial, model.runs.partial + model.runs.full
    return {"approximate": f"{partial} of {every} runs of the network were on part of the positions"}
