"""Planners, for masked processes: which positions go in a step, and how many.

For a masked model with exact conditionals the only error of a step is that positions unmasked together are drawn
independently of each other. So it matters which go together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ..core.checks import require, require_choice, require_number
from ..core.evaluation import Evaluation, Prediction
from ..core.jumps import move, unmask
from ..core.noise import Noise, largest, where
from ..core.processes import Process

Plan = Mapping[str, Tensor]
"""What a planner remembers, of every sample; the first dimension is the batch."""


@dataclass(frozen=True)
class Pace:
    """How many positions go `now`, and went `before`, in one unit; of k that go together each has ``k - alone`` others:
    1 where k is a number of positions, 0 where it is the probability with which each goes on its own."""

    now: Float64[Tensor, " b"]
    before: Float64[Tensor, " b"]
    alone: float


class Planner(ABC):
    """Decides who goes. `stops` are the times between which positions move: the grid's, and those of inner stages."""

    finishes: ClassVar[bool] = True
    """Whether no mask is left when the last stop is time 0."""

    def check(self, length: int) -> None:  # noqa: B027
        """Raise ``ValueError`` if this planner does not fit sequences of `length`."""

    def begin(self, x: Tensor, process: Process, stops: Float64[Tensor, " m"], noise: Noise) -> Plan:
        """The plan for fresh noise `x`."""
        return {}

    def idle(self, plan: Plan) -> Bool[Tensor, " b"] | None:
        """Samples of which no position goes next; None if there are none such."""
        return None

    @abstractmethod
    def pace(self, process: Process, x: Tensor, earlier: Evaluation, t: float, s: float, plan: Plan) -> Pace | None:
        """How many positions go now and went since `earlier`; None if only the conditionals tell."""

    @abstractmethod
    def move(
        self, process: Process, x: Tensor, prediction: Prediction, t: float, s: float, noise: Noise, plan: Plan
    ) -> Int64[Tensor, "b d"]:
        """Unmask the positions that go between t and s."""

    def rest(self, plan: Plan) -> Plan:
        """The plan after a move."""
        return plan


@dataclass(frozen=True)
class Bernoulli(Planner):
    """The law of the process itself: each position goes with probability ``(alpha_s - alpha_t)/(1 - alpha_t)``.

    That is to say, when ``1 - alpha`` has come down to a level that is uniform below where it starts. The levels are
    drawn once for a run, so that the same seed sends the positions in the same order whatever the grid.
    """

    def begin(self, x: Tensor, process: Process, stops: Float64[Tensor, " m"], noise: Noise) -> Plan:
        start = 1 - float(process.schedule.alpha(stops[0]))
        if process.mask is None or start == 0:  # no room below for levels: what is masked there goes surely
            return {}
        return {name: (1 - places) * start for name, places in _kept("level", noise, x).items()}

    def pace(self, process: Process, x: Tensor, earlier: Evaluation, t: float, s: float, plan: Plan) -> Pace:
        alpha = process.schedule.alpha
        ones = torch.ones(len(x), dtype=torch.float64, device=x.device)
        return Pace(ones * (alpha(s) - alpha(t)), ones * (alpha(t) - alpha(earlier.t)), alone=0.0)

    def move(
        self, process: Process, x: Tensor, prediction: Prediction, t: float, s: float, noise: Noise, plan: Plan
    ) -> Int64[Tensor, "b d"]:
        alpha_t, alpha_s = process.schedule.alpha(t), process.schedule.alpha(s)
        level = plan.get("level")
        if level is None:
            return move(process, x, prediction, alpha_t, alpha_s, noise)
        positions, numbers = _due(process.active(x), level, 1 - float(alpha_t), 1 - float(alpha_s))
        return unmask(x, positions, prediction, noise, numbers)


