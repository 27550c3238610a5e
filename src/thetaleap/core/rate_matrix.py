"""Processes with any generator on one position."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from .checks import require, require_count
from .noise import Draw, Noise
from .processes import Bound, Rows, Sequences, Tokens, without
from .schedules import Constant, Schedule, require_schedule

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

    def noised(self, c: Rows, alpha: Tensor) -> Rows:
        return self._run(c, -torch.log(alpha), self.rates)

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
        p = self.noised(c, self.schedule.alpha(t))
        return p / p.gather(1, present.unsqueeze(1))

    def from_score(self, score: Rows, present: Tokens, t: Tensor) -> Rows:
        p = score / score.sum(1, keepdim=True)
        forward = self.transition(self._total(t.flatten()))  # one matrix, or one a row
        return torch.linalg.solve(forward.mT, p.unsqueeze(-1)).squeeze(-1)

    def intensity(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        rates = self.rates.T[present] * self.schedule.sigma(t)
        return without(self.score(c, present, t) * rates, present)

    def _totals(self, total: Tensor) -> Float64[Tensor, "*k S S"]:
        """[i, x]: total intensity at x, per unit of -log alpha, if the clean token is surely i."""
        p, off = self.transition(total), self.rates - torch.diag(self.rates.diagonal())
        return (p @ off) / p

    def intensity_bound(self, x: Sequences, t: Tensor) -> Bound:
        # totals are ratios of averages over c, so the surest c is the worst
        worst = self._totals(self._total(t.flatten())).amax(1) * self.schedule.sigma(t).view(-1, 1)
        return worst.expand(len(x), -1).gather(1, x)

    def kernel(self, c: Rows, present: Tokens, alpha_t: Tensor, alpha_s: Tensor) -> Rows:
        back = self.noised(c, alpha_s)
        joint = back * self._reached(present, torch.log(alpha_s / alpha_t))
        return without(joint / joint.sum(1, keepdim=True), present)

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
