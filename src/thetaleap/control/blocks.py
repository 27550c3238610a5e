"""Any solver of masked processes, block by block from left to right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.checks import is_whole, require, require_kind
from ..core.evaluation import Denoiser
from ..core.fields import check_fields, knob
from ..core.memory import Memory
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.wrapped import own_block, own_blocks
from ..solvers.base import Solver, require_masked
from .base import Control, Method, Preset, Turn, Walk, control_of


@dataclass(frozen=True)
class Blocks(Control):
    """`solver` on the first `length` free positions of a sample, then on the next ones, and so on.

    The steps are shared out evenly over the blocks, the first ones taking what is left over, and each block walks the
    whole grid in its steps; the last block may be shorter. Masks that are left at the end of a block are drawn in one
    more evaluation. A network that sees time is shown that of the block. With `stop`, a token, a sample ends with the
    block that holds it, unless it was given: free positions of later blocks are filled with it, and cost nothing.

    Where a model has blocks of its own, these are they: they count what is given, so that the first one may be shorter.
    """

    solver: Any
    """A `Solver`, or a preset that stands for one."""
    length: int = knob(8, "Free positions of a block", least=1)
    stop: int | None = knob(None, "The token that ends a sample with its block")

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.stop is None or is_whole(self.stop), "stop", self.stop, "give a token, by its number")
        if isinstance(self.solver, Preset):
            led = control_of(self.solver)
            require(isinstance(led, Walk), "solver", self.solver, "it has blocks already; leave out one of them")
            object.__setattr__(self, "solver", led.solver)
        require_kind("solver", self.solver, Solver, "give a solver to run in blocks, as in Blocks(Trapezoidal(), 8)")

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "the solver without blocks")
        self.solver.check(process, length)
        if self.stop is not None:
            require(0 <= self.stop < process.states, "stop", self.stop, f"give a token, 0 to {process.states - 1}")

    def fewest(self, length: int) -> int:
        return math.ceil(length / self.length)

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], times: Float64[Tensor, " times"]) -> Memory:
        active, own = reverse.active(x), own_blocks(reverse.model, reverse.samples)
        if own is None:
            first = active & ((active.cumsum(1) - 1) % self.length == 0)
        else:
            seen = torch.where(active, own, -1).cummax(1).values
            first = active & (own > torch.nn.functional.pad(seen[:, :-1], (1, 0), value=-1))
        block, blocks = torch.where(active, first.cumsum(1) - 1, -1), first.sum(1)
        steps, most = len(times) - 1, int(blocks.max())
        require(steps >= most, "steps", steps, f"{most} blocks need at least one each; give more, or use larger blocks")
        return block, blocks

    def next(
        self, n: int, reverse: Reverse, x: Int64[Tensor, "b d"], times: Tensor, memory: Memory, noise: Noise
    ) -> Turn:
        block, blocks = memory
        kinds, kind = torch.unique(blocks, return_inverse=True)
        step, part = divmod(n, self.solver.parts)
        places = [_place(times, step, count) for count in kinds.tolist()]
        # as long for all samples and blocks, whose memories stand in one table
        stops = torch.stack([_lengthened(place.stops, len(times)) for place in places])[kind.cpu()]
        stage = torch.tensor([place.stage for place in places])[kind.cpu()]
        ends = part + 1 == self.solver.parts
        last = torch.tensor([ends and place.stage + 2 == len(place.stops) for place in places], device=x.device)[kind]
        now = torch.tensor([place.block for place in places], device=x.device)[kind]
        each = torch.arange(len(x))
        t, s = (stops[each, stage + later].to(x.device) for later in (0, 1))
        inside = reverse.within(block == now.unsqueeze(1), stops[:, 0])
        opens = ((stage == 0) & (part == 0)).to(x.device)
        return Turn(
            inside, t, s, memory, opens if bool(opens.any()) else None, stops, last if bool(last.any()) else None
        )

    def close(self, reverse: Reverse, x: Int64[Tensor, "b d"]) -> Int64[Tensor, "b d"]:
        """Samples whose block is complete, be it before its last step, and holds the stop token, end."""
        if self.stop is None:
            return x
        ended = ((x == self.stop) & reverse.free).any(1) & ~reverse.active(x).any(1)
        return torch.where(ended.unsqueeze(1) & (x == reverse.process.mask), self.stop, x)


def in_blocks(model: Denoiser, method: Method) -> Method:
    """`method` in the blocks of the model, where it has blocks of its own, which it was trained to write one by one."""
    own = own_block(model)
    if own is None or not isinstance(method, Method):
        return method
    control = control_of(method)
    if isinstance(control, Walk):
        return Blocks(control.solver, own)
    remedy = f"this model writes block by block, {own} positions each; give the solver alone, or Blocks(solver, {own})"
    require(isinstance(control, Blocks) and control.length == own, "solver", method, remedy)
    return method


@dataclass(frozen=True)
class _Place:
    """Where a step is: its block, which of the block's steps it is, and the times of them all."""

    block: int
    stage: int
    stops: Float64[Tensor, " stops"]


def _place(times: Tensor, taken: int, blocks: int) -> _Place:
    steps = len(times) - 1
    for block in range(blocks):
        mine = steps // blocks + (block < steps % blocks)
        if taken < mine:
            at = torch.arange(mine + 1) * steps
            low, part = at // mine, (at % mine).to(torch.float64) / mine
            high = (low + 1).clamp(max=steps)
            return _Place(block, taken, times[low] + part * (times[high] - times[low]))
        taken -= mine
    return _Place(blocks, 0, times)


def _lengthened(stops: Float64[Tensor, " m"], longest: int) -> Float64[Tensor, " longest"]:
    """`stops` with the last one repeated."""
    return torch.cat([stops, stops[-1:].expand(longest - len(stops))])
