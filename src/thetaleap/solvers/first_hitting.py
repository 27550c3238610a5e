"""First-hitting: exact sampling of masked processes, one position and one evaluation at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times, column
from .base import Solver, Step, require_masked


@dataclass(frozen=True)
class FirstHitting(Solver):
    """Unmask each position at its own hitting time, given everything unmasked before (Zheng et al. 2024).

    ``alpha`` at the time a position is hit is uniform, so that the first of n masked positions is hit at ``alpha^-1``
    of ``1 - (1 - alpha_t) u^(1/n)``. Here the positions hit between t and s are found first, then visited in order.
    """

    evaluations = None
    processes = "masked"
    when = "exact, one evaluation per position: reference samples, short sequences"

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "Uniformization() for exact samples or Tweedie() for fast ones")

    def reaches_data(self, process: Process) -> bool:
        return True

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        process, (batch, length) = reverse.process, x.shape
        alpha_t, alpha_s = (column(reverse.alpha(time)) for time in (t, s))
        chance = process.kernel_bound(x, alpha_t, alpha_s) * reverse.free
        hit = torch.zeros(batch * length, dtype=torch.bool, device=x.device)
        hit[noise(Draw.HIT).flip(chance)[0]] = True
        hit = hit.view_as(x)
        clock = torch.where(hit, noise(Draw.WHEN).clock(hit), torch.inf)
        when, order = torch.sort(clock, dim=1)
        reached = process.schedule.alpha_inverse(alpha_t + when.nan_to_num(posinf=1.0) * (alpha_s - alpha_t))
        hits, x = hit.sum(1), x.clone()
        for k in range(int(hits.max())):
            rows = torch.nonzero(hits > k).flatten()
            position, each = order[rows, k], torch.arange(len(rows), device=x.device)
            c = reverse[rows].evaluate(x[rows], reached[rows, k]).probabilities(each * length + position)
            x[rows, position] = noise(Draw.VALUE, k)[rows].choose(each, 1, c, stay=False)
        return Step(x)
