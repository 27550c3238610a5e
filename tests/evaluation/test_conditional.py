"""The bound on the likelihood of an answer, beside what it is worked out to be."""

from __future__ import annotations

import math
from itertools import combinations, permutations
from typing import Any

import pytest
import torch

import thetaleap as tl
from thetaleap.evaluation.metrics.likelihood import answer_log_likelihood, is_greedy

STATES, LENGTH = 3, 5
X = torch.tensor([2, 0, 1, 1, 0])
ANSWER = torch.tensor([False, True, True, False, True])
SITES = [1, 2, 4]


def network(scale: float = 2.0) -> Any:
    """Conditionals at random, those of no joint law: a table of logits for each sequence."""
    table = scale * torch.randn(
        ((STATES + 1) ** LENGTH, LENGTH, STATES), generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    powers = (STATES + 1) ** torch.arange(LENGTH)
    return tl.from_network(
        tl.Masked(STATES), length=LENGTH, network=lambda x, t: table[(x * powers).sum(1)], time_free=True
    )


def log_p(model: Any, hidden: list[int]) -> torch.Tensor:
    """Log-probabilities of what X holds at `hidden`, given the rest."""
    x = X.clone()
    x[hidden] = STATES
    rows = model(x.unsqueeze(0), torch.tensor(0.5, dtype=torch.float64)).logits(torch.tensor(hidden))
    return torch.log_softmax(rows, 1)[torch.arange(len(hidden)), X[hidden]]


def bound(model: Any) -> float:
    """The mean over all orders of writing the answer one position at a time."""
    orders = list(permutations(SITES))
    return sum(float(log_p(model, list(o[n:]))[0]) for o in orders for n in range(len(o))) / len(orders)


def test_the_weights_give_the_bound() -> None:
    model, size = network(), len(SITES)
    by_counts = [
        sum(float(log_p(model, list(some)).sum()) for some in combinations(SITES, k)) / math.comb(size, k) * size / k
        for k in range(1, size + 1)
    ]
    assert sum(by_counts) / size == pytest.approx(bound(model), abs=1e-12)


def estimates(model: Any, draws: int, num: int) -> torch.Tensor:
    return torch.tensor(
        [answer_log_likelihood(model, X, ANSWER, draws=draws, index=n, batch_size=draws) for n in range(num)]
    )


def off(values: torch.Tensor, exact: float) -> tuple[float, float]:
    """How far the mean is from `exact`, and its standard error."""
    return abs(float(values.mean()) - exact), float(values.std()) / math.sqrt(len(values))


@pytest.mark.parametrize("draws", [1, 4])
def test_without_bias(draws: int) -> None:
    """5.5 standard errors: fails by chance once in 2e7."""
    model = network()
    distance, error = off(estimates(model, draws, 400), bound(model))
    assert distance < 5.5 * error


def test_without_bias_in_many_draws() -> None:
    """6 of 60 estimates' standard errors, by Student's t once in 8e6. A weight of 1 in place of L/k, or k from 0 to
    L - 1, would be off by hundreds."""
    model = network()
    distance, error = off(estimates(model, 1500, 60), bound(model))
    assert distance < 6 * error
    assert error < 0.01


def test_of_a_joint_law_it_is_the_likelihood() -> None:
    p0 = torch.rand((STATES,) * LENGTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = tl.oracles.joint(p0 / p0.sum(), tl.Masked(STATES))
    index: Any = tuple(slice(None) if answer else int(x) for x, answer in zip(X, ANSWER, strict=True))
    rest = model.p0[index]
    exact = float((rest[tuple(X[SITES])] / rest.sum()).log())
    distance, error = off(estimates(model, 300, 60), exact)
    assert distance < 6 * error


def test_even_spread_is_less_noisy() -> None:
    model = network()
    # without the even spread the variances would be as 1 to 6; of 150 estimates each, a ratio is known within a fifth
    assert float(estimates(model, 6, 150).var()) < 0.8 * float(estimates(model, 1, 150).var()) / 6


def test_batches_do_not_matter_and_seeds_do() -> None:
    model = network()
    given = {"draws": 7, "seed": 4, "index": 9}
    values = {size: answer_log_likelihood(model, X, ANSWER, batch_size=size, **given) for size in (1, 2, 3, 32)}
    assert max(values.values()) - min(values.values()) < 1e-12
    others = [answer_log_likelihood(model, X, ANSWER, **{**given, **one}) for one in ({"seed": 5}, {"index": 8})]
    assert len({values[32], *others}) == 3


def test_one_position_is_exact_and_cheap() -> None:
    model, calls = network(), []

    def counted(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return model(x, t).values

    one = torch.arange(LENGTH) == 2
    twin = tl.from_network(tl.Masked(STATES), length=LENGTH, network=counted, time_free=True)
    assert answer_log_likelihood(twin, X, one, draws=50) == pytest.approx(float(log_p(model, [2])[0]), abs=1e-12)
    assert calls == [1]


def test_greedy() -> None:
    model, found = network(), X.clone()
    missing = list(SITES)
    while missing:
        x = found.clone()
        x[missing] = STATES
        rows = model(x.unsqueeze(0), torch.tensor(0.5, dtype=torch.float64)).logits(torch.tensor(missing)).softmax(1)
        position, value = divmod(int(rows.flatten().argmax()), STATES)
        found[missing.pop(position)] = value
    assert is_greedy(model, found, ANSWER)
    for position in SITES:
        other = found.clone()
        other[position] = (other[position] + 1) % STATES
        assert not is_greedy(model, other, ANSWER)


def test_errors() -> None:
    with pytest.raises(ValueError, match="answer=0: has no positions"):
        answer_log_likelihood(network(), X, torch.zeros(LENGTH, dtype=torch.bool))
    with pytest.raises(ValueError, match="without masks"):
        answer_log_likelihood(network(), X + 1, ANSWER)
    with pytest.raises(ValueError, match="the model has 5 positions"):
        is_greedy(network(), X[:4], ANSWER[:4])
    with pytest.raises(ValueError, match="draws=0"):
        answer_log_likelihood(network(), X, ANSWER, draws=0)
    with pytest.raises(ValueError, match="give a model with masks"):
        answer_log_likelihood(tl.load("cube3-uniform"), X[:3], ANSWER[:3])
