"""Convergence orders, measured on exact laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import thetaleap as tl
from thetaleap.solvers import Solver

TOY = tl.load("toy15")
T = 12.0


def near_uniform() -> tl.oracles.Joint:
    """Entries uniform on [0.5, 1.5], normalised: so mild that clipping hardly matters."""
    p0 = torch.from_numpy(np.random.default_rng(0).uniform(0.5, 1.5, 15))
    return tl.oracles.joint(p0 / p0.sum(), tl.Uniform(15, tl.Constant()), horizon=T)


def error(model: tl.oracles.Joint, solver: Solver, steps: int) -> float:
    """Total variation between the solver's law and the data law."""
    law = tl.exact.law(model, solver, tl.grids.uniform(T, 0.0, steps))
    return 0.5 * float((law - model.p0).abs().sum())


def slope(model: tl.oracles.Joint, solver: Solver, low: int, high: int) -> float:
    return math.log(error(model, solver, low) / error(model, solver, high)) / math.log(high / low)


@pytest.mark.parametrize("rule", ["exact", "reject"])
def test_tau_leaping_is_first_order(rule) -> None:
    assert slope(TOY, tl.TauLeaping(rule=rule), 64, 256) == pytest.approx(1, abs=0.1)


def test_euler_is_first_order() -> None:
    assert slope(TOY, tl.Euler(), 64, 256) == pytest.approx(1, abs=0.1)


def test_trapezoidal_with_the_exact_rule_is_second_order() -> None:
    assert slope(near_uniform(), tl.Trapezoidal(theta=0.5, rule="exact"), 16, 64) >= 1.8


@pytest.mark.parametrize("theta", [0.3, 0.4, 0.6])
def test_trapezoidal_is_second_order_for_other_theta(theta) -> None:
    assert slope(near_uniform(), tl.Trapezoidal(theta=theta, rule="exact"), 16, 64) >= 1.7


def test_trapezoidal_with_the_papers_rule_is_first_order() -> None:
    """Dropping multiple events costs O(h^2) a step: more steps do not bring the second order back."""
    assert slope(near_uniform(), tl.Trapezoidal(theta=0.5, rule="reject"), 64, 192) == pytest.approx(1, abs=0.1)


def test_rk2_is_first_order() -> None:
    assert slope(near_uniform(), tl.RK2(theta=0.5), 48, 144) == pytest.approx(1, abs=0.1)


def test_tweedie_is_exact_in_one_dimension() -> None:
    for steps in (1, 4, 64):
        law = tl.exact.law(TOY, tl.Tweedie(), tl.grids.uniform(T, 0.0, steps))
        assert float((TOY.p0 * (TOY.p0 / law).log()).sum()) < 1e-9


@pytest.mark.parametrize("steps", [16, 64])
def test_the_exact_rule_beats_the_papers(steps) -> None:
    """At least 4x in KL on the toy, at every number of steps (numerics: at least 4x)."""
    kl = {}
    for rule in ("exact", "reject"):
        law = tl.exact.law(TOY, tl.Trapezoidal(rule=rule), tl.grids.uniform(T, 0.0, steps))
        kl[rule] = float((TOY.p0 * (TOY.p0 / law).log()).sum())
    assert kl["reject"] > 4 * kl["exact"]


def test_euler_and_tweedie_coincide_for_masked_log_linear() -> None:
    model, grid = tl.load("cube3"), torch.tensor([1.0, 0.5, 0.2, 0.01], dtype=torch.float64)
    torch.testing.assert_close(
        tl.exact.law(model, tl.Euler(), grid), tl.exact.law(model, tl.Tweedie(), grid), atol=1e-13, rtol=0
    )
