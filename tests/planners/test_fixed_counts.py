"""Fixed counts against coins, in exact KL: no worse on the oracles of the suite, and where and why it is otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import thetaleap as tl
from tests.cases import dirichlet
from thetaleap.evaluation import metrics
from thetaleap.models.oracles import Oracle
from thetaleap.planners import Planner, expected_counts
from thetaleap.planners.counting import SHARES

SPINS = torch.cartesian_prod(*[torch.arange(2)] * 6)


def rows(seed: int, *shape: int, concentration: float = 0.5) -> torch.Tensor:
    """Random laws along the last dimension."""
    drawn = np.random.default_rng(seed).dirichlet([concentration] * shape[-1], size=shape[:-1])
    return torch.from_numpy(np.asarray(drawn))


def joint(seed: int, shape: tuple[int, ...], concentration: float) -> Oracle:
    return tl.oracles.joint(dirichlet(seed, shape, concentration), tl.Masked(shape[0]))


def binary_tree(seed: int, length: int) -> Oracle:
    parents = [-1, *((position - 1) // 2 for position in range(1, length))]
    return tl.oracles.tree(parents, rows(seed, 2), rows(seed + 1, length, 2, 2))


MODELS: dict[str, Oracle] = {
    **{f"joint 2^6, {c}": joint(seed, (2,) * 6, c) for seed, c in enumerate((0.1, 0.3, 1.0, 3.0))},
    "joint 3^5": joint(4, (3,) * 5, 0.5),
    "joint 2^8": joint(5, (2,) * 8, 0.5),
    "chain of 8": tl.oracles.markov_chain(rows(6, 2, 2), 8),
    "chain of order 2": tl.oracles.markov_chain(rows(7, 2, 2, 2), 7),
    "ising 2x3": tl.oracles.ising(2, 3, 0.44),
    "potts 1x5": tl.oracles.potts(3, 1, 5, 0.8),
    "tree of 7": binary_tree(8, 7),
    "mixture, positions alike": tl.oracles.mixture(rows(10, 3), rows(11, 3, 1, 2).expand(3, 7, 2)),
    "mixture, positions unlike": tl.oracles.mixture(rows(12, 3), rows(13, 3, 6, 2)),
}


def kl(model: Oracle, planner: Planner, grid: torch.Tensor) -> float:
    """KL(truth || samples)."""
    law = tl.exact.law(model, tl.Tweedie(planner), grid)
    states, length = model.process.states, model.length
    p0 = model.log_prob(torch.cartesian_prod(*[torch.arange(states)] * length)).exp().view_as(law)
    return metrics.kl(p0, law)


def both(model: Oracle, steps: int) -> tuple[float, float]:
    """The KL of fixed counts and that of coins."""
    grid = tl.grids.uniform(1.0, 0.0, steps)
    return kl(model, tl.FixedCount(), grid), kl(model, tl.Bernoulli(), grid)


@pytest.mark.parametrize("name", MODELS)
def test_no_worse_at_four_evaluations(name: str) -> None:
    fixed, coins = both(MODELS[name], 4)
    assert 1e-6 < fixed < coins


@pytest.mark.parametrize("steps", [8, 16])
@pytest.mark.parametrize("name", ["joint 2^6, 1.0", "potts 1x5"])
def test_exact_with_as_many_evaluations_as_positions(name: str, steps: int) -> None:
    fixed, coins = both(MODELS[name], steps)
    assert fixed < 1e-12 < 1e-3 < coins


@pytest.mark.parametrize(("room", "moves"), [(196, 3), (196, 12), (196, 98), (64, 4), (8, 5), (5, 8), (1, 1), (0, 3)])
def test_cosine_counts(room: int, moves: int) -> None:
    """All are unmasked; what is left follows a cosine, but that every move unmasks one while there are some."""
    each = SHARES["cosine"](torch.tensor([room]), moves)[0].tolist()
    assert sum(each) == room
    assert all(count >= 1 for count in each[: min(room, moves)])
    for n in range(1, moves + 1):
        left = room * math.cos(math.pi / 2 * n / moves)
        assert room - sum(each[:n]) == max(0, min(round(left), room - n)) or abs(left % 1 - 0.5) < 1e-9


def test_cosine_counts_whatever_the_schedule() -> None:
    """They are shares of the moves, not of times: the law is the same under every noise schedule."""
    p0 = torch.rand((2,) * 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    laws = []
    for schedule in (tl.LogLinear(), tl.Cosine()):
        model = tl.oracles.joint(p0 / p0.sum(), tl.Masked(2, schedule))
        laws.append(tl.exact.law(model, tl.Multistep(planner=tl.FixedCount("cosine")), tl.grids.uniform(1.0, 0.0, 3)))
    assert torch.allclose(*laws, rtol=0, atol=1e-12)


# --- exceptions


def test_unlucky_rounding() -> None:
    """Three positions in two steps: the counts round to 1, 2. In a random joint the second and third position depend
    more on each other once the first is known, so that 2, 1 would have been right; coins do that, too, now and then."""
    model = tl.load("cube3")
    grid = tl.grids.uniform(1.0, 0.0, 2)
    assert expected_counts(model.process, 3, grid).tolist() == [1, 2]
    fixed, coins = both(model, 2)
    assert fixed > 1.5 * coins
    assert kl(model, tl.FixedCount(), tl.grids.counted(model, (2, 1))) < coins / 5


def test_parity() -> None:
    """Six bits whose sum is even with probability 0.95. Only the last position feels it, and only if it goes alone:
    with counts 2, 1, 1, 2 it never does, with coins it may."""
    p0 = torch.where(SPINS.sum(1) % 2 == 0, 0.95, 0.05).double().view((2,) * 6) / 32
    model = tl.oracles.joint(p0, tl.Masked(2))
    fixed, coins = both(model, 4)
    assert fixed == pytest.approx(math.log(2) + 0.95 * math.log(0.95) + 0.05 * math.log(0.05))
    assert coins < fixed / 2
    assert kl(model, tl.FixedCount(), tl.grids.counted(model, (2, 2, 1, 1))) < 1e-12


def copies(length: int) -> Oracle:
    """All positions equal, 0 or 1."""
    positions = torch.eye(2, dtype=torch.float64).unsqueeze(1).expand(2, length, 2)
    return tl.oracles.mixture(torch.tensor([0.5, 0.5]), positions)


@pytest.mark.parametrize(("length", "steps"), [(6, 2), (6, 3)])
def test_copies(length: int, steps: int) -> None:
    """The first k positions to go are the only ones in doubt, and agree with probability 2^(1-k): the KL is
    ``-log E[2^(1-k)]``. The mean is of a convex function, so that the spread of coins helps; the path KL,
    ``E[k - 1] log 2``, knows nothing of it."""
    model = copies(length)
    fixed, coins = both(model, steps)
    assert fixed == pytest.approx((length / steps - 1) * math.log(2))
    agree = 0.0
    for left in range(steps, 0, -1):  # steps; each goes with q if none has gone before
        q, none = 1 / left, (left / steps) ** length
        agree += none * 2 * ((1 - q / 2) ** length - (1 - q) ** length)
    assert coins == pytest.approx(-math.log(agree))
    assert coins < fixed
    first_alone = (1, *[1] * (steps - 2), length - steps + 1)
    assert kl(model, tl.FixedCount(), tl.grids.counted(model, first_alone)) < 1e-12
