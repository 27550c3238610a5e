"""The only time loop: rounds in which a controller says what each sample does, and its solver does it.

Samples may wait, be at different times or in different windows; all of that is handled here, so that a solver steps a
batch in which everyone moves. `sample`, pilots and exact laws all run these lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..core import _fast
from ..core.evaluation import MEMORY, Denoiser
from ..core.free import FREE
from ..core.jumps import Share
from ..core.memory import Memory, put, take
from ..core.noise import Draw, Noise, Stream
from ..core.reverse import Reverse
from ..solvers.base import Step
from .base import Control, Turn

Stage = Callable[[Reverse, Noise, Tensor, Memory], Step]
"""One part of a run: the states and memory of a batch after it."""


@dataclass(frozen=True)
class State:
    """A batch after one stage of a run."""

    stage: int
    t: float
    """The time that was reached, by the sample that is furthest behind."""
    x: Int64[Tensor, "b d"]
    """All samples of the batch, finished ones too."""
    reverse: Reverse
    """Of the whole batch, with its counts."""
    memory: Memory
    """The solver's, of the samples that were not finished before."""
    info: dict[str, Share]


@dataclass(frozen=True, eq=False)
class Batch:
    """All samples of a batch between two stages; those that are finished stay as they are."""

    x: Int64[Tensor, "b d"]
    reverse: Reverse
    """Of the samples that are not finished, as is the memory."""
    memory: Memory = ()
    rows: Int64[Tensor, " k"] | None = None
    """Which those are; None if all."""

    def after(self, n: int, t: float, stage: Stage, control: Control, noise: Stream) -> tuple[Batch, Step]:
        """The batch after stage `n`, which goes down to time t; and what became of the samples that were in it."""
        rows = self.rows
        if rows is not None and not rows.shape[0]:
            return self, Step(self.x)
        local, mine = (noise.at(n), self.x) if rows is None else (noise.at(n)[rows], self.x.index_select(0, rows))
        out = stage(self.reverse.at(n, t), local, mine, self.memory)
        x = out.x if rows is None else self.x.index_copy(0, rows, out.x)
        alive = unfinished(control, self.reverse, out.x)
        if alive is None:
            return Batch(x, self.reverse, out.memory, rows), out
        rows = alive if rows is None else rows[alive]
        return Batch(x, self.reverse[alive], take(out.memory, alive), rows), out


def run(
    model: Denoiser,
    control: Control,
    times: Tensor,
    noise: Stream,
    *,
    first: int = 0,
    template: Int64[Tensor, "b d"] | None = None,
    memory: int = MEMORY,
) -> Iterator[State]:
    """Run one batch of samples, numbers ``first ...`` of the run; finished ones leave the batch.

    The counts of a state change as the run goes on: whoever keeps them takes a copy.
    """
    template = None if template is None else template.to(model.device)
    given = None if template is None else template != FREE
    start = float(times[0])
    whole = Reverse.begin(model, noise.count, first=first, start=start, given=given, memory=memory, remember=True)
    batch = Batch(torch.zeros((noise.count, model.length), dtype=torch.int64, device=model.device), whole)
    for n, (t, stage) in enumerate(stages(model, control, times, template)):
        batch, out = batch.after(n, t, stage, control, noise)
        yield State(n, t, batch.x, whole, out.memory[1] if out.memory else (), out.info)


