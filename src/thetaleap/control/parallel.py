"""The time loop of `control.loop`, run ahead of the network: the same samples in fewer rounds.

Since every random number has an address, a run is a function of what the network answers. So it can be run ahead with
stale answers; the requests that it comes to are guesses, and are answered together, in one round. Then it is run
again, from the last state that was certain, and gets as far as the guesses were right, and one request further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from ..core.answers import Answers
from ..core.checks import is_whole, require
from ..core.evaluation import MEMORY, Denoiser
from ..core.free import FREE
from ..core.jumps import Share
from ..core.memory import Memory, put, take
from ..core.noise import Stream
from ..core.reverse import Reverse
from ..planners import FixedCount, LowDiscrepancy
from ..solvers.tweedie import Tweedie
from .base import Control
from .loop import Stage, State, stages, unfinished
from .pilots import counted

Window = int | Literal["auto"]
"""Requests of a sample that are answered together, at most; "auto": as many as its guesses earn it."""
FORESEEN = 16
"""Guesses of each sample that there is to be room for in memory, where the samples say how many they make."""


def batch_of(window: Window | None, room: int) -> int:
    """Samples to run together where there is `room` for the conditionals of so many sequences."""
    named = isinstance(window, str) and window == "auto"
    good = window is None or named or (is_whole(window) and int(window) > 0)
    require(good, "window", window, 'give a whole number of at least 1, or "auto"')
    return max(1, room // (FORESEEN if window == "auto" else window or 1))


def one_at_a_time(model: Denoiser) -> tuple[Tweedie, Tensor]:
    """A solver and its grid that unmask one position after the other, in the order that takes fewest rounds."""
    remedy = "draws one position after the other, which is for masked models; use Uniformization() here"
    require(model.process.mask is not None, "exact", True, remedy)
    line = getattr(model, "shape", None) == (model.length,)
    return Tweedie(LowDiscrepancy() if line else FixedCount()), counted(model, [1] * model.length)


@dataclass(frozen=True)
class Part:
    """Samples of a batch that have come to the same stage."""

    rows: Int64[Tensor, " k"]
    x: Int64[Tensor, "k d"]
    memory: Memory

    def __getitem__(self, some: Int64[Tensor, " n"]) -> Part:
        return Part(self.rows[some], self.x[some], take(self.memory, some))

    def __add__(self, other: Part) -> Part:
        both = torch.cat([self.rows, other.rows])
        places = torch.arange(len(both), device=both.device)
        padded = take(self.memory, places.clamp(max=len(self.rows) - 1))
        memory = put(padded, places[len(self.rows) :], other.memory)
        return Part(both, torch.cat([self.x, other.x]), memory)


def run(
    model: Denoiser,
    control: Control,
    times: Tensor,
    noise: Stream,
    *,
    window: Window,
    first: int = 0,
    template: Int64[Tensor, "b d"] | None = None,
    memory: int = MEMORY,
) -> Iterator[State]:
    """What `loop.run` gives, with up to `window` requests of each sample answered together.

    A stage is given when all samples have passed it; some may be ahead.
    """
    ahead = _Ahead(model, control, times, noise, first, template, memory, window)
    done = 0
    while done < len(ahead.walk):
        ahead.go()
        reached = min(ahead.waiting, default=len(ahead.walk))
        for n in range(done, reached):
            yield State(n, ahead.walk[n][0], ahead.x, ahead.whole, (), ahead.info)
            ahead.info = {}
        done = reached
        if ahead.waiting:
            ahead.answer()


class _Ahead:
    """A run that goes ahead: what of it is certain, and what is known of the rest."""

    def __init__(
        self,
        model: Denoiser,
        control: Control,
        times: Tensor,
        noise: Stream,
        first: int,
        template: Int64[Tensor, "b d"] | None,
        memory: int,
        window: Window,
    ) -> None:
        template = None if template is None else template.to(model.device)
        given, batch = None if template is None else template != FREE, noise.count
        self.control, self.noise = control, noise
        self.walk: list[tuple[float, Stage]] = list(stages(model, control, times, template))
        self.most = max(1, memory // (32 * model.length * model.process.states))
        """Sequences that the model is run for at a time."""
        guesses = None if window == "auto" else window
        whole = Reverse.begin(model, batch, first=first, start=float(times[0]), given=given, memory=memory)
        requests = whole.free.sum(1).clamp(max=control.rounds(times, model.length))
        self.answers = Answers(model, requests, guesses, max(2, self.most // batch))
        self.whole = replace(whole, memo=self.answers)
        self.x = torch.zeros((batch, model.length), dtype=torch.int64, device=model.device)
        self.nfe = self.whole.nfe.clone()
        everyone = torch.arange(batch, device=model.device)
        self.info: dict[str, Share] = {}
        """Statistics of what has become certain, since they were last told."""
        self.waiting = {0: Part(everyone, self.x, ())}
        """The certain states of samples that are not finished, by the stage that they come to next."""

    def go(self) -> None:
        """One pass, as far as answers and guesses go."""
        begin, self.waiting = self.waiting, {}
        part: Part | None = None
        for n in range(min(begin, default=0), len(self.walk)):
            if n in begin:
                part = begin[n] if part is None else part + begin[n]
            if part is not None:
                part = self._stage(n, part)
        self.whole.nfe.copy_(self.nfe)

    def answer(self) -> None:
        """Have all guesses of this pass answered, and begin the next."""
        self.answers.answer(self.whole.ask, self.most)
        self.whole.spent.copy_(self.answers.asked * self.whole.cost)
        self.answers.restart()

    def _stage(self, n: int, part: Part) -> Part | None:
        """Stage `n` of these samples, certain or not; those that go on from there."""
        (t, stage), rows, answers = self.walk[n], part.rows, self.answers
        reverse, before = self.whole[rows].at(n, t), answers.guesses[rows] == 0
        counts = self.whole.nfe.clone(), answers.next.clone()
        out = stage(reverse, self.noise.at(n)[rows], part.x, part.memory)
        after = answers.guesses[rows] == 0
        lost = torch.nonzero(before & ~after).flatten()
        if len(lost):
            self.waiting[n] = part[lost]
        kept = torch.nonzero(after).flatten()
        if len(kept):
            mine, found = rows[kept], out.info
            self.x = self.x.index_copy(0, mine, out.x[kept])
            self.nfe[mine], answers.certain[mine] = self.whole.nfe[mine], answers.next[mine]
            if found and len(kept) < len(rows):  # what is not certain does not count
                self.whole.nfe.copy_(counts[0])
                answers.next[mine] = counts[1][mine]
                found = stage(reverse[kept], self.noise.at(n)[mine], part.x[kept], take(part.memory, kept)).info
            for name, share in found.items():
                self.info[name] = self.info.get(name, Share(0, 0)) + share
        goes = after | (answers.guesses[rows] < answers.limit[rows])
        alive = unfinished(self.control, reverse, out.x)
        if alive is not None:
            goes &= torch.zeros_like(goes).index_fill(0, alive, True)
        if n + 1 == len(self.walk) or not bool(goes.any()):
            return None
        on = Part(rows, out.x, out.memory)
        return on if bool(goes.all()) else on[torch.nonzero(goes).flatten()]
