"""Laws that are a rule: all equal, one replaced, a random permutation, a fixed sum, or one of a list.

What was drawn in parallel breaks a rule easily, and a law says nothing of what it cannot produce. A corrector asks all the
same; the answer here is that of the nearest sequences of the law, those that differ from what is seen at the fewest
positions: the limit of a law that errs at each position with a probability that goes to 0.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ...core.checks import is_whole, probability_table, require, require_count
from ...core.evaluation import Conditionals
from ...core.processes import Masked, Process
from ._common import MOST_ENTRIES, Law, OnDemand, ancestral, checked_horizon, masked, on_demand

Rows = Callable[[Int64[Tensor, " n"]], Float64[Tensor, "n S"]]
MOST_SQUARES = 4
"""The order of the largest Latin squares: there are 576 of order 4, and 161 280 of order 5."""


@dataclass(frozen=True, eq=False)
class Rule(Law):
    """The base: likelihood by a test of the rule, and true samples from the conditionals, from left to right."""

    process: Masked

    @abstractmethod
    def rows(self, x: Int64[Tensor, "b d"]) -> Rows:
        """Weights of the values at positions of `x`, given what is seen at all others."""

    @abstractmethod
    def allowed(self, x: Int64[Tensor, "b d"]) -> Bool[Tensor, " b"]:
        """Which sequences keep the rule."""

    @abstractmethod
    def entropy(self) -> float:
        """Exact entropy of the data law, in nats."""

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        return OnDemand(self.rows(x))

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        """All sequences that keep the rule are equally likely."""
        each = torch.tensor(-self.entropy(), dtype=torch.float64)
        return torch.where(self.allowed(self.tokens(x)), each, -math.inf)

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        def weights(position: int, columns: list[Tensor]) -> Tensor:
            x = torch.full((num, self.length), self.process.mask)
            for n, column in enumerate(columns):
                x[:, n] = column
            return self.rows(x)(torch.arange(num) * self.length + position)

        return ancestral(num, seed, self.length, weights)

    def seen(self, x: Int64[Tensor, "b d"], positions: Int64[Tensor, " n"]) -> Int64[Tensor, "n S"]:
        """How often each value is seen at the other positions."""
        every = torch.zeros((len(x), self.process.states + 1), dtype=torch.int64)
        every.scatter_add_(1, x, torch.ones_like(x))
        others = every[positions // self.length]
        others.scatter_add_(1, x.flatten()[positions].unsqueeze(1), torch.full((len(positions), 1), -1))
        return others[:, :-1]


@dataclass(frozen=True, eq=False)
class Copy(Rule):
    """All positions hold the same value, v with probability ``values[v]``."""

    values: Float64[Tensor, " S"]

    def rows(self, x: Int64[Tensor, "b d"]) -> Rows:
        def rows(positions: Tensor) -> Tensor:
            others = self.seen(x, positions).masked_fill(self.values == 0, -1)
            return self.values * (others == others.amax(1, keepdim=True))

        return rows

    def allowed(self, x: Int64[Tensor, "b d"]) -> Bool[Tensor, " b"]:
        return (x == x[:, :1]).all(1)

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        return torch.where(self.allowed(self.tokens(x)), self.values.log()[x[:, 0]], -math.inf)

    def entropy(self) -> float:
        return float(torch.special.entr(self.values).sum())


@dataclass(frozen=True, eq=False)
class Replace(Rule):
    """`base`, with `value` in place of one of its tokens, at a position that is uniformly random."""

    base: Int64[Tensor, " d"]
    value: int

    def rows(self, x: Int64[Tensor, "b d"]) -> Rows:
        # positions that may well be the one: masks, and values that are wrong there either way
        free = (x != self.base) & (x != self.value)

        def rows(positions: Tensor) -> Tensor:
            sample, found = positions // self.length, self.seen(x, positions)[:, self.value] > 0
            others = free.sum(1)[sample] - free.flatten()[positions].long()
            here = torch.where(found, 0.0, 1 / (others + 1).double())
            table = torch.zeros((len(positions), self.process.states), dtype=torch.float64)
            table[torch.arange(len(positions)), self.base[positions % self.length]] = 1 - here
            table[:, self.value] = here
            return table

        return rows

    def allowed(self, x: Int64[Tensor, "b d"]) -> Bool[Tensor, " b"]:
        return ((x == self.value).sum(1) == 1) & ((x == self.base) | (x == self.value)).all(1)

    def entropy(self) -> float:
        return math.log(self.length)


@dataclass(frozen=True, eq=False)
class Shuffle(Rule):
    """Every value once, in an order that is uniformly random."""

    def rows(self, x: Int64[Tensor, "b d"]) -> Rows:
        return lambda positions: (self.seen(x, positions) == 0).double()

    def allowed(self, x: Int64[Tensor, "b d"]) -> Bool[Tensor, " b"]:
        return (x.sort(1).values == torch.arange(self.length)).all(1)

    def entropy(self) -> float:
        return math.lgamma(self.length + 1)


@dataclass(frozen=True, eq=False)
class Parity(Rule):
    """Uniform but for the sum of all values, which is `total` modulo S."""

    total: int

    def rows(self, x: Int64[Tensor, "b d"]) -> Rows:
        masks = x == self.process.mask
        total = torch.where(masks, 0, x).sum(1)

        def rows(positions: Tensor) -> Tensor:
            sample, own = positions // self.length, torch.where(masks, 0, x).flatten()[positions]
            open_ = masks.sum(1)[sample] > masks.flatten()[positions].long()
            wanted = (self.total - total[sample] + own) % self.process.states
            only = torch.nn.functional.one_hot(wanted, self.process.states)
            return torch.where(open_.unsqueeze(1), 1, only).double()

        return rows

    def allowed(self, x: Int64[Tensor, "b d"]) -> Bool[Tensor, " b"]:
        return x.sum(1) % self.process.states == self.total

    def entropy(self) -> float:
        return (self.length - 1) * math.log(self.process.states)


@dataclass(frozen=True, eq=False)
class Listed(Rule):
    """One of a list of sequences, all as likely."""

    sequences: Int64[Tensor, "n d"]
    layout: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        return on_demand(self._weights, x, self.process.states, 4 * self.sequences.numel())

    def _weights(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, "b d S"]:
        """How many of the nearest sequences have each value, nearest in all positions but the one asked about."""
        seen = (x != self.process.mask).unsqueeze(1)
        wrong = (x.unsqueeze(1) != self.sequences) & seen
        others = wrong.sum(2, dtype=torch.int32, keepdim=True) - wrong.int()
        near = (others == others.amin(1, keepdim=True)).double()
        values = torch.nn.functional.one_hot(self.sequences, self.process.states).double()
        return torch.einsum("bnd,nds->bds", near, values)

    def rows(self, x: Int64[Tensor, "b d"]) -> Rows:
        return on_demand(self._weights, x, self.process.states, 4 * self.sequences.numel()).rows

    def allowed(self, x: Int64[Tensor, "b d"]) -> Bool[Tensor, " b"]:
        parts = x.split(max(1, MOST_ENTRIES // self.sequences.numel()))
        return torch.cat([(part.unsqueeze(1) == self.sequences).all(2).any(1) for part in parts])

    def entropy(self) -> float:
        return math.log(len(self.sequences))


def copy(length: int, values: Tensor | int, process: Process | None = None, horizon: float | None = None) -> Copy:
    """All positions equal: `values` is the law of the value, or how many there are, all as likely."""
    if is_whole(values):
        require_count("values", values, least=2)
        values = torch.full((int(values),), 1 / int(values), dtype=torch.float64)
    law = probability_table("values", values)  # pyright: ignore[reportArgumentType]
    require(law.ndim == 1 and len(law) > 1, "shape of values", tuple(law.shape), "give the probability of each value")
    require_count("length", length)
    process = masked(process, len(law), "law of copies")
    return Copy(process, checked_horizon(process, horizon), length, law)


def replace(base: Sequence[int] | Tensor, value: int, states: int | None = None) -> Replace:
    """`base` with one token, at a random position, replaced by `value`, which is not in it."""
    tokens = torch.as_tensor(base)
    good = tokens.ndim == 1 and len(tokens) > 0 and tokens.dtype == torch.int64 and int(tokens.min()) >= 0
    require(good, "base", base, "give a row of token numbers")
    require(is_whole(value) and value >= 0, "value", value, "give a token number")
    require(value not in tokens.tolist(), "value", value, "is in base; give another one")
    least = max(int(tokens.max()), value) + 1
    states = least if states is None else states
    require_count("states", states, least=least)
    process = Masked(states)
    return Replace(process, checked_horizon(process, None), len(tokens), tokens, value)


def shuffle(length: int, process: Process | None = None, horizon: float | None = None) -> Shuffle:
    """A random permutation of `length` values."""
    require_count("length", length, least=2)
    process = masked(process, length, "permutation")
    return Shuffle(process, checked_horizon(process, horizon), length)


def parity(length: int, states: int = 2, total: int = 0) -> Parity:
    """Values whose sum is `total` modulo `states`, and random otherwise."""
    require_count("length", length)
    require_count("states", states, least=2)
    require(is_whole(total) and 0 <= total < states, "total", total, f"give a number from 0 to {states - 1}")
    process = Masked(states)
    return Parity(process, checked_horizon(process, None), length, total)


def latin(order: int) -> Listed:
    """A random Latin square of `order` rows and columns: each value once in every row and every column."""
    require_count("order", order, least=2)
    remedy = f"all squares are listed; give at most {MOST_SQUARES}"
    require(order <= MOST_SQUARES, "order", order, remedy)
    squares = [()]
    for _ in range(order):
        squares = [
            (*square, row)
            for square in squares
            for row in itertools.permutations(range(order))
            if all(value != above[n] for above in square for n, value in enumerate(row))
        ]
    table = torch.tensor(squares).flatten(1)
    return _listed(table, order, (order, order))


def ascending(length: int, states: int) -> Listed:
    """A random sequence that never falls, as sorted numbers do."""
    require_count("length", length)
    require_count("states", states, least=2)
    size = math.comb(states + length - 1, length) * length
    require(size <= MOST_ENTRIES, "(length, states)", (length, states), f"a list of {size} tokens; give smaller ones")
    table = torch.tensor(list(itertools.combinations_with_replacement(range(states), length)))
    return _listed(table, states, (length,))


def _listed(table: Int64[Tensor, "n d"], states: int, layout: tuple[int, ...]) -> Listed:
    process = Masked(states)
    return Listed(process, checked_horizon(process, None), table.shape[1], table, layout)
