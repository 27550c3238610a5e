"""As many masked positions in a step as a tolerance allows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ..core import _fast
from ..core.checks import require_number
from ..core.evaluation import divergence
from ..core.jumps import Share
from ..core.memory import History, Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..planners import FixedCount, LowDiscrepancy
from ..solvers.base import require_masked
from ..solvers.multistep import Multistep
from ..solvers.tweedie import Tweedie
from .base import Control, Turn

WATCHED = 64
"""The most positions of a sample whose conditionals are compared between two evaluations."""


@dataclass(frozen=True)
class Tolerance(Control):
    """`Tweedie` or `Multistep` on masks, where each sample finds on its way how many positions to unmask together.

    `tolerance`, in nats per position, is what drawing positions independently of each other may cost in all: the KL
    divergence from the paths of the true process to those of plain `Tweedie` with the same counts. The law of the
    samples is nearer than that, and nearer still with `Multistep`.

    That k positions are unmasked together costs ``k (k - 1) g/2``, where g is what two of them know of each other. As
    much was told about a masked position, on average, by each of those unmasked last: g is the mean over masked
    positions of ``KL(c_n || c_{n-1})``, divided by ``k_{n-1}``, and averaged with its value before. Equal costs are
    the best use of a number of steps, so each step may cost ``tolerance d/N``, with N the number of steps in all if
    the pace stays: ``k = (1 + sqrt(1 + 8 tolerance d/(N g)))/2``, rounded, at most ``2 k_{n-1}``. The first step
    unmasks one position.
    """

    solver: Any
    """`Tweedie` or `Multistep`."""
    tolerance: float

    def __post_init__(self) -> None:
        require_number("tolerance", self.tolerance, 0, math.inf)
        if not isinstance(self.solver, Tweedie | Multistep):
            raise TypeError(
                f"solver={self.solver!r} with a tolerance: on masked models only Tweedie and Multistep can change "
                "their pace; use one of them, or nfe in place of tolerance"
            )

    @property
    def evaluations(self) -> None:
        return None

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "grids.adaptive(model, tolerance)")
        self.solver.check(process, length)
        planner = self.solver.planner_for(process)
        if not isinstance(planner, FixedCount | LowDiscrepancy) or planner.schedule != "process":
            name = type(self.solver).__name__
            raise ValueError(
                f"planner={planner!r} with a tolerance: it must take the number of positions from outside; "
                f"use {name}(planner=FixedCount()) or {name}(planner=LowDiscrepancy())"
            )
        if isinstance(self.solver, Multistep) and self.solver.window > 1:
            raise ValueError(f"window={self.solver.window} with a tolerance: the last step alone sets the pace; use 1")

    def reaches_data(self, process: Process) -> bool:
        return True

    def rounds(self, times: Float64[Tensor, " times"], length: int) -> int:
        return length

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], times: Float64[Tensor, " times"]) -> Memory:
        unknown = torch.full_like(x[:, 0], -1.0, dtype=torch.float64)
        return History.none(x), torch.ones_like(x[:, 0]), unknown

    def stepping(
        self, reverse: Reverse, x: Int64[Tensor, "b d"], times: Float64[Tensor, " times"]
    ) -> Int64[Tensor, " k"] | None:
        return _fast.some_but_not_all(reverse.left(x) > _at_end(reverse, times))

    def next(
        self, n: int, reverse: Reverse, x: Int64[Tensor, "b d"], times: Tensor, memory: Memory, noise: Noise
    ) -> Turn:
        history, before, change = memory
        masked, room = reverse.active(x), torch.as_tensor(reverse.room, device=x.device).expand(len(x))
        left, end = _fast.count_in_row(masked), _at_end(reverse, times)

        def time(count: Tensor) -> Tensor:
            """At which so many are masked on average."""
            return reverse.process.schedule.alpha_inverse(1 - reverse.noised(times[0]) * count / room)

        now, count = reverse.evaluate(x, time(left)), torch.ones_like(left)
        if n:
            positions = _watched(masked, noise)
            differ = _mean(divergence(now, history.before(now), positions), positions, x)
            change = torch.where(change < 0, differ / before, (change + differ / before) / 2)
            share = self.tolerance * room / (n + (left - end) / before)
            most = ((1 + torch.sqrt(1 + 8 * share / change)) / 2).round()
            count = torch.minimum(torch.minimum(most, 2 * before), left - end).long()
        cost = float((count * (count - 1) / 2 * change.clamp_min(0)).sum())
        return Turn(
            replace(reverse, ready=now),
            time(left),
            time(left - count),
            (history.after(now, window=1), count, change),
            opens=None if n else torch.ones_like(left, dtype=torch.bool),
            stops=times.unsqueeze(0),
            info={"estimated error": Share(cost, 0.0 if n else float(room.sum()))},
        )


def _at_end(reverse: Reverse, times: Float64[Tensor, " times"]) -> Int64[Tensor, " b"] | Tensor:
    """How many are to be masked at the end of the grid."""
    share = reverse.noised(times[-1]) / reverse.noised(times[0])
    return torch.round(torch.as_tensor(reverse.room, dtype=torch.float64) * share).long().to(reverse.nfe.device)


def _watched(masked: Bool[Tensor, "b d"], noise: Noise) -> Int64[Tensor, " n"]:
    """Flat indices of the `masked` positions; of some of them, at random, where a sample has many."""
    if masked.shape[1] > WATCHED:
        scores = torch.zeros(masked.shape, dtype=torch.float64, device=masked.device).masked_fill(~masked, -math.inf)
        count = _fast.count_in_row(masked).clamp(max=WATCHED)
        masked = noise(Draw.WATCH).pick(scores, count, torch.ones_like(scores[:, 0]))
    return _fast.indices(masked)


def _mean(values: Float64[Tensor, " n"], positions: Tensor, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
    """The mean of `values`, at flat indices `positions`, for each sample of `x`."""
    sample = positions // x.shape[1]
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device).index_add_(0, sample, values)
    return total / torch.bincount(sample, minlength=len(x))
