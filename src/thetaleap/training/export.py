"""A trained model for others: averaged weights and a card."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .. import __version__
from ..models.hf.masked_lm import Letters
from ..models.tokenizers import GPT2, BytePairs, Lexicon
from ..models.trained import CARD, WEIGHTS
from .data import Examples
from .trainer import Run, averaged, held_out, process_of, replaced


def export(
    run: Run, unseen: Examples, folder: Path, data: str, dtype: torch.dtype = torch.float32, command: str | None = None
) -> dict[str, Any]:
    """Write the averaged weights and the card to `folder`; gives the card.

    Args:
        run: at its end.
        unseen: the data that was held out.
        folder: to write to.
        data: what the data is, in words.
        dtype: of the weights in the file.
        command: that made them.
    """
    bound, error = held_out(run, unseen, process_of(run.recipe, unseen.states))
    card = {
        "command": command,
        "data": data,
        "data sha256": unseen.digest,
        "recipe": asdict(run.recipe),
        "sizes": asdict(run.model.sizes),
        "parameters": sum(value.numel() for value in run.model.parameters()),
        "step": run.step,
        "held-out bound": {"nats per token": bound, "bits per token": bound / 0.6931471805599453, "error": error},
        "tokenizer": _tokenizer(unseen.tokenizer),
        "shape": list(unseen.shape) if unseen.shape else None,
        "version": __version__,
        "commit": _commit(),
    }
    weights = {name: value.to(dtype).cpu().contiguous() for name, value in averaged(run).state_dict().items()}
    replaced(folder / WEIGHTS, lambda path: save_file(weights, path))
    text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    replaced(folder / CARD, lambda path: path.write_text(text, encoding="utf-8"))
    return card


def _tokenizer(tokenizer: Any) -> dict[str, Any] | None:
    if tokenizer is None:
        return None
    if isinstance(tokenizer, Letters):
        return {"name": "char", "alphabet": tokenizer.alphabet}
    if isinstance(tokenizer, Lexicon):
        return {"name": "words", "words": list(tokenizer.words)}
    if isinstance(tokenizer, BytePairs):
        return {"name": "bpe", "pairs": json.loads(tokenizer.model)}
    return {"name": "gpt2" if isinstance(tokenizer, GPT2) else "bytes"}


def _commit() -> str | None:
    """The commit of the library's source, if it is run from a checkout."""
    try:
        said = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.stdout.strip()
