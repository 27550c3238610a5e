"""The one table of methods: how each is made, what the paper calls it, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..control import Blocks, ParallelDecoding, SemiAutoregressive
from ..control import Method as Led
from ..planners import FixedCount, LowDiscrepancy
from ..sampling import DELTA
from ..solvers import RK2, Euler, ExponentialTrapezoidal, FirstHitting, Multistep, TauLeaping, Trapezoidal, Tweedie
from . import paper
from .legacy import Legacy

EXACT, MINE, SAFE = "first-hitting", "theta-Trapezoidal", "theta-Trapezoidal (exact rule)"
EULER, TWEEDIE, TAU, RK = "Euler", "Tweedie tau-leaping", "tau-leaping", "theta-RK-2"
SEMI, PARALLEL = ("Semi-AR (random)", "Semi-AR (confidence)"), "parallel decoding"


@dataclass(frozen=True)
class Setting:
    """What an experiment may say about a method; each takes what concerns it."""

    theta: float = 0.5
    block: int | None = None
    """Positions of a block of semi-autoregressive decoding; None is one block."""
    size: int = 8
    """Positions of a block of methods "in blocks"."""
    stop: int | None = None
    """The token that ends an answer."""
    shape: tuple[int, int] | None = None
    """Of images."""


@dataclass(frozen=True)
class Method:
    """A row of the table. The paper's are drawn through, ours dashed."""

    make: Callable[[Setting], Led]
    colour: str
    line: str = "-"
    kind: Literal["paper", "ours", "legacy"] = "paper"
    published: str | None = None
    """What the paper's tables call it; none where they have no such row."""
    delta: float | None = None
    """Where the paper's steps end; None is as is best for the solver."""


def _ours(make: Callable[[Setting], Led], colour: str, line: str = "--") -> Method:
    return Method(make, colour, line, "ours")


METHODS: dict[str, Method] = {
    EXACT: Method(lambda s: FirstHitting(), "0.25", ":", published=paper.FHS),
    EULER: Method(lambda s: Euler(), "#009E73", published=paper.EULER, delta=DELTA),
    TWEEDIE: Method(lambda s: Tweedie(), "#CC79A7", published=paper.TWEEDIE, delta=DELTA),
    TAU: Method(lambda s: TauLeaping("reject"), "#0072B2", published=paper.TAU, delta=DELTA),
    RK: Method(lambda s: RK2(s.theta, "reject"), "#E69F00", published=paper.RK2, delta=DELTA),
    MINE: Method(lambda s: Trapezoidal(s.theta, "reject"), "#D55E00", published=paper.TRAPEZOIDAL, delta=DELTA),
    SEMI[0]: Method(lambda s: SemiAutoregressive("random", s.block), "#999999", published=paper.SEMI_AR),
    SEMI[1]: Method(lambda s: SemiAutoregressive("confidence", s.block), "#8C564B", published=paper.SEMI_AR),
    PARALLEL: Method(lambda s: ParallelDecoding(), "#6A3D9A"),
    SAFE: _ours(lambda s: Trapezoidal(s.theta), "#D55E00"),
    "exponential Trapezoidal": _ours(lambda s: ExponentialTrapezoidal(), "#56B4E9"),
    "multistep": _ours(lambda s: Multistep(), "#000000"),
    "Tweedie (fixed counts)": _ours(lambda s: Tweedie(FixedCount()), "#CC79A7"),
    "low discrepancy": _ours(lambda s: Tweedie(LowDiscrepancy(s.shape)), "#B8A800"),
    "multistep, low discrepancy": _ours(lambda s: Multistep(planner=LowDiscrepancy(s.shape)), "#1B1464"),
    "Euler (legacy)": Method(lambda s: Legacy("euler"), "#009E73", "-.", "legacy", paper.EULER, DELTA),
    "Tweedie tau-leaping (legacy)": Method(
        lambda s: Legacy("tweedie"), "#CC79A7", "-.", "legacy", paper.TWEEDIE, DELTA
    ),
    "tau-leaping (legacy)": Method(lambda s: Legacy("tau-leaping"), "#0072B2", "-.", "legacy", paper.TAU, DELTA),
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


def pick(*names: str, **setting: float | int | tuple[int, int] | None) -> dict[str, Led]:
    """The solvers of some methods."""
    told = Setting(**setting)  # pyright: ignore[reportArgumentType]
    return {name: METHODS[name].make(told) for name in names}


def look(label: str) -> Method:
    """The method that a label stands for: it, or with a remark behind it, as in "theta-RK-2 (1/3)"."""
    return METHODS[label] if label in METHODS else METHODS[label.rpartition(" (")[0]]
