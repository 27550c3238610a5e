"""The two primitives that do all the jumping: `leap` for frozen intensities, `move` for exact one-position kernels.

Both toss a coin at every position with at least the probability of a jump, ask for the rows of the heads only, and
draw there: a value, or nothing, which compensates for the bound (thinning).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from .evaluation import Duplicates, Prediction
from .intensity import Intensity
from .noise import Noise, Numbers
from .processes import Process
from .times import Times, at, column, shared

Rule = Literal["exact", "reject", "euler"]


@dataclass(frozen=True)
class Share:
    """How much of a whole; the sum over steps and batches is the share of all."""

    part: float
    whole: float

    def __add__(self, other: Share) -> Share:
        return Share(self.part + other.part, self.whole + other.whole)

    def __float__(self) -> float:
        return self.part / self.whole if self.whole else math.nan


def jump_probability(total: Float64[Tensor, "*n"], rule: Rule) -> Float64[Tensor, "*n"]:
    """Probability that a position with frozen total intensity `total` (times h) jumps.

    ``exact``: ``1 - e^-total``, the frozen process itself, whose later events overwrite earlier ones.
    ``reject``: ``total e^-total``, one event and no more, as in the paper.
    ``euler``: ``min(1, total)``.
    """
    if rule == "exact":
        return -torch.expm1(-total)
    return total * torch.exp(-total) if rule == "reject" else total.clamp(max=1)


def leap(
    x: Int64[Tensor, "b d"], intensity: Intensity, h: Times, noise: Noise, rule: Rule
) -> tuple[Int64[Tensor, "b d"], Share]:
    """Run `intensity`, frozen, for a time `h`; negative intensities count as zero.

    Also gives the share of non-zero intensities that were positive, among the rows asked for, where some may not be.
    """
    h, length = shared(h), x.shape[1]
    bound = intensity.bound() * column(h)
    # total e^-total is largest at 1
    ceiling = jump_probability(bound.clamp(max=1) if rule == "reject" else bound, rule).expand_as(x)
    positions, numbers = noise.flip(ceiling)
    rows, which = distinct(positions, length, None if h.ndim else intensity.duplicates())
    stay = not intensity.tight or rule == "reject"
    positive = Share(0, 0)

    def weights(rows: Int64[Tensor, " k"]) -> Float64[Tensor, "k S"]:
        nonlocal positive
        rates = intensity.rows(rows)
        if not intensity.tight:  # then some may be negative
            times = None if which is None else torch.bincount(which, minlength=rates.shape[0])
            whole = _nonzero(rates, times)
            positive += Share(_nonzero(rates.clamp_min_(0), times), whole)
        if not stay:  # the coin was all of it: what is left is where to
            return rates
        total = rates.sum(1, keepdim=True)
        scale = jump_probability(total * at(h, rows, length), rule) / (total * _entries(ceiling, rows))
        return rates.mul_(torch.where(total > 0, scale, 0.0))

    x = jump(x, positions, Rows(weights, rows, which, intensity.at_once), noise, stay, numbers)
    return x, positive


def _entries(table: Float64[Tensor, "b d"], positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n 1"]:
    """Entries at flat indices, without writing out an expanded table."""
    if table.is_contiguous():
        return table.view(-1, 1).index_select(0, positions)
    return table[positions // table.shape[1], positions % table.shape[1]].unsqueeze(1)


def _nonzero(rates: Float64[Tensor, "k S"], times: Int64[Tensor, " k"] | None) -> int:
    """How many rates are not zero, if each row stands for so many `times`, or for one."""
    if times is None:
        return int(torch.count_nonzero(rates))
    return int((torch.count_nonzero(rates, 1) * times).sum())


def move(
    process: Process,
    x: Int64[Tensor, "b d"],
    prediction: Prediction,
    alpha_t: Times,
    alpha_s: Times,
    noise: Noise,
    free: Bool[Tensor, "b d"] | None = None,
) -> Int64[Tensor, "b d"]:
    """Draw every `free` position, None for all, from its exact one-position kernel, from alpha_t back to alpha_s."""
    length = x.shape[1]
    bound = process.kernel_bound(x, column(alpha_t), column(alpha_s))
    bound = bound if free is None else bound * free
    bound = bound if bound.shape == x.shape else bound.expand_as(x)
    positions, numbers = noise.flip(bound)
    if process.mask is not None and process.known_totals:
        return unmask(x, positions, prediction, noise, numbers)
    known = None if alpha_t.ndim or alpha_s.ndim else prediction.duplicates()
    rows, which = distinct(positions, length, known)

    def weights(rows: Int64[Tensor, " k"]) -> Float64[Tensor, "k S"]:
        alphas = (at(alpha, rows, length) for alpha in (alpha_t, alpha_s))
        kernel = process.kernel(prediction.probabilities(rows), x.flatten()[rows], *alphas)
        return kernel / _entries(bound, rows)

    return jump(x, positions, Rows(weights, rows, which, prediction.at_once), noise, not process.known_totals, numbers)


def unmask(
    x: Int64[Tensor, "b d"],
    positions: Int64[Tensor, " n"],
    prediction: Prediction,
    noise: Noise,
    numbers: Numbers = None,
) -> Int64[Tensor, "b d"]:
    """Draw `positions` from their conditionals, each on its own."""
    rows, which = distinct(positions, x.shape[1], prediction.duplicates())
    return jump(x, positions, Rows(prediction.unnormalised, rows, which, prediction.at_once), noise, False, numbers)


def distinct(
    positions: Int64[Tensor, " n"], length: int, duplicates: Duplicates | None
) -> tuple[Int64[Tensor, " k"], Int64[Tensor, " n"] | None]:
    """One of each kind of `positions`, and which kind each is; all of them, and None, where that saves nothing.

    On small spaces, where a million samples are a few sequences over and over, this is most of the work.
    """
    if duplicates is None or 2 * length * duplicates.kinds > positions.shape[0]:
        return positions, None
    key = duplicates.kind[positions // length] * length + positions % length
    first = torch.full((length * duplicates.kinds,), -1, device=positions.device).scatter_(0, key, positions)
    used = torch.nonzero(first >= 0).flatten()
    place = torch.empty_like(first).scatter_(0, used, torch.arange(len(used), device=positions.device))
    return first[used], place[key]


@dataclass(frozen=True)
class Rows:
    """Weights of new values at positions: ``weights(rows)``, of which each position has the one `which` says, or its
    own."""

    weights: Callable[[Tensor], Tensor]
    rows: Int64[Tensor, " k"]
    which: Int64[Tensor, " n"] | None
    at_once: int

    def chunks(
        self, positions: Int64[Tensor, " n"], numbers: Numbers
    ) -> Iterator[tuple[Tensor, Numbers, Tensor, Tensor | None]]:
        """Some of the `positions` after each other, with their numbers, rows of weights, and which of these each
        has."""
        if self.which is not None or positions.shape[0] <= self.at_once:
            yield positions, numbers, self.weights(self.rows), self.which
            return
        for first in range(0, positions.shape[0], self.at_once):
            part = slice(first, first + self.at_once)
            yield positions[part], None if numbers is None else numbers[part], self.weights(positions[part]), None


def jump(
    x: Int64[Tensor, "b d"], positions: Int64[Tensor, " n"], rows: Rows, noise: Noise, stay: bool, numbers: Numbers
) -> Int64[Tensor, "b d"]:
    """Draw new values at `positions`, by `numbers` or by fresh ones; with `stay`, what is missing of one in a row
    leaves the position as it is."""
    flat = x.reshape(-1)
    for some, at_hand, weights, which in rows.chunks(positions, numbers):
        values = noise.choose(some, x.shape[1], weights, stay, which, at_hand)
        if stay:
            moved = values < weights.shape[1]
            some, values = some[moved], values[moved]
        flat = flat.index_copy(0, some, values)
        del weights  # before the next ones are made
    return flat.view_as(x)
