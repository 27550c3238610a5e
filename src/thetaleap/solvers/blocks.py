"""Any solver of masked processes, block by block from left to right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..checks import require, require_count
from ..denoiser import Look
from ..jumps import Share
from ..noise import Noise
from ..processes import Process
from ..reverse import Reverse
from .base import Memory, Solver, Step, plan_of, require_masked


@dataclass(frozen=True)
class Blocks(Solver):
    """`solver` on the first `length` free sites of a sample, then on the next ones, and so on.

    The steps are shared out evenly over the blocks, the first ones taking what is left over, and each block walks the
    whole grid in its steps; the last block may be shorter. What masks a block has left at its end go in one more
    evaluation. A network that sees time is shown that of the block. With `stop`, a token, a sample ends with the block
    that holds it: what comes after is filled with it, and costs nothing.
    """

    solver: Solver
    length: int = 8
    stop: int | None = None
    exact_kernels = True

    def __post_init__(self) -> None:
        require_count("length", self.length)
        if not isinstance(self.solver, Solver) or isinstance(self.solver, Blocks):
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
        return True

    def fewest(self, length: int) -> int:
        return math.ceil(length / self.length)

    def finishes(self, process: Process, length: int) -> int:
        return 0 if self.solver.reaches_data(process) else self.fewest(length)

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
        """Samples with as many blocks go together."""
        own = plan_of(memory)
        times, taken = own["times"][0].cpu(), int(own["taken"][0])
        kept: dict[str, Tensor | Look] = {name: own[name] for name in ("block", "blocks", "times")}
        info: dict[str, Share] = {}
        for blocks in torch.unique(own["blocks"]).tolist():
            now, stage, stops = _place(times, taken, blocks)
            inside = own["block"] == now
            rows = torch.nonzero((own["blocks"].squeeze(1) == blocks) & (reverse.process.active(x) & inside).any(1))
            rows = rows.flatten()
            if not len(rows):
                continue
            part, local = reverse[rows].held(inside[rows]), noise[rows](f"{blocks} blocks")
            prefix = f"{blocks}/"
            if stage == 0:
                inner = self.solver.begin(x[rows], part.process, stops, local("begin"))
            else:
                names = [name for name in memory if name.startswith(prefix)]
                inner = {name.removeprefix(prefix): memory[name][rows] for name in names}
            start, end = float(stops[stage]), float(stops[stage + 1])
            out = self.solver.step(part, x[rows], start, end, local, inner)
            for name, share in out.info.items():
                info[name] = info.get(name, Share(0, 0)) + share
            moved = out.x
            if stage + 2 == len(stops):
                moved = self._finished(part, moved, end, local)
            else:
                kept |= {prefix + name: _spread(value, rows, len(x)) for name, value in out.memory.items()}
            x = x.index_copy(0, rows, moved)
        return Step(x, {**kept, "taken": own["taken"] + 1}, info)

    def _finished(self, reverse: Reverse, x: Tensor, t: float, noise: Noise) -> Tensor:
        """The end of a block: leftover masks are filled, and samples with the stop token end."""
        left = torch.nonzero(reverse.process.active(x).any(1)).flatten()
        if len(left):
            some = reverse[left]
            filled = some.move(x[left], some.look(x[left], t), t, None, noise("fill")[left])
            x = x.index_copy(0, left, filled)
        if self.stop is None:
            return x
        assert reverse.free is not None
        free = reverse.free if reverse.rows is None else reverse.free[reverse.rows]
        ended = ((x == self.stop) & free).any(1, keepdim=True)
        return torch.where(ended & (x == reverse.process.mask), self.stop, x)


def _place(times: Tensor, taken: int, blocks: int) -> tuple[int, int, Float64[Tensor, " stops"]]:
    """Which block the next step is in, which of its steps it is, and the times of them all."""
    steps = len(times) - 1
    for block in range(blocks):
        mine = steps // blocks + (block < steps % blocks)
        if taken < mine:
            at = torch.linspace(0, steps, mine + 1, dtype=torch.float64)
            low = at.floor().long().clamp(max=steps - 1)
            return block, taken, times[low] + (at - low) * (times[low + 1] - times[low])
        taken -= mine
    return blocks, 0, times


def _spread(value: Tensor | Look, rows: Int64[Tensor, " k"], batch: int) -> Tensor | Look:
    """`value` of the samples at `rows` as one of the whole batch; the others' are not used."""
    at = torch.zeros(batch, dtype=torch.int64, device=rows.device)
    return value[at.index_copy(0, rows, torch.arange(len(rows), device=rows.device))]
