"""Losses of discrete diffusion models, one number for each sequence, all of them bounds on its -log-likelihood in nats
when averaged over times drawn uniformly from (0, T).

Networks give logits of the clean token given all other positions, so that every loss is a function of conditionals.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..core.bounds import score_entropies, uniform_entropies
from ..core.checks import require_choice
from ..core.processes import Masked, Process, Uniform

WEIGHTINGS = ("t", "lambda")


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
    """The score entropy of any process, in its denoising form (Lou et al. 2024; the paper's loss with psi = 1): ``T``
    times the sum over positions of `core.bounds.score_entropies`.

    At the model's own conditionals it differs from the paper's by what does not depend on the model, and its mean over
    times, with the divergence of the last noise from the prior, bounds the -log-likelihood.
    """
    rows, clean, present = logits.flatten(0, 1), x0.flatten(), xt.flatten()
    time = t.repeat_interleave(x0.shape[1]).unsqueeze(1)
    if isinstance(process, Uniform):
        each = uniform_entropies(process, rows, clean, present, time)
    else:
        each = score_entropies(process, torch.softmax(rows.to(torch.float64), 1), clean, present, time)
    return horizon * each.view_as(x0).sum(1)
