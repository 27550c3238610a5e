"""As many positions as a bound on their dependence allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from ..core import _fast
from ..core.evaluation import Prediction, ranked
from ..core.fields import knob
from ..core.jumps import unmask
from ..core.noise import Draw, Noise
from ..core.ranking import entropies
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Plan, Planner

GAMMA = "Nats that the entropies of all but the last position of a step may sum to"


@dataclass(frozen=True)
class EntropyBounded(Planner):
    """The surest positions, as many as stay within a bound on what they may know of each other: in order of entropy,
    as long as the entropies of all but the last sum to at most `gamma` nats; at least one (Ben-Hamu et al. 2025).

    Entropies are those of the tempered conditionals; at temperature 0, where all would be 0, of temperature 1. A budget is
    a cap: its last evaluation draws all that is left.
    """

    gamma: float = knob(0.1, GAMMA, low=0, closed="low", written="a number of nats, as in entropy-bounded:0.1")
    finishes = False

    def move(
        self, reverse: Reverse, x: Tensor, prediction: Prediction, t: Times, s: Times, noise: Noise, plan: Plan
    ) -> tuple[Int64[Tensor, "b d"], Plan]:
        active = reverse.active(x)
        entropy = entropies(active, ranked(prediction, untempered=False))
        order = entropy.sort(1).values
        before = order.nan_to_num(posinf=0.0).cumsum(1) - order  # of all surer positions; minus infinity past the last
        count = ((before <= self.gamma) & torch.isfinite(order)).sum(1)
        keep = _fast.largest(-entropy, torch.maximum(count, active.any(1).long())) & active
        return unmask(x, _fast.indices(keep), prediction, noise(Draw.VALUE)), plan
