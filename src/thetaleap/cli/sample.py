"""``thetaleap sample``."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import __version__, files, sampling
from ..conditioning.templates import GAP, read_prompt, read_template, read_templates
from ..conditioning.wrappers import constrained, guided, tempered
from ..control import Blocks, Method
from ..core.checks import require
from ..core.evaluation import Denoiser
from ..evaluation.choice import AUTO, GRIDS, Budget, choose
from ..models import load
from ..models.hf.prefix_reuse import ApproximatePrefix, approximate_prefix
from ..registry import SOLVERS
from ..sampling import Samples
from .base import print_lines, table_of
from .options import (
    DEVICE,
    DTYPE,
    METHOD,
    REUSE,
    SEED,
    SPREAD,
    option,
    require_no_clash,
    torch_dtype,
    with_hyper_parameters,
)

PREVIEW = 8
"""Samples shown when there is no file to put them in."""
AS_NEEDED = [name for name, solver in SOLVERS.loaded().items() if solver.evaluations is None]
"""Solvers that take no budget of evaluations."""

_budget, _place, _given, _output = (
    partial(option, panel) for panel in ("How much, and when", "Model", "What is given", "Samples")
)
OWN = "the model's own"

CHOSEN = "[cyan]auto[/] takes what measured best for models of this kind at --nfe, and says why."
NFE = (
    "The most network evaluations to spend on a sample, at least 1. Give this or --steps; leave both out for "
    f"{' and '.join(AS_NEEDED)}, which spend what they need."
)
TOLERANCE = (
    "The error to allow, in nats per position, in place of --nfe: each sample then spends what it needs. For multistep, "
    "and for tweedie (with masks, with --planner fixed-count or low-discrepancy)."
)
DELTA = (
    "The time at which to stop, from 0 (data) to below the model's horizon; the noise that is left goes in one more "
    "evaluation."
)
REMOTE = "Let the model's own code run, where it brings some; for llada and dream."
TEMPLATE = (
    "What is given, with gaps: text, as in 'To be, ___ not to be', where each _ is one token to write; token numbers "
    "and _ with spaces between for models without text. Positions after the end are for the sampler too."
)
PROMPTS = 'A file with a template or a prompt on each line: {"template": "..."} or {"prompt": "..."}.'
OUT = (
    "The file to write: .parquet (tokens, nfe, and how they were made), .jsonl (tokens, nfe), .npy (tokens), or .png "
    "(pictures, of models that have some)."
)
LABELS = (
    "The class of the samples, for models that take labels, or several with commas between, which they take in turn."
)
GUIDANCE = "How far to go towards the labels, at least 0; an evaluation then counts as two."
VQGAN = "The file of the decoder that makes pictures of codes; for maskgit."


@with_hyper_parameters(before="length")
def sample(
    model: Annotated[
        str,
        typer.Argument(help="A model by name, or KIND:SOURCE: [cyan]thetaleap models[/] lists them.", metavar="MODEL"),
    ],
    solver: Annotated[str, typer.Option(help=f"{METHOD} {CHOSEN}")] = "trapezoidal",
    nfe: Annotated[int | None, _budget(NFE, show=False)] = None,
    tolerance: Annotated[float | None, _budget(TOLERANCE, show=False)] = None,
    steps: Annotated[int | None, _budget("The number of steps, at least 1, instead of --nfe.", show=False)] = None,
    grid: Annotated[
        str | None, _budget(f"How the steps are spaced in time: {', '.join(GRIDS)}.", show="uniform")
    ] = None,
    delta: Annotated[float | None, _budget(DELTA, show="0 if the solver can step there, else 0.001")] = None,
    length: Annotated[int | None, _place("Positions, for models that leave it open.", show=OWN)] = None,
    device: Annotated[str | None, _place(DEVICE, show=OWN)] = None,
    dtype: Annotated[str | None, _place(DTYPE, show=OWN)] = None,
    device_map: Annotated[str | None, _place(SPREAD, show=OWN)] = None,
    trust_remote_code: Annotated[bool | None, _place(REMOTE, "--trust-remote-code", show=False)] = None,
    vqgan: Annotated[Path | None, _place(VQGAN, show=False, metavar="FILE")] = None,
    template: Annotated[str | None, _given(TEMPLATE, show=False)] = None,
    prompt: Annotated[str | None, _given("Text that samples begin with.", show=False)] = None,
    prompts: Annotated[Path | None, _given(PROMPTS, show=False, metavar="FILE")] = None,
    labels: Annotated[str | None, _given(LABELS, "--labels", "--label", show=False)] = None,
    guidance: Annotated[float | None, _given(GUIDANCE, show=False)] = None,
    gap: Annotated[str, _given("The character that stands for a gap.")] = GAP,
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
    batch_size: Annotated[int | None, _output("Samples run together, at least 1.", show="as fits 128 MiB")] = None,
    out: Annotated[Path | None, _output(OUT, metavar="FILE", show="none, show a few samples")] = None,
    force: Annotated[bool, _output("Replace the file if it exists.", "--force")] = False,
    **hyper: Any,
) -> None:
    """Draw samples from a model, and write them to a file or show a few.

    Example: [cyan]thetaleap sample chain64 --solver trapezoidal --theta 0.5 --nfe 64 --num 1000 --out x.parquet[/]
    """
    options = locals()
    names = ("length", "device", "dtype", "device_map", "trust_remote_code", "vqgan")
    place = {name: options[name] for name in names if options[name] is not None}
    place |= {} if dtype is None else {"dtype": torch_dtype(dtype)}
    require_no_clash(solver, sample)
    budget = Budget(nfe, steps, tolerance, grid, delta)
    denoiser = None if solver != AUTO else load(model, **place)
    given = [name for name in ("template", "prompt", "prompts") if options[name] is not None]
    require(len(given) < 2, " and ".join(f"--{name}" for name in given), "", "give one of them")
    require(
        block is not None or not approximate_reuse, "--block", block, "--approximate-reuse is within blocks; give it"
    )
    choice = choose(denoiser, solver, hyper, budget)
    if out is not None:
        files.check_target(out, force)
    if choice.reason:
        typer.echo(f"auto: {choice.solver!r}\n{choice.reason}", err=True)
    denoiser = denoiser or load(model, **place)
    if out is not None and out.suffix.lower() == files.PNG:
        files.require_pictures(denoiser)
    rows = _template(denoiser, template, prompt, prompts, gap)
    each = num if num is not None else 16 if prompts is None else 1
    rows = rows if rows is None else rows.repeat_interleave(each, 0)
    reused = approximate_prefix(denoiser, block) if block is not None and approximate_reuse else None
    labelled = _guided(reused or denoiser, labels, guidance, each if rows is None else len(rows))
    shaped = _shaped(labelled, temperature, top_k, top_p, allow, forbid)
    method = choice.solver if block is None else Blocks(choice.solver, block)
    start = time.perf_counter()
    samples = sampling.sample(
        shaped,
        method,
        nfe=nfe,
        tolerance=tolerance,
        steps=steps,
        grid=choice.grid,
        num=each if rows is None else len(rows),
        template=rows,
        seed=seed,
        delta=delta,
        batch_size=batch_size,
    )
    seconds = time.perf_counter() - start
    if out is None:
        console = Console()
        console.print(preview(samples, getattr(denoiser, "tokenizer", None), drawn(denoiser, samples, console.width)))
    else:
        walk = {"nfe": nfe, "tolerance": tolerance, "steps": steps, "grid": choice.spacing, "delta": delta}
        told = ("template", "prompt", "temperature", "top_k", "top_p", "allow", "forbid", "labels", "guidance")
        asked = {name: options[name] for name in told if options[name] is not None}
        asked |= {} if reused is None else {"approximate_reuse": True}
        card = {"model": model, "solver": repr(method), **walk, **asked, "seed": seed, "version": __version__}
        if out.suffix.lower() == files.PNG:
            files.write_pictures(out, files.mosaic(files.pictures(denoiser, samples.x)), card)
        else:
            files.write(out, samples, card)
    print_lines({**summary(model, method, samples, seconds, out), **_reuse(reused)})


def _template(model: Denoiser, template: str | None, prompt: str | None, prompts: Path | None, gap: str) -> Any:
    if template is not None:
        return read_template(model, template, gap).unsqueeze(0)
    if prompt is not None:
        return read_prompt(model, prompt).unsqueeze(0)
    return None if prompts is None else read_templates(model, prompts, gap)


def _shaped(
    model: Denoiser,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    allow: str | None,
    forbid: str | None,
) -> Denoiser:
    if allow is not None or forbid is not None:
        tokens = [None if text is None else _tokens(model, text) for text in (allow, forbid)]
        model = constrained(model, *tokens)
    if temperature is None and top_k is None and top_p is None:
        return model
    return tempered(model, 1.0 if temperature is None else temperature, top_k, top_p)


def _guided(model: Denoiser, labels: str | None, guidance: float | None, num: int) -> Denoiser:
    if labels is None:
        require(guidance is None, "--guidance", guidance, "goes towards a label; give --labels")
        return model
    parts = [part.strip() for part in labels.split(",")]
    good = all(part.isdigit() for part in parts)
    require(good, "--labels", labels, "give whole numbers with commas between, as in 3 or 0,1,2")
    every = [int(part) for part in parts]
    return guided(model, guidance or 0.0, [every[n % len(every)] for n in range(num)])


def _tokens(model: Denoiser, text: str) -> list[int]:
    """The tokens of `text`, or the numbers in it where a model has no text."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is not None:
        return tokenizer.encode(text)
    good = all(word.isdigit() for word in text.split())
    require(good, "tokens", text, "this model has no text; give numbers with spaces between")
    return [int(word) for word in text.split()]


