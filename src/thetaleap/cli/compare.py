"""``thetaleap compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import files
from ..control import grids
from ..core.batches import Batches
from ..core.checks import require
from ..evaluation import compare as comparison
from ..evaluation import tune as tuning
from ..evaluation.choice import FILE, split
from ..evaluation.contenders import Contender, contenders_of, default_contenders
from ..models import load
from ..planners import FixedCount, LowDiscrepancy
from ..solvers import Multistep, Solver, Tweedie
from .base import default_folder, print_report, require_folder
from .errors import retyped
from .evaluate import announce_unfinished
from .options import SEED, parse_budgets

ALL = "all"
LONG = 60
"""Seconds from which on it is said how long it will take."""
SOLVERS = (
    "Contenders, with commas between: names of [cyan]thetaleap solvers[/], auto, exact (one position at a time, in few "
    "rounds), legacy (as published code, for sedd), or as in Python, 'Multistep(planner=LowDiscrepancy())'; or all."
)
REFERENCE = (
    "Samples to compare with, .parquet, .jsonl, .npy or a folder of parts, such as the reference.npy of an earlier "
    "comparison; a number: the "
    "model's own at so many evaluations, where exact ones take too long; or model: exact ones also where the truth is known."
)
TUNE = (
    "Search solvers, weights, windows, planners and grids for one budget, and compare the best with auto and tweedie on "
    "fresh samples."
)


def compare(
    model: Annotated[
        str,
        typer.Argument(
            help="A model by name, KIND:SOURCE, or a folder of [cyan]thetaleap train[/]: [cyan]thetaleap models[/] lists them.",
            metavar="MODEL",
        ),
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
    tune: Annotated[bool, typer.Option("--tune", help=TUNE)] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="With --tune: the .json file for thetaleap sample --solver.", metavar="FILE", show_default=False
        ),
    ] = None,
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

    Example: [cyan]thetaleap compare chain64 --solvers 'auto,tweedie,Multistep(window=2)' --nfe 4,8[/], and
    [cyan]thetaleap compare chain64 --tune --nfe 8 --save best.json[/]
    """
    budgets = parse_budgets(nfe)
    folder = require_folder(out or default_folder("compare", model))
    given: Any = reference
    if reference is not None and reference.isdigit():
        given = int(reference)
    elif reference not in (None, comparison.MODEL):
        announce_unfinished(Path(str(reference)))
        given = files.Stored.at(Path(str(reference)), "reference").tokens()
    require(save is None or tune, "--save", str(save), "is for the result of --tune; add it")
    require(save is None or save.suffix == FILE, "--save", str(save), f"give a name that ends with {FILE}")
    denoiser = load(model)
    if tune:
        _tune(model, denoiser, solvers, plan, budgets, num, seed, given, save, folder)
        return
    planned = _planned(denoiser, seed) if plan else {}
    if solvers in (None, ALL):
        contenders = default_contenders(denoiser, every=None if solvers is None else True) | planned
    else:
        named = {name: planned.get(name, name) for name in split(solvers)}
        contenders = contenders_of(denoiser, named, "solvers") | (planned if not set(named) & set(planned) else {})
    num = comparison.default_num(denoiser, given) if num is None else num
    _announce(denoiser, comparison.evaluations(denoiser, contenders, budgets, given), num)
    try:
        result = comparison.compare(denoiser, contenders, budgets, num=num, seed=seed, reference=given)
    except comparison.Interrupted as stopped:
        _interrupted(stopped.comparison, sum(len(budgets) if one.spends else 1 for one in contenders.values()), folder)
        raise typer.Exit(130) from None
    print_report(result.text(), result.save(folder))


def _interrupted(found: comparison.Comparison, wanted: int, folder: Path) -> None:
    """Show and keep what was finished, and say how to go on with the same reference."""
    from ..evaluation.report import write_reference  # with matplotlib

    if any(row.figures for row in found.rows):
        print_report(found.text(), found.save(folder))
    kept = None if found.reference is None else write_reference(found.reference, folder)
    again = retyped() if kept is None else retyped(reference=kept)
    typer.echo(f"interrupted: {len(found.rows)} of {wanted} rows were finished\nto go on: {again}", err=True)


def _tune(
    name: str,
    model: Any,
    solvers: str | None,
    plan: bool,
    budgets: list[int],
    num: int | None,
    seed: int,
    reference: Any,
    save: Path | None,
    folder: Path,
) -> None:
    require(solvers is None, "--solvers", solvers, "--tune has candidates of its own; leave it out")
    require(not plan, "--plan", plan, "--tune has candidates of its own; leave it out")
    require(len(budgets) == 1, "--nfe", budgets, "--tune is for one budget; give one, as in --nfe 8")
    half = reference[: len(reference) // 2] if isinstance(reference, Batches) else reference
    num = comparison.default_num(model, half) if num is None else num
    _announce(model, tuning.evaluations(model, budgets[0], reference), num)
    tuned = tuning.tune(model, budgets[0], num=num, seed=seed, reference=reference)
    written = tuned.comparison.save(folder) + ([] if save is None else [tuned.save(save, name)])
    print_report(tuned.text(), written)


def _announce(model: Any, each: int, num: int) -> None:
    """Say how long so many evaluations of so many samples will take, if it is long."""
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
