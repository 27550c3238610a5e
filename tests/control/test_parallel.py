"""Runs that go ahead of the network: the samples of the run one after the other, in fewer rounds."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import thetaleap as tl
from tests.cases import SOLVERS, Case, birth_death, masked, uniform, works
from thetaleap.control import Method
from thetaleap.core.evaluation import Conditionals, Dense
from thetaleap.solvers import Solver

FALSE_ALARM = 1e-7
WINDOWS: list[Any] = [2, 3, 8, 16, "auto"]
FEW = [masked(1, (2, 2, 2)), uniform(2, (3, 3)), birth_death(5, (3, 3))]
KINDS = {(type(solver), getattr(solver, "planner", None)): solver for solver in SOLVERS}.values()
PAIRS = [(solver, case) for case in FEW for solver in KINDS if works(solver, case)]


def same(one: tl.Samples, other: tl.Samples) -> None:
    """The same run: samples, evaluations that they used, and statistics; in no more rounds."""
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.nfe, other.nfe)
    assert one.info.keys() == other.info.keys()
    for name, value in one.info.items():
        assert math.isclose(value, other.info[name], rel_tol=1e-9) or math.isnan(value)
    assert bool((other.rounds <= one.rounds).all())
    assert bool((other.spent >= other.rounds).all())


@pytest.mark.parametrize("pair", range(len(PAIRS)), ids=lambda n: f"{PAIRS[n][0]!r}-{PAIRS[n][1].name}")
def test_every_solver_draws_the_same_samples(pair: int) -> None:
    """With two of the windows for each pair of solver and process, and so with all of them many times."""
    solver, case = PAIRS[pair]
    grid = torch.linspace(case.times[0], 0.3, 4, dtype=torch.float64)
    plain = tl.sample(case.model, solver, grid=grid, num=7, window=1)
    for n in (pair, pair + 2):
        same(plain, tl.sample(case.model, solver, grid=grid, num=7, window=WINDOWS[n % 5]))
    alone = tl.sample(case.model, solver, grid=grid, first=5, window=WINDOWS[pair % 5])
    assert torch.equal(alone.x[0], plain.x[5])


CHAIN = tl.oracles.markov_chain(torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.3, 0.6, 0.1]]).double(), 9)
F = tl.FREE
TEMPLATE = torch.tensor(
    [[F, 1, F, F, 2, F, F, F, 0], [F] * 9, [0, 1, 2, 0, 1, 2, 0, 1, F], [F, F, 2, F, F, F, F, F, F]]
)
GIVEN = torch.arange(9) % 4 == 1


LED: list[tuple[Method, dict[str, Any]]] = [
    (tl.Tweedie(tl.LowDiscrepancy()), {"steps": 9}),
    (tl.Tweedie(tl.Confidence(randomness=1.0)), {"steps": 5}),
    (tl.Multistep(window=2), {"steps": 5}),
    (tl.FirstHitting(), {"steps": 2}),
    (tl.SemiAutoregressive(block_length=3), {"steps": 7}),
    (tl.Blocks(tl.Trapezoidal(), 5, stop=2), {"steps": 4}),
    (tl.Blocks(tl.ExponentialTrapezoidal(planner=tl.FixedCount()), 3), {"steps": 5}),
    (tl.Multistep(), {"tolerance": 0.02}),
]


@pytest.mark.parametrize("which", range(len(LED)), ids=lambda n: repr(LED[n][0]))
def test_templates_constraints_guidance_blocks_and_tolerances(which: int) -> None:
    solver, options = LED[which]
    allowed = tl.constrained(CHAIN, forbid=torch.tensor([[False, True, False]] + [[False] * 3] * 8))
    model = tl.guided(allowed, 0.7, GIVEN)
    rows = {"template": TEMPLATE.repeat(2, 1)[:7], "seed": 4, **options}
    plain = tl.sample(model, solver, window=1, **rows)
    for n in (which, which + 2):
        same(plain, tl.sample(model, solver, window=WINDOWS[n % 5], **rows))
    here = {**rows, "template": TEMPLATE[3:]}
    alone = tl.sample(tl.guided(allowed, 0.7, GIVEN), solver, window=3, first=3, **here)
    assert torch.equal(alone.x[0], plain.x[3])


KINDS_OF_PROCESS = {"masked": masked, "uniform": uniform, "birth-death": birth_death}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(KINDS_OF_PROCESS)),
    st.sampled_from([(2, 2, 2), (3, 3), (2, 2, 2, 2)]),
    st.sampled_from(SOLVERS),
    st.sampled_from(WINDOWS),
    st.sampled_from([1, 7]),
    st.integers(0, 2**32),
    st.sets(st.sampled_from(["template", "constraint", "guidance", "block"])),
)
def test_any_run_ahead_is_the_run_itself(
    kind: str, shape: tuple[int, ...], solver: Method, window: Any, batch: int, seed: int, led: set[str]
) -> None:
    """Bit for bit, whatever the law, the solver, the window and the batch, and what else the run is led by."""
    case, draw = KINDS_OF_PROCESS[kind](seed % 2**31, shape), np.random.default_rng(seed)
    model, length = case.model, len(shape)
    assume(works(solver, case))
    known = torch.from_numpy(draw.random(length) < 0.4)
    rows = torch.from_numpy(np.where(known, draw.integers(0, shape[0], (7, length)), tl.FREE))
    if "constraint" in led:
        forbid = torch.zeros((length, shape[0]), dtype=torch.bool)
        forbid[torch.nonzero(~known).flatten()[:1], 0] = True
        model = tl.constrained(model, forbid=forbid)
    if "guidance" in led:
        assume(kind == "masked" and "template" in led)
        model = tl.guided(model, 0.7, known)
    if "block" in led:
        assume(kind == "masked" and isinstance(solver, Solver) and solver.evaluations is not None)
        solver = tl.Blocks(solver, 2)
    grid = torch.linspace(case.times[0], 0.3, 5, dtype=torch.float64)
    run = partial(tl.sample, model, solver, grid=grid, num=7, seed=seed, template=rows if "template" in led else None)
    same(run(window=1), run(window=window, batch_size=batch))


def test_fewer_rounds_and_the_law_of_the_model() -> None:
    """`exact` draws from the model itself. False alarm 1e-7; power as in the tests of solvers."""
    case = masked(1, (2, 2, 2))
    out = tl.sample(case.model, exact=True, num=4096)
    counts = np.bincount((out.x * torch.tensor([4, 2, 1])).sum(1).numpy(), minlength=8)
    assert scipy.stats.chisquare(counts, 4096 * case.p0.flatten().numpy()).pvalue > FALSE_ALARM
    chain = tl.sample(tl.load("chain64"), exact=True, num=2)
    assert int(chain.rounds.max()) <= 8
    assert chain.nfe.tolist() == [64] * 2
    assert bool((chain.spent <= 2 * 64).all())
    assert torch.equal(chain.x, tl.sample(tl.load("chain64"), exact=True, num=2, window=1).x)


@pytest.mark.parametrize(
    ("solver", "case"),
    [
        (tl.Trapezoidal(), FEW[1]),
        (tl.Tweedie(), FEW[2]),
        (tl.Tweedie(tl.Confidence(0.5)), FEW[0]),
        (tl.Multistep(), FEW[0]),
    ],
    ids=lambda each: each.name if isinstance(each, Case) else repr(each),
)
def test_samples_follow_the_exact_law(solver: Method, case: Case) -> None:
    law = tl.exact.law(case.model, solver, case.grid).flatten().numpy()
    out = tl.sample(case.model, solver, grid=case.grid, num=4096, window=4, seed=2)
    base = case.model.process.states ** torch.arange(case.model.length - 1, -1, -1)
    counts = np.bincount((out.x * base).sum(1).numpy(), minlength=len(law))
    assert scipy.stats.chisquare(counts, 4096 * law).pvalue > FALSE_ALARM


class Contrary:
    """The next value is decided by the sum of all values so far, so that no stale answer is ever right. The first few, if
    there are `quiet` ones, are sure."""

    process, horizon, time_free, device = tl.Masked(101, tl.LogLinear()), 1.0, True, torch.device("cpu")

    def __init__(self, length: int, quiet: int = 0) -> None:
        self.length, self.quiet = length, quiet

    def __call__(self, x: torch.Tensor, t: torch.Tensor) -> Conditionals:
        total = 1 + torch.where(x < 101, x + 1, 0).sum(1)
        logits = torch.full((*x.shape, 101), -math.inf, dtype=torch.float64)
        total = torch.where((x < 101).sum(1) < self.quiet, 7, total)
        logits[torch.arange(len(x)), :, total % 101] = 0.0
        return Dense(logits)


@pytest.mark.parametrize("quiet", [5, 12, 20])
@pytest.mark.parametrize("free", [24, 7])
def test_waste_is_bounded_also_after_guesses_have_held(quiet: int, free: int) -> None:
    """At most one evaluation more for each position that is drawn."""
    template = torch.full((24,), tl.FREE)
    template[free:] = 3
    plain, ahead = (tl.sample(Contrary(24, quiet), exact=True, window=n, template=template) for n in (1, "auto"))
    same(plain, ahead)
    assert int(plain.spent) == free
    assert int(ahead.spent) <= 2 * free


def test_a_model_that_makes_all_guesses_fail() -> None:
    model = Contrary(24)
    plain, ahead = (tl.sample(model, exact=True, num=3, window=window) for window in (1, "auto"))
    same(plain, ahead)
    assert ahead.rounds.tolist() == [24] * 3  # none was right
    assert bool((ahead.spent <= 2 * plain.spent).all())
    fixed = tl.sample(model, exact=True, num=3, window=8)
    same(plain, fixed)
    assert int(fixed.spent.min()) > 4 * 24  # what "auto" is for


class Strict:
    """Sequences without two equal neighbours, where the network knows nothing of any other: NaN."""

    process, horizon, time_free, device = tl.Masked(3, tl.LogLinear()), 1.0, True, torch.device("cpu")
    length = 8

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def __call__(self, x: torch.Tensor, t: torch.Tensor) -> Conditionals:
        logits = torch.zeros((*x.shape, 3), dtype=torch.float64)
        for shift in (1, -1):
            beside = torch.nn.functional.pad(x, (1, 1), value=3)[:, 1 + shift : 1 + shift + self.length]
            for value in range(3):
                logits[:, :, value].masked_fill_(beside == value, -math.inf)
        wrong = ((x[:, 1:] == x[:, :-1]) & (x[:, 1:] < 3)).any(1)
        if self.broken is not None:
            wrong |= (x < 3).sum(1) == self.broken
        logits[wrong] = math.nan
        return Dense(logits)


def test_guesses_may_come_to_states_that_no_run_comes_to() -> None:
    """From left to right there is always a value left; a guess with a stale answer may repeat its neighbour."""
    blocks = tl.Blocks(tl.Tweedie(), 1)
    plain = tl.sample(Strict(), blocks, steps=8, num=5, window=1)
    ahead = tl.sample(Strict(), blocks, steps=8, num=5, window=6)
    same(plain, ahead)
    assert bool((plain.x[:, 1:] != plain.x[:, :-1]).all())
    for window in (1, 6):  # what the run itself comes to must be sound
        with pytest.raises(ValueError, match="logits=NaN in step 6"):
            tl.sample(Strict(broken=5), blocks, steps=8, num=5, window=window)


def test_steps_are_told_once_all_samples_have_passed_them() -> None:
    told: list[tl.sampling.Moment] = []
    out = tl.sample(CHAIN, exact=True, num=5, batch_size=2, on_step=told.append)
    assert [moment.step for moment in told] == 3 * list(range(11))
    assert torch.equal(told[-1].x, out.x[4:])
    assert bool((told[3].nfe >= 3).all())


def test_rounds_without_a_window_are_evaluations_after_each_other() -> None:
    out = tl.sample(CHAIN, tl.Tweedie(tl.FixedCount()), nfe=4, num=3)
    assert torch.equal(out.rounds, out.spent)
    twice = tl.sample(tl.guided(CHAIN, 1.0, GIVEN), tl.Tweedie(tl.FixedCount()), steps=4, num=3, template=TEMPLATE[:3])
    assert torch.equal(2 * twice.rounds, twice.spent)


@pytest.mark.parametrize("window", [0, -2, True])
def test_windows_that_make_no_sense(window: Any) -> None:
    with pytest.raises(ValueError, match="window"):
        tl.sample(CHAIN, tl.Tweedie(), nfe=4, window=window)


def test_exact_says_all_of_it() -> None:
    for name, value in {"solver": tl.Tweedie(), "nfe": 4, "tolerance": 0.1, "steps": 4, "delta": 0.1}.items():
        with pytest.raises(ValueError, match=f"{name}=.*exact=True"):
            tl.sample(CHAIN, exact=True, **{name: value})
    with pytest.raises(ValueError, match="Uniformization"):
        tl.sample(FEW[1].model, exact=True)
