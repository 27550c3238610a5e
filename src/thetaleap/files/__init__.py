"""Samples in files, by the ending of the name: written whole or not at all, and read again. Each holds the card, which
says how they were made: model, solver, seed, version and what else was asked for.

- ``.parquet``: columns ``tokens``, a list of fixed size, and ``nfe``; both int32, the smallest integer that Parquet
  stores and more than any vocabulary needs. With them ``text``, of models that have some, and ``prompt``, if something
  was given. The file's metadata holds the card as JSON under the key ``thetaleap``.
- ``.jsonl``: one object per line, ``{"tokens": [...], "nfe": n}``, with ``text`` and ``prompt`` likewise. The first has
  the card besides, as ``thetaleap``.
- ``.npy``: the tokens alone, an int64 array of shape (num, d). Behind it is a second array, of one string: the card.
- ``.txt``: the text alone, one sample per line: a line break within a sample is written as ``\\n``, a backslash as
  ``\\\\``. The first line is ``# thetaleap`` and the card.
- ``.png``: pictures of the samples in a grid, for models that have some; the card is its text ``thetaleap``.

A folder of a job holds many: ``part-000000.parquet`` and so on, and the card in ``_job.json``; `jobs` writes it.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from ..core.checks import require, require_choice
from ..core.evaluation import Denoiser
from ..core.storage import replacing
from .reading import (
    HEADER,
    JOB,
    KEY,
    PART,
    READERS,
    Card,
    Columns,
    Stored,
    read_columns,
    read_samples,
    unfinished,
)

if TYPE_CHECKING:
    from ..sampling import Samples, Source
else:  # samples save themselves, and so come after
    Samples = Source = Any

__all__ = [
    "JOB",
    "PART",
    "READERS",
    "Card",
    "Columns",
    "Stored",
    "blocks",
    "check_target",
    "image_grid",
    "is_folder",
    "parquet",
    "pictures",
    "read_columns",
    "read_samples",
    "require_pictures",
    "save",
    "unfinished",
    "write",
    "write_pictures",
]

PNG = ".png"
LEAST = 112
"""Pixels that a picture in a file is high, at least: a smaller one is enlarged."""
GAP = 4
"""Pixels between two of them."""
GREYS = 256
"""The most values that are taken for grey levels; more are codes, which only their decoder understands."""


def is_folder(path: Path) -> bool:
    """Whether samples are written to it in parts: it has no ending, or is a folder by another name than a file's."""
    return path.suffix == "" or (path.suffix.lower() not in (*WRITERS, PNG) and path.is_dir())


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


def write(
    path: Path,
    samples: Samples,
    card: Card,
    text: Sequence[str] | None = None,
    prompt: Sequence[str] | None = None,
    before: Columns | None = None,
) -> None:
    """Write `samples` to `path`; an older file there is replaced.

    Args:
        path: its ending says how.
        samples: what to write.
        card: how they were made.
        text: of each sample; .txt needs it.
        prompt: what was given to each sample.
        before: samples that come first, as `read_columns` found them in a file of this kind.
    """
    columns = _columns(samples, text, prompt)
    if before is not None:
        columns = {
            name: np.concatenate([before[name], value]) if name == "tokens" else [*before[name], *value]
            for name, value in columns.items()
            if name in before
        }
    with replacing(path) as part, part.open("wb") as file:
        WRITERS[path.suffix.lower()](file, columns, card)


def parquet(
    samples: Samples, card: Card, text: Sequence[str] | None = None, prompt: Sequence[str] | None = None
) -> bytes:
    """The content of the ``.parquet`` file that `write` would write."""
    file = io.BytesIO()
    _write_parquet(file, _columns(samples, text, prompt), card)
    return file.getvalue()


def _columns(samples: Samples, text: Sequence[str] | None, prompt: Sequence[str] | None) -> Columns:
    every = {"tokens": samples.x.numpy(), "nfe": samples.nfe.tolist(), "text": text, "prompt": prompt}
    return {name: value for name, value in every.items() if value is not None}


def save(path: Path, samples: Samples, force: bool = False) -> None:
    """Check `path`, and write `samples` with their own card."""
    check_target(path, force, "path", "force=True")
    if path.suffix.lower() != PNG:
        spelt = samples.source is not None and samples.source.tokenizer is not None
        require(spelt or path.suffix.lower() != ".txt", "path", str(path), "the model has no text; use another ending")
        return write(path, samples, samples.card, samples.text if spelt else None)
    require(samples.source is not None, "path", str(path), "only what sample gave can be drawn; use another ending")
    assert samples.source is not None
    return write_pictures(path, image_grid(pictures(samples.source, samples.x)), samples.card)


def write_pictures(path: Path, pixels: UInt8[Tensor, "height width 3"], card: Card) -> None:
    """Write a picture, such as a `image_grid`, to `path`; an older file there is replaced."""
    from matplotlib.image import imsave

    with replacing(path) as part:
        imsave(part, pixels.numpy(), format="png", metadata={KEY: json.dumps(card)})


def _write_parquet(file: BinaryIO | io.BytesIO, columns: Columns, card: Card) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # a cast, unlike numpy's astype, refuses what does not fit
    tokens = pa.array(columns["tokens"].flatten()).cast(pa.int32())
    made = {**columns, "tokens": pa.FixedSizeListArray.from_arrays(tokens, columns["tokens"].shape[1])}
    made["nfe"] = pa.array(columns["nfe"]).cast(pa.int32())
    pq.write_table(pa.table(made, metadata={KEY: json.dumps(card)}), file)


def _write_jsonl(file: BinaryIO, columns: Columns, card: Card) -> None:
    plain = {**columns, "tokens": columns["tokens"].tolist()}
    for n, values in enumerate(zip(*plain.values(), strict=True)):
        row = dict(zip(plain, values, strict=True)) | ({KEY: card} if n == 0 else {})
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _write_npy(file: BinaryIO, columns: Columns, card: Card) -> None:
    np.save(file, columns["tokens"])
    np.save(file, np.array(json.dumps(card)))  # np.load reads the first array, unless it is asked again


def _write_txt(file: BinaryIO, columns: Columns, card: Card) -> None:
    lines = [text.replace("\\", r"\\").replace("\n", r"\n").replace("\r", r"\r") for text in columns["text"]]
    file.write("".join(f"{line}\n" for line in [f"{HEADER}{json.dumps(card)}", *lines]).encode())


WRITERS: dict[str, Callable[[BinaryIO, Columns, Card], None]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
    ".npy": _write_npy,
    ".txt": _write_txt,
}


# --- pictures


def require_pictures(model: Denoiser | Source) -> None:
    """Raise ``ValueError`` unless `pictures` can be made of the samples of `model`."""
    shape, states = getattr(model, "shape", None), model.process.states
    plane = shape is not None and len(shape) == 2
    require(
        plane,
        "model shape",
        shape,
        "there are no pictures of it, but of models whose positions lie in a plane; use another ending",
    )
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


def image_grid(images: Float[Tensor, "n c h w"], columns: int | None = None) -> UInt8[Tensor, "height width 3"]:
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
