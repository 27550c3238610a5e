"""What every solver is: frozen hyper-parameters and one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float64, Int64
from torch import Tensor

from ..jumps import Share
from ..noise import Noise
from ..processes import Process
from ..reverse import Reverse

Memory = dict[str, Tensor]
"""What the next step needs to know: tensors whose first dimension is the batch."""


@dataclass(frozen=True)
class Step:
    """The outcome of one step: new states, memory for the next one, and diagnostics."""

    x: Int64[Tensor, "b d"]
    memory: Memory = field(default_factory=dict)
    info: dict[str, Share] = field(default_factory=dict)


class Solver(ABC):
    """One way to go from time t to time s < t."""

    evaluations: ClassVar[int | None]
    """Network evaluations per step; None: as many as it takes."""

    def check(self, process: Process) -> None:  # noqa: B027
        """Raise ``ValueError`` if this solver makes no sense for `process`."""

    def reaches_data(self, process: Process) -> bool:
        """Whether a step may end at t = 0. Otherwise sampling stops at a positive `delta` and is then finished
        by one exact one-site kernel."""
        return process.mask is None

    def begin(self, x: Int64[Tensor, "b d"], process: Process, times: Float64[Tensor, " times"]) -> Memory:
        """Memory for the first step, from fresh noise `x` and the whole grid."""
        return {}

    @abstractmethod
    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        """Go from time `t` to time `s`."""


def require_masked(solver: Solver, process: Process, instead: str) -> int:
    """The mask of `process`, or an error naming a solver to use `instead`."""
    if process.mask is None:
        name = type(solver).__name__
        raise ValueError(
            f"solver={name} on process={type(process).__name__}: {name} unmasks sites and needs a Masked process; "
            f"use {instead} here"
        )
    return process.mask
