"""Samples on the screen, and what was done in a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from .. import files
from ..control import Method
from ..control.parallel import Window
from ..core.evaluation import Denoiser
from ..evaluation.choice import written
from ..sampling import Samples
from .base import table_of

PREVIEW = 16
"""Samples shown at most when there is no file to put them in."""


def show(model: Denoiser, samples: Samples, first: int) -> None:
    """Samples on the screen: pictures, text or tokens, and whether there are more."""
    console = Console()
    console.print(preview(samples, getattr(model, "tokenizer", None), drawn(model, samples, console.width), first))
    if len(samples.x) > PREVIEW:
        typer.echo(f"{PREVIEW} of {len(samples.x)} shown; --out FILE keeps all\n")


def drawn(model: Denoiser, samples: Samples, width: int) -> str | None:
    """The first few samples as small pictures in characters; None where there are none, or they are too wide."""
    shape = getattr(model, "shape", None)
    grey = getattr(model, "pictures", None) is None and model.process.states <= files.GREYS
    if shape is None or len(shape) != 2 or not grey or shape[1] > width:
        return None
    return files.blocks(files.pictures(model, samples.x[:PREVIEW]), columns=(width + 2) // (shape[1] + 2))


def preview(samples: Samples, tokenizer: Any = None, pictures: str | None = None, first: int = 0) -> Table | Text:
    """The first few samples: pictures, text, or tokens."""
    if pictures is not None:
        return Text(pictures + "\n", no_wrap=True)
    table = table_of("#sample", "#nfe", "tokens" if tokenizer is None else "text")
    for n, (tokens, nfe) in enumerate(zip(samples.x[:PREVIEW].tolist(), samples.nfe.tolist(), strict=False), first):
        text = " ".join(map(str, tokens)) if tokenizer is None else tokenizer.decode(tokens)
        table.add_row(str(n), str(nfe), Text(text, overflow="fold"))
    return table


def _spread(counts: Tensor) -> str:
    return f"{float(counts.double().mean()):.1f} per sample ({int(counts.min())} to {int(counts.max())})"


def summary(
    model: str, solver: Method, samples: Samples, seconds: float, out: Path | None, window: Window | None = None
) -> dict[str, str]:
    """What was done, and at what cost."""
    num = len(samples.nfe)
    return {
        "model": model,
        "solver": written(solver),
        "samples": str(num),
        "evaluations": _spread(samples.nfe),
        **({} if window is None else {"rounds": _spread(samples.rounds), "evaluated": _spread(samples.spent)}),
        **{name: f"{value:.4f}" for name, value in samples.info.items()},
        "seconds": f"{seconds:.2f} ({num / seconds:.1f} samples per second)",
        "file": "none (keep them with --out samples.parquet)" if out is None else str(out),
    }
