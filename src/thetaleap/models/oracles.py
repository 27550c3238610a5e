"""Oracles: models whose conditionals, likelihood and entropy are exact, and which can be sampled truly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..checks import probability_table, require, require_count
from ..denoiser import Alike, Conditionals, Denoiser
from ..noise import CPU, Stream, philox
from ..processes import Masked, Process

MOST_ENTRIES = 2**24


@runtime_checkable
class Oracle(Denoiser, Protocol):
    """A denoiser that knows the truth about itself."""

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        """Exact log-likelihood of clean sequences."""
        ...

    def entropy(self) -> float:
        """Exact entropy of the data law, in nats."""
        ...

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        """True samples, drawn without any diffusion."""
        ...


@dataclass(frozen=True)
class _OnDemand:
    """Conditionals computed by a function of the sites asked for."""

    rows: Callable[[Tensor], Tensor]
    same: Alike | None = None

    def alike(self) -> Alike | None:
        return self.same

    def logits(self, sites: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        return _log_or_flat(self.rows(sites))


def _log_or_flat(weights: Float64[Tensor, "n S"]) -> Float64[Tensor, "n S"]:
    """Logarithms; a row of zeros, a site whose surroundings the law cannot produce, becomes uniform."""
    impossible = (weights.amax(1, keepdim=True) == 0).expand_as(weights)
    return torch.where(impossible, 0.0, weights.log())


def _tokens(x: Tensor, length: int, states: int) -> Tensor:
    """`x` checked to be clean sequences."""
    if x.ndim != 2 or x.shape[1] != length or x.dtype != torch.int64:
        raise ValueError(f"x={tuple(x.shape)} of {x.dtype}: give int64 sequences of shape (batch, {length})")
    if len(x) and (int(x.min()) < 0 or int(x.max()) >= states):
        worst = int(x.max()) if int(x.max()) >= states else int(x.min())
        raise ValueError(f"x holds the token {worst}: clean tokens are 0 to {states - 1}")
    return x


def _horizon(process: Process, horizon: float | None) -> float:
    value = process.schedule.horizon if horizon is None else float(horizon)
    require(0 < value < math.inf, "horizon", value, "give a positive time")
    return value


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum(-1)


# --- any small joint law


@dataclass(frozen=True, eq=False)
class Joint:
    """A table of probabilities of all sequences, under any process."""

    p0: Float64[Tensor, ...]
    process: Process
    horizon: float
    table: Callable[[float], Tensor] = field(repr=False)
    device = CPU

    @property
    def length(self) -> int:
        return self.p0.ndim

    @property
    def time_free(self) -> bool:
        return self.process.mask is not None

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        states, length = self.process.states, self.length
        base = states + (self.process.mask is not None)
        code = (x * base ** torch.arange(length - 1, -1, -1)).sum(1)
        same = Alike(code, base**length)
        if self.process.mask is not None:
            return _OnDemand(lambda sites: _neighbours(self.table(0.0), code, x, sites, states, base, 0), same)
        if t.ndim == 0:
            table, apart = self.table(float(t)), states**length
            return _OnDemand(lambda sites: _neighbours(table, code, x, sites, states, base, apart), same)
        return _OnDemand(lambda sites: self._summed(x, t, sites))

    def _summed(self, x: Tensor, t: Tensor, sites: Tensor) -> Float64[Tensor, "n S"]:
        """Sum the table against the likelihoods of all other sites, for rows with times of their own."""
        row, length, states = sites // self.length, self.length, self.process.states
        each = t.repeat_interleave(length).unsqueeze(1)
        likelihood = self.process.likelihood(x.flatten(), each).view(len(x), length, states)
        result = torch.empty((len(sites), states), dtype=torch.float64)
        for site in range(length):
            here = torch.nonzero(sites % length == site).flatten()
            weights = self.p0.movedim(site, 0).reshape(1, states, *[states] * (length - 1))
            for other in reversed([m for m in range(length) if m != site]):
                factor = likelihood[row[here], other]
                weights = (weights * factor.view(len(here), *[1] * (weights.ndim - 2), states)).sum(-1)
            result[here] = weights.expand(len(here), states)
        return result

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        return self.p0[tuple(_tokens(x, self.length, self.process.states).T)].log()

    def entropy(self) -> float:
        return float(_entropy(self.p0.flatten()))

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        require_count("num", num)
        cdf = self.p0.flatten().cumsum(0)
        u = torch.from_numpy(philox(seed, (0, 0, 0, 1), num)) * cdf[-1]
        last = int(torch.nonzero(self.p0.flatten())[-1])
        flat = torch.searchsorted(cdf, u, right=True).clamp_max(last)  # u may round up to the total
        return torch.stack(torch.unravel_index(flat, self.p0.shape), 1)


def joint(p0: Tensor, process: Process, horizon: float | None = None) -> Joint:
    """The model of a small joint law: ``p0[x_1, ..., x_d]`` is the probability of the sequence x."""
    p = probability_table("p0", p0)
    states = process.states
    require(p.ndim > 0 and set(p.shape) == {states}, "p0 shape", tuple(p.shape), f"give (S,)*d with S = {states}")
    size = (states + (process.mask is not None)) ** p.ndim
    require(
        size <= MOST_ENTRIES,
        "p0 entries",
        size,
        f"tables of at most {MOST_ENTRIES} entries; use markov_chain",
    )
    if process.mask is None:
        table = lru_cache(maxsize=16)(lambda t: _leave_one_out(p, process, t))
    else:
        marginals = p
        for axis in range(p.ndim):  # the value S stands for a site summed out
            marginals = torch.cat([marginals, marginals.sum(axis, keepdim=True)], axis)
        marginals = marginals.flatten()

        def table(t: float) -> Tensor:
            return marginals

    return Joint(p, process, _horizon(process, horizon), table)


def _leave_one_out(p0: Tensor, process: Process, t: float) -> Float64[Tensor, " size"]:
    """For each site, ``P(clean value there, noised values elsewhere)``; the tables of all sites end to end."""
    states = process.states
    forward = process.likelihood(torch.arange(states), torch.tensor(t, dtype=torch.float64)).T.contiguous()
    tables = []
    for site in range(p0.ndim):
        noised = p0
        for axis in range(p0.ndim):
            if axis != site:
                noised = (noised.movedim(axis, -1) @ forward.T).movedim(-1, axis)
        tables.append(noised.flatten())
    return torch.cat(tables)


def _neighbours(
    table: Tensor, code: Tensor, x: Tensor, sites: Tensor, states: int, base: int, apart: int
) -> Float64[Tensor, "n S"]:
    """Entries of `table` at the sequences that differ from x at `sites` only, for every clean value there.

    The table is indexed by the `code` of a sequence, its digits in `base`; each site has its own, `apart` entries on.
    """
    length = x.shape[1]
    row, site = sites // length, sites % length
    stride = (base ** torch.arange(length - 1, -1, -1))[site]
    start = code[row] + apart * site - x.flatten()[sites] * stride
    return table[start.unsqueeze(1) + torch.arange(states) * stride.unsqueeze(1)]


# --- Markov chains


@dataclass(frozen=True, eq=False)
class MarkovChain:
    """``P(x) = initial[x_1] transition[x_1, x_2] ...`` under a masked process. An evaluation costs O(length)."""

    initial: Float64[Tensor, " S"]
    transition: Float64[Tensor, "S S"]
    length: int
    process: Masked
    horizon: float
    powers: Float64[Tensor, "length S S"] = field(repr=False)
    starts: Float64[Tensor, "length S"] = field(repr=False)
    time_free = True
    device = CPU

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        seen = x != self.process.mask
        place = torch.arange(self.length)
        left = torch.where(seen, place, -1).cummax(1).values
        right = torch.where(seen, place, self.length).flip(1).cummin(1).values.flip(1)
        pad = torch.nn.functional.pad  # a site does not see itself
        left = pad(left, (1, 0), value=-1)[:, :-1].flatten()
        right = pad(right, (0, 1), value=self.length)[:, 1:].flatten()
        return _OnDemand(lambda sites: self._between(x, sites, left[sites], right[sites]))

    def _between(self, x: Tensor, sites: Tensor, left: Tensor, right: Tensor) -> Float64[Tensor, "n S"]:
        """``P(value | nearest seen sites)``: the way from the left one times the way to the right one."""
        row, site = sites // self.length, sites % self.length
        before, after = x[row, left.clamp_min(0)], x[row, right.clamp_max(self.length - 1)]
        tokens = self.process.states - 1
        way_in = self.powers[(site - left).clamp_max(self.length - 1), before.clamp_max(tokens)]
        way_in = torch.where((left >= 0).unsqueeze(1), way_in, self.starts[site])
        way_out = self.powers[(right - site).clamp_max(self.length - 1), :, after.clamp_max(tokens)]
        return way_in * torch.where((right < self.length).unsqueeze(1), way_out, 1.0)

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        x = _tokens(x, self.length, self.process.states)
        return self.initial[x[:, 0]].log() + self.transition[x[:, :-1], x[:, 1:]].log().sum(1)

    def entropy(self) -> float:
        return float(_entropy(self.initial) + (self.starts[:-1] @ _entropy(self.transition)).sum())

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        require_count("num", num)
        noise = Stream(seed, 0, num)
        each = torch.arange(num)
        columns = [noise.at(0)("draw").choose(each, 1, self.initial.expand(num, -1), stay=False)]
        for site in range(1, self.length):
            columns.append(noise.at(site)("draw").choose(each, 1, self.transition[columns[-1]], stay=False))
        return torch.stack(columns, 1)


def markov_chain(
    transition: Tensor,
    length: int,
    initial: Tensor | None = None,
    process: Process | None = None,
    horizon: float | None = None,
) -> MarkovChain:
    """A masked model of a Markov chain: ``transition[i, j]`` is the probability of j after i.

    `initial` is by default the chain's stationary law.
    """
    p = probability_table("transition", transition, dim=-1)
    states = len(p)
    require(p.ndim == 2 and p.shape == (states, states), "transition shape", tuple(p.shape), "give (S, S)")
    require_count("length", length)
    process = Masked(states) if process is None else process
    if not isinstance(process, Masked):
        name = type(process).__name__
        raise ValueError(f"process={name}: a Markov chain is exact under Masked only; use joint for short sequences")
    require(process.states == states, "process.states", process.states, f"the chain has {states}")
    first = _stationary(p) if initial is None else probability_table("initial", initial)
    require(tuple(first.shape) == (states,), "initial shape", tuple(first.shape), f"give ({states},)")
    powers, starts = [torch.eye(states, dtype=torch.float64)], [first]
    for _ in range(length - 1):
        powers.append(powers[-1] @ p)
        starts.append(starts[-1] @ p)
    return MarkovChain(first, p, length, process, _horizon(process, horizon), torch.stack(powers), torch.stack(starts))


def _stationary(transition: Tensor) -> Tensor:
    states = len(transition)
    system = torch.cat([transition.T - torch.eye(states, dtype=torch.float64), torch.ones(1, states)])
    target = torch.zeros(states + 1, 1, dtype=torch.float64)
    target[-1] = 1
    p = torch.linalg.lstsq(system, target).solution.flatten().clamp_min(0)
    return p / p.sum()


# --- mixtures of products


@dataclass(frozen=True, eq=False)
class Mixture:
    """``P(x) = sum_k weights[k] prod_l sites[k, l, x_l]``: all sites depend on each other through k."""

    weights: Float64[Tensor, " K"]
    sites: Float64[Tensor, "K d S"]
    process: Process
    horizon: float
    device = CPU

    @property
    def length(self) -> int:
        return self.sites.shape[1]

    @property
    def time_free(self) -> bool:
        return self.process.mask is not None

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        time = t if t.ndim == 0 else t.repeat_interleave(self.length).unsqueeze(1)
        likelihood = self.process.likelihood(x.flatten(), time).view(*x.shape, -1)
        # fit[b, k, l] = log P(x_l | k); what is impossible is counted apart, so that one site can be left out again
        fit = torch.einsum("bds,kds->bkd", likelihood, self.sites).log()
        ruled_out = fit == -math.inf
        fit = fit.masked_fill(ruled_out, 0.0)
        total = fit.sum(2) + self.weights.log()
        return _OnDemand(lambda sites: self._rows(fit, total, ruled_out, ruled_out.sum(2), sites))

    def _rows(self, fit: Tensor, total: Tensor, ruled_out: Tensor, times: Tensor, sites: Tensor) -> Tensor:
        """Each component's site law, weighed by its posterior given all other sites."""
        row, site = sites // self.length, sites % self.length
        others = total[row] - fit[row, :, site]
        possible = times[row] == ruled_out[row, :, site].long()
        posterior = torch.softmax(others.masked_fill(~possible, -math.inf), 1).nan_to_num()
        return torch.einsum("nk,kns->ns", posterior, self.sites[:, site])

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        x = _tokens(x, self.length, self.process.states)
        fit = self.sites.log().gather(2, x.T.expand(len(self.weights), -1, -1)).sum(1)
        return torch.logsumexp(fit + self.weights.log().unsqueeze(1), 0)

    def entropy(self) -> float:
        """Summed over all sequences, or over all compositions where the sites of each component are alike."""
        states, length = self.process.states, self.length
        if states**length <= 2**20:
            x = torch.cartesian_prod(*[torch.arange(states)] * length).view(-1, length)
            log_p = self.log_prob(x)
            return float(-(log_p.exp() * log_p.nan_to_num(neginf=0.0)).sum())
        alike = bool((self.sites == self.sites[:, :1]).all())
        kinds = math.comb(length + states - 1, states - 1)
        size = f"{states}**{length} sequences"
        remedy = "has no closed form at this size; estimate it by -model.log_prob(model.draw(10_000)).mean()"
        require(alike and kinds <= 2**20, "entropy of a mixture", size, remedy)
        bars = torch.tensor(list(itertools.combinations(range(length + states - 1), states - 1)))
        edges = (
            torch.nn.functional.pad(bars, (1, 0), value=-1),
            torch.nn.functional.pad(bars, (0, 1), value=length + states - 1),
        )
        counts = (edges[1] - edges[0] - 1).to(torch.float64)
        ways = math.lgamma(length + 1) - torch.lgamma(counts + 1).sum(1)
        log_site = self.sites[:, 0].log()
        fit = torch.where(counts.unsqueeze(1) > 0, counts.unsqueeze(1) * log_site, 0.0).sum(2)
        log_p = torch.logsumexp(fit + self.weights.log(), 1)
        return float(-((ways + log_p).exp() * log_p.nan_to_num(neginf=0.0)).sum())

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        require_count("num", num)
        noise, each = Stream(seed, 0, num), torch.arange(num)
        k = noise.at(0)("component").choose(each, 1, self.weights.expand(num, -1), stay=False)
        columns = [
            noise.at(1 + site)("draw").choose(each, 1, self.sites[k, site], stay=False) for site in range(self.length)
        ]
        return torch.stack(columns, 1)


def mixture(weights: Tensor, sites: Tensor, process: Process | None = None, horizon: float | None = None) -> Mixture:
    """A mixture of products: component k has probability ``weights[k]`` and site laws ``sites[k, l]``."""
    w, p = probability_table("weights", weights), probability_table("sites", sites, dim=-1)
    require(
        p.ndim == 3 and w.shape == p.shape[:1],
        "shapes",
        (tuple(w.shape), tuple(p.shape)),
        "give (K,) and (K, d, S)",
    )
    process = Masked(p.shape[2]) if process is None else process
    require(process.states == p.shape[2], "process.states", process.states, f"the mixture has {p.shape[2]}")
    return Mixture(w, p, process, _horizon(process, horizon))
