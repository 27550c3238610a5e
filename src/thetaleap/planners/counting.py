"""Planners that fix beforehand how many positions are unmasked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ..core.evaluation import Evaluation
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times, as_time
from .base import Pace, Plan, Planner

Schedule = Literal["process", "even", "cosine", "arccos", "dream", "groups"]
SCHEDULE = (
    "How many positions are unmasked in each step: by the process, evenly (even), few first and many last (cosine), or by a "
    "method's own rule"
)


@dataclass(frozen=True, eq=False)
class Agenda:
    """How many positions are to be masked at each of the `stops`; what a sample has no stop for is a repeated one."""

    stops: Float64[Tensor, "b m"]
    left: Int64[Tensor, "b m"]

    @staticmethod
    def of(stops: Float64[Tensor, "#b m"], room: Int64[Tensor, " b"], schedule: Schedule) -> Agenda:
        """`room` positions shared out over the moves between stops, by a schedule of `SHARES`."""
        stops = stops.to(room.device).expand(len(room), -1)
        moves = (stops[:, 1:] < stops[:, :-1]).sum(1)
        left = torch.zeros_like(stops, dtype=torch.int64)
        for count in torch.unique(moves).tolist():
            rows = moves == count
            each = SHARES[schedule](room[rows], count)
            total = torch.nn.functional.pad(each.cumsum(1), (1, 0))
            left[rows, : count + 1] = room[rows].unsqueeze(1) - total
        return Agenda(stops, left)

    def number(self, s: Times) -> Int64[Tensor, " b"]:
        """Which of its stops each sample comes to at time s."""
        return (self.stops > as_time(s).to(self.stops.device).view(-1, 1)).sum(1)

    def moves(self) -> Int64[Tensor, " b"]:
        """How many there are in all."""
        return (self.stops[:, 1:] < self.stops[:, :-1]).sum(1)


class Counting(Planner):
    """A planner that fixes beforehand how many positions are masked at each time. Its plan is an agenda, where one is
    needed, and whatever else it remembers."""

    schedule: ClassVar[Schedule] = "process"

    def agenda(self, reverse: Reverse, x: Tensor, stops: Float64[Tensor, "#b m"]) -> Agenda | None:
        """For counts that depend on how many moves there are."""
        if self.schedule == "process":
            return None
        room = torch.as_tensor(reverse.room, device=x.device).expand(len(x))
        return Agenda.of(stops, room, self.schedule)

    def left(self, reverse: Reverse, s: Times, plan: Plan) -> int | Int64[Tensor, " b"]:
        """By the process, as many as it would leave on average, rounded: ``n (1 - alpha_s)/(1 - alpha_start)``."""
        agenda: Agenda | None = plan[0]
        if agenda is not None:
            return agenda.left.gather(1, agenda.number(s).unsqueeze(1)).squeeze(1)
        now, start, room = reverse.noised(s), reverse.noised(reverse.start), reverse.room
        if isinstance(now, float) and isinstance(start, float) and isinstance(room, int):
            return round(room * (now / start)) if start else 0
        share = torch.as_tensor(now / start, dtype=torch.float64).nan_to_num(0.0).flatten()
        return torch.round(room * share.to(reverse.nfe.device)).long()

    def count(self, reverse: Reverse, x: Tensor, s: Times, plan: Plan) -> Int64[Tensor, " b"]:
        """How many are unmasked down to time s: what is masked now, less what is to be masked then."""
        return (reverse.left(x) - self.left(reverse, s, plan)).clamp_min_(0)

    def waits(self, reverse: Reverse, x: Tensor, s: Times, plan: Plan) -> Bool[Tensor, " b"]:
        return reverse.left(x) <= self.left(reverse, s, plan)

    def pace(self, reverse: Reverse, x: Tensor, earlier: Evaluation, t: Times, s: Times, plan: Plan) -> Pace:
        gone = reverse.left(earlier.x) - reverse.left(x)
        return Pace(self.count(reverse, x, s, plan).double(), gone.double(), alone=1.0)


def expected_counts(process: Process, length: int, times: Float64[Tensor, " m"]) -> Int64[Tensor, " moves"]:
    """How many of `length` positions the process unmasks on average in each step of `times`, rounded."""
    noised = 1 - process.schedule.alpha(times)
    return -torch.diff(torch.round(length * (noised / noised[0])).long())


def _even(room: Int64[Tensor, " b"], moves: int) -> Int64[Tensor, "b moves"]:
    """`room` shared out evenly, the first moves taking the remainder."""
    first = torch.arange(moves, device=room.device) < (room % moves).unsqueeze(1)
    return (room // moves).unsqueeze(1) + first.long()


def _cosine(room: Int64[Tensor, " b"], moves: int) -> Int64[Tensor, "b moves"]:
    """Few first and many last: after a share u of the moves ``cos(pi u/2)`` of `room` is left, rounded; at least one in a
    move while `room` lasts."""
    number = torch.arange(1, moves + 1, device=room.device)
    gone = 1 - torch.cos(torch.pi / 2 * number.double() / moves)
    total = torch.minimum(torch.maximum(torch.round(gone * room.unsqueeze(1)).long(), number), room.unsqueeze(1))
    return torch.diff(total, dim=1, prepend=torch.zeros_like(total[:, :1]))


def _arccos(room: Int64[Tensor, " b"], moves: int) -> Int64[Tensor, "b moves"]:
    """Proportional to arccos, rounded, at least one while `room` lasts; the last move takes the rest."""
    weight = torch.arccos(torch.linspace(1, 0, moves, dtype=torch.float64, device=room.device))
    share = weight / weight.sum().clamp_min(1e-300)
    wanted = torch.round(share * room.unsqueeze(1)).clamp_min(1).long()
    total = torch.minimum(wanted.cumsum(1), room.unsqueeze(1))
    total[:, -1] = room
    return torch.diff(total, dim=1, prepend=torch.zeros_like(total[:, :1]))


def _dream(room: Int64[Tensor, " b"], moves: int) -> Int64[Tensor, "b moves"]:
    """``floor(n (1 - s/t))`` of the n that are masked, on Dream's own times, in its precision; the last takes the rest."""
    times = torch.linspace(1, DREAM_END, moves + 1, device=room.device)
    left, each = room.clone(), torch.zeros((len(room), moves), dtype=torch.int64, device=room.device)
    for n in range(moves):
        each[:, n] = (left * (1 - times[n + 1] / times[n])).long() if n < moves - 1 else left
        left -= each[:, n]
    return each


