"""Fixed counts, the surest positions first."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core import _fast
from ..core.evaluation import Prediction, ranked
from ..core.fields import knob
from ..core.jumps import unmask
from ..core.noise import Draw, Noise, settled
from ..core.ranking import drafted, entropies, measured
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Plan
from .counting import SCHEDULE, Agenda, Counting, Schedule

RANDOMNESS = "Noise on the confidence"
UNTEMPERED = "Rank by what the network said, before it was tempered"
SCHEDULES = ("process", "arccos", "even", "dream")


@dataclass(frozen=True)
class Confidence(Counting):
    """Draw all masked positions, and keep the surest: by ``log p + randomness * gumbel * (1 - progress)``.

    p is the probability with which the token was drawn; with `untempered`, as LLaDA has it, what the network said of it
    before temperature, top-k and top-p; and at temperature 0, where all were drawn for sure, what it would have been at
    temperature 1. `schedule` "process" unmasks as many as the process on average, "arccos" is MaskGIT's, "even" shares
    them out evenly over the steps, "dream" is Dream's: in steps of its own times, of the masked positions the share
    that the process unmasks, rounded down. With it, this is Dream's ``maskgit_plus``.
    """

    randomness: float = knob(0.0, RANDOMNESS, low=0, closed="low")
    schedule: Schedule = knob("process", SCHEDULE, choices=SCHEDULES)  # pyright: ignore[reportIncompatibleVariableOverride]
    untempered: bool = knob(False, UNTEMPERED, kind=bool, written="True or False")

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], stops: Float64[Tensor, "#b m"], noise: Noise) -> Plan:
        progress = Agenda.of(stops, torch.zeros_like(x[:, 0]), "even") if self.randomness else None
        return self.agenda(reverse, x, stops), progress

    def move(
        self, reverse: Reverse, x: Tensor, prediction: Prediction, t: Times, s: Times, noise: Noise, plan: Plan
    ) -> tuple[Int64[Tensor, "b d"], Plan]:
        draft = drafted(x, reverse.active(x), prediction, noise(Draw.VALUE), self.untempered)
        count, heat = self.count(reverse, x, s, plan), self._heat(x, s, plan)
        keep = noise(Draw.KEEP).pick(draft.confidence.log(), count, heat)
        return torch.where(keep, draft.tokens, x), plan

    def _heat(self, x: Tensor, s: Times, plan: Plan) -> Float64[Tensor, " b"]:
        _, progress = plan
        if progress is None:
            return torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return self.randomness * (1 - progress.number(s).double() / progress.moves())


class Certain(Counting):
    """Fixed counts, the positions first whose conditionals are most certain, whatever token is drawn there."""

    untempered: bool

    @abstractmethod
    def certainty(self, active: Tensor, prediction: Prediction) -> Float64[Tensor, "b d"]:
        """Of masked positions; below all of theirs elsewhere."""

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], stops: Float64[Tensor, "#b m"], noise: Noise) -> Plan:
        return (self.agenda(reverse, x, stops),)

    def move(
        self, reverse: Reverse, x: Tensor, prediction: Prediction, t: Times, s: Times, noise: Noise, plan: Plan
    ) -> tuple[Int64[Tensor, "b d"], Plan]:
        active = reverse.active(x)
        certainty = settled(self.certainty(active, ranked(prediction, self.untempered)))
        keep = _fast.largest(certainty, self.count(reverse, x, s, plan)) & active
        return unmask(x, _fast.indices(keep), prediction, noise(Draw.VALUE)), plan


@dataclass(frozen=True)
class MarginConfidence(Certain):
    """Unmask where the likeliest token leads the second by most: ``p_1 - p_2`` (Kim et al. 2025; with `schedule` "dream"
    Dream's ``topk_margin``). `schedule` and `untempered` are those of `Confidence`."""

    schedule: Schedule = knob("process", SCHEDULE, choices=SCHEDULES)  # pyright: ignore[reportIncompatibleVariableOverride]
    untempered: bool = knob(False, UNTEMPERED, kind=bool, written="True or False")

    def certainty(self, active: Tensor, prediction: Prediction) -> Float64[Tensor, "b d"]:
        return measured(active, prediction, lambda c, _: c.topk(2, 1).values.diff(dim=1).neg().squeeze(1), -torch.inf)


@dataclass(frozen=True)
class EntropyConfidence(Certain):
    """Unmask where the conditionals have least entropy (with `schedule` "dream" Dream's ``entropy``). `schedule` and
    `untempered` are those of `Confidence`."""

    schedule: Schedule = knob("process", SCHEDULE, choices=SCHEDULES)  # pyright: ignore[reportIncompatibleVariableOverride]
    untempered: bool = knob(False, UNTEMPERED, kind=bool, written="True or False")

    def certainty(self, active: Tensor, prediction: Prediction) -> Float64[Tensor, "b d"]:
        return -entropies(active, prediction)
