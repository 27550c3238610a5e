"""Correctors and samplers that noise again: laws, invariance, and what they may not do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import thetaleap as tl
from tests import reference_correctors as reference
from tests.cases import CASES, CORRECTED, MASKED, MOVING, REMASKING, Case, masked, uniform, works
from tests.reference import State
from tests.reference_correctors import Memory, Next
from thetaleap import exact
from thetaleap.core.reverse import Reverse
from thetaleap.evaluation.choice import parse, written
from thetaleap.solvers import Corrector, Solver
from thetaleap.solvers.base import Step

NAMED = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
MASKS = pytest.mark.parametrize("case", MASKED, ids=lambda case: case.name)
MOVES = pytest.mark.parametrize("case", MOVING, ids=lambda case: case.name)
JOINTS = [case for case in CASES if case.model.length > 1]


def law(case: Case, solver: Solver, times: list[float]) -> np.ndarray:
    return tl.exact.law(case.model, solver, torch.tensor(times, dtype=torch.float64)).numpy()


def plain(law: dict[State, float], memory: Memory = ()) -> Next:
    return {(x, memory): p for x, p in law.items()}


# --- laws, against the formulas


@NAMED
@pytest.mark.parametrize(("every", "sweeps", "k"), [(1, 1, 1), (2, 1, 1), (3, 2, 1), (2, 1, 2)])
def test_gibbs_has_the_law_of_its_formula(case: Case, every: int, sweeps: int, k: int) -> None:
    if k > case.model.length:
        return
    times = [*case.times[:-1], 0.0]

    def step(x: State, memory: Memory, n: int) -> Next:
        now = reference.predicted(case.truth, x, times[n], times[n + 1])
        for _ in range(sweeps if (n + 1) % every == 0 else 0):
            after: dict[State, float] = {}
            for y, p in now.items():
                for z, q in reference.gibbs(case.truth, y, times[n + 1], k).items():
                    after[z] = after.get(z, 0.0) + p * q
            now = after
        return plain(now)

    wanted = reference.run(case.truth, times, step, {(): 1.0})
    solver = tl.Corrected(tl.Tweedie(), tl.Gibbs(k), every=every, sweeps=sweeps)
    np.testing.assert_allclose(law(case, solver, times), wanted, atol=1e-12)


@NAMED
def test_low_discrepancy_sweeps_go_around(case: Case) -> None:
    """On two or three positions van der Corput's order is 0, 1, 2, from a random position on, around the end."""
    times, length = case.times, case.model.length

    def step(x: State, memory: Memory, n: int) -> Next:
        after: Next = {}
        for y, p in reference.predicted(case.truth, x, times[n], times[n + 1]).items():
            for z, q in reference.redrawn(case.truth, y, (int(memory[0]),), times[n + 1]).items():
                key = z, ((memory[0] + 1) % length,)
                after[key] = after.get(key, 0.0) + p * q
        return after

    wanted = reference.run(case.truth, times, step, {(float(first),): 1 / length for first in range(length)})
    solver = tl.Corrected(tl.Tweedie(), tl.Gibbs(planner=tl.LowDiscrepancy()))
    np.testing.assert_allclose(law(case, solver, times), wanted, atol=1e-12)


@NAMED
@pytest.mark.parametrize("by", ["margin", "confidence"])
@pytest.mark.parametrize("k", [1, 2])
def test_informed_has_the_law_of_its_formula(case: Case, by: Any, k: int) -> None:
    if k > case.model.length:
        return
    times = case.times

    def step(x: State, memory: Memory, n: int) -> Next:
        after: dict[State, float] = {}
        for y, p in reference.predicted(case.truth, x, times[n], times[n + 1]).items():
            for z, q in reference.informed(case.truth, y, times[n + 1], k, by).items():
                after[z] = after.get(z, 0.0) + p * q
        return plain(after)

    wanted = reference.run(case.truth, times, step, {(): 1.0})
    np.testing.assert_allclose(law(case, tl.Corrected(tl.Tweedie(), tl.Informed(k, by)), times), wanted, atol=1e-12)


