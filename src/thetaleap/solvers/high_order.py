"""The paper's two-stage solvers: two evaluations per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core.checks import require_choice, require_number
from ..core.intensity import ALIGN, Align, Combined
from ..core.jumps import leap
from ..core.noise import Noise
from ..core.reverse import Reverse
from .base import Memory, Solver, Step
from .leaping import RULES


@dataclass(frozen=True)
class RK2(Solver):
    """theta-RK-2 (Algorithm 1 of the paper): try a part of the step, then take all of it from the start.

    Stage two leaps from x, over h, with ``[(1 - 1/(2 theta)) mu(x, t) + mu(x*, rho)/(2 theta)]_+`` where
    ``mu(x, t) > 0``; ``rho = t - theta h``.
    """

    theta: float = 0.5
    rule: Literal["exact", "reject"] = "exact"
    align: Align = "destination"
    evaluations = 2

    def __post_init__(self) -> None:
        require_number("theta", self.theta, 0, 1, closed="high")
        require_choice("rule", self.rule, RULES)
        require_choice("align", self.align, ALIGN)

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        rho = t - self.theta * (t - s)
        before = reverse.intensity(x, t)
        y, _ = leap(x, before, t - rho, noise("predict"), self.rule)
        after = reverse.intensity(y, rho)
        mixed = Combined(x, before, after, 1 / (2 * self.theta), self.align, where_earlier=True)
        x, positive = leap(x, mixed, t - s, noise("correct"), self.rule)
        return Step(x, info={"positive": positive})


@dataclass(frozen=True)
class Trapezoidal(Solver):
    """theta-Trapezoidal (Algorithm 2 of the paper): go a part of the step, then the rest with corrected intensities.

    Stage two leaps from x*, over (1 - theta) h, with ``[a1 mu(x*, rho) - a2 mu(x, t)]_+``;
    ``a1 = 1/(2 theta (1 - theta))``, ``a2 = a1 - 1``, ``rho = t - theta h``.
    """

    theta: float = 0.5
    rule: Literal["exact", "reject"] = "exact"
    align: Align = "destination"
    evaluations = 2

    def __post_init__(self) -> None:
        require_number("theta", self.theta, 0, 1)
        require_choice("rule", self.rule, RULES)
        require_choice("align", self.align, ALIGN)

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        rho = t - self.theta * (t - s)
        before = reverse.intensity(x, t)
        y, _ = leap(x, before, t - rho, noise("predict"), self.rule)
        after = reverse.intensity(y, rho)
        ahead = Combined(y, before, after, 1 / (2 * self.theta * (1 - self.theta)), self.align)
        x, positive = leap(y, ahead, rho - s, noise("correct"), self.rule)
        return Step(x, info={"positive": positive})
