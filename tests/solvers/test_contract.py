"""What every solver must do, on every process where it makes sense."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import thetaleap as tl
from tests import reference
from tests.cases import CASES, DECODING, EXACT, MASKED, SOLVERS, STEPPING, Case, Entry, works
from thetaleap.control import Method, control_of

PAIRS = [(solver, case) for solver in SOLVERS for case in CASES if works(solver, case)]
IDS = [f"{solver!r}-{case.name}" for solver, case in PAIRS]
FALSE_ALARM = 1e-9  # of one chi-square test; all in this file together stay below 1e-6
DRAWS = 100_000


def grid_for(solver: Method, case: Case) -> torch.Tensor:
    """The case's grid, to time 0 where the solver can and above it where it must."""
    times = case.grid
    if case.model.process.mask is not None and control_of(solver).reaches_data(case.model.process):
        times = times.clone()
        times[-1] = 0
    if isinstance(solver, tl.Uniformization | tl.AdamsBashforth):
        times = times.clamp_min(1e-4)
    return times


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> float:
    """p-value of `counts` under `law`; cells that expect fewer than 5 are pooled."""
    expected = law.flatten() * counts.sum()
    observed = counts.flatten().to(torch.float64)
    rare = expected < 5
    e = np.append(expected[~rare].numpy(), float(expected[rare].sum()))
    o = np.append(observed[~rare].numpy(), float(observed[rare].sum()))
    if e[-1] < 1e-9:
        assert o[-1] == 0, "drew what has probability zero"
        e, o = e[:-1], o[:-1]
    return float(scipy.stats.chi2.sf(((o - e) ** 2 / e).sum(), len(e) - 1))


