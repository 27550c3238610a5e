"""Metrics of text, against counting by hand and in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from thetaleap.evaluation.metrics import TextQuality, distinct, ngram_divergence, repetition, unigram_entropy
from thetaleap.evaluation.metrics.sequences import Measured

ROWS = [[1, 2, 1, 2, 1], [7, 7, 7, 7], [3, 1, 2, 9]]


def drawn(num: int, seed: int, values: int = 6, tilt: float = 0.3) -> list[list[int]]:
    """Rows of 5 to 24 tokens whose frequencies differ from row to row."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(num):
        long = int(torch.randint(5, 25, (), generator=generator))
        weights = torch.exp(tilt * torch.randn(values, generator=generator) - tilt * torch.arange(values))
        rows.append(torch.multinomial(weights, long, replacement=True, generator=generator).tolist())
    return rows


def grams(row: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(row[k : k + n]) for k in range(len(row) - n + 1)]


def frequencies(rows: list[list[int]], n: int) -> dict[tuple[int, ...], float]:
    counts = Counter(gram for row in rows for gram in grams(row, n))
    return {gram: count / counts.total() for gram, count in counts.items()}


# --- known answers


def test_by_hand() -> None:
    halves = -(0.6 * math.log2(0.6) + 0.4 * math.log2(0.4))
    assert unigram_entropy(ROWS).value == pytest.approx((halves + 0 + 2) / 3, abs=1e-12)
    assert [repetition(ROWS, n).value for n in (1, 2, 3, 4)] == [6 / 13, 4 / 10, 2 / 7, 0]
    assert [distinct(ROWS, n).value for n in (1, 2, 3, 4)] == [5 / 13, 5 / 10, 5 / 7, 1]


@pytest.mark.parametrize("length", [4, 16, 1024])
def test_the_most_and_the_least_entropy(length: int) -> None:
    assert unigram_entropy([list(range(length))] * 3).value == pytest.approx(math.log2(length), abs=1e-12)
    assert unigram_entropy([[5] * length] * 3) == Measured(0.0, 0.0)


def test_a_judge_that_knows_nothing() -> None:
    """To whom each of 50 tokens is as likely: the perplexity is 50, and nothing about it is uncertain."""
    nats = torch.tensor([len(row) * math.log(50) for row in ROWS], dtype=torch.float64)
    found = TextQuality.of(ROWS, nats)
    assert found.perplexity.value == pytest.approx(50, rel=1e-12)
    assert found.perplexity.error == pytest.approx(0, abs=1e-10)
    assert found.tokens == 13
    assert (found.entropy, found.repetition[1], found.distinct[2]) == (
        unigram_entropy(ROWS),
        repetition(ROWS, 2),
        distinct(ROWS, 3),
    )


def test_long_texts_weigh_more() -> None:
    found = TextQuality.of([[1] * 30, [2] * 10], torch.tensor([30 * math.log(2), 10 * math.log(32)]).double())
    assert found.perplexity.value == pytest.approx(2 ** (30 / 40 + 5 * 10 / 40), rel=1e-6)


def test_perplexity_comes_with_diversity() -> None:
    names = list(TextQuality.of(ROWS, torch.ones(3, dtype=torch.float64)).figures())
    assert names[:2] == ["perplexity", "unigram_entropy"]
    assert names[2:] == [f"{kind}_{n}" for kind in ("repetition", "distinct") for n in (1, 2, 3, 4)]


def test_of_one_sample_no_error_is_known() -> None:
    found = TextQuality.of([[1, 2, 3, 1]], torch.ones(1, dtype=torch.float64))
    assert all(math.isnan(figure.error) for figure in found.figures().values())


# --- a second computation


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_counts(n: int) -> None:
    rows = drawn(40, seed=0)
    each = [grams(row, n) for row in rows]
    every = [gram for some in each for gram in some]
    again = sum(gram in some[:k] for some in each for k, gram in enumerate(some))
    assert repetition(rows, n).value == pytest.approx(again / len(every), abs=1e-15)
    assert distinct(rows, n).value == pytest.approx(len(set(every)) / len(every), abs=1e-15)
    entropies = [-sum(f * math.log2(f) for f in frequencies([row], 1).values()) for row in rows]
    assert unigram_entropy(rows).value == pytest.approx(sum(entropies) / 40, abs=1e-12)


