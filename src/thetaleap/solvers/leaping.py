"""First-order solvers with frozen intensities: one evaluation per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core.checks import require_choice
from ..core.jumps import leap
from ..core.noise import Noise
from ..core.reverse import Reverse
from .base import Memory, Solver, Step

RULES = ("exact", "reject")


@dataclass(frozen=True)
class TauLeaping(Solver):
    """Freeze ``mu(x, t)`` over the whole step (Gillespie 2001; Campbell et al. 2022; Algorithm 3 of the paper).

    `rule` decides what several events at one position do: "exact" overwrites, "reject" (the paper's) drops them all.
    """

    rule: Literal["exact", "reject"] = "exact"
    evaluations = 1

    def __post_init__(self) -> None:
        require_choice("rule", self.rule, RULES)

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        x, _ = leap(x, reverse.intensity(x, t), t - s, noise("leap"), self.rule)
        return Step(x)


@dataclass(frozen=True)
class Euler(Solver):
    """``P(v) = mu(v | x, t) (t - s)``, cut at total one."""

    evaluations = 1

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        x, _ = leap(x, reverse.intensity(x, t), t - s, noise("leap"), "euler")
        return Step(x)
