"""What float32 noise does to a draw: exact laws over all numbers that there are, and samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import thetaleap as tl
from thetaleap.models.oracles import Mixture
from thetaleap.reproduction.legacy import LAWS, Law, Legacy, drawn, exponential

ALARM = 5.4
"""Standard errors of a binomial share, beyond which by chance is less than 1e-7."""
NUMBERS = 2**24
C = (0.6, 0.4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


def noise_values() -> np.ndarray:
    """All values of the noise, in order; each is as likely."""
    u = torch.arange(NUMBERS, dtype=torch.float64) / NUMBERS
    return np.sort(exponential(u).numpy())


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return noise_values()


def chance(values: np.ndarray, p: np.ndarray, which: int) -> float:
    """The exact probability that `which` has the largest p/e, ties aside, if each has its own e of `values`."""
    rest = np.delete(p, which)
    own = values[: np.searchsorted(values, 60 * p[which] / rest.max())]  # beyond, e^-60 of winning
    ratio = (p[which] / own.astype(np.float64))[:, None]
    above = NUMBERS - np.searchsorted(values, (rest[None] / ratio).astype(np.float32), side="right")
    return float((above / NUMBERS).prod(1).sum() / NUMBERS)


def test_the_noise_is_float32(values: np.ndarray) -> None:
    assert values[0] == pytest.approx(2.0**-24, rel=1e-2), "and nothing between it and 0"
    assert values[-1] == pytest.approx(-math.log(1e-10), rel=1e-3)
    assert values.mean(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def kept(p: np.ndarray) -> np.ndarray:
    """What is left of a small probability p: ``r/(e^r - 1)``, ``r = 2^-24/p``.

    Beside what is likely, p wins by a noise of 2^-24 k with probability ``e^(-k r)``; the sum over k is geometric.
    """
    r = 2.0**-24 / p
    return r / np.expm1(np.minimum(r, 700))


def test_rare_values_vanish_with_steps(values: np.ndarray) -> None:
    """A value of probability c has c/N in the first of N steps. The law of the value drawn should not depend on N."""
    share: dict[int, list[float]] = {}
    for steps in (1, 16, 256, 4096):
        p = np.array([*(c / steps for c in C), 1 - 1 / steps][: len(C) + (steps > 1)])
        share[steps] = [chance(values, p, v) / p[v] for v in range(2, len(C))]
        assert share[steps] == pytest.approx(kept(p[2 : len(C)]).tolist(), rel=0.01, abs=1e-3)
    assert share[1][0] > 0.99
    assert share[256][:2] == pytest.approx([0.925, 0.423], abs=1e-3), "of 1e-4 and 1e-5"
    assert share[4096] == pytest.approx([0.232, 0, 0, 0, 0], abs=1e-3)


def test_entropy_falls_with_steps() -> None:
    """Of the value drawn in the first of so many steps, from Zipf's law on as many values as GPT-2 has."""
    c = 1 / np.arange(1, 50258)
    c /= c.sum()
    entropy = {}
    for steps in (1, 16, 128, 1024):
        q = c * kept(c / steps)
        q /= q.sum()
        entropy[steps] = float(-(q[q > 0] * np.log2(q[q > 0])).sum())
    truth = float(-(c * np.log2(c)).sum())
    assert entropy[1] == pytest.approx(truth, abs=0.03)
    assert entropy[1024] < entropy[128] - 1 < entropy[16] - 1.5, "bits"


def test_a_draw_is_the_largest() -> None:
    c = torch.tensor([[0.25, 0.75], [0.25, 0.75], [0.25, 0.75]])
    u = torch.tensor([[0.99, 0.5, 0.5], [0.5, 0.99, 0.5], [0.5, 0.5, 0.99]], dtype=torch.float64)
    assert drawn(c, 0.5, u).tolist() == [0, 1, 2]


# --- as a solver


def mixture() -> Mixture:
    """Positions that do not depend on each other: what is drawn at one follows C's first three values."""
    return tl.oracles.mixture(torch.ones(1), torch.tensor([0.5, 0.3, 0.2]).expand(1, 64, 3))


def close(share: float, wanted: float, num: int) -> bool:
    return abs(share - wanted) < ALARM * math.sqrt(wanted * (1 - wanted) / num) + 1e-6


@pytest.mark.parametrize("law", LAWS)
def test_the_law_of_a_step(law: Law) -> None:
    """From t = 1 to 1/2 in one step; what is left becomes 0, the likeliest. False alarm: 2e-7 for each law."""
    num, seen = 400, []
    grid = torch.tensor([1.0, 0.5], dtype=torch.float64)
    out = tl.sample(mixture(), Legacy(law), grid=grid, num=num, seed=1, on_step=lambda moment: seen.append(moment))
    total = 0.999 * 0.5 / 0.999  # sigma alpha/(1 - alpha) = 1/t for any eps
    goes = total * math.exp(-total) if law == "tau-leaping" else total
    for value, c in ((1, 0.3), (2, 0.2)):
        assert close(float((out.x == value).double().mean()), goes * c, 64 * num)
    assert out.nfe.tolist() == [2] * num
    assert not bool((seen[1].x == 3).any()), "the last step fills the masks"


@pytest.mark.parametrize("law", LAWS)
def test_many_steps_against_the_library(law: Law) -> None:
    """On values that are not rare both draw alike, but for the fill. False alarm: 2e-7 for each."""
    num = 300
    other = {"euler": tl.Euler(), "tau-leaping": tl.TauLeaping("reject"), "tweedie": tl.Tweedie()}[law]
    found = [tl.sample(mixture(), solver, nfe=9, delta=1e-3, num=num, seed=2) for solver in (Legacy(law), other)]
    left = float(_left(law, 8))
    for value, c in ((1, 0.3), (2, 0.2)):
        one, two = (float((out.x == value).double().mean()) for out in found)
        assert close(one, c * (1 - left), 64 * num)
        assert close(two, c, 64 * num)
    assert int(found[0].nfe.max()) <= 9


def _left(law: Law, steps: int) -> Tensor:
    """The share of masks that is left at 1e-3, after equal steps."""
    times = torch.linspace(1, 1e-3, steps + 1, dtype=torch.float64)
    total = (times[:-1] - times[1:]) / times[:-1]
    return (1 - (total * torch.exp(-total) if law == "tau-leaping" else total)).prod()


def test_the_same_in_other_batches() -> None:
    model, solver = mixture(), Legacy("euler")
    whole = tl.sample(model, solver, nfe=5, num=6, seed=3).x
    assert torch.equal(tl.sample(model, solver, nfe=5, num=6, seed=3, batch_size=4).x, whole)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="Legacy unmasks positions and needs a Masked process"):
        tl.sample(tl.load("cube3-uniform"), Legacy("euler"), nfe=4)
    with pytest.raises(TypeError, match="rounded noise has no exact law here; draw samples"):
        tl.exact.law(tl.load("cube3"), Legacy("euler"), torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64))
