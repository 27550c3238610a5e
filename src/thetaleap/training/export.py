"""A trained model for others: averaged weights and a card."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..models.hf.masked_lm import Letters
from ..models.tokenizers import GPT2, BytePairs, Lexicon
from ..models.trained import CARD, WEIGHTS
from .data import Corpus, Examples
from .recipes import Card, write_card, write_tensors
from .trainer import Run, averaged, held_out, process_of


def export(
    run: Run, unseen: Examples, folder: Path, data: str, dtype: torch.dtype = torch.float32, command: str | None = None
) -> Card:
    """Write the averaged weights and the card to `folder`; gives the card.

    Args:
        run: at its end.
        unseen: the data that was held out.
        folder: to write to.
        data: what the data is, in words.
        dtype: of the weights in the file.
        command: that made them.
    """
    nats, error = held_out(run, unseen, process_of(run.recipe, unseen.states))
    bound = {"bits per token": nats / math.log(2), "standard error": error / math.log(2)}
    if isinstance(unseen, Corpus) and unseen.characters_per_token is not None:
        bound["bits per character"] = bound["bits per token"] / unseen.characters_per_token
    card: Card = {
        "command": command,
        "data": data,
        "data sha256": unseen.digest,
        "recipe": asdict(run.recipe),
        "sizes": asdict(run.model.sizes),
        "parameters": sum(value.numel() for value in run.model.parameters()),
        "step": run.step,
        **({"earlier": list(run.earlier)} if run.earlier else {}),
        "held-out bound": bound,
        "tokenizer": _tokenizer(unseen.tokenizer),
        "shape": list(unseen.shape) if unseen.shape else None,
        "version": __version__,
        "commit": _commit(),
    }
    write_tensors(folder / WEIGHTS, {name: value.to(dtype) for name, value in averaged(run).state_dict().items()})
    write_card(folder / CARD, card)
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
