"""Figures with their errors, and the estimators that give them. All take independent samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist

import torch
from jaxtyping import Float64
from torch import Tensor

from ...core.checks import require_number

LEVEL = 0.95


@dataclass(frozen=True)
class Measured:
    """A figure and its standard error: 0 where nothing is random, NaN where it is not known."""

    value: float
    error: float = 0.0

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f}"

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Of a normal law."""
        half = self.error * NormalDist().inv_cdf((1 + level) / 2)
        return self.value - half, self.value + half


@dataclass(frozen=True, eq=False)
class Scattered:
    """A figure, and how it scatters: a vector as long as the standard error, empty where nothing is random.

    Figures of the same samples have vectors over the same samples (or the same resamplings), so that in differences what
    they share cancels: the error of a difference is the length of the difference of the vectors.
    """

    value: float
    scatter: Float64[Tensor, " n"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    @staticmethod
    def mean(values: Float64[Tensor, " n"]) -> Scattered:
        """The mean of one number for each sample; certain if infinite."""
        value, n = float(values.mean()), len(values)
        return Scattered(value, (values - value) / math.sqrt(n * (n - 1))) if math.isfinite(value) else Scattered(value)

    @staticmethod
    def jackknifed(value: float, without: Float64[Tensor, " n"]) -> Scattered:
        """`value`, from what it is without each of the samples."""
        n = len(without)
        return Scattered(value, (without - without.mean()) * math.sqrt((n - 1) / n))

    @property
    def error(self) -> float:
        return float(self.scatter.norm())

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        return Measured(self.value, self.error).interval(level)

    def __neg__(self) -> Scattered:
        return Scattered(-self.value, -self.scatter)

    def __add__(self, other: Scattered) -> Scattered:
        parts = self.scatter, other.scatter
        same = len(parts[0]) == len(parts[1])
        return Scattered(self.value + other.value, parts[0] + parts[1] if same else torch.cat(parts))

    def __sub__(self, other: Scattered) -> Scattered:
        return self + -other


def interval(values: Float64[Tensor, " n"], level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of `values`, ends rounded outwards to values that occur (so infinite ones are no trouble)."""
    require_number("level", level, 0, 1)
    ordered = values.sort().values
    # the nudge is for (1 - 0.95)/2 * 1000 and the like, a rounding below a whole number
    cut = math.floor((1 - level) / 2 * (len(values) - 1) + 1e-9)
    return float(ordered[cut]), float(ordered[-1 - cut])


def mean(values: Float64[Tensor, " n"]) -> Measured:
    """The mean; of a single value the standard error is not known, which is NaN."""
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Measured(float(values.mean()), error)


def ratio(values: Float64[Tensor, " num"], weights: Float64[Tensor, " num"]) -> Measured:
    """``sum values / sum weights``, its standard error by the delta method."""
    num, total = len(values), float(weights.sum())
    value = float(values.sum()) / total
    if num == 1:
        return Measured(value, math.nan)
    off = float((values - value * weights).square().sum())
    return Measured(value, math.sqrt(off * num / (num - 1)) / total)


def jackknife(without: Float64[Tensor, " n"]) -> float:
    """The variance of an estimate, from what it is without each of the samples (up to a constant)."""
    n = len(without)
    return float((without - without.mean()).square().sum()) * (n - 1) / n
