"""The only source of randomness.

Solvers put *questions* to a `Noise`: does this position jump (`flip`), to which value (`choose`), which positions go
first (`pick`), when (`clock`). `Stream` answers at random; its twin in `exact.py` answers every way at once.

Every uniform is a pure function of (seed, sample, step, label, position): Philox4x64-10 (Salmon et al., SC 2011) with
the seed as key and counter words (sample and position, step, label, round). So sample i is the same whatever the
batch, the sharding or the device: the numbers are made on the CPU and moved.

One number decides whether a position jumps and where to, as in one draw from all that may happen there: if u < p
says that it does, u/p is uniform in [0, 1) again, and chooses.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from .checks import require_count

CPU = torch.device("cpu")
WORD = 2**64
PIECE = 2**18
"""Entries of rows that a processor works on at a time: what passes between two operations stays in its cache, and is
not got from the system afresh every time, which would take longer than the work."""

SHY = 1 - 2.0**-53
"""A number below one, times this and a total, is below the total even where the product rounds up."""
Odds = Bool[Tensor, "b d"] | Float64[Tensor, "b d"]
"""Who may be picked, or the logarithms of odds."""
Numbers = Float64[Tensor, " n"] | None
"""Uniforms in [0, 1) to make choices by, where there are some at hand."""


@runtime_checkable
class Noise(Protocol):
    """Answers random questions for a batch of samples. One label is good for one question of each kind, which may
    be put in parts: each about other samples or, for choices, other positions."""

    def __call__(self, label: str) -> Noise:
        """An independent source, named within its parent."""
        ...

    def __getitem__(self, rows: Tensor) -> Noise:
        """The same source for the samples at `rows` of this batch."""
        ...

    def flip(self, probability: Float64[Tensor, "b d"]) -> tuple[Int64[Tensor, " n"], Numbers]:
        """Toss a coin at every position; give the flat indices (sample * d + position) of the heads, in order, and
        what is left of their numbers for a choice there."""
        ...

    def places(self, length: int) -> Float64[Tensor, "b d"] | None:
        """Uniforms in [0, 1) to keep for a whole run, in which each is used once; None: ask step by step."""
        ...

    def choose(
        self,
        positions: Int64[Tensor, " n"],
        length: int,
        weights: Float64[Tensor, "k S"],
        stay: bool,
        which: Int64[Tensor, " n"] | None = None,
        numbers: Numbers = None,
    ) -> Int64[Tensor, " n"]:
        """Draw a value at each of `positions`, with probabilities ``weights[which]`` (by default a row for each
        position), by these `numbers` or by fresh ones.

        With `stay` the weights may sum to less than one, and S is the answer for what is missing; without, they
        are divided by their sum.
        """
        ...

    def pick(self, weights: Odds, count: Int64[Tensor, " b"]) -> Bool[Tensor, "b d"]:
        """Draw `count` positions of each sample without replacement, one after the other: uniformly among those that
        are true, or, if the weights are numbers, with odds ``exp(weights)`` (minus infinity: never)."""
        ...

    def clock(self, positions: Bool[Tensor, "b d"]) -> Float64[Tensor, "b d"]:
        """An independent uniform time in [0, 1) for each of `positions`. Only their order may decide what happens;
        the times themselves may only be shown to the network."""
        ...

    def uniform(self, batch: int) -> Float64[Tensor, " b"]:
        """A uniform in [0, 1) for each of `batch` samples: for continuous questions that cannot be enumerated."""
        ...


class Use(IntEnum):
    """The last word of the counter: what numbers are for, so that no two purposes ever share one."""

    STREAM = 0
    TRUTH = 1
    SIMPLEX = 2
    METRICS = 3
    PROBES = 4
    SUMS = 5
    TESTS = 6


@lru_cache(maxsize=4096)
def _word(label: str) -> int:
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little")


def philox(key: int, counter: tuple[int, int, int, int], count: int) -> np.ndarray:
    """`count` uniforms in [0, 1) with 53 random bits, from the Philox4x64-10 blocks at `counter` and after it."""
    words = [*counter, key % WORD, key // WORD]
    for n in range(4):  # numpy steps its counter before it makes a block: take one, and borrow
        words[n] = (words[n] - 1) % WORD
        if words[n] != WORD - 1:
            break
    return _GENERATORS.at(np.array(words, dtype=np.uint64)).random(count)


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


@dataclass(frozen=True)
class Stream:
    """Random answers for samples ``first, first + 1, ...``."""

    seed: int
    first: int
    count: int
    device: torch.device = CPU
    step: int = 0
    label: str = ""
    rows: Tensor | None = None
    asked: dict[str, dict[int, tuple[Tensor | None, Tensor | None]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Of each question: the samples that were asked about, and the last positions, None for all."""

    def __post_init__(self) -> None:
        require_count("seed", self.seed, least=0)
        if self.seed >= WORD:
            raise ValueError(f"seed={self.seed}: must be below 2**64")

    def at(self, step: int) -> Stream:
        """The source of one step; labels may be used again."""
        return self._with(step=step, label="", asked={})

    def __call__(self, label: str) -> Stream:
        return self._with(label=f"{self.label}/{label}")

    def __getitem__(self, rows: Tensor) -> Stream:
        return self._with(rows=rows if self.rows is None else self.rows[rows])

    def _with(self, **changes: Any) -> Stream:
        # what dataclasses.replace does, but for the checks, in a quarter of the time
        other = object.__new__(Stream)
        other.__dict__.update(self.__dict__, **changes)
        return other

    def _numbers(self, kind: str, width: int, positions: Tensor | None = None) -> np.ndarray:
        """Numbers in [0, 1), (b, width), of which those at flat indices `positions` are used, or all."""
        name = f"{self.label}:{kind}"
        self._claim(name, positions)
        # lay all samples end to end, so that a batch is one stretch of blocks of four
        begin, end = self.first * width, (self.first + self.count) * width
        block, skip = divmod(begin, 4)
        u = philox(self.seed, (block, self.step, _word(name), Use.STREAM), end - begin + skip)[skip:]
        table = u.reshape(self.count, width)
        return table if self.rows is None else table[self.rows.cpu().numpy()]

    def _claim(self, name: str, positions: Tensor | None) -> None:
        """Note that the numbers of a question are used: all of these samples, or those at `positions`, in order."""
        parts = self.asked.setdefault(name, {})
        mine = parts.get(id(self.rows))
        if not parts:
            twice = False
        elif mine is None:
            others = [rows for rows, _ in parts.values()]
            twice = any(rows is None or self.rows is None or bool(torch.isin(rows, self.rows).any()) for rows in others)
        else:
            twice = not _after(positions, mine[1])
        if twice:
            raise RuntimeError(f"noise label {name!r} is asked twice in step {self.step}: use a fresh label")
        if mine is None or positions is None or positions.shape[0]:
            parts[id(self.rows)] = (self.rows, positions)

    def flip(self, probability: Float64[Tensor, "b d"]) -> tuple[Int64[Tensor, " n"], Numbers]:
        length = probability.shape[1]
        u = self._numbers("flip", length)
        if probability.is_cpu:  # numpy takes a third of the time
            p = probability.numpy()
            positions = (u < p).ravel().nonzero()[0]
            chance = p.ravel()[positions] if p.flags.c_contiguous else p[positions // length, positions % length]
            return torch.from_numpy(positions), torch.from_numpy(u.ravel()[positions] / chance)
        tossed = torch.from_numpy(u).to(self.device)
        heads = where(tossed < probability)
        return heads, tossed.flatten()[heads] / probability[heads // length, heads % length]

    def places(self, length: int) -> Float64[Tensor, "b d"]:
        return torch.from_numpy(self._numbers("places", length)).to(self.device)

    def choose(
        self,
        positions: Int64[Tensor, " n"],
        length: int,
        weights: Float64[Tensor, "k S"],
        stay: bool,
        which: Int64[Tensor, " n"] | None = None,
        numbers: Numbers = None,
    ) -> Int64[Tensor, " n"]:
        if numbers is None:
            fresh = self._numbers("choose", length, positions).ravel()[positions.cpu().numpy()]
            numbers = torch.from_numpy(fresh).to(self.device)
        return inverse_cdf(weights, numbers, stay, which)

    def pick(self, weights: Odds, count: Int64[Tensor, " b"]) -> Bool[Tensor, "b d"]:
        u = torch.from_numpy(self._numbers("pick", weights.shape[1])).to(self.device)
        if weights.dtype == torch.bool:
            return largest(u, count, among=weights)
        gumbel = -torch.log(-torch.log(u.clamp_min(2.0**-54)))  # u = 0, the only one below, would be infinite
        return largest(weights + gumbel, count)

    def clock(self, positions: Bool[Tensor, "b d"]) -> Float64[Tensor, "b d"]:
        return torch.from_numpy(self._numbers("clock", positions.shape[1])).to(self.device)

    def uniform(self, batch: int) -> Float64[Tensor, " b"]:
        return torch.from_numpy(self._numbers("uniform", 1)[:, 0]).to(self.device)


def where(true: Bool[Tensor, "b d"]) -> Int64[Tensor, " n"]:
    """Flat indices of what is true."""
    if true.is_cpu:  # numpy takes a third of the time
        return torch.from_numpy(true.numpy().ravel().nonzero()[0])
    return torch.nonzero(true.flatten()).flatten()


def piece(rows: Tensor) -> int:
    """How many of `rows` to work on at a time."""
    return rows.shape[0] if rows.is_cuda else max(1, PIECE // rows.shape[1])


def _after(positions: Tensor | None, before: Tensor | None) -> bool:
    """Whether all of `positions`, in order, come after those `before`; None are all there are."""
    if positions is None or before is None:
        return False
    return not positions.shape[0] or not before.shape[0] or int(positions[0]) > int(before[-1])


def inverse_cdf(
    weights: Float64[Tensor, "k S"],
    u: Float64[Tensor, " n"],
    stay: bool,
    which: Int64[Tensor, " n"] | None = None,
) -> Int64[Tensor, " n"]:
    """The value whose stretch of the cumulated ``weights[which]`` holds `u`; never one of weight zero."""
    some = piece(weights)
    if which is None and some < weights.shape[0]:
        parts = zip(weights.split(some), u.split(some), strict=True)
        return torch.cat([inverse_cdf(*part, stay) for part in parts])
    cdf = weights.cumsum(-1)
    if which is not None:
        cdf = cdf.index_select(0, which)
    if not stay:
        # below the total, so that the last value of positive weight is the last
        u = (u * SHY).mul_(cdf[:, -1])
    return torch.searchsorted(cdf, u.unsqueeze(-1), right=True).squeeze(-1)


def largest(
    key: Float64[Tensor, "b d"], count: Int64[Tensor, " b"], among: Bool[Tensor, "b d"] | None = None
) -> Bool[Tensor, "b d"]:
    """The `count` largest entries of each row, all or those `among`; of equal ones the first."""
    length = key.shape[1]
    if key.is_cpu:  # numpy sorts rows several times as fast
        keys, wanted = key.detach().numpy(), count.numpy()
        keys = keys if among is None else np.where(among.numpy(), keys, -np.inf)
        last = np.sort(keys, 1)[np.arange(len(wanted)), length - np.maximum(wanted, 1)]
        keep = ~(keys < last[:, None]) & (wanted > 0)[:, None]  # NaN is the largest of all
        if np.count_nonzero(keep) == wanted.sum():  # no ties
            return torch.from_numpy(keep)
    key = key if among is None else torch.where(among, key, -torch.inf)
    order = torch.argsort(key, dim=1, descending=True, stable=True)
    ranks = torch.arange(length, device=key.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ranks) < count.unsqueeze(1)
