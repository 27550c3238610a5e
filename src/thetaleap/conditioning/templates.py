"""Templates from files; `core.free` reads one from text."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from ..core.checks import require
from ..core.evaluation import Denoiser
from ..core.free import GAP, read_prompt, read_template

__all__ = ["GAP", "read_prompt", "read_template", "read_templates"]


def read_templates(model: Denoiser, path: Path, gap: str = GAP) -> Int64[Tensor, "num d"]:
    """A file with a JSON object on each line, ``{"template": text}`` or ``{"prompt": text}``: a prompt has no gaps."""
    wanted = 'give {"template": text} or {"prompt": text}'
    require(path.is_file(), "prompts", str(path), f"there is no such file; {wanted} on each line of one")
    rows: list[Tensor] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"prompts={place}: this is no JSON ({error.msg}); {wanted}") from None
        keys = set(entry) if isinstance(entry, dict) else set()
        good = keys in ({"template"}, {"prompt"}) and isinstance(next(iter(entry.values())), str)
        require(good, "prompts", place, wanted)
        try:
            template = "template" in entry
            row = read_template(model, entry["template"], gap) if template else read_prompt(model, entry["prompt"])
            rows.append(row)
        except ValueError as error:
            raise ValueError(f"prompts={place}: {error}") from None
    require(len(rows) > 0, "prompts", str(path), "holds no lines; give one for each sample")
    return torch.stack(rows)