@MASKS
@pytest.mark.parametrize("schedule", ["cap", "rescale", "loop"])
def test_remdm_has_the_law_of_its_formula(case: Case, schedule: Any) -> None:
    times, eta, loop = [1.0, 0.6, 0.45, 0.25, 0.0], 0.4, (0.7, 0.2, 0.6)

    def step(x: State, memory: Memory, n: int) -> Next:
        t, s = times[n], times[n + 1]
        a, b = case.truth.alpha(t), case.truth.alpha(s)
        if schedule == "loop":
            a, b = (reference.loop_alpha(u, *loop) for u in (t, s))
        most = min(1.0, (1 - b) / a) if a else 1.0
        sigma = {"cap": min(eta, most), "rescale": eta * most, "loop": min(eta, most) if 0.2 < t <= 0.7 else 0.0}
        return plain(reference.remdm(case.truth, x, a, b, [sigma[schedule]] * case.model.length, t))

    wanted = reference.run(case.truth, times, step, {(): 1.0})
    solver = tl.ReMDM(schedule, eta, t_on=loop[0], t_off=loop[1], alpha_on=loop[2])
    np.testing.assert_allclose(law(case, solver, times), wanted, atol=1e-12)


@MASKS
def test_remdm_by_confidence_has_the_law_of_its_formula(case: Case) -> None:
    """Remembers the probability with which each token was drawn."""
    times, truth = [1.0, 0.6, 0.25, 0.0], case.truth

    def step(x: State, drawn: Memory, n: int) -> Next:
        t, s = times[n], times[n + 1]
        a, b = truth.alpha(t), truth.alpha(s)
        tokens = [position for position in range(len(x)) if not truth.masked(x, position)]
        total = sum(math.exp(-drawn[position]) for position in tokens)
        most = min(1.0, (1 - b) / a)
        sigma = [0.7 * most * math.exp(-drawn[p]) / total if p in tokens else 0.0 for p in range(len(x))]
        after: Next = {}
        for y, p in reference.remdm(truth, x, a, b, sigma, t).items():
            kept = tuple(
                float(truth.c(x, n, t)[y[n]]) if x[n] == truth.states and y[n] < truth.states else drawn[n]
                for n in range(len(x))
            )
            after[y, kept] = after.get((y, kept), 0.0) + p
        return after

    wanted = reference.run(truth, times, step, {(1.0,) * case.model.length: 1.0})
    np.testing.assert_allclose(law(case, tl.ReMDM("confidence", 0.7), times), wanted, atol=1e-12)


@MOVES
@pytest.mark.parametrize("schedule", ["constant", "cap", "rescale"])
def test_psi_has_the_law_of_its_formula(case: Case, schedule: Any) -> None:
    times, eta = [*case.times[:-1], 0.0], 0.4

    def step(x: State, memory: Memory, n: int) -> Next:
        t, s = times[n], times[n + 1]
        a, b = case.truth.alpha(t), case.truth.alpha(s)
        most = min(1.0, (1 - b) / a)
        sigma = {"constant": eta * (1 - b), "cap": min(eta, most), "rescale": eta * most}[schedule]
        return plain(reference.psi(case.truth, x, t, s, max(0.0, 1 - sigma / (1 - b)) if b < 1 else 1.0))

    wanted = reference.run(case.truth, times, step, {(): 1.0})
    np.testing.assert_allclose(law(case, tl.Psi(schedule, eta), times), wanted, atol=1e-12)


# --- what they leave as it is


def after_a_sweep(case: Case, corrector: Corrector, t: float) -> dict[State, float]:
    """The law of noised sequences that were p_t, after one sweep by the library's own lines."""
    before = reference.marginal(case.truth, t)
    x, weight = torch.tensor(list(before)), torch.tensor(list(before.values()), dtype=torch.float64)

    def stage(reverse: Reverse, noise: Any, x: torch.Tensor, memory: Any) -> Step:
        plan = corrector.begin(reverse, x, noise)
        return Step(corrector.sweep(reverse, x, torch.tensor(t, dtype=torch.float64), noise, plan)[0])

    reverse = Reverse.begin(case.model, 1, memory=2**60)
    with torch.no_grad():
        y, _, q = exact._every_outcome(reverse, stage, x, (), weight, 1)
    return {tuple(row): float(p) for row, p in zip(y.tolist(), q, strict=True)}


def off(one: dict[State, float], other: dict[State, float]) -> float:
    return max(abs(one.get(x, 0.0) - other.get(x, 0.0)) for x in {*one, *other})


