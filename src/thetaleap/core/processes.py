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
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from . import _fast
from .checks import require, require_count, require_kind
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
        alike."""
        ...

    def kernel(self, c: Rows, present: Tokens, alpha_t: Tensor, alpha_s: Tensor) -> Rows:
        """Exact probability of being at each *other* value after going back from alpha_t to alpha_s; present: 0."""
        ...

    def kernel_bound(self, x: Sequences, alpha_t: Tensor, alpha_s: Tensor) -> Bound:
        """At least the total of `kernel` at every position, whatever the conditionals; (1, 1) if all alike."""
        ...

    def ceiling(self, high: float, low: float) -> float:
        """At least the total intensity of any position per unit of ``-log alpha`` while that is in [low, high]."""
        ...


def require_process(process: Any) -> None:
    """Raise ``TypeError`` unless it is one."""
    require_kind("process", process, Process, "give a process, as in Masked(states=100)")


def _without(rows: Rows, present: Tokens) -> Rows:
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

    def _noised(self, c: Rows, alpha: Tensor) -> Rows:
        return alpha * c + (1 - alpha) / self.states

    def likelihood(self, present: Tokens, t: Tensor) -> Rows:
        kept = present.unsqueeze(1) == torch.arange(self.states, device=present.device)
        return self._noised(kept.to(torch.float64), self.schedule.alpha(t))

    def score(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        p = self._noised(c, self.schedule.alpha(t))
        return p / p.gather(1, present.unsqueeze(1))

    def from_score(self, score: Rows, present: Tokens, t: Tensor) -> Rows:
        alpha = self.schedule.alpha(t)
        return (score / score.sum(1, keepdim=True) - (1 - alpha) / self.states) / alpha

    def intensity(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        return _without(self.score(c, present, t) * (self.schedule.sigma(t) / self.states), present)

    def intensity_bound(self, x: Sequences, t: Tensor) -> Bound:
        # p_t(present | others) is at least (1 - alpha)/S
        bound = self.schedule.sigma(t) * (1 / (1 - self.schedule.alpha(t)) - 1 / self.states)
        return bound.view(-1, 1)

    def kernel(self, c: Rows, present: Tokens, alpha_t: Tensor, alpha_s: Tensor) -> Rows:
        back, here = self._noised(c, alpha_s), present.unsqueeze(1)
        a = alpha_t / alpha_s
        normaliser = a * back.gather(1, here) + (1 - a) / self.states
        return _without(back * ((1 - a) / self.states) / normaliser, present)

    def kernel_bound(self, x: Sequences, alpha_t: Tensor, alpha_s: Tensor) -> Bound:
        # staying is least likely where the clean token is surely another one
        a, least = alpha_t / alpha_s, (1 - alpha_s) / self.states
        stay = least * (a + (1 - a) / self.states) / (a * least + (1 - a) / self.states)
        return (1 - stay).view(-1, 1)

    def ceiling(self, high: float, low: float) -> float:
        return -1 / math.expm1(-low) - 1 / self.states  # decreasing in -log alpha


FEW = 8
"""Values up to which one matrix for each row takes less time than a row's own series."""


