"""Pseudo-likelihood, against closed forms and second implementations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests.core.test_batches import in_parts
from thetaleap.evaluation.metrics.likelihood import pseudo_log_likelihood


def of_law(model: Any, x: Tensor) -> Tensor:
    """``log p(x_l | others)`` of every position, (num, d), from the likelihoods of all replacements alone."""
    result = torch.empty(x.shape, dtype=torch.float64)
    for position in range(x.shape[1]):
        other = x.unsqueeze(1).repeat(1, model.process.states, 1)
        other[:, :, position] = torch.arange(model.process.states)
        log_p = torch.log_softmax(model.log_prob(other.flatten(0, 1)).view(len(x), -1), 1)
        result[:, position] = log_p.gather(1, x[:, position : position + 1]).squeeze(1)
    return result


@pytest.mark.parametrize("name", ["cube3", "chain64", "ising4x16", "mixture32"])
def test_pseudo_likelihood_is_exact_on_oracles(name: str) -> None:
    model: Any = tl.load(name)
    x = model.draw(5, 3)
    wanted = of_law(model, x)
    found = pseudo_log_likelihood(model, x, batch_size=50)
    torch.testing.assert_close(found.each, wanted.mean(1))
    assert found.value == pytest.approx(float(wanted.mean()))
    assert found.error == pytest.approx(float(wanted.mean(1).std()) / math.sqrt(5))
    assert found.nfe == 5 * model.length
    some = torch.tensor([2, 0])
    torch.testing.assert_close(pseudo_log_likelihood(model, x, some).each, wanted[:, some].mean(1))


def test_subsets_of_positions_leave_the_mean() -> None:
    """3000 copies of one sequence, of which 2 of 3 positions are asked about: all subsets occur, each about as
    often. (Off by five standard errors once in two million.)"""
    model: Any = tl.load("cube3")
    x, pairs = model.draw(1, 3), list(itertools.combinations(range(3), 2))
    wanted = of_law(model, x)[0]
    found = pseudo_log_likelihood(model, x.expand(3000, -1), per_sample=2, seed=5)
    means = torch.stack([wanted[list(pair)].mean() for pair in pairs])
    nearest = (found.each.unsqueeze(1) - means).abs().min(1)
    assert float(nearest.values.max()) < 1e-12
    assert bool((torch.bincount(nearest.indices, minlength=3) > 800).all())
    assert abs(found.value - float(wanted.mean())) < 5 * found.error
    again = pseudo_log_likelihood(model, x.expand(3000, -1), per_sample=2, seed=5)
    assert torch.equal(found.each, again.each)
    other = pseudo_log_likelihood(model, x.expand(3000, -1), per_sample=2, seed=6)
    assert not torch.equal(found.each, other.each)


@pytest.mark.parametrize("per_sample", [None, 3])
def test_pseudo_likelihood_does_not_depend_on_parts(per_sample: int | None) -> None:
    """Positions are chosen by the numbers of samples, and a network sees the same batches, to the last bit."""
    model: Any = tl.load("chain64")
    weights = torch.randn((17, 16), generator=torch.Generator().manual_seed(0))
    network: Any = tl.from_network(
        model.process,
        length=64,
        network=lambda x, t: torch.nn.functional.one_hot(x, 17).float().cumsum(1) @ weights,
        horizon=model.horizon,
    )
    x = model.draw(23, 1)
    for one in (model, network):
        how = {"per_sample": per_sample, "seed": 3, "batch_size": 5}
        whole, parts = (pseudo_log_likelihood(one, of, **how) for of in (x, in_parts(x, 2, 9, 12)))
        assert torch.equal(whole.each, parts.each)
        assert (whole.value, whole.error, whole.nfe) == (parts.value, parts.error, parts.nfe)


def test_true_samples_are_likelier_than_noise() -> None:
    model: Any = tl.load("chain64")
    noise = torch.randint(16, (20, 64), generator=torch.Generator().manual_seed(0))
    true, false = (pseudo_log_likelihood(model, x, per_sample=8) for x in (model.draw(20, 1), noise))
    assert true.value - false.value > 10 * math.hypot(true.error, false.error)


CUBE: Any = tl.load("cube3")
GOOD = torch.zeros((2, 3), dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pseudo_log_likelihood(tl.load("cube3-uniform"), GOOD),
            "model of Uniform: one position cannot be masked",
        ),
        (lambda: pseudo_log_likelihood(CUBE, GOOD[:, :2]), r"x=\(2, 2\): the model has 3 positions; give as many"),
        (lambda: pseudo_log_likelihood(CUBE, GOOD[:0]), "give at least one sequence"),
        (lambda: pseudo_log_likelihood(CUBE, GOOD + 3), r"x=\[3, 3\]: tokens must be 0 to 2, without masks"),
        (
            lambda: pseudo_log_likelihood(CUBE, GOOD, torch.tensor([3])),
            r"positions=\[3\]: give different numbers from 0",
        ),
        (
            lambda: pseudo_log_likelihood(CUBE, GOOD, torch.tensor([1, 1])),
            r"positions=\[1, 1\]: give different numbers",
        ),
        (lambda: pseudo_log_likelihood(CUBE, GOOD, per_sample=4), "per_sample=4: there are 3 positions; give at most"),
        (lambda: pseudo_log_likelihood(CUBE, GOOD, per_sample=0), "per_sample=0: give a whole number of at least 1"),
    ],
)
def test_pseudo_likelihood_errors(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
