"""What every planner is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ..core.evaluation import Evaluation, Prediction
from ..core.fields import check_fields
from ..core.memory import Memory
from ..core.noise import Noise
from ..core.reverse import Reverse
from ..core.times import Times

Plan = Memory
"""What a planner remembers, of every sample."""


@dataclass(frozen=True)
class Pace:
    """How many positions are unmasked `now`, and were `before`, in one unit. Of k unmasked together each has
    ``k - alone`` others: 1 where k is a count, 0 where it is the probability with which each is unmasked."""

    now: Tensor
    before: Tensor
    alone: float


class Planner(ABC):
    """Says which masks are unmasked when. What it asks of the noise, it asks in one way for samples and exact laws."""

    finishes: ClassVar[bool] = True
    """Whether no mask is left at time 0."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, length: int) -> None:  # noqa: B027
        """Raise ``ValueError`` if this planner does not fit sequences of `length`."""

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], stops: Float64[Tensor, "#b m"], noise: Noise) -> Plan:
        """The plan for `x`, whose free positions are noise. Moves end at `stops`: the times of the grid, and of
        stages within its steps."""
        return ()

    def left(self, reverse: Reverse, s: Times, plan: Plan) -> int | Int64[Tensor, " b"] | None:
        """How many free positions are to be masked at time s; None if that is not known beforehand."""
        return None

    def waits(self, reverse: Reverse, x: Tensor, s: Times, plan: Plan) -> Bool[Tensor, " b"] | None:
        """Samples of which nothing is unmasked down to time s, whatever the model says; None if that is not known."""
        return None

    def pace(self, reverse: Reverse, x: Tensor, earlier: Evaluation, t: Times, s: Times, plan: Plan) -> Pace | None:
        """How many positions are unmasked now, and were since `earlier`; None if only the conditionals tell."""
        return None

    @abstractmethod
    def move(
        self, reverse: Reverse, x: Tensor, prediction: Prediction, t: Times, s: Times, noise: Noise, plan: Plan
    ) -> tuple[Int64[Tensor, "b d"], Plan]:
        """Unmask what is due between t and s; the samples, and the plan, after that."""
