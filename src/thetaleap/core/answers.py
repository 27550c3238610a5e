"""What a network has answered, for runs that go ahead of it.

A run asks the network about one state after the other. A run that goes ahead makes do with stale answers, and writes
its requests down: they are guesses, and are answered together. When it is run again, from the last state that is
certain, each request that was guessed right has its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .evaluation import Conditionals, Denoiser, Gathered
from .times import shared

Evaluate = Callable[[Tensor, Tensor, Tensor], Conditionals]
"""Evaluate sequences at a time, which are these rows of the batch."""
SAME_TIME = 1e-12
"""By as much, relatively, may rounding change a time, depending on what else is in the batch."""


@dataclass(frozen=True)
class Guessed:
    """Conditionals of samples of which only some are `certain`.

    The others may be in states that no run comes to, of which a network may have nothing to say: any value will do.
    """

    answers: Gathered
    certain: Bool[Tensor, " b"]

    def logits(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        rows = self.answers.logits(positions)
        wild = ~self.certain[positions // self.answers.length] & ~torch.isfinite(rows.amax(1))
        return torch.where(wild.unsqueeze(1), 0.0, rows) if bool(wild.any()) else rows

    def duplicates(self) -> None:
        return None

    def ranked(self, untempered: bool) -> Guessed:
        answers = self.answers.ranked(untempered)
        return self if answers is self.answers else replace(self, answers=answers)


class Answers:
    """The requests of every sample, numbered from the start of its run: those since the last state that is certain.

    Request k of a sample is in slot ``k % slots`` of its own. Where a model ignores time, to ask about the same state
    again is no request.
    """

    def __init__(self, model: Denoiser, batch: int, window: int | None, most: int) -> None:
        """A sample may make `window` guesses in a pass; None: as its guesses earn them, at most `most`."""
        self.time_free, self.slots, self.window, self.most = model.time_free, 4, window, most
        device, length = model.device, model.length
        counts = torch.zeros((6, batch), dtype=torch.int64, device=device)
        self.next, self.guesses, self.certain, self.asked, self.rounds, self.limit = counts.unbind()
        """Of each sample: its next request, guesses in this pass, requests before the state that is certain, requests
        that the model was or will be run for, rounds of them, and how many guesses it may make in this pass."""
        self.limit += 1 if window is None else window
        size = batch * self.slots
        self.number = torch.full((size,), -1, dtype=torch.int64, device=device)
        self.x = torch.zeros((size, length), dtype=torch.int64, device=device)
        self.t = torch.zeros(size, dtype=torch.float64, device=device)
        self.open = torch.zeros(size, dtype=torch.bool, device=device)
        self.known: Gathered | None = None

    def evaluate(self, run: Evaluate, x: Tensor, t: Tensor, rows: Tensor) -> tuple[Conditionals, Tensor]:
        """What is known of `x`, samples `rows` of the batch; and which of them the model was run for at once.

        A guess that was wrong is followed by what it was answered itself, since only some of it was wrong; beyond all
        guesses the last answer stands in.
        """
        now = self.next[rows]
        while int((now - self.certain[rows]).max()) + 2 > self.slots:
            self._grow()
        t = t.to(x.device).expand(len(rows))
        slot, last = (rows * self.slots + number % self.slots for number in (now, now - 1))
        here = self.number[slot] == now
        again = self._same(last, x, t) & (now > 0) if self.time_free else torch.zeros_like(here)
        right = ~again & here & self._same(slot, x, t)
        first = torch.nonzero((now == 0) & ~here).flatten()
        if len(first):  # there is nothing to go on with
            self._write(slot[first], now[first], x[first], t[first])
            self._learn(slot[first], run, rows[first])
            here[first] = right[first] = True
            self.rounds[rows[first]] += 1
            self.asked[rows[first]] += 1
        guess = ~(again | right) & (self.guesses[rows] < self.limit[rows])
        new = torch.nonzero(guess).flatten()
        if len(new):
            assert self.known is not None
            stale = torch.where(here, slot, last)[new]
            part, row = (each.index_copy(0, slot[new], each[stale]) for each in (self.known.part, self.known.row))
            self.known = Gathered(self.known.parts, part, row, self.known.length)
            self._write(slot[new], now[new], x[new], t[new])
            self.open[slot[new]] = True
            mine = rows[new]
            self.limit[mine] = torch.where(self.guesses[mine] == 0, self._allowed(mine), self.limit[mine])
            self.guesses[mine] += 1
            self.asked[mine] += 1
        self.next[rows] = now + (right | guess)
        assert self.known is not None
        answers = self.known[torch.where(right | guess | (here & ~again), slot, last)]
        return Guessed(answers, self.guesses[rows] == 0), first

    def _allowed(self, rows: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """How many guesses these samples may make whose next request is the first that is not answered.

        By default as many as keep the requests in all within twice those of a run one after the other, should the
        first alone turn out to be right.
        """
        if self.window is not None:
            return torch.full_like(rows, self.window)
        return (2 * (self.next[rows] + 1) - self.asked[rows]).clamp(max=self.most)

    def restart(self) -> None:
        """Begin a pass, from the states that are certain."""
        self.next.copy_(self.certain)
        self.guesses.zero_()

    def answer(self, run: Evaluate, most: int) -> None:
        """Run the model for all guesses, `most` at a time."""
        guesses = torch.nonzero(self.open).flatten()
        rows = guesses // self.slots
        for some, mine in zip(guesses.split(most), rows.split(most), strict=True):
            self._learn(some, run, mine)
        self.open.zero_()
        self.rounds[rows] += 1

    def _same(self, slot: Int64[Tensor, " n"], x: Tensor, t: Tensor) -> Bool[Tensor, " n"]:
        same = (self.x[slot] == x).all(1)
        return same if self.time_free else same & torch.isclose(self.t[slot], t, rtol=SAME_TIME, atol=0.0)

    def _write(self, slot: Int64[Tensor, " n"], number: Tensor, x: Tensor, t: Tensor) -> None:
        self.number[slot], self.x[slot], self.t[slot] = number, x, t

    def _learn(self, slot: Int64[Tensor, " n"], run: Evaluate, rows: Int64[Tensor, " n"]) -> None:
        """Run the model for what is written in these slots."""
        new = run(self.x[slot], shared(self.t[slot]), rows)
        answers = Gathered.of(new, len(slot), self.x.shape[1], self.x.device)
        if self.known is None:
            none = torch.zeros_like(self.number)
            self.known = Gathered(answers.parts, none, none, answers.length)
        # what nobody will ask for again must not be kept alive
        past = torch.nonzero(self.number < (self.certain - 1).repeat_interleave(self.slots)).flatten()
        which = torch.cat([torch.arange(len(slot), device=slot.device), torch.zeros_like(past)])
        self.known = self.known.replaced(torch.cat([slot, past]), answers[which])

    def _grow(self) -> None:
        """Twice as many slots."""
        each = torch.arange(len(self.number), device=self.x.device)
        sample, slots = each // self.slots, 2 * self.slots
        place = sample * slots + torch.where(self.number < 0, each % self.slots, self.number % slots)

        def spread(table: Tensor, blank: int) -> Tensor:
            return table.new_full((2 * len(table), *table.shape[1:]), blank).index_copy_(0, place, table)

        self.number, self.x, self.t, self.open = (
            spread(table, blank) for table, blank in ((self.number, -1), (self.x, 0), (self.t, 0), (self.open, 0))
        )
        if self.known is not None:
            part, row = spread(self.known.part, 0), spread(self.known.row, 0)
            self.known = Gathered(self.known.parts, part, row, self.known.length)
        self.slots = slots
