"""As many masked positions in a step as a tolerance allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ..core.checks import require_number
from ..core.evaluation import Evaluation, Prediction
from ..core.jumps import Share
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..planners.all import Counting, FixedCount, LowDiscrepancy, Pace
from ..solvers.base import Memory, Solver, Step, plan_of, require_masked
from ..solvers.multistep import Multistep
from ..solvers.tweedie import Tweedie

WATCHED = 64
"""The most positions of a sample whose conditionals are compared between two looks."""
LEAST = 1e-12
"""A probability in an earlier look is taken as at least this."""


@dataclass(frozen=True)
class Controlled(Solver):
    """`Tweedie` or `Multistep` on masks, where each sample finds on its way how many positions may go together.

    `tolerance`, in nats per position, is what drawing positions independently of each other may cost in all: the KL
    divergence
    from the paths of the true process to those of plain `Tweedie` with the same counts. The law of the samples is
    nearer than that, and nearer still with `Multistep`.

    That k positions go together costs ``k (k - 1) g/2``, where g is what two of them know of each other. As much was
    told about a masked position, on average, by each of the ones that went last: g is the mean over masked positions of
    ``KL(c_n || c_{n-1})``, divided by ``k_{n-1}``, and averaged with its value before. Equal costs are the best use
    of a number of steps, so each step may cost ``tolerance d/N``, with N the number of steps in all if the pace stays:
    ``k = (1 + sqrt(1 + 8 tolerance d/(N g)))/2``, rounded, at most ``2 k_{n-1}``. The first step sends one position.
    """

    solver: Tweedie | Multistep
    tolerance: float
    evaluations = None
    exact_kernels = True

    def __post_init__(self) -> None:
        require_number("tolerance", self.tolerance, 0, math.inf)

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "grids.adaptive(model, tolerance)")
        self.solver.check(process, length)
        self._planner()
        if isinstance(self.solver, Multistep) and self.solver.window > 1:
            raise ValueError(f"window={self.solver.window} with a tolerance: the last step alone sets the pace; use 1")

    def reaches_data(self, process: Process) -> bool:
        return True

    def _planner(self) -> Counting:
        planner = self.solver.planner or FixedCount()
        if isinstance(planner, FixedCount | LowDiscrepancy):
            return planner
        name = type(self.solver).__name__
        raise ValueError(
            f"planner={planner!r} with a tolerance: it must take the number of positions that go from outside; "
            f"use {name}(planner=FixedCount()) or {name}(planner=LowDiscrepancy())"
        )

    def begin(self, x: Tensor, process: Process, times: Tensor, noise: Noise) -> Memory:
        return self._planner().begin(x, process, times, noise)

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        process, plan = reverse.process, plan_of(memory)
        begin, end = (float(1 - process.schedule.alpha(time)) for time in (t, s))
        start = process.active(x).sum(1)
        stop = torch.round(start * (end / begin)).long()
        went, change = torch.ones_like(start), torch.full_like(start, math.nan, dtype=torch.float64)
        rows, before, spent = torch.nonzero(start > stop).flatten(), None, 0.0
        for n in range(x.shape[1]):
            masked = reverse[rows].process.active(x[rows])
            left, local = masked.sum(1), noise(f"step {n}")[rows]
            evaluation = reverse[rows].evaluate(x[rows], process.schedule.alpha_inverse(1 - begin * left / start[rows]))
            prediction: Prediction = evaluation
            count = torch.ones_like(left)
            if before is not None:
                positions = _watched(masked, local)
                differ = _mean(divergence(evaluation, before, positions), positions, x[rows])
                change[rows] = _averaged(change[rows], differ / went[rows])
                share = self.tolerance * start[rows] / (n + (left - stop[rows]) / went[rows])
                most = ((1 + torch.sqrt(1 + 8 * share / change[rows])) / 2).round()
                count = torch.minimum(torch.minimum(most, 2 * went[rows]), left - stop[rows]).long()
                prediction = self._seen(
                    evaluation, before, Pace(count.double(), went[rows].double(), 1.0), process, n == 1
                )
            part = {name: value[rows] for name, value in plan.items()}
            x = x.index_copy(0, rows, self._planner().go(x[rows], prediction, masked, count, local, part))
            spent += float((count * (count - 1) / 2 * change[rows]).nansum())
            went[rows] = count
            alive = torch.nonzero(left - count > stop[rows]).flatten()
            rows, before = rows[alive], evaluation[alive]
            if not len(rows):
                break
        return Step(x, info={"estimated error": Share(spent, float(start.sum()))})

    def _seen(self, now: Evaluation, before: Evaluation, pace: Pace, process: Process, second: bool) -> Prediction:
        if isinstance(self.solver, Tweedie):
            return now
        return self.solver.extrapolated(process, now, before, pace, second)


def controlled(solver: Solver, tolerance: float) -> Controlled:
    """`solver` in steps as long as `tolerance` allows, if it is one that can for masked processes."""
    if not isinstance(solver, Tweedie | Multistep):
        raise TypeError(
            f"solver={solver!r} with a tolerance: on masked models only Tweedie and Multistep can change their pace; "
            "use one of them, or nfe in place of tolerance"
        )
    return Controlled(solver, tolerance)


def _averaged(old: Float64[Tensor, " b"], new: Float64[Tensor, " b"]) -> Float64[Tensor, " b"]:
    """The mean of both, or what there is."""
    return torch.where(torch.isnan(old), new, (old + new) / 2)


def _watched(allowed: Bool[Tensor, "b d"], noise: Noise) -> Int64[Tensor, " n"]:
    """Flat indices of the `allowed` positions; of some of them, at random, where a sample has many."""
    count = allowed.sum(1)
    if allowed.shape[1] > WATCHED:
        allowed = noise("watch").pick(allowed, count.clamp(max=WATCHED))
    return torch.nonzero(allowed.flatten()).flatten()


def _mean(values: Float64[Tensor, " n"], positions: Tensor, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
    """The mean of `values`, at flat indices `positions`, for each sample of `x`."""
    sample = positions // x.shape[1]
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device).index_add_(0, sample, values)
    return total / torch.bincount(sample, minlength=len(x))


def divergence(now: Prediction, before: Prediction, positions: Int64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """``KL(now || before)`` at each of `positions`."""
    parts = [torch.zeros(0, dtype=torch.float64, device=positions.device)]
    for some in positions.split(now.at_once):
        new, old = now.probabilities(some), before.probabilities(some)
        parts.append((torch.xlogy(new, new) - torch.xlogy(new, old.clamp_min(LEAST))).sum(1))
    return torch.cat(parts).clamp_min(0)
