"""``thetaleap train``."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.checks import as_device
from ..core.fields import knob_of
from ..training.data import LEVELS, SIDE, TOKENIZERS
from ..training.run import STORED, run_on
from ..training.trainer import Recipe, reached
from .base import METAVARS, print_lines, require_folder
from .errors import retyped
from .options import extended, option

DATA = "Text, a .npy or .parquet file of token rows, or MNIST's idx file of images (.gz or not); sums: word problems."
WORDS = f"Of text: {', '.join(TOKENIZERS)} (as bpe:1024, with the number of tokens); pixels for images."


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
    about: Annotated[str | None, typer.Option(help="What the data is, for the card.", show_default="its name")] = None,
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
    as_device(device)
    require_folder(out)
    given = {name: value for name, value in options.items() if value is not None}
    reading = {"tokenizer": tokenizer, "levels": levels, "side": side}
    usual = {"tokenizer": None, "levels": LEVELS, "side": SIDE, "store": "float32", **asdict(Recipe())}
    told = [flag(key, value) for key, value in {**reading, "store": store, **given}.items() if value != usual[key]]
    command = " ".join(["thetaleap train", data.name, "--out", out.name, *told])
    place = {"device": device, "every": every, "about": about, "store": store}
    try:
        card = run_on(data, out, reading, given, **place, lines=True, command=command)
    except KeyboardInterrupt:
        step = reached(out)
        went = "nothing was trained yet" if step is None else f"what was trained, {step} steps, is kept in {out}"
        if os.environ.get("RANK", "0") == "0":  # of several processes, one says it
            typer.echo(f"interrupted: {went}\nto go on: {retyped()}", err=True)
        raise typer.Exit(130) from None
    if card is None:
        return
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


def flag(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
