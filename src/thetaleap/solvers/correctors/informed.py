"""Informed correctors: the tokens that fit their surroundings least are redrawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core import _fast
from ...core.evaluation import Evaluation, Inspected
from ...core.fields import knob
from ...core.memory import Memory
from ...core.noise import Draw, Noise
from ...core.reverse import Reverse
from ...core.times import Times
from ...core.wrapped import unwrapped
from .base import POSITIONS, Corrector, redraw

BY = "What makes a token doubtful: a small c of its own (confidence), or a larger one of another value (margin)"


@dataclass(frozen=True)
class Informed(Corrector):
    """Evaluate, and redraw the `k` tokens that are the least likely, by the same evaluation (Zhao et al. 2024).

    "margin" takes the smallest ``log c(x_l) - max_{v != x_l} log c(v)``, "confidence" the smallest ``log c(x_l)``. With
    masks, positions that hold one are left alone, and the others get a value from c; without, one from p_t as in `Gibbs`.

    Not even ``k = 1`` leaves p_t invariant: it mends what cannot be, and then makes samples too likely. Where two
    doubtful tokens depend on each other, both are redrawn as if the other were right.

    c at a token must leave that token out, as oracles, hollow networks and networks of processes without masks do.
    """

    k: int = knob(1, POSITIONS, least=1)
    by: Literal["margin", "confidence"] = knob("margin", BY, choices=("margin", "confidence"))

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], noise: Noise) -> Memory:
        model = unwrapped(reverse.model)
        if reverse.process.mask is not None and isinstance(model, Inspected):
            raise ValueError(
                f"corrector=Informed on model={type(model).__name__}: at a token, a network that was trained on masks sees "
                "the token itself; use Gibbs() or ReMDM()"
            )
        return ()

    def sweep(
        self, reverse: Reverse, x: Int64[Tensor, "b d"], t: Times, noise: Noise, memory: Memory
    ) -> tuple[Int64[Tensor, "b d"], Memory]:
        now, masks = reverse.evaluate(x, t), reverse.process.mask is not None
        tokens = reverse.free & ~reverse.active(x) if masks else reverse.free
        doubt = self._doubt(now, _fast.indices(tokens))
        count, still = _fast.count_in_row(tokens).clamp(max=self.k), torch.zeros_like(doubt[:, 0])
        chosen = noise(Draw.POSITION).pick(doubt, count, still) & tokens
        alpha = torch.ones((), dtype=torch.float64) if masks else reverse.alpha(t)
        return redraw(reverse.process, x, chosen, now, alpha, noise(Draw.VALUE)), memory

    def _doubt(self, now: Evaluation, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "b d"]:
        """How little the token at each of `positions` fits; minus infinity elsewhere."""
        doubt = torch.full(now.x.shape, -math.inf, dtype=torch.float64, device=now.x.device)
        for some in positions.split(now.at_once):
            c, here = now.probabilities(some), now.x.flatten()[some].unsqueeze(1)
            own, other = c.gather(1, here).squeeze(1), c.scatter(1, here, 0.0).amax(1)
            doubt.view(-1)[some] = -own if self.by == "confidence" else torch.log(other) - torch.log(own)
        return doubt
