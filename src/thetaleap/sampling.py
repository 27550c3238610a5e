"""`sample`: from noise to data along a grid of times. The only time loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .conditioning.wrappers import cost_of, restricts
from .control import grids
from .control.tolerance import controlled
from .core.checks import finite, require, require_count
from .core.evaluation import MEMORY, Denoiser
from .core.free import FREE, Held, check_template
from .core.jumps import Share
from .core.noise import WORD, Noise, Stream
from .core.processes import Process
from .core.reverse import Reverse
from .solvers.base import Memory, Solver, Step

DELTA = 1e-3


@dataclass(frozen=True)
class Samples:
    """What `sample` gives back."""

    x: Int64[Tensor, "num d"]
    """The samples."""
    nfe: Int64[Tensor, " num"]
    """Network evaluations that each sample has used."""
    spent: Int64[Tensor, " num"]
    """Those for which the network was run: one that ignores time is not run again for a sample that has not changed."""
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
    """Index of the batch's first sample in this run."""
    x: Int64[Tensor, "b d"]
    nfe: Int64[Tensor, " b"]
    spent: Int64[Tensor, " b"]


def sample(
    model: Denoiser,
    solver: Solver,
    *,
    nfe: int | None = None,
    tolerance: float | None = None,
    steps: int | None = None,
    grid: Tensor | grids.Grid | None = None,
    num: int | None = None,
    template: Tensor | None = None,
    seed: int = 0,
    first: int = 0,
    delta: float | None = None,
    batch_size: int | None = None,
    memory: int = MEMORY,
    progress: bool | None = None,
    on_step: Callable[[Moment], None] | None = None,
) -> Samples:
    """Draw `num` samples from `model` with `solver`.

    Args:
        model: an oracle, a model from `load`, or your network through `from_network`.
        solver: e.g. ``Trapezoidal(theta=0.5)``.
        nfe: the most network evaluations to spend on any sample; sets the number of steps. The finishing
            evaluation (see `delta`) is within the budget.
        tolerance: the error to allow, in nats per position, instead of a budget: each sample then takes as many
        evaluations
            as it needs. For `Tweedie` and `Multistep`; `solvers.controlled.Controlled` says what the error is.
            ``info["estimated error"]`` is what it came to, by the samples' own estimate.
        steps: the number of steps, instead of `nfe`; the finishing evaluation comes on top.
        grid: a decreasing tensor of times, instead of both; or a function of `grids` together with one of them.
        num: how many samples; by default as many as the template has rows, or one.
        template: what is given, int64 (d,) for all samples or (num, d), with `FREE` (-1) where the sampler may write.
        seed: sample i is a function of (seed, i) alone, whatever `num`, `batch_size` or the device.
        first: the number i of the first sample, so that a run can be continued, or one of its samples drawn alone. What
            belongs to single samples (rows of the template, labels, `Network.padded`) is numbered within this run: its
            row 0 is for sample `first`.
        delta: the time at which to stop. What noise is left then goes in one exact one-position draw, which costs one
            evaluation of the samples that need it. Default: 1e-3 for solvers that cannot step to time 0 (frozen
            intensities on masked processes, uniformization), otherwise 0.
        batch_size: samples run together; by default as many as `memory` holds all conditionals of, at least one.
        memory: bytes of working memory beside the network's own; the rows of positions that jump are done in parts.
        progress: show a progress bar; by default if standard error is a terminal.
        on_step: called with a `Moment` at the start, after every step, and at the end, for every batch.
    """
    if num is None:
        num = len(template) if template is not None and template.ndim == 2 else 1
    require_count("num", num)
    require_count("first", first, least=0)
    require((first + num) * model.length < WORD, "first", first, "no numbers are left there; give a smaller one")
    if template is not None:
        template = check_template(template, num, model.length, model.process.states).expand(num, -1)
    if tolerance is not None:
        for name, value in {"nfe": nfe, "steps": steps, "grid": grid}.items():
            require(value is None, name, value, "the tolerance decides how many steps, and when; leave it out")
        if model.process.mask is None:
            grid, delta = grids.adaptive(model, tolerance, delta=delta or 0.0, seed=seed), None
        else:
            solver = controlled(solver, tolerance)
    positions = None if template is None else max(1, int((template == FREE).sum(1).max()))
    times = plan(model, solver, nfe=nfe, steps=steps, grid=grid, delta=delta, positions=positions)
    if batch_size is None:
        batch_size = max(1, memory // (32 * model.length * model.process.states))
    require_count("batch_size", batch_size)
    require_count("memory", memory)
    ends: list[Moment] = []
    info: dict[str, Share] = {}
    starts = range(0, num, batch_size)
    with torch.no_grad(), _bar(progress, len(starts) * (len(times) + 1)) as advance:
        for start in starts:
            batch = slice(start, min(start + batch_size, num))
            given = None if template is None else template[batch]
            for moment, shares in run(model, solver, times, seed, start, batch.stop - start, memory, given, first):
                for name, share in shares.items():
                    info[name] = info.get(name, Share(0, 0)) + share
                if on_step is not None:
                    on_step(replace(moment, nfe=moment.nfe.clone(), spent=moment.spent.clone()))
                if moment.step == times.shape[0]:
                    ends.append(moment)
                advance()
    whole = (_joined([end.x for end in ends]), _joined([end.nfe for end in ends]), _joined([end.spent for end in ends]))
    return Samples(*whole, {name: float(share) for name, share in info.items()})


def _joined(parts: list[Tensor]) -> Tensor:
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).cpu()


