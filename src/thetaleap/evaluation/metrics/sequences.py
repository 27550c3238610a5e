"""Sets of sequences: how far one is from another in the frequencies of residues and of pairs of them, and how varied
it is. Every figure comes with its standard error.

Distances are squared: the mean, over positions or pairs of positions, of ``sum_a (p_a - q_a)^2``, where p and q are the
frequencies of the values a. This one can be estimated without bias, whatever the number of samples: with ``k(x, y)``
the share of positions (or pairs of positions) at which x and y agree, it is
``E k(x, x') + E k(y, y') - 2 E k(x, y)``, and each mean is taken over different samples. Two sets of one law are 0
apart on average, so that estimates may be below 0. Total variation has no such estimate: between finite samples of one
law it is far above 0, the more so for pairs, and fewer or more varied samples look worse than they are.

The agreement of x with all of a set, the sum of k(x, y) over its y, is how often the values of x occur in it, at their
positions. So values are counted in one pass and looked up in another, and a set may be `Batches` of any number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.batches import Batches
from ...core.checks import require, require_choice
from .counts import DENSE, Cells, Counts, Frequencies, counts
from .measured import Measured, jackknife, mean

__all__ = [
    "KINDS",
    "Frequencies",
    "Measured",
    "affordable",
    "frequency_distance",
    "frequency_gap",
    "mean",
    "pairwise_distance",
    "position_entropy",
]

Sequences = Int64[Tensor, "_ _"] | Batches
"""A set of samples, of shape (num, d)."""
KINDS = get_args(Frequencies)
COMPARED = 2**22
"""Pairs of samples that are compared at a time."""
SPARSE = 2**25
"""Cells that `affordable` samples have together, where a table of all does not fit into memory."""
FEW = 4096
"""Of each set so many can always be afforded."""


def frequency_distance(
    x: Sequences,
    reference: Sequences,
    of: Frequencies = "positions",
    positions: Int64[Tensor, " m"] | None = None,
) -> Measured:
    """The squared distance between the frequencies of two sets of samples, without bias: see the module.

    The standard error is the jackknife's, over the samples of both sets. Where the two laws are the same it is too
    large, by a factor of about 1.4, for there the estimate is a degenerate U-statistic.

    Args:
        x: samples, at least 3.
        reference: samples to compare with, at least 3, independent of `x`.
        of: residues at "positions", pairs at "neighbours" (positions l and l + 1), or "pairs" (any two positions).
        positions: those that count, by default all; leave out the ones that were given to the sampler.
    """
    own, others = _sets({"x": x, "reference": reference}, of, positions)
    beyond, part = _Within.of(others), _Part.of(own, others)
    variance = jackknife(part.without) + jackknife(beyond.without - 2 * part.without_reference)
    return Measured(beyond.mean + part.value, math.sqrt(variance))


def frequency_gap(
    x: Sequences,
    y: Sequences,
    reference: Sequences,
    of: Frequencies = "positions",
    positions: Int64[Tensor, " m"] | None = None,
) -> Measured:
    """How much further `x` is from `reference` than `y` is: the difference of two `frequency_distance`.

    Both share the reference, whose noise is the same in both distances, so that the standard error is less than the
    two suggest. Negative if `x` is nearer.
    """
    one, two, others = _sets({"x": x, "y": y, "reference": reference}, of, positions)
    first, second = _Part.of(one, others), _Part.of(two, others)
    shared = 2 * (first.without_reference - second.without_reference)
    variance = jackknife(first.without) + jackknife(second.without) + jackknife(shared)
    return Measured(first.value - second.value, math.sqrt(variance))


def pairwise_distance(x: Sequences, positions: Int64[Tensor, " m"] | None = None) -> Measured:
    """The mean share of positions at which two different samples differ (Hamming distance over their number).

    0 if all are the same. Without bias; the standard error is the jackknife's.
    """
    (chosen,) = _sets({"x": x}, "positions", positions)
    within = _Within.of(chosen)
    return Measured(1 - within.mean, math.sqrt(jackknife(within.without)))


def position_entropy(x: Sequences, positions: Int64[Tensor, " m"] | None = None) -> Measured:
    """The mean over positions of the entropy of the values there, in nats.

    The entropy of frequencies is too low, by about (values - 1)/(2 num). That is corrected by the jackknife,
    ``n H - (n - 1) mean H_without_one``, which leaves a bias of order 1/num^2. So is the standard error found.
    """
    (batches,), cells = _checked({"x": x}, "positions", positions)
    num, held = len(batches), counts(batches, cells)

    def terms(values: Int64[Tensor, "w n"]) -> Float64[Tensor, "2 n"]:
        count = held(values).to(torch.float64)
        # a value of count c adds c log c: log c for each sample that holds it. Without one it is (c - 1) log (c - 1)
        return torch.stack(
            [count.log().mean(0), (torch.xlogy(count - 1, count - 1) - torch.xlogy(count, count)).mean(0)]
        )

    logs, less = _each_sample(batches, cells, 2, terms)
    plain = math.log(num) - float(logs.sum()) / num
    without = math.log(num - 1) - (logs.sum() + less) / (num - 1)
    value = num * plain - (num - 1) * float(without.mean())
    return Measured(value, math.sqrt(jackknife(without)))


def affordable(sets: Sequence[Batches], of: Frequencies, positions: Int64[Tensor, " m"]) -> int | None:
    """How many of the first samples of each set to take, so that memory and time are bounded; None if all can be.

    Counts of all values at all positions, or pairs of them, are small for alphabets of letters, and take any number of
    samples. For large vocabularies it is as many samples as have `SPARSE` cells together, so that all that occur can be
    kept. Of pairs of any two positions it is `FEW`, which are compared one with another.
    """
    cells = Cells.of(of, positions, _states(sets))
    most = FEW if of == "pairs" else max(FEW, SPARSE // cells.width)
    return None if cells.size <= DENSE or max(map(len, sets)) <= most else most


# --- agreement, and means over different samples


@runtime_checkable
class _Set(Protocol):
    """Samples, and how they agree with those of another such set."""

    def agreement(self, other: Any) -> Float64[Tensor, " n"]:
        """The agreement of each sample of this set with all of the other one, summed over these."""
        ...


@dataclass(frozen=True, eq=False)
class _Counted:
    """A set of which it is counted how often what occurs where: agreement with all of it is then looked up."""

    x: Batches
    cells: Cells

    @cached_property
    def counts(self) -> Counts:
        return counts(self.x, self.cells)

    def agreement(self, other: _Counted) -> Float64[Tensor, " n"]:
        found = _each_sample(self.x, self.cells, 1, lambda values: other.counts(values).sum(0, keepdim=True))
        return found[0] / self.cells.width


@dataclass(frozen=True, eq=False)
class _Listed:
    """A set whose samples are compared with others one by one, in pairs of positions too many to count."""

    x: Float64[Tensor, "n w"]
    """Tokens, which `cdist` takes as such."""

    def agreement(self, other: _Listed) -> Float64[Tensor, " n"]:
        width, found = self.x.shape[1], list[Tensor]()
        for some in self.x.split(max(1, COMPARED // len(other.x))):  # as many as fit into memory
            same = width - torch.cdist(some, other.x, p=0)  # positions
            found.append((same * (same - 1)).sum(1))
        return torch.cat(found) / (width * (width - 1))


def _each_sample(
    x: Batches, cells: Cells, count: int, take: Callable[[Int64[Tensor, "w n"]], Tensor]
) -> Float64[Tensor, "count num"]:
    """The numbers that `take` makes of the values of each sample, so many for each."""
    result, start = torch.empty((count, len(x)), dtype=torch.float64), 0  # many small ones would scatter in memory
    for values in cells.each(x):
        end = start + values.shape[1]
        result[:, start:end] = take(values)
        start = end
    return result


@dataclass(frozen=True)
class _Within:
    """The mean of k(x, x') over different samples, and the same without each of them."""

    mean: float
    without: Float64[Tensor, " n"]

    @staticmethod
    def of(x: _Set) -> _Within:
        rows = x.agreement(x) - 1  # less its agreement with itself
        n, total = len(rows), rows.sum()
        return _Within(float(total) / (n * (n - 1)), (total - 2 * rows) / ((n - 1) * (n - 2)))


@dataclass(frozen=True)
class _Part:
    """``E k(x, x') - 2 E k(x, y)``, what x adds to a distance; and what is left without a sample of x, or of y."""

    value: float
    without: Float64[Tensor, " n"]
    without_reference: Float64[Tensor, " m"]
    """Of E k(x, y) alone."""

    @staticmethod
    def of(x: _Set, y: _Set) -> _Part:
        within, rows, columns = _Within.of(x), x.agreement(y), y.agreement(x)
        value = within.mean - 2 * float(rows.sum()) / (len(rows) * len(columns))
        without = within.without - 2 * _means_without(rows, len(columns))
        return _Part(value, without, _means_without(columns, len(rows)))


def _means_without(rows: Float64[Tensor, " n"], width: int) -> Float64[Tensor, " n"]:
    """The mean of a matrix of this `width`, of which the sums of rows are known, without each of them."""
    return (rows.sum() - rows) / ((len(rows) - 1) * width)


# --- arguments


def _sets(given: dict[str, Sequences], of: Frequencies, positions: Tensor | None) -> list[_Set]:
    """The sets by name, ready to be compared with each other."""
    sets, cells = _checked(given, of, positions)
    if of == "pairs" and cells.size > DENSE:
        chosen = torch.arange(sets[0].length) if positions is None else positions
        return [_Listed(x.tensor()[:, chosen].to(torch.float64)) for x in sets]
    return [_Counted(x, cells) for x in sets]


def _checked(given: dict[str, Sequences], of: Frequencies, positions: Tensor | None) -> tuple[list[Batches], Cells]:
    """The sets by name, and what is counted of them, if all is well."""
    require_choice("of", of, KINDS)
    sets = {name: Batches.of(x) for name, x in given.items()}
    length = sets["x"].length
    for name, x in sets.items():
        require(len(x) >= 3, name, len(x), "standard errors take 3 samples or more; draw more")
        require(x.length > 0, name, x.shape, "has no positions; give sequences")
        require(x.length == length, name, x.shape, f"x has {length} positions; give sequences of this length")
        require(x.least >= 0, name, x.least, "tokens are whole numbers from 0 on; give those")
    chosen = torch.arange(length) if positions is None else positions
    require(len(chosen) > 0, "positions", [], "give at least one")
    good = bool(((chosen >= 0) & (chosen < length)).all()) and bool((chosen.diff() > 0).all())
    require(good, "positions", chosen.tolist(), f"give increasing numbers from 0 to {length - 1}")
    every = list(sets.values())
    return every, Cells.of(of, chosen, _states(every))


def _states(sets: Sequence[Batches]) -> int:
    return 1 + max(x.most for x in sets)
