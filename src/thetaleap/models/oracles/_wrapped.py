"""What wrappers of a model pass on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.evaluation import Denoiser
from ...core.processes import Process
from ._common import Oracle


@dataclass(frozen=True, eq=False)
class Wrapped:
    """A model that says in its own way what `model` says, and of which the same is true."""

    model: Denoiser

    @property
    def process(self) -> Process:
        return self.model.process

    @property
    def length(self) -> int:
        return self.model.length

    @property
    def horizon(self) -> float:
        return self.model.horizon

    @property
    def time_free(self) -> bool:
        return self.model.time_free

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self.model.shape if isinstance(self.model, Oracle) else None

    @property
    def _truth(self) -> Oracle:
        if not isinstance(self.model, Oracle):
            name = type(self.model).__name__
            raise ValueError(f"model={name}: knows no log_prob, entropy or draw; wrap an oracle")
        return self.model

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        return self._truth.log_prob(x)

    def entropy(self) -> float:
        return self._truth.entropy()

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        return self._truth.draw(num, seed)
