"""Each position on its own, as the process has it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.evaluation import Evaluation, Prediction
from ..core.jumps import unmask
from ..core.noise import Draw, Noise
from ..core.reverse import Reverse
from ..core.times import Times
from .base import Pace, Plan, Planner


@dataclass(frozen=True)
class Bernoulli(Planner):
    """The law of the process itself: each position is unmasked with probability ``(alpha_s - alpha_t)/(1 - alpha_t)``.

    That is to say, when ``1 - alpha`` has come down to a level that is uniform below where it starts. The levels are
    drawn once for a run, so that the same seed unmasks the positions in the same order whatever the grid. Without
    masks, every position moves by its exact kernel.
    """

    def begin(self, reverse: Reverse, x: Int64[Tensor, "b d"], stops: Float64[Tensor, "#b m"], noise: Noise) -> Plan:
        if reverse.process.mask is None:
            return ()
        return noise(Draw.ORDER).levels(x.shape[1], reverse.noised(reverse.start))

    def pace(self, reverse: Reverse, x: Tensor, earlier: Evaluation, t: Times, s: Times, plan: Plan) -> Pace:
        then, now, after = (reverse.alpha(time) for time in (earlier.t, t, s))
        return Pace(after - now, now - then, alone=0.0)

    def move(
        self, reverse: Reverse, x: Tensor, prediction: Prediction, t: Times, s: Times, noise: Noise, plan: Plan
    ) -> tuple[Int64[Tensor, "b d"], Plan]:
        if reverse.process.mask is None:
            return reverse.move(x, prediction, t, s, noise), plan
        positions, numbers, plan = plan.due(reverse.active(x), reverse.noised(t), reverse.noised(s), noise)
        return unmask(x, positions, prediction, noise, numbers), plan
