"""Losses: least at an oracle's conditionals, and there equal to what they bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests.cases import dirichlet
from thetaleap.core.bounds import score_entropies, uniform_entropies
from thetaleap.core.noise import Stream
from thetaleap.training import masked_bound, noised, score_entropy

P0 = dirichlet(3, (3, 3), 0.7)
STATES = torch.cartesian_prod(torch.arange(3), torch.arange(3))
ENTROPY = float(-(P0 * P0.log()).sum())
MASKED: Any = tl.oracles.joint(P0, tl.Masked(3))
UNIFORM: Any = tl.oracles.joint(P0, tl.Uniform(3), 5.0)


def logits_of(model, x: Tensor, t: Tensor) -> Tensor:
    return model(x, t).logits(torch.arange(x.numel())).view(*x.shape, -1)


def everything(model) -> tuple[Tensor, Tensor]:
    """All pairs of clean and noised sequences."""
    values = model.process.states + (model.process.mask is not None)
    ends = torch.cartesian_prod(torch.arange(values), torch.arange(values))
    return STATES.repeat_interleave(len(ends), 0), ends.repeat(len(STATES), 1)


def chance(model, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
    """P(x0, xt at time t)."""
    forward = torch.ones(len(x0), dtype=torch.float64)
    for position in range(2):
        rows = model.process.likelihood(xt[:, position], t)
        forward = forward * rows.gather(1, x0[:, position].unsqueeze(1)).squeeze(1)
    return P0[x0[:, 0], x0[:, 1]] * forward


def integral(model, loss, change: float = 0.0, low: float = 0.0) -> float:
    """The mean loss over data, noise and times, by quadrature; `change` spoils the logits."""
    x0, xt = everything(model)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    total = 0.0
    for piece in range(6):  # finer towards the data
        start, end = (low + (model.horizon - low) * (n / 6) ** 3 for n in (piece, piece + 1))
        for node, weight in zip(nodes, weights, strict=True):
            t = torch.tensor(start + (end - start) * (node + 1) / 2, dtype=torch.float64)
            spoil = change * torch.sin(torch.arange(3.0, dtype=torch.float64) + xt.double().sum(1).view(-1, 1, 1))
            logits = logits_of(model, xt, t) + spoil
            value = loss(model.process, logits, x0, xt, t.expand(len(x0)), model.horizon)
            share = weight * (end - start) / 2 / model.horizon
            total += share * float((chance(model, x0, xt, t) * value).nan_to_num(0.0).sum())
    return total


def last_divergence(model: Any) -> float:
    """What the noise at the horizon still tells of the data, on average, without masks."""
    x0, xt = everything(model)
    t = torch.tensor(model.horizon, dtype=torch.float64)
    p = chance(model, x0, xt, t)
    return float((p * torch.log(9 * p / P0[x0[:, 0], x0[:, 1]])).sum())


def test_the_masked_bound_is_the_entropy_at_the_truth() -> None:
    """Log-linear with alpha = 1 - (1 - eps) t: the integral leaves out masks beyond 1 - eps, a part eps of a nat."""
    bound = integral(MASKED, masked_bound)
    assert bound == pytest.approx(ENTROPY, abs=5e-3)
    fine = tl.oracles.joint(P0, tl.Masked(3, tl.LogLinear(eps=1e-7)))
    assert integral(fine, masked_bound) == pytest.approx(ENTROPY, abs=1e-6)


def test_the_score_entropy_is_the_entropy_at_the_truth_without_masks() -> None:
    bound = integral(UNIFORM, score_entropy) + last_divergence(UNIFORM)
    assert bound == pytest.approx(ENTROPY, abs=2e-3)


def test_both_losses_agree_with_masks() -> None:
    """At masked positions intensities are conditionals times a known rate, and the two losses are one."""
    x0, xt = everything(MASKED)
    seen = ((xt == x0) | (xt == 3)).all(1)
    t = torch.full((int(seen.sum()),), 0.4, dtype=torch.float64)
    logits = torch.randn(len(t), 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = (MASKED.process, logits, x0[seen], xt[seen], t, MASKED.horizon)
    torch.testing.assert_close(score_entropy(*parts), masked_bound(*parts))


@pytest.mark.parametrize(("model", "loss"), [(MASKED, masked_bound), (MASKED, score_entropy), (UNIFORM, score_entropy)])
def test_losses_are_least_at_the_truth(model, loss) -> None:
    at_truth = integral(model, loss)
    for change in (0.3, -0.3, 1.0):
        assert integral(model, loss, change) > at_truth + 1e-3


def test_lambda_weights_are_the_same_integral() -> None:
    """The mean over lambda = 1 - alpha of f/lambda is the mean over t of f times the rate, by change of variable."""
    x0, xt = torch.tensor([[0, 1]]), torch.tensor([[3, 1]])
    t = torch.tensor([0.37], dtype=torch.float64)
    logits = torch.tensor([[[0.2, -0.1, 0.4], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    by_t = masked_bound(MASKED.process, logits, x0, xt, t, 1.0)
    by_lambda = masked_bound(MASKED.process, logits, x0, xt, t, 1.0, weighting="lambda")
    speed = float(MASKED.process.schedule.sigma(t) * MASKED.process.schedule.alpha(t))  # d lambda / dt
    assert float(by_t) == pytest.approx(float(by_lambda) * speed)


@pytest.mark.parametrize("process", [tl.Masked(3), tl.Uniform(3), tl.RateMatrix.birth_death(3)])
def test_noised_sequences_follow_the_forward_law(process) -> None:
    """By 30,000 draws: a frequency is off by 0.02 with a chance below 1e-10 (Hoeffding), of which there are 20."""
    x0, t = torch.tensor([[0, 2]]).repeat(30_000, 1), torch.full((30_000,), 0.6, dtype=torch.float64)
    xt = noised(process, x0, t, Stream(0, 0, len(x0)))
    for position, clean in enumerate((0, 2)):
        for value in range(3 + (process.mask is not None)):
            row = process.likelihood(torch.tensor([value]), torch.tensor(0.6, dtype=torch.float64))
            assert float((xt[:, position] == value).double().mean()) == pytest.approx(float(row[0, clean]), abs=0.02)


def test_losses_have_gradients() -> None:
    for model, loss in ((MASKED, masked_bound), (UNIFORM, score_entropy)):
        logits = torch.zeros(4, 2, 3, dtype=torch.float32, requires_grad=True)
        x0 = torch.tensor([[0, 1], [2, 2], [1, 0], [1, 1]])
        t = torch.full((4,), 0.5, dtype=torch.float64)
        xt = noised(model.process, x0, t, Stream(1, 0, 4))
        loss(model.process, logits, x0, xt, t, model.horizon).sum().backward()
        assert logits.grad is not None
        assert bool(torch.isfinite(logits.grad).all())
        assert math.isfinite(float(logits.grad.abs().sum()))


@pytest.mark.parametrize("states", [2, 7, 300])
def test_one_pass_over_the_values_is_the_sum_over_them(states: int) -> None:
    process, generator = tl.Uniform(states, tl.LogLinear()), torch.Generator().manual_seed(states)
    logits = 4 * torch.randn(400, states, generator=generator, dtype=torch.float64)
    clean, other = torch.randint(states, (2, 400), generator=generator)
    present = torch.where(torch.rand(400, generator=generator) < 0.5, clean, other)
    t = 1e-3 + 0.998 * torch.rand(400, 1, generator=generator, dtype=torch.float64)
    summed = score_entropies(process, torch.softmax(logits, 1), clean, present, t)
    torch.testing.assert_close(uniform_entropies(process, logits, clean, present, t), summed, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        uniform_entropies(process, logits.float(), clean, present, t), summed, rtol=1e-3, atol=1e-3
    )
