"""The process run backwards with a model's conditionals: the one place where evaluations happen and are counted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from . import _fast
from .answers import Answers, Evaluate
from .evaluation import MEMORY, Conditionals, Denoiser, Evaluation, Gathered, Prediction, of_samples
from .intensity import Frozen
from .jumps import move
from .noise import Noise, PerSample
from .processes import Process
from .schedules import alpha_sigma
from .times import Times, as_time, column, common, shared
from .wrapped import cost_of


class Memo:
    """The last evaluation of every sample of a batch, for models that ignore time."""

    def __init__(self, batch: int, length: int, device: torch.device) -> None:
        self.x = torch.full((batch, length), -1, dtype=torch.int64, device=device)
        self.known: Gathered | None = None

    def evaluate(self, run: Evaluate, x: Tensor, t: Tensor, rows: Tensor) -> tuple[Conditionals, Tensor]:
        """What a model says about `x`, samples `rows` of the batch; and which of them it had to be run for."""
        fresh = torch.nonzero((self.x[rows] != x).any(1)).flatten()
        if self.known is not None and len(fresh) == 0:
            return self.known[rows], fresh
        some = fresh if len(fresh) < len(rows) else slice(None)
        new = run(x[some], t if t.ndim == 0 else t[some], rows[some])
        if new.duplicates() is not None:  # each kind is worked out once as it is
            return (new if isinstance(some, slice) else run(x, t, rows)), torch.arange(len(rows), device=x.device)
        part = Gathered.of(new, len(fresh), x.shape[1], x.device)
        self.x[rows] = x
        if self.known is None:
            each = torch.zeros(len(self.x), dtype=torch.int64, device=x.device)
            self.known = Gathered(part.parts, each, each, x.shape[1])
        self.known = self.known.replaced(rows[fresh], part)
        return (new if isinstance(some, slice) else self.known[rows]), fresh


@dataclass(frozen=True, eq=False)
class Reverse:
    """`model` run backwards for the samples of a batch, or for some `rows` of it.

    `nfe` counts the evaluations that each has used, and `spent` those for which the network was run: a model that
    ignores time is not run again, if there is a `memo`, for a sample that has not changed.
    """

    model: Denoiser
    nfe: Int64[Tensor, " batch"]
    spent: Int64[Tensor, " batch"]
    samples: Int64[Tensor, " batch"]
    """Their numbers in the run."""
    start: Times
    """The time at which the free positions of each were nothing but noise."""
    given: Bool[Tensor, "b d"] | None = None
    """Positions that may not change, of these samples; None if all are free."""
    rows: Int64[Tensor, " b"] | None = None
    where: tuple[int, float] | str = "the first step"
    """The stage of the run and the time that it goes down to, for errors to name."""
    memo: Memo | Answers | None = None
    memory: int = MEMORY
    cost: int = 1
    """What one evaluation of a sample counts for."""
    ready: Evaluation | None = None
    """An evaluation of these samples that is there already, and has been counted."""
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)
    """The last sequences whose active positions were asked for, and these: several ask in one step."""
    counted: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)
    """The same of how many there are."""

    @staticmethod
    def begin(
        model: Denoiser,
        batch: int,
        *,
        first: int = 0,
        start: float | None = None,
        given: Bool[Tensor, "b d"] | None = None,
        memory: int = MEMORY,
        remember: bool = False,
    ) -> Reverse:
        """Before the first evaluation of samples ``first ...``, which are noise at the time `start`."""
        none = torch.zeros(batch, dtype=torch.int64, device=model.device)
        samples = torch.arange(first, first + batch, device=model.device)
        memo = Memo(batch, model.length, model.device) if remember and model.time_free else None
        begin = shared(model.horizon if start is None else start)
        counts = (none, none.clone(), samples, begin, given)
        return Reverse(model, *counts, memo=memo, memory=memory, cost=cost_of(model))

    def at(self, stage: int, t: float) -> Reverse:
        """The same in a stage of the run, down to time t, for errors to name."""
        # what dataclasses.replace does, in a quarter of the time
        other = object.__new__(Reverse)
        other.__dict__.update(self.__dict__, where=(stage, t))
        return other

    def __getitem__(self, rows: Int64[Tensor, " b"]) -> Reverse:
        """The same for the samples at `rows` of these."""
        return replace(
            self,
            rows=rows if self.rows is None else self.rows[rows],
            start=self.start if self.start.ndim == 0 else self.start[rows],
            given=None if self.given is None else self.given[rows],
            ready=None if self.ready is None else self.ready[rows],
            seen=[],
            counted=[],
        )

    def within(self, window: Bool[Tensor, "b d"], start: Times) -> Reverse:
        """The same where only the free positions in `window` may change, which were noise at the time `start`."""
        given = ~window if self.given is None else self.given | ~window
        return replace(self, given=given, start=shared(start), seen=[], counted=[])

    @property
    def process(self) -> Process:
        return self.model.process

    @property
    def rounds(self) -> Int64[Tensor, " batch"]:
        """In how many batches after each other the network was run for each: once for each evaluation, but for runs
        that go ahead of it."""
        return self.memo.rounds if isinstance(self.memo, Answers) else self.spent // self.cost

    @property
    def free(self) -> Bool[Tensor, "b d"]:
        """Positions that may change."""
        if self.given is not None:
            return ~self.given
        batch = len(self.nfe) if self.rows is None else len(self.rows)
        return torch.ones((), dtype=torch.bool, device=self.model.device).expand(batch, self.model.length)

    @property
    def room(self) -> int | Int64[Tensor, " b"]:
        """How many positions of each sample are free."""
        return self.model.length if self.given is None else self.model.length - _fast.count_in_row(self.given)

    def active(self, x: Int64[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
        """Positions that can still jump: free and, for masked processes, masked."""
        for known, active in self.seen:
            if known is x:
                return active
        active = self.process.active(x)
        active = active if self.given is None else active & ~self.given
        self.seen[:] = [(x, active), *self.seen[:1]]
        return active

    def left(self, x: Int64[Tensor, "b d"]) -> Int64[Tensor, " b"]:
        """How many positions of each sample are active."""
        for known, left in self.counted:
            if known is x:
                return left
        left = _fast.count_in_row(self.active(x))
        self.counted[:] = [(x, left), *self.counted[:1]]
        return left

    def alpha(self, t: float | Tensor) -> Times:
        """Of the schedule, shape () where all samples are at one time."""
        time, schedule = common(t), self.process.schedule
        return schedule.alpha(t) if time is None else as_time(alpha_sigma(schedule, time)[0])

    def noised(self, t: float | Tensor) -> PerSample:
        """``1 - alpha(t)``: one number, or a column."""
        time, schedule = common(t), self.process.schedule
        return column(1 - schedule.alpha(t)) if time is None else 1 - alpha_sigma(schedule, time)[0]

    def evaluate(self, x: Int64[Tensor, "b d"], t: float | Tensor) -> Evaluation:
        """Evaluate the model on every row of `x`, at one time or at one time per row."""
        if self.ready is not None and self.ready.x is x:
            return self.ready
        time, samples = shared(t), self.samples if self.rows is None else self.samples[self.rows]
        if self.memo is None:
            conditionals, fresh = of_samples(self.model, samples)(x, time), self.rows
        else:
            rows = torch.arange(len(self.nfe), device=x.device) if self.rows is None else self.rows
            conditionals, new = self.memo.evaluate(self.ask, x, time, rows)
            fresh = rows[new]
        _fast.add_to(self.nfe, self.rows, self.cost)
        _fast.add_to(self.spent, fresh, self.cost)
        return Evaluation(x, time, conditionals, self.process.states, self.where, samples, self.memory)

    def ask(self, x: Tensor, t: Tensor, rows: Tensor) -> Conditionals:
        """Run the model for these rows of the batch, and count nothing."""
        return of_samples(self.model, self.samples[rows])(x, t)

    def intensity(self, x: Int64[Tensor, "b d"], t: float | Tensor) -> Frozen:
        """Evaluate the model, and give the reverse intensity at (x, t)."""
        return self.frozen(self.evaluate(x, t))

    def frozen(self, evaluation: Evaluation) -> Frozen:
        """The reverse intensity by an evaluation."""
        return Frozen(self.process, evaluation, None if self.given is None else ~self.given)

    def move(
        self, x: Int64[Tensor, "b d"], prediction: Prediction, t: float | Tensor, s: float | Tensor | None, noise: Noise
    ) -> Int64[Tensor, "b d"]:
        """Move every free position by its exact one-position kernel from t to s, or all the way to clean data
        (s = None)."""
        clean = torch.ones((), dtype=torch.float64)
        end = clean if s is None else self.alpha(s)
        return move(self.process, x, prediction, self.alpha(t), end, noise, None if self.given is None else ~self.given)
