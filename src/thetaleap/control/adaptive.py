"""What first-order steps cost, by pilot samples, for processes without masks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.evaluation import Denoiser, Duplicates, Evaluation, Prediction
from ..core.extrapolation import Extrapolated
from ..core.noise import Stream
from ..core.processes import Process
from ..core.reverse import Reverse
from ..solvers.multistep import UNIFORM_WEIGHT
from .tolerance import divergence


@dataclass(frozen=True)
class Kernel:
    """Where each position of `x` is after an exact one-position step by the conditionals `seen`."""

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
    process, length = model.process, model.length
    noise = Stream(seed, 0, pilots, model.device)
    reverse = Reverse.start(model, pilots)
    x = process.prior(pilots, length, noise("pilot")).to(model.device)
    everywhere = torch.arange(pilots * length, device=model.device)
    weight = torch.full((pilots,), UNIFORM_WEIGHT, dtype=torch.float64, device=model.device)
    costs, before = [], None
    for n, (t, s) in enumerate(zip(times[:-1].tolist(), times[1:].tolist(), strict=True)):
        evaluation, prediction = reverse.evaluate(x, t), None
        if before is not None:
            alphas = process.schedule.alpha(t), process.schedule.alpha(s)
            now, then = (Kernel(process, x, each, *alphas) for each in (evaluation, before))
            costs.append(float(divergence(now, then, everywhere).mean()) / 2)
            prediction = Extrapolated(evaluation, before, weight, "logit")
        x = reverse.move(x, prediction or evaluation, t, s, noise.at(n)("pilot move"))
        before: Evaluation | None = evaluation
    return torch.tensor(costs[:1] + costs, dtype=torch.float64)
