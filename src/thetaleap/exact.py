"""Exact output laws on small spaces, from the solvers' own code.

Each step is run with noise that answers every way at once (`enumeration.Every`). What coincides after a step is merged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from .control import grids
from .core.checks import require
from .core.evaluation import Denoiser, Evaluation
from .core.free import FREE, check_template
from .core.processes import Process
from .core.reverse import Reverse
from .enumeration import Every, Fork, Unforeseen
from .sampling import Stage, stages, unfinished
from .solvers.base import Memory, Solver, Step
from .solvers.uniformization import Uniformization

MOST_STATES = 2**14
AT_ONCE, UNBOUNDED = 2**19, 2**60


def law(
    model: Denoiser, solver: Solver, grid: Tensor, template: Int64[Tensor, " d"] | None = None
) -> Float64[Tensor, ...]:
    """The exact law of the samples that `solver` draws along `grid`, as a tensor of shape (S,)*d.

    Entry x is the probability that ``sample(model, solver, grid=grid, template=template)`` gives x. Works for any
    solver whose questions have finitely many answers; uniformization, which simulates the reverse process itself, gets
    that process's law from `reverse_law`.
    """
    solver.check(model.process, model.length)
    times = grids.check(grid, model.horizon)
    if isinstance(solver, Uniformization):
        require(template is None, "template", template, "the law of Uniformization is solved for without one")
        return reverse_law(model, times)
    free = None
    if template is not None:
        template = check_template(template, 1, model.length, model.process.states)
        free = template == FREE
    result = _empty(model)
    x = torch.zeros((1, model.length), dtype=torch.int64)
    weight, memory = torch.ones(1, dtype=torch.float64), {}
    with torch.no_grad():
        for _, stage in stages(model, solver, times, template):
            if not len(x):
                break
            x, memory, weight = _every_outcome(model, stage, x, memory, weight, solver.evaluations or 2, free)
            rows = unfinished(model.process, x)
            if rows is not None:
                done = torch.ones(len(x), dtype=torch.bool)
                done[rows] = False
                _collect(result, x[done], weight[done])
                x, weight = x[rows], weight[rows]
                memory = {name: value[rows] for name, value in memory.items()}
    _collect(result, x, weight)
    return result


def reverse_law(model: Denoiser, grid: Tensor, steps: int = 400) -> Float64[Tensor, ...]:
    """The law of the reverse process itself from ``grid[0]`` to ``grid[-1]``, finished like every run: what a solver
    without any error of its own would give.

    Solves Kolmogorov's equation on the whole space by Gauss-Legendre collocation of order six, in
    ``u = log(-log alpha)``, in which the intensities stay bounded towards the data.
    """
    times = grids.check(grid, model.horizon)
    start, end = (math.log(-math.log(float(model.process.schedule.alpha(t)))) for t in (times[0], times[-1]))
    everything = _all_states(model.process, model.length)
    with torch.no_grad():
        (_, begin), *_, (_, finish) = stages(model, Uniformization(), times)
        x, _, weight = _every_outcome(model, begin, everything[:1], {}, torch.ones(1, dtype=torch.float64))
        p = torch.zeros(len(everything), dtype=torch.float64)
        p.index_add_(0, _code(x, int(everything.max()) + 1), weight)
        h = (start - end) / steps
        for n in range(steps):
            p = _collocate(lambda u: _generator(model, everything, u), p, start - n * h, h)
        x, _, weight = _every_outcome(model, finish, everything, {}, p)
    result = _empty(model)
    _collect(result, x, weight)
    return result


def _every_outcome(
    model: Denoiser,
    stage: Stage,
    x: Tensor,
    memory: Memory,
    weight: Tensor,
    evaluations: int = 2,
    free: Bool[Tensor, "1 d"] | None = None,
) -> tuple[Tensor, Memory, Tensor]:
    """All states after `stage`, with their memory and probability; the stage looks, and then jumps, `looks` times."""
    outcomes = (model.process.states + (model.process.mask is not None)) ** model.length
    size = max(1, AT_ONCE // outcomes**evaluations)
    parts: list[tuple[Step, Tensor]] = []
    for first in range(0, len(x), size):
        rows = torch.arange(first, min(first + size, len(x)))
        part = {name: value[rows] for name, value in memory.items()}
        parts.append(_unfold(model, stage, x[rows], part, weight[rows], free))
        if len(parts) > 1 and sum(len(step.x) for step, _ in parts) > AT_ONCE:
            parts = [_merge(model, parts)]
    step, weight = parts[0] if len(parts) == 1 else _merge(model, parts)
    return step.x, step.memory, weight


def _unfold(
    model: Denoiser,
    stage: Stage,
    x: Tensor,
    memory: Memory,
    weight: Tensor,
    free: Bool[Tensor, "1 d"] | None,
    foresee: bool = True,
) -> tuple[Step, Tensor]:
    begin, script = (x, memory, weight), []
    while True:
        noise = Every(len(x), script, model.time_free, foresee)
        try:
            reverse = Reverse.start(model, len(x), memory=UNBOUNDED)
            held = reverse if free is None else replace(reverse, free=free.expand(len(x), -1))
            step = stage(held, noise, x, memory)
            noise.settle()
            return _merge(model, [(step, weight)])
        except Fork as fork:
            x, weight = x[fork.parent], weight[fork.parent] * fork.probability
            memory = {name: value[fork.parent] for name, value in memory.items()}
            script = [*(answer[fork.parent] for answer in script), *fork.answers]
        except Unforeseen:
            return _unfold(model, stage, *begin, free, foresee=False)


def _merge(model: Denoiser, parts: list[tuple[Step, Tensor]]) -> tuple[Step, Tensor]:
    """One row for each different state and memory, with the sum of the weights."""
    x = torch.cat([step.x for step, _ in parts])
    weight = torch.cat([w for _, w in parts])
    memory = {name: [step.memory[name] for step, _ in parts] for name in parts[0][0].memory}
    which = torch.zeros(len(x), dtype=torch.int64)
    for column in [_code(x, int(x.max()) + 1), *itertools.chain(*map(_columns, memory.values()))]:
        label = column - column.min()
        if int(which.max() + 1) * int(label.max() + 1) >= 2**63:
            which, label = _ranks(which), _ranks(label)
        which = which * (label.max() + 1) + label
    which = _ranks(which)
    count = int(which.max()) + 1
    first = torch.full((count,), len(x)).scatter_reduce(0, which, torch.arange(len(x)), "amin")
    total = torch.zeros(count, dtype=torch.float64).index_add_(0, which, weight)
    return Step(x[first], {name: _kept(model, values, first) for name, values in memory.items()}), total


def _ranks(column: Tensor) -> Int64[Tensor, " n"]:
    return torch.unique(column, return_inverse=True)[1]


def _columns(values: Sequence[Tensor | Evaluation]) -> list[Tensor]:
    """What tells memories apart, whole numbers for each row. A look is a function of what it saw, and when."""
    if isinstance(values[0], Evaluation):
        evaluations = [value for value in values if isinstance(value, Evaluation)]
        x, times = (
            torch.cat([evaluation.x for evaluation in evaluations]),
            torch.cat([evaluation.t.expand(len(evaluation.x)) for evaluation in evaluations]),
        )
        return [_code(x, int(x.max()) + 1), _ranks(times)]
    columns = torch.cat([value for value in values if isinstance(value, Tensor)]).flatten(1).T
    return list(columns) if columns.dtype == torch.int64 else [_ranks(column) for column in columns]


def _kept(model: Denoiser, values: Sequence[Tensor | Evaluation], rows: Tensor) -> Tensor | Evaluation:
    """The memories at `rows` of all parts put together; nobody counts the evaluations of an exact law."""
    if isinstance(values[0], Evaluation):
        evaluations = [value for value in values if isinstance(value, Evaluation)]
        x, t = torch.cat([evaluation.x for evaluation in evaluations])[rows], evaluations[0].t
        if t.ndim or any(evaluation.t.ndim for evaluation in evaluations):
            t = torch.cat([evaluation.t.expand(len(evaluation.x)) for evaluation in evaluations])[rows]
        return replace(evaluations[0], x=x, t=t, conditionals=model(x, t), samples=None)
    return torch.cat([value for value in values if isinstance(value, Tensor)])[rows]


def _empty(model: Denoiser) -> Tensor:
    size = (model.process.states + (model.process.mask is not None)) ** model.length
    found = f"{size:.3g} sequences, masks included"
    require(size <= MOST_STATES, "model", found, f"exact laws are for at most {MOST_STATES}")
    return torch.zeros((model.process.states,) * model.length, dtype=torch.float64)


def _collect(result: Tensor, x: Tensor, weight: Tensor) -> None:
    result.index_put_(tuple(x.T), weight, accumulate=True)


def _all_states(process: Process, length: int) -> Int64[Tensor, "n d"]:
    values = torch.arange(process.states + (process.mask is not None))
    return torch.cartesian_prod(*[values] * length).view(-1, length)


def _code(x: Int64[Tensor, "n d"], base: int) -> Int64[Tensor, " n"]:
    """A number for each sequence: its digits in `base`, and so its place in `_all_states`."""
    return (x * base ** torch.arange(x.shape[1] - 1, -1, -1)).sum(1)


def _generator(model: Denoiser, everything: Tensor, u: float) -> Float64[Tensor, "n n"]:
    """[i, j]: rate from state i to state j per unit of u = log(-log alpha), run backwards."""
    total = math.exp(u)
    t = model.process.schedule.alpha_inverse(math.exp(-total))
    reverse = Reverse.start(model, len(everything), memory=UNBOUNDED)
    n, d = everything.shape
    rates = reverse.intensity(everything, t).rows(torch.arange(n * d)) * (total / model.process.schedule.sigma(t))
    generator = torch.zeros((n, n), dtype=torch.float64)
    rates, base = rates.view(n, d, -1), int(everything.max()) + 1
    for position in range(d):
        for value in range(model.process.states):
            target = everything.clone()
            target[:, position] = value
            generator[torch.arange(n), _code(target, base)] += rates[:, position, value]
    return generator - torch.diag(generator.sum(1))


def _collocate(generator, p: Tensor, u: float, h: float) -> Tensor:
    """One Gauss-Legendre step of three stages for p' = p G(u), from u down by h."""
    r = math.sqrt(15)
    a = torch.tensor(
        [
            [5 / 36, 2 / 9 - r / 15, 5 / 36 - r / 30],
            [5 / 36 + r / 24, 2 / 9, 5 / 36 - r / 24],
            [5 / 36 + r / 30, 2 / 9 + r / 15, 5 / 36],
        ],
        dtype=torch.float64,
    )
    g = [generator(u - c * h) for c in (0.5 - r / 10, 0.5, 0.5 + r / 10)]
    k = torch.stack([p @ one for one in g])
    for _ in range(60):
        new = torch.stack([(p + h * (a[n] @ k)) @ g[n] for n in range(3)])
        settled = float((new - k).abs().max()) <= 1e-15 * float(new.abs().max())
        k = new
        if settled:
            break
    return p + h * (torch.tensor([5 / 18, 4 / 9, 5 / 18], dtype=torch.float64) @ k)
