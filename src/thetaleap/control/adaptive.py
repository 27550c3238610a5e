"""What first-order steps cost, by pilot samples, for processes without masks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.evaluation import Denoiser, Duplicates, Evaluation, Prediction, divergence
from ..core.noise import Stream
from ..core.processes import Process
from ..solvers.multistep import Multistep
from .base import Walk
from .loop import run


@dataclass(frozen=True)
class Kernel:
    """Where each position of `x` is after an exact one-position step by a `prediction`."""

    process: Process
    x: Int64[Tensor, "b d"]
    prediction: Prediction
    alpha_t: Float64[Tensor, ""]
    alpha_s: Float64[Tensor, ""]

    @property
    def at_once(self) -> int:
        return self.prediction.at_once

    def probabilities(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        present = self.x.flatten()[positions]
        moves = self.process.kernel(self.prediction.probabilities(positions), present, self.alpha_t, self.alpha_s)
        return moves.scatter(1, present.unsqueeze(1), (1 - moves.sum(1, keepdim=True)).clamp_min(0))

    unnormalised = probabilities

    def duplicates(self) -> Duplicates | None:
        return self.prediction.duplicates()


def step_costs(model: Denoiser, times: Float64[Tensor, " times"], pilots: int, seed: int) -> Float64[Tensor, " steps"]:
    """Nats per position that each step of `times` costs, if positions move by their exact kernels given c(x).

    In a step c should change as much as in the one before, and half of that is missing on average: the cost is
    ``sum_l KL(K_l[c_n] || K_l[c_{n-1}])/2``, where K_l is the kernel of position l over step n. This is the KL
    divergence from the paths of the true process, to leading order. The first step is taken to cost as much as the
    second.
    """
    process, costs, before = model.process, [], None
    everywhere = torch.arange(pilots * model.length, device=model.device)
    for state in run(model, Walk(Multistep()), times, Stream(seed, 0, pilots, model.device)):
        if not 0 < state.stage < len(times):  # the noise, and the finish
            continue
        now: Evaluation = state.memory[0].past[0]
        if before is not None:
            alphas = process.schedule.alpha(times[state.stage - 1]), process.schedule.alpha(times[state.stage])
            new, old = (Kernel(process, now.x, each, *alphas) for each in (now, before))
            costs.append(float(divergence(new, old, everywhere).mean()) / 2)
        before = now
    return torch.tensor(costs[:1] + costs, dtype=torch.float64)
