"""Exponential multistep: exact one-position kernels, one evaluation per step, and the memory of earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from ..core.checks import require
from ..core.evaluation import Evaluation
from ..core.extrapolation import FORMS, Form, extrapolated
from ..core.fields import knob
from ..core.memory import History, Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times
from ..planners import Bernoulli, FixedCount, Plan, Planner
from .base import EXTRAPOLATION, IS_PLANNER, PLANNER, Planned, Step

UNIFORM_WEIGHT = 0.5
COINS, COUNTS = Bernoulli(), FixedCount()


@dataclass(frozen=True)
class Multistep(Planned):
    """Exact one-position kernels with conditionals extrapolated from earlier evaluations.

    Without masks: ``c~ ∝ c_n clip(c_n/c_{n-1}, 1/20, 20)^w``, w = 1/2.
    With masks, where k_n positions are unmasked in step n: ``c~ ∝ max((1 + w) c_n - w c_{n-W}, floor c_n)``,
    ``w = (k_n - 1)/(2 (k_{n-W} + ... + k_{n-1}))``, at most 1/2; in the second step ``w += (k_0 - 1)/(2 k_1)``, at
    most 1. This gives pairs of positions their true law on average, and is exact for one position at a time. Where
    each position tosses its own coin (planner `Bernoulli`), k is the probability of being unmasked, and k - 1 becomes
    k. Steps in which no position is unmasked do not count, and cost no evaluation.

    `weight` fixes w; `extrapolation` None is the form above; `planner` None is `FixedCount` for masked processes.
    """

    weight: float | None = knob(None, "How far to extrapolate, by rule if not given", low=0, closed="low")
    window: int = knob(1, "Steps between the two evaluations", least=1)
    extrapolation: Form | None = knob(None, EXTRAPOLATION, choices=FORMS)
    floor: float = knob(0.1, "What share of a probability to keep at least", low=0, high=1, closed="both")
    planner: Planner | None = knob(None, PLANNER, **IS_PLANNER)
    evaluations = 1
    when = "one evaluation per step, extrapolated from earlier ones"

    def check(self, process: Process, length: int) -> None:
        super().check(process, length)
        if process.mask is None:
            require(self.window == 1, "window", self.window, "longer windows are for masked processes; use 1")

    def planner_for(self, process: Process) -> Planner:
        return self.planner or (COINS if process.mask is None else COUNTS)

    def begin(self, reverse: Reverse, x: Tensor, stops: Tensor, noise: Noise) -> Memory:
        return History.none(x), self.planner_for(reverse.process).begin(reverse, x, stops, noise)

    def waits(self, reverse: Reverse, x: Tensor, t: Times, s: Times, memory: Memory) -> Bool[Tensor, " b"] | None:
        return self.planner_for(reverse.process).waits(reverse, x, s, memory[1])

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        history, plan = memory
        now = reverse.evaluate(x, t)
        earlier = history.before(now)
        weight = self.weight_for(reverse, x, earlier, t, s, plan, second=history.taken == 1)
        form = self.extrapolation or ("logit" if reverse.process.mask is None else "linear")
        ahead = extrapolated(now, earlier, weight, form, self.floor)
        x, plan = self.planner_for(reverse.process).move(reverse, x, ahead, t, s, noise(Draw.MOVE), plan)
        return Step(x, (history.after(now, self.window), plan))

    def weight_for(
        self, reverse: Reverse, x: Tensor, earlier: Evaluation, t: Times, s: Times, plan: Plan, second: Tensor
    ) -> float | Tensor:
        """w of each sample: of its counts, and of whether this is its `second` step. A sample that has not been
        evaluated before has unmasked nothing since then, and so w = 0."""
        if self.weight is not None or reverse.process.mask is None:
            return UNIFORM_WEIGHT if self.weight is None else self.weight
        pace = self.planner_for(reverse.process).pace(reverse, x, earlier, t, s, plan)
        if pace is None:
            raise ValueError("planner: Multistep must know how many are unmasked; give a weight, or use FixedCount()")
        weight = _half_of(pace.now - pace.alone, pace.before)
        if not bool(second.any()):
            return weight.clamp(max=0.5)
        both = weight + _half_of(pace.before - pace.alone, pace.now)
        return torch.where(second, both.clamp(max=1.0), weight.clamp(max=0.5))


def _half_of(part: Tensor, whole: Tensor) -> Tensor:
    """``part / (2 whole)``; 0 where nothing is unmasked, or one position alone."""
    return torch.where(whole > 0, part.clamp_min(0) / (2 * whole), 0.0)
