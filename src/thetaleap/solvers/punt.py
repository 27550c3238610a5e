"""Positions that test as independent of each other (PUNT, Azangulov et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..core import _fast
from ..core.evaluation import Evaluation, divergence, ranked
from ..core.fields import knob
from ..core.memory import History, Memory, put
from ..core.noise import Draw, Noise, settled
from ..core.ranking import drafted, entropies
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Solver, Step

NONE = -1
"""In place of a bit: no test is under way."""


@dataclass(frozen=True)
class PUNT(Solver):
    """Draw a token for every masked position, number the positions by entropy, the surest 0, and test them. The test of
    a bit, the highest first, writes the tokens of those whose numbers have a 0 there, and drops of the others all whose
    conditional that has changed, by ``KL(tested || before) > epsilon``. What is left after all bits is unmasked: no
    position of it has changed by the surer ones.

    Every two positions differ in a bit, so that ``1 + log2(n)`` evaluations test n positions. Each is a step. Bits in
    which those that are left do not differ need no test. A budget is a cap: its last evaluation draws all that is left.
    """

    epsilon: float = knob(0.01, "Nats by which a position may depend on those unmasked with it", low=0)
    evaluations = 1
    processes = "masked"
    when = "positions that test as independent, at log2(n) evaluations more"

    def begin(self, reverse: Reverse, x: Tensor, stops: Tensor, noise: Noise) -> Memory:
        none = torch.zeros_like(x, dtype=torch.bool)
        return History.none(x), torch.full_like(x[:, 0], NONE), x, torch.zeros_like(x), none

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        history, bit, tokens, number, left = memory
        new = (bit == NONE).unsqueeze(1)
        one = (number >> bit.clamp_min(0).unsqueeze(1)) & 1 == 1
        now = reverse.evaluate(torch.where(left & ~one & ~new, tokens, x), t)
        history, masked = _begun(history, now, new.squeeze(1)), reverse.active(x) & new
        tokens = torch.where(masked, drafted(x, masked, now, noise(Draw.VALUE)).tokens, tokens)
        number, left = torch.where(new, _numbers(masked, now), number), torch.where(new, masked, left)
        left = left & ~self._depends(left & one & ~new, now, history.past[0])
        bit = _next(number, left, torch.where(new.squeeze(1), x.shape[1].bit_length(), bit))
        done = (bit == NONE).unsqueeze(1)
        return Step(torch.where(left & done, tokens, x), (history, bit, tokens, number, left))

    def _depends(self, tested: Bool[Tensor, "b d"], now: Evaluation, before: Evaluation) -> Bool[Tensor, "b d"]:
        """Of the `tested` positions those whose conditional has changed."""
        positions, found = _fast.indices(tested), torch.zeros_like(tested)
        change = divergence(ranked(now, True), ranked(before, True), positions)
        found.view(-1)[positions] = change.round(decimals=9) > self.epsilon
        return found


def _begun(history: History, now: Evaluation, new: Bool[Tensor, " b"]) -> History:
    """The evaluation that tests are compared with: the present one, where a sample begins `new`."""
    rows = _fast.some_but_not_all(new)
    if rows is None:
        return history.after(now, 1)
    return put(history, rows, History(history.taken[rows] + 1, (now[rows],))) if len(rows) else history


def _numbers(masked: Bool[Tensor, "b d"], now: Evaluation) -> Int64[Tensor, "b d"]:
    """The place of each masked position in the order of entropy."""
    entropy = settled(entropies(masked, ranked(now, True)))
    return torch.argsort(torch.argsort(entropy, dim=1, stable=True), dim=1)


def _next(number: Int64[Tensor, "b d"], left: Bool[Tensor, "b d"], last: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
    """The highest bit below the `last` in which the numbers of those that are `left` differ; or `NONE`."""
    found = torch.full_like(last, NONE)
    for bit in range(number.shape[1].bit_length()):
        one = (number >> bit) & 1 == 1
        differ = (left & one).any(1) & (left & ~one).any(1)
        found = torch.where(differ & (bit < last), bit, found)
    return found
