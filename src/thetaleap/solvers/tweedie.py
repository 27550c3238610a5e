"""Tweedie tau-leaping: the exact one-position kernel, at every position at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..planners.all import Bernoulli, Planner
from .base import Memory, Solver, Step, check_planner, plan_of


@dataclass(frozen=True)
class Tweedie(Solver):
    """Draw each position from ``P(x_s = v | x_t)``, given what the others are now (Lou et al. 2024). Exact for one
    position.

    For masked processes `planner` says which positions go.
    """

    planner: Planner = field(default_factory=Bernoulli)
    evaluations = 1
    exact_kernels = True

    def check(self, process: Process, length: int) -> None:
        check_planner(self.planner, process, length)

    def reaches_data(self, process: Process) -> bool:
        return self.planner.finishes

    def begin(self, x: Tensor, process: Process, times: Tensor, noise: Noise) -> Memory:
        return self.planner.begin(x, process, times, noise)

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        return planned_step(self.planner, reverse, x, t, s, noise, memory)


def planned_step(
    planner: Planner, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory
) -> Step:
    """Look, and unmask what `planner` says; a sample of which nothing goes is not looked at."""
    process, plan = reverse.process, plan_of(memory)
    idle = planner.idle(plan)
    if idle is None:
        return Step(planner.move(process, x, reverse.evaluate(x, t), t, s, noise("move"), plan), planner.rest(plan))
    rows = torch.nonzero(~idle).flatten()
    if len(rows):
        part = {name: value[rows] for name, value in plan.items()}
        some = reverse[rows]
        moved = planner.move(some.process, x[rows], some.evaluate(x[rows], t), t, s, noise("move")[rows], part)
        x = x.index_copy(0, rows, moved)
    return Step(x, planner.rest(plan))
