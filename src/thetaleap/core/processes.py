"""Forward processes: how one position forgets its token, and what that says about the way back.

All positions are noised independently, so everything here is about one position. Rows of a batch of n positions come as

- ``c`` (n, S): the leave-one-out conditional, the probability of the clean token given all *other* positions;
- ``present`` (n,): the token the position holds now;
- ``t``, ``alpha``: one time, shape (), or one per row, shape (n, 1); for bounds, one per sample, shape (b, 1).

``p_t(v | others) = sum_i c(i) P_t(i, v)`` is the law of the noised token, and the score is the ratio
``p_t(v | others) / p_t(present | others)``. Intensities follow from it: ``mu(v) = sigma(t) R(v, present) score(v)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from . import _fast
from .checks import require_count, require_kind
from .noise import Draw, Noise
from .schedules import Constant, LogLinear, Schedule, alpha_sigma, require_schedule

Rows = Float64[Tensor, "n S"]
Tokens = Int64[Tensor, " n"]
Sequences = Int64[Tensor, "b d"]
Bound = Float64[Tensor, "#b #d"]


@runtime_checkable
class Process(Protocol):
    """A factorised forward process on tokens 0 .. states-1, and the reverse of it."""

    @property
    def states(self) -> int:
        """Number of clean values, S."""
        ...

    @property
    def schedule(self) -> Schedule: ...

    @property
    def mask(self) -> int | None:
        """The token that stands for noise, or None where there is none."""
        ...

    @property
    def known_totals(self) -> bool:
        """Whether the two bounds below are the true totals, so that no conditional is needed to know who jumps."""
        ...

    def prior(self, batch: int, length: int, noise: Noise) -> Sequences:
        """Fresh noise."""
        ...

    def active(self, x: Sequences) -> Bool[Tensor, "b d"]:
        """Positions that can still jump."""
        ...

    def likelihood(self, present: Tokens, t: Tensor) -> Rows:
        """``P_t(v, present)``: how likely each clean value v is to have become `present` by time t."""
        ...

    def noised(self, c: Rows, alpha: Tensor) -> Rows:
        """``p_t(v | others)`` where ``alpha(t) = alpha``; what is missing of one is the mask's."""
        ...

    def score(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        """``p_t(v | others) / p_t(present | others)``."""
        ...

    def from_score(self, score: Rows, present: Tokens, t: Tensor) -> Rows:
        """The conditional ``c`` whose `score` this is (negative entries tell that it is nobody's)."""
        ...

    def intensity(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        """Reverse intensity of the jump to each value; 0 for the present one."""
        ...

    def intensity_bound(self, x: Sequences, t: Tensor) -> Bound:
        """At least the total intensity of every position at one time, whatever the conditionals; (1, 1) if all
        have the same."""
        ...

    def kernel(self, c: Rows, present: Tokens, alpha_t: Tensor, alpha_s: Tensor) -> Rows:
        """Exact probability of being at each *other* value after going back from alpha_t to alpha_s; present: 0."""
        ...

    def kernel_bound(self, x: Sequences, alpha_t: Tensor, alpha_s: Tensor) -> Bound:
        """At least the total of `kernel` at every position, whatever the conditionals; (1, 1) if all
        have the same."""
        ...

    def ceiling(self, high: float, low: float) -> float:
        """At least the total intensity of any position per unit of ``-log alpha`` while that is in [low, high]."""
        ...


def require_process(process: Any) -> None:
    """Raise ``TypeError`` unless it is one."""
    require_kind("process", process, Process, "give a process, as in Masked(states=100)")


def without(rows: Rows, present: Tokens) -> Rows:
    """`rows` with 0 at the present value; changes `rows`."""
    return rows.scatter_(1, present.unsqueeze(1), 0.0)


@dataclass(frozen=True)
class Masked:
    """Tokens are replaced by a mask, value S, at rate sigma(t): the absorbing process of masked diffusion.

    ``mu(v) = sigma alpha/(1-alpha) c(v)`` at masked positions, and the exact kernel unmasks with probability
    ``(alpha_s - alpha_t)/(1 - alpha_t)``, whatever the conditionals.
    """

    states: int
    schedule: Schedule = field(default_factory=LogLinear)
    known_totals = True

    def __post_init__(self) -> None:
        require_count("states", self.states, least=2)
        require_schedule(self.schedule)

    @property
    def mask(self) -> int:
        return self.states

    def prior(self, batch: int, length: int, noise: Noise) -> Sequences:
        return torch.full((batch, length), self.mask, dtype=torch.int64)

    def active(self, x: Sequences) -> Bool[Tensor, "b d"]:
        return _fast.equal(x, self.mask)

    def _at_masks(self, x: Int64[Tensor, "*n"], value: float | Tensor) -> Float64[Tensor, " ..."]:
        """`value` where there is a mask, otherwise 0."""
        return _fast.at_value(x, self.mask, value)

    def likelihood(self, present: Tokens, t: Tensor) -> Rows:
        alpha, values = self.schedule.alpha(t), torch.arange(self.states, device=present.device)
        kept = present.unsqueeze(1) == values
        masked = (present == self.mask).unsqueeze(1).expand_as(kept)
        return torch.where(masked, 1 - alpha, alpha * kept)

    def noised(self, c: Rows, alpha: Tensor) -> Rows:
        return alpha * c

    def _ratio(self, t: Tensor) -> Tensor:
        alpha = self.schedule.alpha(t)
        return alpha / (1 - alpha)

    def _rate(self, t: Tensor) -> float | Tensor:
        """At which a mask is unmasked."""
        if t.ndim == 0:  # numbers are faster than tensors
            alpha, sigma = alpha_sigma(self.schedule, float(t))
            return sigma * alpha / (1 - alpha) if alpha < 1 else math.inf
        return self.schedule.sigma(t) * self._ratio(t)

    def score(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        return c * self._ratio(t)

    def from_score(self, score: Rows, present: Tokens, t: Tensor) -> Rows:
        return score / self._ratio(t)

    def intensity(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        return c * self._at_masks(present.unsqueeze(1), self._rate(t))

    def intensity_bound(self, x: Sequences, t: Tensor) -> Bound:
        return self._at_masks(x, self._rate(t))

    def _unmasked(self, alpha_t: Tensor, alpha_s: Tensor) -> float | Tensor:
        # going back to clean data unmasks surely, even where alpha_t is 1 already
        if alpha_t.ndim == alpha_s.ndim == 0:  # numbers are faster than tensors
            before, after = float(alpha_t), float(alpha_s)
            return 1.0 if after == 1 else (after - before) / (1 - before)
        return torch.where(alpha_s == 1, 1.0, (alpha_s - alpha_t) / (1 - alpha_t))

    def kernel(self, c: Rows, present: Tokens, alpha_t: Tensor, alpha_s: Tensor) -> Rows:
        return c * self._at_masks(present.unsqueeze(1), self._unmasked(alpha_t, alpha_s))

    def kernel_bound(self, x: Sequences, alpha_t: Tensor, alpha_s: Tensor) -> Bound:
        return self._at_masks(x, self._unmasked(alpha_t, alpha_s))

    def ceiling(self, high: float, low: float) -> float:
        return 1 / math.expm1(low)  # decreasing in -log alpha


@dataclass(frozen=True)
class Uniform:
    """Tokens are replaced by uniform ones at rate sigma(t): generator ``sigma (E/S - I)``."""

    states: int
    schedule: Schedule = field(default_factory=Constant)
    mask = None
    known_totals = False

    def __post_init__(self) -> None:
        require_count("states", self.states, least=2)
        require_schedule(self.schedule)

    def prior(self, batch: int, length: int, noise: Noise) -> Sequences:
        positions = torch.arange(batch * length)
        flat = torch.full((1, self.states), 1 / self.states, dtype=torch.float64).expand(len(positions), -1)
        return noise(Draw.PRIOR).choose(positions, length, flat, stay=False).view(batch, length)

    def active(self, x: Sequences) -> Bool[Tensor, "b d"]:
        return torch.ones_like(x, dtype=torch.bool)

    def noised(self, c: Rows, alpha: Tensor) -> Rows:
        return alpha * c + (1 - alpha) / self.states

    def likelihood(self, present: Tokens, t: Tensor) -> Rows:
        kept = present.unsqueeze(1) == torch.arange(self.states, device=present.device)
        return self.noised(kept.to(torch.float64), self.schedule.alpha(t))

    def score(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        p = self.noised(c, self.schedule.alpha(t))
        return p / p.gather(1, present.unsqueeze(1))

    def from_score(self, score: Rows, present: Tokens, t: Tensor) -> Rows:
        alpha = self.schedule.alpha(t)
        return (score / score.sum(1, keepdim=True) - (1 - alpha) / self.states) / alpha

    def intensity(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        return without(self.score(c, present, t) * (self.schedule.sigma(t) / self.states), present)

    def intensity_bound(self, x: Sequences, t: Tensor) -> Bound:
        # p_t(present | others) is at least (1 - alpha)/S
        bound = self.schedule.sigma(t) * (1 / (1 - self.schedule.alpha(t)) - 1 / self.states)
        return bound.view(-1, 1)

    def kernel(self, c: Rows, present: Tokens, alpha_t: Tensor, alpha_s: Tensor) -> Rows:
        back, here = self.noised(c, alpha_s), present.unsqueeze(1)
        a = alpha_t / alpha_s
        normaliser = a * back.gather(1, here) + (1 - a) / self.states
        return without(back * ((1 - a) / self.states) / normaliser, present)

    def kernel_bound(self, x: Sequences, alpha_t: Tensor, alpha_s: Tensor) -> Bound:
        # staying is least likely where the clean token is surely another one
        a, least = alpha_t / alpha_s, (1 - alpha_s) / self.states
        stay = least * (a + (1 - a) / self.states) / (a * least + (1 - a) / self.states)
        return (1 - stay).view(-1, 1)

    def ceiling(self, high: float, low: float) -> float:
        return -1 / math.expm1(-low) - 1 / self.states  # decreasing in -log alpha
