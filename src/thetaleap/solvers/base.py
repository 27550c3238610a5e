"""What every solver is: frozen hyper-parameters and one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.evaluation import Evaluation
from ..core.jumps import Share
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..planners.all import Bernoulli, Plan, Planner

Memory = Mapping[str, Tensor | Evaluation]
"""What the next step needs to know, of every sample: tensors whose first dimension is the batch, and past looks."""


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

    exact_kernels: ClassVar[bool] = False
    """Whether positions move by exact kernels, so that a step to time 0 draws from the conditionals themselves."""

    def check(self, process: Process, length: int) -> None:  # noqa: B027
        """Raise ``ValueError`` if this solver makes no sense for `process` and sequences of `length`."""

    def reaches_data(self, process: Process) -> bool:
        """Whether a step may end at t = 0. Otherwise sampling stops at a positive `delta` and is then finished
        by one exact one-position kernel."""
        return process.mask is None

    def fewest(self, length: int) -> int:
        """The fewest steps that make sense: one for each part of a sequence that is run, and finished, on its own."""
        return 1

    def begin(
        self, x: Int64[Tensor, "b d"], process: Process, times: Float64[Tensor, " times"], noise: Noise
    ) -> Memory:
        """Memory for the first step, from fresh noise `x` and the whole grid."""
        return {}

    @abstractmethod
    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        """Go from time `t` to time `s`."""


def check_planner(planner: Planner, process: Process, length: int) -> None:
    """Raise ``ValueError`` if `planner` does not fit."""
    if process.mask is None and not isinstance(planner, Bernoulli):
        raise ValueError(
            f"planner={planner!r} on process={type(process).__name__}: planners say which masks go, and here are none; "
            "leave it out"
        )
    planner.check(length)


def require_masked(solver: Solver, process: Process, instead: str) -> int:
    """The mask of `process`, or an error naming a solver to use `instead`."""
    if process.mask is None:
        name = type(solver).__name__
        raise ValueError(
            f"solver={name} on process={type(process).__name__}: {name} unmasks positions and needs a Masked process; "
            f"use {instead} here"
        )
    return process.mask


def plan_of(memory: Memory) -> Plan:
    """The planner's part of `memory`: all that is not a look."""
    return {name: value for name, value in memory.items() if isinstance(value, Tensor)}
