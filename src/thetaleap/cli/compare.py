"""``thetaleap compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..control import grids
from ..core.checks import require, require_choice
from ..evaluation import compare as comparison
from ..models import load
from ..planners import FixedCount, LowDiscrepancy
from ..registry import SOLVERS
from ..solvers import Multistep, Solver, Tweedie
from .base import print_report, require_folder
from .options import SEED, parse_budgets


def compare(
    model: Annotated[
        str, typer.Argument(help="A built-in model: [cyan]thetaleap models[/] lists them.", metavar="MODEL")
    ],
    solvers: Annotated[
        str, typer.Option(help="Contenders, with commas between, or all. A wrong name lists them.")
    ] = "all",
    nfe: Annotated[str, typer.Option(help="Budgets in evaluations, with commas between.")] = "4,8,16,32",
    plan: Annotated[
        bool, typer.Option("--plan", help="Also plan the counts of masked models from 300 pilot samples.")
    ] = False,
    num: Annotated[
        int | None, typer.Option(help="Samples per contender and budget.", show_default="2000, none where exact")
    ] = None,
    seed: Annotated[int, typer.Option(help=SEED)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to.", metavar="FOLDER", show_default="runs/compare-MODEL")
    ] = None,
) -> None:
    """Compare solvers at equal evaluations on one model: a table, and files with a figure.

    Example: [cyan]thetaleap compare chain64 --solvers tweedie,multistep,low-discrepancy --nfe 4,8[/]
    """
    budgets = parse_budgets(nfe)
    denoiser = load(model)
    contenders = comparison.default_contenders(denoiser)
    if plan:
        contenders |= _planned(denoiser, seed)
    if solvers != "all":
        for name in solvers.split(","):
            if name not in contenders and name in SOLVERS:
                SOLVERS[name].load()  # says so if that is why it is not there
            require_choice("solvers", name, contenders)
        contenders = {name: contenders[name] for name in solvers.split(",")}
    folder = require_folder(out or Path("runs") / f"compare-{model}")
    result = comparison.compare(denoiser, contenders, budgets, num=num, seed=seed)
    print_report(result.text(), result.save(folder))


def _planned(model: Any, seed: int) -> dict[str, comparison.Contender]:
    """Solvers of a masked model whose counts are planned from pilot samples."""
    require(model.process.mask is not None, "--plan", type(model.process).__name__, "plans are for masked models")
    shape = getattr(model, "shape", None)
    far = LowDiscrepancy(shape if shape is not None and len(shape) == 2 else None)

    def contender(method: Solver, planner: FixedCount | LowDiscrepancy) -> comparison.Contender:
        table = grids.pilot_entropies(model, planner, seed=seed)
        return comparison.Contender(method, lambda start, end, steps: grids.planned(model, method, steps, table=table))

    return {
        "multistep-planned": contender(Multistep(), FixedCount()),
        "low-discrepancy-planned": contender(Tweedie(far), far),
    }
