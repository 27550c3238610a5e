"""Processes: conversions, kernels and bounds against matrix exponentials and Bayes' rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thetaleap as tl
from thetaleap.core.processes import Process


def generator(process: Process) -> np.ndarray:
    """The one-position generator on all values, the mask included."""
    s = process.states
    if isinstance(process, tl.RateMatrix):
        return process.rates.numpy()
    if isinstance(process, tl.Uniform):
        return np.full((s, s), 1 / s) - np.eye(s)
    g = np.zeros((s + 1, s + 1))
    g[:s, :s], g[:s, s] = -np.eye(s), 1
    return g


LOPSIDED = torch.tensor([[-1.0, 0.9, 0.1], [0.2, -0.7, 0.5], [2.0, 0.0, -2.0]], dtype=torch.float64)
PROCESSES: list[Process] = [
    tl.Masked(4),
    tl.Masked(3, tl.Cosine()),
    tl.Uniform(4),
    tl.Uniform(3, tl.LogLinear()),
    tl.RateMatrix.ring(5),
    tl.RateMatrix.birth_death(4),
    tl.RateMatrix(LOPSIDED, tl.Geometric()),
]
EACH = pytest.mark.parametrize("process", PROCESSES, ids=[f"{type(p).__name__}{p.states}" for p in PROCESSES])
times = st.floats(0.02, 0.98)
seeds = st.integers(0, 10**6)


def tensor(value) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def rows(process: Process, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random conditionals, and the present values to go with them: every one, or the mask."""
    n = process.states
    c = torch.from_numpy(np.random.default_rng(seed).dirichlet([0.3] * n, size=n)).clamp_min(1e-12)
    present = torch.arange(n) if process.mask is None else torch.full((n,), process.mask)
    return c / c.sum(1, keepdim=True), present


def forward(process: Process, alpha: float) -> np.ndarray:
    return scipy.linalg.expm(-np.log(alpha) * generator(process))


