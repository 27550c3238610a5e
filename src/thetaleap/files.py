"""Samples in files, by the ending of the name: written whole or not at all, and read again.

- ``.parquet``: columns ``tokens``, a list of fixed size, and ``nfe``; both int32, the smallest integer that Parquet
  stores and more than any vocabulary needs. The file's metadata holds the card as JSON under the key ``thetaleap``.
- ``.jsonl``: one object per line, ``{"tokens": [...], "nfe": n}``.
- ``.npy``: the tokens alone, an int64 array of shape (num, d).
- ``.png``: pictures of the samples in a grid, for models that have some; the card is its text ``thetaleap``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from .core.checks import require, require_choice
from .core.evaluation import Denoiser
from .core.storage import replacing

if TYPE_CHECKING:
    from .sampling import Samples, Source
else:  # samples save themselves, and so come after
    Samples = Source = Any

Card = dict[str, Any]
"""How the samples were made, as far as JSON can say it."""

PNG = ".png"
LARGEST = 2**31 - 1
"""The largest token in a file."""
LEAST = 112
"""Pixels that a picture in a file is high, at least: a smaller one is enlarged."""
GAP = 4
"""Pixels between two of them."""
GREYS = 256
"""The most values that are taken for grey levels; more are codes, which only their decoder understands."""


def check_target(path: Path, force: bool = False, argument: str = "out", replace: str = "--force") -> None:
    """Raise ``ValueError`` unless `write` will be able to write `path`; with `force` it may exist already.
    Errors say `argument` for it, and `replace` for what replaces it.

    Sampling can take hours, so ask this first.
    """
    require_choice(f"ending of {argument}", path.suffix.lower(), (*WRITERS, PNG))
    name, folder = str(path), path.parent
    try:
        require(folder.exists(), argument, name, f"the folder {str(folder)!r} does not exist; make it first")
        require(folder.is_dir(), argument, name, f"{str(folder)!r} is not a folder; write into one")
        require(not path.is_dir(), argument, name, "is a folder; give the name of a file")
        require(
            force or not path.exists(), argument, name, f"exists already; give another name, or {replace} to replace it"
        )
        # only an attempt tells: permissions, read-only disks, names that are too long
        trial = path.resolve().with_name(f".{path.resolve().name}.00000000.part")
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ValueError(f"{argument}={name!r}: cannot be written ({error.strerror}); choose another place") from None


def write(path: Path, samples: Samples, card: Card) -> None:
    """Write `samples` to `path`; an older file there is replaced."""
    with replacing(path) as part, part.open("wb") as file:
        WRITERS[path.suffix.lower()](file, samples, card)


def save(path: Path, samples: Samples, force: bool = False) -> None:
    """Check `path`, and write `samples` with their own card."""
    check_target(path, force, "path", "force=True")
    if path.suffix.lower() != PNG:
        return write(path, samples, samples.card)
    require(samples.source is not None, "path", str(path), "only what sample gave can be drawn; use another ending")
    assert samples.source is not None
    return write_pictures(path, mosaic(pictures(samples.source, samples.x)), samples.card)


def write_pictures(path: Path, pixels: UInt8[Tensor, "height width 3"], card: Card) -> None:
    """Write a picture, such as a `mosaic`, to `path`; an older file there is replaced."""
    from matplotlib.image import imsave

    with replacing(path) as part:
        imsave(part, pixels.numpy(), format="png", metadata={"thetaleap": json.dumps(card)})


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


WRITERS: dict[str, Callable[[BinaryIO, Samples, Card], None]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
    ".npy": lambda file, samples, card: np.save(file, samples.x.numpy()),
}


def read_samples(path: Path, argument: str = "file") -> tuple[Int64[Tensor, "num d"], Card]:
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


def _read_parquet(path: Path) -> tuple[np.ndarray, Card]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    card = json.loads((table.schema.metadata or {}).get(b"thetaleap", b"{}"))
    return np.array(table.column("tokens").to_pylist()), card


def _read_jsonl(path: Path) -> tuple[np.ndarray, Card]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return np.array([json.loads(line)["tokens"] for line in lines if line.strip()]), {}


READERS: dict[str, Callable[[Path], tuple[np.ndarray, Card]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
    ".npy": lambda path: (np.load(path, allow_pickle=False), {}),
}


# --- pictures


def require_pictures(model: Denoiser | Source) -> None:
    """Raise ``ValueError`` unless `pictures` can be made of the samples of `model`."""
    shape, states = getattr(model, "shape", None), model.process.states
    plane = shape is not None and len(shape) == 2
    require(plane, "model shape", shape, "there are no pictures of it, but of models whose positions lie in a plane")
    known = getattr(model, "pictures", None) is not None or states <= GREYS
    require(known, "states", states, "these are codes and no grey levels; give their decoder, as in --vqgan FILE")


def pictures(model: Denoiser | Source, x: Int64[Tensor, "n d"]) -> Float[Tensor, "n c h w"]:
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
