"""Text, as rows of tokens of any lengths: how likely, how varied, how repetitive it is, and how far from other text.

Every figure comes with its standard error, of samples that are independent of each other. Perplexity is found in
`TextQuality` alone, where diversity stands beside it: it falls, and so looks better, as samples repeat themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from ...core.checks import require, require_count, require_number
from .measured import Measured, jackknife, mean, ratio

Rows = Sequence[Sequence[int]]
"""The tokens of each sample; of a table, ``x.tolist()``."""
SIZES = (1, 2, 3, 4)
"""Of the n-grams in `TextQuality`."""


@dataclass(frozen=True)
class TextQuality:
    """What a judge finds likely, together with the diversity without which it says little."""

    perplexity: Measured
    """``exp(nats / tokens)``, both summed over all samples; lower is likelier."""
    entropy: Measured
    """See `unigram_entropy`, in bits."""
    repetition: tuple[Measured, ...]
    """See `repetition`, for n = 1, 2, 3, 4."""
    distinct: tuple[Measured, ...]
    """See `distinct`, for n = 1, 2, 3, 4."""
    tokens: int
    """Of all samples together."""

    @staticmethod
    def of(rows: Rows, nats: Float64[Tensor, " num"]) -> TextQuality:
        """Of samples in the judge's own tokens, and ``-log p`` of each under the judge, in nats."""
        return TextQuality.made(Tally.of(rows, nats), rows)

    @staticmethod
    def made(tally: Tally, some: Rows) -> TextQuality:
        """Of the numbers of all samples, and of `some` of them whole: `distinct` is of these."""
        lengths = tally.lengths.to(torch.float64)
        rate = ratio(tally.nats, lengths)
        likely = math.exp(rate.value)
        return TextQuality(
            Measured(likely, likely * rate.error),
            mean(tally.entropies),
            tuple(_repetition(again, lengths, n) for n, again in zip(SIZES, tally.repeats.T, strict=True)),
            tuple(distinct(some, n) for n in SIZES),
            int(lengths.sum()),
        )

    def figures(self) -> dict[str, Measured]:
        """All figures by name."""
        again = {f"repetition_{n}": figure for n, figure in zip(SIZES, self.repetition, strict=True)}
        new = {f"distinct_{n}": figure for n, figure in zip(SIZES, self.distinct, strict=True)}
        return {"perplexity": self.perplexity, "unigram_entropy": self.entropy, **again, **new}


@dataclass(frozen=True, eq=False)
class Tally:
    """A few numbers of each sample. There is room for those of all, and they are put there for some at a time."""

    nats: Float64[Tensor, " num"]
    lengths: Int32[Tensor, " num"]
    entropies: Float64[Tensor, " num"]
    repeats: Int32[Tensor, "num sizes"]
    """n-grams that stood earlier in the sample, for n = 1, 2, 3, 4."""

    @staticmethod
    def of(rows: Rows, nats: Float64[Tensor, " n"]) -> Tally:
        """Of all samples at once."""
        tally = Tally.room(len(rows))
        tally.put(0, rows, nats)
        return tally

    @staticmethod
    def room(num: int) -> Tally:
        """For so many samples."""
        exact, whole = (torch.zeros(num, dtype=dtype) for dtype in (torch.float64, torch.int32))
        return Tally(exact, whole, exact.clone(), whole.repeat(len(SIZES), 1).T)

    def put(self, start: int, rows: Rows, nats: Float64[Tensor, " n"]) -> None:
        """The numbers of samples from number `start` on."""
        require(len(nats) == len(rows), "nats", len(nats), f"there are {len(rows)} rows; give one number for each")
        some = slice(start, start + len(rows))
        self.nats[some], self.lengths[some], self.entropies[some] = nats, _lengths(rows, start), entropies(rows)
        for n, column in zip(SIZES, self.repeats.T, strict=True):
            column[some] = _repeats(rows, n)


def unigram_entropy(rows: Rows) -> Measured:
    """The mean over samples of the entropy of a sample's own token frequencies, ``-sum f log2 f``, in bits.

    A sample of L tokens has at most log2 L, so that only samples of about one length compare. Published tables of 1024
    tokens have values from 6.4 to 8.1 (Ren et al. 2025), which in nats would be above log 1024.
    """
    return mean(entropies(rows))


def entropies(rows: Rows) -> Float64[Tensor, " num"]:
    """Of each sample: see `unigram_entropy`."""
    lengths = _lengths(rows)
    row, gram = _grams(rows, 1)
    kinds = int(gram.max()) + 1
    cell, count = torch.unique(row * kinds + gram, return_counts=True)
    counts = count.to(torch.float64)
    sums = torch.zeros_like(lengths).index_add_(0, cell // kinds, torch.xlogy(counts, counts))
    return (lengths.log() - sums / lengths) / math.log(2)


def repetition(rows: Rows, n: int) -> Measured:
    """The share of n-grams that stood earlier in the same sample, over all n-grams of all samples."""
    _require_grams("rows", rows, n)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.float64)
    return _repetition(_repeats(rows, n), lengths, n)


