"""Samples in files and folders, as tokens or as text, and the model that made them. Those of a folder are read as they are
needed, and never all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.batches import Batches
from ..core.checks import require
from ..files import READERS, Card, Stored, read_columns
from ..models import load
from ..models.tokenizers import Tokenizer
from ..registry import full_name, models


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts that are read each time that they are gone through."""

    num: int
    read: Callable[[], Iterable[str]]

    def __len__(self) -> int:
        return self.num

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())


def read_texts(path: Path, model: str | None, argument: str = "file") -> tuple[Texts, str | None]:
    """Texts of samples, and the model that made them where that is known: its tokenizer reads tokens."""
    stored = Stored.at(path, argument)
    if "text" in stored.names:
        require(stored.num > 0, argument, str(path), "holds no text; give one sample on each line")
        texts = Texts(stored.num, lambda: (text for some in stored.read(["text"]) for text in some["text"]))
        return texts, model or stored.card.get("model")
    x, name = stored.tokens(), model_name(model, stored.card, path)
    words = tokenizer_of(name, x.length)
    if words is None:
        what = f"the tokens of {name} are no text, which the judge reads; leave the judge out"
        raise ValueError(f"{argument}={str(path)!r}: {what}")
    return Texts(x.num, lambda: (words.decode(row) for rows in x.read() for row in rows.tolist())), name


def read_tokens(path: Path, model: str | None, argument: str = "file") -> tuple[Batches, str, Card]:
    """Tokens of samples, the model that made them, and the card: its tokenizer reads text."""
    stored = Stored.at(path, argument)
    name = model_name(model, stored.card, path)
    if "tokens" in stored.names:
        return stored.tokens(), name, stored.card
    words = tokenizer_of(name)
    if words is None:
        raise ValueError(f"{argument}={str(path)!r}: holds text, which {name} does not read; say which does by --model")
    rows = [words.encode(text) for some in stored.read(["text"]) for text in some["text"]]
    same = len({len(row) for row in rows}) == 1
    remedy = f"its lines have different lengths in tokens of {name}; give a .parquet, .jsonl or .npy file, or a --judge"
    require(same, argument, str(path), remedy)
    return Batches.of(torch.tensor(rows, dtype=torch.int64)), name, stored.card


def read_reference(path: Path, model: str | None) -> Texts:
    """Texts of a file or folder of samples, or one of any other file."""
    suffix = path.suffix.lower()
    if path.is_dir():
        return read_texts(path, model, "reference")[0]
    if suffix in READERS and (suffix != ".txt" or (path.is_file() and read_columns(path, "reference")[1])):
        return read_texts(path, model, "reference")[0]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"reference={str(path)!r}: cannot be read ({error}); give a file of UTF-8 text") from None
    return Texts(1, lambda: [text])


def model_name(model: str | None, card: Card, path: Path) -> str:
    name = model or card.get("model")
    if name is None:
        raise ValueError(f"model=None: {str(path)!r} does not say which made its samples; name it, or a judge of text")
    return name


def tokenizer_of(name: str, length: int | None = None) -> Tokenizer | None:
    """What reads and writes the text of a model, if it has some."""
    words = getattr(load_model(name, length), "tokenizer", None)
    return words if isinstance(words, Tokenizer) else None


def load_model(name: str, length: int | None = None) -> Any:
    """The model, for sequences of this length where it can be of any."""
    name = full_name(name)
    entry = models(sourced=":" in name).get(name.partition(":")[0])
    open_ended = length is not None and entry is not None and "length" in (entry.options or ())
    return load(name, **({"length": length} if open_ended else {}))
