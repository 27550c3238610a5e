"""How likely a model finds sequences, or, with masks, an answer given what is around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ...core.batches import Batches
from ...core.bounds import forward_law, noised, score_entropies
from ...core.checks import require, require_count
from ...core.evaluation import Denoiser, Evaluation, of_samples
from ...core.noise import Draw, Stream, Use, philox
from .measured import mean

ROWS = 64
"""Sequences that are evaluated together."""
STRETCH = 4
"""Of the random numbers that metrics use, the stretch of this one."""
BLOCK = 4
"""Random numbers that have one address together."""
Take = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class PseudoLikelihood:
    """The mean over sequences, its standard error, and what it is a mean of."""

    value: float
    error: float
    each: Float64[Tensor, " num"]
    """For every sequence, the mean over the positions that were evaluated."""
    nfe: int
    """Evaluations that it took."""


def pseudo_log_likelihood(
    model: Denoiser,
    x: Int64[Tensor, "num d"] | Batches,
    positions: Int64[Tensor, " m"] | None = None,
    per_sample: int | None = None,
    seed: int = 0,
    batch_size: int = ROWS,
) -> PseudoLikelihood:
    """The mean over sequences and positions of ``log p(x_l | all other positions)``, in nats per position (Besag 1975).

    One position is masked at a time, which takes one evaluation. With `per_sample` each sequence is asked about so many
    positions, drawn at random for each without replacement: that leaves the mean what it is, and the standard error,
    which is that of independent sequences, holds the noise of the choice.

    It rises if samples become duplicates of each other: never read it without a figure of diversity beside it.

    Args:
        model: a masked one. On an oracle the figure is exact.
        x: sequences without masks; of batches only some are in memory at a time.
        positions: those that count, by default all.
        per_sample: how many of them to ask about in each sequence, by default all.
        seed: of the choice.
        batch_size: sequences that are evaluated together.
    """
    every = Batches.of(x)
    num, length = every.shape
    _require_masked(model, "one position cannot be masked")
    require(num > 0, "x", (num, length), "give at least one sequence")
    _require_clean(model, every)
    require_count("batch_size", batch_size)
    chosen = torch.arange(length) if positions is None else positions
    good = len(chosen) > 0 and bool(((chosen >= 0) & (chosen < length)).all()) and len(chosen.unique()) == len(chosen)
    require(good, "positions", chosen.tolist(), f"give different numbers from 0 to {length - 1}, at least one")
    alone = model.process.schedule.alpha_inverse(1 - 1 / length)  # when one position is masked on average
    each, start, nfe = torch.empty(num, dtype=torch.float64), 0, 0
    for some in every.split(batch_size):
        end = start + len(some)
        asked = _some(chosen, range(start, end), per_sample, seed)
        sample, position = torch.arange(len(some)).repeat_interleave(asked.shape[1]), asked.flatten()
        log_p: list[Tensor] = []
        for rows in torch.arange(len(position)).split(batch_size):
            masked = torch.nn.functional.one_hot(position[rows], length).bool()
            log_p.append(_read(model, some[sample[rows]], masked, alone, _log_of, "pseudo-likelihood"))
        each[start:end] = torch.cat(log_p).view(asked.shape).mean(1)
        start, nfe = end, nfe + len(position)
    figure = mean(each)
    return PseudoLikelihood(figure.value, figure.error, each, nfe)


def _some(positions: Tensor, numbers: range, per_sample: int | None, seed: int) -> Int64[Tensor, "num count"]:
    """For each sequence of these numbers a random subset of `positions`."""
    if per_sample is None:
        return positions.expand(len(numbers), -1)
    require_count("per_sample", per_sample)
    most = len(positions)
    require(per_sample <= most, "per_sample", per_sample, f"there are {most} positions; give at most as many")
    require_count("seed", seed, least=0)
    block, over = divmod(numbers.start * most, BLOCK)
    u = philox(seed, (block, 0, STRETCH, Use.METRICS), over + len(numbers) * most)[over:]
    order = torch.from_numpy(u).view(len(numbers), -1).argsort(1)
    return positions[order[:, :per_sample].sort(1).values]


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
    counts ``L/k sum_M log p(x_l | all positions but M)``. The mean of this is the bound: the mean over all orders in
    which the answer can be written one position at a time. The k of the draws are spread evenly, in steps of L/draws
    from a uniform start: each is uniform still, the estimate has no bias, and less noise. With L = 1 there is nothing
    to draw.

    Args:
        model: a masked one.
        x: a sequence without masks.
        answer: the positions that make up the answer, at least one.
        draws: how many to take; each is one evaluation.
        seed: of the draws.
        index: which sequence this is. Its draws are a function of seed, index, `draws` and the answer's length.
        batch_size: draws that are evaluated together.
    """
    positions = _answer_positions(model, x, answer)
    require_count("draws", draws)
    require_count("index", index, least=0)
    require_count("batch_size", batch_size)
    length = len(positions)
    draws = 1 if length == 1 else draws
    shift = float(Stream(seed, 0, 1).at(index)(Draw.LIKELIHOOD).uniform(1))
    spread = (shift + torch.arange(draws, dtype=torch.float64) / draws) % 1.0
    counts = (spread * length).long().clamp(max=length - 1) + 1
    total = 0.0
    for some in torch.arange(draws).split(batch_size):
        noise = Stream(seed, int(some[0]), len(some)).at(index)(Draw.LIKELIHOOD)
        even = torch.zeros((len(some), length), dtype=torch.float64)
        picked = noise.pick(even, counts[some], torch.ones_like(even[:, 0]))
        log_p = _read_answer(model, x, positions, picked, _log_of)
        total += float((log_p * (length / counts[some]).repeat_interleave(counts[some])).sum())
    return total / draws