def _repeats(rows: Rows, n: int) -> Int32[Tensor, " num"]:
    """Of each sample, the n-grams that stood in it earlier."""
    row, gram = _grams(rows, n)
    kinds = 1 + int(gram.max()) if len(gram) else 1
    first = torch.unique(row * kinds + gram) // kinds
    return (torch.bincount(row, minlength=len(rows)) - torch.bincount(first, minlength=len(rows))).to(torch.int32)


def _repetition(again: Int32[Tensor, " num"], lengths: Float64[Tensor, " num"], n: int) -> Measured:
    _require_long("rows", int(lengths.max()), n)
    return ratio(again.to(torch.float64), (lengths + 1 - n).clamp_min(0))


def distinct(rows: Rows, n: int) -> Measured:
    """The number of different n-grams in all samples over the number of all (Li et al. 2016).

    It falls with the number of tokens: compare sets of one size. The standard error is the jackknife's.
    """
    _require_grams("rows", rows, n)
    row, gram = _grams(rows, n)
    kinds, num = int(gram.max()) + 1, len(rows)
    cell = torch.unique(row * kinds + gram)
    alone = torch.bincount(cell % kinds, minlength=kinds) == 1  # in one sample only
    own = torch.bincount(cell[alone[cell % kinds]] // kinds, minlength=num)
    totals = torch.bincount(row, minlength=num)
    different, total = int(gram.unique().numel()), len(gram)
    without = (different - own).to(torch.float64) / (total - totals)
    spread = bool(torch.isfinite(without).all())  # not if all n-grams are in one sample
    return Measured(different / total, math.sqrt(jackknife(without)) if spread else math.nan)


@dataclass(frozen=True)
class Divergence:
    """How far the n-gram frequencies of samples are from those of a reference."""

    kl: Measured
    """Kullback-Leibler, of the samples from the smoothed reference, in nats."""
    js: Measured
    """Jensen-Shannon, in nats: 0 to log 2."""


def ngram_divergence(rows: Rows, reference: Rows, n: int, smoothing: float = 0.5) -> Divergence:
    """How far the n-gram frequencies p of `rows` are from q, those of `reference`.

    With K different n-grams in both together, of which the i-th is c_i of the N of the reference, ``KL = sum p log
    p/q'`` is from ``q'_i = (c_i + smoothing)/(N + smoothing K)``, else it would be infinite. ``JS = (KL(p, m) + KL(q,
    m))/2`` from ``m = (p + q)/2`` needs no smoothing.

    Both are above 0 between finite texts of one law, the more so the shorter they are and the longer the n-grams:
    read them beside those of another part of the reference, as long as the samples. Standard errors are to first order
    and over `rows`, with the reference as given; where p is q they are too small.
    """
    require_number("smoothing", smoothing, 0, math.inf)
    for name, given in (("rows", rows), ("reference", reference)):
        _require_grams(name, given, n)
    row, gram = _grams([*rows, *reference], n)
    _, gram = torch.unique(gram, return_inverse=True)
    kinds, ours = int(gram.max()) + 1, row < len(rows)
    own, other = (torch.bincount(gram[which], minlength=kinds).to(torch.float64) for which in (ours, ~ours))
    p, q = own / own.sum(), other / other.sum()
    smooth = (other + smoothing) / (other.sum() + smoothing * kinds)
    middle = (p + q) / 2
    seen = p > 0
    # what each n-gram of a sample adds, to first order
    from_smooth = torch.where(seen, p / smooth, 1.0).log()
    from_middle = torch.where(seen, p / middle, 1.0).log()
    back = (torch.xlogy(q, q) - torch.xlogy(q, middle)).sum()
    place, which = row[ours], gram[ours]
    totals = torch.bincount(place, minlength=len(rows)).to(torch.float64)

    def slope(of: Float64[Tensor, " kinds"]) -> Measured:
        return ratio(torch.zeros_like(totals).index_add_(0, place, of[which]), totals)

    half = slope(from_middle)
    return Divergence(slope(from_smooth), Measured((half.value + float(back)) / 2, half.error / 2))


# --- n-grams


def _grams(rows: Rows, n: int) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]:
    """All n-grams, none of which crosses rows: the row of each, and a number from 0 on that equal ones share."""
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.from_numpy(np.concatenate([np.asarray(row, dtype=np.int64) for row in rows]))
    row = torch.arange(len(rows)).repeat_interleave(lengths)
    _, code = torch.unique(tokens, return_inverse=True)
    base, gram = int(code.max()) + 1, code
    for k in range(1, n):
        _, gram = torch.unique(gram[:-1] * base + code[k:], return_inverse=True)
    inside = row[: len(gram)] == row[n - 1 :]
    return row[: len(gram)][inside], gram[inside]


def _require_grams(name: str, rows: Rows, n: int) -> None:
    require_count("n", n)
    _require_long(name, max((len(row) for row in rows), default=0), n)


def _require_long(name: str, longest: int, n: int) -> None:
    require(longest >= n, name, longest, f"the longest has no {n} tokens; give longer texts, or a smaller n")


def _lengths(rows: Rows, start: int = 0) -> Float64[Tensor, " num"]:
    require(len(rows) > 0, "rows", 0, "give at least one sample")
    for n, row in enumerate(rows, start):
        require(len(row) > 0, f"rows[{n}]", list(row), "holds no tokens; leave empty samples out")
    return torch.tensor([len(row) for row in rows], dtype=torch.float64)
