"""``thetaleap evaluate``: how good, and how varied, the samples in a file are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .. import files
from ..core.checks import as_device, require, require_count
from ..evaluation.judges.causal import NAMES, PLAYS, SMOLLM2, judge
from ..evaluation.reading import read_reference, read_texts, read_tokens
from ..evaluation.samples import IGLM, OPEN, PER_SAMPLE, measure, measure_text

HELP = (
    f"Another model's opinion. Of text: {SMOLLM2} (offline; a package to install), {', '.join(NAMES)}, a hub id or a "
    f"folder; of Shakespeare's: {PLAYS} (inside); of human heavy chains: {IGLM} (a package to install)."
)
SAMPLES = (
    "Samples, as sample --out writes them: .parquet, .jsonl, .npy or .txt, or a folder of parts. Also text from elsewhere, "
    '.txt with a sample on each line or .jsonl with {"text": ...}.'
)
REFERENCE = (
    "Samples to compare with, for example of first-hitting; for judges of text also any text file. In half of it or "
    "less, as long as the samples, the same is measured; distances are from the rest."
)


def announce_unfinished(*paths: Path | None) -> None:
    """Say of folders what is missing in them."""
    for missing in (files.unfinished(path) for path in paths if path is not None):
        if missing is not None:
            typer.echo(missing, err=True)


def evaluate(
    file: Annotated[Path, typer.Argument(help=SAMPLES, metavar="FILE")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that made them, or its like: [cyan]thetaleap models[/] lists them.",
            show_default="as the file says",
            metavar="MODEL",
        ),
    ] = None,
    reference: Annotated[Path | None, typer.Option(help=REFERENCE, metavar="FILE")] = None,
    template: Annotated[
        str | None,
        typer.Option(
            help=f"What was given, in letters, with {OPEN} at the positions that count.",
            show_default="as the file says",
        ),
    ] = None,
    prefix: Annotated[int | None, typer.Option(help="How many first positions were given, and do not count.")] = None,
    critic: Annotated[str | None, typer.Option("--judge", help=HELP, metavar="NAME")] = None,
    device: Annotated[
        str | None, typer.Option(help="Where a judge of text runs, as in cuda:0.", metavar="DEVICE")
    ] = None,
    per_sample: Annotated[
        int | None,
        typer.Option(
            help="Positions of each sample to ask the model about: one evaluation each; 0 is all.", show_default="4"
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the choice of these positions.", show_default="0")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure samples in a file: likelihood and diversity together, and the distance to a reference.

    The file says which model made them and what was given. Without a judge of text, the likelihood is the model's own,
    of one position given all others.

    Example: [cyan]thetaleap evaluate x.parquet --reference exact.parquet[/]
    Example: [cyan]thetaleap evaluate x.parquet --judge smollm2 --reference input.txt[/]
    """
    if device is not None:
        as_device(device)
    announce_unfinished(file, reference)
    if template is not None and prefix is not None:
        raise ValueError(f"--template {template} and --prefix {prefix}: give one of them")
    if critic is None or critic == IGLM:
        require(device is None, "--device", device, "is for judges of text; leave it out")
        per_sample = PER_SAMPLE if per_sample is None else per_sample
        require_count("per_sample", per_sample, least=0)
        x, name, card = read_tokens(file, model)
        other = None if reference is None else read_tokens(reference, model or name, "reference")[0]
        given = {"template": template, "prefix": prefix, "judge": critic, "card": card}
        result = measure(name, x, other, **given, per_sample=per_sample, seed=seed or 0)
    else:
        others = {"template": template, "prefix": prefix, "per-sample": per_sample, "seed": seed}
        for flag, value in others.items():
            require(value is None, f"--{flag}", value, f"{critic} reads whole samples; leave it out")
        texts, name = read_texts(file, model)
        against = [] if reference is None else read_reference(reference, model or name)
        result = measure_text(judge(critic) if device is None else judge(critic, device=device), texts, against, name)
    if as_json:
        typer.echo(result.json())
    else:
        Console().print(escape(result.text()), highlight=False, soft_wrap=True)
