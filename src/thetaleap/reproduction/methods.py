"""The one table of methods: how each is made, what the paper calls it, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from ..control import Blocks, ParallelDecoding, SemiAutoregressive, control_of
from ..control import Method as Led
from ..core.evaluation import Denoiser
from ..core.wrapped import cost_of
from ..planners import FixedCount, LowDiscrepancy
from ..sampling import DELTA
from ..solvers import RK2, Euler, ExponentialTrapezoidal, FirstHitting, Multistep, TauLeaping, Trapezoidal, Tweedie
from .legacy import Legacy

EXACT, MINE, SAFE = "first-hitting", "theta-Trapezoidal", "theta-Trapezoidal (exact rule)"
EULER, TWEEDIE, TAU, RK = "Euler", "Tweedie tau-leaping", "tau-leaping", "theta-RK-2"
SEMI, PARALLEL = ("Semi-AR (random)", "Semi-AR (confidence)"), "parallel decoding"


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
    "multistep": _ours(lambda s: Multistep(), "#000000"),
    "Tweedie (fixed counts)": _ours(lambda s: Tweedie(FixedCount()), "#CC79A7"),
    "low discrepancy": _ours(lambda s: Tweedie(LowDiscrepancy(s.shape)), "#B8A800"),
    "multistep, low discrepancy": _ours(lambda s: Multistep(planner=LowDiscrepancy(s.shape)), "#1B1464"),
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
) -> dict[str, Led]:
    """The solvers of some methods, each of which takes what concerns it.

    `block` has the positions of a block of semi-autoregressive decoding, None being one block, and `size` those of methods
    "in blocks"; `stop` is the token that ends an answer, and `shape` that of images.
    """
    told = SimpleNamespace(theta=theta, block=block, size=size, stop=stop, shape=shape)
    return {name: METHODS[name].make(told) for name in names}


def fewest(model: Denoiser, solver: Led, positions: int) -> int:
    """Evaluations in which `solver` can fill so many positions: a step for each of its parts, with a finish where it
    needs one."""
    control, stages = control_of(solver), solver.evaluations or 0
    return cost_of(model) * control.fewest(positions) * (stages + (not control.reaches_data(model.process)))


def look(label: str) -> Method:
    """The method that a label stands for: it, or with a remark behind it, as in "theta-RK-2 (1/3)"."""
    return METHODS[label] if label in METHODS else METHODS[label.rpartition(" (")[0]]
