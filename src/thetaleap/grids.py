"""Time grids: plain functions ``(start, end, steps) -> steps + 1 decreasing times``.

``sample(..., grid=)`` takes such a function together with ``nfe=`` or ``steps=``, or a ready tensor alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from .checks import require, require_count, require_number
from .planning import EntropyTable, counted, pilot_entropies, planned
from .schedules import Schedule

__all__ = [
    "EntropyTable",
    "Grid",
    "Times",
    "alpha_power",
    "check",
    "cosine",
    "counted",
    "logarithmic",
    "pilot_entropies",
    "planned",
    "power",
    "uniform",
]

Times = Float64[Tensor, " times"]
Grid = Callable[[float, float, int], Tensor]


def _fractions(start: float, end: float, steps: int) -> Tensor:
    """1 down to 0 in `steps` equal parts, after checking the three arguments."""
    require_count("steps", steps)
    require(0 <= end < start < math.inf, "(start, end)", (start, end), "needs 0 <= end < start")
    return torch.linspace(1, 0, steps + 1, dtype=torch.float64)


def _between(start: float, end: float, fraction: Tensor) -> Tensor:
    times = end + (start - end) * fraction
    times[0], times[-1] = start, end  # not a rounding away from the ends
    return times


def uniform(start: float, end: float, steps: int) -> Times:
    """Equal steps: the paper's arithmetic grid."""
    return _between(start, end, _fractions(start, end, steps))


def power(start: float, end: float, steps: int, exponent: float = 2.0) -> Times:
    """``t = end + (start - end) u^exponent``, u in equal steps: fine near the data, where uniform processes need it."""
    require_number("exponent", exponent, 0, math.inf)
    return _between(start, end, _fractions(start, end, steps) ** exponent)


def cosine(start: float, end: float, steps: int) -> Times:
    """``t = end + (start - end) cos(pi/2 (1 - u))``, u in equal steps: few tokens first, many last (MaskGIT)."""
    return _between(start, end, torch.cos(math.pi / 2 * (1 - _fractions(start, end, steps))))


def logarithmic(start: float, end: float, steps: int) -> Times:
    """Equal ratios; `end` must be positive."""
    require(end > 0, "end", end, "a logarithmic grid needs a positive end: give delta > 0")
    return _between(start, end, ((end / start) ** (1 - _fractions(start, end, steps)) * start - end) / (start - end))


def alpha_power(schedule: Schedule, exponent: float = 2.0) -> Grid:
    """``alpha = 1 - (1 - alpha_start) v^exponent``, v in equal steps: a grid function for one schedule.

    Power 2 to 2.5 was best for uniform processes, where the grid matters as much as the method.
    """
    require_number("exponent", exponent, 0, math.inf)

    def grid(start: float, end: float, steps: int) -> Times:
        noised = float(1 - schedule.alpha(start)), float(1 - schedule.alpha(end))
        last = (noised[1] / noised[0]) ** (1 / exponent)
        v = last + (1 - last) * _fractions(start, end, steps)
        times = schedule.alpha_inverse(1 - noised[0] * v**exponent)
        times[0], times[-1] = start, end
        return times

    return grid


def check(grid: Tensor, horizon: float) -> Times:
    """`grid` as float64, or an error: it must decrease strictly and stay within [0, horizon]."""
    if not isinstance(grid, Tensor) or grid.ndim != 1 or len(grid) < 2:
        got = tuple(grid.shape) if isinstance(grid, Tensor) else type(grid).__name__
        raise ValueError(f"grid={got}: give a tensor of at least two times, from noise down to data")
    times = grid.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(times).all()):
        raise ValueError(f"grid={times.tolist()}: holds NaN or infinite times")
    rise = torch.nonzero(times[1:] >= times[:-1]).flatten()
    if len(rise):
        n = int(rise[0])
        raise ValueError(
            f"grid[{n}:{n + 2}]={times[n : n + 2].tolist()}: times must decrease strictly, from noise to data; "
            "use grid.flip(0) if yours runs the other way"
        )
    inside = float(times[-1]) >= 0 and float(times[0]) <= horizon * (1 + 1e-12)
    ends = (float(times[0]), float(times[-1]))
    require(inside, "grid ends", ends, f"must stay within [0, {horizon:g}], the model's horizon")
    return times
