"""Any small joint law, as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import probability_table, require, require_count
from ...core.evaluation import Conditionals, Duplicates
from ...core.noise import Use, philox
from ...core.processes import Process, require_process
from ._common import MOST_ENTRIES, Law, OnDemand, checked_horizon


@dataclass(frozen=True, eq=False)
class Joint(Law):
    """A table of probabilities of all sequences, under any process."""

    p0: Float64[Tensor, " ..."]
    table: Callable[[float], Tensor] = field(repr=False)

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        states, length = self.process.states, self.length
        base = states + (self.process.mask is not None)
        code = (x * base ** torch.arange(length - 1, -1, -1)).sum(1)
        same = Duplicates(code, base**length)
        if self.process.mask is not None:
            return OnDemand(lambda positions: _neighbours(self.table(0.0), code, x, positions, states, base, 0), same)
        if t.ndim == 0:
            table, apart = self.table(float(t)), states**length
            return OnDemand(lambda positions: _neighbours(table, code, x, positions, states, base, apart), same)
        return OnDemand(lambda positions: self._summed(x, t, positions))

    def _summed(self, x: Tensor, t: Tensor, positions: Tensor) -> Float64[Tensor, "n S"]:
        """Sum the table against the likelihoods of all other positions, for rows with times of their own."""
        row, length, states = positions // self.length, self.length, self.process.states
        asked = torch.zeros(x.numel(), dtype=torch.int64).index_fill(0, positions, 1).view_as(x)
        others = asked.sum(1, keepdim=True) > asked  # the rows of a position ask about all others
        likelihood = torch.full((*x.shape, states), torch.nan, dtype=torch.float64)
        likelihood[others] = self.process.likelihood(x[others], t.unsqueeze(1).expand_as(x)[others].unsqueeze(1))
        result = torch.empty((len(positions), states), dtype=torch.float64)
        for position in range(length):
            here = torch.nonzero(positions % length == position).flatten()
            weights = self.p0.movedim(position, 0).reshape(1, states, *[states] * (length - 1))
            for other in reversed([m for m in range(length) if m != position]):
                factor = likelihood[row[here], other]
                weights = (weights * factor.view(len(here), *[1] * (weights.ndim - 2), states)).sum(-1)
            result[here] = weights.expand(len(here), states)
        return result

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        return self.p0[tuple(self.tokens(x).T)].log()

    def entropy(self) -> float:
        return float(torch.special.entr(self.p0).sum())

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        require_count("num", num)
        cdf = self.p0.flatten().cumsum(0)
        u = torch.from_numpy(philox(seed, (0, 0, 0, Use.TRUTH), num)) * cdf[-1]
        last = int(torch.nonzero(self.p0.flatten())[-1])
        flat = torch.searchsorted(cdf, u, right=True).clamp_max(last)  # u may round up to the total
        return torch.stack(torch.unravel_index(flat, self.p0.shape), 1)


def joint(p0: Tensor, process: Process, horizon: float | None = None) -> Joint:
    """The model of a small joint law: ``p0[x_1, ..., x_d]`` is the probability of the sequence x."""
    require_process(process)
    p = probability_table("p0", p0)
    states = process.states
    require(p.ndim > 0 and set(p.shape) == {states}, "p0 shape", tuple(p.shape), f"give (S,)*d with S = {states}")
    size = (states + (process.mask is not None)) ** p.ndim
    require(size <= MOST_ENTRIES, "p0 entries", size, f"tables of at most {MOST_ENTRIES} entries; use markov_chain")
    if process.mask is None:
        table = lru_cache(maxsize=16)(lambda t: _leave_one_out(p, process, t))
    else:
        marginals = p
        for axis in range(p.ndim):  # the value S stands for a position summed out
            marginals = torch.cat([marginals, marginals.sum(axis, keepdim=True)], axis)
        marginals = marginals.flatten()

        def table(t: float) -> Tensor:
            return marginals

    return Joint(process, checked_horizon(process, horizon), p.ndim, p, table)


def _leave_one_out(p0: Tensor, process: Process, t: float) -> Float64[Tensor, " size"]:
    """For each position, ``P(clean value there, noised values elsewhere)``; the tables of all positions end to end."""
    states = process.states
    forward = process.likelihood(torch.arange(states), torch.tensor(t, dtype=torch.float64)).T.contiguous()
    tables = []
    for position in range(p0.ndim):
        noised = p0
        for axis in range(p0.ndim):
            if axis != position:
                noised = (noised.movedim(axis, -1) @ forward.T).movedim(-1, axis)
        tables.append(noised.flatten())
    return torch.cat(tables)


def _neighbours(
    table: Tensor, code: Tensor, x: Tensor, positions: Tensor, states: int, base: int, apart: int
) -> Float64[Tensor, "n S"]:
    """Entries of `table` at the sequences that differ from x at `positions` only, for every clean value there.

    The table is indexed by the `code` of a sequence, its digits in `base`; each position has its own, `apart`
    entries on.
    """
    length = x.shape[1]
    row, position = positions // length, positions % length
    stride = (base ** torch.arange(length - 1, -1, -1))[position]
    start = code[row] + apart * position - x.flatten()[positions] * stride
    return table[start.unsqueeze(1) + torch.arange(states) * stride.unsqueeze(1)]
