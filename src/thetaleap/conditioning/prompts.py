"""Prompts of different lengths, to be answered together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ..core.checks import require, require_count
from ..core.free import FREE, read_tokens
from ..models.hf.hub import Vocabulary
from ..models.network import Network


def prepare(model: Network, prompts: Sequence[Sequence[int] | str], new: int) -> tuple[Network, Int64[Tensor, "num d"]]:
    """What to give to `sample` so that sample i continues ``prompts[i]`` by `new` tokens: a model and a template.

    Each row ends with its prompt and `new` free positions. The rest of the model's length, on the left, is padding that
    the model does not attend to, so that a sample does not depend on the other prompts. A row that is run alone, as
    ``sample(*..., first=i)``, is the same up to rounding.

    Args:
        model: a network, before it is tempered, guided or constrained. Unless all rows fill its length, one that
            leaves padding out, as those of `llada` and `dream` do, or of ``from_network(..., attends=True)``.
        prompts: each as text or as tokens; a prompt may be empty.
        new: positions to write after each.
    """
    if not isinstance(model, Network):
        raise TypeError(f"model={type(model).__name__}: give the network itself, and shape what comes back")
    require(not isinstance(prompts, str), "prompts", prompts, "give a list of prompts")
    require(len(prompts) > 0, "prompts", list(prompts), "give at least one")
    require_count("new", new)
    words = model.tokenizer if isinstance(model.tokenizer, Vocabulary) else None
    template = torch.full((len(prompts), model.length), 0 if words is None else words.pad)
    valid = torch.zeros(template.shape, dtype=torch.bool)
    rows = [read_tokens(model, "prompts", one) if isinstance(one, str) else one for one in prompts]
    for row, prompt in enumerate(rows):
        _check(row, prompt, model, words)
        end, longest = model.length - new, f"more than the model's length, {model.length}; shorten it, or lengthen that"
        fits = len(prompt) <= end
        require(fits, f"length of prompts[{row}]", len(prompt), f"with {new} new tokens this is {longest}")
        template[row, end - len(prompt) : end] = torch.tensor(list(prompt), dtype=torch.int64)
        template[row, end:] = FREE
        valid[row, end - len(prompt) :] = True
    if bool(valid.all()):
        return model, template
    remedy = (
        "this model does not leave padding out, so that every prompt must fill its length but for the new positions; run "
        "them one at a time, each with a model of its own length"
    )
    require(model.attends, "lengths of prompts", sorted({len(prompt) for prompt in rows}), remedy)
    return model.padded(valid), template


def _check(row: int, prompt: Any, model: Network, words: Vocabulary | None) -> None:
    states = model.process.states
    masks = {model.process.mask, None if words is None else words.mask}
    for n, token in enumerate(prompt):
        name = f"prompts[{row}][{n}]"
        remedy = "this is the mask; leave it out, or infill with a template of your own"
        require(token not in masks, name, token, remedy)
        require(0 <= token < states, name, token, f"no token; give tokens from 0 to {states - 1}")
