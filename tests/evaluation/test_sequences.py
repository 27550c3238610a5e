"""Figures of sets of sequences, against closed forms and second implementations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thetaleap as tl
from tests.core.test_batches import in_parts
from thetaleap.core.batches import Batches
from thetaleap.evaluation.metrics import counts, sequences
from thetaleap.evaluation.metrics.sequences import (
    KINDS,
    Frequencies,
    Measured,
    affordable,
    frequency_distance,
    frequency_gap,
    mean,
    pairwise_distance,
    position_entropy,
)


def sets(count: int, width: int = 4, states: int = 3) -> st.SearchStrategy[list[Tensor]]:
    """`count` sets of 3 to 8 sequences."""
    row = st.lists(st.integers(0, states - 1), min_size=width, max_size=width)
    rows = st.lists(row, min_size=3, max_size=8).map(lambda found: torch.tensor(found, dtype=torch.int64))
    return st.lists(rows, min_size=count, max_size=count)


def places(kind: str, width: int) -> list[tuple[int, ...]]:
    if kind == "positions":
        return [(n,) for n in range(width)]
    if kind == "neighbours":
        return [(n, n + 1) for n in range(width - 1)]
    return list(itertools.combinations(range(width), 2))


def by_frequencies(x: Tensor, y: Tensor, kind: str) -> float:
    """The same from frequencies: the sum of their squares, less what chance adds to it."""

    def seen(z: Tensor, place: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        keys = [tuple(row) for row in z[:, list(place)].tolist()]
        return {key: keys.count(key) / len(keys) for key in set(keys)}

    def square(p: dict[tuple[int, ...], float], n: int) -> float:
        return (n * sum(v * v for v in p.values()) - 1) / (n - 1)

    total = []
    for place in places(kind, x.shape[1]):
        p, q = seen(x, place), seen(y, place)
        total.append(square(p, len(x)) + square(q, len(y)) - 2 * sum(p[key] * q.get(key, 0.0) for key in p))
    return sum(total) / len(total)


def estimates(figure: Any, x: Tensor) -> list[float]:
    return [figure(torch.cat([x[:n], x[n + 1 :]])) for n in range(len(x))]


def variance(without: list[float]) -> float:
    n, middle = len(without), sum(without) / len(without)
    return (n - 1) / n * sum((value - middle) ** 2 for value in without)


@pytest.mark.parametrize("kind", KINDS)
@given(both=sets(2))
@settings(max_examples=30)
def test_distance_is_that_of_frequencies(kind: Frequencies, both: list[Tensor]) -> None:
    x, y = both
    assert frequency_distance(x, y, kind).value == pytest.approx(by_frequencies(x, y, kind), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@given(both=sets(2))
@settings(max_examples=20)
def test_error_is_the_jackknife(kind: Frequencies, both: list[Tensor]) -> None:
    x, y = (torch.cat([z, z[:1]]) for z in both)  # 4 or more, so that one can go
    own = estimates(lambda z: by_frequencies(z, y, kind), x)
    others = estimates(lambda z: by_frequencies(x, z, kind), y)
    wanted = math.sqrt(variance(own) + variance(others))
    assert frequency_distance(x, y, kind).error == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@given(both=sets(2), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_distance_is_symmetric_and_blind_to_order_and_names(kind: Frequencies, both: list[Tensor], seed: int) -> None:
    x, y = both
    wanted, order = (
        frequency_distance(x, y, kind),
        torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)),
    )
    names = torch.tensor([5, 0, 9])
    for found in (frequency_distance(y, x, kind), frequency_distance(names[x[order]], names[y.flip(0)], kind)):
        assert found.value == pytest.approx(wanted.value, abs=1e-12)
        assert found.error == pytest.approx(wanted.error, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@given(three=sets(3))
@settings(max_examples=15)
def test_gap_is_the_difference(kind: Frequencies, three: list[Tensor]) -> None:
    x, y, reference = (torch.cat([z, z[:1]]) for z in three)
    gap = frequency_gap(x, y, reference, kind)
    far = [frequency_distance(z, reference, kind).value for z in (x, y)]
    assert gap.value == pytest.approx(far[0] - far[1], abs=1e-12)
    parts = [
        estimates(lambda z: by_frequencies(z, reference, kind), x),
        estimates(lambda z: by_frequencies(z, reference, kind), y),
        estimates(lambda z: by_frequencies(x, z, kind) - by_frequencies(y, z, kind), reference),
    ]
    assert gap.error == pytest.approx(math.sqrt(sum(map(variance, parts))), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_distance_has_no_bias(kind: Frequencies) -> None:
    """Over every way to draw two sets of 3 from two laws of 2 bits, each as likely as it is."""
    laws = torch.tensor([[0.4, 0.1, 0.2, 0.3], [0.1, 0.5, 0.3, 0.1]], dtype=torch.float64)
    bits = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    one = laws.view(2, 2, 2)
    truth = float((laws[0] - laws[1]).square().sum())
    if kind == "positions":
        truth = sum(float((one[0].sum(n) - one[1].sum(n)).square().sum()) for n in (0, 1)) / 2
    total = 0.0
    ways = [torch.tensor(way) for way in itertools.combinations_with_replacement(range(4), 3)]

    def chance(way: Tensor, law: Tensor) -> float:
        orders = math.factorial(3) / math.prod(math.factorial(int(c)) for c in torch.bincount(way))
        return orders * float(law[way].prod())

    for a, b in itertools.product(ways, ways):
        total += chance(a, laws[0]) * chance(b, laws[1]) * frequency_distance(bits[a], bits[b], kind).value
    assert total == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("same", [True, False])
def test_errors_are_honest(same: bool) -> None:
    """Of 400 estimates, the spread against the errors given: within 15% for two laws, and at most 60% too large for
    one and the same. (By chance the spread of 400 is off by 3.5%. The draws are fixed, so that it does not vary.)"""
    model = tl.load("mixture32")
    draws, others = model.draw(400 * 20, 0).view(400, 20, 32), model.draw(400 * 30, 1).view(400, 30, 32)
    if not same:
        draws = torch.where(draws == 0, 1, draws)
    found = [frequency_distance(x, y, "positions") for x, y in zip(draws, others, strict=True)]
    spread = float(torch.tensor([f.value for f in found], dtype=torch.float64).std())
    given_errors = float(torch.tensor([f.error**2 for f in found], dtype=torch.float64).mean().sqrt())
    assert 0.85 < given_errors / spread < (1.6 if same else 1.15)


def test_positions_that_do_not_count() -> None:
    x, y = (torch.randint(3, (6, 5), generator=torch.Generator().manual_seed(n)) for n in (0, 1))
    some = torch.tensor([0, 1, 4])
    assert frequency_distance(x, y, "positions", some) == frequency_distance(x[:, some], y[:, some])
    assert frequency_distance(x, y, "pairs", some) == frequency_distance(x[:, some], y[:, some], "pairs")
    # positions 1 and 4 are not next to each other
    assert frequency_distance(x, y, "neighbours", some) == frequency_distance(x[:, :2], y[:, :2], "neighbours")
    assert pairwise_distance(x, some) == pairwise_distance(x[:, some])
    assert position_entropy(x, some) == position_entropy(x[:, some])


# --- counting, against comparing each with each


def agreement(x: Tensor, y: Tensor, kind: str) -> Tensor:
    """The share of places at which each of x agrees with each of y."""
    same = x.unsqueeze(1) == y.unsqueeze(0)
    return torch.stack([same[..., list(place)].all(2) for place in places(kind, x.shape[1])]).double().mean(0)


def by_pairs(x: Tensor, y: Tensor, kind: str) -> Measured:
    """The distance by its definition, and its jackknife by leaving rows and columns out."""
    xx, yy, xy = agreement(x, x, kind), agreement(y, y, kind), agreement(x, y, kind)

    def within(k: Tensor) -> float:
        return float(k.sum() - k.diagonal().sum()) / (len(k) * (len(k) - 1))

    def distance(own: list[int], others: list[int]) -> float:
        return within(xx[own][:, own]) + within(yy[others][:, others]) - 2 * float(xy[own][:, others].mean())

    rows, columns = list(range(len(x))), list(range(len(y)))
    less = [distance(rows[:n] + rows[n + 1 :], columns) for n in rows]
    less_reference = [distance(rows, columns[:n] + columns[n + 1 :]) for n in columns]
    return Measured(distance(rows, columns), math.sqrt(variance(less) + variance(less_reference)))


def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fits into a table, and little into memory at a time."""
    for module in (counts, sequences):
        monkeypatch.setattr(module, "DENSE", 0)
    monkeypatch.setattr(counts, "AT_ONCE", 50)
    monkeypatch.setattr(counts, "MERGED", 20)
    monkeypatch.setattr(sequences, "COMPARED", 100)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("states", [2, 40, 2**28])
