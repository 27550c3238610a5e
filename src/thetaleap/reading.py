"""Samples from files, as `files.write` left them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from .core.checks import require, require_choice

LARGEST = 2**31 - 1


def read_samples(path: Path, argument: str = "file") -> tuple[Int64[Tensor, "num d"], dict[str, Any]]:
    """The tokens in a file of samples, and the card that says how they were made, empty if the file has none.

    Nothing in the file is ever run: arrays of objects are refused.

    Args:
        path: a .parquet, .jsonl or .npy file.
        argument: what to call the file in errors.
    """
    require_choice(f"ending of {argument}", path.suffix.lower(), READERS)
    require(path.is_file(), argument, str(path), "there is no such file; write one with thetaleap sample --out")
    try:
        tokens, card = READERS[path.suffix.lower()](path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = str(error).strip().split("\n")[0] or type(error).__name__
        wanted = "give a file written by thetaleap sample --out"
        raise ValueError(f"{argument}={str(path)!r}: cannot be read ({why}); {wanted}") from None
    whole = tokens.ndim == 2 and np.issubdtype(tokens.dtype, np.integer) and tokens.size > 0
    wanted = "give one row of whole numbers for each sample"
    require(whole, argument, str(path), f"holds {tokens.dtype} of shape {tokens.shape}; {wanted}")
    good = int(tokens.min()) >= 0 and int(tokens.max()) <= LARGEST
    require(good, argument, str(path), f"holds tokens from {tokens.min()} to {tokens.max()}; give tokens from 0 on")
    return torch.from_numpy(tokens.astype(np.int64)), card


def _read_parquet(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    card = json.loads((table.schema.metadata or {}).get(b"thetaleap", b"{}"))
    return np.array(table.column("tokens").to_pylist()), card


def _read_jsonl(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return np.array([json.loads(line)["tokens"] for line in lines if line.strip()]), {}


def _read_npy(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    return np.load(path, allow_pickle=False), {}


READERS: dict[str, Callable[[Path], tuple[np.ndarray, dict[str, Any]]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
    ".npy": _read_npy,
}
