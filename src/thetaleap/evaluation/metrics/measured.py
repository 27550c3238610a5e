"""Figures with their errors, and the estimators that give them. All take independent samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol, runtime_checkable

from jaxtyping import Float64
from torch import Tensor

from ...core.checks import require_number

LEVEL = 0.95


@runtime_checkable
class Estimate(Protocol):
    """A figure that knows its intervals."""

    @property
    def value(self) -> float: ...
    def interval(self, level: float = LEVEL) -> tuple[float, float]: ...


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
class Resampled:
    """A figure, and what it is in resampled data."""

    value: float
    draws: Float64[Tensor, " n"]

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """The middle of what it is in resampled data."""
        return interval(self.draws, level)


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
