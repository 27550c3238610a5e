"""What bounds on the likelihood are made of: sequences run forwards, and the score entropy of single positions."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from .noise import Draw, Noise
from .processes import Masked, Process, Uniform


def noised(process: Process, x0: Int64[Tensor, "b d"], t: Float64[Tensor, " b"], noise: Noise) -> Int64[Tensor, "b d"]:
    """Sequences `x0` run forwards to times `t`, each position on its own."""
    batch, length = x0.shape
    if isinstance(process, Masked | Uniform):
        source = noise(Draw.NOISED)
        lost, numbers = source.flip((1 - process.schedule.alpha(t)).unsqueeze(1).expand(batch, length))
        if isinstance(process, Masked):
            return x0.flatten().index_fill(0, lost, process.mask).view_as(x0)
        flat = torch.ones(1, process.states, dtype=torch.float64)
        drawn = source.choose(lost, length, flat, stay=False, which=torch.zeros_like(lost), numbers=numbers)
        return x0.flatten().index_copy(0, lost, drawn).view_as(x0)
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


def uniform_entropies(
    process: Uniform, logits: Float[Tensor, "n S"], clean: Int64[Tensor, " n"], present: Int64[Tensor, " n"], t: Tensor
) -> Float64[Tensor, " n"]:
    """`score_entropies` of the uniform process from logits, at times above 0, in one pass over the values.

    A known clean token gives all values one score but its own, so that the sum over values takes the logarithm of each
    alone. With ``a = alpha S/(1 - alpha)`` scores are ``1 + a c(v)``, up to a factor.
    """
    states, alpha = process.states, process.schedule.alpha(t).squeeze(1)
    a = alpha * states / (1 - alpha)
    logs = torch.log1p(a.to(logits.dtype).unsqueeze(1) * torch.softmax(logits, 1))
    total, most = logs.sum(1).double(), torch.log1p(a)
    here, true = (logs.gather(1, token.unsqueeze(1)).squeeze(1).double() for token in (present, clean))
    kept = ((states - 1) * (1 + most - here) + total - here) / (1 + a)
    moved = states - 1 + a + total - true - (states - 1) * here + (1 + a) * (true - here - most)
    model = (states + a) * torch.exp(-here) - 1
    return process.schedule.sigma(t).squeeze(1) / states * (model - torch.where(clean == present, kept, moved))
