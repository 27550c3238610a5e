"""Any solver of masked processes, block by block from left to right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ..core.checks import require, require_count
from ..core.evaluation import Evaluation
from ..core.jumps import Share
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..planners.all import Plan
from ..solvers.base import Memory, Solver, Step, plan_of, require_masked
from .tolerance import Controlled


@dataclass(frozen=True)
class Blocks(Solver):
    """`solver` on the first `length` free positions of a sample, then on the next ones, and so on.

    The steps are shared out evenly over the blocks, the first ones taking what is left over, and each block walks the
    whole grid in its steps; the last block may be shorter. What masks a block has left at its end go in one more
    evaluation. A network that sees time is shown that of the block. With `stop`, a token, a sample ends with the block
    that holds it, unless it was given: free positions of later blocks are filled with it, and cost nothing.
    """

    solver: Solver
    length: int = 8
    stop: int | None = None
    exact_kernels = True

    def __post_init__(self) -> None:
        require_count("length", self.length)
        if not isinstance(self.solver, Solver) or isinstance(self.solver, Blocks | Controlled):
            raise TypeError(f"solver={self.solver!r}: give a solver to run in blocks, as in Blocks(Trapezoidal(), 8)")

    @property
    def evaluations(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.solver.evaluations

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "the solver without blocks")
        self.solver.check(process, length)
        if self.stop is not None:
            require(0 <= self.stop < process.states, "stop", self.stop, f"give a token, 0 to {process.states - 1}")

    def reaches_data(self, process: Process) -> bool:
        return self.solver.reaches_data(process)

    def fewest(self, length: int) -> int:
        return math.ceil(length / self.length)

    def begin(self, x: Tensor, process: Process, times: Tensor, noise: Noise) -> Memory:
        active = process.active(x)
        block = torch.where(active, (active.cumsum(1) - 1) // self.length, -1)
        blocks = torch.ceil(active.sum(1, keepdim=True) / self.length).long()
        steps, most = len(times) - 1, int(blocks.max())
        require(steps >= most, "steps", steps, f"{most} blocks need at least one each; give more, or use larger blocks")
        return {
            "block": block,
            "blocks": blocks,
            "taken": torch.zeros_like(blocks),
            "times": times.to(x.device).expand(len(x), -1),
        }

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        """Samples with as many blocks, and as many positions in the present one, go together."""
        own = plan_of(memory)
        kept: dict[str, Tensor | Evaluation] = {name: own[name] for name in ("block", "blocks", "times")}
        info: dict[str, Share] = {}
        for group in _groups(own):
            stage, inside, stops = group.stage, group.inside, group.stops
            rows = group.rows[(reverse.process.active(x) & inside)[group.rows].any(1)]
            before = {name: value for name, value in memory.items() if name.startswith(group.name)}
            last = stage + 2 == len(stops)
            if not len(rows):
                kept |= {} if last else before
                continue
            part, local = reverse[rows].held(inside[rows]), noise[rows](group.name)
            if stage == 0:
                inner = self.solver.begin(x[rows], part.process, stops, local("begin"))
            else:
                inner = {name.removeprefix(group.name): value[rows] for name, value in before.items()}
            end = float(stops[stage + 1])
            out = self.solver.step(part, x[rows], float(stops[stage]), end, local, inner)
            for name, share in out.info.items():
                info[name] = info.get(name, Share(0, 0)) + share
            moved = self._filled(part, out.x, end, local) if last else out.x
            if not last:
                kept |= {group.name + name: _spread(value, rows, len(x)) for name, value in out.memory.items()}
            x = x.index_copy(0, rows, self._stopped(moved, part.process, inside[rows]))
        return Step(x, {**kept, "taken": own["taken"] + 1}, info)

    def _filled(self, reverse: Reverse, x: Tensor, t: float, noise: Noise) -> Tensor:
        """The end of a block: leftover masks go."""
        left = torch.nonzero(reverse.process.active(x).any(1)).flatten()
        if not len(left):
            return x
        some = reverse[left]
        return x.index_copy(0, left, some.move(x[left], some.evaluate(x[left], t), t, None, noise("fill")[left]))

    def _stopped(self, x: Tensor, process: Process, inside: Bool[Tensor, "b d"]) -> Tensor:
        """Samples whose block is complete, be it before its last step, and holds the stop token, end."""
        if self.stop is None:
            return x
        ended = ((x == self.stop) & inside).any(1) & ~process.active(x).any(1)
        return torch.where(ended.unsqueeze(1) & (x == process.mask), self.stop, x)


@dataclass(frozen=True)
class _Group:
    """Samples whose present blocks are alike."""

    name: str
    rows: Int64[Tensor, " k"]
    inside: Bool[Tensor, "b d"]
    """The present block, of samples with as many blocks."""
    stage: int
    stops: Float64[Tensor, " stops"]


def _groups(own: Plan) -> Iterator[_Group]:
    times, taken = own["times"][0].cpu(), int(own["taken"][0])
    for blocks in torch.unique(own["blocks"]).tolist():
        now, stage, stops = _place(times, taken, blocks)
        inside = own["block"] == now
        # solvers may take samples with equal counts for granted
        positions = inside.sum(1).masked_fill(own["blocks"].squeeze(1) != blocks, 0)
        for size in torch.unique(positions[positions > 0]).tolist():
            rows = torch.nonzero(positions == size).flatten()
            yield _Group(f"{blocks} blocks, {size} positions/", rows, inside, stage, stops)


def _place(times: Tensor, taken: int, blocks: int) -> tuple[int, int, Float64[Tensor, " stops"]]:
    """Which block the next step is in, which of its steps it is, and the times of them all."""
    steps = len(times) - 1
    for block in range(blocks):
        mine = steps // blocks + (block < steps % blocks)
        if taken < mine:
            at = torch.arange(mine + 1) * steps
            low, part = at // mine, (at % mine).to(torch.float64) / mine
            high = (low + 1).clamp(max=steps)
            return block, taken, times[low] + part * (times[high] - times[low])
        taken -= mine
    return blocks, 0, times


def _spread(value: Tensor | Evaluation, rows: Int64[Tensor, " k"], batch: int) -> Tensor | Evaluation:
    """`value` of the samples at `rows` as one of the whole batch; the others' are not used."""
    at = torch.zeros(batch, dtype=torch.int64, device=rows.device)
    return value[at.index_copy(0, rows, torch.arange(len(rows), device=rows.device))]
