"""Unmask what is sure, and edit what was written (LLaDA2.1, 2026)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from ..core.fields import knob
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.ranking import drafted, or_surest
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Solver, Step


@dataclass(frozen=True)
class JointThreshold(Solver):
    """Draw a token at every free position. Where the position is masked and the network, untempered, is surer of it than
    `threshold`, write it there, or else that of the surest mask; where another token stands and it is surer of the new
    one than `edit_threshold`, replace it.

    A run ends with a step that changes nothing. A budget is a cap: its last evaluation draws all that is masked then. At
    positions that it sees a network should have been trained to say what belongs there, as LLaDA2.1 was; its speedy mode
    is (0.5, 0), its quality mode (0.7, 0.5).
    """

    threshold: float = knob(0.7, "How sure to be of a token to unmask it", low=0, high=1, closed="high")
    edit_threshold: float = knob(0.5, "How sure to be of a token to replace another", low=0, high=1, closed="both")
    evaluations = 1
    processes = "masked"
    when = "text: unmask what is sure, and edit what was written (LLaDA2.1)"

    def absorbing(self, process: Process) -> bool:
        return False

    def begin(self, reverse: Reverse, x: Tensor, stops: Tensor, noise: Noise) -> Memory:
        return torch.zeros_like(x[:, 0], dtype=torch.bool)

    def waits(self, reverse: Reverse, x: Tensor, t: Times, s: Times, memory: Memory) -> Bool[Tensor, " b"]:
        return memory

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        now, masked = reverse.evaluate(x, t), reverse.active(x)
        draft = drafted(x, reverse.free, now, noise(Draw.VALUE))
        unmasked = or_surest(masked & (draft.sure > self.threshold), draft.sure * masked)
        edited = ~masked & (draft.tokens != x) & (draft.sure > self.edit_threshold)
        changed = unmasked | edited
        return Step(torch.where(changed, draft.tokens, x), ~changed.any(1))