@pytest.mark.parametrize("smoothing", [0.5, 0.01])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_divergences(n: int, smoothing: float) -> None:
    rows, reference = drawn(30, seed=1), drawn(40, seed=2, values=8)
    p, q = frequencies(rows, n), frequencies(reference, n)
    total = sum(len(grams(row, n)) for row in reference)
    kinds = p.keys() | q.keys()
    kl = js = 0.0
    for gram in kinds:
        a, b = p.get(gram, 0.0), q.get(gram, 0.0)
        middle = (a + b) / 2
        kl += a * math.log(a / ((b * total + smoothing) / (total + smoothing * len(kinds)))) if a else 0.0
        js += sum(part * math.log(part / middle) for part in (a, b) if part) / 2
    found = ngram_divergence(rows, reference, n, smoothing)
    assert found.kl.value == pytest.approx(kl, rel=1e-12)
    assert found.js.value == pytest.approx(js, rel=1e-12)
    assert ngram_divergence(reference, rows, n).js.value == pytest.approx(js, rel=1e-12)


def test_the_ends_of_divergences() -> None:
    same = ngram_divergence(ROWS, [*ROWS, *ROWS], 2, smoothing=1e-9)
    assert same.js.value == pytest.approx(0, abs=1e-12)
    assert same.kl.value == pytest.approx(0, abs=1e-8)
    apart = ngram_divergence(ROWS, [[20, 21, 22], [23, 24]], 2)
    assert apart.js.value == pytest.approx(math.log(2), rel=1e-12)
    # 12, 21, 77, 31 and 29, of which the reference has none; it has 3 others, once each
    wanted = sum(c / 10 * math.log(c / 10 / (0.5 / (3 + 0.5 * 8))) for c in (3, 2, 3, 1, 1))
    assert apart.kl.value == pytest.approx(wanted, rel=1e-12)


REFERENCE = drawn(60, seed=4)
FIGURES: dict[str, Callable[[list[list[int]]], Measured]] = {
    "entropy": unigram_entropy,
    "repetition": lambda rows: repetition(rows, 2),
    "distinct": lambda rows: distinct(rows, 2),
    "kl": lambda rows: ngram_divergence(rows, REFERENCE, 2).kl,
    "js": lambda rows: ngram_divergence(rows, REFERENCE, 2).js,
    "perplexity": lambda rows: (
        TextQuality.of(rows, torch.tensor([sum(1 + token % 3 for token in row) for row in rows]).double()).perplexity
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_standard_errors_are_the_jackknife_s(name: str) -> None:
    """What it costs to leave out each sample in turn; equal for `distinct`, and else to order 1/num."""
    rows, figure = drawn(80, seed=3), FIGURES[name]
    without = torch.tensor([figure(rows[:k] + rows[k + 1 :]).value for k in range(len(rows))]).double()
    wanted = math.sqrt(float((without - without.mean()).square().sum()) * 79 / 80)
    assert figure(rows).error == pytest.approx(wanted, rel=1e-4 if name == "distinct" else 0.03)


# --- errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: unigram_entropy([]), "rows=0: give at least one sample"),
        (lambda: unigram_entropy([[1], []]), r"rows\[1\]=\[\]: holds no tokens; leave empty samples out"),
        (lambda: repetition(ROWS, 6), "rows=5: the longest has no 6 tokens; give longer texts, or a smaller n"),
        (lambda: distinct(ROWS, 0), "n=0: give a whole number of at least 1"),
        (lambda: ngram_divergence(ROWS, [[1]], 2), "reference=1: the longest has no 2 tokens"),
        (lambda: ngram_divergence(ROWS, ROWS, 2, 0.0), "smoothing=0.0: must lie in"),
        (lambda: TextQuality.of(ROWS, torch.ones(2).double()), "nats=2: there are 3 rows; give one number for each"),
    ],
    ids=["none", "empty", "short", "zero", "reference", "smoothing", "nats"],
)
def test_refusals(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
