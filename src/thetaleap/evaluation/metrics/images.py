"""Sets of images, compared by the features that some network gives them.

The Fréchet distance between two sets is that between Gaussians with their means and covariances. It is known by the
network: with the features of a certain Inception it is FID (see `models.inception`), with those of a digit classifier
it is not (see `metrics.digits`). Its estimate is biased: it is too large by about c/n for n samples, however good they
are, as samples of one law have different means and covariances. So distances may be compared between sets of the same
size alone, unless the bias, which `frechet` estimates, is small beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...core.checks import require, require_count

ROWS = 1024
"""Samples whose distances from all others are held in memory together."""


@dataclass(frozen=True)
class Frechet:
    """A squared Fréchet distance, its standard error, and by how much it is too large on average."""

    value: float
    error: float
    bias: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f} (bias {self.bias:.4f})"


@dataclass(frozen=True)
class PrecisionRecall:
    """The share of generated samples that look real, and the share of real ones that could have been generated."""

    precision: float
    recall: float


def statistics(features: Float[Tensor, "n w"]) -> tuple[Float64[Tensor, " w"], Float64[Tensor, "w w"]]:
    """Mean and covariance (with n - 1) of `features`, in float64."""
    require(len(features) > 1, "features", tuple(features.shape), "a covariance needs at least two samples")
    require(bool(torch.isfinite(features).all()), "features", "NaN or infinite", "give finite numbers")
    x = features.detach().to("cpu", torch.float64)
    mean = x.mean(0)
    rest = x - mean
    return mean, rest.T @ rest / (len(x) - 1)


def frechet_distance(
    mean1: Float64[Tensor, " w"],
    cov1: Float64[Tensor, "w w"],
    mean2: Float64[Tensor, " w"],
    cov2: Float64[Tensor, "w w"],
) -> float:
    """``|m1 - m2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2)``, the squared Fréchet distance of two Gaussians.

    (Dowson and Landau 1982.) The trace of the last root is the sum of the singular values of ``C1^1/2 C2^1/2``, which
    unlike the root of ``C1 C2`` is real and well conditioned, for singular covariances too.
    """
    cross = torch.linalg.svdvals(_root("cov1", cov1) @ _root("cov2", cov2)).sum()
    return float((mean1 - mean2).square().sum() + cov1.trace() + cov2.trace() - 2 * cross)


def frechet(
    features: Float[Tensor, "n w"], mean: Float64[Tensor, " w"], cov: Float64[Tensor, "w w"], groups: int = 20
) -> Frechet:
    """The squared distance of samples from a law with this `mean` and covariance, with its error and its bias.

    Both by the jackknife: the distance is worked out again without each of so many groups of samples. That takes a
    singular value decomposition for each. The reference is taken as it is: what its own samples add is not in it.

    Args:
        features: of independent samples, at least two for each group.
        mean: of the reference; `statistics` gives both.
        cov: its covariance.
        groups: of samples that are left out together; sample i is in group ``i % groups``.
    """
    require_count("groups", groups, least=2)
    require(len(features) >= 2 * groups, "features", tuple(features.shape), f"give at least {2 * groups} samples")
    group = torch.arange(len(features)) % groups
    kept = (features[(group != n).to(features.device)] for n in range(groups))
    without = torch.tensor([frechet_distance(*statistics(rest), mean, cov) for rest in kept], dtype=torch.float64)
    value = frechet_distance(*statistics(features), mean, cov)
    error = math.sqrt((groups - 1) / groups * float((without - without.mean()).square().sum()))
    return Frechet(value, error, (groups - 1) * (float(without.mean()) - value))


def precision_recall(real: Float[Tensor, "n w"], generated: Float[Tensor, "m w"], k: int = 3) -> PrecisionRecall:
    """Improved precision and recall (Kynkäänniemi et al. 2019, arXiv:1904.06991).

    A set's manifold is the union of balls around its samples, each as large as its distance from the k-th nearest
    other sample. Precision is the share of generated samples on the real manifold; recall the share of real ones on
    that of the generated. Both depend on the number of samples: compare them at the same.
    """
    require_count("k", k)
    for name, x in (("real", real), ("generated", generated)):
        require(len(x) > k, name, tuple(x.shape), f"the {k} nearest neighbours need more than {k} samples")
    real, generated = (x.detach().to("cpu", torch.float64) for x in (real, generated))
    return PrecisionRecall(_share_within(generated, real, k), _share_within(real, generated, k))


def _share_within(x: Float64[Tensor, "m w"], centres: Float64[Tensor, "n w"], k: int) -> float:
    """The share of `x` that lies in a ball around one of `centres`."""
    # a sample is the nearest to itself
    radii = torch.cat([_distances(some, centres).kthvalue(k + 1, 1).values for some in centres.split(ROWS)])
    inside = [(_distances(some, centres) <= radii).any(1) for some in x.split(ROWS)]
    return float(torch.cat(inside).double().mean())


def _distances(x: Float64[Tensor, "m w"], y: Float64[Tensor, "n w"]) -> Float64[Tensor, "m n"]:
    """By differences: through products of the two, equal samples would not be at distance 0."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def _root(name: str, cov: Float64[Tensor, "w w"]) -> Float64[Tensor, "w w"]:
    """The symmetric root; eigenvalues that are zero but for rounding are taken as that."""
    size = float(cov.abs().max())
    require(math.isfinite(size), name, size, "give finite numbers")
    require(float((cov - cov.T).abs().max()) <= 1e-8 * size, name, tuple(cov.shape), "a covariance is symmetric")
    values, vectors = torch.linalg.eigh(cov)
    least = float(values[0])
    require(least >= -1e-8 * size * len(cov), name, f"eigenvalue {least:g}", "a covariance has none below 0")
    noise = torch.finfo(torch.float64).eps * len(cov) * float(values[-1])
    return vectors * torch.where(values > noise, values, 0.0).sqrt() @ vectors.T
