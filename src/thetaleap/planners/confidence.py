"""Fixed counts, the surest positions first."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core import _fast
from ..core.evaluation import Prediction
from ..core.fields import knob
from ..core.noise import Draw, Noise
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Plan
from .counting import SCHEDULE, Agenda, Counting, Schedule

RANDOMNESS = "Noise on the confidence"


@dataclass(frozen=True)
class Confidence(Counting):
    """Draw all masked positions, and keep the surest: by ``log p + randomness * gumbel * (1 - progress)``.

    `schedule` "process" unmasks as many as the process on average, "arccos" is MaskGIT's, "even" shares them out
    evenly over the steps.
    """

    randomness: float = knob(0.0, RANDOMNESS, low=0, closed="low")
    schedule: Schedule = knob("process", SCHEDULE, choices=("process", "arccos", "even"))  # pyright: ignore[reportIncompatibleVariableOverride]

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], stops: Float64[Tensor, "#b m"], noise: Noise) -> Plan:
        progress = Agenda.of(stops, torch.zeros_like(x[:, 0]), "even") if self.randomness else None
        return self.agenda(reverse, x, stops), progress

    def move(
        self, reverse: Reverse, x: Tensor, prediction: Prediction, t: Times, s: Times, noise: Noise, plan: Plan
    ) -> tuple[Int64[Tensor, "b d"], Plan]:
        drawn, log_p = x.flatten().clone(), torch.full(x.shape, -math.inf, dtype=torch.float64, device=x.device)
        for some in _fast.indices(reverse.active(x)).split(prediction.at_once):
            c = prediction.probabilities(some)
            values = noise(Draw.VALUE).choose(some, x.shape[1], c, stay=False)
            drawn[some] = values
            log_p.view(-1)[some] = c.gather(1, values.unsqueeze(1)).squeeze(1).log()
        keep = noise(Draw.KEEP).pick(log_p, self.count(reverse, x, s, plan), self._heat(x, s, plan))
        return torch.where(keep, drawn.view_as(x), x), plan

    def _heat(self, x: Tensor, s: Times, plan: Plan) -> Float64[Tensor, " b"]:
        _, progress = plan
        if progress is None:
            return torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return self.randomness * (1 - progress.number(s).double() / progress.moves())
