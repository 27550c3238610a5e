"""Multistep solvers: one evaluation per step, and the memory of earlier ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from ..core.checks import require, require_choice, require_count, require_number
from ..core.evaluation import Evaluation
from ..core.extrapolation import FORMS, Extrapolated, Form
from ..core.intensity import Combined, Frozen
from ..core.jumps import leap
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.schedules import Schedule
from ..planners.all import FixedCount, Pace, Planner
from .base import Memory, Solver, Step, check_planner, plan_of

UNIFORM_WEIGHT = 0.5


@dataclass(frozen=True)
class Multistep(Solver):
    """Exact one-position kernels with conditionals extrapolated from earlier looks.

    Without masks: ``c~ ∝ c_n clip(c_n/c_{n-1}, 1/20, 20)^w``, w = 1/2.
    With masks, where k_n positions go in step n: ``c~ ∝ max((1 + w) c_n - w c_{n-W}, floor c_n)``,
    ``w = (k_n - 1)/(2 (k_{n-W} + ... + k_{n-1}))``, at most 1/2; in the second step ``w += (k_0 - 1)/(2 k_1)``, at
    most 1. This gives pairs of positions their true law on average, and is exact for one position at a time. Where
    each position
    tosses its own coin (planner `Bernoulli`), k is the probability of going, and k - 1 becomes k. Steps in which no
    position goes do not count, and cost no evaluation.

    `weight` fixes w; `extrapolation` None is the form above; `planner` None is `FixedCount` for masked processes.
    """

    weight: float | None = None
    window: int = 1
    extrapolation: Form | None = None
    floor: float = 0.1
    planner: Planner | None = None
    evaluations = 1
    exact_kernels = True

    def __post_init__(self) -> None:
        if self.weight is not None:
            require_number("weight", self.weight, 0, math.inf, closed="low")
        require_count("window", self.window)
        if self.extrapolation is not None:
            require_choice("extrapolation", self.extrapolation, FORMS)
        require_number("floor", self.floor, 0, 1, closed="both")

    def check(self, process: Process, length: int) -> None:
        if self.planner is not None:
            check_planner(self.planner, process, length)
        if process.mask is None:
            require(self.window == 1, "window", self.window, "longer windows are for masked processes; use 1")

    def reaches_data(self, process: Process) -> bool:
        return self._planner().finishes

    def _planner(self) -> Planner:
        return self.planner or FixedCount()

    def begin(self, x: Tensor, process: Process, times: Tensor, noise: Noise) -> Memory:
        plan = {} if process.mask is None else self._planner().begin(x, process, times, noise)
        return {**plan, "taken": torch.zeros((len(x), 1), dtype=torch.int64, device=x.device)}

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        """Samples with as many looks behind them go together; those of which no position goes wait."""
        plan, taken = plan_of(memory), plan_of(memory)["taken"].squeeze(1)
        idle = None if reverse.process.mask is None else self._planner().idle(plan)
        behind = taken.clamp(max=max(2, self.window))
        behind = behind if idle is None else behind.masked_fill(idle, -1)
        evaluations: dict[str, Evaluation] = {
            name: value for name, value in memory.items() if isinstance(value, Evaluation)
        }
        least, most = (int(count) for count in torch.aminmax(behind))
        if least == most >= 0:
            x, evaluations = self._advance(reverse, x, t, s, noise, memory, most)
        for count in range(max(0, least), most + 1) if least < most else ():
            rows = torch.nonzero(behind == count).flatten()
            if not len(rows):
                continue
            part = {name: value[rows] for name, value in memory.items()}
            moved, new = self._advance(reverse[rows], x[rows], t, s, noise[rows], part, count)
            x = x.index_copy(0, rows, moved)
            for name, evaluation in new.items():
                # samples without such a look hold another's, which is not used
                evaluations[name] = (evaluations.get(name) or evaluation[torch.zeros_like(behind)]).replaced(
                    rows, evaluation
                )
        rest = plan if reverse.process.mask is None else self._planner().rest(plan)
        return Step(x, {**rest, **evaluations, "taken": (taken + (behind >= 0)).unsqueeze(1)})

    def _advance(
        self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory, behind: int
    ) -> tuple[Tensor, dict[str, Evaluation]]:
        """The samples after a step, and the looks to remember; there are `behind` looks behind all of them."""
        process, plan = reverse.process, plan_of(memory)
        now, past = reverse.evaluate(x, t), _looks(memory)[:behind]
        prediction = now
        if past:
            earlier = past[min(self.window, len(past)) - 1]
            pace = None if process.mask is None else self._planner().pace(process, x, earlier, t, s, plan)
            prediction = self.extrapolated(process, now, earlier, pace, second=behind == 1)
        if process.mask is None:
            x = reverse.move(x, prediction, t, s, noise("move"))
        else:
            x = self._planner().move(process, x, prediction, t, s, noise("move"), plan)
        return x, {f"look {n}": evaluation for n, evaluation in enumerate([now, *past][: self.window])}

    def extrapolated(
        self, process: Process, now: Evaluation, earlier: Evaluation, pace: Pace | None, second: bool
    ) -> Extrapolated:
        """What is ahead of `now`, away from `earlier`; `second` if this is a sample's second step."""
        weight = self._weight(process, pace, len(now.x), second).to(now.x.device)
        form = self.extrapolation or ("logit" if process.mask is None else "linear")
        return Extrapolated(now, earlier, weight, form, self.floor)

    def _weight(self, process: Process, pace: Pace | None, batch: int, second: bool) -> Float64[Tensor, " b"]:
        if self.weight is not None or process.mask is None:
            value = UNIFORM_WEIGHT if self.weight is None else self.weight
            return torch.full((batch,), value, dtype=torch.float64)
        if pace is None:
            raise ValueError("planner: Multistep must know how many positions go; give a weight, or use FixedCount()")
        weight = _half_of(pace.now - pace.alone, pace.before)
        if not second:
            return weight.clamp(max=0.5)
        return (weight + _half_of(pace.before - pace.alone, pace.now)).clamp(max=1.0)


