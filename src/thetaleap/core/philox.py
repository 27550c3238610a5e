"""Philox4x64-10 (Salmon et al., SC 2011): numbers by address."""

from __future__ import annotations

import hashlib
import threading
from enum import IntEnum
from functools import lru_cache

import numpy as np

WORD = 2**64


class Use(IntEnum):
    """The last word of the counter: what numbers are for, so that no two purposes ever share one."""

    STREAM = 0
    TRUTH = 1
    SIMPLEX = 2
    METRICS = 3
    PROBES = 4
    SUMS = 5
    TESTS = 6
    RACE = 7


@lru_cache(maxsize=4096)
def word(label: str) -> int:
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little")


def philox(
    key: int, counter: tuple[int, int, int, int], count: int | None = None, out: np.ndarray | None = None
) -> np.ndarray:
    """`count` uniforms in [0, 1) with 53 random bits, or as many as `out` holds, from the Philox4x64-10 blocks at
    `counter` and after it."""
    words = [*counter, key % WORD, key // WORD]
    for n in range(4):  # numpy steps its counter before it makes a block: take one, and borrow
        words[n] = (words[n] - 1) % WORD
        if words[n] != WORD - 1:
            break
    return _GENERATORS.at(np.array(words, dtype=np.uint64)).random(count, out=out)


class _Generators(threading.local):
    """One generator a thread, to be set: it takes twice as long to make one."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.bits)
        self.blank = self.bits.state

    def at(self, words: np.ndarray) -> np.random.Generator:
        """Ready to go on from four words of counter and two of key."""
        self.bits.state = {**self.blank, "state": {"counter": words[:4], "key": words[4:]}}
        return self.generator


_GENERATORS = _Generators()
