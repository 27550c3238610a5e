"""The twin of `noise.Stream` that answers each question in every possible way, for exact laws.

It cannot do so in the middle of a solver's step, so it stops the step there with a `Fork`, and the step is run again on
as many copies of each state as there are answers, with those answers forced.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from .core import _fast
from .core.noise import Draw, Noise, Numbers, PerSample, settled

SAME = 1e-6
"""Chances that differ by less are of one model, whose rounding depends on the rows asked for together."""


class Fork(Exception):
    """A question with several answers: row `parent` of the present batch goes on as `answers` with `probability`."""

    def __init__(self, parent: Tensor, answers: list[Tensor], probability: Tensor) -> None:
        self.parent, self.answers, self.probability = parent, answers, probability


class Unforeseen(Exception):
    """The weights of a choice depend on which coins were heads."""


@dataclass(frozen=True)
class EveryLevels:
    """Levels of which only the next stretch matters: whether a position is due in it is a coin."""

    def due(
        self, masked: Bool[Tensor, "b d"], high: PerSample, low: PerSample, noise: Noise
    ) -> tuple[Int64[Tensor, " n"], Numbers, EveryLevels]:
        top, end = (torch.as_tensor(bound, dtype=torch.float64) for bound in (high, low))
        chance = torch.where(end > 0, (top - end) / top, 1.0)
        positions, numbers = noise.flip(torch.where(masked, chance, 0.0))
        return positions, numbers, self


@dataclass(frozen=True)
class EveryOrder:
    """An order of which only the next positions matter: uniformly random ones, or those of the smallest ranks."""

    ranks: Int64[Tensor, "b d"] | None

    def next(
        self, masked: Bool[Tensor, "b d"], count: Int64[Tensor, " b"], noise: Noise
    ) -> tuple[Int64[Tensor, " n"], Numbers, EveryOrder]:
        if self.ranks is not None:
            keep = _fast.largest(-self.ranks.double(), count, masked)
        else:
            scores = torch.zeros(masked.shape, dtype=torch.float64).masked_fill(~masked, -math.inf)
            keep = noise.pick(scores, count, torch.ones_like(scores[:, 0]))
        return _fast.indices(keep), None, self


@dataclass(frozen=True)
class Every:
    """A `Noise` that answers from a script, and forks where the script ends.

    With `foresee`, coins and the choice at their heads are one question, as they are for a jump: it is put for all
    positions that may have heads, and to stay is to have tails. So a position forks once. That the weights of the
    choice are the same for any heads is checked as the answers are given; if not, the two questions are put one by one.
    """

    batch: int
    script: list[Tensor]
    time_free: bool
    foresee: bool
    rows: Tensor | None = None
    asked: list[str] = field(default_factory=list)
    tossed: list[Float64[Tensor, "b d"]] = field(default_factory=list)
    """The chances of heads, from coins beyond the script to the question after them."""

    def __call__(self, label: Draw, index: int | None = None) -> Every:
        return self

    def __getitem__(self, rows: Tensor) -> Every:
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def _scripted(self) -> Tensor | None:
        self.asked.append("")
        if len(self.asked) > len(self.script):
            return None
        answer = self.script[len(self.asked) - 1]
        return answer if self.rows is None else answer[self.rows]

    def settle(self) -> None:
        """Fork over coins that stand alone."""
        for p in self.tossed:
            sides = torch.stack([p, 1 - p], 2).flatten(0, 1)
            parent, side, probability = self._categorical(torch.arange(len(sides)), p.shape[1], sides)
            raise Fork(parent, [side == 0], probability)

    def _categorical(self, positions: Tensor, length: int, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parents, values and probabilities of all ways to draw from `weights` at all `positions`, each on its own."""
        owner, column, parent = positions // length, positions % length, torch.arange(self.batch)
        answer = torch.zeros((self.batch, length), dtype=torch.int64)
        probability = torch.ones(self.batch, dtype=torch.float64)
        for position in range(length):
            here = column == position
            table = torch.zeros((self.batch, weights.shape[1]), dtype=torch.float64)
            table[:, -1] = 1  # rows that are not asked
            table[owner[here]] = weights[here]
            branch, value = torch.nonzero(table[parent] > 0, as_tuple=True)
            probability = probability[branch] * table[parent[branch], value]
            parent, answer = parent[branch], answer[branch]
            answer[:, position] = value
        return parent, answer, probability

    def flip(self, probability: Float64[Tensor, "b d"]) -> tuple[Int64[Tensor, " n"], None]:
        answer = self._scripted()
        if answer is None:
            self.settle()
            answer = probability
            none = torch.zeros((self.batch, answer.shape[1]), dtype=torch.float64)
            self.tossed.append(answer if self.rows is None else none.index_copy(0, self.rows, answer))
            if not self.foresee:
                self.settle()
        return torch.nonzero(answer.flatten()).flatten(), None

    def levels(self, length: int, top: PerSample) -> EveryLevels:
        return EveryLevels()

    def order(self, length: int, ranks: Int64[Tensor, "b d"] | None = None) -> EveryOrder:
        return EveryOrder(ranks)

    def choose(
        self,
        positions: Int64[Tensor, " n"],
        length: int,
        weights: Float64[Tensor, "k S"],
        stay: bool,
        which: Int64[Tensor, " n"] | None = None,
        numbers: Numbers = None,
    ) -> Int64[Tensor, " n"]:
        answer, foreseen = self._scripted(), self._scripted()
        total = weights.sum(1, keepdim=True)
        # the last column is to stay; a shortfall below zero is the rounding of a full row
        weights = torch.cat([weights, (1 - total).clamp_min(0)], 1) if stay else pad(weights / total, (0, 1))
        which = torch.arange(len(positions)) if which is None else which
        if answer is None or foreseen is None:
            places = positions if self.rows is None else self.rows[positions // length] * length + positions % length
            raise self._choices(places, length, weights[which])
        values = answer.flatten()[positions]
        if self.foresee and bool(((weights[which, values] - foreseen.flatten()[positions]).abs() > SAME).any()):
            raise Unforeseen
        return values

    def _choices(self, positions: Tensor, length: int, weights: Tensor) -> Fork:
        """All values at `positions` of the whole batch; if coins were tossed for them, only where these are heads."""
        together = bool(self.tossed) and torch.equal(positions, torch.nonzero(self.tossed[0].flatten()).flatten())
        outcome = weights
        if together:
            heads = self.tossed[0].flatten()[positions].unsqueeze(1)
            outcome = torch.cat([heads * weights[:, :-1], 1 - heads * (1 - weights[:, -1:])], 1)
        else:
            self.settle()
        parent, values, probability = self._categorical(positions, length, outcome)
        table = torch.zeros((self.batch * length, weights.shape[1]), dtype=torch.float64)
        table[positions] = weights
        chance = table[parent.unsqueeze(1) * length + torch.arange(length), values]
        coins = [values < weights.shape[1] - 1] if together else []
        return Fork(parent, [*coins, values, chance], probability)

    def pick(
        self, scores: Float64[Tensor, "b d"], count: Int64[Tensor, " b"], heat: Float64[Tensor, " b"]
    ) -> Bool[Tensor, "b d"]:
        if not bool(heat.any()):
            return _fast.largest(settled(scores), count)
        answer = self._scripted()
        if answer is None:
            self.settle()
            raise self._subsets(scores, count, heat)
        return answer.bool()

    def _subsets(self, scores: Tensor, count: Tensor, heat: Tensor) -> Fork:
        rows = range(self.batch) if self.rows is None else self.rows.tolist()
        asked = {row: n for n, row in enumerate(rows)}
        weights = torch.softmax(scores / heat.unsqueeze(1), 1)
        largest = _fast.largest(settled(scores), count)
        parents, answers, chances = [], [], []
        for row in range(self.batch):
            n = asked.get(row)
            outcomes: dict[tuple[int, ...], float] = {(): 1.0}
            if n is not None and float(heat[n]) > 0:
                outcomes = plackett_luce(weights[n].tolist(), int(count[n]))
            elif n is not None:
                outcomes = {tuple(torch.nonzero(largest[n]).flatten().tolist()): 1.0}
            for positions, chance in outcomes.items():
                parents.append(row)
                answers.append([float(position in positions) for position in range(scores.shape[1])])
                chances.append(chance)
        return Fork(torch.tensor(parents), [torch.tensor(answers)], torch.tensor(chances, dtype=torch.float64))

    def clock(self, positions: Bool[Tensor, "b d"]) -> Float64[Tensor, "b d"]:
        """Every order of the positions, each with equally spaced times to stand for all."""
        if not self.time_free:
            raise ValueError(
                "model: its conditionals depend on time, and this solver evaluates it at continuous random times, so "
                "that its law is an integral; use exact.reverse_law, which solves for it"
            )
        answer = self._scripted()
        if answer is None:
            self.settle()
            raise self._orders(positions)
        return answer

    def _orders(self, positions: Tensor) -> Fork:
        full = torch.zeros((self.batch, positions.shape[1]), dtype=torch.bool)
        full[slice(None) if self.rows is None else self.rows] = positions
        parents, answers, chances = [], [], []
        for row in range(self.batch):
            places = torch.nonzero(full[row]).flatten().tolist()
            for order in itertools.permutations(range(len(places))):
                times = torch.zeros(positions.shape[1], dtype=torch.float64)
                times[places] = (torch.tensor(order, dtype=torch.float64) + 0.5) / max(1, len(places))
                parents.append(row)
                answers.append(times)
                chances.append(1 / math.factorial(len(places)))
        return Fork(torch.tensor(parents), [torch.stack(answers)], torch.tensor(chances, dtype=torch.float64))

    def uniform(self, batch: int) -> Float64[Tensor, " b"]:
        raise ValueError("solver: it asks for continuous numbers, which cannot be enumerated; use exact.reverse_law")


def plackett_luce(weights: list[float], count: int) -> dict[tuple[int, ...], float]:
    """Probabilities of the sets that `count` draws without replacement, with probabilities proportional to `weights`, may give."""
    sets: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(count):
        grown: dict[tuple[int, ...], float] = {}
        for chosen, chance in sets.items():
            left = {n: w for n, w in enumerate(weights) if n not in chosen and w > 0}
            total = sum(left.values())
            for n, w in left.items():
                key = tuple(sorted((*chosen, n)))
                grown[key] = grown.get(key, 0.0) + chance * w / total
        sets = grown
    return sets
