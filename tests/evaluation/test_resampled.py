"""One bootstrap for all rows: errors as they should be, shared by sample numbers, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from thetaleap.evaluation.metrics.images import frechet, frechet_distance
from thetaleap.evaluation.metrics.measured import ratio
from thetaleap.evaluation.metrics.resampled import (
    BLOCK,
    RESAMPLES,
    resampled_frechet,
    resampled_mean,
    resampled_ratio,
    scatter,
    weights,
)


def test_weights_are_poisson_and_belong_to_the_number() -> None:
    """Kolmogorov's test is for continuous laws, so counts are compared: chi-squared, false alarm 1e-8."""
    whole = weights(BLOCK + 100)
    assert whole.shape == (BLOCK + 100, RESAMPLES)
    assert np.array_equal(weights(37), whole[:37])
    counts = np.bincount(whole[:500].astype(int).ravel(), minlength=7)
    expected = stats.poisson.pmf(np.arange(6), 1.0) * 500 * RESAMPLES
    seen = np.array([*counts[:6], counts[6:].sum()])
    wanted = np.array([*expected, 500 * RESAMPLES - expected.sum()])
    assert stats.chisquare(seen, wanted).pvalue > 1e-8
    assert abs(np.corrcoef(whole[0], whole[BLOCK])[0, 1]) < 0.3, "blocks are not repeated"


def test_errors_are_those_of_formulas() -> None:
    """To the 3.5% to which so many resamples know them; five times that is beyond chance at 1e-6."""
    draw = np.random.default_rng(0)
    values, sizes = torch.from_numpy(draw.gamma(2, size=300)), torch.from_numpy(draw.integers(5, 20, 300).astype(float))
    assert resampled_mean(values).value == pytest.approx(float(values.mean()))
    assert resampled_mean(values).error == pytest.approx(float(stats.sem(values.numpy())), rel=0.18)
    known = ratio(values, sizes)
    made = resampled_ratio(values, sizes)
    assert made.value == pytest.approx(known.value)
    assert made.error == pytest.approx(known.error, rel=0.18)


def test_distances() -> None:
    """A resample is the distance of weighted samples, written down plainly; the error is about the jackknife's."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=draw, dtype=torch.float64) @ torch.diag(torch.arange(1.0, 6.0).double()) + 0.5
    mean, cov = torch.zeros(5, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
    made = resampled_frechet(x, mean, cov)
    assert made.value == pytest.approx(frechet(x, mean, cov).value)
    often = torch.from_numpy(weights(200))
    for n in (0, 17, RESAMPLES - 1):
        again = x.repeat_interleave(often[:, n].long(), 0)
        plain = frechet_distance(again.mean(0), again.T.cov(), mean, cov)
        assert made.again[n] == pytest.approx(plain, rel=1e-6)
    assert made.error == pytest.approx(frechet(x, mean, cov).error, rel=0.5)


def test_few_samples() -> None:
    assert np.isfinite(resampled_mean(torch.tensor([1.0, 2.0], dtype=torch.float64)).again).all()
    assert np.isnan(scatter(np.zeros(3), 1))
