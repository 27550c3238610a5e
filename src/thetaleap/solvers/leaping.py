"""First-order solvers with frozen intensities: one evaluation per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core.fields import knob
from ..core.jumps import leap
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Solver, Step

RULE = "Several events at one position overwrite each other (exact) or are dropped (reject)"


@dataclass(frozen=True)
class TauLeaping(Solver):
    """Freeze ``mu(x, t)`` over the whole step (Gillespie 2001; Campbell et al. 2022; Algorithm 3 of the paper).

    `rule` decides what several events at one position do: "exact" overwrites, "reject" (the paper's) drops them all.
    """

    rule: Literal["exact", "reject"] = knob("exact", RULE, choices=("exact", "reject"))
    evaluations = 1
    when = "baseline: the first-order method that the paper improves on"

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        x, _ = leap(x, reverse.intensity(x, t), t - s, noise(Draw.LEAP), self.rule)
        return Step(x)


@dataclass(frozen=True)
class Euler(Solver):
    """``P(v) = mu(v | x, t) (t - s)``, cut at total one."""

    evaluations = 1
    when = "baseline: the plainest first-order step"

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        x, _ = leap(x, reverse.intensity(x, t), t - s, noise(Draw.LEAP), "euler")
        return Step(x)