def count(out: tl.Samples, case: Case) -> torch.Tensor:
    counts = torch.zeros_like(case.p0)
    return counts.index_put_(tuple(out.x.T), torch.ones(len(out.x), dtype=torch.float64), accumulate=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("entry", STEPPING, ids=lambda entry: entry.name)
def test_exact_law_matches_the_reference(entry: Entry, case: Case) -> None:
    times = grid_for(entry.solver, case)
    law = tl.exact.law(case.model, entry.solver, times)
    truth = reference.run(case.truth, times.tolist(), lambda x, t, s: entry.step(case.truth, x, t, s))
    assert float(law.sum()) == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(law.numpy(), truth, atol=1e-12)


def decoding_plan(solver: Method, positions: int) -> list[tuple[list[int], int, float | None]]:
    """What the decoders do in three steps, worked out by hand for two and for three positions."""
    everything = list(range(positions))
    if isinstance(solver, tl.ParallelDecoding):
        heats = [solver.randomness * 2 / 3, solver.randomness / 3, 0.0]
        counts = [1, 1, 1] if positions == 3 else [1, 1, 0]
        return [(everything, n, heat) for n, heat in zip(counts, heats, strict=True)]
    assert isinstance(solver, tl.SemiAutoregressive)
    heat = None if solver.order == "random" else 0.0
    if solver.block_length == 1 and positions == 3:
        return [([position], 1, heat) for position in everything]
    if solver.block_length == 1:
        return [([0], 1, heat), ([0], 0, heat), ([1], 1, heat)]
    if solver.block_length == 2 and positions == 3:
        return [([0, 1], 1, heat), ([0, 1], 1, heat), ([2], 1, heat)]
    return [(everything, 1, heat)] * positions


@pytest.mark.parametrize("case", MASKED, ids=lambda case: case.name)
@pytest.mark.parametrize("solver", DECODING, ids=repr)
def test_decoders_match_the_reference(solver: Method, case: Case) -> None:
    law = tl.exact.law(case.model, solver, grid_for(solver, case))
    truth = reference.decode(case.truth, decoding_plan(solver, case.model.length))
    np.testing.assert_allclose(law.numpy(), truth, atol=1e-12)


@pytest.mark.parametrize(("solver", "case"), PAIRS, ids=IDS)
def test_samples_match_the_exact_law(solver: Method, case: Case) -> None:
    times = grid_for(solver, case)
    law = tl.exact.law(case.model, solver, times)
    out = tl.sample(case.model, solver, grid=times, num=DRAWS, seed=1)
    assert chi_square(count(out, case), law) > FALSE_ALARM


def test_the_chi_square_would_notice() -> None:
    """Power: a law that is off by 2% in total variation is caught in more than half of all runs."""
    case = CASES[2]
    right = tl.exact.law(case.model, tl.Trapezoidal(), case.grid)
    wrong = tl.exact.law(case.model, tl.Trapezoidal(rule="reject"), case.grid)
    out = tl.sample(case.model, tl.Trapezoidal(), grid=case.grid, num=DRAWS, seed=1)
    assert chi_square(count(out, case), wrong) < FALSE_ALARM
    share = 0.02 / (0.5 * float((wrong - right).abs().sum()))
    noncentrality = DRAWS * float(((share * (wrong - right)) ** 2 / right).sum())
    cells = right.numel() - 1
    assert scipy.stats.ncx2.sf(scipy.stats.chi2.isf(FALSE_ALARM, cells), cells, noncentrality) > 0.5


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("solver", EXACT, ids=repr)
def test_exact_solvers_give_the_data_law(solver: Method, case: Case) -> None:
    if not works(solver, case):
        with pytest.raises(ValueError, match="Uniformization"):
            tl.sample(case.model, solver)
        return
    # start so late that the prior's truncation is far below what 1e5 draws can see
    model = tl.oracles.joint(case.p0, case.model.process, horizon=1.0 if case.model.process.mask else 12.0)
    out = tl.sample(model, solver, num=DRAWS, seed=2)
    assert chi_square(count(out, case), case.p0) > FALSE_ALARM
    law = tl.exact.law(model, solver, torch.tensor([model.horizon, 1e-4], dtype=torch.float64))
    assert float((law - case.p0).abs().max()) < 2e-5


@pytest.mark.parametrize(("solver", "case"), PAIRS, ids=IDS)
def test_a_sample_depends_on_seed_and_index_alone(solver: Method, case: Case) -> None:
    times = grid_for(solver, case)
    whole = tl.sample(case.model, solver, grid=times, num=11, seed=5)
    for batch_size in (1, 4):
        parts = tl.sample(case.model, solver, grid=times, num=11, seed=5, batch_size=batch_size)
        assert torch.equal(whole.x, parts.x)
        assert torch.equal(whole.nfe, parts.nfe)
    assert torch.equal(tl.sample(case.model, solver, grid=times, num=5, seed=5).x, whole.x[:5])
    assert not torch.equal(tl.sample(case.model, solver, grid=times, num=11, seed=6).x, whole.x)


@pytest.mark.parametrize(("solver", "case"), PAIRS, ids=IDS)
def test_samples_are_clean_tokens(solver: Method, case: Case) -> None:
    out = tl.sample(case.model, solver, grid=grid_for(solver, case), num=200)
    assert out.x.shape == (200, case.model.length)
    assert out.x.dtype == torch.int64
    assert int(out.x.min()) >= 0
    assert int(out.x.max()) < case.model.process.states


@settings(max_examples=60)
@given(
    pair=st.sampled_from([pair for pair in PAIRS if pair[0].evaluations is not None]),
    nfe=st.integers(3, 20),
    seed=st.integers(0, 2**64 - 1),
    shape=st.sampled_from([tl.grids.uniform, tl.grids.power, tl.grids.cosine]),
)
def test_budgets_hold(pair: tuple[Method, Case], nfe: int, seed: int, shape: tl.grids.Grid) -> None:
    """No sample costs more than `nfe`, and where nothing finishes early every sample costs all that fits."""
    solver, case = pair
    if isinstance(solver, tl.Corrected):  # which refuses a run of too few steps for a correction
        assume(solver.cost(solver.every) < nfe)
    out = tl.sample(case.model, solver, nfe=nfe, num=5, seed=seed, grid=shape)
    assert int(out.nfe.max()) <= nfe
    assert int(out.x.max()) < case.model.process.states
    if case.model.process.mask is None and control_of(solver).reaches_data(case.model.process):
        cost = control_of(solver).cost
        assert out.nfe.tolist() == [max(cost(steps) for steps in range(1, nfe + 1) if cost(steps) <= nfe)] * 5