def run(
    model: Denoiser,
    solver: Solver,
    times: Tensor,
    seed: int,
    first: int,
    count: int,
    memory: int = MEMORY,
    template: Int64[Tensor, "b d"] | None = None,
    offset: int = 0,
) -> Iterator[tuple[Moment, dict[str, Share]]]:
    """Run one batch of samples; finished ones are left alone. Their noise is that of samples ``offset + first ...``.

    The counts of a moment go on changing with the run: whoever keeps them takes a copy.
    """
    noise = Stream(seed, offset + first, count, model.device)
    template = None if template is None else template.to(model.device)
    # masks tell themselves which positions may change
    free = None if template is None or model.process.mask is not None else template == FREE
    reverse = Reverse.start(model, count, first, memory, remember=True, free=free)
    x = torch.zeros((count, model.length), dtype=torch.int64, device=model.device)
    kept: Memory = {}
    rows: Tensor | None = None
    for n, (t, stage) in enumerate(stages(model, solver, times, template)):
        if rows is not None and not rows.shape[0]:  # all are finished
            yield Moment(n, t, first, x, reverse.nfe, reverse.spent), {}
            continue
        asked = reverse.at(f"step {n} (down to t = {t:g})", rows)
        local = noise.at(n) if rows is None else noise.at(n)[rows]
        part = stage(asked, local, x if rows is None else x[rows], kept)
        x = part.x if rows is None else x.index_copy(0, rows, part.x)
        alive = unfinished(asked.process, part.x)
        kept = part.memory
        if alive is not None:
            kept = {name: value[alive] for name, value in kept.items()}
            rows = alive if rows is None else rows[alive]
        yield Moment(n, t, first, x, reverse.nfe, reverse.spent), part.info


Stage = Callable[[Reverse, Noise, Tensor, Memory], Step]


