"""The one table of methods: how each is made, what the paper calls it, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from ..control import Blocks, ParallelDecoding, SemiAutoregressive, control_of
from ..control import Method as Solvers
from ..core.checks import require, require_count
from ..core.evaluation import Denoiser
from ..core.wrapped import cost_of
from ..planners import FixedCount, LowDiscrepancy
from ..registry import AUTO as ADVISED
from ..sampling import DELTA, Samples, plan, sample
from ..solvers import (
    RK2,
    Corrected,
    Euler,
    ExponentialTrapezoidal,
    FirstHitting,
    Multistep,
    TauLeaping,
    Trapezoidal,
    Tweedie,
)
from ..solvers.correctors import Gibbs
from .legacy import Legacy
from .published import QUIRKS, Published

EXACT, MINE, SAFE = "first-hitting", "theta-Trapezoidal", "theta-Trapezoidal (exact rule)"
EULER, TWEEDIE, TAU, RK = "Euler", "Tweedie tau-leaping", "tau-leaping", "theta-RK-2"
SEMI, PARALLEL = ("Semi-AR (random)", "Semi-AR (confidence)"), "parallel decoding"
AUTO, ROUNDS, CORRECTED = "thetaleap auto", "exact in few rounds", "corrected (Gibbs)"
SEVERAL, APART = "first-hitting, several at once", "low discrepancy"
IN_ROUNDS = "exact"
Led = Solvers | Literal["auto", "exact"]
"""A solver, what the library advises, or one position at a time in few rounds of the network."""
RATIOS = tuple(2.0**-n for n in range(6, -1, -1))
"""Evaluations per position: the paper's, on text."""


@dataclass(frozen=True)
class Method:
    """A row of the table. The paper's are drawn through, ours dashed."""

    make: Callable[[Any], Led]
    """Of the settings of `pick`."""
    colour: str
    line: str = "-"
    kind: Literal["paper", "ours", "legacy"] = "paper"
    published: str | None = None
    """What the paper's tables call it; none where they have no such row."""
    delta: float | None = None
    """Where the paper's steps end; None is as is best for the solver."""


def _ours(make: Callable[[Any], Led], colour: str, line: str = "--") -> Method:
    return Method(make, colour, line, "ours")


METHODS: dict[str, Method] = {
    EXACT: Method(lambda s: FirstHitting(), "0.25", ":", published="FHS"),
    EULER: Method(lambda s: Euler(), "#009E73", published=EULER, delta=DELTA),
    TWEEDIE: Method(lambda s: Tweedie(), "#CC79A7", published=TWEEDIE, delta=DELTA),
    TAU: Method(lambda s: TauLeaping("reject"), "#0072B2", published=TAU, delta=DELTA),
    RK: Method(lambda s: RK2(s.theta, "reject"), "#E69F00", published=RK, delta=DELTA),
    MINE: Method(lambda s: Trapezoidal(s.theta, "reject"), "#D55E00", published=MINE, delta=DELTA),
    SEMI[0]: Method(lambda s: SemiAutoregressive("random", s.block), "#999999", published="Semi-AR"),
    SEMI[1]: Method(lambda s: SemiAutoregressive("confidence", s.block), "#8C564B", published="Semi-AR"),
    PARALLEL: Method(lambda s: ParallelDecoding(), "#6A3D9A"),
    SAFE: _ours(lambda s: Trapezoidal(s.theta), "#D55E00"),
    "exponential Trapezoidal": _ours(lambda s: ExponentialTrapezoidal(), "#56B4E9"),
    "multistep": _ours(lambda s: Multistep(), "#4B0082"),
    "Tweedie (fixed counts)": _ours(lambda s: Tweedie(FixedCount()), "#CC79A7"),
    APART: _ours(lambda s: Tweedie(LowDiscrepancy(s.shape)), "#B8A800"),
    "multistep, low discrepancy": _ours(lambda s: Multistep(planner=LowDiscrepancy(s.shape)), "#1B1464"),
    AUTO: _ours(lambda s: "auto", "#000000", "-"),
    ROUNDS: _ours(lambda s: "exact", "0.25", ":"),
    CORRECTED: _ours(lambda s: Corrected(Tweedie(FixedCount("even")), Gibbs(s.redraw)), "#8C564B"),
    SEVERAL: Method(lambda s: Tweedie(FixedCount("even")), "0.45", published="FHS"),
    "tau-leaping (published code)": Method(lambda s: Published("tau-leaping", QUIRKS), "#0072B2", "-.", "legacy", TAU),
    "theta-Trapezoidal (published code)": Method(
        lambda s: Published("trapezoidal", QUIRKS, s.theta), "#D55E00", "-.", "legacy", MINE
    ),
    "Euler (legacy)": Method(lambda s: Legacy("euler"), "#009E73", "-.", "legacy", EULER, DELTA),
    "Tweedie tau-leaping (legacy)": Method(lambda s: Legacy("tweedie"), "#CC79A7", "-.", "legacy", TWEEDIE, DELTA),
    "tau-leaping (legacy)": Method(lambda s: Legacy("tau-leaping"), "#0072B2", "-.", "legacy", TAU, DELTA),
    "tau-leaping (exact rule)": _ours(lambda s: TauLeaping(), "#0072B2"),
    "theta-RK-2 (exact rule)": _ours(lambda s: RK2(s.theta), "#E69F00"),
    "theta-Trapezoidal in blocks": _ours(lambda s: Blocks(Trapezoidal(s.theta), s.size, s.stop), "#D55E00", ":"),
    "multistep in blocks": _ours(lambda s: Blocks(Multistep(), s.size, s.stop), "#000000", ":"),
    "exponential Trapezoidal in blocks": _ours(
        lambda s: Blocks(ExponentialTrapezoidal(0.5), s.size, s.stop), "#56B4E9", ":"
    ),
}
"""By our name. "Exact rule" lets later events of a position overwrite earlier ones, where the paper drops them all;
"legacy" has the precision of published code, see `legacy`."""


