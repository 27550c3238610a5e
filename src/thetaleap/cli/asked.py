"""The model that a command asks for, and what is given to its samples."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..conditioning.templates import read_prompt, read_template, read_templates
from ..conditioning.wrappers import constrained, guided, tempered
from ..core.checks import require, require_number
from ..core.evaluation import Denoiser
from ..core.free import read_tokens
from ..models.hf.prefix_reuse import ApproximatePrefix, Reuse
from .errors import about
from .options import opened


@dataclass(frozen=True)
class Asked:
    """A model by its name, and how its conditionals are shaped: all in words, so that another machine can open it."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    """Of `load`."""
    labels: str | None = None
    guidance: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    allow: str | None = None
    forbid: str | None = None
    reuse: Reuse | None = None
    """How the network is run on part of the positions, if it is."""

    def open(self) -> Any:
        return opened(self.model, **self.options)

    def shaped(self, model: Denoiser, numbers: range) -> Denoiser:
        """`model` for the samples of these numbers."""
        return self.around(self.reused(model) or model, numbers)

    def reused(self, model: Denoiser) -> ApproximatePrefix | None:
        """`model` with runs on part of the positions, if that was asked for."""
        return None if self.reuse is None else self.reuse(model)

    def around(self, model: Denoiser, numbers: range) -> Denoiser:
        """All that changes conditionals."""
        model = self._guided(model, numbers)
        for name, text in (("allow", self.allow), ("forbid", self.forbid)):
            if text is not None:
                with about(name, text):
                    model = constrained(model, **{name: read_tokens(model, name, text)})
        if self.temperature is None and self.top_k is None and self.top_p is None:
            return model
        return tempered(model, 1.0 if self.temperature is None else self.temperature, self.top_k, self.top_p)

    def _guided(self, model: Denoiser, numbers: range) -> Denoiser:
        labels, guidance = self.labels, self.guidance
        if labels is None:
            require(guidance is None, "guidance", guidance, "goes towards a label; give --labels")
            return model
        parts = [part.strip() for part in labels.split(",")]
        good = all(part.isdigit() for part in parts)
        require(good, "labels", labels, "give whole numbers with commas between, as in 3 or 0,1,2")
        taken = getattr(model, "classes", None) is not None
        require(taken, "labels", labels, "this model takes none; leave it out")
        require_number("guidance", guidance or 0.0, 0, math.inf, closed="low")
        every = [int(part) for part in parts]
        with about("labels", labels):
            return guided(model, guidance or 0.0, [every[n % len(every)] for n in numbers])


def template_of(model: Denoiser, template: str | None, prompt: str | None, prompts: Path | None, gap: str) -> Any:
    """What is given, a row for each prompt; None if nothing is."""
    require(len(gap) == 1, "gap", gap, "give one character")
    if prompts is not None:
        rows, name, typed = read_templates(model, prompts, gap), "prompts", str(prompts)
    elif template is not None or prompt is not None:
        name, typed = ("prompt", str(prompt)) if template is None else ("template", template)
        with about(name, typed):
            row = read_prompt(model, typed) if template is None else read_template(model, typed, gap)
        rows = row.unsqueeze(0)
    else:
        return None
    largest, states = int(rows.max()), model.process.states
    require(largest < states, name, typed, f"{largest} is no token; they are 0 to {states - 1}, and {gap} is a gap")
    return rows


def prompts_of(text: str | None, prompts: Path | None, each: int, first: int, num: int) -> list[str] | None:
    """What was given to each of `num` samples, as text."""
    if prompts is None:
        return None if text is None else [text] * num
    lines = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [next(iter(json.loads(lines[n // each]).values())) for n in range(first, first + num)]