def stages(
    model: Denoiser, control: Control, times: Tensor, template: Int64[Tensor, "#b d"] | None = None
) -> Iterator[tuple[float, Stage]]:
    """All of a run: fresh noise, the rounds, and the finish; each with the time it reaches, where that is known."""

    def start(reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
        x = model.process.prior(len(x), model.length, noise).to(model.device)
        if template is not None:
            x = torch.where(template == FREE, x, template)
        return Step(x, (control.begin(reverse, x, times), ()))

    def finish(reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
        return Step(_finished(reverse, x, times[-1].expand(len(x)), noise))

    stops, parts = times.tolist(), control.solver.parts
    yield stops[0], start
    for n in range(control.rounds(times, model.length)):
        yield stops[min(n // parts + 1, len(stops) - 1)], partial(advance, control, times, n)
    yield 0.0, finish


def advance(control: Control, times: Tensor, n: int, reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
    """Round `n` of samples that are not finished."""
    rows = control.stepping(reverse, x, times)
    if rows is not None:  # the others have come to the end of the grid, and wait for the finish
        if not rows.shape[0]:
            return Step(x, memory)
        out = advance(control, times, n, reverse[rows], noise[rows], x[rows], take(memory, rows))
        return Step(x.index_copy(0, rows, out.x), put(memory, rows, out.memory), out.info)
    led, kept = memory
    turn = control.next(n, reverse, x, times, led, noise)
    kept = _opened(control, turn, x, kept, noise)
    rows = _moving(control, turn, reverse, x, kept)
    before, info = x, turn.info
    if rows is None:
        out = control.solver.step(turn.reverse, x, turn.t, turn.s, noise, kept)
        x, kept, info = out.x, out.memory, {**info, **out.info}
    elif rows.shape[0]:
        part = turn.reverse[rows]
        mine = x[rows] if part.ready is None else part.ready.x
        out = control.solver.step(part, mine, turn.t[rows], turn.s[rows], noise[rows], take(kept, rows))
        x, kept, info = x.index_copy(0, rows, out.x), put(kept, rows, out.memory), {**info, **out.info}
    given = turn.reverse.given
    if given is not None and not _fast.same(before, x, given):
        raise RuntimeError(_complaint(control, before, x, given))
    if turn.closes is not None:
        rows = torch.nonzero(turn.closes).flatten()
        ended = _finished(turn.reverse[rows], x[rows], turn.s[rows], noise[rows])
        x = x.index_copy(0, rows, ended)
    return Step(control.close(turn.reverse, x), (turn.memory, kept), info)


def _opened(control: Control, turn: Turn, x: Tensor, kept: Memory, noise: Noise) -> Memory:
    """The solver's memory, begun anew for samples whose window is new."""
    if turn.opens is None:
        return kept
    assert turn.stops is not None
    rows = _fast.some_but_not_all(turn.opens)
    if rows is None:
        return control.solver.begin(turn.reverse, x, turn.stops, noise(Draw.BEGIN))
    new = control.solver.begin(turn.reverse[rows], x[rows], turn.stops[rows], noise(Draw.BEGIN)[rows])
    return put(kept, rows, new)


def _moving(control: Control, turn: Turn, reverse: Reverse, x: Tensor, kept: Memory) -> Tensor | None:
    """The samples that move in this round; None if all do."""
    solver, waits = control.solver, control.solver.waits(turn.reverse, x, turn.t, turn.s, kept)
    if turn.reverse.given is not reverse.given and solver.absorbing(reverse.process):
        done = ~_fast.any_in_row(turn.reverse.active(x))
        waits = done if waits is None else waits | done
    return None if waits is None else _fast.false_rows(waits)


def unfinished(control: Control, reverse: Reverse, x: Int64[Tensor, "b d"]) -> Int64[Tensor, " k"] | None:
    """Rows of `x` that can still change; None if all can."""
    absorbing = control.solver.absorbing(reverse.process)
    if not absorbing and reverse.given is None:
        return None
    return _fast.some_but_not_all(_fast.any_in_row(reverse.active(x) if absorbing else reverse.free))


def _finished(reverse: Reverse, x: Tensor, t: Tensor, noise: Noise) -> Tensor:
    """What noise is left at time t is drawn from the exact one-position kernel to clean data."""
    if reverse.process.mask is None:
        noisy: Bool[Tensor, " b"] = (reverse.alpha(t) < 1).expand(len(x)).to(x.device)
    else:
        noisy = _fast.any_in_row(reverse.active(x))
    rows = _fast.some_but_not_all(noisy)
    if rows is None:
        return reverse.move(x, reverse.evaluate(x, t), t, None, noise(Draw.FINISH))
    if not rows.shape[0]:
        return x
    part, mine = reverse[rows], x[rows]
    drawn = part.move(mine, part.evaluate(mine, t[rows]), t[rows], None, noise(Draw.FINISH)[rows])
    return x.index_copy(0, rows, drawn)


def _complaint(control: Control, before: Tensor, after: Tensor, given: Tensor) -> str:
    row, position = torch.nonzero((before != after) & given)[0].tolist()
    return (
        f"solver={control.solver!r} has changed position {position} of row {row} of its batch, which is not free; a "
        "solver may write in reverse.free alone"
    )
