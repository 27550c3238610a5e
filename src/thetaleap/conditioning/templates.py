"""Templates from text: what is written is given, and gaps are for the sampler."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ..core.checks import require
from ..core.evaluation import Denoiser
from ..core.free import FREE

GAP = "_"


def read_template(model: Denoiser, text: str, gap: str = GAP) -> Int64[Tensor, " d"]:
    """`text` as a template: each `gap` is a position for the sampler to write, and so are all positions after the end.

    For models with a tokenizer this is text, of which the pieces between gaps are tokenised on their own. For others it
    is token numbers and gaps, with spaces between.
    """
    require(len(gap) == 1, "gap", gap, "give one character")
    tokenizer: Any = getattr(model, "tokenizer", None)
    tokens: list[int] = []
    if tokenizer is None:
        for word in text.split():
            good = word == gap or word.isdigit()
            require(good, "template", text, f"{word!r} is no token: this model has no text; give numbers and {gap}")
            tokens.append(FREE if word == gap else int(word))
    else:
        for piece in re.findall(f"{re.escape(gap)}+|[^{re.escape(gap)}]+", text):
            tokens += [FREE] * len(piece) if piece[0] == gap else tokenizer.encode(piece)
    over = len(tokens) - model.length
    require(over <= 0, "template", text, f"has {len(tokens)} tokens, {max(0, over)} more than the model has positions")
    return torch.tensor(tokens + [FREE] * -over, dtype=torch.int64)


def read_templates(model: Denoiser, path: Path, gap: str = GAP) -> Int64[Tensor, "num d"]:
    """A file with a JSON object on each line, ``{"template": text}`` or ``{"prompt": text}``: a prompt has no gaps."""
    require(path.is_file(), "prompts", str(path), "there is no such file")
    rows: list[Tensor] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"prompts={place}: this is no JSON ({error.msg})") from None
        keys = set(entry) if isinstance(entry, dict) else set()
        good = keys in ({"template"}, {"prompt"}) and isinstance(next(iter(entry.values())), str)
        require(good, "prompts", place, 'give {"template": text} or {"prompt": text}')
        try:
            template = "template" in entry
            row = read_template(model, entry["template"], gap) if template else read_prompt(model, entry["prompt"])
            rows.append(row)
        except ValueError as error:
            raise ValueError(f"prompts={place}: {error}") from None
    require(len(rows) > 0, "prompts", str(path), "holds no lines; give one for each sample")
    return torch.stack(rows)


def read_prompt(model: Denoiser, text: str) -> Int64[Tensor, " d"]:
    """A template that begins with `text`, whatever characters it has."""
    return read_template(model, text, next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text))
