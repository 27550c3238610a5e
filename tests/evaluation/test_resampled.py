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


def test_classes_in_turn() -> None:
    """Sample i is of class i % 5, and classes lie far apart, so that what is left to chance is within them: errors are
    those of means and distances of fresh samples, within 25%, which is six times the 4% to which 300 sets know their
    scatter. If counts of classes varied, errors would be 9 and 6 times as large."""
    draw, classes, num = torch.Generator().manual_seed(1), 5, 40
    centres = 10 * torch.randn(classes, 3, generator=draw, dtype=torch.float64)
    mean, cov = torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    noise = torch.randn(300, num, 3, generator=draw, dtype=torch.float64)
    sets = noise + centres[torch.arange(num) % classes]
    for measure in (lambda x, n: resampled_mean(x[:, 0], n), lambda x, n: resampled_frechet(x, mean, cov, n)):
        made = [measure(x, classes) for x in sets]
        known = np.std([one.value for one in made], ddof=1)
        assert np.mean([one.error for one in made]) == pytest.approx(known, rel=0.25)
        assert measure(sets[0], 1).error > 4 * known
    with pytest.raises(ValueError, match=r"strata=11: 40 samples are too few; give 44 or more"):
        weights(num, 11)


def test_strata_count_as_much_in_every_resample() -> None:
    often = weights(43, 10)
    for one in range(10):
        own = often[one::10]
        assert own.sum(0) == pytest.approx(len(own))
        plain = weights(43)[one::10]
        some = plain.sum(0) > 0
        assert own[:, some] == pytest.approx(plain[:, some] * len(own) / plain[:, some].sum(0))


def test_the_bias_of_distances() -> None:
    """What is left of a distance without its bias does not depend on the number of samples: of 200 sets of 40 and of 160
    the means are five standard errors apart at most (false alarm 6e-7), where the biases are more than 20 apart."""
    draw = torch.Generator().manual_seed(2)
    mean, cov = torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    found = {}
    for num in (40, 160):
        made = [resampled_frechet(x, mean, cov) for x in torch.randn(200, num, 4, generator=draw, dtype=torch.float64)]
        rest = np.array([one.value - one.bias for one in made])
        found[num] = rest.mean(), rest.std(ddof=1) / 200**0.5, np.mean([one.bias for one in made])
    gap = abs(found[40][0] - found[160][0])
    assert gap < 5 * np.hypot(found[40][1], found[160][1])
    assert found[40][2] > 3 * found[160][2] > 0


def test_few_samples() -> None:
    assert np.isfinite(resampled_mean(torch.tensor([1.0, 2.0], dtype=torch.float64)).again).all()
    assert np.isnan(scatter(np.zeros(3), 1))
