"""Time grids: plain functions ``(start, end, steps) -> steps + 1 decreasing times``.

``sample(..., grid=)`` takes such a function together with ``nfe=`` or ``steps=``, or a ready tensor alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ..core.checks import finite, require, require_count, require_number, shown, takes
from ..core.evaluation import Denoiser
from ..core.schedules import Schedule, require_schedule
from ..core.wrapped import inspected
from .adaptive import step_costs
from .pilots import EntropyTable, counted, pilot_entropies, planned

__all__ = [
    "EntropyTable",
    "Grid",
    "Times",
    "adaptive",
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
MOST_STEPS = 2**24 - 1


def _fractions(start: float, end: float, steps: int) -> Tensor:
    """1 down to 0 in `steps` equal parts, after checking the three arguments."""
    require_count("steps", steps, most=MOST_STEPS)
    good = finite(start) and finite(end) and 0 <= end < start
    require(good, "(start, end)", (start, end), "needs 0 <= end < start")
    return torch.linspace(1, 0, steps + 1, dtype=torch.float64)


def _between(start: float, end: float, fraction: Tensor) -> Tensor:
    times = end + (start - end) * fraction
    ends = times.numpy()
    ends[0], ends[-1] = float(start), float(end)  # not a rounding away from the ends
    return times


def uniform(start: float, end: float, steps: int) -> Times:
    """Equal steps: the paper's arithmetic grid."""
    return _between(start, end, _fractions(start, end, steps))


def power(start: float, end: float, steps: int, exponent: float = 2.0) -> Times:
    """``t = end + (start - end) u^exponent``, u in equal steps: fine near the data, where uniform processes need it."""
    require_number("exponent", exponent, 0, math.inf)
    return _between(start, end, _fractions(start, end, steps) ** float(exponent))


def cosine(start: float, end: float, steps: int) -> Times:
    """``t = end + (start - end) cos(pi/2 (1 - u))``, u in equal steps: few tokens first, many last (MaskGIT)."""
    return _between(start, end, torch.cos(math.pi / 2 * (1 - _fractions(start, end, steps))))


def logarithmic(start: float, end: float, steps: int) -> Times:
    """Equal ratios; `end` must be positive."""
    fractions = _fractions(start, end, steps)
    start, end = float(start), float(end)
    require(end > 0, "end", end, "a logarithmic grid needs a positive end: give delta > 0")
    return _between(start, end, ((end / start) ** (1 - fractions) * start - end) / (start - end))


def alpha_power(schedule: Schedule, exponent: float = 2.0) -> Grid:
    """``alpha = 1 - (1 - alpha_start) v^exponent``, v in equal steps: a grid function for one schedule.

    Power 2 to 2.5 was best for uniform processes, where the grid matters as much as the method.
    """
    require_schedule(schedule)
    require_number("exponent", exponent, 0, math.inf)

    def grid(start: float, end: float, steps: int) -> Times:
        noised = float(1 - schedule.alpha(start)), float(1 - schedule.alpha(end))
        last = (noised[1] / noised[0]) ** (1 / exponent)
        v = last + (1 - last) * _fractions(start, end, steps)
        times = schedule.alpha_inverse(1 - noised[0] * v**exponent)
        times[0], times[-1] = float(start), float(end)
        return times

    return grid


PILOT_STEPS, PILOT_POSITIONS, MOST_ADAPTED = 32, 1024, 10**5
"""Of `adaptive`: evaluations of each pilot, positions of all pilots together by default, and the most steps."""


def adaptive(
    model: Denoiser | str, tolerance: float, *, delta: float = 0.0, pilots: int | None = None, seed: int = 0
) -> Times:
    """The alpha-power-2 grid with as many steps as `tolerance` asks for, for a model without masks.

    The tolerance is in nats per position: what moving positions independently of each other within steps may cost in
    all. This is the KL divergence from the paths of the true reverse process to those of `Tweedie`; the law of the
    samples is nearer than that, and nearer still with `Multistep`. `adaptive.step_costs` estimates it by pilots on a
    grid of 32 steps, and it falls as one over the number of steps.

    Grids with steps of equal cost were tried: 15% better for the paths of `Tweedie`, up to 6 times worse for the law
    of `Multistep`.

    Args:
        model: a model of a uniform or general process.
        tolerance: nats per position.
        delta: the time at which to stop.
        pilots: samples to estimate from, at 32 evaluations each; by default as many as have 1024 positions together,
            and at least 4.
        seed: of the pilots.
    """
    require_number("tolerance", tolerance, 0, math.inf)
    model = inspected(model)
    name = type(model.process).__name__
    require(
        model.process.mask is None, "model", name, "with masks give the tolerance to sample(), which counts positions"
    )
    require(finite(delta) and 0 <= delta < model.horizon, "delta", delta, f"give a time in [0, {model.horizon:g})")
    pilots = max(4, PILOT_POSITIONS // model.length) if pilots is None else pilots
    require_count("pilots", pilots)
    grid = alpha_power(model.process.schedule)
    with torch.no_grad():
        cost = float(step_costs(model, grid(model.horizon, delta, PILOT_STEPS), pilots, seed).sum())
    steps = max(1, math.ceil(PILOT_STEPS * cost / tolerance))
    least = tolerance * steps / MOST_ADAPTED
    require(steps <= MOST_ADAPTED, "tolerance", tolerance, f"asks for {steps} steps; give at least {least:.1g}")
    return grid(model.horizon, delta, steps)


def as_grid(grid: Any) -> Tensor | Grid | None:
    """`grid` as a tensor, if it is a list or an array of times; or a function of (start, end, steps)."""
    if callable(grid):
        if isinstance(grid, type) or takes(grid, 1.0, 0.0, 1) is False:
            name = getattr(grid, "__name__", type(grid).__name__)
            raise TypeError(f"grid={name}: must be a function of (start, end, steps), as grids.power is")
        return cast(Grid, grid)
    if isinstance(grid, list | tuple | np.ndarray):
        try:
            grid = torch.as_tensor(np.asarray(grid, dtype=np.float64))
        except (TypeError, ValueError):
            raise TypeError(f"grid={shown(grid)}: give decreasing times, as numbers") from None
    if isinstance(grid, Tensor):
        require(grid.ndim == 1, "grid shape", tuple(grid.shape), "give times in a row, from noise down to data")
    return grid


def check(grid: Any, horizon: float) -> Times:
    """`grid` as float64, or an error: it must decrease strictly and stay within [0, horizon]."""
    grid = as_grid(grid)
    require(finite(horizon), "horizon", horizon, "give a time")
    if not isinstance(grid, Tensor) or grid.ndim != 1 or len(grid) < 2:
        got = tuple(grid.shape) if isinstance(grid, Tensor) else type(grid).__name__
        raise ValueError(f"grid={got}: give a tensor of at least two times, from noise down to data")
    times = grid.detach().to("cpu", torch.float64)
    values = times.numpy()
    if not np.isfinite(values).all():
        raise ValueError(f"grid={times.tolist()}: holds NaN or infinite times")
    rise = (values[1:] >= values[:-1]).nonzero()[0]
    if len(rise):
        n = int(rise[0])
        raise ValueError(
            f"grid[{n}:{n + 2}]={times[n : n + 2].tolist()}: times must decrease strictly, from noise to data; "
            "use grid.flip(0) if yours runs the other way"
        )
    ends = (float(values[0]), float(values[-1]))
    inside = ends[1] >= 0 and ends[0] <= horizon * (1 + 1e-12)
    require(inside, "grid ends", ends, f"must stay within [0, {horizon:g}], the model's horizon")
    return times
