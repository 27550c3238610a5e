"""How likely a masked model finds an answer, given what is around it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ...core.checks import require, require_count
from ...core.evaluation import Denoiser, Evaluation
from ...core.noise import Stream

LABEL = "likelihood"
"""Of the noise: other numbers than those of samples with the same seed."""


def answer_log_likelihood(
    model: Denoiser,
    x: Int64[Tensor, " d"],
    answer: Bool[Tensor, " d"],
    *,
    draws: int = 128,
    seed: int = 0,
    index: int = 0,
    batch_size: int = 32,
) -> float:
    """An estimate of the evidence lower bound on ``log p(x[answer] | all other positions)``, in nats (Nie et al. 2025).

    Each draw masks k of the L positions of the answer, k uniform on 1 .. L and the positions a uniform subset M, and
    counts
    ``L/k sum_M log p(x_l | all positions but M)``. The mean of this is the bound: the mean over all orders in which the
    answer can be written one position at a time. The k of the draws are spread evenly, in steps of L/draws from a
    uniform
    start, which leaves each of them uniform, and the estimate without bias, and makes it less noisy. With L = 1 there
    is nothing to draw.

    Args:
        model: a masked one.
        x: a sequence without masks.
        answer: the positions that make up the answer, at least one.
        draws: how many to take; each is one evaluation.
        seed: of the draws.
        index: which sequence this is. Its draws are a function of seed, index, `draws` and the answer's length.
        batch_size: draws that are looked at together.
    """
    positions = _positions(model, x, answer)
    require_count("draws", draws)
    require_count("index", index, least=0)
    require_count("batch_size", batch_size)
    length = len(positions)
    draws = 1 if length == 1 else draws
    shift = float(Stream(seed, 0, 1).at(index)(LABEL).uniform(1))
    spread = (shift + torch.arange(draws, dtype=torch.float64) / draws) % 1.0
    counts = (spread * length).long().clamp(max=length - 1) + 1
    total = 0.0
    for some in torch.arange(draws).split(batch_size):
        noise = Stream(seed, int(some[0]), len(some)).at(index)(LABEL)
        picked = noise.pick(torch.ones((len(some), length), dtype=torch.bool), counts[some])
        log_p = _read(model, x, positions, picked, lambda rows, tokens: rows.gather(1, tokens.unsqueeze(1)).log())
        weights = (length / counts[some]).repeat_interleave(counts[some])
        total += float((log_p.squeeze(1) * weights).sum())
    return total / draws


def is_greedy(model: Denoiser, x: Int64[Tensor, " d"], answer: Bool[Tensor, " d"]) -> bool:
    """Whether the model itself would write the answer, one position at a time: the surest position, with its
    likeliest token.

    Takes one evaluation for each position of the answer, and stops at the first that comes out differently.
    """
    positions = _positions(model, x, answer)
    missing = torch.ones(len(positions), dtype=torch.bool)
    while bool(missing.any()):
        best = _read(model, x, positions, missing.unsqueeze(0), lambda rows, _: torch.stack([*rows.max(1)], 1).double())
        surest = int(best[:, 0].argmax())
        position = positions[missing][surest]
        if int(best[surest, 1]) != int(x[position]):
            return False
        missing &= positions != position
    return True


def _positions(model: Denoiser, x: Tensor, answer: Tensor) -> Int64[Tensor, " n"]:
    process = model.process
    if process.mask is None:
        raise ValueError(f"model of {type(process).__name__}: positions cannot be masked; give a model with masks")
    require(len(x) == model.length, "x", tuple(x.shape), f"the model has {model.length} positions; give as many")
    clean = bool(((x >= 0) & (x < process.states)).all())
    require(clean, "x", [int(x.min()), int(x.max())], f"tokens must be 0 to {process.states - 1}, without masks")
    require(answer.shape == x.shape, "answer", tuple(answer.shape), f"give one boolean for each of {len(x)} positions")
    require(bool(answer.any()), "answer", 0, "has no positions; give at least one")
    return torch.nonzero(answer).flatten()


def _read(
    model: Denoiser,
    x: Int64[Tensor, " d"],
    positions: Int64[Tensor, " n"],
    masked: Bool[Tensor, "b n"],
    take: Callable[[Tensor, Tensor], Tensor],
) -> Float64[Tensor, "m k"]:
    """What `take` makes of the conditionals, and of the tokens of `x`, at the `masked` ones of `positions`, row by
    row."""
    process = model.process
    assert process.mask is not None
    hidden = x.repeat(len(masked), 1)
    hidden[:, positions] = torch.where(masked, process.mask, hidden[:, positions])
    # the time at which so many of these positions are masked on average
    alpha = torch.maximum(1 - masked.double().mean(1), process.schedule.alpha(model.horizon))
    now = process.schedule.alpha_inverse(alpha).to(model.device)
    row, which = torch.nonzero(masked, as_tuple=True)
    asked, tokens = (row * len(x) + positions[which]).to(model.device), x[positions[which]].to(model.device)
    with torch.no_grad():
        hidden = hidden.to(model.device)
        evaluation = Evaluation(hidden, now, model(hidden, now), process.states, LABEL)
        parts = zip(asked.split(evaluation.at_once), tokens.split(evaluation.at_once), strict=True)
        return torch.cat([take(evaluation.probabilities(some), theirs).cpu() for some, theirs in parts])
