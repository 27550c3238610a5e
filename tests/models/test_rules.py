"""Laws that are a rule, against all their sequences written down."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import thetaleap as tl
from tests.models import test_oracles as shared
from tests.models.test_oracles import all_sequences, conditionals, tensor
from thetaleap.models.oracles import Oracle

Row = tuple[int, ...]
BASE = (0, 2, 0)
RULES: dict[str, tuple[Oracle, Callable[[Row], float]]] = {
    "copy": (tl.oracles.copy(4, 3), lambda x: float(len(set(x)) == 1)),
    "uneven copy": (
        tl.oracles.copy(3, tensor([0.5, 0.3, 0.2, 0.0])),
        lambda x: (len(set(x)) == 1) * (0.5, 0.3, 0.2, 0)[x[0]],
    ),
    "replace": (
        tl.oracles.replace(BASE, 1),
        lambda x: float(sum(a != b for a, b in zip(x, BASE, strict=True)) == 1 == x.count(1)),
    ),
    "replace, spare value": (
        tl.oracles.replace([1, 1, 1, 1], 2, states=4),
        lambda x: float(sorted(x) == [1, 1, 1, 2]),
    ),
    "shuffle": (tl.oracles.shuffle(4), lambda x: float(len(set(x)) == 4)),
    "parity": (tl.oracles.parity(5, total=1), lambda x: float(sum(x) % 2 == 1)),
    "sum modulo 3": (tl.oracles.parity(4, 3), lambda x: float(sum(x) % 3 == 0)),
    "latin 2": (tl.oracles.latin(2), lambda x: float(x in ((0, 1, 1, 0), (1, 0, 0, 1)))),
    "ascending": (tl.oracles.ascending(4, 3), lambda x: float(list(x) == sorted(x))),
}
EACH = pytest.mark.parametrize(("model", "weight"), RULES.values(), ids=RULES)


def law(model: Oracle, weight: Callable[[Row], float]) -> dict[Row, float]:
    rows = itertools.product(range(model.process.states), repeat=model.length)
    weights = {x: float(weight(x)) for x in rows}
    total = sum(weights.values())
    return {x: w / total for x, w in weights.items() if w}


@EACH
def test_likelihood_and_entropy(model: Oracle, weight: Callable[[Row], float]) -> None:
    p = law(model, weight)
    x = all_sequences(model.process.states, model.length)
    np.testing.assert_allclose(model.log_prob(x).exp(), [p.get(tuple(row), 0.0) for row in x.tolist()], rtol=1e-12)
    assert model.entropy() == pytest.approx(-sum(w * math.log(w) for w in p.values()), abs=1e-12)


@EACH
def test_conditionals_are_those_of_the_nearest_sequences(model: Oracle, weight: Callable[[Row], float]) -> None:
    """For all partially masked sequences; those of the law where it can produce what is seen."""
    p, mask = law(model, weight), model.process.states
    x = all_sequences(mask + 1, model.length)
    wanted = np.zeros((len(x), model.length, mask))
    for n, row in enumerate(x.tolist()):
        for position in range(model.length):
            others = [m for m in range(model.length) if m != position and row[m] != mask]
            wrong = {y: sum(y[m] != row[m] for m in others) for y in p}
            least = min(wrong.values())
            for y, far in wrong.items():
                wanted[n, position, y[position]] += p[y] * (far == least)
    wanted /= wanted.sum(2, keepdims=True)
    np.testing.assert_allclose(conditionals(model, x, 0.5), wanted, atol=1e-12)


@pytest.mark.parametrize("model", [model for model, _ in RULES.values()], ids=RULES)
def test_true_samples_follow_the_law(model: Oracle) -> None:
    """Chi-square at 1e-9 on 1e5 draws, as for the other oracles."""
    shared.test_true_samples_follow_the_law(model)


def test_latin_squares_are_all_there() -> None:
    assert [len(tl.oracles.latin(order).sequences) for order in (2, 3, 4)] == [2, 12, 576]
    squares = tl.oracles.latin(4).draw(20).view(-1, 4, 4)
    for side in (1, 2):
        assert bool((squares.sort(side).values.movedim(side, 2) == torch.arange(4)).all())


def test_long_ones_are_exact_one_position_at_a_time() -> None:
    """Long ones, by the law that they keep: a run that unmasks one position at a time breaks no rule."""
    base = torch.arange(20) % 7
    for model in (
        tl.oracles.copy(24, 5),
        tl.oracles.replace(base, 7),
        tl.oracles.shuffle(20),
        tl.oracles.parity(17, 4, 3),
    ):
        out = tl.sample(model, exact=True, num=4, window=1)
        assert bool((model.log_prob(out.x) > -math.inf).all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tl.oracles.copy(3, 1), "values=1: give a whole number of at least 2"),
        (lambda: tl.oracles.copy(3, tensor([0.5, 0.6])), "values sums to 1.1"),
        (lambda: tl.oracles.copy(3, 2, tl.Uniform(2)), "process=Uniform: a law of copies is exact under Masked only"),
        (lambda: tl.oracles.replace([0, 1], 1), "value=1: is in base"),
        (lambda: tl.oracles.replace([], 1), r"base=\[\]: give a row of token numbers"),
        (lambda: tl.oracles.replace([0, 1], 5, states=3), "states=3: give a whole number of at least 6"),
        (lambda: tl.oracles.shuffle(1), "length=1: give a whole number of at least 2"),
        (lambda: tl.oracles.shuffle(3, tl.Masked(4)), "process.states=4: the permutation has 3"),
        (lambda: tl.oracles.parity(3, total=2), "total=2: give a number from 0 to 1"),
        (lambda: tl.oracles.latin(5), "order=5: all squares are listed; give at most 4"),
        (lambda: tl.oracles.ascending(40, 40), r"\(length, states\)=\(40, 40\): a list of"),
    ],
)
def test_mistakes_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
