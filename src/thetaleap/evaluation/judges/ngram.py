"""How likely text is by the strings of characters that another text holds: a small judge that needs no network.

Interpolated Kneser-Ney, three discounts (Chen and Goodman 1999). Behind a context ``p(v) = (c(v) - D + w p'(v))/n``:
n is the sum of its counts c, p' is the same for the context without its first token, and uniform before all, and w is
what makes p sum to one. Counts are of occurrences for the longest strings, and for others of the different tokens
that stood before them. Rare strings may be left out: their counts then go to w.

A character that the other text does not hold, as a poor sample may, is as likely as one that no context has held, and
what follows it is judged without it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ...core.checks import require, require_count
from ...core.storage import SHIPPED as DATA
from ...models.tokenizers import Letters
from ..metrics.counts import find
from .causal import PLAYS, Scores

SHIPPED = DATA / PLAYS
TABLE, CARD = "ngrams.npz", "card.json"
MOST = 2**62
"""Strings are numbered in base S, which must fit a word."""


@dataclass(frozen=True, eq=False)
class Strings:
    """Strings of one length: a string is a number whose last digit is its last token."""

    keys: Int64[np.ndarray, " n"]
    """In order."""
    counts: Int64[np.ndarray, " n"]
    contexts: Int64[np.ndarray, " m"]
    """The strings without their last tokens, in order, each once."""
    totals: Int64[np.ndarray, " m"]
    """Counts of all strings that begin with a context, those left out included."""
    discounts: Float64[np.ndarray, " 3"]
    """What is taken off counts of 1, of 2, and of more."""
    shorter: Float64[np.ndarray, " m"]
    """The weight of the shorter context, w."""

    @staticmethod
    def of(
        keys: Int64[np.ndarray, " n"],
        counts: Int64[np.ndarray, " n"],
        totals: Int64[np.ndarray, " m"],
        discounts: Float64[np.ndarray, " 3"],
        states: int,
    ) -> Strings:
        contexts, which = np.unique(keys // states, return_inverse=True)
        kept = np.bincount(which, _discounted(counts, discounts), len(contexts))
        return Strings(keys, counts, contexts, totals, discounts, totals - kept)

    @staticmethod
    def counted(strings: Int64[np.ndarray, " n"], states: int, least: int) -> Strings:
        """Those of `strings` that occur at least `least` times."""
        keys, counts = np.unique(strings, return_counts=True)
        contexts, which = np.unique(keys // states, return_inverse=True)
        totals = np.bincount(which, counts, len(contexts)).astype(np.int64)
        kept = counts >= least
        require(bool(kept.any()), "least", least, "some length has no strings that count so often; give less")
        used = np.isin(contexts, keys[kept] // states)
        return Strings.of(keys[kept], counts[kept], totals[used], _discounts(counts), states)

    def beside(
        self,
        strings: Int64[np.ndarray, " n"],
        states: int,
        shorter: Float64[np.ndarray, " n"],
        strange: Bool[np.ndarray, " n"],
    ) -> Float64[np.ndarray, " n"]:
        """``p`` of the last tokens of `strings`, if it is `shorter` behind the shorter contexts. Those that are `strange`
        stand for a token that was never counted."""
        here, known = find(self.contexts, strings // states)
        place, there = find(self.keys, strings)
        count = np.where(there & ~strange, _discounted(self.counts[place], self.discounts), 0.0)
        return np.where(known, (count + self.shorter[here] * shorter) / self.totals[here], shorter)


def _discounts(counts: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " 3"]:
    """``D_i = i - (i + 1) n_{i+1}/n_i n_1/(n_1 + 2 n_2)``, n_i strings being counted i times; else 1/2.

    These leave-one-out estimates may not exist, or fall out of (0, i), where few strings are rare.
    """
    n = np.bincount(np.minimum(counts, 5), minlength=5)
    if not n[1] or not n[2]:
        return np.full(3, 0.5)
    scale = n[1] / (n[1] + 2 * n[2])
    found = [i - (i + 1) * scale * n[i + 1] / n[i] if n[i] else 0.5 for i in (1, 2, 3)]
    return np.array([d if 0 < d < i else 0.5 for i, d in enumerate(found, 1)])


def _discounted(counts: Int64[np.ndarray, " n"], discounts: Float64[np.ndarray, " 3"]) -> Float64[np.ndarray, " n"]:
    return counts - discounts[np.minimum(counts, 3) - 1]


@dataclass(frozen=True, eq=False)
class NGram:
    """A judge of text by characters. Each text is read on its own: its first characters have shorter contexts."""

    name: str
    tokenizer: Letters
    strings: tuple[Strings, ...]
    """Of 1, 2, ... characters."""

    @property
    def order(self) -> int:
        """The longest string: one more than the characters that the next one is judged by."""
        return len(self.strings)

    @property
    def states(self) -> int:
        return len(self.tokenizer.alphabet)

    def score(self, texts: Sequence[str]) -> Scores:
        """Tokens and ``-log p`` of each text; `TextQuality.of` makes perplexity and diversity of them."""
        rows = [self.encode(text) for text in texts]
        return Scores(rows, self.nats(rows))

    def encode(self, text: str) -> list[int]:
        """One token for each character; S for those that are not in the alphabet."""
        place = {letter: n for n, letter in enumerate(self.tokenizer.alphabet)}
        return [place.get(letter, self.states) for letter in text]

    def nats(self, rows: Sequence[Sequence[int]]) -> Float64[Tensor, " num"]:
        """``-sum log p(token | those before)`` of each row."""
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        tokens = np.array([token for row in rows for token in row], dtype=np.int64)
        odd = tokens[(tokens < 0) | (tokens > self.states)].tolist()
        require(not odd, "token", odd[:1], f"the tokens are 0 to {self.states}")
        strange, index = tokens == self.states, np.arange(len(tokens))
        begun = np.repeat(np.cumsum(lengths) - lengths, lengths)
        after = np.maximum.accumulate(
            np.where(strange, index + 1, 0)
        )  # the last strange one, and those before it, are not
        before = index - np.maximum(begun, np.concatenate([[0], after[:-1]]))  # seen: so many are
        tokens, p = np.where(strange, 0, tokens), np.full(len(tokens), 1 / self.states)
        for n, strings in enumerate(self.strings):
            there = before >= n
            number = numbered(tokens, self.states, n + 1)[there[n:]]
            p[there] = strings.beside(number, self.states, p[there], strange[there])
        which = np.repeat(np.arange(len(rows)), lengths)
        return torch.from_numpy(-np.bincount(which, np.log(p), len(rows)))


def numbered(tokens: Int64[np.ndarray, " n"], states: int, size: int) -> Int64[np.ndarray, " m"]:
    """All strings of `size` tokens, one after the other, as numbers in base `states`."""
    last = len(tokens) - size + 1
    number = np.zeros(max(0, last), dtype=np.int64)
    for n in range(size if last > 0 else 0):
        number = number * states + tokens[n : n + last]
    return number


def fit(tokens: Int64[Tensor, " n"], alphabet: str, least: Sequence[int], name: str = "given as an object") -> NGram:
    """The strings of 1, 2, ... tokens of a text; of n those that occur at least ``least[n - 1]`` times."""
    states = len(alphabet)
    require(len(least) > 0, "least", list(least), "give a number for every length of strings")
    for count in least:
        require_count("least", count)
    require(states ** len(least) < MOST, "least", list(least), f"of {states} characters, give shorter strings")
    line = tokens.numpy()
    size = len(least)
    require(len(line) >= size, "tokens", len(line), f"there are none of {size} characters; give more text")
    strings, found = numbered(line, states, size), []
    for n in range(size, 0, -1):
        found.append(Strings.counted(strings, states, least[n - 1]))
        strings = np.unique(strings) % states ** (n - 1)  # once for each token before them
    return NGram(name, Letters(alphabet), tuple(reversed(found)))


def save(model: NGram, file: Path) -> None:
    """Write the strings to a .npz file: the numbers by their differences, which are small and can be packed."""
    parts: dict[str, np.ndarray] = {}
    for n, strings in enumerate(model.strings):
        parts[f"steps {n}"] = np.diff(strings.keys, prepend=0)
        parts[f"counts {n}"] = strings.counts.astype(np.int32)
        parts[f"totals {n}"] = strings.totals.astype(np.int32)
        parts[f"discounts {n}"] = strings.discounts
    with file.open("wb") as out:
        np.savez_compressed(out, allow_pickle=False, **parts)


@lru_cache
def card(folder: Path = SHIPPED) -> dict[str, Any]:
    """What the model in `folder` is, and how likely it finds text that it has not seen."""
    for name in (TABLE, CARD):
        there = (folder / name).is_file()
        require(there, "folder", str(folder), f"holds no {name}; make it with python -m thetaleap.training.ngram")
    return json.loads((folder / CARD).read_text(encoding="utf-8"))


@lru_cache
def load(folder: Path = SHIPPED) -> NGram:
    """The model in `folder`; by default the one of plays that comes with the package."""
    alphabet = card(folder)["alphabet"]
    with np.load(folder / TABLE, allow_pickle=False) as parts:
        strings = tuple(
            Strings.of(
                parts[f"steps {n}"].cumsum(),
                parts[f"counts {n}"].astype(np.int64),
                parts[f"totals {n}"].astype(np.int64),
                parts[f"discounts {n}"],
                len(alphabet),
            )
            for n in range(len(parts.files) // 4)
        )
    return NGram(folder.name, Letters(alphabet), strings)
