"""The n-gram judge: probabilities against a loop over plain dictionaries, and sums to one."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import DATA
from thetaleap.core.noise import philox
from thetaleap.evaluation.judges import ngram
from thetaleap.evaluation.judges.causal import Critic, judge
from thetaleap.evaluation.judges.ngram import NGram, fit, load, numbered, save
from thetaleap.evaluation.metrics import TextQuality
from thetaleap.training.ngram import Recipe, make

ALPHABET = "abcd"
LEAST = [1, 1, 2]


def line(num: int = 400, states: int = 4) -> list[int]:
    """Tokens that mostly follow each other, and of which the last is rare."""
    u = philox(3, (0, 0, 0, 0), 2 * num).reshape(num, 2)
    tokens = [0]
    for jump, value in u[1:]:
        tokens.append((tokens[-1] + 1) % (states - 1) if jump < 0.7 else int(value**2 * states))
    return tokens


def counts_of(tokens: Sequence[int], size: int, longest: int) -> Counter[tuple[int, ...]]:
    """Of strings of `size`: occurrences, or different tokens before them."""
    grams = [tuple(tokens[n : n + longest]) for n in range(len(tokens) - longest + 1)]
    for _ in range(longest - size):
        grams = [gram[1:] for gram in set(grams)]
    return Counter(grams)


def discount(counts: Counter[tuple[int, ...]], count: int) -> float:
    n = Counter(counts.values())
    i = min(count, 3)
    if not n[1] or not n[2] or not n[i]:
        return 0.5
    value = i - (i + 1) * n[1] / (n[1] + 2 * n[2]) * n[i + 1] / n[i]
    return value if 0 < value < i else 0.5


def p(tables: list[Counter[tuple[int, ...]]], least: list[int], states: int, context: tuple[int, ...], v: int) -> float:
    """``p(v | context)``, by the formula, one context after the other."""
    value = 1 / states
    for size, counts in enumerate(tables, 1):
        if size > len(context) + 1:
            break
        before = context[len(context) + 1 - size :]
        behind = {gram[-1]: c for gram, c in counts.items() if gram[:-1] == before}
        kept = {token: c - discount(counts, c) for token, c in behind.items() if c >= least[size - 1]}
        if kept:
            total = sum(behind.values())
            value = kept.get(v, 0.0) / total + (1 - sum(kept.values()) / total) * value
    return value


@pytest.mark.parametrize("least", [LEAST, [1, 1, 1, 1], [1, 2, 3], [2]], ids=str)
def test_against_the_formula(least: list[int]) -> None:
    tokens = line()
    model = fit(torch.tensor(tokens), ALPHABET, least)
    tables = [counts_of(tokens, n + 1, len(least)) for n in range(len(least))]
    strange = [4, 1, 4, 4, 0, 1, 2, 4, 0]  # the 4 was never counted
    rows = [[3, 3, 0, 1, 2, 0, 3], [], [1], strange, line(60)[20:]]
    wanted = [
        -sum(math.log(p(tables, least, 4, tuple(row[max(0, i - len(least) + 1) : i]), v)) for i, v in enumerate(row))
        for row in rows
    ]
    torch.testing.assert_close(model.nats(rows), torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("least", [LEAST, [1, 3, 2, 2]], ids=str)
def test_it_is_a_law(least: list[int]) -> None:
    """All texts of five characters together have probability one."""
    model = fit(torch.tensor(line()), ALPHABET, least)
    rows = [list(row) for row in product(range(4), repeat=5)]
    assert float(model.nats(rows).neg().exp().sum()) == pytest.approx(1, abs=1e-12)


def test_a_text_without_chance() -> None:
    """What always follows costs little, and what never did is possible."""
    model = fit(torch.tensor([0, 1, 2] * 100), "abc", [1, 1, 1])
    likely, odd = (model.nats([[0, 1, *rest]])[0] - model.nats([[0, 1]])[0] for rest in ([2], [1]))
    assert float(likely) < 0.02
    assert 3 < float(odd) < math.inf


def test_texts_become_scores() -> None:
    model = fit(torch.tensor(line()), ALPHABET, LEAST)
    assert isinstance(model, Critic)
    assert (model.order, model.states) == (3, 4)
    scores = model.score(["abca", "dd"])
    assert scores.rows == [[0, 1, 2, 0], [3, 3]]
    torch.testing.assert_close(scores.nats, model.nats(scores.rows))
    quality = TextQuality.of(scores.rows, scores.nats)
    assert quality.perplexity.value == pytest.approx(math.exp(float(scores.nats.sum()) / 6))
    assert model.encode("axb") == [0, 4, 1]  # whatever the text did not hold
    with pytest.raises(ValueError, match="the tokens are 0 to 4"):
        model.nats([[0, 5]])


def test_strings_as_numbers() -> None:
    tokens = np.array([1, 0, 2, 1])
    assert numbered(tokens, 3, 2).tolist() == [3, 2, 7]
    assert numbered(tokens, 3, 4).tolist() == [27 + 0 + 6 + 1]
    assert numbered(tokens, 3, 5).tolist() == []


def entropy_rate() -> float:
    """Of `line`, a Markov chain, in bits per token."""
    anew = np.diff(np.sqrt(np.arange(5) / 4))
    step = 0.3 * np.tile(anew, (4, 1)) + 0.7 * np.eye(4)[[1, 2, 0, 1]]
    often = np.linalg.matrix_power(step, 200)[0]
    return float(-(often[:, None] * step * np.log2(step)).sum())


def test_made_from_a_file_and_read_again(tmp_path: Path) -> None:
    text = "".join("abcd"[n] for n in line(30_000))
    (tmp_path / "letters.txt").write_text(text)
    card = make(tmp_path / "letters.txt", tmp_path / "letters", Recipe(order=4, rare=2, length=20))
    assert card == json.loads((tmp_path / "letters" / "card.json").read_text())
    model = load(tmp_path / "letters")
    assert (model.name, model.tokenizer.alphabet, model.order) == ("letters", "abcd", 4)
    known, unseen = torch.tensor(line(30_000)[:27_000]), line(30_000)[27_000:]
    again = fit(known, ALPHABET, [1, 1, 2, 2])
    torch.testing.assert_close(model.nats([unseen]), again.nats([unseen]), rtol=0, atol=0)
    bits = float(again.nats([unseen])[0]) / 3000 / math.log(2)
    assert card["held-out bits per character"] == pytest.approx(bits)
    # -log2 p of a token spreads by 1.2 or so: a false alarm is beyond six of the 3000's standard errors
    assert bits == pytest.approx(entropy_rate(), abs=0.14)
    pieces = card["held-out pieces"]
    assert (pieces["num"], pieces["length"]) == (150, 20)
    assert pieces["perplexity"]["value"] > 2**bits, "pieces begin without a context"
    assert card["strings"] == [len(strings.keys) for strings in model.strings]
    with pytest.raises(ValueError, match=r"holds no ngrams\.npz; make it with python -m thetaleap\.training\.ngram"):
        load(tmp_path)


def test_refusals() -> None:
    tokens = torch.tensor(line())
    for least, message in (
        ([], "give a number for every length"),
        ([1, 0], "least=0: give a whole number"),
        ([1] * 40, "of 4 characters, give shorter strings"),
        ([1, 400], "least=400: some length has no strings that count so often"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(tokens, ALPHABET, least)
    with pytest.raises(ValueError, match="there are none of 3 characters"):
        fit(tokens[:2], ALPHABET, [1, 1, 1])


# --- the one that comes with the package


def plays() -> NGram:
    found = judge("plays")
    assert isinstance(found, NGram)
    return found


def test_plays_know_english_from_noise() -> None:
    model = plays()
    assert (model.name, model.states) == ("plays", 65)
    known, odd = "What, art thou mad? Is not the truth the truth?", "Wtah, atr tohu mda? Is nto hte tuhrt hte trtuh?"
    likely, less = model.score([known, odd]).nats.tolist()
    assert likely / len(known) < 2 * math.log(2)
    assert less > 2 * likely
    assert sum(file.stat().st_size for file in ngram.SHIPPED.iterdir()) < 1.5e6
    with pytest.raises(ValueError, match="context=8: plays is no network; leave it out"):
        judge("plays", context=8)


def test_a_hundred_thousand_characters_in_a_second() -> None:
    model = plays()
    row = model.encode("Now is the winter of our discontent\n") * 2800
    start = time.process_time()
    model.nats([row])
    assert time.process_time() - start < 1


@pytest.mark.data
def test_plays_as_the_card_says() -> None:
    card, model = json.loads((ngram.SHIPPED / "card.json").read_text()), plays()
    raw = (DATA / "shakespeare" / "input.txt").read_bytes()
    assert hashlib.sha256(raw).hexdigest() == card["data sha256"]
    letters, tokens = np.unique(np.frombuffer(raw, np.uint8), return_inverse=True)
    assert bytes(letters).decode() == card["alphabet"]
    cut = len(tokens) - len(tokens) // 10
    unseen = tokens[cut:].tolist()
    bits = float(model.nats([unseen])[0]) / len(unseen) / math.log(2)
    assert bits == pytest.approx(card["held-out bits per character"], rel=1e-12)
    assert bits == pytest.approx(2.1976, abs=1e-4)
    fresh = fit(torch.from_numpy(tokens[:cut]), card["alphabet"], Recipe(card["order"], card["rare"]).least)
    torch.testing.assert_close(model.nats([unseen]), fresh.nats([unseen]), rtol=0, atol=0)


def test_the_file_holds_all(tmp_path: Path) -> None:
    model = fit(torch.tensor(line()), ALPHABET, LEAST)
    save(model, tmp_path / "ngrams.npz")
    with np.load(tmp_path / "ngrams.npz") as parts:
        for n, strings in enumerate(model.strings):
            assert parts[f"steps {n}"].cumsum().tolist() == strings.keys.tolist()
            assert parts[f"totals {n}"].tolist() == strings.totals.tolist()
