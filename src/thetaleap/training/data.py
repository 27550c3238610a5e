"""Data to train on: text, token arrays, or MNIST's files, as rows of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..core.checks import require, require_choice
from ..core.noise import Draw, Noise
from ..evaluation.metrics.digits import read_digits
from ..files import read_samples
from ..models.hf.masked_lm import Letters
from ..models.tokenizers import BytePairs, Bytes, gpt2

HELD_OUT = 0.1
"""The share of the data, its end, that is kept for evaluation."""
LEVELS = 8
"""Grey levels of pixels."""
SIDE = 28


class Batch(NamedTuple):
    """Examples to train on."""

    tokens: Int64[Tensor, "b d"]
    labels: Int64[Tensor, " b"] | None = None
    given: Bool[Tensor, "b d"] | None = None
    """Positions that stay as they are, such as the question to which the rest is the answer."""


@runtime_checkable
class Examples(Protocol):
    """What to train on; `digest` is the SHA-256 of the data."""

    @property
    def states(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def classes(self) -> int | None: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    def draw(self, num: int, length: int, noise: Noise) -> Batch: ...


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens in one long line, of which every stretch is an example; or in rows, each of them one."""

    tokens: Int64[Tensor, " n"] | Int64[Tensor, "n d"]
    states: int
    digest: str
    """SHA-256 of the file."""
    tokenizer: Any = None
    labels: Int64[Tensor, " n"] | None = None
    shape: tuple[int, ...] | None = None

    @property
    def classes(self) -> int | None:
        return None if self.labels is None else int(self.labels.max()) + 1

    @property
    def length(self) -> int | None:
        """Of a row, where there are rows."""
        return self.tokens.shape[1] if self.tokens.ndim == 2 else None

    @property
    def characters_per_token(self) -> float | None:
        """Of text; None of anything else."""
        if self.tokenizer is None:
            return None
        return len(self.tokenizer.decode(self.tokens.tolist())) / len(self.tokens)

    def split(self) -> tuple[Corpus, Corpus]:
        """What to train on, and what is held out: the last tenth."""
        cut = len(self.tokens) - max(1, int(HELD_OUT * len(self.tokens)))
        return self._part(slice(None, cut)), self._part(slice(cut, None))

    def check(self, length: int, source: str) -> None:
        """Raise ``ValueError`` unless both parts of `split` hold examples of this length; `source` is what was read."""
        count, held = len(self.tokens), len(self.split()[1].tokens)
        if self.length is not None:
            require(count > 1, "data", source, "has one row, and some must be held out; give more")
            remedy = f"a row has {self.length} tokens, and an example {length}; leave length out"
            require(length == self.length, "data", source, remedy)
        parts = f"has {count:,} tokens, of which the last tenth, {held:,}, is held out; an example has {length:,}"
        remedy = f"{parts}: give at least {10 * length:,} tokens, or length={held} at most"
        require(self.length is not None or length <= held, "data", source, remedy)

    def _part(self, which: slice) -> Corpus:
        return replace(self, tokens=self.tokens[which], labels=None if self.labels is None else self.labels[which])

    def draw(self, num: int, length: int, noise: Noise) -> Batch:
        """Examples drawn with replacement."""
        most = len(self.tokens) if self.tokens.ndim == 2 else len(self.tokens) - length + 1
        require(most > 0, "length", length, f"the data has only {len(self.tokens)} tokens; shorten it")
        at = (noise(Draw.EXAMPLE).uniform(num) * most).long()
        if self.tokens.ndim == 1:
            return Batch(self.tokens[at.unsqueeze(1) + torch.arange(length)])
        return Batch(self.tokens[at], None if self.labels is None else self.labels[at])


def read_corpus(path: str | Path, tokenizer: str | None = None, levels: int = LEVELS, side: int = SIDE) -> Corpus:
    """Read `path`: a text file, a .npy or .parquet file of token rows, or an idx file of MNIST (.gz or not).

    Args:
        path: the file, or text itself, which has a line break. Labels of an idx file are read from the file beside it that MNIST has for them.
        tokenizer: for text, "char" (the characters that occur), "bytes", "bpe:1024" (so many byte pairs, fitted to
            the part to train on) or "gpt2"; by default "char". "pixels" for images.
        levels: grey levels of pixels.
        side: height and width to which images are shrunk, by averages: 28, 14 or 7.
    """
    if isinstance(path, str) and "\n" in path:
        return _read_text(path.encode(), f"text of {len(path)} characters", tokenizer or "char")
    file = Path(path).expanduser()
    require(file.is_file(), "data", str(file), "there is no such file; give text, tokens or images")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    kind = file.with_suffix("").name if file.suffix == ".gz" else file.name
    if "ubyte" in kind:
        require(tokenizer in (None, "pixels"), "tokenizer", tokenizer, "images are pixels")
        tokens, labels = read_digits(file, levels, side)
        return Corpus(tokens, levels, digest, labels=labels, shape=(side, side))
    if file.suffix in (".npy", ".parquet"):
        require(tokenizer is None, "tokenizer", tokenizer, "these are tokens already; leave it out")
        rows, _ = read_samples(file, "data")
        return Corpus(rows, int(rows.max()) + 1, digest)
    return _read_text(file.read_bytes(), str(file), tokenizer or "char")


def _read_text(raw: bytes, source: str, tokenizer: str) -> Corpus:
    name, _, size = tokenizer.partition(":")
    require_choice("tokenizer", name, TOKENIZERS)
    require(size.isdigit() if name == "bpe" else not size, "tokenizer", tokenizer, "write bpe:1024, or a plain name")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"data={source!r}, line {line}: this is no UTF-8 text; convert it first") from None
    require(len(text) > 1, "data", source, "holds no text; give a file with more than one character")
    words, states = TOKENIZERS[name](text, int(size or 0))
    return Corpus(torch.tensor(words.encode(text), dtype=torch.int64), states, hashlib.sha256(raw).hexdigest(), words)


def _characters(text: str, size: int) -> tuple[Any, int]:
    alphabet = "".join(sorted(set(text)))
    return Letters(alphabet), len(alphabet)


def _byte_pairs(text: str, size: int) -> tuple[Any, int]:
    pairs = BytePairs.fit(text[: len(text) - int(HELD_OUT * len(text))], size)
    return pairs, pairs.states


TOKENIZERS: dict[str, Callable[[str, int], tuple[Any, int]]] = {
    "char": _characters,
    "bytes": lambda text, size: (Bytes(), 256),
    "bpe": _byte_pairs,
    "gpt2": lambda text, size: (gpt2(), 50257),
}
