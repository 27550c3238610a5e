"""Losses of discrete diffusion models, one number for each sequence, all of them bounds on its -log-likelihood in nats
when averaged over times drawn uniformly from (0, T).

Networks give logits of the clean token given all other positions, so that every loss is a function of conditionals.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..core.checks import require_choice
from ..core.noise import Draw, Noise
from ..core.processes import Masked, Process

WEIGHTINGS = ("t", "lambda")


def noised(process: Process, x0: Int64[Tensor, "b d"], t: Float64[Tensor, " b"], noise: Noise) -> Int64[Tensor, "b d"]:
    """Sequences `x0` run forwards to times `t`, each position on its own."""
    batch, length = x0.shape
    if isinstance(process, Masked):
        lost, _ = noise(Draw.NOISED).flip((1 - process.schedule.alpha(t)).unsqueeze(1).expand(batch, length))
        return x0.flatten().index_fill(0, lost, process.mask).view_as(x0)
    positions, time = torch.arange(batch * length, device=x0.device), t.repeat_interleave(length).unsqueeze(1)
    values = torch.arange(process.states + (process.mask is not None), device=x0.device)
    clean = x0.flatten()
    # P_t(clean, v) is the likelihood of the clean value if the position holds v
    columns = [process.likelihood(torch.full_like(clean, int(v)), time).gather(1, clean.unsqueeze(1)) for v in values]
    return noise(Draw.NOISED).choose(positions, length, torch.cat(columns, 1), stay=False).view_as(x0)


def masked_bound(
    process: Masked,
    logits: Float[Tensor, "b d S"],
    x0: Int64[Tensor, "b d"],
    xt: Int64[Tensor, "b d"],
    t: Float64[Tensor, " b"],
    horizon: float,
    weighting: str = "t",
) -> Float[Tensor, " b"]:
    """The negative ELBO of a masked model: cross-entropy at masked positions, weighted by the rate at which they
    unmask.

    ``t``: weight ``T sigma alpha/(1 - alpha)`` for t uniform in (0, T) (t-DCE, and MDLM's loss).
    ``lambda``: weight ``1/(1 - alpha)`` for ``1 - alpha(t)`` uniform in (0, 1) (lambda-DCE of Ou et al. 2024): the same
    integral by another variable. Its mean over times is the -log-likelihood itself if the conditionals are exact.
    """
    require_choice("weighting", weighting, WEIGHTINGS)
    alpha = process.schedule.alpha(t)
    weight = 1 / (1 - alpha)
    if weighting == "t":
        weight = weight * horizon * process.schedule.sigma(t) * alpha
    missing = torch.nn.functional.cross_entropy(logits.transpose(1, 2), x0, reduction="none")
    return weight.to(missing.dtype) * (missing * (xt == process.mask)).sum(1)


def score_entropy(
    process: Process,
    logits: Float[Tensor, "b d S"],
    x0: Int64[Tensor, "b d"],
    xt: Int64[Tensor, "b d"],
    t: Float64[Tensor, " b"],
    horizon: float,
) -> Float[Tensor, " b"]:
    """The score entropy of any process, in its denoising form (Lou et al. 2024; the paper's loss with psi = 1).

    ``T sum_l sum_{v != x_l} mu0(v) [r(v) - 1 - log r(v)]``: mu0 is the reverse intensity of a jump to v if the clean
    token is known, and r the model's intensity over it. At the model's own conditionals it differs from the
    paper's by what does not depend on the model, and its mean over times, with the divergence of the last noise from
    the prior, bounds the -log-likelihood.
    """
    batch, length = x0.shape
    time, present = t.repeat_interleave(length).unsqueeze(1), xt.flatten()
    told = torch.nn.functional.one_hot(x0.flatten(), process.states).to(torch.float64)
    known = process.intensity(told, present, time)
    c = torch.softmax(logits.flatten(0, 1).to(torch.float64), 1)
    model = process.intensity(c, present, time)
    lost = model - known - torch.where(known > 0, known * (torch.log(model.clamp_min(1e-300)) - torch.log(known)), 0.0)
    return horizon * lost.view(batch, -1).sum(1)
