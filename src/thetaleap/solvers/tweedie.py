"""Tweedie tau-leaping: the exact one-position kernel, at every position at once."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from ..core.fields import knob
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times
from ..planners import Bernoulli, Planner
from .base import IS_PLANNER, PLANNER, Planned, Step


@dataclass(frozen=True)
class Tweedie(Planned):
    """Draw each position from ``P(x_s = v | x_t)``, given what the others are now (Lou et al. 2024). Exact for one
    position.

    For masked processes `planner` says which positions are unmasked.
    """

    planner: Planner = knob(help=PLANNER, default_factory=Bernoulli, **IS_PLANNER)
    evaluations = 1
    when = "the exact kernel of each position: first order; exact one position at a time"

    def planner_for(self, process: Process) -> Planner:
        return self.planner

    def begin(self, reverse: Reverse, x: Tensor, stops: Tensor, noise: Noise) -> Memory:
        return self.planner.begin(reverse, x, stops, noise)

    def waits(self, reverse: Reverse, x: Tensor, t: Times, s: Times, memory: Memory) -> Bool[Tensor, " b"] | None:
        return self.planner.waits(reverse, x, s, memory)

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        now = reverse.evaluate(x, t)
        return Step(*self.planner.move(reverse, x, now, t, s, noise(Draw.MOVE), memory))