def evidence_bound(
    model: Denoiser, x: Int64[Tensor, "num d"], *, draws: int = 4, seed: int = 0, batch_size: int = ROWS
) -> Float64[Tensor, " num"]:
    """An estimate, without bias, of the model's own bound on ``-log p(x)`` of each sequence, in nats.

    With masks it is the mean over all orders of writing one position at a time, `answer_log_likelihood` of all
    positions: each draw masks k positions and counts ``d/k`` times their ``-log p``. Without, it is the score entropy
    integrated over ``1 - alpha``, without the divergence of the last noise from the prior. If conditionals are exact
    both are ``-log p(x)`` itself. The levels of a sequence's draws are spread evenly from a uniform start. Draws are a
    function of the seed and the row, not of the tokens: two sets of sequences share them, row by row, so that the
    noise of the difference is small.

    Args:
        model: any model; row i is sample i of a run, for models with labels or prompts.
        x: sequences without masks.
        draws: for each sequence; each is one evaluation.
        seed: of the draws.
        batch_size: sequences that are evaluated together.
    """
    _require_clean(model, x)
    require_count("draws", draws)
    num, total = len(x), torch.zeros(len(x), dtype=torch.float64)
    shift = Stream(seed, 0, num)(Draw.LIKELIHOOD).uniform(num)
    term = _denoised if model.process.mask is None else _unmasked
    for draw in range(draws):
        level = (shift + draw) / draws
        for rows in torch.arange(num).split(batch_size):
            noise = Stream(seed, int(rows[0]), len(rows)).at(1 + draw)(Draw.LIKELIHOOD)
            total[rows] += term(of_samples(model, rows), x[rows], level[rows], noise)
    return total / draws


def _unmasked(model: Denoiser, x: Int64[Tensor, "b d"], level: Tensor, noise: Stream) -> Float64[Tensor, " b"]:
    """What a draw with ``1 + floor(level d)`` masks says of each sequence."""
    even = torch.zeros(x.shape, dtype=torch.float64)
    counts = (level * x.shape[1]).long().clamp(max=x.shape[1] - 1) + 1
    picked = noise.pick(even, counts, torch.ones_like(level))
    schedule, share = model.process.schedule, counts / x.shape[1]
    now = schedule.alpha_inverse(torch.maximum(1 - share, schedule.alpha(model.horizon)))
    even[picked] = -_read(model, x, picked, now, _log_of, "the likelihood")
    return even.sum(1) / share


def _denoised(model: Denoiser, x: Int64[Tensor, "b d"], level: Tensor, noise: Stream) -> Float64[Tensor, " b"]:
    """The score entropy where ``1 - alpha`` is ``level^2`` of the way from time 0 to the horizon, per unit of level.

    The square, as unlikely tokens cost most near the data. What a position holds is averaged out, given the others: it
    may have jumped, or not. A jump near the data is rare and weighs much, and drawn would make most of the noise.
    """
    process, schedule, length = model.process, model.process.schedule, x.shape[1]
    least, most = (1 - float(schedule.alpha(t)) for t in (0.0, model.horizon))
    level = level.clamp_min(1e-6)  # below, alpha rounds to one; it adds less than 1e-11
    t = schedule.alpha_inverse(1 - least - level**2 * (most - least))
    clean, positions, time = x.flatten(), torch.arange(x.numel()), t.repeat_interleave(length).unsqueeze(1)
    law, here = forward_law(process, clean, time), clean.unsqueeze(1)
    jumped = noise(Draw.VALUE).choose(positions, length, law.scatter(1, here, 0.0), stay=False)
    xt, now, total = noised(process, x, t, noise).to(model.device), t.to(model.device), []
    with torch.no_grad():
        evaluation = Evaluation(xt, now, model(xt, now), process.states, "the likelihood")
        for some in positions.split(evaluation.at_once):
            c, stay = evaluation.probabilities(some.to(xt.device)).cpu(), law.gather(1, here)[some, 0]
            both = (score_entropies(process, c, clean[some], held[some], time[some]) for held in (clean, jumped))
            total.append(sum(share * lost for share, lost in zip((stay, 1 - stay), both, strict=True)))
    rate = schedule.sigma(t) * schedule.alpha(t)  # at which alpha falls
    return torch.cat(total).view(x.shape).sum(1) * 2 * level * (most - least) / rate


