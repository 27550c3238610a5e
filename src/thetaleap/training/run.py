"""Training as one call."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ..core.checks import as_device, require, require_choice, require_kind, require_number
from ..core.progress import progress_bar
from ..models import Network, load
from . import trainer
from .data import LEVELS, SIDE, read_corpus
from .export import export
from .sums import LENGTH, Sums
from .trainer import Recipe

STORED = ("float32", "bfloat16", "float16")


def train(
    data: str | Path,
    out: str | Path,
    *,
    tokenizer: str | None = None,
    levels: int = LEVELS,
    side: int = SIDE,
    device: torch.device | str = "cpu",
    every: float = 180.0,
    about: str | None = None,
    store: str = "float32",
    progress: bool | None = None,
    **recipe: Any,
) -> Network:
    """Train a model on your data; ``load("trained:FOLDER")`` gives it again.

    A run that was stopped goes on from its last checkpoint, if it is called with the same again.

    Args:
        data: a file of text, of token rows (.npy, .parquet) or of MNIST's images; text itself, which has a line break;
            or "sums", word problems.
        out: the folder for checkpoints and the model.
        tokenizer: of text, "char", "bytes", "bpe:1024" or "gpt2"; by default "char".
        levels: grey levels of pixels.
        side: height and width of images: 28, 14 or 7.
        device: where to train.
        every: seconds between checkpoints.
        about: what the data is, for the card.
        store: the precision of the weights in the file.
        progress: show a progress bar; by default if standard error is a terminal.
        recipe: fields of `training.trainer.Recipe`: ``steps``, ``batch``, ``hidden``, ``blocks``, ``process``, ...
    """
    require_kind("data", data, str | Path, "give the name of a file, or text")
    require_kind("out", out, str | Path, "give the name of a folder")
    folder = Path(out).expanduser()
    require(not folder.is_file(), "out", str(out), "is a file; give a folder")
    require_choice("store", store, STORED)
    require_number("every", every, 0, float("inf"), closed="low")
    for name in recipe:
        require_choice("keyword", name, [one.name for one in fields(Recipe)])
    place = as_device(device)
    corpus = Sums() if str(data) == "sums" else read_corpus(data, tokenizer, levels, side)
    rows = LENGTH if isinstance(corpus, Sums) else corpus.length or Recipe().length
    made = Recipe(**{"length": rows, **recipe})
    kept, unseen = corpus.split()
    with progress_bar(progress, "training", made.steps) as advance:
        reached = 0

        def report(step: int, loss: float, left: float) -> None:
            nonlocal reached
            advance(step - reached, f"{loss:.3f} nats per token")
            reached = step

        run = trainer.train(kept, made, folder, device=place, every=every, report=report)
    if run.spread is None or run.spread.writes:
        named = "text" if "\n" in str(data) else Path(data).name
        export(run, unseen, folder, about or named, getattr(torch, store))
    if run.spread is not None:
        run.spread.wait()  # for the one that writes
    return load(f"trained:{folder}", device=place)
