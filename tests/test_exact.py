"""Exact laws beyond those of the shared contract."""

from __future__ import annotations

import pytest
import torch

import thetaleap as tl

CUBE, MOVING = tl.load("cube3"), tl.load("cube3-uniform")


def grid(*times: float) -> torch.Tensor:
    return torch.tensor(times, dtype=torch.float64)


def test_one_site_at_a_time_is_exact() -> None:
    for solver in (tl.FirstHitting(), tl.SemiAutoregressive(order="random"), tl.SemiAutoregressive(block_length=1)):
        law = tl.exact.law(CUBE, solver, grid(1, 0.6, 0.3, 0))
        torch.testing.assert_close(law, CUBE.p0, atol=1e-13, rtol=0)


def test_one_step_of_tweedie_is_the_product_of_marginals() -> None:
    law = tl.exact.law(CUBE, tl.Tweedie(), grid(1, 0))
    a, b, c = (CUBE.p0.sum([m for m in range(3) if m != site]) for site in range(3))
    torch.testing.assert_close(law, torch.einsum("i,j,k->ijk", a, b, c), atol=1e-13, rtol=0)


@pytest.mark.parametrize("model", [CUBE, MOVING], ids=["masked", "uniform"])
def test_the_reverse_process_ends_at_the_data(model) -> None:
    law = tl.exact.reverse_law(model, grid(model.horizon, 1e-6))
    away = float((law - model.p0).abs().max())
    # the uniform prior at T = 6 is off by alpha_T = e^-6 times what two sites know of each other
    assert away < (1e-9 if model is CUBE else 2e-3)


def test_fine_steps_approach_the_reverse_process() -> None:
    limit = tl.exact.reverse_law(MOVING, grid(3.0, 0.5))
    errors = [
        float((tl.exact.law(MOVING, tl.TauLeaping(), tl.grids.uniform(3.0, 0.5, n)) - limit).abs().sum())
        for n in (8, 16, 32)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.35)
    assert errors[1] / errors[2] == pytest.approx(2, abs=0.2)


def test_a_model_that_sees_time_has_no_enumerable_first_hitting_law() -> None:
    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.zeros((*x.shape, 2)) + t.view(-1, 1, 1) * torch.tensor([0.0, 1.0])

    model = tl.from_network(tl.Masked(2), length=2, network=network)
    with pytest.raises(ValueError, match="depend on time"):
        tl.exact.law(model, tl.FirstHitting(), grid(1, 0))
    assert float(tl.exact.law(model, tl.Tweedie(), grid(1, 0.5, 0)).sum()) == pytest.approx(1)


def test_laws_of_networks() -> None:
    own = tl.from_network(tl.Masked(2), length=2, network=lambda x, t: torch.zeros((*x.shape, 2)), time_free=True)
    law = tl.exact.law(own, tl.FirstHitting(), grid(1, 0))
    torch.testing.assert_close(law, torch.full((2, 2), 0.25, dtype=torch.float64))
