"""The process run backwards with a model's conditionals: the one place where evaluations happen and are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..conditioning.wrappers import cost_of
from .checks import as_time
from .evaluation import MEMORY, Conditionals, Denoiser, Evaluation, Gathered, Prediction, of_samples
from .free import Held
from .intensity import Frozen
from .jumps import move
from .noise import Noise
from .processes import Process

Evaluate = Callable[[Tensor, Tensor, Tensor], Conditionals]
"""Evaluate sequences at a time, which are these rows of the batch."""


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


@dataclass(frozen=True)
class Reverse:
    """`model` run backwards for a batch of samples.

    `nfe` counts the evaluations that each has used, and `spent` those for which the network was run: a model that
    ignores time is not run again, if there is a `memo`, for a sample that has not changed.
    """

    model: Denoiser
    nfe: Int64[Tensor, " batch"]
    spent: Int64[Tensor, " batch"]
    samples: Int64[Tensor, " batch"]
    """Their numbers in the run."""
    rows: Int64[Tensor, " b"] | None = None
    where: str = "the first step"
    memo: Memo | None = None
    memory: int = MEMORY
    cost: int = 1
    """What one evaluation of a sample counts for."""
    free: Bool[Tensor, "batch d"] | None = None
    """Positions that may change, if not all."""

    @staticmethod
    def start(
        model: Denoiser,
        batch: int,
        first: int = 0,
        memory: int = MEMORY,
        remember: bool = False,
        free: Bool[Tensor, "batch d"] | None = None,
    ) -> Reverse:
        """Before the first evaluation of samples ``first ...``."""
        none = torch.zeros(batch, dtype=torch.int64, device=model.device)
        samples = torch.arange(first, first + batch, device=model.device)
        memo = Memo(batch, model.length, model.device) if remember and model.time_free else None
        return Reverse(model, none, none.clone(), samples, memo=memo, memory=memory, cost=cost_of(model), free=free)

    def at(self, where: str, rows: Int64[Tensor, " b"] | None) -> Reverse:
        """The same in a step that errors are to name, for these rows of the batch, or all."""
        same = (self.samples, rows, where, self.memo, self.memory, self.cost, self.free)
        return Reverse(self.model, self.nfe, self.spent, *same)

    @property
    def process(self) -> Process:
        """The model's, for these samples."""
        if self.free is None:
            return self.model.process
        return Held(self.model.process, self.free if self.rows is None else self.free[self.rows])

    def held(self, free: Bool[Tensor, "b d"]) -> Reverse:
        """The same where only the positions `free` of these samples may change."""
        if self.rows is None:
            return replace(self, free=free)
        none = torch.zeros((len(self.nfe), free.shape[1]), dtype=torch.bool, device=free.device)
        return replace(self, free=none.index_copy(0, self.rows, free))

    def __getitem__(self, rows: Int64[Tensor, " b"]) -> Reverse:
        """The same for the samples at `rows` of this batch."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def evaluate(self, x: Int64[Tensor, "b d"], t: float | Tensor) -> Evaluation:
        """Evaluate the model on every row of `x`, at one time or at one time per row."""
        time, samples = as_time(t), self.samples if self.rows is None else self.samples[self.rows]
        if self.memo is None:
            conditionals, fresh = of_samples(self.model, samples)(x, time), self.rows
        else:
            rows = torch.arange(len(self.nfe), device=x.device) if self.rows is None else self.rows
            conditionals, new = self.memo.evaluate(self._evaluate, x, time, rows)
            fresh = rows[new]
        for count, used in ((self.nfe, self.rows), (self.spent, fresh)):
            if used is None:
                count.add_(self.cost)
            else:
                count[used] += self.cost
        return Evaluation(x, time, conditionals, self.process.states, self.where, samples, self.memory)

    def _evaluate(self, x: Tensor, t: Tensor, rows: Tensor) -> Conditionals:
        return of_samples(self.model, self.samples[rows])(x, t)

    def intensity(self, x: Int64[Tensor, "b d"], t: float | Tensor) -> Frozen:
        """Evaluate the model, and give the reverse intensity at (x, t)."""
        return Frozen(self.process, self.evaluate(x, t))

    def move(self, x: Int64[Tensor, "b d"], prediction: Prediction, t: float, s: float | None, noise: Noise) -> Tensor:
        """Move every position by its exact one-position kernel from t to s, or all the way to clean data (s = None)."""
        alpha = self.process.schedule.alpha
        clean = torch.ones((), dtype=torch.float64)
        return move(self.process, x, prediction, alpha(t), clean if s is None else alpha(s), noise)
