"""Order-based decoders: a fixed number of sites per step, the most confident first. One evaluation per step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..checks import require, require_choice, require_count, require_number
from ..noise import Noise, largest
from ..processes import Process
from ..reverse import Reverse
from .base import Memory, Solver, Step, require_masked


@dataclass(frozen=True)
class ParallelDecoding(Solver):
    """Draw every masked site, keep the surest (MaskGIT, Chang et al. 2022).

    Confidence is ``log p + randomness * gumbel * (1 - progress)``; the number kept in step n of N is proportional to
    ``arccos(1 - n/(N-1))``, at least one while sites are left.
    """

    randomness: float = 4.5
    evaluations = 1

    def __post_init__(self) -> None:
        require_number("randomness", self.randomness, 0, math.inf, closed="low")

    def check(self, process: Process) -> None:
        require_masked(self, process, "Tweedie() or Trapezoidal()")

    def reaches_data(self, process: Process) -> bool:
        return True

    def begin(self, x: Tensor, process: Process, times: Tensor) -> Memory:
        steps = len(times) - 1
        progress = torch.arange(1, steps + 1, dtype=torch.float64, device=x.device) / steps
        counts = _arccos_counts(process.active(x).sum(1), steps)
        return {"counts": counts, "temperature": (self.randomness * (1 - progress)).expand(len(x), -1)}

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        counts, temperature = memory["counts"], memory["temperature"]
        masked = reverse.process.active(x)
        drawn, log_p = _draw(reverse, x, t, masked, noise)
        heat = float(temperature[0, 0])
        keep = noise("keep").pick(log_p / heat, counts[:, 0]) if heat else largest(log_p, counts[:, 0])
        return Step(torch.where(keep, drawn, x), {"counts": counts[:, 1:], "temperature": temperature[:, 1:]})


@dataclass(frozen=True)
class SemiAutoregressive(Solver):
    """Blocks from left to right; within a block a fixed number of sites per step (LLaDA, Nie et al. 2025).

    The steps are shared out evenly over the blocks, and the sites of a block over its steps, the first ones
    taking what is left over. `order` "confidence" draws all masked sites of the block and keeps the surest;
    "random" keeps a uniform subset. `block_length` None is one block; the last block may be shorter.
    """

    order: Literal["confidence", "random"] = "confidence"
    block_length: int | None = None
    evaluations = 1

    def __post_init__(self) -> None:
        require_choice("order", self.order, ("confidence", "random"))
        if self.block_length is not None:
            require_count("block_length", self.block_length)

    def check(self, process: Process) -> None:
        require_masked(self, process, "Tweedie() or Trapezoidal()")

    def reaches_data(self, process: Process) -> bool:
        return True

    def begin(self, x: Tensor, process: Process, times: Tensor) -> Memory:
        steps, size = len(times) - 1, self.block_length or x.shape[1]
        blocks = math.ceil(x.shape[1] / size)
        require(steps >= blocks, "steps", steps, f"{blocks} blocks need at least one each; use larger blocks")
        left = torch.nn.functional.pad(process.active(x), (0, blocks * size - x.shape[1]))
        sites = left.view(len(x), blocks, size).sum(2)
        share = [steps // blocks + (n < steps % blocks) for n in range(blocks)]
        counts = [_even_counts(sites[:, n], share[n]) for n in range(blocks)]
        block = torch.repeat_interleave(torch.arange(blocks), torch.tensor(share)).to(x.device)
        return {"counts": torch.cat(counts, 1), "block": block.expand(len(x), -1)}

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        rest = {name: value[:, 1:] for name, value in memory.items()}
        count, block, length = memory["counts"][:, 0], memory["block"][:, 0], x.shape[1]
        # a block with more steps than sites spends no evaluation on the steps it does not need
        rows = torch.nonzero(count > 0).flatten()
        if not len(rows):
            return Step(x, rest)
        reverse, noise, part, count = reverse[rows], noise[rows], x[rows], count[rows]
        which = torch.arange(length, device=x.device) // (self.block_length or length)
        inside = reverse.process.active(part) & (which == block[rows].unsqueeze(1))
        if self.order == "random":
            none = torch.full(part.shape, -math.inf, dtype=torch.float64, device=x.device)
            keep = noise("keep").pick(none.masked_fill(inside, 0.0), count)
            drawn, _ = _draw(reverse, part, t, keep, noise)
        else:
            drawn, log_p = _draw(reverse, part, t, inside, noise)
            keep = largest(log_p, count)
        x = x.clone()
        x[rows] = torch.where(keep, drawn, part)
        return Step(x, rest)


def _draw(reverse: Reverse, x: Tensor, t: float, at: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Values drawn at the sites `at` (elsewhere as in x), and their log-probabilities (elsewhere -inf)."""
    sites = torch.nonzero(at.flatten()).flatten()
    c = reverse.look(x, t).probabilities(sites)
    values = noise("value").choose(sites, x.shape[1], c, stay=False)
    drawn, log_p = x.flatten().clone(), torch.full(at.shape, -math.inf, dtype=torch.float64, device=x.device)
    drawn[sites] = values
    log_p.view(-1)[sites] = c.gather(1, values.unsqueeze(1)).squeeze(1).log()
    return drawn.view_as(x), log_p


def _even_counts(sites: Tensor, steps: int) -> Tensor:
    """(b, steps): `sites` of each sample shared out evenly, the first steps taking the remainder."""
    first = torch.arange(steps, device=sites.device) < (sites % steps).unsqueeze(1)
    return (sites // steps).unsqueeze(1) + first.long()


def _arccos_counts(sites: Tensor, steps: int) -> Tensor:
    """(b, steps): proportional to arccos, rounded, at least one while `sites` last; the last step takes the rest."""
    weight = torch.arccos(torch.linspace(1, 0, steps, dtype=torch.float64, device=sites.device))
    share = weight / weight.sum().clamp_min(1e-300)
    wanted = torch.round(share * sites.unsqueeze(1)).clamp_min(1).long()
    total = torch.minimum(wanted.cumsum(1), sites.unsqueeze(1))
    total[:, -1] = sites
    return torch.diff(total, dim=1, prepend=torch.zeros_like(total[:, :1]))
