"""A published two-step scheme, to compare with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.checks import require
from ..core.intensity import Combined
from ..core.jumps import leap
from ..core.memory import History, Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times, shared
from .base import Solver, Step

LATE = 0.99


@dataclass(frozen=True)
class AdamsBashforth(Solver):
    """Two-step Adams-Bashforth with variable steps in log time (TR-CIE), for comparison.

    In ``h_n = log((1 - alpha_t)/(1 - alpha_s))`` the intensity u of a masked position is c itself; it is frozen at
    ``max(0, (1 + r/2) u_n - (r/2) u_{n-1})``, ``r = h_n/h_{n-1}``. The first step, and all beyond alpha = 0.99, take
    ``u_n`` alone.
    """

    evaluations = 1
    when = "to compare with the published two-step scheme"

    def reaches_data(self, process: Process) -> bool:
        return False

    def begin(self, reverse: Reverse, x: Tensor, stops: Tensor, noise: Noise) -> Memory:
        return History.none(x)

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        now = reverse.evaluate(x, t)
        earlier, history = memory.before(now), memory.after(now, window=1)
        h, speed = _log_time(reverse, t, s), _speed(reverse, t)
        known = (_log_time(reverse, earlier.t, t) > 0) & (reverse.alpha(t) <= LATE)
        if not bool(known.any()):
            return Step(leap(x, reverse.frozen(now), h / speed, noise(Draw.LEAP), "exact")[0], history)
        half = torch.where(known, 0.5 * h / _log_time(reverse, earlier.t, t), 0.0)
        # intensities per unit of log time: each is divided by its own speed
        scales = (1 / _speed(reverse, earlier.t), 1 / speed)
        ahead = Combined(x, reverse.frozen(earlier), reverse.frozen(now), 1 + half, scales=scales)
        x, positive = leap(x, ahead, h, noise(Draw.LEAP), "exact")
        return Step(x, history, {"positive": positive})


def _log_time(reverse: Reverse, t: Tensor, s: Tensor) -> Tensor:
    begin, end = reverse.alpha(t), reverse.alpha(s)
    last = float(shared(s).min())
    require(float(end.max()) < 1, "grid end", last, "AdamsBashforth steps in log time: end above 0")
    return torch.log((1 - begin) / (1 - end))


def _speed(reverse: Reverse, t: Tensor) -> Tensor:
    """d log(1 - alpha) / dt."""
    alpha = reverse.alpha(t)
    return reverse.process.schedule.sigma(shared(t)) * alpha / (1 - alpha)
