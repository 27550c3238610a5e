"""What bounds on the likelihood are made of: sequences run forwards, and the score entropy of single positions."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .noise import Draw, Noise
from .processes import Masked, Process


def noised(process: Process, x0: Int64[Tensor, "b d"], t: Float64[Tensor, " b"], noise: Noise) -> Int64[Tensor, "b d"]:
    """Sequences `x0` run forwards to times `t`, each position on its own."""
    batch, length = x0.shape
    if isinstance(process, Masked):
        lost, _ = noise(Draw.NOISED).flip((1 - process.schedule.alpha(t)).unsqueeze(1).expand(batch, length))
        return x0.flatten().index_fill(0, lost, process.mask).view_as(x0)
    law = forward_law(process, x0.flatten(), t.repeat_interleave(length).unsqueeze(1))
    positions = torch.arange(batch * length, device=x0.device)
    return noise(Draw.NOISED).choose(positions, length, law, stay=False).view_as(x0)


def forward_law(process: Process, clean: Int64[Tensor, " n"], t: Tensor) -> Float64[Tensor, "n S"]:
    """``P_t(clean, v)``, for processes without masks: the score of a token that is known, up to a factor."""
    score = process.score(torch.nn.functional.one_hot(clean, process.states).to(torch.float64), clean, t)
    return score / score.sum(1, keepdim=True)


def score_entropies(
    process: Process, c: Float64[Tensor, "n S"], clean: Int64[Tensor, " n"], present: Int64[Tensor, " n"], t: Tensor
) -> Float64[Tensor, " n"]:
    """``sum_{v != present} mu0(v) [r(v) - 1 - log r(v)]`` at each position, per unit of time.

    mu0 is the reverse intensity of a jump to v if the clean token is known, and r the intensity by the conditional `c`
    over it. Summed over positions and integrated over time it bounds the -log-likelihood (Lou et al. 2024), but for the
    divergence of the last noise from the prior.
    """
    told = torch.nn.functional.one_hot(clean, process.states).to(torch.float64)
    known, model = process.intensity(told, present, t), process.intensity(c, present, t)
    lost = torch.where(known > 0, known * (torch.log(model.clamp_min(1e-300)) - torch.log(known)), 0.0)
    return (model - known - lost).sum(1)
