"""Fixed counts, in an order that does not depend on what the model says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.checks import is_whole, require, require_choice
from ..core.evaluation import Prediction
from ..core.fields import knob
from ..core.jumps import unmask
from ..core.noise import Draw, Noise
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Plan
from .counting import SCHEDULE, Counting, Schedule, dilation

Sequence = Literal["shifted", "published"]
SEQUENCE = "Shifted at random for each sample, or as Halton-MaskGIT's code has it"
SHAPE = "Height and width of the grid that the positions lie on; a line if not given"


class Ordered(Counting):
    """As many positions as fixed beforehand, the next ones of an order. The plan is an agenda and the order."""

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], stops: Float64[Tensor, "#b m"], noise: Noise) -> Plan:
        ranks = self.ranks(reverse, x, noise)
        return self.agenda(reverse, x, stops), noise(Draw.ORDER).order(x.shape[1], ranks)

    def ranks(self, reverse: Reverse, x: Tensor, noise: Noise) -> Int64[Tensor, "b d"] | None:
        """The place of each position in the order; None is uniformly random."""
        return None

    def move(
        self, reverse: Reverse, x: Tensor, prediction: Prediction, t: Times, s: Times, noise: Noise, plan: Plan
    ) -> tuple[Int64[Tensor, "b d"], Plan]:
        agenda, order = plan
        positions, numbers, order = order.next(reverse.active(x), self.count(reverse, x, s, plan), noise)
        return unmask(x, positions, prediction, noise(Draw.VALUE), numbers), (agenda, order)


@dataclass(frozen=True)
class FixedCount(Ordered):
    """As many positions as the process unmasks on average, chosen uniformly: in an order drawn once for a run.

    `schedule` "even" shares them out evenly over the steps instead, whatever their times, and "cosine" so that few are
    unmasked first and many last, as MaskGIT does.
    """

    schedule: Schedule = knob("process", SCHEDULE, choices=("process", "even", "cosine"))  # pyright: ignore[reportIncompatibleVariableOverride]


@dataclass(frozen=True)
class LowDiscrepancy(Ordered):
    """As many, in an order that keeps positions drawn together far apart: van der Corput's along a line, Halton's on
    a grid of `shape` (height, width) in row-major order; shifted at random, around the ends, for each sample.

    `sequence` "published" is the order of Halton-MaskGIT's code (Besnier et al. 2025, arXiv:2503.17076) on a grid, the same
    for all samples: base 2 goes down and base 3 along, and the sequence begins at (1/2, 1/3)."""

    shape: tuple[int, int] | None = knob(None, SHAPE, written="HEIGHTxWIDTH")
    schedule: Schedule = knob("process", SCHEDULE, choices=("process", "even", "cosine"))  # pyright: ignore[reportIncompatibleVariableOverride]

    sequence: Sequence = knob("shifted", SEQUENCE, choices=("shifted", "published"))

    def __post_init__(self) -> None:
        require_choice("sequence", self.sequence, ("shifted", "published"))
        grid = self.shape is not None or self.sequence == "shifted"
        require(grid, "sequence", self.sequence, "is an order on a grid; give its shape too, as in (16, 16)")
        if self.shape is not None:
            sides = self.shape if isinstance(self.shape, tuple | list) else ()
            good = len(sides) == 2 and all(is_whole(side) and side > 0 for side in sides)
            require(good, "shape", self.shape, "give (height, width), both at least 1")

    def check(self, length: int) -> None:
        if self.shape is not None:
            size = self.shape[0] * self.shape[1]
            require(size == length, "shape", self.shape, f"has {size} positions, but the model has {length}")

    def ranks(self, reverse: Reverse, x: Tensor, noise: Noise) -> Int64[Tensor, "b d"]:
        height, width = self.shape or (1, x.shape[1])
        if self.sequence == "published":
            return published_visits(height, width).to(x.device).flatten().expand_as(x)
        rank, each = visits(height, width).to(x.device), torch.arange(len(x), device=x.device)
        down, along = (_any_of(noise(Draw.SHIFT, n), each, size) for n, size in enumerate((height, width)))
        row = (torch.arange(height, device=x.device) - down.unsqueeze(1)) % height
        column = (torch.arange(width, device=x.device) - along.unsqueeze(1)) % width
        return rank[row.unsqueeze(2), column.unsqueeze(1)].flatten(1)


@dataclass(frozen=True)
class Dilated(Ordered):
    """Positions far apart first, then those halfway between, and so on: of n free positions in a row those with
    ``k mod floor(n/2) = 0``, then of the others ``k mod floor(n/4) = 0``, down to neighbours (DUS, Luxembourg et al.
    2025).

    `schedule` "groups", the published one, unmasks one such group in a step: about log2(n) of them are all there are, and
    a budget below takes the rest in its last step. "process" and "even" share positions out over the steps.
    """

    schedule: Schedule = knob("groups", SCHEDULE, choices=("groups", "process", "even"))  # pyright: ignore[reportIncompatibleVariableOverride]

    def ranks(self, reverse: Reverse, x: Tensor, noise: Noise) -> Int64[Tensor, "b d"]:
        free = reverse.active(x)
        place, group = free.cumsum(1) - 1, torch.full_like(x, x.shape[1])
        for room in torch.unique(place[:, -1] + 1).tolist():
            rows = (place[:, -1] + 1 == room).unsqueeze(1) & free
            group[rows] = dilation(room).to(x.device)[place[rows]]
        return torch.argsort(torch.argsort(group, dim=1, stable=True), dim=1)


def _any_of(noise: Noise, each: Tensor, size: int) -> Int64[Tensor, " b"]:
    """A number below `size` for each sample."""
    flat = torch.full((1, size), 1 / size, dtype=torch.float64, device=each.device)
    return noise.choose(each, 1, flat, stay=False, which=torch.zeros_like(each))


@lru_cache(maxsize=16)
def visits(height: int, width: int) -> Int64[Tensor, "height width"]:
    """When each cell is first visited by the van der Corput (height 1) or Halton sequence."""
    from scipy.stats import qmc

    # a sequence that is not scrambled starts at 0; the columns have the bases 2 and 3
    points = torch.from_numpy(qmc.Halton(d=2, scramble=False).random(16 * height * width))
    cells = (points[:, 1] * height).long() * width + (points[:, 0] * width).long()
    if height == 1:
        cells = (points[:, 0] * width).long()
    return _first(cells, height, width)


@lru_cache(maxsize=16)
def published_visits(height: int, width: int) -> Int64[Tensor, "height width"]:
    """When each cell is first visited by the Halton sequence as Halton-MaskGIT's code has it, in 10000 points."""
    numbers = range(1, 10_001)
    cells = [_reversed(n, 2, height) * width + _reversed(n, 3, width) for n in numbers]
    return _first(torch.tensor(cells), height, width)


def _reversed(number: int, base: int, size: int) -> int:
    """Which of `size` equal parts of [0, 1) holds the number with its digits behind the point, in reverse; exactly."""
    above, below = 0, 1
    while number:
        number, digit = divmod(number, base)
        above, below = above * base + digit, below * base
    return above * size // below


def _first(cells: Int64[Tensor, " n"], height: int, width: int) -> Int64[Tensor, "height width"]:
    """The place of each cell in the order of first visits; those that were not visited follow in order."""
    cells = torch.cat([cells, torch.arange(height * width)])
    first = torch.full((height * width,), len(cells)).scatter_reduce(0, cells, torch.arange(len(cells)), "amin")
    return torch.argsort(torch.argsort(first)).view(height, width)
