"""How likely a masked model finds sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import require, require_count
from ...core.evaluation import Denoiser, Evaluation
from ...core.noise import Use, philox
from .sequences import Measured, mean

ROWS = 64
"""Sequences that are looked at together."""
STRETCH = 4
"""Of the random numbers that metrics use, the stretch of this one."""


@dataclass(frozen=True)
class PseudoLikelihood(Measured):
    """The mean over sequences, its standard error, and what it is a mean of."""

    each: Float64[Tensor, " num"]
    """For every sequence, the mean over the positions that were looked at."""
    nfe: int
    """Evaluations that it took."""


def pseudo_log_likelihood(
    model: Denoiser,
    x: Int64[Tensor, "num d"],
    positions: Int64[Tensor, " m"] | None = None,
    per_sample: int | None = None,
    seed: int = 0,
    batch_size: int = ROWS,
) -> PseudoLikelihood:
    """The mean over sequences and positions of ``log p(x_l | all other positions)``, in nats per position (Besag 1975).

    One position is masked at a time, which takes one evaluation. With `per_sample` each sequence is asked about so many
    positions, drawn at random for each without replacement: that leaves the mean what it is, and the standard error,
    which is that of independent sequences, holds the noise of the choice.

    It rises if samples become too alike: never read it without a figure of diversity beside it.

    Args:
        model: a masked one. On an oracle the figure is exact.
        x: sequences without masks.
        positions: those that count, by default all.
        per_sample: how many of them to ask about in each sequence, by default all.
        seed: of the choice.
        batch_size: sequences that are looked at together.
    """
    process, (num, length) = model.process, x.shape
    mask = process.mask
    if mask is None:
        raise ValueError(f"model of {type(process).__name__}: one position cannot be masked; give a model with masks")
    require(length == model.length, "x", tuple(x.shape), f"the model has {model.length} positions; give as many")
    require(num > 0, "x", tuple(x.shape), "give at least one sequence")
    clean = bool(((x >= 0) & (x < process.states)).all())
    require(clean, "x", [int(x.min()), int(x.max())], f"tokens must be 0 to {process.states - 1}, without masks")
    require_count("batch_size", batch_size)
    chosen = torch.arange(length) if positions is None else positions
    good = len(chosen) > 0 and bool(((chosen >= 0) & (chosen < length)).all()) and len(chosen.unique()) == len(chosen)
    require(good, "positions", chosen.tolist(), f"give different numbers from 0 to {length - 1}, at least one")
    asked = _some(chosen, num, per_sample, seed)
    count = asked.shape[1]
    sample, position = torch.arange(num).repeat_interleave(count), asked.flatten()
    log_p = [
        _log_conditional(model, x[sample[rows]], position[rows], mask)
        for rows in torch.arange(num * count).split(batch_size)
    ]
    each = torch.cat(log_p).view(num, count).mean(1)
    figure = mean(each)
    return PseudoLikelihood(figure.value, figure.error, each, num * count)


def _some(positions: Tensor, num: int, per_sample: int | None, seed: int) -> Int64[Tensor, "num count"]:
    """For each sequence a random subset of `positions`."""
    if per_sample is None:
        return positions.expand(num, -1)
    require_count("per_sample", per_sample)
    require(
        per_sample <= len(positions),
        "per_sample",
        per_sample,
        f"there are {len(positions)} positions; give at most as many",
    )
    require_count("seed", seed, least=0)
    u = torch.from_numpy(philox(seed, (0, 0, STRETCH, Use.METRICS), num * len(positions))).view(num, -1)
    return positions[u.argsort(1)[:, :per_sample].sort(1).values]


def _log_conditional(model: Denoiser, x: Tensor, position: Tensor, mask: int) -> Float64[Tensor, " n"]:
    """``log p(x_position | others)``, one position of each row of `x`."""
    rows = torch.arange(len(x))
    hidden = x.clone()
    hidden[rows, position] = mask
    alone = model.process.schedule.alpha_inverse(1 - 1 / x.shape[1])  # when one position is masked on average
    hidden, now = hidden.to(model.device), alone.to(model.device)
    with torch.no_grad():
        evaluation = Evaluation(hidden, now, model(hidden, now), model.process.states, "pseudo-likelihood")
        p = evaluation.probabilities((rows * x.shape[1] + position).to(model.device)).cpu()
    return p[rows, x[rows, position]].log()
