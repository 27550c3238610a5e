"""Accept many tokens, verify them, and revoke the doubtful ones (WINO, Hong et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..core import _fast
from ..core.evaluation import Evaluation
from ..core.fields import knob
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.ranking import Draft, drafted, or_surest, trusted
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Solver, Step

SHARE, FEWEST, MOST, FIRST = 0.7, 5, 20, 30
"""Of the published code: at most ``SHARE`` of the masks are accepted in a step, but `FEWEST` to `MOST`; and before the
first step as many count as accepted as `FIRST`."""


@dataclass(frozen=True)
class WINO(Solver):
    """Wide in, narrow out. Draw all masked positions, and accept those of which the network, untempered, is surer than
    `wide_in_thres`, or else the surest. Where two or more are accepted, mask again what was written before and has
    ``p(token | all others) < narrow_out_thres`` by the same evaluation: the least sure, fewer than the step before
    accepted.

    `p` is what the model says of a position that it sees: oracles leave that position out of it, as the method asks; a
    network that has seen the token may be too sure of it. A run ends when no mask is left. A budget is a cap: its last
    evaluation draws all that is masked then.
    """

    wide_in_thres: float = knob(0.6, "How sure to be of a token to accept it", low=0, high=1, closed="high")
    narrow_out_thres: float = knob(0.9, "How sure to be of a token to leave it", low=0, high=1, closed="high")
    evaluations = 1
    processes = "masked"
    when = "text: accept many tokens, verify them, revoke the doubtful ones"

    def begin(self, reverse: Reverse, x: Tensor, stops: Tensor, noise: Noise) -> Memory:
        return torch.full_like(x[:, 0], FIRST)

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        now, masked = reverse.evaluate(x, t), reverse.active(x)
        draft = drafted(x, masked, now, noise(Draw.VALUE))
        accepted = self._accepted(masked, draft)
        revoked = self._doubtful(x, reverse.free & ~masked, now, accepted.sum(1), memory)
        x = torch.where(accepted, draft.tokens, x).masked_fill(revoked, reverse.process.states)
        return Step(x, accepted.sum(1))

    def _accepted(self, masked: Bool[Tensor, "b d"], draft: Draft) -> Bool[Tensor, "b d"]:
        wide = masked & (draft.sure > self.wide_in_thres)
        most = (SHARE * masked.sum(1)).long().clamp(FEWEST, MOST)
        return or_surest(_fast.largest(draft.sure, torch.minimum(wide.sum(1), most), wide), draft.sure)

    def _doubtful(
        self, x: Tensor, written: Bool[Tensor, "b d"], now: Evaluation, count: Tensor, before: Int64[Tensor, " b"]
    ) -> Bool[Tensor, "b d"]:
        """What to mask again, if `count` are accepted now, and were `before`."""
        trust = trusted(x, written, now)
        doubtful = (trust < self.narrow_out_thres) & (count > 1).unsqueeze(1)
        return _fast.largest(-trust, torch.minimum(doubtful.sum(1), before - 1), doubtful)
