"""Samples as files: Parquet, JSON lines, a NumPy array or pictures, by the ending of the name.

- ``.parquet``: columns ``tokens``, a list of fixed size, and ``nfe``; both int32, the smallest integer that Parquet
  stores and more than any vocabulary needs. The file's metadata holds the card as JSON under the key ``thetaleap``.
- ``.jsonl``: one object per line, ``{"tokens": [...], "nfe": n}``.
- ``.npy``: the tokens alone, an int64 array of shape (num, d).
- ``.png``: pictures of the samples in a grid, for models that have some; the card is its text ``thetaleap``.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from .core.checks import require, require_choice
from .core.evaluation import Denoiser
from .sampling import Samples

Card = dict[str, Any]
"""How the samples were made, as far as JSON can say it."""

PNG = ".png"
LEAST = 112
"""Pixels that a picture in a file is high, at least: a smaller one is enlarged."""
GAP = 4
"""Pixels between two of them."""
GREYS = 256
"""The most values that are taken for grey levels; more are codes, which only their decoder understands."""


def check_target(path: Path, force: bool = False) -> None:
    """Raise ``ValueError`` unless `write` will be able to write `path`; with `force` it may exist already.

    Sampling can take hours, so ask this first.
    """
    require_choice("ending of out", path.suffix.lower(), (*WRITERS, PNG))
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
    with _replaced(path) as file:
        WRITERS[path.suffix.lower()](file, samples, card)


def write_pictures(path: Path, pixels: UInt8[Tensor, "height width 3"], card: Card) -> None:
    """Write a picture, such as a `mosaic`, to `path` in the same manner."""
    from matplotlib.image import imsave

    with _replaced(path) as file:
        imsave(file, pixels.numpy(), format="png", metadata={"thetaleap": json.dumps(card)})


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    part = _beside(path)
    try:
        with part.open("xb") as file:
            yield file
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


# --- pictures


def require_pictures(model: Denoiser) -> None:
    """Raise ``ValueError`` unless `pictures` can be made of the samples of `model`."""
    shape, states = getattr(model, "shape", None), model.process.states
    plane = shape is not None and len(shape) == 2
    require(plane, "model shape", shape, "there are no pictures of it, but of models whose positions lie in a plane")
    known = getattr(model, "pictures", None) is not None or states <= GREYS
    require(known, "states", states, "these are codes and no grey levels; give their decoder, as in --vqgan FILE")


def pictures(model: Denoiser, x: Int64[Tensor, "n d"]) -> Float[Tensor, "n c h w"]:
    """Images with entries from 0 to 1: what the model's decoder makes of codes, or else grey levels, black first."""
    require_pictures(model)
    decoder: Any = getattr(model, "pictures", None)
    positions = x.unflatten(1, getattr(model, "shape", ()))
    if decoder is not None:
        return decoder.decode(positions).float().cpu()
    return positions.unsqueeze(1) / (model.process.states - 1)


def mosaic(images: Float[Tensor, "n c h w"], columns: int | None = None) -> UInt8[Tensor, "height width 3"]:
    """Grey or coloured images in a grid, row by row; by default about as many rows as columns."""
    count, _, height, width = images.shape
    columns = math.ceil(math.sqrt(count)) if columns is None else columns
    factor, rows = math.ceil(LEAST / height), math.ceil(count / columns)
    large = images.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    down, across = height * factor + GAP, width * factor + GAP
    canvas = torch.ones((3, rows * down + GAP, columns * across + GAP))
    for n, image in enumerate(large):
        top, left = n // columns * down + GAP, n % columns * across + GAP
        canvas[:, top : top + down - GAP, left : left + across - GAP] = image
    return (canvas * 255).round().to(torch.uint8).permute(1, 2, 0)


def blocks(images: Float[Tensor, "n 1 h w"], columns: int) -> str:
    """Grey images in characters, so many beside each other: a character is two pixels, each light or dark."""
    light = torch.nn.functional.pad((images[:, 0] >= 0.5).long(), (0, 0, 0, images.shape[2] % 2))
    lines = [
        ["".join(" ▄▀█"[2 * above + below] for above, below in zip(*pair, strict=True)) for pair in image]
        for image in light.unflatten(1, (-1, 2)).tolist()
    ]
    rows = [lines[n : n + columns] for n in range(0, len(lines), columns)]
    return "\n\n".join("\n".join("  ".join(line).rstrip() for line in zip(*row, strict=True)) for row in rows)
