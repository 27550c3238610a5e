"""Word problems: right by a second computation, held out by their numbers, and written in few words."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thetaleap.core.noise import Stream
from thetaleap.models.tokenizers import Lexicon
from thetaleap.training.sums import END, LENGTH, MOST, WORDS, Sums, encoded, problem, problems, result_of

WORDING = {"buys": "+", "finds": "+", "gets": "+", "wins": "+", "gives": "-", "sells": "-", "loses": "-"}


def solved(question: str) -> int:
    """The answer, read off the sentences of the question alone."""
    first, *told, asked = re.split(r"(?<=[.?]) ", question)
    who = first.split()[0]
    numbers = [int(n) for n in re.findall(r"\d+", first)]
    value = numbers[0] * numbers[1] if len(numbers) == 2 else numbers[0]
    holder = who
    for sentence in told:
        subject, verb = sentence.split()[:2]
        number = int(re.findall(r"\d+", sentence)[0])
        if "times as many" in sentence:
            value, holder = value * number, subject
        else:
            assert subject == who
            value += number if WORDING[verb] == "+" else -number
    assert f"does {holder} have now?" in asked
    return value


@given(st.integers(0, 2**53), st.booleans())
@settings(max_examples=200)
def test_problems_are_right_and_fit(seed: int, held_out: bool) -> None:
    made = problem(seed, held_out)
    assert made == problem(seed, held_out)
    assert solved(made.question) == made.result == result_of(made.answer)
    *worked, last = re.split(r"(?<=\.) ", made.answer)
    assert last == f"#### {made.result}"
    assert 2 <= len(worked) <= 3
    for line in worked:
        a, sign, b, value = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)\.", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(value) <= MOST
    words = Lexicon(WORDS)
    ids = words.encode(made.text)
    assert words.decode(ids) == made.text
    assert len(ids) <= LENGTH


def test_what_is_held_out_is_not_trained_on() -> None:
    """Not only other sentences: other numbers."""
    seen, unseen = ({tuple(re.findall(r"\d+|[-+*]", each.answer)) for each in problems(400, 1, held)}
                    for held in (False, True))  # fmt: skip
    assert len(seen) > 300
    assert len(unseen) > 200
    assert not seen & unseen


def test_problems_are_different_and_a_function_of_the_seed() -> None:
    first = problems(300, 5)
    assert first == problems(300, 5)
    assert len({each.question for each in first}) == 300
    assert not set(first) & set(problems(300, 6))


def test_rows_to_train_on() -> None:
    corpus = Sums()
    batch = corpus.draw(64, LENGTH, Stream(3, 0, 64).at(7))
    assert len({tuple(row) for row in batch.tokens.tolist()}) == 64
    assert batch.given is not None
    words = corpus.tokenizer
    whole = 0
    for row, given_positions in zip(batch.tokens, batch.given, strict=True):
        text = words.decode(row.tolist())
        question, answer = text.split("\n")
        assert solved(question) == result_of(answer)
        if bool(given_positions.any()):
            whole += 1
            assert words.decode(row[given_positions].tolist()) == f"{question}\n"
    assert 27 < whole < 64  # three quarters of them; outside of this with probability 1e-7
    kept, unseen = corpus.split()
    assert (kept.held_out, unseen.held_out) == (False, True)
    assert len(corpus.digest) == 64


def test_encoded() -> None:
    made = problem(0)
    row, asked = encoded(made)
    assert row.dtype == torch.int64
    assert Lexicon(WORDS).decode(row[:asked].tolist()) == f"{made.question}\n"
    assert int(row[-1]) == WORDS.index(END) or len(Lexicon(WORDS).encode(made.text)) == LENGTH


def test_words_that_are_not_known() -> None:
    words = Lexicon(WORDS)
    with pytest.raises(ValueError, match=r"text='appels': is none of the .* words of this.*did you mean 'apples'"):
        words.encode("Anna has 3 appels.")
    with pytest.raises(ValueError, match="decode no masks"):
        words.decode([len(WORDS)])


def test_results() -> None:
    assert result_of("1 + 2 = 3. #### 3") == 3
    assert result_of("1 + 2 = 3.") is None


def test_problems_are_not_cut_off() -> None:
    with pytest.raises(ValueError, match="length=12: a problem has up to 56 words"):
        Sums().draw(2, 12, Stream(0, 0, 2))
