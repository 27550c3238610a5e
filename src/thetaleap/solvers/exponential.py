"""The exponential theta-Trapezoidal method: exact one-position kernels, conditionals extrapolated between two
evaluations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.extrapolation import FORMS, Form, extrapolated
from ..core.fields import knob
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times, shared_pair
from ..planners import Bernoulli, Plan, Planner
from .base import EXTRAPOLATION, IS_PLANNER, PLANNER, Planned, Step
from .high_order import THETA


@dataclass(frozen=True)
class ExponentialTrapezoidal(Planned):
    """Move a part of the step by the exact kernel of ``c(x)``, then the rest by that of ``c~``; ``rho = t - theta h``.

    linear: ``c~ ∝ [(1 + w) c(x*) - w c(x)]_+``; logit: ``log c~ = (1 + w) log c(x*) - w log c(x)``, with
    ``w = 1/(2 theta (1 - theta)) - 1``, or, where a planner unmasks k_A and then k_B positions,
    ``w = [k_A (k_A - 1) + k_B (k_B - 1)]/(2 k_A k_B)``, which gives pairs of positions their true law on average.
    Proper distributions, so that nothing is rejected and, for masked models, which positions jump does not depend on
    the network. Exact in one dimension.
    """

    theta: float = knob(0.5, THETA, low=0, high=1)
    extrapolation: Form = knob("linear", EXTRAPOLATION, choices=FORMS)
    planner: Planner = knob(help=PLANNER, default_factory=Bernoulli, **IS_PLANNER)
    evaluations = 2
    when = "two evaluations per step, extrapolated within it"

    def planner_for(self, process: Process) -> Planner:
        return self.planner

    def begin(self, reverse: Reverse, x: Tensor, stops: Tensor, noise: Noise) -> Memory:
        inner = stops[:, :-1] - self.theta * (stops[:, :-1] - stops[:, 1:])
        both = torch.stack([stops[:, :-1], inner], 2).flatten(1)
        return self.planner.begin(reverse, x, torch.cat([both, stops[:, -1:]], 1), noise)

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        t, s = shared_pair(t, s)
        rho = t - self.theta * (t - s)
        weight = self._weight(reverse, x, rho, s, memory)
        before = reverse.evaluate(x, t)
        y, plan = self.planner.move(reverse, x, before, t, rho, noise(Draw.PREDICT), memory)
        ahead = extrapolated(reverse.evaluate(y, rho), before, weight, self.extrapolation)
        return Step(*self.planner.move(reverse, y, ahead, rho, s, noise(Draw.CORRECT), plan))

    def _weight(self, reverse: Reverse, x: Tensor, rho: Times, s: Times, plan: Plan) -> float | Tensor:
        middle, end = self.planner.left(reverse, rho, plan), self.planner.left(reverse, s, plan)
        if middle is None or end is None:
            return 1 / (2 * self.theta * (1 - self.theta)) - 1
        a = (reverse.left(x) - middle).double()
        b = torch.as_tensor(middle - end, dtype=torch.float64, device=x.device)
        return torch.where(a * b > 0, (a * (a - 1) + b * (b - 1)) / (2 * a * b), 0.0)