@NAMED
@pytest.mark.parametrize("planner", [tl.FixedCount(), tl.LowDiscrepancy()], ids=repr)
@pytest.mark.parametrize("t", [0.0, 0.3, 0.9])
def test_one_position_at_a_time_leaves_the_law_invariant(case: Case, planner: Any, t: float) -> None:
    moved = after_a_sweep(case, tl.Gibbs(1, planner), t)
    assert off(moved, reference.marginal(case.truth, t)) < 1e-12


@pytest.mark.parametrize("case", JOINTS, ids=lambda case: case.name)
@pytest.mark.parametrize("corrector", [tl.Gibbs(2), tl.Informed()], ids=repr)
def test_others_do_not(case: Case, corrector: Corrector) -> None:
    """The power of the test above: what is not invariant is seen to move."""
    assert off(after_a_sweep(case, corrector, 0.3), reference.marginal(case.truth, 0.3)) > 1e-4


@pytest.mark.parametrize(
    ("solver", "case"),
    [
        (tl.ReMDM("cap", 0.3), masked(0, (3,))),
        (tl.ReMDM("rescale", 0.9), masked(0, (3,))),
        (tl.ReMDM("loop", 0.3, t_on=0.7, t_off=0.3), masked(0, (3,))),
        (tl.Psi("constant", 0.5), uniform(0, (4,))),
        (tl.Psi("rescale", 1.0), uniform(0, (4,))),
    ],
    ids=lambda each: each.name if isinstance(each, Case) else repr(each),
)
def test_one_position_keeps_its_law(solver: Solver, case: Case) -> None:
    """What keeps the marginals of the process is exact where there is one position, but for the prior's truncation."""
    model = tl.oracles.joint(case.p0, case.model.process, horizon=1.0 if case.model.process.mask else 40.0)
    times = tl.grids.power(model.horizon, 0.0, 7)
    assert float((tl.exact.law(model, solver, times) - case.p0).abs().max()) < 1e-12


@NAMED
@pytest.mark.parametrize("predictor", [tl.Tweedie(), tl.Multistep(), tl.Trapezoidal(), tl.ExponentialTrapezoidal()])
def test_without_sweeps_it_is_the_predictor(case: Case, predictor: Solver) -> None:
    bare = tl.Corrected(predictor, tl.Gibbs(planner=tl.LowDiscrepancy()), sweeps=0)
    one, two = (tl.sample(case.model, solver, nfe=9, num=50, seed=3) for solver in (predictor, bare))
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.nfe, two.nfe)
    assert torch.equal(one.spent, two.spent)
    assert one.info == two.info


TEMPLATE = torch.tensor([1, tl.FREE, 0, tl.FREE, tl.FREE])


@pytest.mark.parametrize("case", [masked(8, (2,) * 5), uniform(8, (2,) * 5)], ids=lambda case: case.name)
@pytest.mark.parametrize("solver", [*CORRECTED, *REMASKING, tl.Psi("constant", 0.5)], ids=repr)
def test_given_positions_stay(solver: Solver, case: Case) -> None:
    if not works(solver, case) or (isinstance(solver, tl.Psi) and case.model.process.mask):
        return
    out = tl.sample(case.model, solver, nfe=7, num=2000, template=TEMPLATE)
    assert bool((out.x[:, [0, 2]] == TEMPLATE[[0, 2]]).all())
    assert int(out.x.max()) < 2
    assert bool(((out.x > 0).any(0) & (out.x == 0).any(0))[[1, 3, 4]].all()), "the others are written"
    full = torch.tensor([1, 0, 0, 1, 1])
    assert torch.equal(tl.sample(case.model, solver, nfe=7, template=full).x[0], full)


def test_a_sweep_of_more_than_is_free_takes_all() -> None:
    case = masked(8, (2,) * 5)
    out = tl.sample(case.model, tl.Corrected(tl.Tweedie(), tl.Gibbs(5)), nfe=6, num=100, template=TEMPLATE)
    assert int(out.x.max()) < 2


@pytest.mark.parametrize(
    ("solver", "nfe", "steps"),
    [
        (tl.Corrected(), 9, 4),
        (tl.Corrected(every=3), 9, 7),
        (tl.Corrected(every=4, sweeps=4), 13, 7),
        (tl.Corrected(tl.ExponentialTrapezoidal(), sweeps=2), 11, 2),
        (tl.Blocks(tl.Corrected(every=2), 2), 10, 7),
    ],
    ids=repr,
)
def test_the_budget_pays_for_sweeps(solver: Any, nfe: int, steps: int) -> None:
    model = tl.oracles.joint(torch.full((2,) * 4, 1 / 16), tl.Masked(2))
    assert len(tl.sampling.plan(model, solver, nfe=nfe)) - 1 == steps
    out = tl.sample(model, solver, nfe=nfe, num=200)
    assert int(out.nfe.max()) <= nfe