def _due(
    active: Bool[Tensor, "b d"], level: Float64[Tensor, "b d"], high: float, low: float
) -> tuple[Int64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Flat indices of the `active` positions whose level is above `low`, and where each is between `high`, 0, and
    `low`, 1: uniform again, to choose by."""
    if level.is_cpu:  # numpy takes a third of the time
        levels = level.numpy()
        positions = (active.numpy() & (levels > low)).ravel().nonzero()[0]
        return torch.from_numpy(positions), torch.from_numpy((high - levels.ravel()[positions]) / (high - low))
    positions = where(active & (level > low))
    return positions, (high - level.flatten()[positions]) / (high - low)


class Counting(Planner):
    """A planner that fixes beforehand how many positions go in each move: column n of ``plan["counts"]``."""

    def begin(self, x: Tensor, process: Process, stops: Float64[Tensor, " m"], noise: Noise) -> Plan:
        return {"counts": self.counts(process.active(x), process, stops)}

    def counts(self, active: Bool[Tensor, "b d"], process: Process, stops: Tensor) -> Int64[Tensor, "b moves"]:
        """As many as the process would unmask on average, rounded: left at time s are ``n (1-alpha_s)/(1-alpha_T)``."""
        noised = 1 - process.schedule.alpha(stops)
        left = torch.round(active.sum(1, keepdim=True) * (noised / noised[0]).to(active.device)).long()
        return left[:, :-1] - left[:, 1:]

    def allowed(self, process: Process, x: Tensor, plan: Plan) -> Bool[Tensor, "b d"]:
        """Positions that may go next."""
        return process.active(x)

    def idle(self, plan: Plan) -> Bool[Tensor, " b"] | None:
        none = plan["counts"][:, 0] == 0
        return none if bool(none.any()) else None

    def pace(self, process: Process, x: Tensor, earlier: Evaluation, t: float, s: float, plan: Plan) -> Pace:
        gone = process.active(earlier.x).sum(1) - process.active(x).sum(1)
        return Pace(plan["counts"][:, 0].double(), gone.double(), alone=1.0)

    def move(
        self, process: Process, x: Tensor, prediction: Prediction, t: float, s: float, noise: Noise, plan: Plan
    ) -> Int64[Tensor, "b d"]:
        return self.go(x, prediction, self.allowed(process, x, plan), plan["counts"][:, 0], noise, plan)

    def rest(self, plan: Plan) -> Plan:
        return {**plan, "counts": plan["counts"][:, 1:]}

    @abstractmethod
    def go(self, x: Tensor, prediction: Prediction, allowed: Tensor, count: Tensor, noise: Noise, plan: Plan) -> Tensor:
        """Unmask `count` of the `allowed` positions of each sample."""


@dataclass(frozen=True)
class FixedCount(Counting):
    """As many positions as the process unmasks on average, chosen uniformly: in an order that is drawn once for a
    run."""

    def begin(self, x: Tensor, process: Process, stops: Float64[Tensor, " m"], noise: Noise) -> Plan:
        return {**super().begin(x, process, stops, noise), **_kept("order", noise, x), **_kept("value", noise, x)}

    def go(self, x: Tensor, prediction: Prediction, allowed: Tensor, count: Tensor, noise: Noise, plan: Plan) -> Tensor:
        order = plan.get("order")
        keep = noise("which").pick(allowed, count) if order is None else largest(order, count, allowed)
        return _reveal(x, prediction, keep, noise, plan)


@dataclass(frozen=True)
class LowDiscrepancy(Counting):
    """As many, in an order that keeps positions drawn together far apart: van der Corput's along a line, Halton's on a
    grid of `shape` (height, width) in row-major order; shifted at random, around the ends, for each sample."""

    shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.shape is not None:
            good = len(self.shape) == 2 and all(isinstance(n, int) and n > 0 for n in self.shape)
            require(good, "shape", self.shape, "give (height, width), both at least 1")

    def check(self, length: int) -> None:
        if self.shape is not None:
            size = self.shape[0] * self.shape[1]
            require(size == length, "shape", self.shape, f"has {size} positions, but the model has {length}")

    def begin(self, x: Tensor, process: Process, stops: Float64[Tensor, " m"], noise: Noise) -> Plan:
        batch, (height, width) = len(x), self.shape or (1, x.shape[1])
        rank = _visits(height, width).to(x.device)
        each = torch.arange(batch, device=x.device)
        shift = [_any_of(noise(f"shift {n}"), each, size) for n, size in enumerate((height, width))]
        row = (torch.arange(height, device=x.device) - shift[0].unsqueeze(1)) % height
        column = (torch.arange(width, device=x.device) - shift[1].unsqueeze(1)) % width
        shifted = rank[row.unsqueeze(2), column.unsqueeze(1)].flatten(1)
        return {**super().begin(x, process, stops, noise), "order": -shifted.double(), **_kept("value", noise, x)}

    def go(self, x: Tensor, prediction: Prediction, allowed: Tensor, count: Tensor, noise: Noise, plan: Plan) -> Tensor:
        return _reveal(x, prediction, largest(plan["order"], count, allowed), noise, plan)


def _any_of(noise: Noise, each: Tensor, size: int) -> Int64[Tensor, " b"]:
    """A number below `size` for each sample."""
    flat = torch.full((1, size), 1 / size, dtype=torch.float64, device=each.device)
    return noise.choose(each, 1, flat, stay=False, which=torch.zeros_like(each))


def _visits(height: int, width: int) -> Int64[Tensor, "height width"]:
    """When each cell is first visited by the van der Corput (height 1) or Halton sequence."""
    along, down = (2, 3) if height > 1 else (2, 1)
    rank: dict[tuple[int, int], int] = {}
    for n in range(16 * height * width):
        cell = int(_mirrored(n, down) * height), int(_mirrored(n, along) * width)
        rank.setdefault(cell, len(rank))
    for row in range(height):  # cells that the sequence has not come to
        for column in range(width):
            rank.setdefault((row, column), len(rank))
    table = torch.empty((height, width), dtype=torch.int64)
    for (row, column), n in rank.items():
        table[row, column] = n
    return table


def _mirrored(n: int, base: int) -> float:
    """The digits of n in `base`, mirrored at the point (van der Corput's radical inverse)."""
    value, scale = 0.0, 1.0
    while n and base > 1:
        n, digit = divmod(n, base)
        scale /= base
        value += digit * scale
    return value


@dataclass(frozen=True)
class Confidence(Counting):
    """Draw all masked positions, and keep the surest: by ``log p + randomness * gumbel * (1 - progress)``.

    `schedule` "process" unmasks as many as the process on average, "arccos" is MaskGIT's.
    """

    randomness: float = 0.0
    schedule: Literal["process", "arccos"] = "process"

    def __post_init__(self) -> None:
        require_number("randomness", self.randomness, 0, math.inf, closed="low")
        require_choice("schedule", self.schedule, ("process", "arccos"))

    def counts(self, active: Bool[Tensor, "b d"], process: Process, stops: Tensor) -> Int64[Tensor, "b moves"]:
        if self.schedule == "process":
            return super().counts(active, process, stops)
        return _arccos_counts(active.sum(1), len(stops) - 1)

    def begin(self, x: Tensor, process: Process, stops: Float64[Tensor, " m"], noise: Noise) -> Plan:
        moves = len(stops) - 1
        progress = torch.arange(1, moves + 1, dtype=torch.float64, device=x.device) / moves
        heat = (self.randomness * (1 - progress)).expand(len(x), -1)
        return {**super().begin(x, process, stops, noise), "heat": heat}

    def rest(self, plan: Plan) -> Plan:
        return {**super().rest(plan), "heat": plan["heat"][:, 1:]}

    def go(self, x: Tensor, prediction: Prediction, allowed: Tensor, count: Tensor, noise: Noise, plan: Plan) -> Tensor:
        positions = torch.nonzero(allowed.flatten()).flatten()
        drawn, log_p = x.flatten().clone(), torch.full(x.shape, -math.inf, dtype=torch.float64, device=x.device)
        for some in positions.split(prediction.at_once):
            c = prediction.probabilities(some)
            values = noise("value").choose(some, x.shape[1], c, stay=False)
            drawn[some] = values
            log_p.view(-1)[some] = c.gather(1, values.unsqueeze(1)).squeeze(1).log()
        heat = float(plan["heat"][0, 0])
        # equal confidences may differ in their last bits from one machine to another; the first position goes first
        keep = noise("keep").pick(log_p / heat, count) if heat else largest(log_p.round(decimals=9), count)
        return torch.where(keep, drawn.view_as(x), x)


@dataclass(frozen=True)
class EntropyBounded(Planner):
    """The surest positions, as many as stay within a bound on what they may know of each other: in order of entropy, as
    long as the entropies of all but the last sum to at most `gamma` nats; at least one (Ben-Hamu et al. 2025).

    What is left at the end of the grid goes in the finish.
    """

    gamma: float = 0.1
    finishes = False

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma, 0, math.inf, closed="low")

    def pace(self, process: Process, x: Tensor, earlier: Evaluation, t: float, s: float, plan: Plan) -> None:
        return None

    def move(
        self, process: Process, x: Tensor, prediction: Prediction, t: float, s: float, noise: Noise, plan: Plan
    ) -> Int64[Tensor, "b d"]:
        active = process.active(x)
        positions = torch.nonzero(active.flatten()).flatten()
        entropy = torch.full(x.shape, math.inf, dtype=torch.float64, device=x.device)
        for some in positions.split(prediction.at_once):
            c = prediction.probabilities(some)
            entropy.view(-1)[some] = -torch.xlogy(c, c).sum(1)
        order = entropy.sort(1).values
        before = order.nan_to_num(posinf=0.0).cumsum(1) - order  # of all surer positions; minus infinity past the last
        count = ((before <= self.gamma) & torch.isfinite(order)).sum(1)
        keep = largest(-entropy, torch.maximum(count, active.any(1).long()))
        return _reveal(x, prediction, keep & active, noise, plan)


@dataclass(frozen=True)
class InBlocks(Counting):
    """Another planner's choice, within blocks of `length` positions from left to right; None is one block.

    The moves are shared out evenly over the blocks, and the positions of a block over its moves, the first ones taking
    what is left over. The last block may be shorter.
    """

    inner: FixedCount | Confidence
    length: int | None = None

    def counts(self, active: Bool[Tensor, "b d"], process: Process, stops: Tensor) -> Int64[Tensor, "b moves"]:
        size, moves = self.length or active.shape[1], len(stops) - 1
        blocks = math.ceil(active.shape[1] / size)
        require(moves >= blocks, "steps", moves, f"{blocks} blocks need at least one each; use larger blocks")
        padded = torch.nn.functional.pad(active, (0, blocks * size - active.shape[1]))
        positions = padded.view(len(active), blocks, size).sum(2)
        share = self._share(active.shape[1], moves)
        return torch.cat([_even_counts(positions[:, n], share[n]) for n in range(blocks)], 1)

    def _share(self, length: int, moves: int) -> list[int]:
        blocks = math.ceil(length / (self.length or length))
        return [moves // blocks + (n < moves % blocks) for n in range(blocks)]

    def begin(self, x: Tensor, process: Process, stops: Float64[Tensor, " m"], noise: Noise) -> Plan:
        own = super().begin(x, process, stops, noise)
        share = self._share(x.shape[1], len(stops) - 1)
        block = torch.repeat_interleave(torch.arange(len(share)), torch.tensor(share)).to(x.device)
        return {**self.inner.begin(x, process, stops, noise), **own, "block": block.expand(len(x), -1)}

    def allowed(self, process: Process, x: Tensor, plan: Plan) -> Bool[Tensor, "b d"]:
        which = torch.arange(x.shape[1], device=x.device) // (self.length or x.shape[1])
        return process.active(x) & (which == plan["block"][:, :1])

    def rest(self, plan: Plan) -> Plan:
        return {**self.inner.rest(plan), "block": plan["block"][:, 1:]}

    def go(self, x: Tensor, prediction: Prediction, allowed: Tensor, count: Tensor, noise: Noise, plan: Plan) -> Tensor:
        return self.inner.go(x, prediction, allowed, count, noise, plan)


def _kept(name: str, noise: Noise, x: Tensor) -> Plan:
    """Numbers of the positions of `x` for the whole run, to go into the plan; nothing if there are none."""
    places = noise(name).places(x.shape[1])
    return {} if places is None else {name: places}


def _reveal(
    x: Tensor, prediction: Prediction, keep: Bool[Tensor, "b d"], noise: Noise, plan: Plan
) -> Int64[Tensor, "b d"]:
    """Draw the positions `keep` from their conditionals, each on its own."""
    positions, value = where(keep), plan.get("value")
    return unmask(x, positions, prediction, noise("value"), None if value is None else value.flatten()[positions])


def _even_counts(positions: Tensor, moves: int) -> Int64[Tensor, "b moves"]:
    """`positions` of each sample shared out evenly, the first moves taking the remainder."""
    first = torch.arange(moves, device=positions.device) < (positions % moves).unsqueeze(1)
    return (positions // moves).unsqueeze(1) + first.long()


def _arccos_counts(positions: Tensor, moves: int) -> Int64[Tensor, "b moves"]:
    """Proportional to arccos, rounded, at least one while `positions` last; the last move takes the rest."""
    weight = torch.arccos(torch.linspace(1, 0, moves, dtype=torch.float64, device=positions.device))
    share = weight / weight.sum().clamp_min(1e-300)
    wanted = torch.round(share * positions.unsqueeze(1)).clamp_min(1).long()
    total = torch.minimum(wanted.cumsum(1), positions.unsqueeze(1))
    total[:, -1] = positions
    return torch.diff(total, dim=1, prepend=torch.zeros_like(total[:, :1]))
