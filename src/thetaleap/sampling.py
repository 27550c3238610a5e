"""`sample`: from noise to data along a grid of times. The only time loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from . import grids
from .checks import finite, require, require_count
from .denoiser import Denoiser
from .jumps import Share
from .noise import Noise, Stream
from .processes import Process
from .reverse import Reverse
from .solvers.base import Memory, Solver, Step

DELTA = 1e-3
BATCH_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Samples:
    """What `sample` gives back."""

    x: Int64[Tensor, "num d"]
    """The samples."""
    nfe: Int64[Tensor, " num"]
    """Network evaluations spent on each sample."""
    info: dict[str, float]
    """Statistics of the solver, e.g. ``positive``: the share of extrapolated intensities that stayed positive."""


@dataclass(frozen=True)
class Moment:
    """One batch at one moment of the run, as shown to `on_step`."""

    step: int
    """0 is fresh noise; the last one is clean data."""
    t: float
    """The time that has been reached."""
    first: int
    """Index of the batch's first sample."""
    x: Int64[Tensor, "b d"]
    nfe: Int64[Tensor, " b"]


def sample(
    model: Denoiser,
    solver: Solver,
    *,
    nfe: int | None = None,
    steps: int | None = None,
    grid: Tensor | grids.Grid | None = None,
    num: int = 1,
    seed: int = 0,
    delta: float | None = None,
    batch_size: int | None = None,
    progress: bool | None = None,
    on_step: Callable[[Moment], None] | None = None,
) -> Samples:
    """Draw `num` samples from `model` with `solver`.

    Args:
        model: an oracle, a model from `load`, or your network through `from_network`.
        solver: e.g. ``Trapezoidal(theta=0.5)``.
        nfe: the most network evaluations to spend on any sample; sets the number of steps. The finishing
            evaluation (see `delta`) is within the budget.
        steps: the number of steps, instead of `nfe`; the finishing evaluation comes on top.
        grid: a decreasing tensor of times, instead of both; or a function of `grids` together with one of them.
        num: how many samples.
        seed: sample i is a function of (seed, i) alone, whatever `num`, `batch_size` or the device.
        delta: the time at which to stop. What noise is left then goes in one exact one-site draw, which costs one
            evaluation of the samples that need it. Default: 1e-3 for solvers that cannot step to time 0 (frozen
            intensities on masked processes, uniformization), otherwise 0.
        batch_size: samples run together; by default as many as keep working memory near 128 MiB.
        progress: show a progress bar; by default if standard error is a terminal.
        on_step: called with a `Moment` at the start, after every step, and at the end, for every batch.
    """
    require_count("num", num)
    times = plan(model, solver, nfe=nfe, steps=steps, grid=grid, delta=delta)
    if batch_size is None:
        batch_size = max(1, BATCH_BYTES // (32 * model.length * model.process.states))
    require_count("batch_size", batch_size)
    x = torch.empty((num, model.length), dtype=torch.int64)
    spent = torch.zeros(num, dtype=torch.int64)
    info: dict[str, Share] = {}
    firsts = range(0, num, batch_size)
    with torch.no_grad(), _bar(progress, len(firsts) * (len(times) + 1)) as advance:
        for first in firsts:
            batch = slice(first, min(first + batch_size, num))
            for moment, shares in run(model, solver, times, seed, first, batch.stop - first):
                for name, share in shares.items():
                    info[name] = info.get(name, Share(0, 0)) + share
                if on_step is not None:
                    on_step(moment)
                if moment.step == len(times):
                    x[batch], spent[batch] = moment.x, moment.nfe
                advance()
    return Samples(x, spent, {name: float(share) for name, share in info.items()})


def run(
    model: Denoiser, solver: Solver, times: Tensor, seed: int, first: int, count: int
) -> Iterator[tuple[Moment, dict[str, Share]]]:
    """Run one batch of samples; finished ones are left alone."""
    noise = Stream(seed, first, count, model.device)
    reverse = Reverse(model, torch.zeros(count, dtype=torch.int64, device=model.device), first)
    x = torch.zeros((count, model.length), dtype=torch.int64, device=model.device)
    memory: Memory = {}
    rows: Tensor | None = None
    for n, (t, stage) in enumerate(stages(model, solver, times)):
        asked = replace(reverse, where=f"step {n} (down to t = {t:g})", rows=rows)
        local = noise.at(n) if rows is None else noise.at(n)[rows]
        part = stage(asked, local, x if rows is None else x[rows], memory)
        x = part.x if rows is None else x.index_copy(0, rows, part.x)
        alive = unfinished(model.process, part.x)
        memory = part.memory
        if alive is not None:
            memory = {name: value[alive] for name, value in memory.items()}
            rows = alive if rows is None else rows[alive]
        yield Moment(n, t, first, x, reverse.nfe.clone()), part.info


Stage = Callable[[Reverse, Noise, Tensor, Memory], Step]


def stages(model: Denoiser, solver: Solver, times: Tensor) -> Iterator[tuple[float, Stage]]:
    """All of a run: fresh noise, the steps of `solver`, and the finish; each with the time it reaches."""
    process, last = model.process, float(times[-1])

    def start(reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
        x = process.prior(len(x), model.length, noise).to(model.device)
        return Step(x, solver.begin(x, process, times, noise))

    def step(t: float, s: float, reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
        return solver.step(reverse, x, t, s, noise, memory) if len(x) else Step(x, memory)

    def finish(reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
        if len(x) and not is_clean(process, last):
            x = reverse.move(x, reverse.look(x, last), last, None, noise("finish"))
        return Step(x)

    yield float(times[0]), start
    for t, s in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        yield s, partial(step, t, s)
    yield 0.0, finish


def is_clean(process: Process, t: float) -> bool:
    """Whether no noise is left at time t. (Masked samples are finished when their last mask is gone.)"""
    return process.mask is None and float(process.schedule.alpha(t)) == 1


def unfinished(process: Process, x: Tensor) -> Tensor | None:
    """Rows of `x` with a site that can still jump; None if all have one."""
    if process.mask is None:
        return None
    alive = process.active(x).any(1)
    return None if bool(alive.all()) else torch.nonzero(alive).flatten()


def plan(
    model: Denoiser,
    solver: Solver,
    *,
    nfe: int | None = None,
    steps: int | None = None,
    grid: Tensor | grids.Grid | None = None,
    delta: float | None = None,
) -> Float64[Tensor, " times"]:
    """The times that `sample` walks for these arguments."""
    process, horizon = model.process, model.horizon
    if not isinstance(solver, Solver):
        raise TypeError(f"solver={solver!r}: give a solver with its parameters, for example Trapezoidal(theta=0.5)")
    solver.check(process, model.length)
    if isinstance(grid, Tensor):
        given = {"nfe": nfe, "steps": steps, "delta": delta}
        for name, value in given.items():
            require(
                value is None,
                name,
                value,
                "the grid says it already; leave it out, or give a function as grid",
            )
        return grids.check(grid, horizon)
    if grid is not None and not callable(grid):
        raise TypeError(f"grid={grid!r}: give a decreasing tensor of times, or a function such as grids.power")
    if delta is None:
        delta = 0.0 if solver.reaches_data(process) else DELTA
    require(finite(delta) and 0 <= delta < horizon, "delta", delta, f"give a time in [0, {horizon:g})")
    name = type(solver).__name__
    require(nfe is None or steps is None, "(nfe, steps)", (nfe, steps), "give one of them")
    if solver.evaluations is None:
        require(nfe is None, "nfe", nfe, f"{name} spends as many evaluations as it takes; leave nfe out")
        steps = 1 if steps is None else steps
    elif nfe is not None:
        steps = _affordable(solver, nfe, not solver.reaches_data(process) or not _ends_clean(process, delta))
    else:
        require(
            steps is not None,
            "nfe",
            None,
            f"say how many evaluations to spend: sample(..., {name}(), nfe=64)",
        )
    assert steps is not None
    require_count("steps", steps)
    times = (grid or grids.uniform)(horizon, delta, steps)
    return grids.check(times, horizon)


def _ends_clean(process: Process, delta: float) -> bool:
    return float(process.schedule.alpha(delta)) == 1


def _affordable(solver: Solver, nfe: int, finish: bool) -> int:
    """Steps that `nfe` evaluations pay for, leaving one for the finish where it may be needed."""
    assert solver.evaluations is not None
    least = solver.evaluations + finish
    extra = ", and one more to finish" if finish else ""
    require_count("nfe", nfe, least=1)
    name = type(solver).__name__
    require(nfe >= least, "nfe", nfe, f"{name} takes {solver.evaluations} per step{extra}: give at least {least}")
    return (nfe - finish) // solver.evaluations


@contextmanager
def _bar(progress: bool | None, total: int) -> Iterator[Callable[[], None]]:
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("sampling", total=total)
        yield lambda: bar.advance(task)
