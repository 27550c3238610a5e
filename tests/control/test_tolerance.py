"""`tolerance=` in place of a budget: what it asks for, and what it gets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests.cases import dirichlet
from thetaleap.control import tolerance as controlled
from thetaleap.control.loop import stages
from thetaleap.control.tolerance import Tolerance
from thetaleap.core.noise import Draw, Stream
from thetaleap.core.reverse import Reverse
from thetaleap.evaluation import metrics

TOLERANCES = (0.1, 0.03, 0.01)
ONE_STEP = torch.tensor([1.0, 0.0], dtype=torch.float64)


def spins(height: int, width: int, coupling: float) -> Tensor:
    """The Ising model as a table."""
    model = tl.oracles.ising(height, width, coupling=coupling)
    positions = height * width
    x = torch.cartesian_prod(*[torch.arange(2)] * positions)
    return model.log_prob(x).exp().view((2,) * positions)


def chain(length: int, seed: int) -> Tensor:
    """A sharp Markov chain of binary positions as a table."""
    moves = dirichlet(seed, (2,), 0.5), dirichlet(seed + 1, (2,), 0.5)
    model = tl.oracles.markov_chain(torch.stack(moves), length=length)
    x = torch.cartesian_prod(*[torch.arange(2)] * length)
    return model.log_prob(x).exp().view((2,) * length)


def tables(cells: int) -> dict[str, Tensor]:
    """Ten laws to be strict with."""
    shape = (2,) * 5 if cells == 32 else (3, 3, 3)
    random = {f"dirichlet {a} {seed}": dirichlet(seed, shape, a) for a in (0.3, 0.5, 2.0) for seed in (11, 12)}
    rough, smooth = dirichlet(5, shape, 0.3), dirichlet(6, shape, 5.0)
    halves = {f"mixture {part}": part * rough + (1 - part) * smooth for part in (0.2, 0.8)}
    near = {"spins 2x2": spins(2, 2, 0.6), "chain of 5": chain(5, 3)}
    return {**random, **halves, **near}


UNIFORM = {name: tl.oracles.joint(p, tl.Uniform(p.shape[0]), 6.0) for name, p in tables(27).items()}
MASKED = {name: tl.oracles.joint(p, tl.Masked(p.shape[0])) for name, p in tables(32).items()}
EACH_UNIFORM = pytest.mark.parametrize("model", UNIFORM.values(), ids=UNIFORM.keys())


def together(matrix: Tensor, positions: int) -> Tensor:
    """The transition matrix of all positions from that of one."""
    result = matrix
    for _ in range(positions - 1):
        result = torch.kron(result, matrix)
    return result


def path_divergence(model: Any, grid: Tensor) -> float:
    """KL from the paths of the true reverse process to those of exact one-position steps, summed over the whole
    space."""
    process, positions = model.process, model.length
    states = torch.cartesian_prod(*[torch.arange(process.states)] * positions).view(-1, positions)
    p0, eye = model.log_prob(states).exp(), torch.eye(process.states, dtype=torch.float64)
    total = 0.0
    for t, s in pairwise(process.schedule.alpha(grid)):

        def noised(alpha: Tensor) -> Tensor:
            return together(alpha * eye + (1 - alpha) / process.states, positions)

        before, after = p0 @ noised(t), p0 @ noised(s)
        true = (after.unsqueeze(1) * noised(t / s) / before).T  # [x_t, x_s]
        c = torch.softmax(model(states, process.schedule.alpha_inverse(t)).logits(torch.arange(states.numel())), 1)
        present = states.flatten()
        kernel = process.kernel(c, present, t, s)
        kernel = kernel.scatter(1, present.unsqueeze(1), 1 - kernel.sum(1, keepdim=True)).view(
            len(states), positions, -1
        )
        log_q = torch.stack([kernel[:, position].log()[:, states[:, position]] for position in range(positions)]).sum(0)
        total += float((before.unsqueeze(1) * (torch.xlogy(true, true) - true * log_q)).sum())
    return total


@EACH_UNIFORM
def test_without_masks_the_cost_of_paths_is_what_was_asked_for(model) -> None:
    """Within a factor 3, and 1.5 in eight steps or more, on laws that were not used to find the rule."""
    for tolerance in (0.03, 0.01, 0.003):
        grid = tl.grids.adaptive(model, tolerance)
        ratio = path_divergence(model, grid) / model.length / tolerance
        factor = 1.5 if len(grid) > 8 else 3.0
        assert 1 / factor < ratio < factor


@EACH_UNIFORM
def test_without_masks_a_smaller_tolerance_is_never_worse(model) -> None:
    states = torch.cartesian_prod(*[torch.arange(model.process.states)] * model.length).view(-1, model.length)
    truth = model.log_prob(states).exp()
    for solver in (tl.Tweedie(), tl.Multistep()):
        errors, steps = [], []
        for tolerance in TOLERANCES:
            grid = tl.grids.adaptive(model, tolerance)
            steps.append(len(grid) - 1)
            errors.append(float(metrics.kl(truth, tl.exact.law(model, solver, grid).flatten())))
        assert steps == sorted(steps)
        assert all(after <= before for before, after in pairwise(errors))
        assert errors[-1] < model.length * TOLERANCES[-1], "the law is nearer than the paths"


def test_one_position_needs_one_step() -> None:
    """One position depends on nothing, so a step of any length is exact."""
    assert len(tl.grids.adaptive(tl.load("toy15"), 1e-6)) == 2


def errors_and_evaluations(model, method) -> tuple[Tensor, Tensor]:
    """The exact KL and the mean evaluations, with a standard error below 0.02, at tolerances from large to small."""
    states = torch.cartesian_prod(*[torch.arange(model.process.states)] * model.length).view(-1, model.length)
    truth = model.log_prob(states).exp()
    errors, spent = [], []
    for tolerance in (0.3, 0.03, 0.003, 0.0003):
        law = tl.exact.law(model, Tolerance(method, tolerance), ONE_STEP).flatten()
        errors.append(float(metrics.kl(truth, law)))
        spent.append(float(tl.sample(model, method, tolerance=tolerance, num=2000).nfe.double().mean()))
    return torch.tensor(errors, dtype=torch.float64), torch.tensor(spent, dtype=torch.float64)


@pytest.mark.parametrize("method", [tl.Tweedie(tl.FixedCount()), tl.Multistep()], ids=["tweedie", "multistep"])
def test_with_masks_a_smaller_tolerance_is_never_worse(method) -> None:
    """On average over ten laws, and evaluations on each of them; errors on each may rise by 10% where steps are few."""
    pairs = [errors_and_evaluations(model, method) for model in MASKED.values()]
    errors, spent = torch.stack([error for error, _ in pairs]), torch.stack([number for _, number in pairs])
    assert bool((spent[:, 1:] >= spent[:, :-1]).all())
    mean = errors.mean(0)
    assert bool((mean[1:] < mean[:-1]).all())
    assert bool((errors[:, 1:] <= 1.1 * errors[:, :-1] + 1e-12).all())
    assert float(errors[:, -1].max()) < 1e-12, "a small one sends each position alone"


class Told:
    """Noise that is random but for values, which are those of `x`; it adds their log-probabilities to `log_q`."""

    def __init__(self, inner: Any, x: Tensor, log_q: Tensor, rows: Tensor | None = None) -> None:
        self.inner, self.x, self.log_q, self.rows = inner, x, log_q, rows

    def __call__(self, label: Draw, index: int | None = None) -> Told:
        return Told(self.inner(label, index), self.x, self.log_q, self.rows)

    def __getitem__(self, rows: Tensor) -> Told:
        return Told(self.inner[rows], self.x, self.log_q, rows if self.rows is None else self.rows[rows])

    def choose(
        self, positions: Tensor, length: int, weights: Tensor, stay: bool, which: Any = None, numbers: Any = None
    ) -> Tensor:
        owner = positions // length if self.rows is None else self.rows[positions // length]
        values = self.x[owner, positions % length]
        assert not stay
        chances = weights.gather(1, values.unsqueeze(1)).squeeze(1) / weights.sum(1)
        self.log_q.index_add_(0, owner, chances.log())
        return values

    def pick(self, scores: Tensor, count: Tensor, heat: Tensor) -> Tensor:
        return self.inner.pick(scores, count, heat)

    def order(self, length: int, ranks: Tensor | None = None) -> Any:
        return self.inner.order(length, ranks)

    def levels(self, length: int, top: Any) -> Any:
        raise AssertionError("positions are unmasked by counts")

    def flip(self, probability: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("positions are unmasked by counts")

    def clock(self, positions: Tensor) -> Tensor:
        raise AssertionError("positions are unmasked by counts")

    def uniform(self, batch: int) -> Tensor:
        raise AssertionError("positions are unmasked by counts")


def forced(model: Any, x: Tensor, tolerance: float) -> tuple[float, float]:
    """KL per position from true paths to those of `Tolerance`, and its standard error: with the same positions in
    both, it is the mean of ``log p(x) - sum of log c(x_position)`` where values are made those of true sequences `x`."""
    log_q = torch.zeros(len(x), dtype=torch.float64)
    control, reverse = Tolerance(tl.Tweedie(tl.FixedCount()), tolerance), Reverse.begin(model, len(x))
    drawn, memory = torch.zeros_like(x), ()
    for n, (t, stage) in enumerate(stages(model, control, ONE_STEP)):
        out = stage(reverse.at(n, t), Told(Stream(1, 0, len(x)).at(n), x, log_q), drawn, memory)
        drawn, memory = out.x, out.memory
    assert torch.equal(drawn, x)
    excess = (model.log_prob(x) - log_q) / model.length
    return float(excess.mean()), float(excess.std() / len(x) ** 0.5)


@pytest.mark.parametrize("name", ["chain64", "chain2-64", "ising4x16", "tree31"])
@pytest.mark.parametrize("tolerance", [0.03, 0.01])
def test_with_masks_the_cost_of_paths_is_what_was_asked_for(name, tolerance) -> None:
    """Within a factor 3, by 400 true sequences; five standard errors, so a false alarm has a chance below 1e-6."""
    model = tl.load(name)
    mean, error = forced(model, model.draw(400, seed=3), tolerance)
    assert mean - 5 * error < 3 * tolerance
    assert mean + 5 * error > tolerance / 3


def test_estimates_are_reported_and_samples_do_not_depend_on_the_batch() -> None:
    model = tl.load("chain64")
    for solver in (tl.Tweedie(tl.LowDiscrepancy()), tl.Multistep()):
        whole = tl.sample(model, solver, tolerance=0.1, num=20, seed=4)
        parts = tl.sample(model, solver, tolerance=0.1, num=20, seed=4, batch_size=3)
        assert torch.equal(whole.x, parts.x)
        assert torch.equal(whole.nfe, parts.nfe)
        assert 0.01 < whole.info["estimated error"] < 0.1
        assert whole.info["estimated error"] == pytest.approx(parts.info["estimated error"])


def test_long_sequences_are_watched_at_some_positions(monkeypatch) -> None:
    """A chain of 100 positions: as many evaluations, within a few, as with all positions watched."""
    model = tl.oracles.markov_chain(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double(), length=100)
    some = tl.sample(model, tl.Multistep(), tolerance=0.03, num=100).nfe.double().mean()
    monkeypatch.setattr(controlled, "WATCHED", 100)
    every = tl.sample(model, tl.Multistep(), tolerance=0.03, num=100).nfe.double().mean()
    assert float(some / every) == pytest.approx(1, abs=0.1)


def test_a_delta_is_respected() -> None:
    model = tl.load("chain64")
    moments: list[tl.Moment] = []
    tl.sample(model, tl.Multistep(), tolerance=0.1, delta=0.25, num=5, on_step=moments.append)
    assert (moments[-2].x == model.process.mask).sum(1).tolist() == [16] * 5
    uniform = UNIFORM["dirichlet 0.5 11"]
    assert float(tl.grids.adaptive(uniform, 0.03, delta=0.1)[-1]) == 0.1


@pytest.mark.parametrize(
    ("solver", "options", "message"),
    [
        (tl.Multistep(), {"tolerance": 0.0}, r"tolerance=0.0: must lie in \(0, inf\)"),
        (tl.Multistep(), {"tolerance": -1.0}, r"tolerance=-1.0"),
        (tl.Multistep(), {"tolerance": float("nan")}, r"tolerance=nan"),
        (tl.Multistep(), {"tolerance": 0.1, "nfe": 8}, r"nfe=8: the tolerance decides"),
        (tl.Multistep(), {"tolerance": 0.1, "steps": 8}, r"steps=8: the tolerance decides"),
        (tl.Tweedie(), {"tolerance": 0.1}, r"planner=Bernoulli.*Tweedie\(planner=FixedCount\(\)\)"),
        (tl.Multistep(window=4), {"tolerance": 0.1}, r"window=4 with a tolerance.*use 1"),
    ],
)
def test_wrong_tolerances(solver, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        tl.sample(tl.load("chain64"), solver, **options)


def test_wrong_models_for_a_tolerance() -> None:
    with pytest.raises(TypeError, match=r"solver=Euler.*only Tweedie and Multistep"):
        tl.sample(tl.load("chain64"), tl.Euler(), tolerance=0.1)
    with pytest.raises(ValueError, match=r"model='Masked'.*give the tolerance to sample"):
        tl.grids.adaptive(tl.load("chain64"), 0.1)
    with pytest.raises(ValueError, match=r"tolerance=1e-12: asks for \d+ steps; give at least"):
        tl.grids.adaptive(tl.load("cube3-uniform"), 1e-12)
    with pytest.raises(ValueError, match=r"Tolerance on process=Uniform.*grids.adaptive"):
        tl.exact.law(tl.load("cube3-uniform"), Tolerance(tl.Multistep(), 0.1), torch.tensor([6.0, 0.0]))
