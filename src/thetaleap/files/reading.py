"""Samples from files and folders; the package says what these hold. Nothing in a file is ever run: arrays of objects are
refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..core.batches import Batches
from ..core.checks import require, require_choice

Card = dict[str, Any]
"""How the samples were made, as far as JSON can say it."""
Columns = dict[str, Any]
"""``tokens``, an array (num, d), and lists: ``nfe``, ``text``, ``prompt``. A file holds those that its format has."""
COLUMNS = ("tokens", "nfe", "text", "prompt")
KEY = "thetaleap"
"""Under which the card is."""
JOB = "_job.json"
"""In a folder of parts, the card."""
PART = re.compile(r"part-(\d{6,})\.parquet")
"""What its parts are called."""
HEADER = f"# {KEY} "
ESCAPED = {"n": "\n", "r": "\r"}
LARGEST = 2**31 - 1
"""The largest token in a file."""


@dataclass(frozen=True, eq=False)
class Stored:
    """Samples in a file, which is read when it is opened; or in a folder, whose parts are read one after the other, each
    time that they are gone through."""

    path: Path
    argument: str
    """What to call it in errors."""
    card: Card
    """How the samples were made; empty if the file does not say."""
    names: Sequence[str]
    """The columns that there are."""
    num: int
    read: Callable[[Sequence[str]], Iterator[Columns]]
    """Goes through some of the columns."""

    @staticmethod
    def at(path: Path, argument: str = "file") -> Stored:
        """Those at `path`: a .parquet, .jsonl, .npy or .txt file, or a folder of parts."""
        if not path.is_dir():
            columns, card = read_columns(path, argument)
            num = len(columns["text"]) if "text" in columns else math.prod(columns["tokens"].shape[:1])
            return Stored(path, argument, card, tuple(columns), num, lambda names: iter([columns]))
        written = f"is a folder without {JOB}; give one of samples, thetaleap sample --out writes them"
        require((path / JOB).is_file(), argument, str(path), written)
        with _reading(path, argument):
            card, parts = json.loads((path / JOB).read_bytes()), parts_in(path)
            num, names = _outline(path, parts)

        def read(names: Sequence[str]) -> Iterator[Columns]:
            with _reading(path, argument):
                yield from _each_part(path, parts, card, names)

        return Stored(path, argument, card, names, num, read)

    def tokens(self) -> Batches:
        """The tokens. Those of a folder are read once now, to see whether all are good."""
        if not self.path.is_dir():
            return Batches.of(next(iter(self._tokens())))
        num, length, least, most = 0, 0, LARGEST, 0
        for x in self._tokens():
            num, length = num + len(x), x.shape[1]
            least, most = min(least, int(x.min())), max(most, int(x.max()))
        return Batches(num, length, least, most, self._tokens)

    def _tokens(self) -> Iterator[Int64[Tensor, "n d"]]:
        return (tokens_of(columns, self.path, self.argument) for columns in self.read(["tokens"]))


def read_columns(path: Path, argument: str = "file") -> tuple[Columns, Card]:
    """What a file of samples holds, and the card that says how they were made, empty if the file has none.

    Args:
        path: a .parquet, .jsonl, .npy or .txt file; or a folder of parts, all of which are then in memory.
        argument: what to call the file in errors.
    """
    if path.is_dir():
        return _joined(Stored.at(path, argument))
    require_choice(f"ending of {argument}", path.suffix.lower(), READERS)
    require(path.is_file(), argument, str(path), "there is no such file; write one with thetaleap sample --out")
    with _reading(path, argument):
        columns, card = READERS[path.suffix.lower()](path)
    return columns, card if isinstance(card, dict) else {}


@contextmanager
def _reading(path: Path, argument: str) -> Iterator[None]:
    """What goes wrong is said of the file."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError, EOFError) as error:
        why = str(error).strip().split("\n")[0] or type(error).__name__
        wanted = "give a file written by thetaleap sample --out"
        raise ValueError(f"{argument}={str(path)!r}: cannot be read ({why}); {wanted}") from None


def read_samples(path: Path, argument: str = "file") -> tuple[Int64[Tensor, "num d"], Card]:
    """The tokens in a file of samples, and its card, as `read_columns` finds them."""
    columns, card = read_columns(path, argument)
    return tokens_of(columns, path, argument), card


def tokens_of(columns: Columns, path: Path, argument: str = "file") -> Int64[Tensor, "num d"]:
    """The tokens that `read_columns` found in the file `path`, if they are some."""
    require("tokens" in columns, argument, str(path), "holds text and no tokens; give a .parquet, .jsonl or .npy file")
    tokens: np.ndarray = columns["tokens"]
    whole = tokens.ndim == 2 and np.issubdtype(tokens.dtype, np.integer) and tokens.size > 0
    wanted = "give one row of whole numbers for each sample"
    require(whole, argument, str(path), f"holds {tokens.dtype} of shape {tokens.shape}; {wanted}")
    good = int(tokens.min()) >= 0 and int(tokens.max()) <= LARGEST
    require(good, argument, str(path), f"holds tokens from {tokens.min()} to {tokens.max()}; give tokens from 0 on")
    return torch.from_numpy(tokens.astype(np.int64))