def _half_of(part: Tensor, whole: Tensor) -> Tensor:
    """``part / (2 whole)``; 0 where nothing goes, or one position goes alone."""
    return torch.where(whole > 0, part.clamp_min(0) / (2 * whole), 0.0)


def _looks(memory: Memory) -> list[Evaluation]:
    """Earlier looks, the newest first."""
    return [value for _, value in sorted(memory.items()) if isinstance(value, Evaluation)]


@dataclass(frozen=True)
class AdamsBashforth(Solver):
    """Two-step Adams-Bashforth with variable steps in log time (TR-CIE), for comparison.

    In ``h_n = log((1 - alpha_t)/(1 - alpha_s))`` the intensity u of a masked position is c itself; it is frozen at
    ``max(0, (1 + r/2) u_n - (r/2) u_{n-1})``, ``r = h_n/h_{n-1}``. The first step, and all beyond alpha = 0.99, take
    ``u_n`` alone.
    """

    evaluations = 1

    def reaches_data(self, process: Process) -> bool:
        return False

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        schedule, now = reverse.process.schedule, reverse.intensity(x, t)
        past, kept = _looks(memory), {"look 0": now.prediction}
        h, speed = _log_time(schedule, t, s), _speed(schedule, t)
        if not past or float(schedule.alpha(t)) > 0.99:
            x, positive = leap(x, now, h / speed, noise("leap"), "exact")
            return Step(x, kept)
        before = float(past[0].t)
        half = 0.5 * h / _log_time(schedule, before, t)
        # intensities per unit of log time: each is divided by its own speed
        scales = (1 / _speed(schedule, before), 1 / speed)
        ahead = Combined(x, Frozen(reverse.process, past[0]), now, 1 + half, scales=scales)
        x, positive = leap(x, ahead, h, noise("leap"), "exact")
        return Step(x, kept, {"positive": positive})


def _log_time(schedule: Schedule, t: float, s: float) -> float:
    require(float(schedule.alpha(s)) < 1, "grid end", s, "AdamsBashforth steps in log time: end above 0")
    return math.log(float(1 - schedule.alpha(t)) / float(1 - schedule.alpha(s)))


def _speed(schedule: Schedule, t: float) -> float:
    """d log(1 - alpha) / dt."""
    alpha = float(schedule.alpha(t))
    return float(schedule.sigma(t)) * alpha / (1 - alpha)
