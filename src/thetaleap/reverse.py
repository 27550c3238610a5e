"""The process run backwards with a model's conditionals: the one place where evaluations happen and are counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from .checks import as_time
from .denoiser import Denoiser, Look, Seen
from .intensity import Frozen
from .jumps import move
from .noise import Noise
from .processes import Process


@dataclass(frozen=True)
class Reverse:
    """`model` run backwards for a batch of samples. `nfe` counts the evaluations spent on each."""

    model: Denoiser
    nfe: Int64[Tensor, " batch"]
    first: int = 0
    rows: Int64[Tensor, " b"] | None = None
    where: str = "the first step"

    @property
    def process(self) -> Process:
        return self.model.process

    def __getitem__(self, rows: Int64[Tensor, " b"]) -> Reverse:
        """The same for the samples at `rows` of this batch."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def look(self, x: Int64[Tensor, "b d"], t: float | Tensor) -> Look:
        """Evaluate the model on every row of `x`, at one time or at one time per row."""
        if self.rows is None:
            self.nfe.add_(1)
        else:
            self.nfe[self.rows] += 1
        time = as_time(t)
        return Look(x, time, self.model(x, time), self.process.states, self.where, self.first, self.rows)

    def intensity(self, x: Int64[Tensor, "b d"], t: float | Tensor) -> Frozen:
        """Evaluate the model, and give the reverse intensity at (x, t)."""
        return Frozen(self.process, self.look(x, t))

    def move(self, x: Int64[Tensor, "b d"], seen: Seen, t: float, s: float | None, noise: Noise) -> Tensor:
        """Move every site by its exact one-site kernel from t to s, or all the way to clean data (s = None)."""
        alpha = self.process.schedule.alpha
        clean = torch.ones((), dtype=torch.float64)
        return move(self.process, x, seen, alpha(t), clean if s is None else alpha(s), noise)
