"""As many positions as are sure enough (Fast-dLLM, Wu et al. 2025)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ..core import _fast
from ..core.evaluation import Prediction
from ..core.fields import knob
from ..core.noise import Draw, Noise
from ..core.ranking import drafted, or_surest
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Plan, Planner

THRESHOLD = "How sure the network must be of a drawn token to keep it"


class Accepting(Planner):
    """Draw all masked positions; keep those that `accepts` says, or else the surest."""

    finishes = False

    @abstractmethod
    def accepts(self, sure: Float64[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
        """Positions to keep, by the confidences in the tokens drawn there, which are 0 where there is none."""

    def move(
        self, reverse: Reverse, x: Tensor, prediction: Prediction, t: Times, s: Times, noise: Noise, plan: Plan
    ) -> tuple[Int64[Tensor, "b d"], Plan]:
        active = reverse.active(x)
        draft = drafted(x, active, prediction, noise(Draw.VALUE))
        keep = or_surest(self.accepts(draft.sure) & active, draft.sure)
        return torch.where(keep, draft.tokens, x), plan


@dataclass(frozen=True)
class Threshold(Accepting):
    """Draw all masked positions; keep those of which the network, untempered, is sure by at least `threshold`, and
    the surest always.

    So a sample takes as many evaluations as it needs, at most one for each position. A budget is a cap: its last
    evaluation draws all that is left.
    """

    threshold: float = knob(0.9, THRESHOLD, low=0, high=1, closed="high")

    def accepts(self, sure: Float64[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
        return sure >= self.threshold


@dataclass(frozen=True)
class Factor(Accepting):
    """Draw all masked positions; keep the n surest, with the largest n for which ``(n + 1) (1 - c_n) <= factor``, where
    c_n is the n-th largest confidence of the network, untempered; at least one.

    The more are kept together, the surer the last of them must be. A budget is a cap, as for `Threshold`.
    """

    factor: float = knob(1.0, "How far n + 1 times the doubt in the n-th surest token may go", low=0)

    def accepts(self, sure: Float64[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
        order = sure.sort(1, descending=True).values
        beside = torch.arange(2, sure.shape[1] + 2, device=sure.device)
        return _fast.largest(sure, (beside * (1 - order) <= self.factor).sum(1))
