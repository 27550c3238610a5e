"""``thetaleap train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..core.checks import require_choice
from ..training.data import LEVELS, SIDE, TOKENIZERS, read_corpus
from ..training.export import export
from ..training.sums import LENGTH, Sums
from ..training.trainer import Recipe, train
from .base import app, print_lines, require_folder

DEFAULT = Recipe()
DATA = "Text, a .npy or .parquet file of token rows, or MNIST's idx file of images (.gz or not); sums: word problems."
WORDS = f"Of text: {', '.join(TOKENIZERS)} (as bpe:1024, with the number of tokens); pixels for images."


def _recipe(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel="Recipe")


def _flag(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")


@app.command("train")
def train_command(
    data: Annotated[Path, typer.Argument(help=DATA, metavar="DATA")],
    out: Annotated[Path, typer.Option(help="The folder for checkpoints and the model.", metavar="FOLDER")],
    tokenizer: Annotated[str | None, typer.Option(help=WORDS, show_default="char")] = None,
    levels: Annotated[int, typer.Option(help="Grey levels of pixels, at least 2.")] = LEVELS,
    side: Annotated[int, typer.Option(help="Height and width of images: 28, 14 or 7.")] = SIDE,
    process: Annotated[str, _recipe("The noise: masked or uniform.")] = DEFAULT.process,
    length: Annotated[
        int | None, typer.Option(help="Tokens of an example.", show_default="256, the row's", rich_help_panel="Recipe")
    ] = None,
    hidden: Annotated[int, _recipe("Width of the transformer.")] = DEFAULT.hidden,
    blocks: Annotated[int, _recipe("Its depth.")] = DEFAULT.blocks,
    heads: Annotated[int, _recipe("Its attention heads.")] = DEFAULT.heads,
    steps: Annotated[int, _recipe("Steps to train.")] = DEFAULT.steps,
    batch: Annotated[int, _recipe("Examples in a step.")] = DEFAULT.batch,
    rate: Annotated[float, _recipe("The largest learning rate.")] = DEFAULT.rate,
    warmup: Annotated[int, _recipe("Steps in which it rises.")] = DEFAULT.warmup,
    decay: Annotated[float, _recipe("Weight decay.")] = DEFAULT.decay,
    average: Annotated[float, _recipe("Of the weights: how much of the average is kept in a step.")] = DEFAULT.average,
    clip: Annotated[float, _recipe("The largest norm of a gradient.")] = DEFAULT.clip,
    dropout: Annotated[float, _recipe("How often an entry of the residual stream is dropped.")] = DEFAULT.dropout,
    drop_label: Annotated[float, _recipe("How often a label is left out, for guidance.")] = DEFAULT.drop_label,
    weighting: Annotated[str, _recipe("Of the masked bound: t, or lambda for times even in what is lost.")] = "t",
    precision: Annotated[str, _recipe("In which to train: float32 or bfloat16.")] = DEFAULT.precision,
    compiled: Annotated[bool, _recipe("Compile the network first, for speed; this needs a C++ compiler.")] = False,
    seed: Annotated[int, _recipe("Of all randomness.")] = DEFAULT.seed,
    device: Annotated[str, typer.Option(help="Where to train, as in cuda:0.")] = "cpu",
    every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 180.0,
    about: Annotated[str | None, typer.Option(help="What the data is, for the card.", show_default="its name")] = None,
    store: Annotated[
        str, typer.Option(help="Precision of the weights in the file: float32, bfloat16 or float16.")
    ] = "float32",
) -> None:
    """Train a model on your data. A run that was stopped goes on where its last checkpoint is.

    Example: [cyan]thetaleap train input.txt --out runs/plays --steps 2000[/], then
    [cyan]thetaleap sample trained:runs/plays --solver auto --nfe 32[/]

    On several devices: [cyan]accelerate launch --num_processes 2 -m thetaleap train ...[/]
    """
    options = locals()
    require_choice("store", store, ("float32", "bfloat16", "float16"))
    corpus = Sums() if str(data) == "sums" else read_corpus(data, tokenizer, levels, side)
    rows = LENGTH if isinstance(corpus, Sums) else corpus.length or DEFAULT.length
    names = [name for name in Recipe.__dataclass_fields__ if name != "length"]
    recipe = Recipe(length=length or rows, **{name: options[name] for name in names})
    kept, unseen = corpus.split()
    columns = (TextColumn("step {task.completed} of {task.total}"), BarColumn(), TextColumn("{task.fields[loss]}"))
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=steps, loss="")

        def report(step: int, loss: float, left: float) -> None:
            bar.update(task, completed=step, loss=f"{loss:.3f} nats per token")
            if not console.is_terminal and (step % 100 == 0 or step == steps):
                typer.echo(f"step {step} of {steps}: {loss:.3f} nats per token, {left / 60:.0f} min left", err=True)

        run = train(kept, recipe, require_folder(out), device=device, every=every, report=report)
    if run.spread is not None and not run.spread.writes:
        return
    plain = {"tokenizer": None, "levels": LEVELS, "side": SIDE, "store": "float32", **vars(DEFAULT)}
    told = {name: options[name] for name in plain if options[name] not in (plain[name], None)}
    command = ["thetaleap train", data.name, "--out", out.name, *(_flag(*each) for each in told.items())]
    card = export(run, unseen, out, about or data.name, getattr(torch, store), " ".join(command))
    bound = card["held-out bound"]
    print_lines(
        {
            "parameters": f"{card['parameters']:,}",
            "held-out bound": f"{bound['bits per token']:.3f} bits per token, +- {bound['error'] / 0.693:.3f}",
            "folder": str(out),
            "sample": f"thetaleap sample trained:{out} --solver auto --nfe 32",
        }
    )
