"""Word problems of two or three steps with worked answers: as many as one likes, from a seed.

    Mia has 3 boxes of 8 shells. Mia gives 5 to Otto. How many shells does Mia have now?
    3 * 8 = 24. 24 - 5 = 19. #### 19

What is held out is so by construction: a problem belongs there if a hash of its numbers and operations says so,
whoever it is about.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from ..core.checks import require, require_count
from ..core.noise import Draw, Noise, Use, philox
from ..models.tokenizers import Lexicon
from .data import Batch

T = TypeVar("T")
LENGTH = 56
"""Tokens of a problem with its answer, at most."""
MOST = 60
"""The largest number."""
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Finn", "Grace", "Hugo", "Ivy", "Jack", "Lena", "Mia", "Noah", "Otto")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pens", "roses", "shells", "stamps")
BOXES = ("bags", "boxes", "rows")
END = "<end>"
MARK = "####"
GIVEN = 0.75
"""How often the question is given, and the answer alone is to be learnt."""
TOLD = "How as buys does finds from gets gives has have loses many more now of sells times to wins"
NUMBERS = tuple(str(n) for n in range(MOST + 1))
WORDS = (END, "\n", *".?+-*=", MARK, *NUMBERS, *TOLD.split(), *BOXES, *NAMES, *THINGS)


@dataclass(frozen=True)
class Problem:
    """A question, its worked answer, and the result."""

    question: str
    answer: str
    result: int

    @property
    def text(self) -> str:
        return f"{self.question}\n{self.answer}"


def problem(seed: int, held_out: bool = False) -> Problem:
    """The problem of this seed, among those to train on or those held out."""
    made, numbers, attempt = None, "", count()
    while made is None or _is_held_out(numbers) != held_out:
        made, numbers = _drawn(_Draws(seed, next(attempt)))
    return made


def problems(num: int, seed: int = 0, held_out: bool = False) -> list[Problem]:
    """So many problems, different from one another, as a function of the seed."""
    require_count("num", num)
    found: dict[str, Problem] = {}
    at = seed << 32
    while len(found) < num:
        made = problem(at, held_out)
        found.setdefault(made.question, made)
        at += 1
    return list(found.values())


def result_of(text: str) -> int | None:
    """The number after the mark of an answer, if there is one."""
    found = re.search(rf"{MARK} *(\d+)", text)
    return int(found.group(1)) if found else None


def _is_held_out(numbers: str) -> bool:
    return hashlib.blake2b(numbers.encode(), digest_size=1).digest()[0] < 26  # a tenth


class _Draws:
    """Random choices, a function of the seed and the attempt."""

    def __init__(self, seed: int, attempt: int) -> None:
        self.numbers = iter(philox(seed, (0, attempt, 0, Use.SUMS), 32))

    def between(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return low + int(next(self.numbers) * (high - low + 1))

    def one(self, of: Sequence[T]) -> T:
        return of[self.between(0, len(of) - 1)]

    def happens(self, probability: float) -> bool:
        return float(next(self.numbers)) < probability


def _drawn(draw: _Draws) -> tuple[Problem | None, str]:
    """A problem, or none if its numbers leave the range; and the numbers and operations that tell it apart."""
    first, apart = draw.between(0, len(NAMES) - 1), draw.between(1, 4)
    who, other, third = (NAMES[(first + n * apart) % len(NAMES)] for n in range(3))
    thing, steps = draw.one(THINGS), draw.between(2, 3)
    boxes, factor = draw.happens(0.5), draw.happens(0.4)
    if boxes:
        packs, value = draw.between(2, 5), draw.between(2, 9)
        told = [f"{who} has {packs} {draw.one(BOXES)} of {value} {thing}."]
        worked, numbers, value = [f"{packs} * {value} = {packs * value}."], f"{packs}*{value}", packs * value
    else:
        value = draw.between(2, MOST // 2)
        told, worked, numbers = [f"{who} has {value} {thing}."], [], f"{value}"
    while len(worked) < steps:
        if factor and len(worked) + 1 == steps:
            sign, number = "*", draw.between(2, 4)
            told.append(f"{third} has {number} times as many as {who}.")
        else:
            sign, number = draw.one("+-"), draw.between(2, 9)
            told.append(_change(draw, sign, number, who, other))
        after = {"+": value + number, "-": value - number, "*": value * number}[sign]
        if not 0 < value <= MOST or not 0 < after <= MOST:
            return None, ""
        worked.append(f"{value} {sign} {number} = {after}.")
        numbers, value = f"{numbers}{sign}{number}", after
    told.append(f"How many {thing} does {third if factor else who} have now?")
    return Problem(" ".join(told), " ".join([*worked, f"{MARK} {value}"]), value), numbers


def _change(draw: _Draws, sign: str, number: int, who: str, other: str) -> str:
    """How it is told that `who` has more, or fewer."""
    if draw.happens(0.5):
        return f"{who} gets {number} from {other}." if sign == "+" else f"{who} gives {number} to {other}."
    if sign == "+":
        return f"{who} {draw.one(('buys', 'finds', 'wins'))} {number} more."
    return f"{who} {draw.one(('sells', 'loses'))} {number}."


@dataclass(frozen=True)
class Sums:
    """Problems to train on, without end, or those held out."""

    held_out: bool = False
    shape = None
    labels = None
    classes = None
    states = len(WORDS)

    @property
    def tokenizer(self) -> Lexicon:
        return Lexicon(WORDS)

    @property
    def digest(self) -> str:
        """SHA-256 of the first thousand problems."""
        return hashlib.sha256("\n".join(each.text for each in problems(1000)).encode()).hexdigest()

    def split(self) -> tuple[Sums, Sums]:
        return Sums(), Sums(held_out=True)

    def check(self, length: int, source: str) -> None:
        """Raise ``ValueError`` unless every problem fits into this length."""
        remedy = f"a problem has up to {LENGTH} words, and an example {length}; leave length out"
        require(length >= LENGTH, "data", source, remedy)

    def draw(self, num: int, length: int, noise: Noise) -> Batch:
        """Problems, of most of which the question is given."""
        seeds = (noise(Draw.EXAMPLE).uniform(num) * 2**53).long()
        rows = [encoded(problem(int(seed), self.held_out), length) for seed in seeds]
        x = torch.stack([row for row, _ in rows])
        kept = noise(Draw.GIVEN).uniform(num) < GIVEN
        questions = torch.tensor([size for _, size in rows])
        return Batch(x, None, (torch.arange(length) < questions.unsqueeze(1)) & kept.unsqueeze(1))


def encoded(made: Problem, length: int = LENGTH) -> tuple[Int64[Tensor, " length"], int]:
    """A problem's tokens, filled up with ends, and how many of them are its question's."""
    words = Lexicon(WORDS)
    ids, asked = words.encode(made.text), len(words.encode(f"{made.question}\n"))
    require(len(ids) <= length, "length", length, f"a problem has up to {LENGTH} words; give as many")
    return torch.tensor(ids + [WORDS.index(END)] * (length - len(ids))), asked
