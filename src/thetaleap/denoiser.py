"""The one model contract: ``denoiser(x, t) -> Conditionals``, whose rows are computed where someone asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from .processes import Process


class Conditionals(Protocol):
    """What a model says about a batch of sequences."""

    def logits(self, sites: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        """Unnormalised log-probabilities of the clean token at `sites`, given all *other* sites.

        `sites` are flat indices, sample * length + site. Minus infinity forbids a value.
        """
        ...


class Denoiser(Protocol):
    """A model to sample from: a network behind an adapter, or an oracle."""

    @property
    def process(self) -> Process: ...

    @property
    def length(self) -> int:
        """Number of sites, d."""
        ...

    @property
    def horizon(self) -> float:
        """The time at which there is nothing but noise, T."""
        ...

    @property
    def time_free(self) -> bool:
        """Whether the conditionals ignore t, as those of masked models may."""
        ...

    @property
    def device(self) -> torch.device: ...

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        """Evaluate the model once on each row of `x`; `t` is one time, shape (), or one per row."""
        ...


@dataclass(frozen=True)
class Dense:
    """Conditionals that are there already, for every site."""

    values: Float[Tensor, "b d S"]

    def logits(self, sites: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        return self.values.flatten(0, 1)[sites]