@EACH
@settings(max_examples=15)
@given(u=times, seed=seeds)
def test_score_intensity_and_likelihood(process, u, seed) -> None:
    t = tensor(u * process.schedule.horizon)
    alpha, sigma = float(process.schedule.alpha(t)), float(process.schedule.sigma(t))
    c, present = rows(process, seed)
    p, g = forward(process, alpha), generator(process)
    noised = c.numpy() @ p[: process.states]
    here = noised[np.arange(len(c)), present]
    score = noised[:, : process.states] / here[:, None]
    np.testing.assert_allclose(process.score(c, present, t), score, rtol=1e-8)
    back = process.from_score(process.score(c, present, t), present, t)
    np.testing.assert_allclose(back, c, atol=1e-9 / alpha)
    mu = sigma * g[: process.states, present].T * score
    if process.mask is None:
        mu[np.arange(len(c)), present] = 0
    np.testing.assert_allclose(process.intensity(c, present, t), mu, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(process.likelihood(present, t), p[: process.states, present].T, rtol=1e-8, atol=1e-15)
    # one time per row gives the same as one time for all
    each = t.expand(len(c), 1)
    torch.testing.assert_close(process.score(c, present, each), process.score(c, present, t), rtol=1e-9, atol=0)
    torch.testing.assert_close(process.likelihood(present, each), process.likelihood(present, t), rtol=1e-9, atol=0)
    again = process.from_score(process.score(c, present, each), present, each)
    torch.testing.assert_close(again, back, rtol=1e-6, atol=1e-9 / alpha)


@EACH
@settings(max_examples=15)
@given(u=times, share=st.floats(0.0, 0.95), seed=seeds)
def test_kernel_is_bayes_rule(process, u, share, seed) -> None:
    schedule, t = process.schedule, u * process.schedule.horizon
    a_t, a_s = float(schedule.alpha(t)), float(schedule.alpha(t * share))
    c, present = rows(process, seed)
    back, step = c.numpy() @ forward(process, a_s)[: process.states], forward(process, a_t / a_s)
    joint = back * step[:, present].T
    kernel = (joint / joint.sum(1, keepdims=True))[:, : process.states]
    if process.mask is None:
        kernel[np.arange(len(c)), present] = 0
    np.testing.assert_allclose(process.kernel(c, present, tensor(a_t), tensor(a_s)), kernel, rtol=1e-7, atol=1e-13)


def test_positions_without_a_mask_stay_where_masks_go_at_any_rate() -> None:
    """At time 0 the rate is infinite, which times nothing is not a number."""
    process, x = tl.Masked(3), torch.tensor([[3, 1]])
    assert process.intensity_bound(x, tensor(0.0)).tolist() == [[math.inf, 0.0]]
    one, each = tensor(1.0), tensor(1.0).view(1, 1)
    assert process.kernel_bound(x, one, one).tolist() == process.kernel_bound(x, each, each).tolist() == [[1.0, 0.0]]


@EACH
@settings(max_examples=20)
@given(u=times, share=st.floats(0.0, 0.99), seed=seeds)
def test_bounds_are_never_exceeded(process, u, share, seed) -> None:
    schedule, high = process.schedule, u * process.schedule.horizon
    t = tensor(high)
    c, present = rows(process, seed)
    c[0] = torch.eye(process.states, dtype=torch.float64)[seed % process.states]  # a sure one is the worst
    x = present.unsqueeze(1)
    total = process.intensity(c, present, t).sum(1, keepdim=True)
    bound = process.intensity_bound(x, t)
    assert bool((total <= bound * (1 + 1e-9)).all())
    a_t, a_s = schedule.alpha(t), schedule.alpha(t * share)
    jump = process.kernel(c, present, a_t, a_s).sum(1, keepdim=True)
    most = process.kernel_bound(x, a_t, a_s)
    assert bool((jump <= most * (1 + 1e-9) + 1e-12).all())
    assert bool((most <= 1 + 1e-12).all())
    if process.known_totals:
        torch.testing.assert_close(total, bound)
        torch.testing.assert_close(jump, most)
    # and over a stretch of -log alpha, whatever the time in it
    low, top = -float(torch.log(a_s)), -float(torch.log(a_t))
    if low > 1e-6:
        ceiling = process.ceiling(top, low)
        for total_noise in np.linspace(low, top, 7):
            now = schedule.alpha_inverse(tensor(np.exp(-total_noise)))
            per_unit = process.intensity(c, present, now).sum(1) / schedule.sigma(now)
            assert float(per_unit.max()) <= ceiling * (1 + 1e-6)


@pytest.mark.parametrize("total", [1e-6, 1e-3, 0.1, 1.0, 30.0, 3000.0])
def test_transition_keeps_small_entries(total) -> None:
    """Against exact rational arithmetic in effect: compare with a high-precision series for a ring."""
    process = tl.RateMatrix.ring(9)
    ours = process.transition(tensor(total)).numpy()
    assert ours.min() > 0
    np.testing.assert_allclose(ours.sum(1), 1, rtol=1e-12)
    if total <= 1e-3:  # the shortest way round dominates: (total/2)^k / k! for k steps, twice if both ways are short
        k = np.arange(1, 5)
        lead = (total / 2) ** k / np.array([1, 2, 6, 24])
        np.testing.assert_allclose(ours[0, 1:5], lead, rtol=2 * total)
    else:
        np.testing.assert_allclose(ours, scipy.linalg.expm(total * process.rates.numpy()), atol=1e-11)


def test_stationary_law_is_the_prior() -> None:
    process = tl.RateMatrix(LOPSIDED)
    np.testing.assert_allclose(process.stationary @ LOPSIDED, 0, atol=1e-12)
    np.testing.assert_allclose(forward(process, np.exp(-60.0)), np.tile(process.stationary, (3, 1)), atol=1e-10)


def test_rate_matrix_of_the_uniform_generator_is_uniform() -> None:
    p0 = torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=torch.float64)
    same = tl.RateMatrix(torch.full((2, 2), 0.5, dtype=torch.float64) - torch.eye(2, dtype=torch.float64))
    grid = tl.grids.power(5.0, 0.0, 4)
    for solver in (tl.Tweedie(), tl.Trapezoidal(), tl.TauLeaping(rule="reject")):
        laws = [tl.exact.law(tl.oracles.joint(p0, p, horizon=5.0), solver, grid) for p in (same, tl.Uniform(2))]
        torch.testing.assert_close(laws[0], laws[1], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tl.Masked(1), "states=1"),
        (lambda: tl.Uniform(0), "states=0"),
        (lambda: tl.RateMatrix.ring(2), "states=2"),
        (lambda: tl.RateMatrix(torch.ones(2, 3, dtype=torch.float64)), "square"),
        (lambda: tl.RateMatrix(torch.ones(2, 2, dtype=torch.float64)), "sum to 0"),
        (lambda: tl.RateMatrix(tensor([[1.0, -1.0], [1.0, -1.0]])), "at least 0"),
        (lambda: tl.RateMatrix(tensor([[-np.inf, np.inf], [1.0, -1.0]])), "finite"),
        (lambda: tl.RateMatrix(torch.zeros(2, 2, dtype=torch.float64)), "one stationary law"),
    ],
)
def test_bad_processes(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()
