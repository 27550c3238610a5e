"""``thetaleap train``."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..core.checks import require_choice
from ..core.fields import knob_of
from ..core.progress import progress_bar
from ..training import trainer
from ..training.data import LEVELS, SIDE, TOKENIZERS, read_corpus
from ..training.export import export
from ..training.sums import LENGTH, Sums
from ..training.trainer import Recipe
from .base import print_lines, require_folder

DATA = "Text, a .npy or .parquet file of token rows, or MNIST's idx file of images (.gz or not); sums: word problems."
WORDS = f"Of text: {', '.join(TOKENIZERS)} (as bpe:1024, with the number of tokens); pixels for images."


def train(
    data: Annotated[Path, typer.Argument(help=DATA, metavar="DATA")],
    out: Annotated[Path, typer.Option(help="The folder for checkpoints and the model.", metavar="FOLDER")],
    tokenizer: Annotated[str | None, typer.Option(help=WORDS, show_default="char")] = None,
    levels: Annotated[int, typer.Option(help="Grey levels of pixels, at least 2.")] = LEVELS,
    side: Annotated[int, typer.Option(help="Height and width of images: 28, 14 or 7.")] = SIDE,
    device: Annotated[str, typer.Option(help="Where to train, as in cuda:0.")] = "cpu",
    every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 180.0,
    about: Annotated[str | None, typer.Option(help="What the data is, for the card.", show_default="its name")] = None,
    store: Annotated[
        str, typer.Option(help="Precision of the weights in the file: float32, bfloat16 or float16.")
    ] = "float32",
    **options: Any,
) -> None:
    """Train a model on your data. A run that was stopped goes on where its last checkpoint is.

    Example: [cyan]thetaleap train input.txt --out runs/plays --steps 2000[/], then
    [cyan]thetaleap sample trained:runs/plays --solver auto --nfe 32[/]

    On several devices: [cyan]accelerate launch --num_processes 2 -m thetaleap train ...[/]
    """
    require_choice("store", store, ("float32", "bfloat16", "float16"))
    corpus = Sums() if str(data) == "sums" else read_corpus(data, tokenizer, levels, side)
    rows = LENGTH if isinstance(corpus, Sums) else corpus.length or Recipe().length
    recipe = Recipe(**{**options, "length": options["length"] or rows})
    kept, unseen = corpus.split()
    with progress_bar(None, "training", recipe.steps) as advance:
        reached = 0

        def report(step: int, loss: float, left: float) -> None:
            nonlocal reached
            advance(step - reached, f"{loss:.3f} nats per token")
            reached = step
            if not sys.stderr.isatty() and (step % 100 == 0 or step == recipe.steps):
                line = f"step {step} of {recipe.steps}: {loss:.3f} nats per token, {left / 60:.0f} min left"
                typer.echo(line, err=True)

        run = trainer.train(kept, recipe, require_folder(out), device=device, every=every, report=report)
    if run.spread is not None and not run.spread.writes:
        return
    chosen = {"tokenizer": tokenizer, "levels": levels, "side": side, "store": store, **options}
    usual = {"tokenizer": None, "levels": LEVELS, "side": SIDE, "store": "float32", **asdict(Recipe())}
    told = [_flag(name, value) for name, value in chosen.items() if value not in (usual[name], None)]
    command = " ".join(["thetaleap train", data.name, "--out", out.name, *told])
    card = export(run, unseen, out, about or data.name, getattr(torch, store), command)
    bound = card["held-out bound"]
    bits = f"{bound['bits per token']:.3f} bits per token, +- {bound['error'] / math.log(2):.3f}"
    if "bits per character" in bound:
        bits += f"; {bound['bits per character']:.3f} bits per character"
    print_lines(
        {
            "parameters": f"{card['parameters']:,}",
            "held-out bound": bits,
            "folder": str(out),
            "sample": f"thetaleap sample trained:{out} --solver auto --nfe 32",
        }
    )


def _flag(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")


def _recipe_options() -> Iterator[inspect.Parameter]:
    """An option for each field of a recipe; the length is the data's unless it is given."""
    for one in fields(Recipe):
        kind, default, shown = type(one.default), one.default, True
        if one.name == "length":
            kind, default, shown = int | None, None, "256, the row's"
        told = typer.Option(help=knob_of(one).help, show_default=shown, rich_help_panel="Recipe")
        annotation = Annotated[kind, told]
        yield inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _with_recipe(command: Any) -> Any:
    """`command` with the options of a recipe in place of its ``**options``."""
    plain = inspect.signature(command, eval_str=True)
    own = [each for each in plain.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    more = list(_recipe_options())
    command.__signature__ = plain.replace(parameters=[*own, *more])
    command.__annotations__ = {each.name: each.annotation for each in (*own, *more)}
    return command


_with_recipe(train)
