"""Exact laws beyond those of the shared contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import thetaleap as tl
from thetaleap.core.memory import Memory
from thetaleap.core.noise import Draw, Noise
from thetaleap.core.reverse import Reverse
from thetaleap.core.times import Times
from thetaleap.solvers import Solver
from thetaleap.solvers.base import Step

CUBE, MOVING = tl.load("cube3"), tl.load("cube3-uniform")


def grid(*times: float) -> torch.Tensor:
    return torch.tensor(times, dtype=torch.float64)


def test_one_position_at_a_time_is_exact() -> None:
    for solver in (tl.FirstHitting(), tl.SemiAutoregressive(order="random"), tl.SemiAutoregressive(block_length=1)):
        law = tl.exact.law(CUBE, solver, grid(1, 0.6, 0.3, 0))
        torch.testing.assert_close(law, CUBE.p0, atol=1e-13, rtol=0)


def test_one_step_of_tweedie_is_the_product_of_marginals() -> None:
    law = tl.exact.law(CUBE, tl.Tweedie(), grid(1, 0))
    a, b, c = (CUBE.p0.sum([m for m in range(3) if m != position]) for position in range(3))
    torch.testing.assert_close(law, torch.einsum("i,j,k->ijk", a, b, c), atol=1e-13, rtol=0)


@pytest.mark.parametrize("model", [CUBE, MOVING], ids=["masked", "uniform"])
def test_the_reverse_process_ends_at_the_data(model) -> None:
    law = tl.exact.reverse_law(model, grid(model.horizon, 1e-6))
    away = float((law - model.p0).abs().max())
    # the uniform prior at T = 6 is off by alpha_T = e^-6 times what two positions know of each other
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
        return torch.zeros((*x.shape, 2)) + t.view(-1, 1, 1) * torch.tensor([0.0, 2.0])

    model = tl.from_network(tl.Masked(2), length=2, network=network)
    with pytest.raises(ValueError, match="depend on time"):
        tl.exact.law(model, tl.FirstHitting(), grid(1, 0))
    assert float(tl.exact.law(model, tl.Tweedie(), grid(1, 0.5, 0)).sum()) == pytest.approx(1)


def test_laws_of_networks() -> None:
    own = tl.from_network(tl.Masked(2), length=2, network=lambda x, t: torch.zeros((*x.shape, 2)), time_free=True)
    law = tl.exact.law(own, tl.FirstHitting(), grid(1, 0))
    torch.testing.assert_close(law, torch.full((2, 2), 0.25, dtype=torch.float64))


@dataclass(frozen=True)
class Asking(Solver):
    """Asks `ask(x, noise)` for the next state in every step, and remembers the states before in a few ways."""

    ask: Callable[[torch.Tensor, Noise], torch.Tensor]
    evaluations = 1

    def step(self, reverse: Reverse, x: torch.Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        new = self.ask(memory[0] // 2**50 if memory else x, noise)
        return Step(new, (new * 2**50, new % 2 == 1, new / 7))


PAIR = tl.oracles.joint(torch.full((3, 3), 1 / 9), tl.Uniform(3), horizon=6.0)
HALVES = torch.tensor([0.5, 0.25])
SETS = [torch.tensor(heads) for heads in itertools.product((0, 1), repeat=2)]


def asked(ask: Callable[[torch.Tensor, Noise], torch.Tensor], times: torch.Tensor) -> torch.Tensor:
    return tl.exact.law(PAIR, Asking(ask), times)


def chance(heads: torch.Tensor) -> float:
    """That coins with chances HALVES fall like this."""
    return float(torch.where(heads == 1, HALVES, 1 - HALVES).prod())


def toss(x: torch.Tensor, noise: Noise) -> torch.Tensor:
    return noise.flip(HALVES.double().expand(len(x), 2))[0]


def test_coins_without_a_choice() -> None:
    def ask(x: torch.Tensor, noise: Noise) -> torch.Tensor:
        first, second = toss(x, noise(Draw.PREDICT)), toss(x, noise(Draw.CORRECT))
        return torch.zeros_like(x).flatten().index_fill(0, first, 1).index_fill(0, second, 2).view_as(x)

    truth = torch.zeros(3, 3, dtype=torch.float64)
    for first, second in itertools.product(SETS, SETS):
        truth[tuple(torch.where(second == 1, 2, first))] += chance(first) * chance(second)
    torch.testing.assert_close(asked(ask, grid(6, 3, 0)), truth, atol=1e-13, rtol=0)


@pytest.mark.parametrize("everywhere", [False, True])
def test_choices_that_depend_on_the_coins(everywhere: bool) -> None:
    """Weights that change with the number of heads, at the heads or at all positions."""

    def ask(x: torch.Tensor, noise: Noise) -> torch.Tensor:
        heads = torch.zeros(x.numel(), dtype=torch.int64).index_fill(0, toss(x, noise), 1).view_as(x)
        positions = torch.arange(x.numel()) if everywhere else torch.nonzero(heads.flatten()).flatten()
        table = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.0, 0.4], [0.1, 0.8, 0.1]], dtype=torch.float64)
        values = noise.choose(positions, 2, table[heads.sum(1)[positions // 2]], stay=False)
        return torch.zeros_like(x).flatten().index_copy(0, positions, values).view_as(x)

    table = [[0.2, 0.3, 0.5], [0.6, 0.0, 0.4], [0.1, 0.8, 0.1]]
    truth = torch.zeros(3, 3, dtype=torch.float64)
    for heads, a, b in itertools.product(SETS, range(3), range(3)):
        row = table[int(heads.sum())]
        first, second = (row[v] if everywhere or heads[n] else float(v == 0) for n, v in enumerate((a, b)))
        truth[a, b] += chance(heads) * first * second
    torch.testing.assert_close(asked(ask, grid(6, 0)), truth, atol=1e-13, rtol=0)


def test_memories_are_told_apart() -> None:
    """States come back from memories too wide for one number."""
    law = asked(lambda x, noise: x, grid(6, 4, 2, 0))
    torch.testing.assert_close(law, torch.full((3, 3), 1 / 9, dtype=torch.float64), atol=1e-13, rtol=0)


def test_a_jump_forks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six positions of two values jump, or not: 64 ways from each of 64 states, and not 3**6."""
    model = tl.oracles.joint(torch.full((2,) * 6, 1 / 64), tl.Uniform(2), horizon=6.0)
    most, unfold = [], Reverse.evaluate
    monkeypatch.setattr(Reverse, "evaluate", lambda self, x, t: most.append(len(x)) or unfold(self, x, t))
    tl.exact.law(model, tl.Tweedie(), grid(6, 3, 0))
    assert max(most) == 64 * 64