def drawn(model: Denoiser, samples: Samples, width: int) -> str | None:
    """The first few samples as small pictures in characters; None where there are none, or they are too wide."""
    shape = getattr(model, "shape", None)
    grey = getattr(model, "pictures", None) is None and model.process.states <= files.GREYS
    if shape is None or len(shape) != 2 or not grey or shape[1] > width:
        return None
    return files.blocks(files.pictures(model, samples.x[:PREVIEW]), columns=(width + 2) // (shape[1] + 2))


def preview(samples: Samples, tokenizer: Any = None, pictures: str | None = None) -> Table | Text:
    """The first few samples: pictures, text in full, or tokens cut at the width of the terminal."""
    if pictures is not None:
        return Text(pictures + "\n", no_wrap=True)
    table = table_of("#sample", "#nfe", "tokens" if tokenizer is None else "text")
    for n, (tokens, nfe) in enumerate(zip(samples.x[:PREVIEW].tolist(), samples.nfe.tolist(), strict=False)):
        if tokenizer is None:
            row = Text(" ".join(map(str, tokens)), no_wrap=True, overflow="ellipsis")
        else:
            row = Text(tokenizer.decode(tokens), overflow="fold")
        table.add_row(str(n), str(nfe), row)
    return table


def _reuse(model: ApproximatePrefix | None) -> dict[str, str]:
    if model is None:
        return {}
    partial, every = model.runs.partial, model.runs.partial + model.runs.full
    return {"approximate": f"{partial} of {every} runs of the network were on part of the positions"}


def summary(model: str, solver: Method, samples: Samples, seconds: float, out: Path | None) -> dict[str, str]:
    """What was done, and at what cost."""
    nfe, num = samples.nfe, len(samples.nfe)
    return {
        "model": model,
        "solver": repr(solver),
        "samples": str(num),
        "evaluations": f"{float(nfe.double().mean()):.1f} per sample ({int(nfe.min())} to {int(nfe.max())})",
        **{name: f"{value:.4f}" for name, value in samples.info.items()},
        "seconds": f"{seconds:.2f} ({num / seconds:.1f} samples per second)",
        "file": "none (keep them with --out samples.parquet)" if out is None else str(out),
    }
