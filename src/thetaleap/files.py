"""Samples as files: Parquet, JSON lines or a NumPy array, by the ending of the name.

- ``.parquet``: columns ``tokens``, a list of fixed size, and ``nfe``; both int32, the smallest integer that Parquet
  stores and more than any vocabulary needs. The file's metadata holds the card as JSON under the key ``thetaleap``.
- ``.jsonl``: one object per line, ``{"tokens": [...], "nfe": n}``.
- ``.npy``: the tokens alone, an int64 array of shape (num, d).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from .checks import require, require_choice
from .sampling import Samples

Card = dict[str, Any]
"""How the samples were made, as far as JSON can say it."""


def check_target(path: Path, force: bool = False) -> None:
    """Raise ``ValueError`` unless `write` will be able to write `path`; with `force` it may exist already.

    Sampling can take hours, so ask this first.
    """
    require_choice("ending of out", path.suffix.lower(), WRITERS)
    name, folder = str(path), path.parent
    try:
        require(folder.exists(), "out", name, f"the folder {str(folder)!r} does not exist; make it first")
        require(folder.is_dir(), "out", name, f"{str(folder)!r} is not a folder; write into one")
        require(not path.is_dir(), "out", name, "is a folder; give the name of a file")
        require(force or not path.exists(), "out", name, "exists already; give another name, or --force to replace it")
        # only an attempt tells: permissions, read-only disks, names that are too long
        part = _beside(path)
        part.touch(exist_ok=False)
        part.unlink()
    except OSError as error:
        raise ValueError(f"out={name!r}: cannot be written ({error.strerror}); choose another place") from None


def write(path: Path, samples: Samples, card: Card) -> None:
    """Write `samples` to `path`, whole or not at all; an older file there is replaced."""
    part = _beside(path)
    try:
        with part.open("xb") as file:
            WRITERS[path.suffix.lower()](file, samples, card)
        part.replace(path.resolve())
    finally:  # after an error or Ctrl-C; once moved, there is nothing to remove
        part.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A fresh name in the folder of `path` (if it is a link, of what it links to), from where a move is atomic."""
    real = path.resolve()
    return real.with_name(f".{real.name}.{secrets.token_hex(4)}.part")


def _write_parquet(file: BinaryIO, samples: Samples, card: Card) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # a cast, unlike numpy's astype, refuses what does not fit
    tokens = pa.array(samples.x.flatten().numpy()).cast(pa.int32())
    rows = pa.FixedSizeListArray.from_arrays(tokens, samples.x.shape[1])
    nfe = pa.array(samples.nfe.numpy()).cast(pa.int32())
    table = pa.table({"tokens": rows, "nfe": nfe}, metadata={"thetaleap": json.dumps(card)})
    pq.write_table(table, file)


def _write_jsonl(file: BinaryIO, samples: Samples, card: Card) -> None:
    for tokens, nfe in zip(samples.x.tolist(), samples.nfe.tolist(), strict=True):
        file.write(json.dumps({"tokens": tokens, "nfe": nfe}).encode() + b"\n")


def _write_npy(file: BinaryIO, samples: Samples, card: Card) -> None:
    import numpy as np

    np.save(file, samples.x.numpy())


WRITERS: dict[str, Callable[[BinaryIO, Samples, Card], None]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
    ".npy": _write_npy,
}
