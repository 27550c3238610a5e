"""The process run backwards with a model's conditionals: the one place where evaluations happen and are counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .checks import as_time
from .denoiser import Conditionals, Denoiser
from .intensity import Frozen
from .jumps import move
from .noise import Noise
from .processes import Process


@dataclass(frozen=True)
class Look:
    """One evaluation at (x, t): conditionals as float64 probabilities, checked as they are asked for."""

    x: Int64[Tensor, "b d"]
    t: Float64[Tensor, "*b"]
    conditionals: Conditionals
    states: int
    where: str
    samples: Int64[Tensor, " b"]

    def probabilities(self, sites: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        """Rows of the leave-one-out conditional at flat indices `sites`."""
        logits = self.conditionals.logits(sites)
        if tuple(logits.shape) != (len(sites), self.states):
            raise ValueError(
                f"logits of shape {tuple(logits.shape)}: the model must give one row of {self.states} values for "
                f"each of the {len(sites)} sites asked for"
            )
        logits = logits.to(torch.float64)
        top = logits.amax(1)
        if len(sites) and not bool(torch.isfinite(top).all()):
            self._complain(sites, logits, top)
        return torch.softmax(logits, 1)

    def _complain(self, sites: Tensor, logits: Tensor, top: Tensor) -> None:
        n = int(torch.nonzero(~torch.isfinite(top))[0])
        row, site = divmod(int(sites[n]), self.x.shape[1])
        if bool(torch.isnan(logits[n]).any()):
            what, remedy = "NaN", "look for a division by zero or an overflow in the network"
        elif float(top[n]) > 0:
            what, remedy = "+infinity", "give finite logits, or minus infinity to forbid a value"
        else:
            what, remedy = "minus infinity for every value", "leave at least one value possible"
        raise ValueError(f"logits={what} in {self.where}, sample {int(self.samples[row])}, site {site}: {remedy}")


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
        rows = torch.arange(len(self.nfe), device=x.device) if self.rows is None else self.rows
        self.nfe[rows] += 1
        time = as_time(t)
        return Look(x, time, self.model(x, time), self.process.states, self.where, rows + self.first)

    def intensity(self, x: Int64[Tensor, "b d"], t: float | Tensor) -> Frozen:
        """Evaluate the model, and give the reverse intensity at (x, t)."""
        return Frozen(self.process, self.look(x, t))

    def move(self, x: Int64[Tensor, "b d"], seen: Look, t: float, s: float | None, noise: Noise) -> Tensor:
        """Move every site by its exact one-site kernel from t to s, or all the way to clean data (s = None)."""
        alpha = self.process.schedule.alpha
        clean = torch.ones((), dtype=torch.float64)
        return move(self.process, x, seen, alpha(t), clean if s is None else alpha(s), noise)