def is_greedy(model: Denoiser, x: Int64[Tensor, " d"], answer: Bool[Tensor, " d"]) -> bool:
    """Whether the model itself would write the answer, one position at a time: the surest position, with its
    likeliest token.

    Takes one evaluation for each position of the answer, and stops at the first that comes out differently.
    """
    positions = _answer_positions(model, x, answer)
    missing = torch.ones(len(positions), dtype=torch.bool)
    while bool(missing.any()):
        best = _read_answer(
            model, x, positions, missing.unsqueeze(0), lambda p, _: torch.stack([*p.max(1)], 1).double()
        )
        surest = int(best[:, 0].argmax())
        position = positions[missing][surest]
        if int(best[surest, 1]) != int(x[position]):
            return False
        missing &= positions != position
    return True


def _answer_positions(model: Denoiser, x: Tensor, answer: Tensor) -> Int64[Tensor, " n"]:
    _require_masked(model, "positions cannot be masked")
    _require_clean(model, x)
    require(answer.shape == x.shape, "answer", tuple(answer.shape), f"give one boolean for each of {len(x)} positions")
    require(bool(answer.any()), "answer", 0, "has no positions; give at least one")
    return torch.nonzero(answer).flatten()


def _read_answer(
    model: Denoiser, x: Int64[Tensor, " d"], positions: Int64[Tensor, " n"], masked: Bool[Tensor, "b n"], take: Take
) -> Tensor:
    """What `take` makes of the conditionals and tokens at the `masked` ones of `positions`, row by row."""
    schedule = model.process.schedule
    # the time at which so many of these positions are masked on average
    alpha = torch.maximum(1 - masked.double().mean(1), schedule.alpha(model.horizon))
    everywhere = torch.zeros((len(masked), len(x)), dtype=torch.bool)
    everywhere[:, positions] = masked
    rows = x.expand(len(masked), -1)
    return _read(model, rows, everywhere, schedule.alpha_inverse(alpha), take, "the likelihood")


# --- what both ask of the model


def _require_masked(model: Denoiser, why: str) -> None:
    if model.process.mask is None:
        raise ValueError(f"model of {type(model.process).__name__}: {why}; give a model with masks")


def _require_clean(model: Denoiser, x: Tensor | Batches) -> None:
    states, length = model.process.states, model.length
    require(x.shape[-1] == length, "x", tuple(x.shape), f"the model has {length} positions; give as many")
    least, most = (x.least, x.most) if isinstance(x, Batches) else (int(x.min()), int(x.max()))
    require(least >= 0 and most < states, "x", [least, most], f"tokens must be 0 to {states - 1}, without masks")


def _read(
    model: Denoiser, x: Int64[Tensor, "b d"], masked: Bool[Tensor, "b d"], now: Tensor, take: Take, where: str
) -> Tensor:
    """What `take` makes of the conditionals at the `masked` positions and of the tokens that `x` has there, row by row.

    In parts, as all conditionals of a large vocabulary do not fit into memory.
    """
    mask = model.process.mask
    assert mask is not None
    hidden, now = x.masked_fill(masked, mask).to(model.device), now.to(model.device)
    asked, tokens = torch.nonzero(masked.flatten()).flatten().to(model.device), x[masked].to(model.device)
    with torch.no_grad():
        evaluation = Evaluation(hidden, now, model(hidden, now), model.process.states, where)
        parts = zip(asked.split(evaluation.at_once), tokens.split(evaluation.at_once), strict=True)
        return torch.cat([take(evaluation.probabilities(some), theirs).cpu() for some, theirs in parts])


def _log_of(p: Float64[Tensor, "m S"], tokens: Int64[Tensor, " m"]) -> Float64[Tensor, " m"]:
    return p.gather(1, tokens.unsqueeze(1)).squeeze(1).log()
