"""Models with errors in their logits."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thetaleap as tl
from tests.models.test_more_oracles import hidden, rows
from tests.models.test_oracles import conditionals, tensor
from thetaleap.models.oracles import Oracle


def disturbance(model: tl.oracles.Noisy, x: torch.Tensor) -> torch.Tensor:
    """What was added to the logits, (b, d, S)."""
    t, positions = torch.tensor(0.5, dtype=torch.float64), torch.arange(x.numel())
    return (model(x, t).logits(positions) - model.model(x, t).logits(positions)).view(*x.shape, -1)


CHAIN = tl.oracles.markov_chain(rows(8, 5, 5) * 0.9 + 0.02, 12)
X = torch.unique(hidden(CHAIN.draw(4000, seed=2), 5, 3, 0.5), dim=0)


def test_errors_are_independent_normals() -> None:
    """Variance, distribution and correlations of some 200,000 errors, each test at 1e-9; a standard deviation off by
    1% would be caught, as would errors shared by two seeds, positions, values or sequences that differ at one
    position."""
    z = disturbance(tl.oracles.noisy(CHAIN, 0.3), X) / 0.3
    square = float((z**2).sum())
    assert 1e-9 < scipy.stats.chi2(z.numel()).cdf(square) < 1 - 1e-9
    assert scipy.stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-9
    changed = X.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 6
    others = {
        "seed": disturbance(tl.oracles.noisy(CHAIN, 0.3, seed=1), X) / 0.3,
        "position": z.roll(1, 1),
        "value": z.roll(1, 2),
        "sequence": disturbance(tl.oracles.noisy(CHAIN, 0.3), changed) / 0.3,
    }
    for name, other in others.items():
        score = float((z * other).sum()) / math.sqrt(z.numel())
        assert abs(score) < 6.2, name  # normal, by the central limit theorem: 6e-10


@settings(max_examples=30)
@given(order=st.permutations(range(12)), first=st.integers(0, 11), seed=st.integers(0, 2**64 - 1))
def test_errors_are_a_function_of_the_sequence(order: list[int], first: int, seed: int) -> None:
    """Whatever the batch, the order in it, the time, and which positions are asked about."""
    model, x = tl.oracles.noisy(CHAIN, 1.0, seed), X[:12]
    whole = disturbance(model, x)
    assert torch.equal(disturbance(model, x[order]), whole[order])
    assert torch.equal(disturbance(model, x[first:]), whole[first:])
    again = model(x, torch.linspace(0.1, 0.9, 12, dtype=torch.float64)).logits(torch.tensor([17, 3]))
    assert torch.equal(again, model(x, torch.tensor(0.2, dtype=torch.float64)).logits(torch.arange(30))[[17, 3]])


def test_a_noisy_model_keeps_the_truth() -> None:
    model = tl.oracles.noisy(CHAIN, 0.5)
    x = model.draw(50, seed=4)
    assert isinstance(model, Oracle)
    assert torch.equal(x, CHAIN.draw(50, seed=4))
    assert torch.equal(model.log_prob(x), CHAIN.log_prob(x))
    assert model.entropy() == CHAIN.entropy()
    assert torch.equal(conditionals(tl.oracles.noisy(CHAIN, 0.0), X, 0.5), conditionals(CHAIN, X, 0.5))
    assert (model.length, model.horizon, model.time_free, model.device) == (12, 1.0, True, CHAIN.device)
    assert model.shape == (12,)


def test_errors_leave_the_impossible_impossible_and_kinds_alike() -> None:
    p0 = tensor([[0.5, 0.0], [0.2, 0.3]])
    model = tl.oracles.noisy(tl.oracles.joint(p0, tl.Masked(2)), 2.0)
    seen = model(torch.tensor([[0, 2], [0, 2]]), torch.tensor(0.5, dtype=torch.float64))
    assert seen.logits(torch.tensor([1, 3]))[:, 1].tolist() == [-math.inf] * 2
    kinds = seen.duplicates()
    assert kinds is not None
    assert kinds.kind.tolist() == [2, 2]


def test_a_noisy_network() -> None:
    """Any denoiser can be disturbed; one without a truth has none to give."""
    network = tl.from_network(tl.Masked(3), length=4, network=lambda x, t: torch.zeros((*x.shape, 3)))
    model = tl.oracles.noisy(network, 0.1)
    assert tl.sample(model, tl.TauLeaping(), nfe=4, num=5).x.shape == (5, 4)
    assert model.shape is None
    with pytest.raises(ValueError, match=r"model=Network: .*wrap an oracle"):
        model.draw(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tl.oracles.noisy(CHAIN, -0.1), "scale=-0.1"),
        (lambda: tl.oracles.noisy(CHAIN, math.inf), "scale=inf"),
        (lambda: tl.oracles.noisy(CHAIN, 0.1, seed=-1), "seed=-1"),
        (lambda: tl.oracles.noisy(CHAIN, 0.1, seed=2**64), r"below 2\*\*64"),
    ],
)
def test_bad_arguments(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
