"""A run whose network somebody else runs: an engine that evaluates a batch, hands over the logits and takes the next.

The lines are those of `control.loop`. A stage of a run is a function of what the network answers, since every random
number has an address. So it is run until it asks for an answer that is not there; the question goes out, and with the
answer the stage is run again from its start. Solvers see nothing of this.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ..conditioning.answering import Manner
from ..conditioning.wrappers import constrained, tempered
from ..control.base import control_of
from ..control.loop import Batch, stages
from ..core.checks import require
from ..core.evaluation import Conditionals, Dense
from ..core.memory import Memory
from ..core.noise import Noise, Stream
from ..core.philox import word
from ..core.processes import Process
from ..core.reverse import Reverse
from ..models.network import LeaveOneOut
from ..sampling import plan
from ..solvers.base import Step


class Ask(Exception):
    """A question that the network has not answered: about samples `rows` of the batch, which are `x`, at time t."""

    def __init__(self, x: Tensor, t: Tensor, rows: Tensor) -> None:
        super().__init__("the network has not been asked about this")
        self.x, self.t, self.rows = x, t, rows


@dataclass(frozen=True, eq=False)
class Told:
    """A model that knows what it was told: it gives these `answers` in turn, and asks for the next."""

    process: Process
    length: int
    device: torch.device
    posterior: bool = False
    """Whether answers are given all positions, the one that they are about included."""
    time_free: bool = True
    samples: Int64[Tensor, " b"] = field(default_factory=lambda: torch.arange(0))
    answers: list[Float[Tensor, "batch d S"]] = field(default_factory=list)

    @property
    def horizon(self) -> float:
        return self.process.schedule.horizon

    def of(self, samples: Int64[Tensor, " b"]) -> Told:
        return replace(self, samples=samples)

    def inspect(self, given: Int64[Tensor, " d"] | None = None) -> None:
        """There is a network, as solvers want to know, but not here to be looked through."""

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        if not self.answers:
            raise Ask(x, t, self.samples)
        whole = self.answers.pop(0)
        said = Dense(whole if len(x) == len(whole) else whole[self.samples])
        return LeaveOneOut(said, x, t, self.process) if self.posterior else said


class Driven:
    """A batch on its way from noise to data.

    `x` is what the network is to be asked next, at `t`, shape (b,), until it is `done`; `tell` takes what it said. Sample i is a
    function of (seed, i), and the same that `sample` draws with these settings, if the network is the same.
    """

    def __init__(
        self,
        manner: Manner,
        process: Process,
        x: Int64[Tensor, "b d"],
        *,
        seed: int,
        given: Bool[Tensor, "b d"] | None = None,
        mask: int | None = None,
        posterior: bool = False,
        time_free: bool = True,
    ) -> None:
        """`x` is noise where it is not `given`. `mask` is the number that the engine has for the mask token."""
        self.mask = mask
        self._told = Told(process, x.shape[1], x.device, posterior, time_free)
        # the engine's own mask token may have a logit, and is never drawn
        inner = self._told if mask is None or mask >= process.states else constrained(self._told, forbid=[mask])
        model = tempered(inner, manner.temperature, manner.top_k, manner.top_p)
        self._control, self._noise = control_of(manner.solver), Stream(seed, 0, len(x), x.device)
        budget = {"nfe": manner.nfe, "steps": manner.steps, "grid": manner.grid, "delta": manner.delta}
        given = given if given is not None and bool(given.any()) else None
        free = x.shape[1] if given is None else max(1, int((~given).sum(1).max()))
        times = plan(model, manner.solver, **budget, positions=free)

        def start(reverse: Reverse, noise: Noise, x: Tensor, memory: Memory) -> Step:
            return Step(x, (self._control.begin(reverse, x, times), ()))

        (first, _), *rest = stages(model, self._control, times)
        self._walk = list(enumerate([(first, start), *rest]))
        whole = Reverse.begin(model, len(x), start=float(times[0]), given=given)
        self._batch = Batch(self._known(self._inner(x)), whole)
        self._answers: list[Tensor] = []
        self._asked, self._changed = self._batch.x, torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.t = torch.full((len(x),), first, dtype=torch.float64, device=x.device)
        self._go(self._asked)

    @property
    def done(self) -> bool:
        """Whether all samples are data, and the network need not be asked any more."""
        return not self._walk

    @property
    def x(self) -> Int64[Tensor, "b d"]:
        """What to ask the network next, or the samples, with the engine's number for the mask."""
        return self._asked if self.mask is None else torch.where(self._asked == self._states, self.mask, self._asked)

    def tell(self, logits: Float[Tensor, "b d S"], x: Int64[Tensor, "b d"]) -> None:
        """The network said `logits` about `x`: what was asked, but for samples that the engine has changed since.

        A change between two steps is gone on from. Within a step it is kept for the step's end: the engine is done
        with such a sample, and writes it as it likes.
        """
        require(logits.shape[-1] == self._states, "logits", tuple(logits.shape), f"need {self._states} values a row")
        seen = self._inner(x)
        if self.done:
            self._asked = seen
            return
        self._changed |= (seen != self._asked).any(1)
        if not self._answers:
            self._adopt(seen)
        self._answers.append(logits.detach())
        self._go(seen)

    @property
    def _states(self) -> int:
        return self._told.process.states

    def _inner(self, x: Tensor) -> Tensor:
        """`x` with our number for the mask, which is one above all tokens."""
        return x if self.mask is None else torch.where(x == self.mask, self._states, x)

    def _known(self, x: Tensor) -> Tensor:
        """`x`, if all of it are tokens or masks."""
        wrong = (x < 0) | (x >= self._states) & (x != self._told.process.mask)
        if bool(wrong.any()):
            told = f"the network has logits for 0 to {self._states - 1}; if this is the mask, name it as such"
            raise ValueError(f"token={int(x[wrong][0])}: {told}")
        return x

    def _adopt(self, seen: Tensor) -> None:
        """Take samples that the engine has changed as they are."""
        if bool(self._changed.any()):
            self._batch = replace(self._batch, x=torch.where(self._changed.unsqueeze(1), seen, self._batch.x))
            self._changed.zero_()

    def _go(self, seen: Tensor) -> None:
        """Go as far as the answers reach."""
        while self._walk:
            n, (t, stage) = self._walk[0]
            self._told.answers[:] = self._answers
            try:
                self._batch, _ = self._batch.after(n, t, stage, self._control, self._noise)
            except Ask as ask:
                self._asked = self._batch.x.index_copy(0, ask.rows, ask.x)
                self.t = self.t.index_copy(0, ask.rows, ask.t.to(self.t.device).expand(len(ask.rows)))
                return
            self._adopt(seen)
            self._walk.pop(0)
            self._answers.clear()
        self._asked = self._batch.x


def seed_of(*parts: int | str) -> int:
    """A seed that is a function of all of these."""
    return word("/".join(map(str, parts)))