# --- folders


def parts_in(folder: Path) -> list[str]:
    """The finished parts of a job, by name, in order."""
    return sorted(
        (one.name for one in folder.iterdir() if PART.fullmatch(one.name)), key=lambda name: (len(name), name)
    )


def unfinished(path: Path) -> str | None:
    """What is missing of a folder of parts, in words; None where nothing is, or it is a file."""
    if not (path / JOB).is_file():
        return None
    card, there = json.loads((path / JOB).read_bytes()), len(parts_in(path))
    every = -(-card["num"] // card["part_size"])
    return None if there == every else f"{path} has {there} of {every} parts; figures are of these"


def _outline(folder: Path, parts: Sequence[str]) -> tuple[int, list[str]]:
    """How many samples these parts hold, and the names of their columns."""
    import pyarrow.parquet as pq

    if not parts:
        raise ValueError("no part is finished yet")
    num = sum(pq.read_metadata(folder / part).num_rows for part in parts)
    return num, pq.read_schema(folder / parts[0]).names


def _each_part(folder: Path, parts: Sequence[str], card: Card, names: Sequence[str]) -> Iterator[Columns]:
    """The columns called `names`, part by part."""
    wide = set[int]()
    for part in parts:
        columns, own = _read_parquet(folder / part, names)
        if {**own, "first": card["first"]} != card:
            raise ValueError(f"{part} is of another job")
        wide |= {columns["tokens"].shape[-1]} if "tokens" in columns else set()
        if len(wide) > 1:
            raise ValueError(f"the samples of {part} have another length")
        yield columns


def _joined(stored: Stored) -> tuple[Columns, Card]:
    """All samples of a folder; tokens go straight to where they stay."""
    columns, start = Columns(), 0
    for held in stored.read(COLUMNS):
        tokens = held.pop("tokens")
        if not columns:
            columns = {**{name: [] for name in held}, "tokens": np.empty((stored.num, tokens.shape[1]), tokens.dtype)}
        columns["tokens"][start : start + len(tokens)] = tokens
        start += len(tokens)
        for name, values in held.items():
            columns[name] += values
    return columns, stored.card


# --- files


def _read_parquet(path: Path, names: Sequence[str] = COLUMNS) -> tuple[Columns, Card]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        table = file.read([name for name in file.schema_arrow.names if name in names])
    columns = {n: table.column(n).to_pylist() for n in table.column_names if n != "tokens"}
    card = json.loads((table.schema.metadata or {}).get(KEY.encode(), b"{}"))
    if "tokens" not in names:
        return columns, card
    tokens = table.column("tokens").combine_chunks()
    if pa.types.is_fixed_size_list(tokens.type) and tokens.null_count == tokens.flatten().null_count == 0:
        return {**columns, "tokens": tokens.flatten().to_numpy().reshape(len(tokens), tokens.type.list_size)}, card
    return {**columns, "tokens": np.array(tokens.to_pylist())}, card


def _read_jsonl(path: Path) -> tuple[Columns, Card]:
    rows = [json.loads(line) for line in path.read_bytes().decode().split("\n") if line.strip()]
    columns: Columns = {name: [row[name] for row in rows] for name in COLUMNS if all(name in row for row in rows)}
    if "tokens" in columns or "text" not in columns:
        columns["tokens"] = np.array([row["tokens"] for row in rows])
    return columns, rows[0].get(KEY, {}) if rows else {}


def _read_npy(path: Path) -> tuple[Columns, Card]:
    with path.open("rb") as file:
        tokens = np.load(file, allow_pickle=False)
        at = file.tell()
        more = file.read(1) == b"\x93" and file.seek(at) == at  # as every array in this format begins
        card = np.load(file, allow_pickle=False) if more else np.array("{}")
    return {"tokens": tokens}, json.loads(str(card)) if card.dtype.kind == "U" and card.ndim == 0 else {}


def _read_txt(path: Path) -> tuple[Columns, Card]:
    lines = path.read_bytes().decode().split("\n")
    if not lines[0].startswith(HEADER):  # of another program: what is there, as it is
        return {"text": [line.rstrip("\r") for line in lines if line.strip()]}, {}
    card = json.loads(lines[0].removeprefix(HEADER))
    return {"text": [re.sub(r"\\(.)", lambda found: ESCAPED.get(found[1], found[1]), one) for one in lines[1:-1]]}, card


READERS: dict[str, Callable[[Path], tuple[Columns, Card]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
    ".npy": _read_npy,
    ".txt": _read_txt,
}
