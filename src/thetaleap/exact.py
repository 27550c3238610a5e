"""Exact output laws on small spaces, from the solvers' own code.

Each step is run with noise that answers every way at once (`enumeration.Every`). What coincides after a step is merged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .control import grids
from .control.base import Method, Walk, control_of
from .control.loop import Stage, stages, unfinished
from .core.checks import require, require_kind
from .core.evaluation import Denoiser, Evaluation, as_model
from .core.free import FREE, Template, check_template
from .core.memory import Memory, leaves, mapped, take
from .core.processes import Process
from .core.reverse import Reverse
from .core.times import shared
from .core.wrapped import inspected
from .enumeration import Every, Fork, Unforeseen
from .solvers.base import Step
from .solvers.uniformization import Uniformization

MOST_STATES = 2**14
AT_ONCE, UNBOUNDED = 2**19, 2**60
PRECISE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-14}


def law(
    model: Denoiser | str, solver: Method, grid: Tensor | Sequence[float], template: Template | None = None
) -> Float64[Tensor, " ..."]:
    """The exact law of the samples that `solver` draws along `grid`, as a tensor of shape (S,)*d.

    Entry x is the probability that ``sample(model, solver, grid=grid, template=template)`` gives x. Works for any
    solver whose questions have finitely many answers; uniformization, which simulates the reverse process itself, gets
    that process's law from `reverse_law`.
    """
    model = as_model(model)
    require_kind("solver", solver, Method, "give a solver with its parameters, for example Trapezoidal(theta=0.5)")
    control, times = control_of(solver), grids.check(grid, model.horizon)
    control.check(model.process, model.length)
    if isinstance(control.solver, Uniformization):
        require(template is None, "template", template, "the law of Uniformization is solved for without one")
        return reverse_law(model, times)
    given = None
    if template is not None:
        template = check_template(template, 1, model)
        given = template != FREE
    inspected(model, None if template is None else template[0])
    result = _empty(model)
    reverse = Reverse.begin(model, 1, start=float(times[0]), given=given, memory=UNBOUNDED)
    x = torch.zeros((1, model.length), dtype=torch.int64)
    weight, memory = torch.ones(1, dtype=torch.float64), ()
    jumps = math.ceil((control.solver.evaluations or 2) / control.solver.parts)
    with torch.no_grad():
        for _, stage in stages(model, control, times, template):
            if not len(x):
                break
            x, memory, weight = _every_outcome(reverse, stage, x, memory, weight, jumps)
            rows = unfinished(control, _copies(reverse, len(x)), x)
            if rows is not None:
                done = torch.ones(len(x), dtype=torch.bool)
                done[rows] = False
                _collect(result, x[done], weight[done])
                x, weight, memory = x[rows], weight[rows], take(memory, rows)
    _collect(result, x, weight)
    return result


def reverse_law(model: Denoiser | str, grid: Tensor | Sequence[float]) -> Float64[Tensor, " ..."]:
    """The law of the reverse process itself from ``grid[0]`` to ``grid[-1]``, finished like every run: what a solver
    without any error of its own would give.

    Solves Kolmogorov's equation on the whole space in ``u = log(-log alpha)``, in which the intensities stay bounded
    towards the data.
    """
    from scipy.integrate import solve_ivp

    model = inspected(model)
    times = grids.check(grid, model.horizon)
    last = float(times[-1])
    require(
        float(model.process.schedule.alpha(last)) < 1,
        "grid end",
        last,
        "intensities grow without bound there; end above 0",
    )
    start, end = (math.log(-math.log(float(model.process.schedule.alpha(t)))) for t in (times[0], times[-1]))
    everything, reverse = _all_states(model.process, model.length), Reverse.begin(model, 1, memory=UNBOUNDED)
    with torch.no_grad():
        (_, begin), *_, (_, finish) = stages(model, Walk(Uniformization()), times)
        x, _, weight = _every_outcome(reverse, begin, everything[:1], (), torch.ones(1, dtype=torch.float64))
        p = torch.zeros(len(everything), dtype=torch.float64)
        p.index_add_(0, _code(x, int(everything.max()) + 1), weight)
        way = solve_ivp(
            lambda u, p: -(p @ _generator(model, everything, u).numpy()), (start, end), p.numpy(), "DOP853", **PRECISE
        )
        x, _, weight = _every_outcome(reverse, finish, everything, (), torch.from_numpy(way.y[:, -1].clip(0)))
    result = _empty(model)
    _collect(result, x, weight)
    return result


def _copies(reverse: Reverse, count: int) -> Reverse:
    """`reverse` of one sample for so many states of it, whose evaluations nobody counts."""
    counts = torch.zeros(count, dtype=torch.int64)
    given = None if reverse.given is None else reverse.given.expand(count, -1)
    return replace(reverse, nfe=counts, spent=counts.clone(), samples=counts, given=given)


def _every_outcome(
    reverse: Reverse, stage: Stage, x: Tensor, memory: Memory, weight: Tensor, evaluations: int = 2
) -> tuple[Tensor, Memory, Tensor]:
    """All states after `stage`, with their memory and probability; it evaluates, and then jumps, `evaluations` times."""
    process = reverse.process
    outcomes = (process.states + (process.mask is not None)) ** reverse.model.length
    size = max(1, AT_ONCE // outcomes**evaluations)
    parts: list[tuple[Step, Tensor]] = []
    for first in range(0, len(x), size):
        rows = torch.arange(first, min(first + size, len(x)))
        parts.append(_unfold(reverse, stage, x[rows], take(memory, rows), weight[rows]))
        if len(parts) > 1 and sum(len(step.x) for step, _ in parts) > AT_ONCE:
            parts = [_merge(reverse.model, parts)]
    step, weight = parts[0] if len(parts) == 1 else _merge(reverse.model, parts)
    return step.x, step.memory, weight


def _unfold(
    reverse: Reverse, stage: Stage, x: Tensor, memory: Memory, weight: Tensor, foresee: bool = True
) -> tuple[Step, Tensor]:
    begin, script = (x, memory, weight), []
    while True:
        noise = Every(len(x), script, reverse.model.time_free, foresee)
        try:
            step = stage(_copies(reverse, len(x)), noise, x, memory)
            noise.settle()
            return _merge(reverse.model, [(step, weight)])
        except Fork as fork:
            x, weight = x[fork.parent], weight[fork.parent] * fork.probability
            memory = take(memory, fork.parent)
            script = [*(answer[fork.parent] for answer in script), *fork.answers]
        except Unforeseen:
            return _unfold(reverse, stage, *begin, foresee=False)


def _merge(model: Denoiser, parts: list[tuple[Step, Tensor]]) -> tuple[Step, Tensor]:
    """One row for each different state and memory, with the sum of the weights."""
    x = torch.cat([step.x for step, _ in parts])
    weight = torch.cat([w for _, w in parts])
    memories = [step.memory for step, _ in parts]
    which = torch.zeros(len(x), dtype=torch.int64)
    kept = zip(*(leaves(memory) for memory in memories), strict=True)
    for column in [_code(x, int(x.max()) + 1), *itertools.chain(*map(_columns, kept))]:
        label = column - column.min()
        if int(which.max() + 1) * int(label.max() + 1) >= 2**63:
            which, label = _ranks(which), _ranks(label)
        which = which * (label.max() + 1) + label
    which = _ranks(which)
    count = int(which.max()) + 1
    first = torch.full((count,), len(x)).scatter_reduce(0, which, torch.arange(len(x)), "amin")
    total = torch.zeros(count, dtype=torch.float64).index_add_(0, which, weight)
    return Step(x[first], mapped(lambda *values: _kept(model, values, first), *memories)), total


def _ranks(column: Tensor) -> Int64[Tensor, " n"]:
    return torch.unique(column, return_inverse=True)[1]


def _columns(values: Sequence[Tensor | Evaluation]) -> list[Tensor]:
    """What distinguishes memories, whole numbers for each row. An evaluation is a function of its states and time."""
    if isinstance(values[0], Evaluation):
        evaluations = [value for value in values if isinstance(value, Evaluation)]
        x = torch.cat([one.x for one in evaluations])
        return [_code(x, int(x.max()) + 1), _ranks(torch.cat([one.t.expand(len(one.x)) for one in evaluations]))]
    table = torch.cat([value for value in values if isinstance(value, Tensor)])
    columns = table.view(len(table), -1).T
    return list(columns) if columns.dtype == torch.int64 else [_ranks(column) for column in columns]


def _kept(model: Denoiser, values: Sequence[Tensor | Evaluation], rows: Tensor) -> Tensor | Evaluation:
    """The memories at `rows` of all parts put together; the evaluations are made anew, which keeps duplicates known."""
    if isinstance(values[0], Evaluation):
        evaluations = [value for value in values if isinstance(value, Evaluation)]
        x = torch.cat([one.x for one in evaluations])[rows]
        t = shared(torch.cat([one.t.expand(len(one.x)) for one in evaluations])[rows])
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
    reverse = Reverse.begin(model, len(everything), memory=UNBOUNDED)
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
