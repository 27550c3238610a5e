"""What first-order steps cost, by pilot samples, for processes without masks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .denoiser import Alike, Denoiser, Look, Seen
from .extrapolation import Extrapolated
from .noise import Stream
from .processes import Process
from .reverse import Reverse
from .solvers.controlled import divergence
from .solvers.multistep import UNIFORM_WEIGHT


@dataclass(frozen=True)
class Kernel:
    """Where each site of `x` is after an exact one-site step by the conditionals `seen`."""

    process: Process
    x: Int64[Tensor, "b d"]
    seen: Seen
    alpha_t: Float64[Tensor, ""]
    alpha_s: Float64[Tensor, ""]

    @property
    def at_once(self) -> int:
        return self.seen.at_once

    def probabilities(self, sites: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        present = self.x.flatten()[sites]
        moves = self.process.kernel(self.seen.probabilities(sites), present, self.alpha_t, self.alpha_s)
        return moves.scatter(1, present.unsqueeze(1), (1 - moves.sum(1, keepdim=True)).clamp_min(0))

    odds = probabilities

    def alike(self) -> Alike | None:
        return self.seen.alike()


def step_costs(model: Denoiser, times: Float64[Tensor, " times"], pilots: int, seed: int) -> Float64[Tensor, " steps"]:
    """Nats per site that each step of `times` costs, if sites move by their exact kernels given c(x).

    In a step c should change as much as in the one before, and half of that is missing on average: the cost is
    ``sum_l KL(K_l[c_n] || K_l[c_{n-1}])/2``, where K_l is the kernel of site l over step n. This is the KL
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
        look, seen = reverse.look(x, t), None
        if before is not None:
            alphas = process.schedule.alpha(t), process.schedule.alpha(s)
            now, then = (Kernel(process, x, each, *alphas) for each in (look, before))
            costs.append(float(divergence(now, then, everywhere).mean()) / 2)
            seen = Extrapolated(look, before, weight, "logit")
        x = reverse.move(x, seen or look, t, s, noise.at(n)("pilot move"))
        before: Look | None = look
    return torch.tensor(costs[:1] + costs, dtype=torch.float64)
