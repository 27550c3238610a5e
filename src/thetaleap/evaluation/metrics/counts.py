"""How often values occur at positions, or at pairs of positions, in any number of sequences: counted in one pass, and
looked up in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from ...core.batches import Batches
from ...core.checks import require

Frequencies = Literal["positions", "neighbours", "pairs"]
"""Of residues at positions; of pairs of residues at positions next to each other; at any two positions."""
DENSE = 2**26
"""Entries of a table of counts, at most; beyond that, only of values that occur."""
AT_ONCE = 2**18
"""Values that are counted or looked up at a time: as many as stay near the processor."""
MERGED = 2**21
"""Different values that are merged at a time, at least."""
LARGEST = 2**63
"""Values at all places are numbered up to here."""


@dataclass(frozen=True)
class Cells:
    """What is counted: the values at `places`, each of which is a position or a pair of positions."""

    places: tuple[Int64[Tensor, " p"], ...]
    """The position of each; of pairs the first, and the second."""
    states: int
    """Values are below it."""

    @staticmethod
    def of(of: Frequencies, positions: Int64[Tensor, " m"], states: int) -> Cells:
        """Those at increasing `positions`."""
        if of == "positions":
            return Cells((positions,), states)
        if of == "pairs":
            require(len(positions) > 1, "positions", len(positions), "a pair takes two; give more")
            first, second = torch.triu_indices(len(positions), len(positions), 1)
            return Cells((positions[first], positions[second]), states)
        joined = positions[:-1][positions.diff() == 1]
        apart = "no two are next to each other; give more, or of='pairs'"
        require(len(joined) > 0, "positions", len(positions), apart)
        return Cells((joined, joined + 1), states)

    @property
    def width(self) -> int:
        """Places."""
        return len(self.places[0])

    @property
    def kinds(self) -> int:
        """Values that a place may have."""
        return self.states ** len(self.places)

    @property
    def size(self) -> int:
        """All values at all places."""
        return self.width * self.kinds

    def __call__(self, x: Int64[Tensor, "n d"]) -> Int64[Tensor, "p n"]:
        """The value at each place of each sequence; of pairs, one number for both."""
        columns = x.T.contiguous()
        if len(self.places) == 1:
            return columns.index_select(0, self.places[0])
        first, second = self.places
        return (columns * self.states).index_select(0, first).add_(columns.index_select(0, second))

    def each(self, x: Batches) -> Iterator[Int64[Tensor, "p n"]]:
        """Of all sequences, some at a time."""
        return (self(rows) for rows in x.split(max(1, AT_ONCE // self.width)))


Counts = Callable[[Int64[Tensor, "p n"]], Int32[Tensor, "p n"]]
"""How often values occur at their places."""


def counts(x: Batches, cells: Cells) -> Counts:
    """How often each value occurs in `x` at each place."""
    require(cells.size < LARGEST, "x", cells.states - 1, "is too large a token to count pairs of; give smaller ones")
    return _dense(x, cells) if cells.size <= DENSE else _sparse(x, cells)


def _dense(x: Batches, cells: Cells) -> Counts:
    """By a table of all values at all places."""
    table = torch.zeros((cells.width, cells.kinds), dtype=torch.int32)
    one = torch.ones((1, 1), dtype=torch.int32)
    for found in cells.each(x):
        table.scatter_add_(1, found, one.expand(found.shape))
    return lambda asked: table.gather(1, asked)


def _sparse(x: Batches, cells: Cells) -> Counts:
    """By the values that occur, in order of places. New ones are merged into them when there are as many, so that all are
    sorted a few times and no more."""
    start = torch.arange(cells.width).unsqueeze(1) * cells.kinds
    there, often = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    new, size = list[tuple[np.ndarray, np.ndarray]](), 0
    for found in cells.each(x):
        kinds, count = np.unique((found + start).numpy(), return_counts=True)
        new.append((kinds, count.astype(np.int32)))
        size += len(kinds)
        if size > max(MERGED, len(there)):
            there, often = _merged([(there, often), *new])
            new, size = [], 0
    there, often = _merged([(there, often), *new])

    def look_up(asked: Tensor) -> Tensor:
        kinds, which = np.unique((asked + start).numpy(), return_inverse=True)  # in order they are found much faster
        place, held = find(there, kinds)
        return torch.from_numpy((often[place] * held)[which.reshape(asked.shape)])

    return look_up


def _merged(counted: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The sums of counts of the same values."""
    cells, often = (np.concatenate(parts) for parts in zip(*counted, strict=True))
    order = cells.argsort(kind="stable")  # merges what is sorted already
    cells, often = cells[order], often[order]
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    return cells[starts], np.add.reduceat(often, starts)


def find(among: Int64[np.ndarray, " m"], wanted: Int64[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
    """Where `wanted` stand in a sorted array that is not empty, and whether they do."""
    place = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return place, among[place] == wanted
