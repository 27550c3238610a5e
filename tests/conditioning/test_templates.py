"""Given positions: they never change, under any solver, and the rest is drawn as if they had been there all the
time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thetaleap as tl
from tests.cases import SOLVERS, Case, allowed, birth_death, masked, uniform, works
from thetaleap.solvers import Solver

CASES = [masked(1, (3, 3, 3)), uniform(2, (3, 3, 3)), birth_death(3, (3, 3, 3))]
PAIRS = [(case, solver) for case in CASES for solver in SOLVERS if works(solver, case)]
EVERY_PAIR = pytest.mark.parametrize(
    ("case", "solver"), PAIRS, ids=lambda it: it.name if isinstance(it, Case) else str(it)
)


def budget(solver: Solver) -> dict[str, Any]:
    return {} if solver.evaluations is None else {"nfe": 6}


@settings(max_examples=150)
@given(st.data())
def test_given_positions_never_change(data) -> None:
    case, solver = data.draw(st.sampled_from(PAIRS))
    num = data.draw(st.integers(1, 5))
    rows = st.lists(st.integers(tl.FREE, 2), min_size=3, max_size=3)
    template = torch.tensor(data.draw(st.lists(rows, min_size=num, max_size=num)))
    seen: list[tl.Moment] = []
    out = tl.sample(
        case.model, solver, template=template, seed=data.draw(st.integers(0, 99)), on_step=seen.append, **budget(solver)
    )
    fixed = template != tl.FREE
    for moment in seen:
        assert torch.equal(moment.x[fixed], template[fixed])
    assert out.x.shape == (num, 3)
    assert bool(((out.x >= 0) & (out.x < 3)).all())
    assert bool((out.nfe[fixed.all(1)] == 0).all()), "where all is given there is nothing to evaluate"
    if solver.evaluations is not None:
        assert int(out.nfe.max()) <= 6


@EVERY_PAIR
def test_a_template_of_nothing_changes_nothing(case: Case, solver: Solver) -> None:
    plain = tl.sample(case.model, solver, num=8, seed=1, **budget(solver))
    free = tl.sample(case.model, solver, num=8, seed=1, template=torch.full((3,), tl.FREE), **budget(solver))
    assert torch.equal(plain.x, free.x)
    assert torch.equal(plain.nfe, free.nfe)


@EVERY_PAIR
def test_samples_with_templates_do_not_depend_on_the_batch(case: Case, solver: Solver) -> None:
    made = torch.Generator().manual_seed(0)
    template = torch.randint(-1, 3, (12, 3), generator=made)
    whole = tl.sample(case.model, solver, seed=1, template=template, **budget(solver))
    parts = tl.sample(case.model, solver, seed=1, template=template, batch_size=5, **budget(solver))
    assert torch.equal(whole.x, parts.x)
    assert torch.equal(whole.nfe, parts.nfe)


def conditional(p0: torch.Tensor, template: list[int]) -> torch.Tensor:
    """The law of the data given the template's positions."""
    kept = torch.zeros_like(p0)
    place = tuple(slice(None) if value == tl.FREE else value for value in template)
    kept[place] = p0[place]
    return kept / kept.sum()


@pytest.mark.parametrize(
    "solver", [tl.FirstHitting(), tl.Tweedie(tl.FixedCount()), tl.Multistep(), tl.Tweedie(tl.LowDiscrepancy())], ids=str
)
def test_masked_positions_one_at_a_time_follow_the_conditional_law(solver: Solver) -> None:
    case, template = CASES[0], [tl.FREE, 2, tl.FREE]
    grid = torch.tensor([1.0, 0.4, 0.0], dtype=torch.float64)
    law = tl.exact.law(case.model, solver, grid, template=torch.tensor(template))
    torch.testing.assert_close(law, conditional(case.p0, template), rtol=0, atol=1e-12)


@pytest.mark.parametrize("template", [[tl.FREE, 2, tl.FREE], [0, 1, tl.FREE], [tl.FREE, tl.FREE, 0]], ids=str)
@pytest.mark.parametrize(
    "solver",
    [tl.Tweedie(), tl.Multistep(), tl.Trapezoidal(), tl.ExponentialTrapezoidal(planner=tl.FixedCount())],
    ids=str,
)
def test_samples_follow_the_exact_law_with_a_template(solver: Solver, template: list[int]) -> None:
    """By 20,000 samples; TV above 0.04 has a chance below 1e-9 (27 cells, Bretagnolle-Huber-Carol), and a position that
    moved, or one that was ignored, makes it far larger."""
    for case in CASES[:2]:
        if not allowed(solver, case.model.process):
            continue
        grid = tl.grids.power(case.model.horizon, 0.01, 4)
        law = tl.exact.law(case.model, solver, grid, template=torch.tensor(template))
        x = tl.sample(case.model, solver, grid=grid, num=20_000, template=torch.tensor(template)).x
        seen = torch.bincount((x * torch.tensor([9, 3, 1])).sum(1), minlength=27) / len(x)
        assert float((seen - law.flatten()).abs().sum() / 2) < 0.04
        assert float(law[tuple(slice(None) if v == tl.FREE else v for v in template)].sum()) == pytest.approx(1)


def test_uniform_processes_converge_to_the_conditional_law_of_positions_that_were_clean_all_the_time() -> None:
    """One free position: its conditional is what the model says of it, whatever the steps."""
    case, template = uniform(2, (3, 3, 3)), [0, tl.FREE, 2]
    grid = tl.grids.uniform(case.model.horizon, 0.0, 3)
    law = tl.exact.law(case.model, tl.Tweedie(), grid, template=torch.tensor(template))
    assert float(law[0, :, 2].sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            torch.zeros(4, dtype=torch.int64),
            r"template of shape \(4,\): the model has 3 positions; give \(3,\).*or \(2, 3\)",
        ),
        (torch.zeros((3, 3), dtype=torch.int64), r"template of shape \(3, 3\)"),
        (torch.tensor([0, 3, -1]), r"template\[0, 1\]=3: this is the mask; give tokens from 0 to 2, or -1"),
        (torch.tensor([[0, -1, 1], [0, -2, 1]]), r"template\[1, 1\]=-2: this is no token"),
    ],
)
def test_wrong_templates(template, message) -> None:
    with pytest.raises(ValueError, match=message):
        tl.sample(CASES[0].model, tl.Tweedie(), nfe=2, num=2, template=template)


def test_templates_of_the_wrong_type() -> None:
    with pytest.raises(TypeError, match=r"template of torch\.float32: give whole numbers"):
        tl.sample(CASES[0].model, tl.Tweedie(), nfe=2, template=torch.zeros(3))
    with pytest.raises(ValueError, match="law of Uniformization"):
        tl.exact.law(CASES[1].model, tl.Uniformization(), torch.tensor([4.0, 0.1]), template=torch.tensor([0, -1, 1]))
