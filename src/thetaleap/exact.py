"""Exact output laws on small spaces, from the solvers' own code.

`Every` is a noise source that answers each question in every possible way. It cannot do so in the middle of a
solver's step, so it stops the step there, and the step is run again on as many copies of each state as there are
answers, with those answers forced. What coincides after a step is merged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from . import grids
from .checks import require
from .denoiser import Denoiser, Look
from .processes import Process
from .reverse import Reverse
from .sampling import Stage, stages, unfinished
from .solvers.base import Memory, Solver, Step
from .solvers.uniformization import Uniformization

MOST_STATES = 2**14
AT_ONCE = 2**19


def law(model: Denoiser, solver: Solver, grid: Tensor) -> Float64[Tensor, ...]:
    """The exact law of the samples that `solver` draws along `grid`, as a tensor of shape (S,)*d.

    Entry x is the probability that ``sample(model, solver, grid=grid)`` gives x. Works for any solver whose
    questions have finitely many answers; uniformization, which simulates the reverse process itself, gets that
    process's law from `reverse_law`.
    """
    solver.check(model.process, model.length)
    times = grids.check(grid, model.horizon)
    if isinstance(solver, Uniformization):
        return reverse_law(model, times)
    result = _empty(model)
    x = torch.zeros((1, model.length), dtype=torch.int64)
    weight, memory = torch.ones(1, dtype=torch.float64), {}
    with torch.no_grad():
        for _, stage in stages(model, solver, times):
            if not len(x):
                break
            x, memory, weight = _every_outcome(model, stage, x, memory, weight, solver.evaluations or 2)
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


class _Fork(Exception):
    """A question with several answers: row `parent` of the present batch goes on as `answer` with `probability`."""

    def __init__(self, parent: Tensor, answer: Tensor, probability: Tensor) -> None:
        self.parent, self.answer, self.probability = parent, answer, probability


@dataclass(frozen=True)
class Every:
    """A `Noise` that answers from a script, and forks where the script ends."""

    batch: int
    script: list[Tensor]
    time_free: bool
    rows: Tensor | None = None
    asked: list[str] = field(default_factory=list)

    def __call__(self, label: str) -> Every:
        return self

    def __getitem__(self, rows: Tensor) -> Every:
        inner = rows if self.rows is None else self.rows[rows]
        return Every(self.batch, self.script, self.time_free, inner, self.asked)

    def _scripted(self) -> Tensor | None:
        self.asked.append("")
        if len(self.asked) > len(self.script):
            return None
        answer = self.script[len(self.asked) - 1]
        return answer if self.rows is None else answer[self.rows]

    def _categorical(self, sites: Tensor, length: int, weights: Tensor) -> _Fork:
        """Fork over all values at all `sites`, independent with probabilities `weights`."""
        owner = sites // length if self.rows is None else self.rows[sites // length]
        column, parent = sites % length, torch.arange(self.batch)
        answer = torch.zeros((self.batch, length), dtype=torch.int64)
        probability = torch.ones(self.batch, dtype=torch.float64)
        for site in range(length):
            here = column == site
            table = torch.zeros((self.batch, weights.shape[1]), dtype=torch.float64)
            table[:, 0] = 1  # rows that are not asked
            table[owner[here]] = weights[here]
            branch, value = torch.nonzero(table[parent] > 0, as_tuple=True)
            probability = probability[branch] * table[parent[branch], value]
            parent, answer = parent[branch], answer[branch]
            answer[:, site] = value
        return _Fork(parent, answer, probability)

    def flip(self, probability: Float64[Tensor, "b d"]) -> Int64[Tensor, " n"]:
        answer = self._scripted()
        if answer is None:
            p, length = probability.flatten(), probability.shape[1]
            raise self._categorical(torch.arange(len(p)), length, torch.stack([1 - p, p], 1))
        return torch.nonzero(answer.flatten()).flatten()

    def choose(
        self,
        sites: Int64[Tensor, " n"],
        length: int,
        weights: Float64[Tensor, "k S"],
        stay: bool,
        which: Int64[Tensor, " n"] | None = None,
    ) -> Int64[Tensor, " n"]:
        answer = self._scripted()
        if answer is None:
            weights = weights if which is None else weights[which]
            total = weights.sum(1, keepdim=True)
            # a shortfall below zero is the rounding of a full row
            weights = torch.cat([weights, (1 - total).clamp_min(0)], 1) if stay else weights / total
            raise self._categorical(sites, length, weights)
        return answer.flatten()[sites]

    def pick(self, log_weights: Float64[Tensor, "b d"], count: Int64[Tensor, " b"]) -> Bool[Tensor, "b d"]:
        answer = self._scripted()
        if answer is None:
            raise self._subsets(log_weights, count)
        return answer.bool()

    def _subsets(self, log_weights: Tensor, count: Tensor) -> _Fork:
        rows = range(self.batch) if self.rows is None else self.rows.tolist()
        asked = {row: n for n, row in enumerate(rows)}
        parents, answers, chances = [], [], []
        for row in range(self.batch):
            if row not in asked:
                outcomes = {(): 1.0}
            else:
                n = asked[row]
                outcomes = plackett_luce(log_weights[n].exp().tolist(), int(count[n]))
            for sites, chance in outcomes.items():
                parents.append(row)
                answers.append([float(site in sites) for site in range(log_weights.shape[1])])
                chances.append(chance)
        return _Fork(torch.tensor(parents), torch.tensor(answers), torch.tensor(chances, dtype=torch.float64))

    def clock(self, sites: Bool[Tensor, "b d"]) -> Float64[Tensor, "b d"]:
        """Every order of the sites, each with equally spaced times to stand for all."""
        if not self.time_free:
            raise ValueError(
                "model: its conditionals depend on time, and this solver looks at it at continuous random times, so "
                "that its law is an integral; use exact.reverse_law, which solves for it"
            )
        answer = self._scripted()
        if answer is None:
            raise self._orders(sites)
        return answer

    def _orders(self, sites: Tensor) -> _Fork:
        full = torch.zeros((self.batch, sites.shape[1]), dtype=torch.bool)
        full[slice(None) if self.rows is None else self.rows] = sites
        parents, answers, chances = [], [], []
        for row in range(self.batch):
            places = torch.nonzero(full[row]).flatten().tolist()
            for order in itertools.permutations(range(len(places))):
                times = torch.zeros(sites.shape[1], dtype=torch.float64)
                times[places] = (torch.tensor(order, dtype=torch.float64) + 0.5) / max(1, len(places))
                parents.append(row)
                answers.append(times)
                chances.append(1 / math.factorial(len(places)))
        return _Fork(torch.tensor(parents), torch.stack(answers), torch.tensor(chances, dtype=torch.float64))

    def uniform(self, batch: int) -> Float64[Tensor, " b"]:
        raise ValueError("solver: it asks for continuous numbers, which cannot be enumerated; use exact.reverse_law")


def plackett_luce(weights: list[float], count: int) -> dict[tuple[int, ...], float]:
    """Probabilities of the sets that `count` draws without replacement, with odds `weights`, may give."""
    sets: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(count):
        grown: dict[tuple[int, ...], float] = {}
        for chosen, chance in sets.items():
            left = {n: w for n, w in enumerate(weights) if n not in chosen and w > 0}
            total = sum(left.values())
            for n, w in left.items():
                key = tuple(sorted((*chosen, n)))
                grown[key] = grown.get(key, 0.0) + chance * w / total
        sets = grown
    return sets


def _every_outcome(
    model: Denoiser, stage: Stage, x: Tensor, memory: Memory, weight: Tensor, looks: int = 2
) -> tuple[Tensor, Memory, Tensor]:
    """All states after `stage`, with their memory and probability; the stage looks, and then jumps, `looks` times."""
    size = max(1, AT_ONCE // (model.process.states**model.length) ** 2)
    parts: list[tuple[Step, Tensor]] = []
    for first in range(0, len(x), size):
        rows = torch.arange(first, min(first + size, len(x)))
        part = {name: value[rows] for name, value in memory.items()}
        parts.append(_unfold(model, stage, x[rows], part, weight[rows]))
        if len(parts) > 1 and sum(len(step.x) for step, _ in parts) > AT_ONCE:
            parts = [_merge(model, parts)]
    step, weight = parts[0] if len(parts) == 1 else _merge(model, parts)
    return step.x, step.memory, weight


def _unfold(model: Denoiser, stage: Stage, x: Tensor, memory: Memory, weight: Tensor) -> tuple[Step, Tensor]:
    script: list[Tensor] = []
    while True:
        reverse = Reverse(model, torch.zeros(len(x), dtype=torch.int64))
        try:
            return _merge(model, [(stage(reverse, Every(len(x), script, model.time_free), x, memory), weight)])
        except _Fork as fork:
            x, weight = x[fork.parent], weight[fork.parent] * fork.probability
            memory = {name: value[fork.parent] for name, value in memory.items()}
            script = [*(answer[fork.parent] for answer in script), fork.answer]


def _merge(model: Denoiser, parts: list[tuple[Step, Tensor]]) -> tuple[Step, Tensor]:
    """One row for each different state and memory, with the sum of the weights."""
    x = torch.cat([step.x for step, _ in parts])
    weight = torch.cat([w for _, w in parts])
    memory = {name: [step.memory[name] for step, _ in parts] for name in parts[0][0].memory}
    which = torch.zeros(len(x), dtype=torch.int64)
    for column in [_code(x, int(x.max()) + 1), *itertools.chain(*map(_columns, memory.values()))]:
        _, label = torch.unique(column, return_inverse=True)
        _, which = torch.unique(which * (int(label.max()) + 1) + label, return_inverse=True)
    count = int(which.max()) + 1
    first = torch.full((count,), len(x)).scatter_reduce(0, which, torch.arange(len(x)), "amin")
    total = torch.zeros(count, dtype=torch.float64).index_add_(0, which, weight)
    return Step(x[first], {name: _kept(model, values, first) for name, values in memory.items()}), total


def _columns(values: Sequence[Tensor | Look]) -> list[Tensor]:
    """What tells memories apart, a number for each row. A look is a function of the sequences looked at."""
    if isinstance(values[0], Look):
        x = torch.cat([value.x for value in values if isinstance(value, Look)])
        return [_code(x, int(x.max()) + 1)]
    return list(torch.cat([value for value in values if isinstance(value, Tensor)]).flatten(1).T)


def _kept(model: Denoiser, values: Sequence[Tensor | Look], rows: Tensor) -> Tensor | Look:
    """The memories at `rows` of all parts put together; nobody counts the evaluations of an exact law."""
    if isinstance(values[0], Look):
        looks = [value for value in values if isinstance(value, Look)]
        x = torch.cat([look.x for look in looks])[rows]
        return replace(looks[0], x=x, conditionals=model(x, looks[0].t), rows=None)
    return torch.cat([value for value in values if isinstance(value, Tensor)])[rows]


def _empty(model: Denoiser) -> Tensor:
    size = (model.process.states + (model.process.mask is not None)) ** model.length
    require(
        size <= MOST_STATES,
        "model",
        f"{size:.3g} sequences, masks included",
        f"exact laws are for at most {MOST_STATES}",
    )
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
    reverse = Reverse(model, torch.zeros(len(everything), dtype=torch.int64))
    n, d = everything.shape
    rates = reverse.intensity(everything, t).rows(torch.arange(n * d)) * (total / model.process.schedule.sigma(t))
    generator = torch.zeros((n, n), dtype=torch.float64)
    rates, base = rates.view(n, d, -1), int(everything.max()) + 1
    for site in range(d):
        for value in range(model.process.states):
            target = everything.clone()
            target[:, site] = value
            generator[torch.arange(n), _code(target, base)] += rates[:, site, value]
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