def stages(
    model: Denoiser, solver: Solver, times: Tensor, template: Int64[Tensor, "#b d"] | None = None
) -> Iterator[tuple[float, Stage]]:
    """All of a run: fresh noise, the steps of `solver`, and the finish; each with the time it reaches."""
    process, stops = model.process, times.tolist()

    def start(reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
        x = process.prior(len(x), model.length, noise).to(model.device)
        if template is not None:
            x = torch.where(template == FREE, x, template)
        return Step(x, solver.begin(x, reverse.process, times, noise))

    def step(t: float, s: float, reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
        return solver.step(reverse, x, t, s, noise, memory)

    def finish(reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
        if not is_clean(process, stops[-1]):
            x = reverse.move(x, reverse.evaluate(x, stops[-1]), stops[-1], None, noise("finish"))
        return Step(x)

    yield stops[0], start
    for t, s in pairwise(stops):
        yield s, partial(step, t, s)
    yield 0.0, finish


def is_clean(process: Process, t: float) -> bool:
    """Whether no noise is left at time t. (Masked samples are finished when their last mask is gone.)"""
    return process.mask is None and float(process.schedule.alpha(t)) == 1


def unfinished(process: Process, x: Tensor) -> Tensor | None:
    """Rows of `x` with a position that can still jump; None if all have one."""
    if process.mask is None and not isinstance(process, Held):
        return None
    left = process.active(x)
    if left.is_cpu:  # numpy takes half of the time
        some = left.numpy().any(1)
        return None if some.all() else torch.from_numpy(np.flatnonzero(some))
    some = left.any(1)
    return None if bool(some.all()) else torch.nonzero(some).flatten()


def plan(
    model: Denoiser,
    solver: Solver,
    *,
    nfe: int | None = None,
    steps: int | None = None,
    grid: Tensor | grids.Grid | None = None,
    delta: float | None = None,
    positions: int | None = None,
) -> Float64[Tensor, " times"]:
    """The times that `sample` walks for these arguments, if it may write to so many `positions`, by default to all."""
    process, horizon = model.process, model.horizon
    positions = model.length if positions is None else positions
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
        _require_cleared(model, solver, float(grid[-1]) if len(grid) else 0.0)
        return grids.check(grid, horizon)
    if grid is not None and not callable(grid):
        raise TypeError(f"grid={grid!r}: give a decreasing tensor of times, or a function such as grids.power")
    if delta is None:
        delta = 0.0 if solver.reaches_data(process) and not _may_leave(model, solver) else DELTA
    _require_cleared(model, solver, delta)
    require(finite(delta) and 0 <= delta < horizon, "delta", delta, f"give a time in [0, {horizon:g})")
    name = type(solver).__name__
    require(nfe is None or steps is None, "(nfe, steps)", (nfe, steps), "give one of them")
    if solver.evaluations is None:
        require(nfe is None, "nfe", nfe, f"{name} spends as many evaluations as it takes; leave nfe out")
        steps = solver.fewest(positions) if steps is None else steps
    elif nfe is not None:
        last = not solver.reaches_data(process) or not _ends_clean(process, delta)
        finish = solver.fewest(positions) if last else 0
        steps = _affordable(solver, nfe, positions, cost_of(model), finish)
    else:
        require(
            steps is not None,
            "nfe",
            None,
            f"say how many evaluations to spend, as in sample(..., {name}(), nfe=64), or give a tolerance",
        )
    assert steps is not None
    require_count("steps", steps)
    times = (grid or grids.uniform)(horizon, delta, steps)
    return grids.check(times, horizon)


def _ends_clean(process: Process, delta: float) -> bool:
    return float(process.schedule.alpha(delta)) == 1


def _may_leave(model: Denoiser, solver: Solver) -> bool:
    """Whether a step to time 0 may leave a position at a value that the model forbids: it may not have jumped."""
    return model.process.mask is None and restricts(model) and not solver.exact_kernels


def _require_cleared(model: Denoiser, solver: Solver, end: float) -> None:
    if end == 0 and _may_leave(model, solver):
        raise ValueError(
            f"delta=0.0 with forbidden values: {type(solver).__name__} may leave them behind there; leave delta out, "
            "or end the grid above 0"
        )


def _affordable(solver: Solver, nfe: int, length: int, cost: int, finish: int) -> int:
    """Steps that `nfe` evaluations pay for, leaving `finish` for where they may be needed; each counts `cost`."""
    assert solver.evaluations is not None
    least = cost * (solver.evaluations * solver.fewest(length) + finish)
    extra = f", and {'one' if finish == 1 else finish} more to finish" if finish else ""
    twice = f", each counting {cost} with guidance" if cost > 1 else ""
    require_count("nfe", nfe, least=1)
    name = type(solver).__name__
    remedy = f"{name} takes {solver.evaluations} per step{extra}{twice}: give at least {least}"
    require(nfe >= least, "nfe", nfe, remedy)
    return (nfe // cost - finish) // solver.evaluations


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
