"""The paper's two-stage solvers: two evaluations per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core.fields import knob
from ..core.intensity import Align, Combined
from ..core.jumps import leap
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.reverse import Reverse
from ..core.times import Times, shared_pair
from .base import Solver, Step
from .leaping import RULE

THETA = "Where in the step the second evaluation is"
ALIGN = "Intensities of two states are added by destination, by displacement, or on a ring (cyclic)"
ALIGNS = ("destination", "displacement", "cyclic")


@dataclass(frozen=True)
class RK2(Solver):
    """theta-RK-2 (Algorithm 1 of the paper): try a part of the step, then take all of it from the start.

    Stage two leaps from x, over h, with ``[(1 - 1/(2 theta)) mu(x, t) + mu(x*, rho)/(2 theta)]_+`` where
    ``mu(x, t) > 0``; ``rho = t - theta h``.
    """

    theta: float = knob(0.5, THETA, low=0, high=1, closed="high")
    rule: Literal["exact", "reject"] = knob("exact", RULE, choices=("exact", "reject"))
    align: Align = knob("destination", ALIGN, choices=ALIGNS)
    evaluations = 2
    when = "the paper's other high-order method; trapezoidal beats it"

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        t, s = shared_pair(t, s)
        rho = t - self.theta * (t - s)
        before = reverse.intensity(x, t)
        y, _ = leap(x, before, t - rho, noise(Draw.PREDICT), self.rule)
        after = reverse.intensity(y, rho)
        mixed = Combined(x, before, after, 1 / (2 * self.theta), self.align, where_earlier=True)
        x, positive = leap(x, mixed, t - s, noise(Draw.CORRECT), self.rule)
        return Step(x, info={"positive": positive})


@dataclass(frozen=True)
class Trapezoidal(Solver):
    """theta-Trapezoidal (Algorithm 2 of the paper): go a part of the step, then the rest with corrected intensities.

    Stage two leaps from x*, over (1 - theta) h, with ``[a1 mu(x*, rho) - a2 mu(x, t)]_+``;
    ``a1 = 1/(2 theta (1 - theta))``, ``a2 = a1 - 1``, ``rho = t - theta h``.
    """

    theta: float = knob(0.5, THETA, low=0, high=1)
    rule: Literal["exact", "reject"] = knob("exact", RULE, choices=("exact", "reject"))
    align: Align = knob("destination", ALIGN, choices=ALIGNS)
    evaluations = 2
    when = "the paper's high-order method, to compare with it"

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        t, s = shared_pair(t, s)
        rho = t - self.theta * (t - s)
        before = reverse.intensity(x, t)
        y, _ = leap(x, before, t - rho, noise(Draw.PREDICT), self.rule)
        after = reverse.intensity(y, rho)
        ahead = Combined(y, before, after, 1 / (2 * self.theta * (1 - self.theta)), self.align)
        x, positive = leap(y, ahead, rho - s, noise(Draw.CORRECT), self.rule)
        return Step(x, info={"positive": positive})
