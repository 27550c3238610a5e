"""Sets of sequences: how far one is from another in the frequencies of residues and of pairs of them, and how varied
it is. Every figure comes with its standard error.

Distances are squared: the mean, over positions or pairs of positions, of ``sum_a (p_a - q_a)^2``, where p and q are the
frequencies of the values a. This one can be estimated without bias, whatever the number of samples: with ``k(x, y)``
the share of positions (or pairs of positions) at which x and y agree, it is
``E k(x, x') + E k(y, y') - 2 E k(x, y)``, and each mean is taken over different samples. Two sets of one law are 0
apart on average, so that estimates may be below 0. Total variation has no such estimate: between finite samples of one
law it is far above 0, the more so for pairs, and fewer or more varied samples look worse than they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ...core.checks import require, require_choice
from .measured import Measured, jackknife, mean

__all__ = ["KINDS", "Measured", "frequency_distance", "frequency_gap", "mean", "pairwise_distance", "position_entropy"]

Frequencies = Literal["positions", "neighbours", "pairs"]
"""Of residues at positions; of pairs of residues at positions next to each other; at any two positions."""
KINDS = get_args(Frequencies)
CELLS = 2**24
"""Pairs of samples that are compared at a time, so that sets may be as large as files are."""


def frequency_distance(
    x: Int64[Tensor, "num d"],
    reference: Int64[Tensor, "others length"],
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
    own, others = _chosen("x", x, positions), _chosen("reference", reference, positions)
    _require_length("reference", x, reference)
    joined = _adjacent(x, positions)
    beyond, part = _Within.of(others, of, joined), _Part.of(own, others, of, joined)
    variance = jackknife(part.without) + jackknife(beyond.without - 2 * part.without_reference)
    return Measured(beyond.mean + part.value, math.sqrt(variance))


def frequency_gap(
    x: Int64[Tensor, "num d"],
    y: Int64[Tensor, "count length_y"],
    reference: Int64[Tensor, "others length"],
    of: Frequencies = "positions",
    positions: Int64[Tensor, " m"] | None = None,
) -> Measured:
    """How much further `x` is from `reference` than `y` is: the difference of two `frequency_distance`.

    Both share the reference, whose noise is the same in both distances, so that the standard error is less than the
    two suggest. Negative if `x` is nearer.
    """
    one, two, others = (_chosen(name, z, positions) for name, z in (("x", x), ("y", y), ("reference", reference)))
    _require_length("reference", x, reference)
    _require_length("y", x, y)
    joined = _adjacent(x, positions)
    first, second = (_Part.of(z, others, of, joined) for z in (one, two))
    shared = 2 * (first.without_reference - second.without_reference)
    variance = jackknife(first.without) + jackknife(second.without) + jackknife(shared)
    return Measured(first.value - second.value, math.sqrt(variance))


def pairwise_distance(x: Int64[Tensor, "num d"], positions: Int64[Tensor, " m"] | None = None) -> Measured:
    """The mean share of positions at which two different samples differ (Hamming distance over their number).

    0 if all are the same. Without bias; the standard error is the jackknife's.
    """
    chosen = _chosen("x", x, positions)
    within = _Within.of(chosen, "positions", _adjacent(x, positions))
    return Measured(1 - within.mean, math.sqrt(jackknife(within.without)))


def position_entropy(x: Int64[Tensor, "num d"], positions: Int64[Tensor, " m"] | None = None) -> Measured:
    """The mean over positions of the entropy of the values there, in nats.

    The entropy of frequencies is too low, by about (values - 1)/(2 num). That is corrected by the jackknife,
    ``n H - (n - 1) mean H_without_one``, which leaves a bias of order 1/num^2. So is the standard error found.
    """
    chosen = _chosen("x", x, positions)
    num, width = chosen.shape
    _, code = torch.unique(chosen, return_inverse=True)
    kinds = int(code.max()) + 1
    cell = code + kinds * torch.arange(width)
    counts = torch.bincount(cell.flatten(), minlength=kinds * width).to(torch.float64)
    terms = torch.xlogy(counts, counts).view(width, kinds).sum(1)
    # without a sample that holds a value of count c, the term c log c becomes (c - 1) log (c - 1)
    less = (torch.xlogy(counts - 1, (counts - 1).clamp_min(0)) - torch.xlogy(counts, counts))[cell]
    plain = float(math.log(num) - terms.mean() / num)
    without = (math.log(num - 1) - (terms + less) / (num - 1)).mean(1)
    value = num * plain - (num - 1) * float(without.mean())
    return Measured(value, math.sqrt(jackknife(without)))


# --- agreement, and means over different samples


@dataclass(frozen=True)
class _Within:
    """The mean of k(x, x') over different samples, and the same without each of them."""

    mean: float
    without: Float64[Tensor, " n"]

    @staticmethod
    def of(x: Int64[Tensor, "n w"], of: Frequencies, joined: Tensor) -> _Within:
        n = len(x)
        rows = _sums(x, x, of, joined)[0] - 1  # less its agreement with itself
        total = rows.sum()
        return _Within(float(total) / (n * (n - 1)), (total - 2 * rows) / ((n - 1) * (n - 2)))


@dataclass(frozen=True)
class _Part:
    """``E k(x, x') - 2 E k(x, y)``, what x adds to a distance; and what is left without a sample of x, or of y."""

    value: float
    without: Float64[Tensor, " n"]
    without_reference: Float64[Tensor, " m"]
    """Of E k(x, y) alone."""

    @staticmethod
    def of(x: Int64[Tensor, "n w"], y: Int64[Tensor, "m w"], of: Frequencies, joined: Tensor) -> _Part:
        within, (rows, columns) = _Within.of(x, of, joined), _sums(x, y, of, joined)
        value = within.mean - 2 * float(rows.sum()) / (len(x) * len(y))
        return _Part(value, within.without - 2 * _means_without(rows, len(y)), _means_without(columns, len(x)))


def _means_without(rows: Float64[Tensor, " n"], width: int) -> Float64[Tensor, " n"]:
    """The mean of a matrix of this `width`, of which the sums of rows are known, without each of them."""
    return (rows.sum() - rows) / ((len(rows) - 1) * width)


def _sums(
    x: Int64[Tensor, "n m"], y: Int64[Tensor, "k m"], of: Frequencies, joined: Bool[Tensor, " p"]
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " k"]]:
    """The agreement of each of `x` with all of `y`, and of each of `y` with all of `x`, in parts that fit into memory."""
    rows, columns = [], torch.zeros(len(y), dtype=torch.float64)
    for some in x.split(max(1, CELLS // len(y))):
        k = _agreement(some, y, of, joined)
        rows.append(k.sum(1))
        columns += k.sum(0)
    return torch.cat(rows), columns


def _agreement(
    x: Int64[Tensor, "n m"], y: Int64[Tensor, "k m"], of: Frequencies, joined: Bool[Tensor, " p"]
) -> Float64[Tensor, "n k"]:
    """The share of positions, or of pairs of positions, at which each of `x` agrees with each of `y`."""
    require_choice("of", of, KINDS)
    width = x.shape[1]
    if of == "pairs":
        require(width > 1, "positions", width, "a pair takes two; give more")
        same = _agreement(x, y, "positions", joined) * width
        return same * (same - 1) / (width * (width - 1))
    if of == "neighbours":
        require(bool(joined.any()), "positions", width, "no two are next to each other; give more, or of='pairs'")
        base = 1 + max(int(x.max()), int(y.max()))
        x, y = ((z[:, :-1] * base + z[:, 1:])[:, joined] for z in (x, y))
    same = torch.zeros((len(x), len(y)), dtype=torch.int32)
    for one, other in zip(x.T.contiguous(), y.T.contiguous(), strict=True):  # little memory, and quick
        same += one.unsqueeze(1) == other
    return same.to(torch.float64) / x.shape[1]


# --- arguments


def _chosen(name: str, x: Tensor, positions: Tensor | None) -> Int64[Tensor, "n m"]:
    """The columns `positions` of `x`, which must be some."""
    require(len(x) >= 3, name, len(x), "standard errors take 3 samples or more; draw more")
    if positions is None:
        require(x.shape[1] > 0, name, tuple(x.shape), "has no positions; give sequences")
        return x
    require(len(positions) > 0, "positions", [], "give at least one")
    good = bool(((positions >= 0) & (positions < x.shape[1])).all()) and bool((positions.diff() > 0).all())
    require(good, "positions", positions.tolist(), f"give increasing numbers from 0 to {x.shape[1] - 1}")
    return x[:, positions]


def _require_length(name: str, x: Tensor, other: Tensor) -> None:
    length, shape = x.shape[1], tuple(other.shape)
    require(shape[1] == length, name, shape, f"x has {length} positions; give sequences of this length")


def _adjacent(x: Tensor, positions: Tensor | None) -> Bool[Tensor, " p"]:
    """Whether chosen position n + 1 comes right after chosen position n."""
    return (torch.arange(x.shape[1]) if positions is None else positions).diff() == 1
