"""flow_matching's models and paths, drawn by our solvers: against truth, and beside its own solver."""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import thetaleap as tl
from tests.cases import dirichlet
from thetaleap.control import Method

pytestmark = [
    pytest.mark.flow_matching,
    pytest.mark.filterwarnings("ignore:invalid escape sequence"),  # in the package's own docstrings
]
NUM, FALSE_ALARM = 8192, 1e-7
P0 = dirichlet(8, (3, 3), 0.5)
"""Of two positions with three values: far from independent, and every pair is expected at least 30 times."""
STATES, MASK = 3, 3


@pytest.fixture(scope="module")
def ours() -> Any:
    return import_module("thetaleap.integrations.flow_matching")


def path(power: float) -> Any:
    scheduler = import_module("flow_matching.path.scheduler").PolynomialConvexScheduler(n=power)
    return import_module("flow_matching.path").MixtureDiscreteProbPath(scheduler)


def model(power: float, masked: bool) -> Any:
    """The true posterior of each clean token given the noisy pair, by Bayes' rule over all nine clean ones."""
    clean = torch.tensor(list(itertools.product(range(STATES), repeat=2)))

    class Truth(import_module("flow_matching.utils").ModelWrapper):
        def __init__(self) -> None:
            super().__init__(torch.nn.Identity())
            self.asked, self.extras = 0, []

        def forward(self, x: Tensor, t: Tensor, **extras: Any) -> Tensor:
            self.asked += 1
            self.extras.append(extras)
            kappa = t.double().view(-1, 1, 1) ** power
            same = (x.unsqueeze(1) == clean).double()
            noise = (x == MASK).double().unsqueeze(1) if masked else 1 / STATES
            weights = P0.flatten() * (kappa * same + (1 - kappa) * noise).prod(2)
            weights = weights / weights.sum(1, keepdim=True)
            values = STATES + 1 if masked else STATES
            return torch.einsum("bn,ndv->bdv", weights, torch.nn.functional.one_hot(clean, values).double())

    return Truth()


def counts(x: Tensor) -> np.ndarray:
    return np.bincount((x[:, 0] * STATES + x[:, 1]).numpy(), minlength=STATES**2)


def pvalue(x: Tensor, law: Any) -> float:
    return float(scipy.stats.chisquare(counts(x), NUM * np.asarray(law).flatten()).pvalue)


def noise(seed: int = 0) -> Tensor:
    return torch.randint(STATES, (NUM, 2), generator=torch.Generator().manual_seed(seed))


SOLVERS: list[Method] = [tl.Tweedie(), tl.Multistep(), tl.ExponentialTrapezoidal(), tl.Trapezoidal()]


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_without_masks_samples_have_the_law_of_the_solver(ours: Any, power: float, solver: Method) -> None:
    """The exact law of an oracle with the path's schedule, whose conditionals never saw the posterior. 8,192 samples, a
    false alarm in 1e7: the law of another solver here is seen, as the last line shows for Tweedie's."""
    process = tl.Uniform(STATES, ours.PathSchedule(path(power).scheduler))
    oracle = tl.oracles.joint(P0, process)
    drawn = ours.ThetaLeapSolver(model(power, False), path(power), STATES, solver).sample(noise(), nfe=4, seed=1)
    assert solver.evaluations is not None
    grid = tl.grids.uniform(1.0, 0.0, 4 // solver.evaluations)
    assert pvalue(drawn, tl.exact.law(oracle, solver, grid)) > FALSE_ALARM
    if solver != tl.Tweedie():
        assert pvalue(drawn, tl.exact.law(oracle, tl.Tweedie(), grid)) < FALSE_ALARM


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_with_masks_one_position_at_a_time_is_the_truth_and_euler_is_not(ours: Any, power: float) -> None:
    """Two evaluations for two positions; their solver with as many is seen to be wrong, and with many is not."""
    truth, start = model(power, True), torch.full((NUM, 2), MASK)
    solver = ours.ThetaLeapSolver(truth, path(power), STATES + 1, tl.Tweedie(tl.FixedCount()), mask_token=MASK)
    grid = tl.grids.alpha_power(solver.process.schedule, 1.0)
    drawn = solver.sample(start, nfe=2, grid=grid, seed=2)
    assert truth.asked == 2
    assert pvalue(drawn, P0) > FALSE_ALARM
    theirs = import_module("flow_matching.solver").MixtureDiscreteEulerSolver(truth, path(power), STATES + 1)
    torch.manual_seed(0)
    few, many = (theirs.sample(start, step_size=None, time_grid=torch.linspace(0, 1, n + 1)) for n in (2, 400))
    assert pvalue(few.clamp(max=2), P0) < FALSE_ALARM
    assert pvalue(many, P0) > FALSE_ALARM


def test_without_masks_as_many_evaluations_come_closer_than_euler(ours: Any) -> None:
    """Total variation at 16 evaluations: theirs is more than twice ours, each plus or minus 0.005."""
    truth, spread = model(1.0, False), P0.flatten().numpy()
    solver = ours.ThetaLeapSolver(truth, path(1.0), STATES, tl.ExponentialTrapezoidal())
    grid = tl.grids.alpha_power(solver.process.schedule, 2.0)
    mine = solver.sample(noise(), nfe=16, grid=grid)
    theirs = import_module("flow_matching.solver").MixtureDiscreteEulerSolver(truth, path(1.0), STATES)
    torch.manual_seed(0)
    other = theirs.sample(noise(), step_size=None, time_grid=torch.linspace(0, 1, 17))
    ours_far, theirs_far = (abs(counts(x) / NUM - spread).sum() / 2 for x in (mine, other))
    assert theirs_far > 2 * ours_far


def test_tokens_among_masks_stay_and_shapes_do(ours: Any) -> None:
    truth = model(1.0, True)
    solver = ours.ThetaLeapSolver(truth, path(1.0), STATES + 1, mask_token=MASK)
    start = torch.tensor([[1, MASK], [MASK, MASK]])
    drawn = solver.sample(start, nfe=3, label=7)
    assert int(drawn[0, 0]) == 1
    assert int(drawn.max()) < MASK
    assert truth.extras == [{"label": 7}] * truth.asked
    assert torch.equal(drawn, solver.sample(start, nfe=3, seed=0))
    assert isinstance(solver, import_module("flow_matching.solver").Solver)


def test_schedules_are_their_own_inverse_and_rate(ours: Any) -> None:
    schedule = ours.PathSchedule(path(2.0).scheduler)
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    torch.testing.assert_close(schedule.alpha_inverse(schedule.alpha(t)), t)
    h = 1e-6
    slope = -(schedule.alpha(t + h).log() - schedule.alpha(t - h).log()) / (2 * h)
    torch.testing.assert_close(schedule.sigma(t), slope, rtol=1e-5, atol=1e-5)
    assert float(schedule.alpha(1.0)) == pytest.approx(1e-6)
    assert float(schedule.alpha(0.0)) == 1.0


def test_wrong_calls_are_named(ours: Any) -> None:
    with pytest.raises(TypeError, match="path=3: give a MixtureDiscreteProbPath"):
        ours.ThetaLeapSolver(model(1.0, True), 3, 4)
    solver = ours.ThetaLeapSolver(model(1.0, True), path(1.0), STATES, mask_token=MASK)
    with pytest.raises(ValueError, match=r"model output=\(2, 2, 4\): must be \(2, 2, 3\)"):
        solver.sample(torch.full((2, 2), MASK), nfe=2)
    with pytest.raises(ValueError, match="nfe=None: say how many evaluations to spend"):
        solver.sample(torch.full((2, 2), MASK))
