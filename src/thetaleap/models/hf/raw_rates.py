"""SEDD's own sampler, with the ratios that a network gives as they are: to compare with samples of published code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import require
from ...core.jumps import Rows, jump
from ...core.memory import Memory
from ...core.noise import Draw, Noise
from ...core.processes import Masked, Process, Uniform
from ...core.reverse import Reverse
from ...core.times import Times, at
from ...solvers.base import Solver, Step
from ..network import Headed


@dataclass(frozen=True)
class RawRates(Solver):
    """The analytic predictor of SEDD (Lou et al. 2024, Algorithm 2), for models of ``sedd:`` and no others.

    With ratios r(v) of the network, r = 1 for the present token, and ``e = alpha_t / alpha_s``, a position is drawn from
    ``(r e^-1 - (e^-1 - 1) mean(r)) K(v, present)``, K being the forward kernel of the step; with masks, a masked one is
    unmasked with probability ``(e^-1 - 1) sum(r)``. Nothing is scaled to the ratios of a law. As in published code, what
    comes out below 0 is taken as 0, and the rest divided by its sum. Where ratios are those of a law, this is `Tweedie`.
    """

    evaluations = 1
    when = "to draw as published SEDD code does, from ratios that may be those of no law"

    def check(self, process: Process, length: int) -> None:
        good = isinstance(process, Masked | Uniform)
        require(good, "process", type(process).__name__, "RawRates is for models of sedd:; use Tweedie() here")

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        now, length, masked = reverse.evaluate(x, t), x.shape[1], reverse.process.mask is not None
        said = now.conditionals
        head = said.head if isinstance(said, Headed) else None
        if not isinstance(said, Headed) or not isinstance(head, Scores):
            raise ValueError(
                f"model={type(reverse.model).__name__}: RawRates needs the score ratios that models of sedd: give; give "
                "one of these by itself, or use Tweedie()"
            )
        keep = reverse.alpha(t) / reverse.alpha(s)

        def weights(positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
            ratios, kept = head.ratios(said.hidden[positions]), at(keep, positions, length)
            if masked:
                jumps = ratios * (1 / kept - 1)
                return jumps / jumps.sum(1, keepdim=True).clamp(min=1)
            present = torch.nn.functional.one_hot(x.flatten()[positions], ratios.shape[1])
            kernel = kept * present + (1 - kept) / ratios.shape[1]
            return ((ratios / kept - (1 / kept - 1) * ratios.mean(1, keepdim=True)) * kernel).clamp_min(0)

        positions = torch.nonzero(reverse.active(x).flatten()).flatten()
        rows = Rows(weights, positions, None, now.at_once)
        return Step(jump(x, positions, rows, noise(Draw.MOVE), masked, None))


@dataclass(frozen=True, eq=False)
class Scores:
    """A head that gives logits of conditionals, and knows the score ratios that they come from."""

    logits: Callable[[Tensor], Tensor]
    ratios: Callable[[Tensor], Float64[Tensor, "n S"]]
    """``p_t(x with v) / p_t(x)`` as the network says, in float64."""

    def __call__(self, rows: Tensor) -> Tensor:
        return self.logits(rows)
