"""The only source of randomness.

Solvers put *questions* to a `Noise`: does this site jump (`flip`), to which value (`choose`), which sites go
first (`pick`), when (`clock`). `Stream` answers at random; its twin in `exact.py` answers every way at once.

Every uniform is a pure function of (seed, sample, step, label, site): Philox4x64-10 (Salmon et al., SC 2011) with
the seed as key and counter words (sample and site, step, label, round). So sample i is the same whatever the
batch, the sharding or the device: the numbers are made on the CPU and moved.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from .checks import require_count

CPU = torch.device("cpu")
WORD = 2**64


@runtime_checkable
class Noise(Protocol):
    """Answers random questions for a batch of samples. One label is good for one question of each kind."""

    def __call__(self, label: str) -> Noise:
        """An independent source, named within its parent."""
        ...

    def __getitem__(self, rows: Tensor) -> Noise:
        """The same source for the samples at `rows` of this batch."""
        ...

    def flip(self, probability: Float64[Tensor, "b d"]) -> Int64[Tensor, " n"]:
        """Toss a coin at every site; give the flat indices (sample * d + site) of the heads, in order."""
        ...

    def choose(
        self,
        sites: Int64[Tensor, " n"],
        length: int,
        weights: Float64[Tensor, "k S"],
        stay: bool,
        which: Int64[Tensor, " n"] | None = None,
    ) -> Int64[Tensor, " n"]:
        """Draw a value at each of `sites`, with probabilities ``weights[which]`` (by default a row for each site).

        With `stay` the weights may sum to less than one, and S is the answer for what is missing; without, they
        are divided by their sum.
        """
        ...

    def pick(self, log_weights: Float64[Tensor, "b d"], count: Int64[Tensor, " b"]) -> Bool[Tensor, "b d"]:
        """Draw `count` sites of each sample without replacement, one after the other, with odds
        ``exp(log_weights)`` (equal weights: a uniform subset; minus infinity: never)."""
        ...

    def clock(self, sites: Bool[Tensor, "b d"]) -> Float64[Tensor, "b d"]:
        """An independent uniform time in [0, 1) for each of `sites`. Only their order may decide what happens;
        the times themselves may only be shown to the network."""
        ...

    def uniform(self, batch: int) -> Float64[Tensor, " b"]:
        """A uniform in [0, 1) for each of `batch` samples: for continuous questions that cannot be enumerated."""
        ...


@lru_cache(maxsize=4096)
def _word(label: str) -> int:
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little")


def philox(key: int, counter: tuple[int, int, int, int], count: int) -> np.ndarray:
    """`count` uniforms in [0, 1) with 53 random bits, from the Philox4x64-10 blocks at `counter` and after it."""
    start = sum(word << (64 * n) for n, word in enumerate(counter))
    # numpy steps its counter before it makes a block
    return np.random.Generator(np.random.Philox(key=key, counter=(start - 1) % 2**256)).random(count)


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
    asked: set[str] = field(default_factory=set, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_count("seed", self.seed, least=0)
        if self.seed >= WORD:
            raise ValueError(f"seed={self.seed}: must be below 2**64")

    def at(self, step: int) -> Stream:
        """The source of one step; labels may be used again."""
        return Stream(self.seed, self.first, self.count, self.device, step, "", self.rows)

    def __call__(self, label: str) -> Stream:
        name = f"{self.label}/{label}"
        return Stream(self.seed, self.first, self.count, self.device, self.step, name, self.rows, self.asked)

    def __getitem__(self, rows: Tensor) -> Stream:
        inner = rows if self.rows is None else self.rows[rows]
        return Stream(self.seed, self.first, self.count, self.device, self.step, self.label, inner, self.asked)

    def _uniforms(self, kind: str, width: int) -> Float64[Tensor, "b width"]:
        name = f"{self.label}:{kind}"
        if name in self.asked:
            raise RuntimeError(f"noise label {name!r} is asked twice in step {self.step}: use a fresh label")
        self.asked.add(name)
        # lay all samples end to end, so that a batch is one stretch of blocks of four
        begin, end = self.first * width, (self.first + self.count) * width
        block, skip = divmod(begin, 4)
        u = philox(self.seed, (block, self.step, _word(name), 0), end - begin + skip)[skip:]
        table = torch.from_numpy(u).view(self.count, width).to(self.device)
        return table if self.rows is None else table[self.rows]

    def flip(self, probability: Float64[Tensor, "b d"]) -> Int64[Tensor, " n"]:
        heads = self._uniforms("flip", probability.shape[1]) < probability
        return torch.nonzero(heads.flatten()).flatten()

    def choose(
        self,
        sites: Int64[Tensor, " n"],
        length: int,
        weights: Float64[Tensor, "k S"],
        stay: bool,
        which: Int64[Tensor, " n"] | None = None,
    ) -> Int64[Tensor, " n"]:
        u = self._uniforms("choose", length).flatten()[sites]
        return inverse_cdf(weights, u, stay, which)

    def pick(self, log_weights: Float64[Tensor, "b d"], count: Int64[Tensor, " b"]) -> Bool[Tensor, "b d"]:
        u = self._uniforms("pick", log_weights.shape[1])
        gumbel = -torch.log(-torch.log(u.clamp_min(2.0**-54)))  # u = 0, the only one below, would be infinite
        return largest(log_weights + gumbel, count)

    def clock(self, sites: Bool[Tensor, "b d"]) -> Float64[Tensor, "b d"]:
        return self._uniforms("clock", sites.shape[1])

    def uniform(self, batch: int) -> Float64[Tensor, " b"]:
        return self._uniforms("uniform", 1).flatten()


def inverse_cdf(
    weights: Float64[Tensor, "k S"],
    u: Float64[Tensor, " n"],
    stay: bool,
    which: Int64[Tensor, " n"] | None = None,
) -> Int64[Tensor, " n"]:
    """The value whose stretch of the cumulated ``weights[which]`` holds `u`; never one of weight zero."""
    cdf = weights.cumsum(-1)
    if which is not None:
        cdf = cdf.index_select(0, which)
    if not stay:
        total = cdf[:, -1]
        # below the total even if the product rounds up to it, so that the last value of positive weight is the last
        u = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, u.unsqueeze(-1), right=True).squeeze(-1)


def largest(key: Float64[Tensor, "b d"], count: Int64[Tensor, " b"]) -> Bool[Tensor, "b d"]:
    """The `count` largest entries of each row; of equal ones the first."""
    order = torch.argsort(key, dim=1, descending=True, stable=True)
    ranks = torch.arange(key.shape[1], device=key.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ranks) < count.unsqueeze(1)
