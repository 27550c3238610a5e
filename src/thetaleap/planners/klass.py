"""Positions that are sure, and have stayed as they are (KLASS, Kim et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core import _fast
from ..core.checks import require, require_kind
from ..core.evaluation import Evaluation, Prediction, divergence, ranked
from ..core.fields import knob
from ..core.memory import History
from ..core.noise import Draw, Noise
from ..core.ranking import drafted, or_surest
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Plan, Planner
from .threshold import THRESHOLD

DIVERGENCE = "Nats by which a position's conditional may differ from that of the evaluation before"
HISTORY = "Evaluations in a row in which it must differ by less"


@dataclass(frozen=True)
class KLASS(Planner):
    """Draw all masked positions; keep those of which the network, untempered, is surer than `threshold`, and whose
    conditionals have changed by ``KL(now || before) < kl_threshold`` in each of the last `kl_history_length`
    evaluations. Where there is none, keep the surest.

    A budget is a cap: its last evaluation draws all that is left. The plan is the last evaluation, and for each
    position the number of evaluations in a row that have changed it little.
    """

    threshold: float = knob(0.9, THRESHOLD, low=0, high=1, closed="high")
    kl_threshold: float = knob(0.01, DIVERGENCE, low=0)
    kl_history_length: int = knob(2, HISTORY, least=1)
    finishes = False

    def check(self, length: int) -> None:
        remedy = (
            f"{length} positions are unmasked in at most {length} evaluations, of which the first has none before it"
        )
        require(self.kl_history_length < length, "kl_history_length", self.kl_history_length, f"{remedy}; give less")

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], stops: Float64[Tensor, "#b m"], noise: Noise) -> Plan:
        return History.none(x), torch.zeros_like(x)

    def move(
        self, reverse: Reverse, x: Tensor, prediction: Prediction, t: Times, s: Times, noise: Noise, plan: Plan
    ) -> tuple[Int64[Tensor, "b d"], Plan]:
        require_kind(
            "prediction", prediction, Evaluation, "KLASS compares evaluations as they are; use Tweedie(KLASS())"
        )
        assert isinstance(prediction, Evaluation)
        history, calm = plan
        active = reverse.active(x)
        calm = torch.where(self._settled(prediction, history, active), calm + 1, 0)
        draft = drafted(x, active, prediction, noise(Draw.VALUE))
        ready = active & (draft.sure > self.threshold) & (calm >= self.kl_history_length)
        x = torch.where(or_surest(ready, draft.sure), draft.tokens, x)
        return x, (history.after(prediction, 1), calm)

    def _settled(self, now: Evaluation, history: History, active: Tensor) -> Tensor:
        """Masked positions that the last evaluation has changed little; none in the first."""
        positions, found = _fast.indices(active), torch.zeros_like(active)
        change = divergence(ranked(now, True), ranked(history.before(now), True), positions)
        found.view(-1)[positions] = change.round(decimals=9) < self.kl_threshold
        return found & (history.taken > 0).unsqueeze(1)
