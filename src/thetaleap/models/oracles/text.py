"""Markov chains over the characters of a text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from ...core.checks import finite, require, require_count, require_kind
from ...core.evaluation import Conditionals
from ...core.processes import Process
from ..tokenizers import Letters
from ._common import MOST_ENTRIES, AroundOracle, tokens
from .chains import MarkovChain, markov_chain


@dataclass(frozen=True, eq=False)
class MarkovText(AroundOracle):
    """A Markov chain, `model`, whose value n stands for the character ``alphabet[n]``."""

    model: MarkovChain
    alphabet: str

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        return self.model(x, t)

    @property
    def tokenizer(self) -> Letters:
        return Letters(self.alphabet)

    def encode(self, text: str) -> Int64[Tensor, " n"]:
        """The values of the characters of `text`."""
        return torch.tensor(self.tokenizer.encode(text), dtype=torch.int64)

    def decode(self, x: Int64[Tensor, "b n"]) -> list[str]:
        """The texts of clean sequences of any length."""
        rows = tokens(x, x.shape[-1], len(self.alphabet)).tolist()
        return [self.tokenizer.decode(row) for row in rows]


def markov_text(
    path: str | Path,
    order: int = 2,
    length: int = 256,
    smoothing: float = 1e-3,
    process: Process | None = None,
    horizon: float | None = None,
) -> MarkovText:
    """A masked model of the characters of a text: the Markov chain of order k fitted to a file.

    ``P(c | k-gram) = (n(k-gram, c) + smoothing) / (n(k-gram) + S smoothing)``, where n counts what follows what in the
    text and S is the number of different characters. So every transition is possible, but one that the text does not
    have is rare: after a k-gram seen n times it has probability near ``smoothing / n``. (After a k-gram that the text
    does not have, all characters are equally likely.) The chain is stationary.

    Args:
        path: a UTF-8 text file; its characters, sorted, are the alphabet.
        order: k, at least 1; tables have ``S**(k+1)`` entries, at most 2**24.
        length: number of characters of a sample.
        smoothing: what is added to every count.
        process: a `Masked` process with S states; by default ``Masked(S)``.
        horizon: the time of pure noise; by default the schedule's.
    """
    require_kind("path", path, str | Path, "give the name of a text file")
    require_count("order", order)
    require(finite(smoothing) and smoothing > 0, "smoothing", smoothing, "give a positive number, such as 1e-3")
    text = _read(path)
    require(len(text) > order, "path", str(path), f"holds {len(text)} characters; order {order} takes {order + 1}")
    points, values = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), return_inverse=True)
    states = len(points)
    require(states > 1, "path", str(path), f"holds nothing but {text[0]!r}; give a text of different characters")
    entries = states ** (order + 1)
    require(entries <= MOST_ENTRIES, "order", order, f"{entries} transitions, at most {MOST_ENTRIES}; lower it")
    shape = (states,) * (order + 1)
    grams = np.ravel_multi_index(tuple(sliding_window_view(values.flatten(), order + 1).T), shape)
    counts = torch.from_numpy(np.bincount(grams, minlength=entries)).view(shape).to(torch.float64) + float(smoothing)
    chain = markov_chain(counts / counts.sum(-1, keepdim=True), length, None, process, horizon)
    return MarkovText(chain, "".join(map(chr, points)))


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"path={str(path)!r}: cannot be read ({error.strerror}); give a text file") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"path={str(path)!r}: byte {error.start} is not UTF-8; save the text as UTF-8") from None
