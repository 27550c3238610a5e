"""Positions that are given: templates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from .noise import Noise
from .processes import Bound, Process, Rows, Sequences, Tokens
from .schedules import Schedule

FREE = -1
"""In a template: a position for the sampler to write."""


def check_template(template: Tensor, num: int, length: int, states: int) -> Int64[Tensor, "#num d"]:
    """`template` as one row for each of `num` samples, or one for all, or an error."""
    if not isinstance(template, Tensor) or template.dtype != torch.int64:
        got = template.dtype if isinstance(template, Tensor) else type(template).__name__
        raise TypeError(f"template of {got}: give an int64 tensor, with {FREE} where the sampler may write")
    shapes = [(length,), (1, length), (num, length)]
    if tuple(template.shape) not in shapes:
        wanted = f"({length},), one for all samples, or ({num}, {length})"
        raise ValueError(f"template of shape {tuple(template.shape)}: the model has {length} positions; give {wanted}")
    rows = template if template.ndim == 2 else template.unsqueeze(0)
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


@dataclass(frozen=True)
class Held:
    """`inner` on a batch of which only the positions `free` may change."""

    inner: Process
    free: Bool[Tensor, "b d"]

    @property
    def mask(self) -> int | None:
        return self.inner.mask

    @property
    def known_totals(self) -> bool:
        return self.inner.known_totals

    @property
    def states(self) -> int:
        return self.inner.states

    @property
    def schedule(self) -> Schedule:
        return self.inner.schedule

    def prior(self, batch: int, length: int, noise: Noise) -> Sequences:
        return self.inner.prior(batch, length, noise)

    def active(self, x: Sequences) -> Bool[Tensor, "b d"]:
        return self.inner.active(x) & self.free

    def likelihood(self, present: Tokens, t: Tensor) -> Rows:
        return self.inner.likelihood(present, t)

    def score(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        return self.inner.score(c, present, t)

    def from_score(self, score: Rows, present: Tokens, t: Tensor) -> Rows:
        return self.inner.from_score(score, present, t)

    def intensity(self, c: Rows, present: Tokens, t: Tensor) -> Rows:
        return self.inner.intensity(c, present, t)

    def intensity_bound(self, x: Sequences, t: Tensor) -> Bound:
        return self.inner.intensity_bound(x, t) * self.free

    def kernel(self, c: Rows, present: Tokens, alpha_t: Tensor, alpha_s: Tensor) -> Rows:
        return self.inner.kernel(c, present, alpha_t, alpha_s)

    def kernel_bound(self, x: Sequences, alpha_t: Tensor, alpha_s: Tensor) -> Bound:
        return self.inner.kernel_bound(x, alpha_t, alpha_s) * self.free

    def ceiling(self, high: float, low: float) -> float:
        return self.inner.ceiling(high, low)