def test_guided_sweeps_count_twice() -> None:
    guided = tl.guided(tl.load("cube3"), 0.5, torch.tensor([True, False, False]))
    out = tl.sample(guided, tl.Corrected(), nfe=12, num=20, template=[1, tl.FREE, tl.FREE])
    assert int(out.nfe.max()) <= 12
    assert len(tl.sampling.plan(guided, tl.Corrected(), nfe=12)) - 1 == 3


# --- text and errors


@pytest.mark.parametrize(
    "text",
    [
        "Corrected(Tweedie(), Gibbs(k=1))",
        "Corrected(predictor=Multistep(planner=LowDiscrepancy()), corrector=Gibbs(k=2, planner=LowDiscrepancy()), every=2)",
        "Corrected(corrector='informed:3', sweeps=2)",
        "ReMDM('loop', eta=0.1)",
        "Psi('cap')",
    ],
)
def test_they_can_be_written(text: str) -> None:
    solver = parse(text)
    assert parse(written(solver)) == solver


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tl.Gibbs(0), "k=0: give a whole number of at least 1"),
        (lambda: tl.Gibbs(planner=tl.Confidence()), r"planner=Confidence.*give FixedCount\(\)"),  # pyright: ignore
        (lambda: tl.Informed(by="entropy"), "by='entropy': choose one of margin, confidence"),  # pyright: ignore
        (lambda: tl.Corrected(tl.Gibbs()), r"predictor=Gibbs.*give a solver"),  # pyright: ignore
        (lambda: tl.Corrected(tl.Tweedie(), tl.Tweedie()), r"corrector=Tweedie.*give a corrector"),  # pyright: ignore
        (lambda: tl.Corrected(tl.Corrected()), "predictor=Corrected.*corrected already"),
        (lambda: tl.Corrected(every=0), "every=0"),
        (lambda: tl.Corrected(sweeps=-1), "sweeps=-1"),
        (lambda: tl.ReMDM("linear"), "schedule='linear': choose one of cap, rescale"),  # pyright: ignore
        (lambda: tl.ReMDM(eta=2), r"eta=2: must lie in \[0, 1\]"),
        (lambda: tl.ReMDM(t_on=0.2, t_off=0.3), "t_off=0.3: must be below t_on = 0.2"),
        (lambda: tl.sample("cube3", tl.Corrected(corrector=tl.Gibbs(4)), nfe=4), "k=4: the model has 3 positions"),
        (lambda: tl.sample("cube3", tl.Corrected(every=9), nfe=8), "every=9: there are 8 steps"),
        (lambda: tl.exact.law("cube3", tl.Corrected(every=3), [1.0, 0.5, 0.0]), "every=3: there are 2 steps"),
        (lambda: tl.sample("cube3", tl.Corrected(), nfe=1), r"nfe=1: Corrected takes 2 per step: give at least 2"),
        (lambda: tl.sample("cube3", tl.Psi(), nfe=8), r"solver=Psi on process=Masked.*use ReMDM\(\)"),
        (lambda: tl.sample("cube3-uniform", tl.ReMDM(), nfe=8), "solver=ReMDM on process=Uniform.*needs a Masked"),
        (lambda: tl.sample("cube3-uniform", tl.Corrected(tl.FirstHitting())), "solver=FirstHitting on process=Uniform"),
        (lambda: tl.sample("sums", tl.Corrected(corrector=tl.Informed()), nfe=4), r"corrector=Informed on .*use Gibbs"),
        (lambda: tl.sample("cube3", tl.Corrected(), tolerance=0.1), "solver=Corrected"),
        (lambda: parse("Corrected(Tweedie(), Tweedie())"), "give a corrector: one of gibbs, informed"),
        (lambda: parse("Tweedie(Gibbs())"), "give a planner: one of bernoulli"),
        (lambda: parse("Multistep(weight=Gibbs())"), "weight is Gibbs.*give no corrector"),
        (lambda: parse("Gibbs()"), "is no solver"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()
