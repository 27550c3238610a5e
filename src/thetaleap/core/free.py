"""Templates: which positions are given, and which are free."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from .checks import require, shown
from .evaluation import Denoiser

FREE = -1
"""In a template: a position that the sampler may write."""
GAP = "_"
"""The same in text."""
Template = Tensor | np.ndarray | Sequence[Any] | str
"""Whole numbers, (d,) for all samples or (num, d), as a tensor, an array or lists; or text, or several."""


def read_template(model: Denoiser, text: str, gap: str = GAP, argument: str = "template") -> Int64[Tensor, " d"]:
    """`text` as a template: each `gap` is a position for the sampler to write, and so are all positions after the end.

    For models with a tokenizer this is text, of which the pieces between gaps are tokenised on their own. For others it
    is token numbers and gaps, with spaces between.
    """
    require(len(gap) == 1, "gap", gap, "give one character")
    pieces = re.findall(f"{re.escape(gap)}+|[^{re.escape(gap)}]+", text)
    parts = [[FREE] * len(piece) if piece[0] == gap else read_tokens(model, argument, piece) for piece in pieces]
    tokens = [token for part in parts for token in part]
    over = len(tokens) - model.length
    require(
        over <= 0,
        argument,
        text,
        f"has {len(tokens)} tokens, {max(0, over)} more than the model has positions; shorten it",
    )
    return torch.tensor(tokens + [FREE] * -over, dtype=torch.int64)


def read_prompt(model: Denoiser, text: str) -> Int64[Tensor, " d"]:
    """A template that begins with `text`, whatever characters it has."""
    unused = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text)
    return read_template(model, text, unused, "prompt")


def read_tokens(model: Denoiser, argument: str, text: str) -> list[int]:
    """The tokens of `text`, or the numbers in it where a model has no text."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    if tokenizer is not None:
        try:
            return list(tokenizer.encode(text))
        except ValueError as error:
            raise ValueError(f"{argument}={shown(text)}: {error}") from None
    for word in text.split():
        remedy = f"{word!r} is no token: this model has no text; give token numbers with spaces between"
        require(word.isdecimal(), argument, text, remedy)
    return [int(word) for word in text.split()]


def as_template(model: Denoiser, template: Template) -> Int64[Tensor, "*num d"]:
    """`template` as a tensor, (d,) for all samples or (num, d)."""
    if isinstance(template, str):
        return read_template(model, template)
    if isinstance(template, list | tuple) and template and all(isinstance(row, str) for row in template):
        return torch.stack([read_template(model, row) for row in template])
    wanted = f"give whole numbers, with {FREE} where the sampler may write"
    try:
        rows = template if isinstance(template, Tensor) else torch.as_tensor(np.asarray(template))
    except (TypeError, ValueError, RuntimeError):
        rough = f"template={shown(template)}: is no table of numbers; {wanted}, in rows of {model.length}"
        raise TypeError(rough) from None
    if rows.numel() and (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool):
        raise TypeError(f"template of {rows.dtype}: {wanted}")
    return rows.to("cpu", torch.int64)


def check_template(template: Template, num: int, model: Denoiser) -> Int64[Tensor, "#num d"]:
    """`template` as one row for each of `num` samples, or one for all, or an error."""
    table, length, states = as_template(model, template), model.length, model.process.states
    if tuple(table.shape) not in [(length,), (1, length), (num, length)]:
        wanted = f"({length},), one for all samples, or ({num}, {length})"
        raise ValueError(f"template of shape {tuple(table.shape)}: the model has {length} positions; give {wanted}")
    rows = table if table.ndim == 2 else table.unsqueeze(0)
    wrong = torch.nonzero((rows < FREE) | (rows >= states))
    if len(wrong):
        row, position = wrong[0].tolist()
        value = int(rows[row, position])
        what = "the mask" if value == states else "no token"
        raise ValueError(
            f"template[{row}, {position}]={value}: this is {what}; give tokens from 0 to {states - 1}, or {FREE} where the "
            "sampler may write"
        )
    return rows
