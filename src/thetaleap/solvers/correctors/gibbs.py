"""Gibbs sweeps: positions redrawn from their conditionals at the present noise level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ...core.fields import knob
from ...core.memory import Memory
from ...core.noise import Draw, Noise
from ...core.processes import Process
from ...core.reverse import Reverse
from ...core.times import Times
from ...planners import FixedCount
from ...planners.ordered import Ordered
from .base import POSITIONS, Corrector, redraw

ORDER = "In whose order positions are redrawn"
IS_ORDER = {"kind": Ordered, "written": "FixedCount(), which is any order, or LowDiscrepancy()"}


@dataclass(frozen=True)
class Gibbs(Corrector):
    """Redraw `k` positions of each sample from ``p_t(v | others)``: with masks, a mask with probability ``1 - alpha``,
    else a value from c; without, a value from ``alpha c + (1 - alpha)/S`` or what the process makes of c.

    ``k = 1`` leaves p_t invariant if the conditionals are exact. Several at once are drawn independently of each other,
    which is an error again. With masks they are masked first, so that c is what a masked network was trained for.

    `planner` says which: a uniform subset in every sweep (`FixedCount`), or the next ones of an order that keeps those
    redrawn together far apart, around and around (`LowDiscrepancy`).
    """

    k: int = knob(1, POSITIONS, least=1)
    planner: Ordered = knob(help=ORDER, default_factory=FixedCount, **IS_ORDER)

    def check(self, process: Process, length: int) -> None:
        super().check(process, length)
        self.planner.check(length)

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], noise: Noise) -> Memory:
        ranks = self.planner.ranks(reverse, x, noise)
        if ranks is None:
            return ()
        places = torch.where(reverse.free, ranks, x.shape[1]).argsort(1).argsort(1)  # of free positions, from 0
        return places, torch.zeros_like(x[:, 0])

    def sweep(
        self, reverse: Reverse, x: Int64[Tensor, "b d"], t: Times, noise: Noise, memory: Memory
    ) -> tuple[Int64[Tensor, "b d"], Memory]:
        chosen, memory = self._chosen(reverse, x, noise, memory)
        if reverse.process.mask is not None:
            x = x.masked_fill(chosen, reverse.process.mask)
        now = reverse.evaluate(x, t)
        return redraw(reverse.process, x, chosen, now, reverse.alpha(t), noise(Draw.VALUE)), memory

    def _chosen(self, reverse: Reverse, x: Tensor, noise: Noise, memory: Memory) -> tuple[Bool[Tensor, "b d"], Memory]:
        """The positions of this sweep: all that are free, where those are fewer than k."""
        room = torch.as_tensor(reverse.room, device=x.device).expand(len(x))
        if not memory:
            scores = torch.where(reverse.free, 0.0, -math.inf).double()
            return noise(Draw.POSITION).pick(scores, room.clamp(max=self.k), torch.ones_like(scores[:, 0])), ()
        places, taken = memory
        ahead = (places - taken.unsqueeze(1)) % room.clamp_min(1).unsqueeze(1)
        return (ahead < self.k) & reverse.free, (places, taken + self.k)
