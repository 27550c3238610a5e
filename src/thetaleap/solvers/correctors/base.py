"""What every corrector is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ...core import _fast
from ...core.checks import require
from ...core.evaluation import Prediction
from ...core.fields import check_fields
from ...core.jumps import Rows, jump, unmask
from ...core.memory import Memory
from ...core.noise import Noise
from ...core.processes import Process
from ...core.reverse import Reverse
from ...core.times import Times, at, column

POSITIONS = "Positions that a sweep redraws"


class Corrector(ABC):
    """A sweep that changes samples at one time, and leaves the law that they should have there, or nearly."""

    k: int
    evaluations: ClassVar[int] = 1
    """Network evaluations per sweep."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, process: Process, length: int) -> None:
        """Raise ``ValueError`` if this corrector makes no sense for `process` and sequences of `length`."""
        require(self.k <= length, "k", self.k, f"the model has {length} positions; give at most as many")

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], noise: Noise) -> Memory:
        """Memory for the first sweep."""
        return ()

    @abstractmethod
    def sweep(
        self, reverse: Reverse, x: Int64[Tensor, "b d"], t: Times, noise: Noise, memory: Memory
    ) -> tuple[Int64[Tensor, "b d"], Memory]:
        """The samples after one sweep at time t. Only positions in ``reverse.free`` may change."""


def redraw(
    process: Process,
    x: Int64[Tensor, "b d"],
    chosen: Bool[Tensor, "b d"],
    prediction: Prediction,
    alpha: Times,
    noise: Noise,
) -> Int64[Tensor, "b d"]:
    """Draw the `chosen` positions from ``p_t(v | others)``, each on its own; alpha is that of t."""
    if process.mask is not None:
        heads, numbers = noise.flip(torch.where(chosen, column(alpha), 0.0))
        return unmask(x.masked_fill(chosen, process.mask), heads, prediction, noise, numbers)
    positions = _fast.indices(chosen)

    def weights(rows: Int64[Tensor, " k"]) -> Tensor:
        return process.noised(prediction.probabilities(rows), at(alpha, rows, x.shape[1]))

    return jump(x, positions, Rows(weights, positions, None, prediction.at_once), noise, False, None)
