"""``thetaleap compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import files
from ..control import grids
from ..core.checks import require
from ..evaluation import compare as comparison
from ..evaluation.choice import split
from ..evaluation.contenders import Contender, contenders_of, default_contenders
from ..models import load
from ..planners import FixedCount, LowDiscrepancy
from ..solvers import Multistep, Solver, Tweedie
from .base import default_folder, print_report, require_folder
from .options import SEED, parse_budgets

ALL = "all"
LONG = 60
"""Seconds from which on it is said how long it will take."""
SOLVERS = (
    "Contenders, with commas between: names of [cyan]thetaleap solvers[/], auto, or as in Python, "
    "'Multistep(planner=LowDiscrepancy())'; or all."
)
REFERENCE = (
    "Samples to compare with, .parquet, .jsonl or .npy, such as the reference.npy of an earlier comparison; or model: the "
    "model's own also where the truth is known."
)


def compare(
    model: Annotated[
        str,
        typer.Argument(help="A model by name, or KIND:SOURCE: [cyan]thetaleap models[/] lists them.", metavar="MODEL"),
    ],
    solvers: Annotated[
        str | None,
        typer.Option(help=SOLVERS, metavar="NAME,NAME,...", show_default="all for oracles, else a choice, auto first"),
    ] = None,
    nfe: Annotated[
        str, typer.Option(help="Budgets in evaluations, with commas between.", metavar="N,N,...")
    ] = "4,8,16",
    reference: Annotated[
        str | None,
        typer.Option(help=REFERENCE, metavar="FILE", show_default="the truth of oracles, else the model, exactly"),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Also plan the counts of masked models from 300 pilot samples.")
    ] = False,
    num: Annotated[
        int | None,
        typer.Option(help="Samples per contender and budget.", show_default="2000 for oracles, else 64 to 256"),
    ] = None,
    seed: Annotated[int, typer.Option(help=SEED)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to.", metavar="FOLDER", show_default="runs/compare-MODEL")
    ] = None,
) -> None:
    """Which solver for a model: all at equal evaluations, ranked by how near their samples are to the truth.

    Example: [cyan]thetaleap compare chain64 --solvers 'auto,tweedie,Multistep(window=2)' --nfe 4,8[/]
    """
    budgets = parse_budgets(nfe)
    folder = require_folder(out or default_folder("compare", model))
    given: Any = reference
    if reference not in (None, comparison.MODEL):
        given, _ = files.read_samples(Path(str(reference)), "reference")
    denoiser = load(model)
    planned = _planned(denoiser, seed) if plan else {}
    if solvers in (None, ALL):
        contenders = default_contenders(denoiser, every=None if solvers is None else True) | planned
    else:
        named = {name: planned.get(name, name) for name in split(solvers)}
        contenders = contenders_of(denoiser, named) | (planned if not set(named) & set(planned) else {})
    num = comparison.default_num(denoiser, given) if num is None else num
    _announce(denoiser, contenders, budgets, given, num)
    result = comparison.compare(denoiser, contenders, budgets, num=num, seed=seed, reference=given)
    print_report(result.text(), result.save(folder))


def _announce(model: Any, contenders: dict[str, Contender], budgets: list[int], reference: Any, num: int) -> None:
    """Say how long it will take, if it is long."""
    each = comparison.evaluations(model, contenders, budgets, reference)
    seconds = num * each * comparison.seconds_per_evaluation(model)
    if seconds > LONG:
        saving = "less with fewer --solvers, --nfe or --num, or with --reference"
        typer.echo(
            f"about {seconds / 60:.0f} minutes: {each} evaluations of each of {num} samples ({saving})", err=True
        )


def _planned(model: Any, seed: int) -> dict[str, Contender]:
    """Solvers of a masked model whose counts are planned from pilot samples."""
    require(model.process.mask is not None, "--plan", type(model.process).__name__, "plans are for masked models")
    shape = getattr(model, "shape", None)
    far = LowDiscrepancy(shape if shape is not None and len(shape) == 2 else None)

    def contender(method: Solver, planner: FixedCount | LowDiscrepancy) -> Contender:
        table = grids.pilot_entropies(model, planner, seed=seed)
        return Contender(method, lambda start, end, steps: grids.planned(model, method, steps, table=table))

    return {
        "multistep-planned": contender(Multistep(), FixedCount()),
        "low-discrepancy-planned": contender(Tweedie(far), far),
    }
