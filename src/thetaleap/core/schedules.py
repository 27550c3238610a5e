"""Noise schedules: how fast the forward process forgets its tokens.

``alpha(t)`` is the probability that a token is untouched until time t, and ``sigma(t) = -alpha'(t)/alpha(t)``
is the rate of the forward process. Data lives at t = 0, noise at t = ``horizon``. All functions take and give
float64 tensors of any shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .checks import finite, require, require_kind, require_number
from .times import as_time


@runtime_checkable
class Schedule(Protocol):
    """What a process needs to know about time."""

    @property
    def horizon(self) -> float:
        """The time at which sampling starts by default."""
        ...

    def alpha(self, t: float | Tensor) -> Tensor:
        """Probability that a token is untouched until t."""
        ...

    def sigma(self, t: float | Tensor) -> Tensor:
        """Forward rate, ``-d/dt log alpha``."""
        ...

    def alpha_inverse(self, a: float | Tensor) -> Tensor:
        """The time at which ``alpha`` is `a`."""
        ...


def alpha_sigma(schedule: Schedule, t: float) -> tuple[float, float]:
    """``alpha(t)`` and ``sigma(t)`` as numbers, remembered: a run asks for those of each of its times over and over."""
    if schedule.__hash__ is None:  # one of someone's own may be a plain dataclass
        return float(schedule.alpha(t)), float(schedule.sigma(t))
    return _remembered(schedule, t)


@lru_cache(maxsize=4096)
def _remembered(schedule: Schedule, t: float) -> tuple[float, float]:
    return float(schedule.alpha(t)), float(schedule.sigma(t))


def require_schedule(schedule: Any) -> None:
    """Raise ``TypeError`` unless it is one."""
    require_kind("schedule", schedule, Schedule, "give a schedule, as in LogLinear()")


@dataclass(frozen=True)
class LogLinear:
    """``alpha = 1 - (1 - eps) t`` on [0, 1]: the expected number of noised tokens grows linearly (SEDD, RADD)."""

    eps: float = 1e-3
    horizon = 1.0

    def __post_init__(self) -> None:
        require_number("eps", self.eps, 0, 1)

    def alpha(self, t: float | Tensor) -> Tensor:
        return as_time(1 - (1 - self.eps) * t)

    def sigma(self, t: float | Tensor) -> Tensor:
        return (1 - self.eps) / self.alpha(t)

    def alpha_inverse(self, a: float | Tensor) -> Tensor:
        return (1 - as_time(a)) / (1 - self.eps)


@dataclass(frozen=True)
class Cosine:
    """``alpha = eps + (1 - eps) cos(pi t / 2)`` on [0, 1] (the cosine schedule of MDLM)."""

    eps: float = 1e-3
    horizon = 1.0

    def __post_init__(self) -> None:
        require_number("eps", self.eps, 0, 1)

    def alpha(self, t: float | Tensor) -> Tensor:
        # 1 - cos(y) = 2 sin^2(y/2) keeps 1 - alpha accurate near the data
        return 1 - 2 * (1 - self.eps) * torch.sin(as_time(t) * (math.pi / 4)) ** 2

    def sigma(self, t: float | Tensor) -> Tensor:
        return (1 - self.eps) * (math.pi / 2) * torch.sin(as_time(t) * (math.pi / 2)) / self.alpha(t)

    def alpha_inverse(self, a: float | Tensor) -> Tensor:
        return torch.asin(torch.sqrt((1 - as_time(a)) / (2 * (1 - self.eps)))) * (4 / math.pi)


@dataclass(frozen=True)
class Geometric:
    """``-log alpha = low^(1-t) high^t`` on [0, 1] (SEDD). A token is noised with probability 1 - e^-low at t = 0."""

    low: float = 1e-3
    high: float = 20.0
    horizon = 1.0

    def __post_init__(self) -> None:
        ends = (self.low, self.high)
        good = all(map(finite, ends)) and 0 < self.low < self.high
        require(good, "(low, high)", ends, "needs 0 < low < high")

    def _total(self, t: float | Tensor) -> Tensor:
        return self.low * (self.high / self.low) ** as_time(t)

    def alpha(self, t: float | Tensor) -> Tensor:
        return torch.exp(-self._total(t))

    def sigma(self, t: float | Tensor) -> Tensor:
        return self._total(t) * math.log(self.high / self.low)

    def alpha_inverse(self, a: float | Tensor) -> Tensor:
        return torch.log(-torch.log(as_time(a)) / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class Constant:
    """``alpha = exp(-rate t)``: a homogeneous forward process. The default horizon leaves alpha = e^-12."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        require(finite(self.rate) and self.rate > 0, "rate", self.rate, "give a positive number")

    @property
    def horizon(self) -> float:
        return 12.0 / self.rate

    def alpha(self, t: float | Tensor) -> Tensor:
        return torch.exp(-self.rate * as_time(t))

    def sigma(self, t: float | Tensor) -> Tensor:
        return torch.full_like(as_time(t), self.rate)

    def alpha_inverse(self, a: float | Tensor) -> Tensor:
        return -torch.log(as_time(a)) / self.rate
