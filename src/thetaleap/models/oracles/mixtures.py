"""Mixtures of products."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import probability_table, require, require_count
from ...core.evaluation import Conditionals
from ...core.noise import Draw, Stream
from ...core.processes import Masked, Process, require_process
from ._common import Law, OnDemand, ancestral, checked_horizon


@dataclass(frozen=True, eq=False)
class Mixture(Law):
    """``P(x) = sum_k weights[k] prod_l positions[k, l, x_l]``: all positions depend on each other through k."""

    weights: Float64[Tensor, " K"]
    positions: Float64[Tensor, "K d S"]

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        time = t if t.ndim == 0 else t.repeat_interleave(self.length).unsqueeze(1)
        likelihood = self.process.likelihood(x.flatten(), time).view(*x.shape, -1)
        # fit[b, k, l] = log P(x_l | k); what is impossible is counted apart, so that one position can be left out again
        fit = torch.einsum("bds,kds->bkd", likelihood, self.positions).log()
        ruled_out = fit == -math.inf
        fit = fit.masked_fill(ruled_out, 0.0)
        total = fit.sum(2) + self.weights.log()
        return OnDemand(lambda positions: self._rows(fit, total, ruled_out, ruled_out.sum(2), positions))

    def _rows(self, fit: Tensor, total: Tensor, ruled_out: Tensor, times: Tensor, positions: Tensor) -> Tensor:
        """Each component's position law, weighed by its posterior given all other positions."""
        row, position = positions // self.length, positions % self.length
        others = total[row] - fit[row, :, position]
        possible = times[row] == ruled_out[row, :, position].long()
        posterior = torch.softmax(others.masked_fill(~possible, -math.inf), 1).nan_to_num()
        return torch.einsum("nk,kns->ns", posterior, self.positions[:, position])

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        x = self.tokens(x)
        fit = self.positions.log().gather(2, x.T.expand(len(self.weights), -1, -1)).sum(1)
        return torch.logsumexp(fit + self.weights.log().unsqueeze(1), 0)

    def entropy(self) -> float:
        return self._entropy

    @cached_property
    def _entropy(self) -> float:
        """Summed over all sequences, or over all compositions where a component has the same law at every position."""
        states, length = self.process.states, self.length
        if states**length <= 2**20:
            x = torch.cartesian_prod(*[torch.arange(states)] * length).view(-1, length)
            log_p = self.log_prob(x)
            return float(-(log_p.exp() * log_p.nan_to_num(neginf=0.0)).sum())
        same = bool((self.positions == self.positions[:, :1]).all())
        kinds = math.comb(length + states - 1, states - 1)
        size = f"{states}**{length} sequences"
        remedy = "has no closed form at this size; estimate it by -model.log_prob(model.draw(10_000)).mean()"
        require(same and kinds <= 2**20, "entropy of a mixture", size, remedy)
        slots = length + states - 1
        bars = torch.tensor([(-1, *some, slots) for some in itertools.combinations(range(slots), states - 1)])
        counts = (bars.diff(dim=1) - 1).to(torch.float64)
        ways = math.lgamma(length + 1) - torch.lgamma(counts + 1).sum(1)
        log_position = self.positions[:, 0].log()
        fit = torch.where(counts.unsqueeze(1) > 0, counts.unsqueeze(1) * log_position, 0.0).sum(2)
        log_p = torch.logsumexp(fit + self.weights.log(), 1)
        return float(-((ways + log_p).exp() * log_p.nan_to_num(neginf=0.0)).sum())

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        require_count("num", num)
        component = Stream(seed, 0, num).at(0)(Draw.COMPONENT)
        k = component.choose(torch.arange(num), 1, self.weights.expand(num, -1), stay=False)
        return ancestral(num, seed, self.length, lambda position, _: self.positions[k, position])


def mixture(
    weights: Tensor, positions: Tensor, process: Process | None = None, horizon: float | None = None
) -> Mixture:
    """A mixture of products: component k has probability ``weights[k]`` and position laws ``positions[k, l]``."""
    w, p = probability_table("weights", weights), probability_table("positions", positions, dim=-1)
    good, shapes = p.ndim == 3 and w.shape == p.shape[:1], (tuple(w.shape), tuple(p.shape))
    require(good, "shapes of (weights, positions)", shapes, "give (K,) and (K, d, S)")
    process = Masked(p.shape[2]) if process is None else process
    require_process(process)
    require(process.states == p.shape[2], "process.states", process.states, f"the mixture has {p.shape[2]}")
    return Mixture(process, checked_horizon(process, horizon), p.shape[1], w, p)
