"""Data to train on: text, token arrays, or MNIST's files, as rows of tokens."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..core.checks import require, require_choice, require_count
from ..core.noise import Noise
from ..models.hf.masked_lm import Letters
from ..models.tokenizers import BytePairs, gpt2

HELD_OUT = 0.1
"""The share of the data, its end, that is kept for evaluation."""
LEVELS = 8
"""Grey levels of pixels."""
SIDE = 28


@dataclass(frozen=True)
class Bytes:
    """Text as its UTF-8 bytes."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


class Batch(NamedTuple):
    """Examples to train on."""

    tokens: Int64[Tensor, "b d"]
    labels: Int64[Tensor, " b"] | None = None
    given: Bool[Tensor, "b d"] | None = None
    """Positions that stay as they are, such as the question to which the rest is the answer."""


@runtime_checkable
class Examples(Protocol):
    """What to train on."""

    @property
    def states(self) -> int: ...
    @property
    def digest(self) -> str:
        """SHA-256 of the data."""
        ...

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

    def split(self) -> tuple[Corpus, Corpus]:
        """What to train on, and what is held out: the last tenth."""
        cut = len(self.tokens) - max(1, int(HELD_OUT * len(self.tokens)))
        return self._part(slice(None, cut)), self._part(slice(cut, None))

    def _part(self, which: slice) -> Corpus:
        labels = None if self.labels is None else self.labels[which]
        return Corpus(self.tokens[which], self.states, self.digest, self.tokenizer, labels, self.shape)

    def draw(self, num: int, length: int, noise: Noise) -> Batch:
        """Examples drawn with replacement."""
        most = len(self.tokens) if self.tokens.ndim == 2 else len(self.tokens) - length + 1
        require(most > 0, "length", length, f"the data has only {len(self.tokens)} tokens; shorten it")
        at = (noise("example").uniform(num) * most).long()
        if self.tokens.ndim == 1:
            return Batch(self.tokens[at.unsqueeze(1) + torch.arange(length)])
        return Batch(self.tokens[at], None if self.labels is None else self.labels[at])


def read_corpus(path: str | Path, tokenizer: str | None = None, levels: int = LEVELS, side: int = SIDE) -> Corpus:
    """Read `path`: a text file, a .npy or .parquet file of token rows, or an idx file of MNIST (.gz or not).

    Args:
        path: the file. Labels of an idx file are read from the file beside it that MNIST has for them.
        tokenizer: for text, "char" (the characters that occur), "bytes", "bpe:1024" (so many byte pairs, fitted to
            the part to train on) or "gpt2"; by default "char". "pixels" for images.
        levels: grey levels of pixels.
        side: height and width to which images are shrunk, by averages: 28, 14 or 7.
    """
    file = Path(path).expanduser()
    require(file.is_file(), "data", str(file), "there is no such file")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    kind = file.with_suffix("").name if file.suffix == ".gz" else file.name
    if "ubyte" in kind:
        require(tokenizer in (None, "pixels"), "tokenizer", tokenizer, "images are pixels")
        return _read_images(file, digest, levels, side)
    if file.suffix in (".npy", ".parquet"):
        require(tokenizer is None, "tokenizer", tokenizer, "these are tokens already; leave it out")
        return _read_rows(file, digest)
    return _read_text(file, digest, tokenizer or "char")


def _read_text(file: Path, digest: str, tokenizer: str) -> Corpus:
    name, _, size = tokenizer.partition(":")
    require_choice("tokenizer", name, TOKENIZERS)
    require(size.isdigit() if name == "bpe" else not size, "tokenizer", tokenizer, "write bpe:1024, or a plain name")
    raw = file.read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"data={str(file)!r}, line {line}: this is no UTF-8 text; convert it first") from None
    require(len(text) > 1, "data", str(file), "holds no text")
    words, states = TOKENIZERS[name](text, int(size or 0))
    return Corpus(torch.tensor(words.encode(text), dtype=torch.int64), states, digest, words)


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


def _read_rows(file: Path, digest: str) -> Corpus:
    from ..reading import read_samples

    rows, _ = read_samples(file, "data")
    return Corpus(rows, int(rows.max()) + 1, digest)


def _read_images(file: Path, digest: str, levels: int, side: int) -> Corpus:
    require_count("levels", levels, least=2)
    require(side in (28, 14, 7), "side", side, "give 28, 14 or 7")
    images = _read_idx(file, 3)
    require(images.shape[1:] == (28, 28), "data", str(file), f"holds images of {images.shape[1:]}; MNIST's are 28 x 28")
    factor = 28 // side
    small = images.reshape(-1, side, factor, side, factor).mean((2, 4))
    tokens = torch.from_numpy(np.minimum(small * levels // 256, levels - 1).astype(np.int64)).flatten(1)
    labels = None
    beside = file.with_name(file.name.replace("images-idx3", "labels-idx1"))
    if beside != file and beside.is_file():
        labels = torch.from_numpy(_read_idx(beside, 1).astype(np.int64))
        require(len(labels) == len(tokens), "data", str(beside), f"holds {len(labels)} labels of {len(tokens)} images")
    return Corpus(tokens, levels, digest, labels=labels, shape=(side, side))


def _read_idx(file: Path, dimensions: int) -> np.ndarray:
    """An array of bytes in MNIST's format: two zeros, the type, the number of dimensions, their sizes, the bytes."""
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError) as error:
        raise ValueError(f"data={str(file)!r}: cannot be unpacked ({error}); fetch it again") from None
    head = 4 + 4 * dimensions
    good = len(raw) >= head and raw[:4] == bytes([0, 0, 8, dimensions])
    require(good, "data", str(file), f"is no idx file of bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", raw[4:head])
    size = int(np.prod(shape))
    require(
        len(raw) == head + size, "data", str(file), f"holds {len(raw) - head} bytes, but says {size}; is it cut off?"
    )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)
