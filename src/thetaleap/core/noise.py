"""The only source of randomness.

Solvers and planners put *questions* to a `Noise`: does this position jump (`flip`), to which value (`choose`), which
positions come next (`order`, `levels`, `pick`), when (`clock`). `Stream` answers at random; its twin in
`enumeration.py` branches over every answer. Who asks does not know which of the two it has.

Every uniform is a pure function of (seed, sample, step, label, position): Philox4x64-10 (Salmon et al., SC 2011) with
the seed as key and counter words (sample and position, step, label, use). So sample i is the same whatever the batch,
the sharding or the device: the numbers are made on the CPU and moved.

One number decides whether a position jumps and where to, as in one draw from all that may happen there: if u < p says
that it does, u/p is uniform in [0, 1) again, and chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from . import _fast
from .checks import require_count
from .philox import WORD, Use, philox, word
from .race import race

CPU = torch.device("cpu")
PIECE = 2**18
"""Entries of rows that a processor works on at a time: what passes between two operations stays in its cache, and is
not got from the system afresh every time, which would take longer than the work."""

SHY = 1 - 2.0**-53
"""A number below one, times this and a total, is below the total even where the product rounds up."""
Numbers = Float64[Tensor, " n"] | None
"""Uniforms in [0, 1) to choose by; None: fresh ones."""
PerSample = float | Float64[Tensor, "b 1"]
"""One number for all samples, or one for each."""


class Draw(StrEnum):
    """Labels of questions. One label is good for one question of each kind in a step; an index tells repeated ones
    apart."""

    PRIOR = "prior"
    BEGIN = "begin"
    FINISH = "finish"
    PREDICT = "predict"
    CORRECT = "correct"
    LEAP = "leap"
    MOVE = "move"
    ORDER = "order"
    SHIFT = "shift"
    VALUE = "value"
    KEEP = "keep"
    HIT = "hit"
    WHEN = "when"
    EVENT = "event"
    GAP = "gap"
    POSITION = "position"
    WATCH = "watch"
    SWEEP = "sweep"
    PILOT = "pilot"
    COMPONENT = "component"
    DRAW = "draw"
    LIKELIHOOD = "likelihood"
    EXAMPLE = "example"
    GIVEN = "given"
    NOISED = "noised"
    TIME = "time"
    LABEL = "label"
    DROPOUT = "dropout"


@runtime_checkable
class Levels(Protocol):
    """A level for each position, uniform below where ``1 - alpha`` starts; a mask is due when ``1 - alpha`` has come
    down to its level. A position that is masked again gets a fresh level."""

    def due(
        self, masked: Bool[Tensor, "b d"], high: PerSample, low: PerSample, noise: Noise
    ) -> tuple[Int64[Tensor, " n"], Numbers, Levels]:
        """The `masked` positions, as flat indices, that are due while ``1 - alpha`` falls from `high` to `low`;
        uniforms to choose their values by; and the levels from then on."""
        ...


@runtime_checkable
class Order(Protocol):
    """An order of the positions of each sample, in which they are unmasked. A position that is masked again gets a
    fresh place in an order that is random."""

    def next(
        self, masked: Bool[Tensor, "b d"], count: Int64[Tensor, " b"], noise: Noise
    ) -> tuple[Int64[Tensor, " n"], Numbers, Order]:
        """The next `count` of the `masked` positions, as flat indices; uniforms to choose their values by; and the
        order from then on."""
        ...


@runtime_checkable
class Noise(Protocol):
    """Answers random questions for a batch of samples. A question may be put in parts: each about other samples or,
    for choices, other positions."""

    def __call__(self, label: Draw, index: int | None = None) -> Noise:
        """An independent source, named within its parent."""
        ...

    def __getitem__(self, rows: Tensor) -> Noise:
        """The same source for the samples at `rows` of this batch."""
        ...

    def flip(self, probability: Float64[Tensor, "b d"]) -> tuple[Int64[Tensor, " n"], Numbers]:
        """Toss a coin at every position; give the flat indices (sample * d + position) of the heads, in order, and
        what is left of their numbers for a choice there."""
        ...

    def levels(self, length: int, top: PerSample) -> Levels:
        """A level for each position, uniform below `top`."""
        ...

    def order(self, length: int, ranks: Int64[Tensor, "b d"] | None = None) -> Order:
        """An order of the positions: by `ranks`, the smallest first, or uniformly random."""
        ...

    def choose(
        self,
        positions: Int64[Tensor, " n"],
        length: int,
        weights: Float64[Tensor, "k S"],
        stay: bool,
        which: Int64[Tensor, " n"] | None = None,
        numbers: Numbers = None,
    ) -> Int64[Tensor, " n"]:
        """Draw a value at each of `positions`, with probabilities ``weights[which]`` (by default a row for each
        position), by these `numbers` or by fresh ones.

        With `stay` the weights may sum to less than one, and S is the answer for what is missing; without, they
        are divided by their sum.
        """
        ...

    def pick(
        self, scores: Float64[Tensor, "b d"], count: Int64[Tensor, " b"], heat: Float64[Tensor, " b"]
    ) -> Bool[Tensor, "b d"]:
        """Draw `count` positions of each sample without replacement, one after the other, with probabilities
        proportional to ``exp(scores/heat)`` (minus infinity: never); at heat 0 take the largest scores."""
        ...

    def clock(self, positions: Bool[Tensor, "b d"]) -> Float64[Tensor, "b d"]:
        """An independent uniform time in [0, 1) for each of `positions`. Only their order may decide what happens;
        the times themselves may only be shown to the network."""
        ...

    def uniform(self, batch: int) -> Float64[Tensor, " b"]:
        """A uniform in [0, 1) for each of `batch` samples: for continuous questions that cannot be enumerated."""
        ...


@dataclass(frozen=True, eq=False)
class DrawnLevels:
    """Levels that were drawn once for a run."""

    level: Float64[Tensor, "b d"]

    def due(
        self, masked: Bool[Tensor, "b d"], high: PerSample, low: PerSample, noise: Noise
    ) -> tuple[Int64[Tensor, " n"], Float64[Tensor, " n"], DrawnLevels]:
        level = self.level
        positions, numbers, sound = _fast.passed(masked, level, high, _open(low))
        if sound:
            return positions, numbers, self
        # some were due before, and so were masked again since
        level = _redrawn(level, masked & (level > high), high, noise)
        positions, numbers, sound = _fast.passed(masked, level, high, _open(low))
        if not sound:  # no room between the two bounds, where alpha has rounded to one
            fresh = noise(Draw.VALUE).clock(masked).view(-1)[positions]
            numbers = torch.where((numbers >= 0) & (numbers < 1), numbers, fresh)
        return positions, numbers, DrawnLevels(level)


@dataclass(frozen=True, eq=False)
class DrawnOrder:
    """An order by keys, the largest first, and numbers to choose values by, all drawn once for a run."""

    key: Float64[Tensor, "b d"]
    """In [0, 1). Of positions that have not come in the order they are below `last`, and uniform there if random."""
    number: Float64[Tensor, "b d"]
    last: Float64[Tensor, "b 1"]
    """The least key that has come, 1 before the first."""
    random: bool

    def next(
        self, masked: Bool[Tensor, "b d"], count: Int64[Tensor, " b"], noise: Noise
    ) -> tuple[Int64[Tensor, " n"], Float64[Tensor, " n"], DrawnOrder]:
        key, number, last = self.key, self.number, self.last
        positions, least, most = _fast.first(key, count, masked)
        if _fast.reaches(most, last):  # has come before, and was masked again since
            stale = masked & (key >= last)
            number = _redrawn(number, stale, 1.0, noise(Draw.VALUE))
            if self.random:
                key = _redrawn(key, stale, last, noise(Draw.ORDER))
                positions, least, _ = _fast.first(key, count, masked)
        drawn = number.view(-1).index_select(0, positions)
        return positions, drawn, DrawnOrder(key, number, torch.minimum(last, least), self.random)


def _open(low: PerSample) -> PerSample:
    """`low`, or below all levels where it is 0: at the end of the way everything is due."""
    return torch.where(low > 0, low, -1.0) if isinstance(low, Tensor) else low or -1.0


def _redrawn(
    table: Float64[Tensor, "b d"], where: Bool[Tensor, "b d"], below: PerSample, noise: Noise
) -> Float64[Tensor, "b d"]:
    """`table` with fresh uniforms, up to `below`, where it says."""
    return torch.where(where, (1 - noise.clock(where)) * below, table)


@dataclass(frozen=True)
class Stream:
    """Random answers for samples ``first, first + 1, ...``."""

    seed: int
    first: int
    count: int
    device: torch.device = CPU
    step: int = 0
    label: str = ""
    rows: Tensor | None = None
    race: bool = False
    """Whether values are chosen by a race of exponentials (core/race.py), which few changes of a law decide anew."""
    asked: dict[str, dict[int, tuple[Tensor | None, Tensor | None]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Of each question: the samples that were asked about, and the last positions, None for all."""

    def __post_init__(self) -> None:
        require_count("seed", self.seed, least=0, most=WORD - 1)
        for name in ("seed", "first"):  # numpy's are too short to count with
            object.__setattr__(self, name, int(getattr(self, name)))

    def at(self, step: int) -> Stream:
        """The source of one step; labels may be used again."""
        return self._with(step=step, label="", asked={})

    def __call__(self, label: Draw, index: int | None = None) -> Stream:
        return self._with(label=f"{self.label}/{label}" if index is None else f"{self.label}/{label} {index}")

    def __getitem__(self, rows: Tensor) -> Stream:
        return self._with(rows=rows if self.rows is None else self.rows[rows])

    def _with(self, **changes: Any) -> Stream:
        # what dataclasses.replace does, but for the checks, in a quarter of the time
        other = object.__new__(Stream)
        other.__dict__.update(self.__dict__, **changes)
        return other

    def _numbers(self, kind: str, width: int, positions: Tensor | None = None) -> np.ndarray:
        """Numbers in [0, 1), (b, width), of which those at flat indices `positions` are used, or all."""
        name = f"{self.label}:{kind}"
        self._claim(name, positions)
        # lay all samples end to end, so that a batch is one stretch of blocks of four
        begin, end = self.first * width, (self.first + self.count) * width
        block, skip = divmod(begin, 4)
        u = philox(self.seed, (block, self.step, word(name), Use.STREAM), end - begin + skip)[skip:]
        table = u.reshape(self.count, width)
        return table if self.rows is None else table[self.rows.cpu().numpy()]

    def _tensor(self, kind: str, width: int) -> Float64[Tensor, "b width"]:
        return torch.from_numpy(self._numbers(kind, width)).to(self.device)

    def _claim(self, name: str, positions: Tensor | None) -> None:
        """Note that the numbers of a question are used: all of these samples, or those at `positions`, in order."""
        parts = self.asked.setdefault(name, {})
        mine = parts.get(id(self.rows))
        if not parts:
            twice = False
        elif mine is None:
            others = [rows for rows, _ in parts.values()]
            twice = any(rows is None or self.rows is None or bool(torch.isin(rows, self.rows).any()) for rows in others)
        else:
            twice = not _after(positions, mine[1])
        if twice:
            raise RuntimeError(f"noise label {name!r} is asked twice in step {self.step}: use a fresh label")
        if mine is None or positions is None or positions.shape[0]:
            parts[id(self.rows)] = (self.rows, positions)

    def flip(self, probability: Float64[Tensor, "b d"]) -> tuple[Int64[Tensor, " n"], Numbers]:
        heads, left = _fast.heads(self._numbers("flip", probability.shape[1]), probability)
        return heads, None if self.race else left

    def levels(self, length: int, top: PerSample) -> DrawnLevels:
        return DrawnLevels((1 - self._tensor("levels", length)) * top)

    def order(self, length: int, ranks: Int64[Tensor, "b d"] | None = None) -> DrawnOrder:
        key = self._tensor("order", length) if ranks is None else 1 - (ranks.double() + 1) / (length + 1)
        return DrawnOrder(key, self._tensor("value", length), torch.ones_like(key[:, :1]), ranks is None)

    def choose(
        self,
        positions: Int64[Tensor, " n"],
        length: int,
        weights: Float64[Tensor, "k S"],
        stay: bool,
        which: Int64[Tensor, " n"] | None = None,
        numbers: Numbers = None,
    ) -> Int64[Tensor, " n"]:
        if self.race:
            return self._raced(positions, length, weights, stay, which, numbers)
        if numbers is None:
            fresh = self._numbers("choose", length, positions).ravel()[positions.cpu().numpy()]
            numbers = torch.from_numpy(fresh).to(self.device)
        return inverse_cdf(weights, numbers, stay, which)

    def _raced(
        self, positions: Tensor, length: int, weights: Tensor, stay: bool, which: Tensor | None, numbers: Numbers
    ) -> Int64[Tensor, " n"]:
        """A number that a position has for the whole run is the address of its race; without, the step is."""
        sample, position = np.divmod(positions.cpu().numpy(), length)
        sample = self.first + (sample if self.rows is None else self.rows.cpu().numpy()[sample])
        step, label = self.step, f"{self.label}:race"
        if numbers is None:
            self._claim(label, positions)
        else:
            step, label = numbers.cpu().numpy().view(np.uint64).tolist(), "race"
        return race(weights, which, stay, sample * length + position, (self.seed, step, word(label)))

    def pick(
        self, scores: Float64[Tensor, "b d"], count: Int64[Tensor, " b"], heat: Float64[Tensor, " b"]
    ) -> Bool[Tensor, "b d"]:
        if not bool(heat.any()):
            return _fast.largest(settled(scores), count)
        u = self._tensor("pick", scores.shape[1]).clamp_min(2.0**-54)  # 0, the only one below, would be infinite
        warm, gumbel = heat.unsqueeze(1), -torch.log(-torch.log(u))
        return _fast.largest(torch.where(warm > 0, scores / warm + gumbel, settled(scores)), count)

    def clock(self, positions: Bool[Tensor, "b d"]) -> Float64[Tensor, "b d"]:
        return self._tensor("clock", positions.shape[1])

    def uniform(self, batch: int) -> Float64[Tensor, " b"]:
        return self._tensor("uniform", 1)[:, 0]


