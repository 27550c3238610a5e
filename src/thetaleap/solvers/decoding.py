"""Order-based decoders: a fixed number of positions per step, the most confident first. One evaluation per step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core.checks import require_choice, require_count, require_number
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..planners.all import Confidence, FixedCount, InBlocks
from .base import Memory, Solver, Step, require_masked
from .tweedie import planned_step


@dataclass(frozen=True)
class ParallelDecoding(Solver):
    """Draw every masked position, keep the surest (MaskGIT, Chang et al. 2022).

    Confidence is ``log p + randomness * gumbel * (1 - progress)``; the number kept in step n of N is proportional to
    ``arccos(1 - n/(N-1))``, at least one while positions are left.
    """

    randomness: float = 4.5
    evaluations = 1

    def __post_init__(self) -> None:
        require_number("randomness", self.randomness, 0, math.inf, closed="low")

    @property
    def planner(self) -> Confidence:
        """Which positions go."""
        return Confidence(self.randomness, schedule="arccos")

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "Tweedie() or Trapezoidal()")

    def reaches_data(self, process: Process) -> bool:
        return True

    def begin(self, x: Tensor, process: Process, times: Tensor, noise: Noise) -> Memory:
        return self.planner.begin(x, process, times, noise)

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        return planned_step(self.planner, reverse, x, t, s, noise, memory)


@dataclass(frozen=True)
class SemiAutoregressive(Solver):
    """Blocks from left to right; within a block a fixed number of positions per step (LLaDA, Nie et al. 2025).

    The steps are shared out evenly over the blocks, and the positions of a block over its steps, the first ones
    taking what is left over. `order` "confidence" draws all masked positions of the block and keeps the surest;
    "random" keeps a uniform subset. `block_length` None is one block; the last block may be shorter.
    """

    order: Literal["confidence", "random"] = "confidence"
    block_length: int | None = None
    evaluations = 1

    def __post_init__(self) -> None:
        require_choice("order", self.order, ("confidence", "random"))
        if self.block_length is not None:
            require_count("block_length", self.block_length)

    @property
    def planner(self) -> InBlocks:
        """Which positions go."""
        return InBlocks(Confidence() if self.order == "confidence" else FixedCount(), self.block_length)

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "Tweedie() or Trapezoidal()")

    def reaches_data(self, process: Process) -> bool:
        return True

    def begin(self, x: Tensor, process: Process, times: Tensor, noise: Noise) -> Memory:
        return self.planner.begin(x, process, times, noise)

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        return planned_step(self.planner, reverse, x, t, s, noise, memory)