@dataclass(frozen=True, eq=False)
class RateMatrix:
    """Any generator on one position, scaled by sigma(t): ``rates[i, j]`` is the rate from value i to value j.

    The rows of `rates` sum to zero, and from every value the same set of values is reached in the end, so that
    there is one stationary law, the prior.
    """

    rates: Tensor
    schedule: Schedule = field(default_factory=Constant)
    mask = None
    known_totals = False

    def __post_init__(self) -> None:
        require_schedule(self.schedule)
        r = self.rates
        shape = tuple(r.shape) if isinstance(r, Tensor) else type(r).__name__
        require(
            isinstance(r, Tensor) and r.ndim == 2 and r.shape[0] == r.shape[1] > 1,
            "rates",
            shape,
            "give a square torch tensor of rates, at least 2 x 2",
        )
        r = r.detach().to(torch.float64)
        object.__setattr__(self, "rates", r)
        require(bool(torch.isfinite(r).all()), "rates", r.tolist(), "all rates must be finite")
        off = r - torch.diag(r.diagonal())
        require(bool((off >= 0).all()), "rates", float(off.min()), "rates between different values are at least 0")
        worst = float(r.sum(1).abs().max())
        scale = max(1.0, float(r.abs().max()))
        require(
            worst <= 1e-9 * scale,
            "rates",
            worst,
            "rows must sum to 0: set the diagonal to minus the row's rest",
        )
        zeros = int((torch.linalg.svdvals(r) < 1e-12 * scale * len(r)).sum())
        require(zeros == 1, "rates", zeros, "needs one stationary law, but this many independent ones exist")

    @classmethod
    def ring(cls, states: int, schedule: Schedule | None = None) -> RateMatrix:
        """Steps of -1 and +1 on a circle, each at rate 1/2."""
        require_count("states", states, least=3)
        eye = torch.eye(states, dtype=torch.float64)
        return cls((eye.roll(1, 1) + eye.roll(-1, 1)) / 2 - eye, schedule or Constant())

    @classmethod
    def birth_death(cls, states: int, schedule: Schedule | None = None) -> RateMatrix:
        """Steps of -1 and +1 on ordered values, each at rate 1/2, with walls at both ends."""
        require_count("states", states, least=2)
        near = torch.ones(states - 1, dtype=torch.float64) / 2
        moves = torch.diag(near, 1) + torch.diag(near, -1)
        return cls(moves - torch.diag(moves.sum(1)), schedule or Constant())

    @property
    def states(self) -> int:
        return len(self.rates)

    @property
    def _speed(self) -> float:
        """The largest rate of leaving, q."""
        return float(-self.rates.diagonal().min())

    @property
    def stationary(self) -> Float64[Tensor, " S"]:
        """The law the forward process forgets into."""
        system = torch.cat([self.rates.T, torch.ones(1, self.states, dtype=torch.float64)])
        target = torch.zeros(self.states + 1, dtype=torch.float64)
        target[-1] = 1
        return torch.linalg.lstsq(system, target.unsqueeze(1)).solution.flatten().clamp_min(0)  # rounding below 0

    def transition(self, total: Tensor) -> Float64[Tensor, "*k S S"]:
        """``exp(total * rates)`` for every entry of `total` = -log alpha.

        Summed over the jumps of the uniformised chain and squared up, so that only non-negative numbers are
        added and even the smallest entries keep their relative precision, which score ratios need.
        """
        most = self._speed * float(total.max()) if total.numel() else 0.0
        squarings = max(0, math.ceil(math.log2(max(1.0, most))))
        mean = (self._speed * total / 2**squarings).unsqueeze(-1)
        each = torch.arange(1, len(self._powers), dtype=torch.float64)
        poisson = torch.exp(-mean) * torch.cat([torch.ones_like(mean), torch.cumprod(mean / each, -1)], -1)
        result = torch.tensordot(poisson, self._powers, 1)
        for _ in range(squarings):
            result = result @ result
        return result

    @cached_property
    def _powers(self) -> Float64[Tensor, "k S S"]:
        """Of the uniformised chain's transition matrix, as many as matter where it jumps once on average."""
        moves = torch.eye(self.states, dtype=torch.float64) + self.rates / self._speed
        powers = [torch.eye(self.states, dtype=torch.float64)]
        for _ in range(self.states + 23):
            powers.append(powers[-1] @ moves)
        return torch.stack(powers)

    def _total(self, t: Tensor) -> Tensor:
        return -torch.log(self.schedule.alpha(t))

    def _noised(self, c: Rows, t: Tensor) -> Rows:
        return self._run(c, self._total(t), self.rates)

    def _run(self, rows: Rows, total: Tensor, rates: Tensor) -> Rows:
        """``rows @ exp(total * rates)``; with a total for each row, summed over the jumps of the uniformised chain."""
        if total.ndim == 0 or self.states <= FEW:
            forward = self.transition(total.squeeze(-1)) if total.ndim else self.transition(total)
            forward = forward if rates is self.rates else forward.mT
            return rows @ forward if total.ndim == 0 else (rows.unsqueeze(1) @ forward).squeeze(1)
        stay_or_go = torch.eye(self.states, dtype=torch.float64) + rates / self._speed
        mean = self._speed * total
        most = float(mean.max()) if len(mean) else 0.0
        result = torch.zeros_like(rows)
        for k in range(self.states + 24 + math.ceil(most + 10 * math.sqrt(most))):
            result += rows * torch.exp(torch.xlogy(torch.full_like(mean, k), mean) - mean - math.lgamma(k + 1))
            rows = rows @ stay_or_go
        return result

    def prior(self, batch: int, length: int, noise: Noise) -> Sequences:
        positions = torch.arange(batch * length)
        rows = self.stationary.expand(len(positions), -1)
        return noise(Draw.PRIOR).choose(positions, length, rows, stay=False).view(batch, length)

    def active(self, x: Sequences) -> Bool[Tensor, "b d"]:
        return torch.ones_like(x, dtype=torch.bool)

    def likelihood(self, present: Tokens, t: Tensor) -> Rows:
        return self._reached(present, self._total(t))

    def _reached(self, present: Tokens, total: Tensor) -> Rows:
        """How likely each value is to be at `present` after `total`."""
        if total.ndim == 0:
            return self.transition(total).T[present]
        return self._run(torch.eye(self.states, dtype=torch.float64)[present], total, self.rates.T)

    def score(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        p = self._noised(c, t)
        return p / p.gather(1, present.unsqueeze(1))

    def from_score(self, score: Rows, present: Tokens, t: Tensor) -> Rows:
        p = score / score.sum(1, keepdim=True)
        forward = self.transition(self._total(t.flatten()))  # one matrix, or one a row
        return torch.linalg.solve(forward.mT, p.unsqueeze(-1)).squeeze(-1)

    def intensity(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        rates = self.rates.T[present] * self.schedule.sigma(t)
        return _without(self.score(c, present, t) * rates, present)

    def _totals(self, total: Tensor) -> Float64[Tensor, "*k S S"]:
        """[i, x]: total intensity at x, per unit of -log alpha, if the clean token is surely i."""
        p, off = self.transition(total), self.rates - torch.diag(self.rates.diagonal())
        return (p @ off) / p

    def intensity_bound(self, x: Sequences, t: Tensor) -> Bound:
        # totals are ratios of averages over c, so the surest c is the worst
        worst = self._totals(self._total(t.flatten())).amax(1) * self.schedule.sigma(t).view(-1, 1)
        return worst.expand(len(x), -1).gather(1, x)

    def kernel(self, c: Rows, present: Tokens, alpha_t: Tensor, alpha_s: Tensor) -> Rows:
        back = self._run(c, -torch.log(alpha_s), self.rates)
        joint = back * self._reached(present, torch.log(alpha_s / alpha_t))
        return _without(joint / joint.sum(1, keepdim=True), present)

    def kernel_bound(self, x: Sequences, alpha_t: Tensor, alpha_s: Tensor) -> Bound:
        early, late = (self.transition(-torch.log(alpha.flatten())) for alpha in (alpha_s, alpha_t))
        stays = self.transition(torch.log(alpha_s / alpha_t).flatten()).diagonal(dim1=1, dim2=2)
        least = (early * stays.unsqueeze(1) / late).amin(1)
        return (1 - least).clamp(0, 1).expand(len(x), -1).gather(1, x)  # rounding

    def ceiling(self, high: float, low: float) -> float:
        # Let K be the number of jumps of the uniformised chain given both ends. The total intensity is
        # E[K]/u - q + |R(x, x)| at u = -log alpha, and E[K] grows with u (its law is an exponential family in
        # log u), so that E[K]/u <= E_high[K]/low on [low, high].
        slack = self._speed + self.rates.diagonal()
        return float(((self._totals(torch.tensor(high, dtype=torch.float64)) + slack) * (high / low) - slack).max())