def _dilated(room: Int64[Tensor, " b"], moves: int) -> Int64[Tensor, "b moves"]:
    """One group of `dilation` after the other; the last move takes the rest."""
    each = torch.zeros((len(room), moves), dtype=torch.int64, device=room.device)
    for count in torch.unique(room).tolist():
        sizes = torch.bincount(dilation(count), minlength=moves).to(room.device)
        each[room == count] = torch.cat([sizes[: moves - 1], sizes[moves - 1 :].sum().view(1)])
    return each


@lru_cache(maxsize=64)
def dilation(count: int) -> Int64[Tensor, " count"]:
    """The group of each of `count` positions in a row: the first n for which position k has
    ``k mod max(1, floor(count/2^n)) = 0``, n = 1, 2, ... So those of a group lie apart, and half as far as those before."""
    place, group = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    for n in range(count.bit_length(), 0, -1):
        group[place % max(1, count >> n) == 0] = n
    return torch.unique(group, return_inverse=True)[1]


DREAM_END = 1e-3
"""Where the times of Dream end, in place of 0."""
SHARES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "even": _even,
    "cosine": _cosine,
    "arccos": _arccos,
    "dream": _dream,
    "groups": _dilated,
}
"""How many of `room` positions are unmasked in each of so many moves, by schedule."""
