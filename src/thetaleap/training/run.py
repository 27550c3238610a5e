"""Training as one call."""

from __future__ import annotations

import math
import sys
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
from .recipes import Card
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

    A run that was stopped goes on from its last checkpoint, if it is called with the same again; with more ``steps`` it
    is extended.

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
    if tokenizer is not None:
        require_kind("tokenizer", tokenizer, str, 'give a name, as in "char" or "bpe:1024"')
    folder, place = Path(out).expanduser(), as_device(device)
    require(not folder.is_file(), "out", str(out), "is a file; give a folder")
    for name in recipe:
        require_choice("keyword", name, [one.name for one in fields(Recipe)])
    files = {"tokenizer": tokenizer, "levels": levels, "side": side}
    run_on(data, folder, files, recipe, device=place, every=every, about=about, store=store, progress=progress)
    return load(f"trained:{folder}", device=place)


def run_on(
    data: str | Path,
    folder: Path,
    reading: dict[str, Any],
    recipe: dict[str, Any],
    *,
    device: torch.device | str,
    every: float,
    about: str | None,
    store: str,
    progress: bool | None = None,
    lines: bool = False,
    command: str | None = None,
) -> Card | None:
    """Train and write the model: what `train` and the command share. Gives the card, where this process writes.

    All that can be wrong is found before the first step. `reading` is for `read_corpus`; with `lines`, there is one for
    every hundred steps where there is no terminal; `command` is for the card.
    """
    require_choice("store", store, STORED)
    require_number("every", every, 0, math.inf, closed="low")
    _require_compiler(recipe.get("compiled", False), torch.device(device))
    corpus = Sums() if str(data) == "sums" else read_corpus(data, **reading)
    rows = LENGTH if isinstance(corpus, Sums) else corpus.length or Recipe().length
    made, named = Recipe(**{"length": rows, **recipe}), "text" if "\n" in str(data) else str(data)
    corpus.check(made.length, named)
    kept, unseen = corpus.split()
    with progress_bar(progress, "training", made.steps) as advance:
        reached = 0

        def report(step: int, loss: float, left: float) -> None:
            nonlocal reached
            bits = f"{loss / math.log(2):.3f} bits per token"
            advance(step - reached, bits)
            reached = step
            if lines and not sys.stderr.isatty() and (step % 100 == 0 or step == made.steps):
                print(f"step {step} of {made.steps}: {bits}, {left / 60:.0f} min left", file=sys.stderr, flush=True)

        run = trainer.train(kept, made, folder, device=device, every=every, report=report)
    card = None
    if run.spread is None or run.spread.writes:
        card = export(run, unseen, folder, about or Path(named).name, getattr(torch, store), command)
    if run.spread is not None:
        run.spread.wait()  # for the one that writes
    return card


def _require_compiler(compiled: Any, device: torch.device) -> None:
    remedy = "there is no C++ compiler here; leave it out, or install g++"
    require(trainer.compiler() or compiled is not True or device.type != "cpu", "compiled", True, remedy)
