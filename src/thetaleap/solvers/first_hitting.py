"""First-hitting: exact sampling of masked processes, one position and one evaluation at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from .base import Memory, Solver, Step, require_masked


@dataclass(frozen=True)
class FirstHitting(Solver):
    """Unmask each position at its own hitting time, given everything unmasked before (Zheng et al. 2024).

    ``alpha`` at the time a position is hit is uniform, so that the first of n masked positions is hit at
    ``alpha^-1`` of
    ``1 - (1 - alpha_t) u^(1/n)``. Here the positions hit between t and s are found first, then visited in order.
    """

    evaluations = None

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "Uniformization() for exact samples or Tweedie() for fast ones")

    def reaches_data(self, process: Process) -> bool:
        return True

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        process, (batch, length) = reverse.process, x.shape
        alpha_t, alpha_s = process.schedule.alpha(t), process.schedule.alpha(s)
        hit = torch.zeros(batch * length, dtype=torch.bool, device=x.device)
        hit[noise("hit").flip(process.kernel_bound(x, alpha_t, alpha_s))[0]] = True
        hit = hit.view_as(x)
        clock = torch.where(hit, noise("when").clock(hit), torch.inf)
        when, order = torch.sort(clock, dim=1)
        hits, x = hit.sum(1), x.clone()
        for k in range(int(hits.max())):
            rows = torch.nonzero(hits > k).flatten()
            position = order[rows, k]
            now = process.schedule.alpha_inverse(alpha_t + when[rows, k] * (alpha_s - alpha_t))
            evaluation = reverse[rows].evaluate(x[rows], now)
            each = torch.arange(len(rows), device=x.device)
            c = evaluation.probabilities(each * length + position)
            x[rows, position] = noise(f"value {k}")[rows].choose(each, 1, c, stay=False)
        return Step(x)
