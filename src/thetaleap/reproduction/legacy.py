"""First-order solvers with the precision of published code, to see what it does to samples. Not for use.

Published code draws a value, or none, by ``argmax p/e`` with exponential noise ``e = -log u`` of float32 uniforms, all
multiples of 2^-24. So is e where it is small, and of a small probability p there is left ``r/(e^r - 1)``, with
``r = 2^-24/p``. And p is that of one step: a value's own probability divided by the number of steps. What is masked at
the end becomes the likeliest value. Both make rare values rarer, the first the more so the more steps there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from ..core.checks import require_choice
from ..core.evaluation import Evaluation
from ..core.memory import Memory
from ..core.noise import Draw, Noise, Stream
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times
from ..solvers.base import Solver, Step, require_masked

Law = Literal["euler", "tau-leaping", "tweedie"]
LAWS = ("euler", "tau-leaping", "tweedie")
BITS = 24
TINY = 1e-10
"""Added in published code, so that no logarithm is of 0."""
AT_ONCE = 2**20
"""Numbers for each sample that are made at a time."""


@dataclass(frozen=True)
class Legacy(Solver):
    """One evaluation per step: every masked position draws a value or its mask, in float32, as published code does.

    The probability of leaving the mask is that of `Euler`, of `TauLeaping` with rule "reject", or of `Tweedie`. The
    step that ends the grid also fills what masks are left, by the likeliest value, with one more evaluation.
    """

    law: Law
    evaluations = 1

    def __post_init__(self) -> None:
        require_choice("law", self.law, LAWS)

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "Tweedie()")

    def begin(self, reverse: Reverse, x: Tensor, stops: Float64[Tensor, "#b m"], noise: Noise) -> Memory:
        return stops[:, -1].expand(len(x)).to(x.device)

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        if not isinstance(noise, Stream):
            raise TypeError(f"noise={type(noise).__name__}: rounded noise has no exact law here; draw samples")
        evaluation, leaves = reverse.evaluate(x, t), self.leaving(reverse.process, float(t[0]), float(s[0]))
        x, numbers = x.clone(), evaluation.states + 1
        for part in torch.arange(x.shape[1]).split(max(1, AT_ONCE // numbers)):
            first = int(part[0])
            asked = torch.ones((len(x), len(part) * numbers), dtype=torch.bool)
            _fill(x, first, evaluation, leaves, noise(Draw.VALUE, first).clock(asked))
        if bool(s[0] == memory[0]):
            left = torch.nonzero((x == reverse.process.mask).any(1)).flatten()
            if len(left):
                x = x.index_copy(0, left, likeliest(x[left], reverse[left].evaluate(x[left], s[left])))
        return Step(x, memory)

    def leaving(self, process: Process, t: float, s: float) -> float:
        """The probability that a position is unmasked between t and s."""
        schedule = process.schedule
        alpha, after = float(schedule.alpha(t)), float(schedule.alpha(s))
        if self.law == "tweedie":
            return (after - alpha) / (1 - alpha)
        total = float(schedule.sigma(t)) * alpha / (1 - alpha) * (t - s)
        return min(1.0, total) if self.law == "euler" else total * math.exp(-total)


def _fill(
    x: Int64[Tensor, "b d"], first: int, evaluation: Evaluation, leaves: float, u: Float64[Tensor, "b n"]
) -> None:
    """Draw the masked positions of `x` from `first` on, for as many as there are numbers; written to `x`."""
    mask, length = evaluation.states, x.shape[1]
    part = x[:, first : first + u.shape[1] // (mask + 1)]
    which, column = torch.nonzero(part == mask, as_tuple=True)
    numbers = u.view(len(x), -1, mask + 1)
    for some in torch.arange(len(which), device=x.device).split(evaluation.at_once):
        rows, columns = which[some], column[some]
        c = evaluation.probabilities(rows * length + first + columns).to(torch.float32)
        part[rows, columns] = drawn(c, leaves, numbers[rows, columns])


def drawn(c: Float32[Tensor, "n S"], leaves: float, u: Float64[Tensor, "n more"]) -> Int64[Tensor, " n"]:
    """``argmax p/e`` over the values, ``p = leaves c``, and last the mask; the noise e is made of `u`."""
    moves = c * leaves
    p = torch.cat([moves, 1 - moves.sum(1, keepdim=True)], 1)
    return (p / exponential(u)).argmax(1)


def exponential(u: Float64[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    """Exponential noise in float32, of uniforms rounded down to multiples of 2^-24."""
    rounded = (torch.floor(u * 2**BITS) * 2.0**-BITS).to(torch.float32)
    return TINY - torch.log(rounded + TINY)


def likeliest(x: Int64[Tensor, "b d"], evaluation: Evaluation) -> Int64[Tensor, "b d"]:
    """`x` with the likeliest value at each mask."""
    flat = x.flatten().clone()
    for some in torch.nonzero(flat == evaluation.states).flatten().split(evaluation.at_once):
        flat[some] = evaluation.probabilities(some).argmax(1)
    return flat.view_as(x)
