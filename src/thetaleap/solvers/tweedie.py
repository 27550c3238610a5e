"""Tweedie tau-leaping: the exact one-site kernel, at every site at once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..noise import Noise
from ..processes import Process
from ..reverse import Reverse
from .base import Memory, Solver, Step


@dataclass(frozen=True)
class Tweedie(Solver):
    """Draw each site from ``P(x_s = v | x_t)``, given what the others are now (Lou et al. 2024). Exact for one site."""

    evaluations = 1

    def reaches_data(self, process: Process) -> bool:
        return True

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        return Step(reverse.move(x, reverse.look(x, t), t, s, noise("move")))
