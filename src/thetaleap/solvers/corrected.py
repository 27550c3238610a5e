"""Predictor and corrector: sweeps between the steps of any solver."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from ..core import _fast
from ..core.checks import require
from ..core.fields import knob
from ..core.memory import Memory, put, take
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Solver, Step
from .correctors import Corrector, Gibbs
from .tweedie import Tweedie

IS_SOLVER = {"kind": Solver, "written": "a solver with its parameters, as in Tweedie()"}
IS_CORRECTOR = {"kind": Corrector, "written": "a corrector with its parameters, as in Gibbs(k=1)"}


@dataclass(frozen=True)
class Corrected(Solver):
    """Steps of the `predictor`; after every `every`-th of them, `sweeps` sweeps of the `corrector` at the time that was
    reached, the last step's included (Song et al. 2021; for discrete processes Campbell et al. 2022).

    A sweep costs an evaluation of each sample, within the budget: ``nfe`` evaluations pay for fewer steps. Samples stay
    until the end of the run, since a sweep may change what has no mask. Without sweeps, this is the predictor.
    """

    predictor: Solver = knob(help="The solver whose steps are corrected", default_factory=Tweedie, **IS_SOLVER)
    corrector: Corrector = knob(help="What redraws positions between steps", default_factory=Gibbs, **IS_CORRECTOR)
    every: int = knob(1, "Steps from one correction to the next", least=1)
    sweeps: int = knob(1, "Sweeps of each correction", least=0)
    evaluations = 2
    when = "to spend evaluations on what is written already: errors of steps that unmask many at once"

    def __post_init__(self) -> None:
        super().__post_init__()
        twice = isinstance(self.predictor, Corrected)
        require(not twice, "predictor", self.predictor, "is corrected already; give one corrector")
        each = self.predictor.evaluations
        most = None if each is None else each + self.sweeps * self.corrector.evaluations
        object.__setattr__(self, "evaluations", most)  # of a step with a correction
        object.__setattr__(self, "parts", 1 + self.sweeps)
        object.__setattr__(self, "exact_kernels", self.predictor.exact_kernels)

    def check(self, process: Process, length: int) -> None:
        self.predictor.check(process, length)
        self.corrector.check(process, length)

    def cost(self, steps: int) -> int:
        return self.predictor.cost(steps) + steps // self.every * self.sweeps * self.corrector.evaluations

    def reaches_data(self, process: Process) -> bool:
        return self.predictor.reaches_data(process)

    def absorbing(self, process: Process) -> bool:
        return not self.sweeps and self.predictor.absorbing(process)

    def begin(self, reverse: Reverse, x: Tensor, stops: Tensor, noise: Noise) -> Memory:
        steps = int((stops[:, 1:] < stops[:, :-1]).sum(1).min())
        remedy = f"there are {steps} steps, of which none would be corrected; give at most {steps}, or more steps"
        require(self.every <= steps, "every", self.every, remedy)
        plan = self.corrector.begin(reverse, x, noise(Draw.SWEEP))
        return self.predictor.begin(reverse, x, stops, noise), plan, torch.zeros_like(x[:, 0])

    def waits(self, reverse: Reverse, x: Tensor, t: Times, s: Times, memory: Memory) -> Bool[Tensor, " b"] | None:
        return None if self.sweeps else self.predictor.waits(reverse, x, t, s, memory[0])

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        kept, plan, taken = memory
        step, part = taken // self.parts, int(taken[0]) % self.parts
        if part == 0:
            out = self._predicted(reverse, x, t, s, noise, kept)
            return Step(out.x, (out.memory, plan, taken + 1), out.info)
        rows = _fast.some_but_not_all((step + 1) % self.every == 0)
        if rows is None:
            x, plan = self.corrector.sweep(reverse, x, s, noise(Draw.SWEEP), plan)
        elif len(rows):
            part = self.corrector.sweep(reverse[rows], x[rows], s[rows], noise(Draw.SWEEP)[rows], take(plan, rows))
            x, plan = x.index_copy(0, rows, part[0]), put(plan, rows, part[1])
        return Step(x, (kept, plan, taken + 1))

    def _predicted(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        """A step of the predictor, for the samples that it may change."""
        moving = torch.ones_like(x[:, 0], dtype=torch.bool)
        if self.predictor.absorbing(reverse.process):
            moving = _fast.any_in_row(reverse.active(x))
        waits = self.predictor.waits(reverse, x, t, s, memory)
        rows = _fast.some_but_not_all(moving if waits is None else moving & ~waits)
        if rows is None:
            return self.predictor.step(reverse, x, t, s, noise, memory)
        if not len(rows):
            return Step(x, memory)
        out = self.predictor.step(reverse[rows], x[rows], t[rows], s[rows], noise[rows], take(memory, rows))
        return Step(x.index_copy(0, rows, out.x), put(memory, rows, out.memory), out.info)
