"""One bootstrap for all figures of a table: sample i counts as often in a resample of every row.

Rows that share seeds depend on each other, within a budget and between budgets. Here each resample gives sample i a weight,
a Poisson number of mean 1, that is the same in every row, whatever its size. So what rows share cancels in differences, and
in means of differences over budgets, however the rows depend on each other; samples of other numbers are independent.
(Hanley and MacGibbon 2006; Chamandy et al. 2012 for the Poisson weights.)

Samples that were asked for classes in turn are not alike: how many there are of each class is given, and must not vary
among resamples. They are `strata`, within which weights are scaled to their number. Without that the error of a
distance of digits would be about twice what it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.stats import poisson
from torch import Tensor

from ...core.checks import require
from ...core.noise import Use
from .images import frechet_distance, statistics
from .measured import Measured

RESAMPLES = 400
"""The standard error is then known to 3.5%."""
BLOCK = 1024
"""Samples whose weights are made together."""
EACH = 4
"""Samples of a stratum, at least, from which its scatter is known."""
AT_ONCE = 20
"""Resamples of features that are held in memory together."""


@dataclass(frozen=True, eq=False)
class Resampled:
    """A figure of `num` samples, and what it is in each resample."""

    value: float
    again: Float64[np.ndarray, " resamples"]
    num: int

    @property
    def error(self) -> float:
        return scatter(self.again, self.num)

    @property
    def bias(self) -> float:
        """By how much resamples are above the samples, and those about as much above what they would be without end."""
        return float(self.again.mean()) - self.value

    @property
    def measured(self) -> Measured:
        return Measured(self.value, self.error)


def scatter(again: Float64[np.ndarray, " resamples"], num: int) -> float:
    """The standard error, from resamples of a linear combination of figures, the least of which has `num` samples."""
    return float(again.std(ddof=1)) * math.sqrt(num / (num - 1)) if num > 1 else math.nan


@lru_cache
def _block(number: int) -> Float64[np.ndarray, "samples resamples"]:
    """Weights of samples ``number * BLOCK`` and following: of numbers that nothing else uses."""
    generator = np.random.Generator(np.random.Philox(key=0, counter=(Use.METRICS << 192) + (1 << 128) + (number << 64)))
    table = poisson.cdf(np.arange(20), 1.0)
    return np.searchsorted(table, generator.random((BLOCK, RESAMPLES)), side="right").astype(np.float64)


def weights(num: int, strata: int = 1) -> Float64[np.ndarray, "num resamples"]:
    """How often each of the first `num` samples counts in each resample. Of several strata sample i belongs to
    ``i % strata``, and each counts as much as it does among the samples."""
    often = np.concatenate([_block(n) for n in range(-(-num // BLOCK))])[:num]
    if strata == 1:
        return often
    require(num >= EACH * strata, "strata", strata, f"{num} samples are too few; give {EACH * strata} or more")
    made = np.empty_like(often)
    for one in range(strata):
        own = often[one::strata]
        total = own.sum(0)
        made[one::strata] = np.where(total > 0, own * (len(own) / np.where(total > 0, total, 1.0)), 1.0)
    return made


def resampled_ratio(values: Float64[Tensor, " num"], sizes: Float64[Tensor, " num"], strata: int = 1) -> Resampled:
    """``sum values / sum sizes``."""
    often, each, size = weights(len(values), strata), values.numpy(), sizes.numpy()
    value, sums = float(each.sum() / size.sum()), size @ often
    again = np.where(
        sums > 0, (each @ often) / np.where(sums > 0, sums, 1.0), value
    )  # of few samples maybe none counts
    return Resampled(value, _widened(again, len(values), strata), len(values))


def resampled_mean(values: Float64[Tensor, " num"], strata: int = 1) -> Resampled:
    """The mean of one number for each sample."""
    return resampled_ratio(values, torch.ones_like(values), strata)


def _widened(again: Float64[np.ndarray, " resamples"], num: int, strata: int) -> Float64[np.ndarray, " resamples"]:
    """Each stratum's own mean takes one sample off its scatter; `scatter` knows of one in all."""
    return again.mean() + (again - again.mean()) * math.sqrt((num - 1) / (num - strata)) if strata > 1 else again


def resampled_frechet(
    features: Float[Tensor, "num w"], mean: Float64[Tensor, " w"], cov: Float64[Tensor, "w w"], strata: int = 1
) -> Resampled:
    """The squared Fréchet distance from a law with this `mean` and covariance.

    A resample is further off than the samples are, by about the bias that those have already. That is nearly the same for
    all methods, and so does not matter in differences, for which this is made.
    """
    require(len(features) > 2, "features", tuple(features.shape), "give at least three samples")
    x = features.detach().to("cpu", torch.float64)
    values, vectors = torch.linalg.eigh(cov)
    root, again = vectors * values.clamp_min(0).sqrt() @ vectors.T, []
    for often in torch.from_numpy(weights(len(x), strata)).T.split(AT_ONCE):
        total = often.sum(1, keepdim=True)
        own = often @ x / total  # the mean of each resample
        second = torch.einsum("rn,nv,nw->rvw", often, x, x)
        covs = (second - total.unsqueeze(2) * own.unsqueeze(2) * own.unsqueeze(1)) / (total.unsqueeze(2) - 1)
        cross = torch.linalg.eigvalsh(root @ covs @ root).clamp_min(0).sqrt().sum(1)
        traces = covs.diagonal(dim1=1, dim2=2).sum(1) + cov.trace()
        again.append((own - mean).square().sum(1) + traces - 2 * cross)
    widened = _widened(torch.cat(again).numpy(), len(x), strata)
    return Resampled(frechet_distance(*statistics(x), mean, cov), widened, len(x))
