"""How far one law on a finite set is from another, and how sure an estimate of it from samples is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import probability_table, require, require_count
from ...core.noise import Use
from .measured import LEVEL, interval

MOST_CELLS = 2**24


def kl(p: Float64[Tensor, "*shape"], q: Float64[Tensor, "*shape"]) -> float:
    """``KL(p || q) = sum p log(p/q)`` in nats; infinite where q = 0 < p, and 0 log 0 = 0."""
    return float(_kl_terms(probability_table("p", p), probability_table("q", q)).sum())


def _kl_terms(p: Tensor, q: Tensor) -> Tensor:
    """``p log(p/q) - p + q``: non-negative terms that sum to the divergence, since p and q both sum to one.

    The plain terms have both signs and cancel, which buries divergences below 1e-16; these do not. Where q is near
    p, with d = (q - p)/p, they are ``p (d - log(1 + d))``.
    """
    near = (q - p).abs() < p / 2
    d = torch.where(near, q - p, 0.0) / torch.where(near, p, 1.0)
    return torch.where(near, p * (d - torch.log1p(d)), torch.xlogy(p, p) - torch.xlogy(p, q) - p + q)


def total_variation(p: Float64[Tensor, "*shape"], q: Float64[Tensor, "*shape"]) -> float:
    """``sum |p - q| / 2``: the largest difference in the probability of any event."""
    return float((probability_table("p", p) - probability_table("q", q)).abs().sum()) / 2


def histogram(x: Int64[Tensor, "num d"], states: int) -> Int64[Tensor, " ..."]:
    """How often each sequence of tokens 0 .. states-1 occurs in `x`: counts of shape ``(states,) * d``."""
    require_count("states", states)
    length = x.shape[1]
    cells = states**length
    require(cells <= MOST_CELLS, "states**d", cells, f"counts at most {MOST_CELLS} different sequences")
    if len(x) and (int(x.min()) < 0 or int(x.max()) >= states):
        worst = int(x.max()) if int(x.max()) >= states else int(x.min())
        raise ValueError(f"x holds the token {worst}: tokens must be 0 to {states - 1}")
    powers = states ** torch.arange(length - 1, -1, -1, device=x.device)
    return torch.bincount((x * powers).sum(1), minlength=cells).view((states,) * length)


def frequencies(counts: Int64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """``counts / n``, the empirical law (in float64, which torch's own division of integers is not)."""
    n = int(counts.sum())
    require(n > 0 and bool((counts >= 0).all()), "counts", n, "give the histogram of at least one sample")
    return counts.to(torch.float64) / n


def noise_floor(cells: int, num: int) -> float:
    """``(cells - 1)/(2 num)``: the KL of a law on `cells` values from the histogram of `num` *perfect* samples, on
    average and to leading order. Estimates near it say nothing about the sampler."""
    require_count("cells", cells)
    require_count("num", num)
    return (cells - 1) / (2 * num)


def bootstrap_kl(
    p: Float64[Tensor, "*shape"],
    counts: Int64[Tensor, "*shape"],
    resamples: int = 1000,
    seed: int = 0,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Percentile interval for ``KL(p || counts/n)``: the middle `level` of `bootstrap_kls`.

    It holds the divergence of the sampler's law with about this probability where that is well above
    `noise_floor`; near the floor both the estimate and the interval lie above the truth, by about the floor each.
    """
    return interval(bootstrap_kls(p, counts, resamples, seed), level)


def bootstrap_kls(
    p: Float64[Tensor, "*shape"], counts: Int64[Tensor, "*shape"], resamples: int = 1000, seed: int = 0
) -> Float64[Tensor, " resamples"]:
    """``KL(p || counts*/n)`` for histograms counts* drawn again, with replacement, from the n samples counted."""
    require_count("resamples", resamples)
    require_count("seed", seed, least=0)
    law = probability_table("p", p).flatten()
    chances, n = frequencies(counts).flatten(), int(counts.sum())
    # numpy's multinomials take about one number per cell of the library's own stream, in a stretch nobody else uses;
    # sample by sample, as `Noise` would, they take resamples * n
    generator = np.random.Generator(np.random.Philox(key=seed, counter=Use.METRICS << 192))
    again = torch.from_numpy(generator.multinomial(n, chances.numpy(), size=resamples))
    return _kl_terms(law.expand(resamples, -1), again.to(torch.float64) / n).sum(1)


def loglog_slope(steps: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Least-squares line ``log error = intercept + slope log steps``; a method of order k has slope -k.

    Every point counts the same, so leave out those that do not belong to the line. Histograms of n samples on S
    values have KL near ``(S-1)/(2n)`` (`noise_floor`) however good the sampler is, and estimates within a factor of
    a few of that flatten the line: the experiments fit points above five times the floor, and say which.
    """
    counts = len(steps), len(errors)
    remedy = "a line needs two points or more, as many of one as of the other"
    require(counts[0] == counts[1] >= 2, "(steps, errors)", counts, remedy)
    for name, values in (("steps", steps), ("errors", errors)):
        bad = [value for value in values if not 0 < value < math.inf]
        require(not bad, name, bad[:1], "logarithms need positive finite numbers: leave the others out")
    x, y = (np.log(np.asarray(values, dtype=np.float64)) for values in (steps, errors))
    require(len(set(steps)) > 1, "steps", list(steps)[:1], "a line needs two different numbers of steps")
    slope, intercept = np.polyfit(x, y, 1)
    return float(slope), float(intercept)