def pick(
    *names: str,
    theta: float = 0.5,
    block: int | None = None,
    size: int = 8,
    stop: int | None = None,
    shape: tuple[int, int] | None = None,
    redraw: int = 1,
) -> dict[str, Any]:
    """The solvers of some methods, each of which takes what concerns it; see `Led`.

    `block` has the positions of a block of semi-autoregressive decoding, None being one block, and `size` those of methods
    "in blocks"; `stop` is the token that ends an answer, `shape` that of images, and `redraw` how many positions a
    corrector draws again in an evaluation.
    """
    told = SimpleNamespace(theta=theta, block=block, size=size, stop=stop, shape=shape, redraw=redraw)
    return {name: METHODS[name].make(told) for name in names}


def budgets_by_ratio(positions: int, cost: int = 1, most: float = 1.0) -> list[int]:
    """Evaluations for `RATIOS` of so many positions, up to `most`; each counts `cost`, two with guidance."""
    return sorted({cost * max(1, round(ratio * positions)) for ratio in RATIOS if ratio <= most})


def two_stage_budget(ratio: float, positions: int) -> int:
    """Evaluations for a ratio, and at least what a step of two stages and a finish take."""
    return max(3, round(ratio * positions))


def budgets_of(given: Sequence[int] | None, usual: Sequence[int]) -> list[int]:
    """Those `given`, in order, or the `usual` ones."""
    found = sorted(set(usual if given is None else given))
    require(len(found) > 0, "budgets", found, "give at least one")
    for nfe in found:
        require_count("budgets", nfe)
    return found


def budgets_for(model: Denoiser, solver: Led, budgets: Sequence[int], positions: int) -> list[int | None]:
    """Those that are enough for so many positions; None for a solver that takes what it needs."""
    if not takes_budget(solver):
        return [None]
    return [nfe for nfe in budgets if nfe >= fewest(model, solver, positions)]


def takes_budget(solver: Led) -> bool:
    """Whether evaluations are for the caller to say."""
    return solver == ADVISED if isinstance(solver, str) else solver.evaluations is not None


def fewest(model: Denoiser, solver: Led, positions: int) -> int:
    """Evaluations in which `solver` can fill so many positions: a step for each of its parts, with a finish where it
    needs one."""
    if isinstance(solver, str):
        return cost_of(model)
    control, stages = control_of(solver), solver.evaluations or 0
    return cost_of(model) * control.fewest(positions) * (stages + (not control.reaches_data(model.process)))


def fits(solver: Led, model: Denoiser) -> bool:
    """Whether it makes sense for the model's process and length."""
    if isinstance(solver, str):
        return solver == ADVISED or model.process.mask is not None
    try:
        control_of(solver).check(model.process, model.length)
    except ValueError:
        return False
    return True


def drawn_by(
    model: Denoiser,
    solver: Led,
    nfe: int | None,
    delta: float | None = None,
    sampler: Callable[..., Samples] = sample,
    **manner: Any,
) -> Samples:
    """Samples by a method, which decides on its own times where it is advised, exact, or as published. `sampler` draws as
    `sample` does."""
    if isinstance(solver, str):
        told: dict[str, Any] = {"nfe": nfe} if solver == ADVISED else {"exact": True}
        return sampler(model, **told, **manner)
    if isinstance(solver, Published):
        return sampler(model, solver, **solver.walk(cost_of(model), nfe or 0), **manner)
    return sampler(model, solver, nfe=nfe, delta=delta, **manner)


def steps_of(model: Denoiser, solver: Led, nfe: int | None, positions: int | None = None) -> int | None:
    """How many steps a budget pays for; None where the method says so itself."""
    if isinstance(solver, str | Published):
        return None
    return len(plan(model, solver, nfe=nfe, positions=positions)) - 1


def look(label: str) -> Method:
    """The method that a label stands for: it, or with a remark behind it, as in "theta-RK-2 (1/3)"."""
    return METHODS[label] if label in METHODS else METHODS[label.rpartition(" (")[0]]
