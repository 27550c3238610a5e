"""A model with errors: noise on the logits, as fixed as a network's own mistakes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import finite, require, require_count
from ...core.evaluation import Conditionals, Denoiser, Duplicates, as_model
from ...core.noise import WORD
from ._common import AroundOracle


@dataclass(frozen=True)
class Disturbed:
    """The logits of `clean` plus ``scale`` times normals that are a function of (key, position, value)."""

    clean: Conditionals
    keys: Int64[Tensor, " b"]
    length: int
    scale: float

    def logits(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        logits = self.clean.logits(positions).to(torch.float64)
        stream = _absorb(self.keys[positions // self.length], positions % self.length)
        values = torch.arange(logits.shape[1], device=logits.device)
        return logits + self.scale * _normal(_absorb(stream.unsqueeze(1), values))

    def duplicates(self) -> Duplicates | None:
        return self.clean.duplicates()  # the same sequence has the same errors


@dataclass(frozen=True, eq=False)
class Noisy(AroundOracle):
    """`model` with errors. Its `log_prob`, `entropy` and `draw` are the truth: those of the model without errors."""

    scale: float
    seed: int

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Disturbed:
        return Disturbed(self.model(x, t), _keys(x, self.seed), self.length, self.scale)


def noisy(model: Denoiser | str, scale: float, seed: int = 0) -> Noisy:
    """`model` with errors of standard deviation `scale` in its logits.

    The errors are independent normals, one for each (seed, whole sequence x, position, value), and the same whenever
    the same is asked, whatever the time and the rest of the batch: the errors of an imperfect network, not of a random
    one. Impossible values stay impossible.
    """
    require(finite(scale) and scale >= 0, "scale", scale, "give a finite standard deviation of at least 0")
    require_count("seed", seed, least=0, most=WORD - 1)
    return Noisy(as_model(model), float(scale), int(seed))


# --- hashing: 64-bit words as int64, which wraps


def _signed(word: int) -> int:
    return (word + 2**63) % WORD - 2**63


GOLDEN, FIRST, SECOND = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _right(z: Tensor, bits: int) -> Tensor:
    """A shift that fills up with zeros, not with the sign."""
    return (z >> bits) & (2 ** (64 - bits) - 1)


def _mixed(z: Tensor) -> Tensor:
    """Every bit depends on every bit: the last steps of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (z ^ _right(z, 30)) * FIRST
    z = (z ^ _right(z, 27)) * SECOND
    return z ^ _right(z, 31)


def _absorb(state: Tensor, word: Tensor) -> Tensor:
    """Number `word` of the splitmix64 stream that starts at `state`."""
    return _mixed(state + (word + 1) * GOLDEN)


def _keys(x: Int64[Tensor, "b d"], seed: int) -> Int64[Tensor, " b"]:
    """A 64-bit hash of each sequence: the sum of a random word for each (position, value), as Zobrist does."""
    start = torch.tensor(_signed(seed), device=x.device)
    places = _absorb(_mixed(start), torch.arange(x.shape[1], device=x.device))
    return _mixed(_absorb(places, x).sum(1))


def _normal(word: Tensor) -> Tensor:
    """Standard normals by the inverse of their distribution function, at the middles of 2**52 equal cells."""
    return torch.special.ndtri((_right(word, 12).to(torch.float64) + 0.5) * 2.0**-52)
