"""Distances between sets of features, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.spatial import KDTree
from torch import Tensor

from thetaleap.evaluation.metrics.images import (
    Frechet,
    PrecisionRecall,
    frechet,
    frechet_distance,
    precision_recall,
    statistics,
)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(seed: int, width: int, rank: int | None = None) -> Tensor:
    factor = random(seed, width, rank or width)
    return factor @ factor.T


def test_statistics_are_numpys() -> None:
    x = random(0, 50, 4) * torch.tensor([1.0, 10, 0.1, 1e3]) + 1e4
    mean, cov = statistics(x)
    np.testing.assert_allclose(mean, x.numpy().mean(0), rtol=1e-13)
    np.testing.assert_allclose(cov, np.cov(x.numpy(), rowvar=False), rtol=1e-10, atol=1e-12)
    halves = statistics(x.float())
    assert all(part.dtype == torch.float64 for part in halves)


@given(st.floats(-5, 5), st.floats(0, 5), st.floats(-5, 5), st.floats(0, 5))
def test_distance_on_a_line(mean1: float, std1: float, mean2: float, std2: float) -> None:
    """``(m1 - m2)^2 + (s1 - s2)^2``."""
    parts = [torch.tensor([m], dtype=torch.float64) for m in (mean1, std1**2, mean2, std2**2)]
    found = frechet_distance(parts[0], parts[1].view(1, 1), parts[2], parts[3].view(1, 1))
    assert math.isclose(found, (mean1 - mean2) ** 2 + (std1 - std2) ** 2, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize("zeros", [0, 5])
def test_distance_where_covariances_commute(zeros: int) -> None:
    """``|m1 - m2|^2 + sum (s1 - s2)^2`` over common axes, on some of which there may be nothing."""
    axes = torch.linalg.qr(random(1, 12, 12)).Q
    std1, std2 = random(2, 12).abs(), random(3, 12).abs()
    std1[:zeros] = 0
    std2[: 2 * zeros] = 0
    means = random(4, 2, 12)
    cov1, cov2 = ((axes * std**2) @ axes.T for std in (std1, std2))
    expected = float((means[0] - means[1]).square().sum() + (std1 - std2).square().sum())
    found = frechet_distance(means[0], (cov1 + cov1.T) / 2, means[1], (cov2 + cov2.T) / 2)
    assert math.isclose(found, expected, rel_tol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_distance_by_scipys_root(seed: int) -> None:
    mean1, mean2, cov1, cov2 = random(seed, 9), random(seed + 50, 9), covariance(seed, 9), covariance(seed + 90, 9)
    root = np.real(sqrtm((cov1 @ cov2).numpy()))
    expected = float((mean1 - mean2).square().sum() + (cov1 + cov2).trace()) - 2 * np.trace(root)
    assert math.isclose(frechet_distance(mean1, cov1, mean2, cov2), expected, rel_tol=1e-9)
    assert math.isclose(frechet_distance(mean2, cov2, mean1, cov1), expected, rel_tol=1e-9)


@pytest.mark.parametrize("rank", [1, 3, 40])
def test_a_law_is_at_no_distance_from_itself(rank: int) -> None:
    """Singular covariances included, for which the root of a product is ill conditioned."""
    mean, cov = random(5, 40), 1e3 * covariance(6, 40, rank)
    assert abs(frechet_distance(mean, cov, mean, cov)) < 1e-11 * float(cov.trace())


def test_distance_of_lines_in_the_plane() -> None:
    """Segments at an angle: the root of ``C1 C2`` has trace ``s1 s2 |cos|``."""
    angle = 0.7
    one, two = (torch.tensor([math.cos(a), math.sin(a)], dtype=torch.float64) for a in (0.0, angle))
    found = frechet_distance(one, 4 * torch.outer(one, one), one, 9 * torch.outer(two, two))
    assert math.isclose(found, 4 + 9 - 2 * 2 * 3 * math.cos(angle), rel_tol=1e-12)


def test_error_and_bias() -> None:
    """Of 200 sets of 400 samples each: the jackknife's error against their spread, its bias against their mean.

    The spread of 200 near-normal numbers is known to 5%, and the mean of 200 errors from 10 groups to 2%, 3% too low:
    0.35 is six standard deviations of their ratio, as are the bounds on the bias; a false alarm in less than 1e-8.
    """
    shift, scale = torch.tensor([0.5, 0.0, -0.3]).double(), torch.tensor([1.0, 2.0, 0.5]).double()
    mean, cov = torch.zeros(3).double(), torch.eye(3).double()
    found = [frechet(x * scale + shift, mean, cov, groups=10) for x in random(7, 200, 400, 3)]
    values, errors, biases = (_numbers(found, name) for name in ("value", "error", "bias"))
    assert abs(float(errors.mean() / values.std()) - 1) < 0.35
    truth = float(shift.square().sum() + (scale - 1).square().sum())
    excess = values - truth - biases
    assert abs(float(excess.mean())) < 6 * float(excess.std()) / math.sqrt(200)


def test_bias_of_perfect_samples() -> None:
    """Samples of the reference itself, N(0, 1) in d dimensions, are ``d/n + d(d+1)/4n`` away, to leading order in d/n.

    So is the mean of 60 such distances, and that of as many estimates of their bias, up to six standard errors (a
    false alarm in less than 1e-8) and the next order.
    """
    d, n = 10, 1000
    reference = torch.zeros(d).double(), torch.eye(d).double()
    found = [frechet(x, *reference, groups=10) for x in random(8, 60, n, d)]
    expected = (d + d * (d + 1) / 4) / n
    for part in ("value", "bias"):
        numbers = _numbers(found, part)
        assert abs(float(numbers.mean()) - expected) < 6 * float(numbers.std()) / math.sqrt(60) + d / n * expected


def _numbers(found: list[Frechet], name: str) -> Tensor:
    return torch.tensor([getattr(one, name) for one in found], dtype=torch.float64)


def test_two_groups_by_hand() -> None:
    x, mean, cov = random(9, 12, 2), torch.zeros(2).double(), torch.eye(2).double()
    whole = frechet_distance(*statistics(x), mean, cov)
    without = np.array([frechet_distance(*statistics(torch.cat([x[:n], x[n + 6 :]])), mean, cov) for n in (0, 6)])
    halves = frechet(torch.stack([x[:6], x[6:]], 1).flatten(0, 1), mean, cov, groups=2)  # one of each in turn
    assert math.isclose(halves.value, whole, rel_tol=1e-12)
    assert math.isclose(halves.error, abs(without[0] - without[1]) / 2, rel_tol=1e-9)
    assert math.isclose(halves.bias, without.mean() - whole, rel_tol=1e-9)
    assert str(Frechet(1, 0.5, 0.25)) == "1.0000 ± 0.5000 (bias 0.2500)"


def test_precision_and_recall_by_hand() -> None:
    """On a line, with k = 1: real 0, 1, 10 have radii 1, 1, 9; generated 2, 30, 30.5 have 28, 0.5, 0.5."""
    real, generated = (torch.tensor(x).double().unsqueeze(1) for x in ([0.0, 1, 10], [2.0, 30, 30.5]))
    assert precision_recall(real, generated, k=1) == PrecisionRecall(1 / 3, 1.0)
    assert precision_recall(generated, real, k=1) == PrecisionRecall(1.0, 1 / 3)
    # radii with k = 2: real 10, 9, 10; generated 28.5, 28, 28.5
    assert precision_recall(real, generated, k=2) == PrecisionRecall(1 / 3, 1.0)


def test_precision_and_recall_at_the_edge() -> None:
    """A sample just as far away as the radius is inside; equal samples make balls of no size that hold each other."""
    real = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert precision_recall(real, torch.tensor([[-3.0, 4.0], [30.0, 40.0]]), k=1).precision == 0.5
    same = torch.full((5, 100), 0.1)
    assert precision_recall(same, same, k=3) == PrecisionRecall(1.0, 1.0)
    assert precision_recall(same, same + 1e-6, k=3) == PrecisionRecall(0.0, 0.0)


def test_modes_that_are_lost_or_made_up() -> None:
    """Clusters far apart: precision is the share of generated in real clusters, recall the reverse."""
    centres = 1000 * torch.eye(4).double()
    real = torch.cat([centres[n] + random(n, 50, 4) for n in (0, 1, 2)])
    generated = torch.cat([centres[n] + 0.1 * random(9 + n, 30, 4) for n in (0, 3)])
    found = precision_recall(real, generated)
    assert found.precision == 0.5
    assert 0 < found.recall <= 1 / 3


@pytest.mark.parametrize("k", [1, 3, 7])
def test_precision_and_recall_by_trees(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thetaleap.evaluation.metrics.images.ROWS", 64)
    real, generated = random(0, 150, 3), 1.3 * random(1, 170, 3) + 0.5

    def share(x: Tensor, centres: Tensor) -> float:
        tree = KDTree(centres.numpy())
        radii = tree.query(centres.numpy(), k + 1)[0][:, k]
        inside = np.zeros(len(x), dtype=bool)
        for centre, radius in zip(centres.numpy(), radii, strict=True):
            inside[KDTree(x.numpy()).query_ball_point(centre, radius)] = True
        return float(inside.mean())

    expected = PrecisionRecall(share(generated, real), share(real, generated))
    assert 0 < expected.precision < 1
    assert precision_recall(real, generated, k) == expected


def test_errors() -> None:
    mean, cov = torch.zeros(2).double(), torch.eye(2).double()
    with pytest.raises(ValueError, match=r"features=\(1, 2\): a covariance needs at least two samples"):
        statistics(torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"features='NaN or infinite': give finite numbers"):
        statistics(torch.tensor([[0.0], [math.nan]]))
    with pytest.raises(ValueError, match=r"cov2=\(2, 2\): a covariance is symmetric"):
        frechet_distance(mean, cov, mean, torch.tensor([[1.0, 0.5], [0.0, 1.0]]).double())
    with pytest.raises(ValueError, match=r"cov1='eigenvalue -1': a covariance has none below 0"):
        frechet_distance(mean, -cov, mean, cov)
    with pytest.raises(ValueError, match=r"features=\(39, 2\): give at least 40 samples"):
        frechet(torch.zeros(39, 2), mean, cov)
    with pytest.raises(ValueError, match=r"groups=1"):
        frechet(torch.zeros(39, 2), mean, cov, groups=1)
    with pytest.raises(ValueError, match=r"generated=\(3, 2\): the 3 nearest neighbours need more than 3 samples"):
        precision_recall(torch.zeros(4, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"k=0"):
        precision_recall(torch.zeros(4, 2), torch.zeros(4, 2), k=0)
