"""What a network has answered, for runs that go ahead of it.

A run asks the network about one state after the other. A run that goes ahead makes do with stale answers, and writes
its requests down: they are guesses, and are answered together. When it is run again, from the last state that is
certain, each request that was guessed right has its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from .evaluation import Conditionals, Denoiser, Gathered
from .times import shared

Evaluate = Callable[[Tensor, Tensor, Tensor], Conditionals]
"""Evaluate sequences at a time, which are these rows of the batch."""
FEW, CREDIT = 8, 16
"""Guesses that a sample makes at least if the window is its own, and those that may be wrong before any was right."""
SAME_TIME = 1e-12
"""By as much, relatively, may rounding change a time, depending on what else is in the batch."""


LEAST = 60.0
"""Logits so far below the largest of their row count as this: differences of what is forbidden make no sense."""


@dataclass(frozen=True)
class Change:
    """What wrong tokens did: sample ``of[k]`` goes without `share` of the step from ``before[k]`` to ``after[k]``."""

    of: Int64[Tensor, " k"]
    share: Float64[Tensor, " k"]
    before: Gathered
    after: Gathered

    def undone(self, rows: Float[Tensor, "n S"], positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        """`rows` of logits at `positions` without it."""
        sample, place = positions // self.before.length, positions % self.before.length
        row, step = torch.nonzero(sample.unsqueeze(1) == self.of, as_tuple=True)
        places = step * self.before.length + place[row]
        added = _finite(self.after.logits(places)) - _finite(self.before.logits(places))
        return _finite(rows).index_add(0, row, -added * self.share[step].to(added).unsqueeze(1))


@dataclass(frozen=True)
class Guessed:
    """Conditionals of samples of which only some are `certain`; the others have stale answers, without a `change`.

    Some may be in states that no run comes to, of which a network may have nothing to say: any value will do.
    """

    answers: Gathered
    certain: Bool[Tensor, " b"]
    change: Change | None = None

    def logits(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        rows = self.answers.logits(positions)
        if bool(self.certain.all()):
            return rows
        sure = self.certain[positions // self.answers.length].unsqueeze(1)
        guessed = rows if self.change is None else torch.where(sure, rows, self.change.undone(rows, positions))
        wild = ~sure & ~torch.isfinite(guessed.amax(1, keepdim=True))
        return torch.where(wild, 0.0, guessed)

    def duplicates(self) -> None:
        return None

    def ranked(self, untempered: bool) -> Guessed:
        answers = self.answers.ranked(untempered)
        return self if answers is self.answers else replace(self, answers=answers)


def _finite(rows: Float[Tensor, "n S"]) -> Float[Tensor, "n S"]:
    """Logits below the largest of their row, by `LEAST` at most."""
    return (rows - rows.amax(1, keepdim=True)).clamp_min(-LEAST)


class States:
    """A state for each slot, and the number of its request."""

    def __init__(self, number: Int64[Tensor, " n"], x: Int64[Tensor, "n d"], t: Float64[Tensor, " n"]) -> None:
        self.number, self.x, self.t = number, x, t

    @staticmethod
    def none(slots: int, model: Denoiser) -> States:
        whole = {"dtype": torch.int64, "device": model.device}
        t = torch.zeros(slots, dtype=torch.float64, device=model.device)
        return States(torch.full((slots,), -1, **whole), torch.zeros((slots, model.length), **whole), t)

    def write(self, slot: Int64[Tensor, " n"], number: Tensor, x: Tensor, t: Tensor) -> None:
        self.number[slot], self.x[slot], self.t[slot] = number, x, t

    def places(self, slots: int) -> Int64[Tensor, " n"]:
        """Where they go if each sample gets twice as many slots."""
        each = torch.arange(len(self.number), device=self.number.device)
        return each // slots * 2 * slots + torch.where(self.number < 0, each % slots, self.number % (2 * slots))

    def spread(self, places: Int64[Tensor, " n"]) -> States:
        return States(spread(self.number, places, -1), spread(self.x, places), spread(self.t, places))


def spread(table: Tensor, places: Int64[Tensor, " n"], blank: int = 0) -> Tensor:
    """A table of twice the length, with what is in this one at `places`."""
    return table.new_full((2 * len(table), *table.shape[1:]), blank).index_copy_(0, places, table)


class Answers:
    """The requests of every sample, numbered from the start of its run: those since the last state that is certain.

    Request k of a sample is in slot ``k % slots`` of its own: the state that was last evaluated for it, with what the
    model said, and the state that this pass has come to. Where a model ignores time, to ask about the same state again
    is no request.
    """

    def __init__(self, model: Denoiser, least: Int64[Tensor, " batch"], window: int | None, most: int) -> None:
        """A sample may make `window` guesses in a pass; None: as its guesses earn them, at most `most`, if it is to make
        `least` requests."""
        self.time_free, self.slots, self.window, self.most, self.least = model.time_free, 4, window, most, least
        counts = torch.zeros((8, len(least)), dtype=torch.int64, device=model.device)
        self.next, self.guesses, self.certain, self.asked, self.rounds, self.limit, self.top, self.reached = counts
        """Of each sample: its next request, guesses in this pass, requests before the state that is certain, requests
        that the model was or will be run for, rounds of them, how many guesses it may make in this pass, the last
        request that was answered, and the first guess of this pass or the last."""
        self.limit += 1
        size = len(least) * self.slots
        self.old, self.now = States.none(size, model), States.none(size, model)
        """States that were answered, and those of this pass."""
        self.wrong = torch.zeros(size, dtype=torch.float64, device=model.device)
        """How much of what an answered state added to the one before is not so, as this pass has found."""
        self.open = torch.zeros(size, dtype=torch.bool, device=model.device)
        """Guesses of this pass."""
        self.known: Gathered | None = None

    def evaluate(self, run: Evaluate, x: Tensor, t: Tensor, rows: Tensor) -> tuple[Conditionals, Tensor]:
        """What is known of `x`, samples `rows` of the batch; and which of them the model was run for at once.

        A guess that was wrong is followed by what it was answered itself, but for what the wrong tokens did to it;
        beyond all guesses the last answer stands in.
        """
        now = self.next[rows]
        while int((now - self.certain[rows]).max()) + 2 > self.slots:
            self._grow()
        t = t.to(x.device).expand(len(rows))
        slot, last = (rows * self.slots + number % self.slots for number in (now, now - 1))
        here = self.old.number[slot] == now
        again = self._same(self.now, last, x, t) & (now > 0) if self.time_free else here & False
        right = ~again & here & self._same(self.old, slot, x, t)
        first = torch.nonzero((now == 0) & ~here).flatten()
        if len(first):  # there is nothing to go on with
            self.now.write(slot[first], now[first], x[first], t[first])
            self._learn(slot[first], run, rows[first])
            here[first] = right[first] = True
            self.rounds[rows[first]] += 1
            self.asked[rows[first]] += 1
        guess = ~(again | right) & (self.guesses[rows] < self.limit[rows])
        new = torch.nonzero(guess).flatten()
        if len(new):
            mine = rows[new]
            self.open[slot[new]] = True
            begin = self.guesses[mine] == 0
            self.limit[mine] = torch.where(begin, self._allowed(mine), self.limit[mine])
            self.reached[mine] = torch.where(begin, now[new], self.reached[mine])
            self.guesses[mine] += 1
            self.asked[mine] += 1
        asks = right | guess
        self.now.write(slot[asks], now[asks], x[asks], t[asks])
        self.next[rows] = now + asks
        stale = torch.nonzero(here & ~again & ~right).flatten()
        if len(stale):
            self.wrong[slot[stale]] = self._differs(slot[stale], last[stale], x[stale], now[stale])
        return self._guessed(rows, torch.minimum(now - again.long(), self.top[rows])), first

    def _differs(self, slot: Int64[Tensor, " n"], last: Tensor, x: Tensor, number: Tensor) -> Float64[Tensor, " n"]:
        """Of what these requests changed in the states before them when they were answered: the share that is not so in
        `x`."""
        changed = (self.old.x[slot] != self.old.x[last]) & (self.old.number[last] == number - 1).unsqueeze(1)
        return (changed & (self.old.x[slot] != x)).sum(1).double() / changed.sum(1).clamp_min(1)

    def _guessed(self, rows: Int64[Tensor, " n"], base: Int64[Tensor, " n"]) -> Guessed:
        """The answers to requests `base`, without what was wrong."""
        assert self.known is not None
        answers, certain = self.known[rows * self.slots + base % self.slots], self.guesses[rows] == 0
        of, slot = torch.nonzero(self.wrong.view(-1, self.slots)[rows], as_tuple=True)
        if not len(of):
            return Guessed(answers, certain)
        after = rows[of] * self.slots + slot
        before = rows[of] * self.slots + (self.old.number[after] - 1) % self.slots
        return Guessed(answers, certain, Change(of, self.wrong[after], self.known[before], self.known[after]))

    def _allowed(self, rows: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """How many guesses these samples may make whose next request is the first that is not answered.

        By default half as many again as were right in the last round, and `FEW`. But in all no more may be wrong than
        there are requests: so far, with a credit of `CREDIT`, or in the whole run. (The first guess is always right.)
        """
        if self.window is not None:
            return torch.full_like(rows, self.window)
        done, whole = self.next[rows] + 1, self.least[rows]
        earned = 3 * (done - self.reached[rows]) // 2 + FEW
        credit = torch.minimum(done + (whole // 2).clamp(max=CREDIT), torch.maximum(whole, done))
        return torch.minimum(earned, credit + done - self.asked[rows]).clamp(1, self.most)

    def restart(self) -> None:
        """Begin a pass, from the states that are certain."""
        self.next.copy_(self.certain)
        self.guesses.zero_()
        self.wrong.zero_()

    def answer(self, run: Evaluate, most: int) -> None:
        """Run the model for all guesses, `most` at a time."""
        guesses = torch.nonzero(self.open).flatten()
        rows = guesses // self.slots
        for some, mine in zip(guesses.split(most), rows.split(most), strict=True):
            self._learn(some, run, mine)
        self.open.zero_()
        self.rounds[rows] += 1

    def _same(self, states: States, slot: Int64[Tensor, " n"], x: Tensor, t: Tensor) -> Bool[Tensor, " n"]:
        same = (states.x[slot] == x).all(1)
        return same if self.time_free else same & torch.isclose(states.t[slot], t, rtol=SAME_TIME, atol=0.0)

    def _learn(self, slot: Int64[Tensor, " n"], run: Evaluate, rows: Int64[Tensor, " n"]) -> None:
        """Run the model for the states of this pass in these slots."""
        new = run(self.now.x[slot], shared(self.now.t[slot]), rows)
        self.old.write(slot, self.now.number[slot], self.now.x[slot], self.now.t[slot])
        self.top.scatter_reduce_(0, rows, self.now.number[slot], "amax")
        answers = Gathered.of(new, len(slot), self.now.x.shape[1], slot.device)
        if self.known is None:
            none = torch.zeros_like(self.old.number)
            self.known = Gathered(answers.parts, none, none, answers.length)
        # what nobody will ask for again must not be kept alive
        past = torch.nonzero(self.old.number < (self.certain - 1).repeat_interleave(self.slots)).flatten()
        which = torch.cat([torch.arange(len(slot), device=slot.device), torch.zeros_like(past)])
        self.known = self.known.replaced(torch.cat([slot, past]), answers[which])

    def _grow(self) -> None:
        """Twice as many slots."""
        old, now = self.old.places(self.slots), self.now.places(self.slots)
        if self.known is not None:
            part, row = (spread(each, old) for each in (self.known.part, self.known.row))
            self.known = Gathered(self.known.parts, part, row, self.known.length)
        self.wrong, self.open = spread(self.wrong, old), spread(self.open, now)
        self.old, self.now = self.old.spread(old), self.now.spread(now)
        self.slots *= 2