def settled(scores: Float64[Tensor, "b d"]) -> Float64[Tensor, "b d"]:
    """`scores` without their last bits, in which equal ones may differ from one machine to another."""
    return scores.round(decimals=9)


def piece(rows: Tensor) -> int:
    """How many of `rows` to work on at a time."""
    return rows.shape[0] if rows.is_cuda else max(1, PIECE // rows.shape[1])


def _after(positions: Tensor | None, before: Tensor | None) -> bool:
    """Whether all of `positions`, in order, come after those `before`; None are all there are."""
    if positions is None or before is None:
        return False
    return not positions.shape[0] or not before.shape[0] or int(positions[0]) > int(before[-1])


def inverse_cdf(
    weights: Float64[Tensor, "k S"],
    u: Float64[Tensor, " n"],
    stay: bool,
    which: Int64[Tensor, " n"] | None = None,
) -> Int64[Tensor, " n"]:
    """The value whose stretch of the cumulated ``weights[which]`` holds `u`; never one of weight zero."""
    some = piece(weights)
    if which is None and some < weights.shape[0]:
        parts = zip(weights.split(some), u.split(some), strict=True)
        return torch.cat([inverse_cdf(*part, stay) for part in parts])
    cdf = weights.cumsum(-1)
    if which is not None:
        cdf = cdf.index_select(0, which)
    if not stay:
        # below the total, so that the last value of positive weight is the last
        u = (u * SHY).mul_(cdf[:, -1])
    return torch.searchsorted(cdf, u.unsqueeze(-1), right=True).squeeze(-1)
