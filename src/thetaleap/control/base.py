"""What every controller is: it says what each sample does next, and the loop does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ..core.fields import check_fields
from ..core.jumps import Share
from ..core.memory import Memory
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..solvers.base import Solver


@dataclass(frozen=True)
class Turn:
    """What the samples of a batch do in one round: a step of the solver from t to s."""

    reverse: Reverse
    """The process, with the window that each sample may write in; maybe with an evaluation that is there already."""
    t: Float64[Tensor, " b"]
    s: Float64[Tensor, " b"]
    memory: Memory = ()
    """The controller's, for the next round."""
    opens: Bool[Tensor, " b"] | None = None
    """Samples whose window is new, so that the solver begins there; None if there are none."""
    stops: Float64[Tensor, "#b m"] | None = None
    """All times of the window, where it is new; those of samples with fewer end with repetitions."""
    closes: Bool[Tensor, " b"] | None = None
    """Samples whose window ends with this step: noise that is left there is drawn; None if there are none."""
    info: dict[str, Share] = field(default_factory=dict)


class Control(ABC):
    """A solver, and how it is led from noise to data."""

    solver: Solver

    @property
    def name(self) -> str:
        """What errors call it."""
        return type(self).__name__

    @property
    def evaluations(self) -> int | None:
        """Per step; None: as many as it takes."""
        return self.solver.evaluations

    def cost(self, steps: int) -> int:
        """The most evaluations that so many steps take of a sample, without the finish, where that is known."""
        return self.solver.cost(steps)

    @property
    def exact_kernels(self) -> bool:
        return self.solver.exact_kernels

    def check(self, process: Process, length: int) -> None:
        """Raise ``ValueError`` if this makes no sense for `process` and sequences of `length`."""
        self.solver.check(process, length)

    def reaches_data(self, process: Process) -> bool:
        """Whether a step may end at t = 0."""
        return self.solver.reaches_data(process)

    def fewest(self, length: int) -> int:
        """The fewest steps that make sense: one for each window that is run, and finished, on its own."""
        return 1

    def rounds(self, times: Float64[Tensor, " times"], length: int) -> int:
        """The most rounds that a sample takes along `times`."""
        return (len(times) - 1) * self.solver.parts

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], times: Float64[Tensor, " times"]) -> Memory:
        """The controller's memory, before the first round."""
        return ()

    def stepping(
        self, reverse: Reverse, x: Int64[Tensor, "b d"], times: Float64[Tensor, " times"]
    ) -> Int64[Tensor, " k"] | None:
        """Rows that have not come to the end of `times`; None if that is all of them."""
        return None

    @abstractmethod
    def next(
        self, n: int, reverse: Reverse, x: Int64[Tensor, "b d"], times: Tensor, memory: Memory, noise: Noise
    ) -> Turn:
        """Round `n` of samples that are not finished."""

    def close(self, reverse: Reverse, x: Int64[Tensor, "b d"]) -> Int64[Tensor, "b d"]:
        """What a controller adds after a round of `reverse`."""
        return x


@dataclass(frozen=True)
class Walk(Control):
    """All samples step along the grid together."""

    solver: Solver

    @property
    def name(self) -> str:
        return type(self.solver).__name__

    def next(
        self, n: int, reverse: Reverse, x: Int64[Tensor, "b d"], times: Tensor, memory: Memory, noise: Noise
    ) -> Turn:
        step = n // self.solver.parts
        t, s = times[step].expand(x.shape[0]), times[step + 1].expand(x.shape[0])
        if n:
            return Turn(reverse, t, s)
        everyone = torch.ones((), dtype=torch.bool, device=x.device).expand(len(x))
        return Turn(reverse, t, s, opens=everyone, stops=times.unsqueeze(0))


class Preset(ABC):
    """A method under the name and with the knobs that people know it by."""

    evaluations: ClassVar[int | None] = 1
    processes: ClassVar[str] = "masked"
    when: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    @abstractmethod
    def method(self) -> Method:
        """What it stands for."""


Method = Solver | Control | Preset
"""What `sample` takes: a solver, or one that is led by a controller of its own."""


def control_of(method: Method) -> Control:
    """How `method` is led: along the grid, unless it says otherwise."""
    if isinstance(method, Preset):
        return control_of(method.method)
    return method if isinstance(method, Control) else Walk(method)
