"""Planners and the solvers beyond the paper, against laws computed a second time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
import torch

import thetaleap as tl
from tests import reference_memory
from tests.cases import CASES, MASKED, MOVING, Case, dirichlet, masked
from tests.reference import run
from thetaleap.core import noise
from thetaleap.core.noise import Draw, philox
from thetaleap.core.schedules import LogLinear
from thetaleap.evaluation import metrics
from thetaleap.planners import Counting, Plan, Planner, expected_counts
from thetaleap.planners.counting import Agenda
from thetaleap.planners.ordered import visits
from thetaleap.solvers import Solver

EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
MASKS = pytest.mark.parametrize("case", MASKED, ids=lambda case: case.name)


def times(case: Case) -> torch.Tensor:
    """Five steps to clean data."""
    return tl.grids.power(case.model.horizon, 0.0, 5, exponent=1.5)


def close(law: torch.Tensor, truth: np.ndarray) -> None:
    assert float(law.sum()) == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(law.numpy(), truth, atol=1e-12)


@EVERY
@pytest.mark.parametrize(("theta", "form"), [(0.5, "linear"), (0.3, "linear"), (0.5, "logit"), (0.6, "logit")])
def test_exponential_trapezoidal(case: Case, theta, form) -> None:
    law = tl.exact.law(case.model, tl.ExponentialTrapezoidal(theta, form), times(case))
    truth = case.truth
    close(
        law, run(truth, times(case).tolist(), lambda x, t, s: reference_memory.exponential(truth, x, t, s, theta, form))
    )


@pytest.mark.parametrize("case", MOVING, ids=lambda case: case.name)
@pytest.mark.parametrize("form", ["logit", "linear"])
def test_multistep_without_masks(case: Case, form) -> None:
    law = tl.exact.law(case.model, tl.Multistep(extrapolation=form), times(case))
    close(law, reference_memory.multistep(case.truth, times(case).tolist(), 1, form, 0.1, coins=True))


@MASKS
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("planner", [tl.Bernoulli(), tl.FixedCount()], ids=repr)
def test_multistep_with_masks(case: Case, window, planner) -> None:
    law = tl.exact.law(case.model, tl.Multistep(window=window, planner=planner), times(case))
    coins = isinstance(planner, tl.Bernoulli)
    close(law, reference_memory.multistep(case.truth, times(case).tolist(), window, "linear", 0.1, coins))


def wide() -> Case:
    """Five binary positions: enough for steps of two positions at a time."""
    return masked(8, (2, 2, 2, 2, 2))


def test_multistep_of_several_positions_a_step() -> None:
    case = wide()
    grid = tl.grids.uniform(1.0, 0.0, 2)
    for planner in (None, tl.FixedCount()):
        law = tl.exact.law(case.model, tl.Multistep(planner=planner), grid)
        close(law, reference_memory.multistep(case.truth, grid.tolist(), 1, "linear", 0.1, coins=False))


BUSY, WAITING = (1.0, 0.8, 0.4, 0.0), (1.0, 0.95, 0.8, 0.78, 0.76, 0.4, 0.36, 0.0)
"""Grids on which 1, 2 and 2 of five positions go; on the second one, none in four other steps."""


@pytest.mark.parametrize("window", [1, 2])
def test_multistep_forgets_steps_in_which_nothing_goes(window) -> None:
    case = wide()
    going, all_steps = (torch.tensor(stops, dtype=torch.float64) for stops in (BUSY, WAITING))
    solver = tl.Multistep(window=window)
    assert expected_counts(case.model.process, 5, all_steps).tolist() == [0, 1, 0, 0, 2, 0, 2]
    law = tl.exact.law(case.model, solver, all_steps)
    close(law, reference_memory.multistep(case.truth, list(BUSY), window, "linear", 0.1, coins=False))
    other = reference_memory.multistep(case.truth, list(WAITING), window, "linear", 0.1, coins=False)
    assert np.abs(law.numpy() - other).max() > 1e-4, "an evaluation in an idle step would be noticed"
    torch.testing.assert_close(law, tl.exact.law(case.model, solver, going), rtol=0, atol=1e-14)
    whole = tl.sample(case.model, solver, grid=all_steps, num=9, seed=3)
    assert whole.nfe.tolist() == [3] * 9
    parts = tl.sample(case.model, solver, grid=all_steps, num=9, seed=3, batch_size=2)
    assert torch.equal(whole.x, parts.x)


PLANS = torch.tensor([[0, 2, 1, 2], [1, 2, 0, 2], [2, 0, 2, 1]])


@dataclass(frozen=True)
class OneOf(Counting):
    """Each sample follows one of some plans, at random: so many positions of a random order in each of four steps."""

    plans: tuple[int, ...]

    def begin(self, reverse, x, stops, noise) -> Plan:
        each = torch.arange(len(x))
        even = torch.full((1, len(self.plans)), 1 / len(self.plans), dtype=torch.float64)
        mine = noise(Draw.COMPONENT).choose(each, 1, even, stay=False, which=torch.zeros_like(each))
        counts = PLANS[list(self.plans)][mine]
        left = torch.nn.functional.pad(5 - counts.cumsum(1), (1, 0), value=5)
        return Agenda(stops.expand(len(x), -1), left), noise(Draw.ORDER).order(x.shape[1])

    def move(self, reverse, x, prediction, t, s, noise, plan) -> tuple[torch.Tensor, Plan]:
        return tl.FixedCount().move(reverse, x, prediction, t, s, noise, plan)


@pytest.mark.parametrize("window", [1, 2])
def test_multistep_samples_that_wait_do_not_mind_those_that_go(window) -> None:
    model, grid = wide().model, tl.grids.uniform(1.0, 0.0, 4)
    together = tl.Multistep(planner=OneOf((0, 1, 2)), window=window)
    laws = [tl.exact.law(model, tl.Multistep(planner=OneOf((n,)), window=window), grid) for n in range(3)]
    torch.testing.assert_close(tl.exact.law(model, together, grid), sum(laws) / 3, rtol=0, atol=1e-14)
    whole = tl.sample(model, together, grid=grid, num=40, seed=1)
    assert whole.nfe.tolist() == [3] * 40
    for size in (1, 7):
        parts = tl.sample(model, together, grid=grid, num=40, seed=1, batch_size=size)
        assert torch.equal(whole.x, parts.x)


def test_fixed_counts_and_orders() -> None:
    case, grid = wide(), tl.grids.uniform(1.0, 0.0, 2)
    law = tl.exact.law(case.model, tl.Tweedie(planner=tl.FixedCount()), grid)
    assert (0.5 * float((law - case.p0).abs().sum())) > 1e-3
    close(law, reference_memory.multistep(case.truth, grid.tolist(), 1, "linear", 0.1, coins=False, plain=True))
    # van der Corput's order of five positions is 0 2 1 3 4 (of eighths: 0 4 2 6 1 5 3 7), turned by any shift
    order = [int(position) for position in torch.argsort(visits(1, 5)[0])]
    turned = [tuple((position + shift) % 5 for position in order) for shift in range(5)]
    law = tl.exact.law(case.model, tl.Tweedie(planner=tl.LowDiscrepancy()), grid)
    close(law, reference_memory.ordered(case.truth, grid.tolist(), turned))


def goes_at(
    planner: Planner, steps: int, seed: int, template: torch.Tensor | None = None, num: int = 50
) -> torch.Tensor:
    """The step in which each of twelve positions of `num` samples is unmasked; -1 where it was given."""
    model, seen = tl.oracles.markov_chain(torch.full((2, 2), 0.5, dtype=torch.float64), 12), []
    grid = tl.grids.power(1.0, 0.0, 24, exponent=1.5)[:: 24 // steps]
    tl.sample(
        model, tl.Tweedie(planner), grid=grid, num=num, seed=seed, template=template, on_step=lambda m: seen.append(m.x)
    )
    masked = torch.stack([x == model.process.mask for x in seen[: steps + 1]]).long()
    assert bool((masked.diff(dim=0) <= 0).all()), "masks never come back"
    return masked.sum(0) - 1


@pytest.mark.parametrize("planner", [tl.Bernoulli(), tl.FixedCount(), tl.LowDiscrepancy()], ids=repr)
@pytest.mark.parametrize("given", [(), (0, 5, 6)], ids=["all free", "some given"])
def test_a_seed_sends_the_positions_in_the_same_order_on_every_grid(planner, given) -> None:
    """On a grid of a fine one's times, a position goes in the step that holds the fine one's."""
    template = torch.full((12,), tl.FREE)
    template[list(given)] = 1
    for seed in range(5):
        fine = goes_at(planner, 24, seed, template)
        assert bool((fine[:, list(given)] == -1).all())
        free = fine >= 0
        assert int(free.sum()) == 50 * (12 - len(given)), "all go"
        for steps in (1, 3, 8):
            coarse = goes_at(planner, steps, seed, template)
            assert torch.equal(coarse[free], fine[free] // (24 // steps))


@pytest.mark.parametrize(
    "planner", [tl.Bernoulli(), tl.FixedCount(), tl.LowDiscrepancy(), tl.EntropyBounded(gamma=0.1)], ids=repr
)
def test_steps_draw_no_numbers_of_their_own(planner, monkeypatch) -> None:
    """Those of a run are drawn in its first step, however many; but for a planner that sees the conditionals."""
    drawn = []
    monkeypatch.setattr(noise, "philox", lambda *question: drawn.append(question) or philox(*question))
    for steps in (3, 24):
        drawn.clear()
        goes_at(planner, steps, seed=0)
        in_steps = [counter for _, counter, _ in drawn if counter[1] > 1]  # the second word is the step
        assert bool(in_steps) == isinstance(planner, tl.EntropyBounded)


def test_each_position_goes_when_the_process_says() -> None:
    """Chi-square at 1e-9 on the steps of 6e4 positions; chances that are off by a tenth would be caught surely."""
    alpha, steps = LogLinear().alpha, 24
    grid = tl.grids.power(1.0, 0.0, steps, exponent=1.5)
    left = (1 - alpha(grid)) / (1 - alpha(grid[0]))
    goes = goes_at(tl.Bernoulli(), steps, seed=1, num=5000).flatten()
    observed = torch.bincount(goes, minlength=steps).numpy()
    assert scipy.stats.chisquare(observed, len(goes) * (left[:-1] - left[1:]).numpy()).pvalue > 1e-9


def test_masks_where_alpha_rounds_to_one_go_in_the_last_step() -> None:
    model = tl.oracles.markov_chain(torch.full((2, 2), 0.5, dtype=torch.float64), 12)
    grid = torch.tensor([1e-17, 0.0], dtype=torch.float64)
    assert float(model.process.schedule.alpha(grid[0])) == 1
    out = tl.sample(model, tl.Tweedie(), grid=grid, num=5)
    assert out.nfe.tolist() == [1] * 5
    assert int(out.x.max()) < model.process.mask


def test_orders_by_hand() -> None:
    assert torch.argsort(visits(1, 8)[0]).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    grid = visits(4, 4)
    assert sorted(grid.flatten().tolist()) == list(range(16))
    first = torch.nonzero(grid < 4)
    apart = (first.unsqueeze(0) - first.unsqueeze(1)).abs().sum(2)
    assert int(apart[apart > 0].min()) >= 2, "the first four cells are no neighbours"


def test_what_an_entropy_bound_leaves_is_within_the_budget() -> None:
    out = tl.sample(tl.load("chain64"), tl.Tweedie(tl.EntropyBounded()), nfe=4, num=3)
    assert out.nfe.tolist() == [4, 4, 4]


@MASKS
@pytest.mark.parametrize("gamma", [0.0, 0.5, 10.0])
def test_entropy_bounded(case: Case, gamma) -> None:
    law = tl.exact.law(case.model, tl.Tweedie(planner=tl.EntropyBounded(gamma)), times(case))
    close(law, reference_memory.entropy_bounded(case.truth, times(case).tolist(), gamma))


@EVERY
def test_adams_bashforth(case: Case) -> None:
    grid = tl.grids.uniform(case.model.horizon, 0.02, 5)
    law = tl.exact.law(case.model, tl.AdamsBashforth(), grid)
    close(law, reference_memory.adams_bashforth(case.truth, grid.tolist()))


def test_the_exponential_schemes_are_exact_in_one_dimension() -> None:
    toy = tl.load("toy15")
    for solver in (tl.ExponentialTrapezoidal(), tl.ExponentialTrapezoidal(extrapolation="logit"), tl.Multistep()):
        law = tl.exact.law(toy, solver, tl.grids.uniform(12.0, 0.0, 4))
        assert float((toy.p0 * (toy.p0 / law).log()).sum()) < 1e-9


@MASKS
@pytest.mark.parametrize("planner", [tl.FixedCount(), tl.LowDiscrepancy()], ids=repr)
def test_one_position_at_a_time_is_exact(case: Case, planner) -> None:
    positions = case.model.length
    grid = tl.grids.uniform(1.0, 0.0, positions)
    solvers: list[Solver] = [
        tl.Tweedie(planner),
        tl.Multistep(planner=planner),
        tl.Multistep(window=2, planner=planner),
    ]
    for solver in solvers:
        law = tl.exact.law(case.model, solver, grid)
        assert float((case.p0 * (case.p0 / law).log()).sum()) < 1e-12
    law = tl.exact.law(case.model, tl.ExponentialTrapezoidal(planner=planner), tl.grids.uniform(1.0, 0.0, positions))
    assert float((case.p0 * (case.p0 / law).log()).sum()) < 1e-12


def kl(p: torch.Tensor, q: torch.Tensor) -> float:
    return float(torch.xlogy(p, p / q).sum())


@pytest.mark.parametrize(("concentration", "tweedie", "paper"), [(0.3, 5, 10), (0.5, 10, 20), (2.0, 100, 100)])
def test_multistep_beats_the_paper_on_uniform_processes(concentration, tweedie, paper) -> None:
    """KL at 16 evaluations on an alpha-power grid, smallest ratio over six random joints."""
    for seed in range(6):
        p0 = dirichlet(seed, (3, 3, 3), concentration)
        model = tl.oracles.joint(p0, tl.Uniform(3), horizon=6.0)
        grid = tl.grids.alpha_power(model.process.schedule, 2.0)
        own = kl(p0, tl.exact.law(model, tl.Multistep(), grid(6.0, 0.0, 16)))
        assert kl(p0, tl.exact.law(model, tl.Tweedie(), grid(6.0, 0.0, 16))) > tweedie * own
        literal = tl.exact.law(model, tl.Trapezoidal(rule="reject"), grid(6.0, 0.0, 8))
        assert kl(p0, literal) > paper * own


def test_multistep_beats_the_paper_on_ising() -> None:
    """KL at 16 evaluations on a 2 x 3 lattice: 2.8e-6, Tweedie's is 2.8e-3 and the paper's 4.2e-3."""
    lattice, x = tl.oracles.ising(2, 3, coupling=0.44), torch.cartesian_prod(*[torch.arange(2)] * 6)
    model = tl.oracles.joint(lattice.log_prob(x).exp().view((2,) * 6), tl.Uniform(2), horizon=6.0)
    grid = tl.grids.alpha_power(model.process.schedule, 2.0)
    contenders = ((tl.Multistep(), 16), (tl.Tweedie(), 16), (tl.Trapezoidal(theta=0.5, rule="reject"), 8))
    laws = (tl.exact.law(model, solver, grid(6.0, 0.0, steps)) for solver, steps in contenders)
    own, tweedie, literal = (metrics.kl(model.p0, law) for law in laws)
    assert literal > 200 * own
    assert tweedie > 200 * own


def test_a_window_brings_the_second_order_for_masks() -> None:
    """Median slope in total variation over ten joints between 16 and 32 steps: both ways."""
    slopes: dict[str, list[float]] = {"window 4": [], "two-stage": []}
    for seed in range(10):
        p0 = dirichlet(seed, (3, 3, 3), 2.0)
        model = tl.oracles.joint(p0, tl.Masked(3))
        contenders = {
            "window 4": tl.Multistep(window=4, planner=tl.Bernoulli()),
            "two-stage": tl.ExponentialTrapezoidal(),
        }
        for name, solver in contenders.items():
            errors = [
                float((tl.exact.law(model, solver, tl.grids.uniform(1.0, 0.0, n)) - p0).abs().sum()) for n in (16, 32)
            ]
            slopes[name].append(math.log2(errors[0] / errors[1]))
    assert float(np.median(slopes["window 4"])) > 1.7
    assert float(np.median(slopes["two-stage"])) < 1.2


def test_fixed_counts_are_no_worse_than_coins() -> None:
    """Exact KL on six joints of six binary positions, at 2, 3 and 4 evaluations."""
    for seed in range(6):
        p0 = dirichlet(seed, (2,) * 6, 0.5)
        model = tl.oracles.joint(p0, tl.Masked(2))
        for steps in (2, 3, 4):
            grid = tl.grids.uniform(1.0, 0.0, steps)
            fixed = kl(p0, tl.exact.law(model, tl.Tweedie(tl.FixedCount()), grid))
            assert fixed <= kl(p0, tl.exact.law(model, tl.Tweedie(), grid))


class Counter:
    """A model of no opinion that counts the rows asked of it."""

    process, length, horizon, time_free, device = tl.Masked(3), 12, 1.0, True, torch.device("cpu")

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, x: torch.Tensor, t: torch.Tensor) -> Counter:
        return self

    def logits(self, positions: torch.Tensor) -> torch.Tensor:
        self.rows += len(positions)
        return torch.zeros(len(positions), 3)

    def duplicates(self) -> None:
        return None


@pytest.mark.parametrize("planner", [tl.Bernoulli(), tl.FixedCount(), tl.LowDiscrepancy()], ids=repr)
def test_planners_ask_for_no_row_in_vain(planner) -> None:
    """Every position is drawn once, so that a run needs as many rows as there are positions."""
    model = Counter()
    tl.sample(model, tl.Tweedie(planner), nfe=5, num=10)
    assert model.rows == 120


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tl.sample(tl.load("toy15"), tl.Tweedie(tl.FixedCount()), nfe=4), "planners say which masks are unmasked"),
        (lambda: tl.sample(tl.load("cube3"), tl.Tweedie(tl.LowDiscrepancy((2, 2))), nfe=3), "has 4 positions, but the mod"),
        (lambda: tl.LowDiscrepancy((0, 4)), "shape"),
        (lambda: tl.EntropyBounded(-1.0), "gamma=-1"),
        (lambda: tl.Confidence(randomness=-1.0), "randomness=-1"),
        (lambda: tl.ExponentialTrapezoidal(theta=1.0), "theta=1.0"),
        (lambda: tl.Multistep(window=0), "window=0"),
        (lambda: tl.Multistep(floor=2.0), "floor=2.0"),
        (lambda: tl.Multistep(weight=-0.1), "weight=-0.1"),
        (lambda: tl.sample(tl.load("cube3-uniform"), tl.Multistep(window=2), nfe=4), "longer windows are for masked"),
        (lambda: tl.sample(tl.load("cube3"), tl.Multistep(planner=tl.EntropyBounded()), nfe=3), "must know how many"),
    ],
)  # fmt: skip
def test_bad_arguments(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()
