"""Mixtures of products."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import probability_table, require, require_count
from ...core.evaluation import Conditionals
from ...core.noise import CPU, Stream
from ...core.processes import Masked, Process
from ._common import OnDemand, checked_horizon, tokens


@dataclass(frozen=True, eq=False)
class Mixture:
    """``P(x) = sum_k weights[k] prod_l positions[k, l, x_l]``: all positions depend on each other through k."""

    weights: Float64[Tensor, " K"]
    positions: Float64[Tensor, "K d S"]
    process: Process
    horizon: float
    device = CPU

    @property
    def length(self) -> int:
        return self.positions.shape[1]

    @property
    def shape(self) -> None:
        return None

    @property
    def time_free(self) -> bool:
        return self.process.mask is not None

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
        x = tokens(x, self.length, self.process.states)
        fit = self.positions.log().gather(2, x.T.expand(len(self.weights), -1, -1)).sum(1)
        return torch.logsumexp(fit + self.weights.log().unsqueeze(1), 0)

    def entropy(self) -> float:
        """Summed over all sequences, or over all compositions where the positions of each component are alike."""
        states, length = self.process.states, self.length
        if states**length <= 2**20:
            x = torch.cartesian_prod(*[torch.arange(states)] * length).view(-1, length)
            log_p = self.log_prob(x)
            return float(-(log_p.exp() * log_p.nan_to_num(neginf=0.0)).sum())
        duplicates = bool((self.positions == self.positions[:, :1]).all())
        kinds = math.comb(length + states - 1, states - 1)
        size = f"{states}**{length} sequences"
        remedy = "has no closed form at this size; estimate it by -model.log_prob(model.draw(10_000)).mean()"
        require(duplicates and kinds <= 2**20, "entropy of a mixture", size, remedy)
        bars = torch.tensor(list(itertools.combinations(range(length + states - 1), states - 1)))
        edges = (
            torch.nn.functional.pad(bars, (1, 0), value=-1),
            torch.nn.functional.pad(bars, (0, 1), value=length + states - 1),
        )
        counts = (edges[1] - edges[0] - 1).to(torch.float64)
        ways = math.lgamma(length + 1) - torch.lgamma(counts + 1).sum(1)
        log_position = self.positions[:, 0].log()
        fit = torch.where(counts.unsqueeze(1) > 0, counts.unsqueeze(1) * log_position, 0.0).sum(2)
        log_p = torch.logsumexp(fit + self.weights.log(), 1)
        return float(-((ways + log_p).exp() * log_p.nan_to_num(neginf=0.0)).sum())

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        require_count("num", num)
        noise, each = Stream(seed, 0, num), torch.arange(num)
        k = noise.at(0)("component").choose(each, 1, self.weights.expand(num, -1), stay=False)
        columns = [
            noise.at(1 + position)("draw").choose(each, 1, self.positions[k, position], stay=False)
            for position in range(self.length)
        ]
        return torch.stack(columns, 1)


def mixture(
    weights: Tensor, positions: Tensor, process: Process | None = None, horizon: float | None = None
) -> Mixture:
    """A mixture of products: component k has probability ``weights[k]`` and position laws ``positions[k, l]``."""
    w, p = probability_table("weights", weights), probability_table("positions", positions, dim=-1)
    require(
        p.ndim == 3 and w.shape == p.shape[:1],
        "shapes",
        (tuple(w.shape), tuple(p.shape)),
        "give (K,) and (K, d, S)",
    )
    process = Masked(p.shape[2]) if process is None else process
    require(process.states == p.shape[2], "process.states", process.states, f"the mixture has {p.shape[2]}")
    return Mixture(w, p, process, checked_horizon(process, horizon))
