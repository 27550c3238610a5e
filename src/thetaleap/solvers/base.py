"""What every solver is: frozen hyper-parameters and one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ..core.fields import check_fields
from ..core.jumps import Share
from ..core.memory import Memory
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times
from ..planners import Bernoulli, Planner

PLANNER = "Which masked positions are unmasked together"
IS_PLANNER = {"kind": Planner, "written": "a planner with its parameters, as in FixedCount()"}
EXTRAPOLATION = "The form in which conditionals are extrapolated"


@dataclass(frozen=True)
class Step:
    """The outcome of one step: new states, memory for the next one, and diagnostics."""

    x: Int64[Tensor, "b d"]
    memory: Memory = ()
    info: dict[str, Share] = field(default_factory=dict)


class Solver(ABC):
    """One way to go from time t to time s < t, where each sample has its own t and s."""

    evaluations: ClassVar[int | None]
    """Network evaluations per step; None: as many as it takes."""
    parts: ClassVar[int] = 1
    """Rounds that a step takes: `step` is called as often, with the same times. States that are equal between parts are
    one in exact laws."""
    processes: ClassVar[str] = "any"
    """Which processes it is for: "any", "masked" or "without masks"."""
    when: ClassVar[str] = ""
    """When to use it, in a line."""
    exact_kernels: ClassVar[bool] = False
    """Whether positions move by exact kernels, so that a step to time 0 draws from the conditionals themselves."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, process: Process, length: int) -> None:
        """Raise ``ValueError`` if this solver makes no sense for `process` and sequences of `length`."""
        if self.processes == "masked":
            require_masked(self, process, "Tweedie() or Trapezoidal()")

    def cost(self, steps: int) -> int:
        """The most evaluations that so many steps take of a sample, where that is known."""
        return (self.evaluations or 0) * steps

    def reaches_data(self, process: Process) -> bool:
        """Whether a step may end at t = 0. Otherwise sampling stops at a positive `delta` and is then finished
        by one exact one-position kernel."""
        return process.mask is None

    def absorbing(self, process: Process) -> bool:
        """Whether a sample without active positions can change no more. A corrector, which masks again, says no."""
        return process.mask is not None

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], stops: Float64[Tensor, "#b m"], noise: Noise) -> Memory:
        """Memory for the first step, from `x`, whose free positions are noise, and all times of the grid: of each
        sample, or the same for all."""
        return ()

    def waits(self, reverse: Reverse, x: Tensor, t: Times, s: Times, memory: Memory) -> Bool[Tensor, " b"] | None:
        """Samples that a step would not change, whatever the model says, and that need no evaluation; None if there
        are none such."""
        return None

    @abstractmethod
    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        """Go from time `t` to time `s`. Only positions in ``reverse.free`` may change."""


class Planned(Solver):
    """A solver of exact one-position kernels whose `planner` says which masks are unmasked; its plan is the last part
    of the memory."""

    exact_kernels = True

    @abstractmethod
    def planner_for(self, process: Process) -> Planner:
        """The planner on such a process."""

    def check(self, process: Process, length: int) -> None:
        planner = self.planner_for(process)
        if process.mask is None and not isinstance(planner, Bernoulli):
            raise ValueError(
                f"planner={planner!r} on process={type(process).__name__}: planners say which masks are unmasked, and "
                "here are none; leave it out"
            )
        planner.check(length)

    def reaches_data(self, process: Process) -> bool:
        return self.planner_for(process).finishes


def require_masked(solver: object, process: Process, instead: str) -> int:
    """The mask of `process`, or an error naming a solver to use `instead`."""
    if process.mask is None:
        name = type(solver).__name__
        raise ValueError(
            f"solver={name} on process={type(process).__name__}: {name} unmasks positions and needs a Masked process; "
            f"use {instead} here"
        )
    return process.mask
