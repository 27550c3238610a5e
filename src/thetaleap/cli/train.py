"""``thetaleap train``."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..core.checks import require, require_choice, require_number
from ..core.fields import knob_of
from ..core.progress import progress_bar
from ..training import trainer
from ..training.data import LEVELS, SIDE, TOKENIZERS, read_corpus
from ..training.export import export
from ..training.sums import LENGTH, Sums
from ..training.trainer import Recipe
from .base import METAVARS, print_lines, require_folder
from .errors import about, retyped
from .options import extended, option, require_device

DATA = "Text, a .npy or .parquet file of token rows, or MNIST's idx file of images (.gz or not); sums: word problems."
WORDS = f"Of text: {', '.join(TOKENIZERS)} (as bpe:1024, with the number of tokens); pixels for images."
STORED = ("float32", "bfloat16", "float16")


def _recipe() -> dict[str, Any]:
    """An option for each field of a recipe."""
    made: dict[str, Any] = {}
    for one in fields(Recipe):
        knob, kind = knob_of(one), type(one.default)
        shown = "a row's, else 256" if one.name == "length" else False if kind is bool else str(one.default)
        names = [f"--{one.name}"] if kind is bool else []
        metavar = "|".join(knob.choices) or METAVARS.get(kind)
        made[one.name] = Annotated[kind | None, option("Recipe", knob.help, *names, show=shown, metavar=metavar)]
    return made


@partial(extended, more=_recipe())
def train(
    data: Annotated[Path, typer.Argument(help=DATA, metavar="DATA")],
    out: Annotated[Path, typer.Option(help="The folder for checkpoints and the model.", metavar="FOLDER")],
    tokenizer: Annotated[str | None, typer.Option(help=WORDS, show_default="char", metavar="NAME")] = None,
    levels: Annotated[int, typer.Option(help="Grey levels of pixels, at least 2.")] = LEVELS,
    side: Annotated[int, typer.Option(help="Height and width of images: 28, 14 or 7.")] = SIDE,
    device: Annotated[str, typer.Option(help="Where to train, as in cuda:0.", metavar="DEVICE")] = "cpu",
    every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 180.0,
    about_data: Annotated[
        str | None, typer.Option("--about", help="What the data is, for the card.", show_default="its name")
    ] = None,
    store: Annotated[
        str, typer.Option(help="Precision of the weights in the file.", metavar="|".join(STORED))
    ] = "float32",
    **options: Any,
) -> None:
    """Train a model on your data. A run that was stopped goes on where it was: type the same again.

    More --steps extend a run, also one that has come to its end. Ctrl-C keeps what was trained.

    Example: [cyan]thetaleap train input.txt --out runs/plays --steps 2000[/], then
    [cyan]thetaleap sample runs/plays[/]

    On several devices: [cyan]accelerate launch --num_processes 2 -m thetaleap train ...[/]
    """
    require_choice("store", store, STORED)
    require_number("every", every, 0, math.inf, closed="low")
    require_device(device)
    require_folder(out)
    given = {name: value for name, value in options.items() if value is not None}
    _require_compiler(given.get("compiled", False), device)
    try:
        corpus = Sums() if str(data) == "sums" else read_corpus(data, tokenizer, levels, side)
        rows = LENGTH if isinstance(corpus, Sums) else corpus.length or Recipe().length
        recipe = Recipe(**{"length": rows, **given})
        with about("data", data):
            corpus.check(recipe.length)
        kept, unseen = corpus.split()
        run = _trained(kept, recipe, out, device, every)
        if run.spread is not None and not run.spread.writes:
            return
        chosen = {"tokenizer": tokenizer, "levels": levels, "side": side, "store": store, **given}
        usual = {"tokenizer": None, "levels": LEVELS, "side": SIDE, "store": "float32", **asdict(Recipe())}
        told = [_flag(name, value) for name, value in chosen.items() if value != usual[name]]
        command = " ".join(["thetaleap train", data.name, "--out", out.name, *told])
        card = export(run, unseen, out, about_data or data.name, getattr(torch, store), command)
    except KeyboardInterrupt:
        step = trainer.reached(out)
        went = "nothing was trained yet" if step is None else f"what was trained, {step} steps, is kept in {out}"
        if os.environ.get("RANK", "0") == "0":
            typer.echo(f"interrupted: {went}\nto go on: {retyped()}", err=True)
        raise typer.Exit(130) from None
    bound = card["held-out bound"]
    bits = f"{bound['bits per token']:.3f} bits per token, +- {bound['standard error']:.3f}"
    if "bits per character" in bound:
        bits += f"; {bound['bits per character']:.3f} bits per character"
    print_lines(
        {
            "parameters": f"{card['parameters']:,}",
            "held-out bound": bits,
            "folder": str(out),
            "sample": shlex.join(["thetaleap", "sample", str(out)]),
        }
    )


def _trained(corpus: Any, recipe: Recipe, out: Path, device: str, every: float) -> trainer.Run:
    """The run at its end, with reports on the way."""
    with progress_bar(None, "training", recipe.steps) as advance:
        reached = 0

        def report(step: int, loss: float, left: float) -> None:
            nonlocal reached
            bits = f"{loss / math.log(2):.3f} bits per token"
            advance(step - reached, bits)
            reached = step
            if not sys.stderr.isatty() and (step % 100 == 0 or step == recipe.steps):
                typer.echo(f"step {step} of {recipe.steps}: {bits}, {left / 60:.0f} min left", err=True)

        return trainer.train(corpus, recipe, out, device=device, every=every, report=report)


def _require_compiler(compiled: bool, device: str) -> None:
    there = any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++")))
    remedy = "there is no C++ compiler here; leave it out, or install g++"
    require(there or not compiled or not device.startswith("cpu"), "compiled", True, remedy)


def _flag(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
