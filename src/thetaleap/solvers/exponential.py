"""The exponential theta-Trapezoidal method: exact one-position kernels, conditionals extrapolated between two looks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.checks import require_choice, require_number
from ..core.extrapolation import FORMS, Extrapolated, Form
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..planners.all import Bernoulli, Counting, Planner
from .base import Memory, Solver, Step, check_planner, plan_of


@dataclass(frozen=True)
class ExponentialTrapezoidal(Solver):
    """Move a part of the step by the exact kernel of ``c(x)``, then the rest by that of ``c~``; ``rho = t - theta h``.

    linear: ``c~ ∝ [(1 + w) c(x*) - w c(x)]_+``; logit: ``log c~ = (1 + w) log c(x*) - w log c(x)``, with
    ``w = 1/(2 theta (1 - theta)) - 1``, or, where a planner sends k_A and then k_B positions,
    ``w = [k_A (k_A - 1) + k_B (k_B - 1)]/(2 k_A k_B)``, which gives pairs of positions their true law on average.
    Proper distributions, so that nothing is rejected and, for masked models, who jumps does not depend on the
    network. Exact in one dimension.
    """

    theta: float = 0.5
    extrapolation: Form = "linear"
    planner: Planner = field(default_factory=Bernoulli)
    evaluations = 2
    exact_kernels = True

    def __post_init__(self) -> None:
        require_number("theta", self.theta, 0, 1)
        require_choice("extrapolation", self.extrapolation, FORMS)

    def check(self, process: Process, length: int) -> None:
        check_planner(self.planner, process, length)

    def reaches_data(self, process: Process) -> bool:
        return self.planner.finishes

    def begin(self, x: Tensor, process: Process, times: Tensor, noise: Noise) -> Memory:
        inner = times[:-1] - self.theta * (times[:-1] - times[1:])
        stops = torch.stack([times[:-1], inner], 1).flatten()
        return self.planner.begin(x, process, torch.cat([stops, times[-1:]]), noise)

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        process, planner, rho = reverse.process, self.planner, t - self.theta * (t - s)
        first = plan_of(memory)
        second = planner.rest(first)
        weight = self._weight(first["counts"][:, :2].double()) if isinstance(planner, Counting) else None
        before = reverse.evaluate(x, t)
        y = planner.move(process, x, before, t, rho, noise("predict"), first)
        after = reverse.evaluate(y, rho)
        if weight is None:
            weight = torch.full((len(x),), 1 / (2 * self.theta * (1 - self.theta)) - 1, dtype=torch.float64)
        ahead = Extrapolated(after, before, weight.to(x.device), self.extrapolation)
        return Step(planner.move(process, y, ahead, rho, s, noise("correct"), second), planner.rest(second))

    @staticmethod
    def _weight(counts: Tensor) -> Tensor:
        a, b = counts.unbind(1)
        return torch.where(a * b > 0, (a * (a - 1) + b * (b - 1)) / (2 * a * b), 0.0)