def test_counts_say_what_pairs_say(
    kind: Frequencies, states: int, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few values, of many, and of so many that no table holds them."""
    if not dense:
        small_tables(monkeypatch)
    chance = torch.Generator().manual_seed(0)
    x, y = (torch.randint(states, (num, 5), generator=chance) for num in (60, 35))
    y[:, 1] = x[: len(y), 1]
    found, wanted = frequency_distance(x, y, kind), by_pairs(x, y, kind)
    assert found.value == pytest.approx(wanted.value, abs=1e-12)
    assert found.error == pytest.approx(wanted.error, abs=1e-12)


@pytest.mark.parametrize("dense", [True, False])
def test_figures_do_not_depend_on_parts(dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit; and without a table they are what they are with one."""
    chance = torch.Generator().manual_seed(0)
    x, y, z = (torch.randint(9, (num, 6), generator=chance) for num in (50, 40, 30))

    def figures(x: Any, y: Any, z: Any) -> list[Measured]:
        each = [pairwise_distance(x), position_entropy(x)]
        each += [frequency_distance(x, y, kind) for kind in KINDS]
        return each + [frequency_gap(x, y, z, kind) for kind in KINDS]

    plain = figures(x, y, z)
    if not dense:
        small_tables(monkeypatch)
    whole = figures(x, y, z)
    assert whole == figures(in_parts(x, 1, 30, 19), in_parts(y, 40), in_parts(z, 9, 9, 9, 3))
    for one, other in zip(whole, plain, strict=True):
        assert (one.value, one.error) == (pytest.approx(other.value, abs=1e-12), pytest.approx(other.error, abs=1e-12))


def test_what_can_be_afforded() -> None:
    """Any number of samples, of letters; of large vocabularies as many as have 2^25 cells, and few in all pairs."""

    def most(of: Frequencies, length: int, states: int, num: int = 10**6) -> int | None:
        return affordable([Batches(num, length, 0, states - 1, list)] * 2, of, torch.arange(length))

    assert [most(kind, 64, 16) for kind in KINDS] == [None] * 3
    assert [most(kind, 256, 65) for kind in KINDS] == [None, None, 4096]
    assert [most(kind, 1024, 50257) for kind in KINDS] == [None, 2**25 // 1023, 4096]
    assert [most(kind, 4096, 126464) for kind in KINDS] == [2**25 // 4096, 2**25 // 4095, 4096]
    assert [most(kind, 1024, 50257, 4096) for kind in KINDS] == [None] * 3


# --- diversity


@given(one=sets(1))
@settings(max_examples=30)
def test_pairwise_distance(one: list[Tensor]) -> None:
    (x,) = one
    pairs = [float((a != b).double().mean()) for a, b in itertools.combinations(x, 2)]
    assert pairwise_distance(x).value == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_diversity_of_copies_and_of_all_different() -> None:
    assert pairwise_distance(torch.zeros((5, 4), dtype=torch.int64)) == Measured(0.0, 0.0)
    same = position_entropy(torch.zeros((5, 4), dtype=torch.int64))
    assert (same.value, same.error) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))
    assert pairwise_distance(torch.arange(5).unsqueeze(1).expand(5, 4)) == Measured(1.0, 0.0)


def entropy(x: Tensor) -> float:
    total = 0.0
    for column in x.T:
        share = torch.bincount(column).double() / len(column)
        total -= float(torch.xlogy(share, share).sum())
    return total / x.shape[1]


@given(one=sets(1))
@settings(max_examples=30)
def test_position_entropy(one: list[Tensor]) -> None:
    (x,) = one
    without = estimates(entropy, x)
    found = position_entropy(x)
    wanted = len(x) * entropy(x) - (len(x) - 1) * sum(without) / len(x)
    assert found.value == pytest.approx(wanted, abs=1e-9)
    assert found.error == pytest.approx(math.sqrt(variance(without)), abs=1e-9)


def test_the_correction_of_entropy_is_one() -> None:
    """50 samples of 8 values that are equally likely: the plain figure is 0.07 too low, the corrected one 0.001. The
    mean of 500 positions is known to 0.002."""
    x = torch.randint(8, (50, 500), generator=torch.Generator().manual_seed(0))
    assert entropy(x) < math.log(8) - 0.05
    assert position_entropy(x).value == pytest.approx(math.log(8), abs=0.012)


def test_mean() -> None:
    assert mean(torch.tensor([1.0, 3.0], dtype=torch.float64)) == Measured(2.0, 1.0)
    assert math.isnan(mean(torch.tensor([1.0], dtype=torch.float64)).error)
    assert str(Measured(0.5, 0.25)) == "0.5000 ± 0.2500"


X = torch.zeros((4, 3), dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frequency_distance(X[:2], X), "x=2: standard errors take 3 samples or more; draw more"),
        (
            lambda: frequency_distance(X, X[:, :2]),
            r"reference=\(4, 2\): x has 3 positions; give sequences of this length",
        ),
        (
            lambda: frequency_distance(X, X, positions=torch.tensor([1, 3])),
            r"positions=\[1, 3\]: give increasing numbers",
        ),
        (
            lambda: frequency_distance(X, X, positions=torch.tensor([1, 0])),
            r"positions=\[1, 0\]: give increasing numbers",
        ),
        (lambda: frequency_distance(X[:, :1], X[:, :1], "pairs"), "positions=1: a pair takes two; give more"),
        (
            lambda: frequency_distance(X, X, "neighbours", torch.tensor([0, 2])),
            "positions=2: no two are next to each other; give more, or of='pairs'",
        ),
        (lambda: pairwise_distance(X, torch.zeros(0, dtype=torch.int64)), r"positions=\[\]: give at least one"),
        (lambda: position_entropy(X[:, :0]), r"x=\(4, 0\): has no positions; give sequences"),
        (lambda: pairwise_distance(X - 1), "x=-1: tokens are whole numbers from 0 on; give those"),
        (
            lambda: frequency_distance(X, X + 2**31, "neighbours"),
            "x=2147483648: is too large a token to count pairs of; give smaller ones",
        ),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
