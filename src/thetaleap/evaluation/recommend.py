"""`recommend`: the solver and the grid that measured best for a kind of model and a budget."""

from __future__ import annotations

from dataclasses import dataclass

from ..control import grids
from ..core.checks import is_whole, require, require_choice, require_count
from ..core.evaluation import Denoiser, as_model
from ..core.wrapped import cost_of, unwrapped
from ..models.oracles import Oracle
from ..planners import FixedCount, LowDiscrepancy
from ..sampling import plan
from ..solvers import ExponentialTrapezoidal, Multistep, Solver, Tweedie
from .advice import ADVICE, BUDGET, FEW, SHORT

APART, EVEN, COSINE = LowDiscrepancy(schedule="even"), FixedCount("even"), FixedCount("cosine")
SOLVERS: dict[str, Solver] = {
    "moving": Multistep(),
    "single": Tweedie(EVEN),
    "network on a line": ExponentialTrapezoidal(planner=APART),
    "few on a line": Multistep(planner=APART),
    "oracle on a line": Tweedie(APART),
    "short": Multistep(planner=EVEN),
    "plane": Multistep(planner=COSINE),
    "anyhow": Multistep(planner=EVEN),
}
"""For each kind of `ADVICE`."""


@dataclass(frozen=True)
class Recommendation:
    """What to run: ``sample(model, r.solver, grid=r.grid, nfe=r.nfe)``."""

    solver: Solver
    grid: grids.Grid | None
    """None is the uniform one."""
    nfe: int
    """The budget."""
    reason: str
    """Why, in a line."""
    evidence: str
    """What was measured."""


def recommend(
    model: Denoiser | str,
    nfe: int | None = None,
    *,
    geometry: str | tuple[int, ...] | None = None,
    positions: int | None = None,
) -> Recommendation:
    """The solver and the grid that measured best for models like `model` at `nfe` evaluations: a row of `ADVICE`.

    Args:
        model: any model; nothing is asked of it but its process, length and shape.
        nfe: the most evaluations to spend on a sample, by default 32 (twice that with guidance), or one for each
            position if those are fewer.
        geometry: "line", (height, width) or "none"; by default the model's ``shape``, and "none" if it has none. (What
            is taken for a line and is none fares up to five times worse than in random order.)
        positions: how many the sampler may write to, by default all.
    """
    model = as_model(model)
    if positions is not None:
        require_count("positions", positions)
    cost, positions = cost_of(model), model.length if positions is None else positions
    if nfe is None:
        nfe = cost * (BUDGET if model.process.mask is None else min(BUDGET, positions))
    require_count("nfe", nfe)
    kind = _kind(model, nfe // cost, positions, _shape(model, geometry))
    grid = grids.alpha_power(model.process.schedule) if kind == "moving" else None
    plan(model, SOLVERS[kind], nfe=nfe, grid=grid)  # says so if the budget is too small for the schedule
    return Recommendation(SOLVERS[kind], grid, nfe, ADVICE[kind].reason, ADVICE[kind].evidence)


def _kind(model: Denoiser, evaluations: int, positions: int, shape: tuple[int, ...] | None) -> str:
    """The row of `ADVICE` for so many `evaluations` of a model whose positions lie in `shape`."""
    if model.process.mask is None:
        return "moving"
    if evaluations >= positions:
        return "single"
    if shape is None or len(shape) > 2:
        return "anyhow"
    if model.length < SHORT:
        return "short"
    if len(shape) == 2 and min(shape) > 1:
        return "plane"
    if isinstance(unwrapped(model), Oracle):
        return "oracle on a line"
    return "network on a line" if evaluations >= FEW else "few on a line"


def _shape(model: Denoiser, geometry: str | tuple[int, ...] | None) -> tuple[int, ...] | None:
    if geometry is None:
        return getattr(unwrapped(model), "shape", None)
    if isinstance(geometry, str):
        require_choice("geometry", geometry, ("line", "none"))
        return (model.length,) if geometry == "line" else None
    good = isinstance(geometry, tuple | list) and len(geometry) == 2 and all(is_whole(n) and n > 0 for n in geometry)
    require(good, "geometry", geometry, 'give "line", "none" or (height, width), both at least 1')
    size = geometry[0] * geometry[1]
    require(size == model.length, "geometry", geometry, f"has {size} positions, but the model has {model.length}")
    return geometry
