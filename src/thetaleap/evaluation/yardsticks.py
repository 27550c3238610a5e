"""How good samples are, by what the model knows of the truth: its whole law, its likelihood and true samples, or
nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .. import exact
from ..control import Method
from ..core.evaluation import Denoiser
from ..core.noise import Use, philox
from ..models.oracles import MarkovChain, Oracle
from .metrics import kl, total_variation
from .metrics.measured import LEVEL, Estimate, Measured, Resampled, mean

MOST_EXACT = {True: 256, False: 32}
"""Sequences, masks included, up to which exact laws are quick: with masks and without. (Without, every sequence can
follow every other, and multistep solvers remember earlier ones.)"""
RESAMPLES = 1000
MOST_PAIRS = 2**14
TRUE_FOLD = 5
"""So many times as many true samples as samples: their noise is then small beside that of the samples."""
AT_ONCE = 2**22


def size(one: Estimate, level: float = LEVEL) -> tuple[float, float]:
    """The interval of the absolute value."""
    low, high = one.interval(level)
    ends = sorted([abs(low), abs(high)])
    return (0.0, ends[1]) if low <= 0 <= high else (ends[0], ends[1])


@dataclass(frozen=True, eq=False)
class Yardstick:
    """Turns a contender's samples into figures."""

    kind: Literal["exact", "oracle", "samples"]
    about: str
    """What the figures are, in words."""
    ranking: tuple[str, ...]
    """The figures whose size ranks contenders: less is better."""
    measure: Callable[[Method, Tensor, Tensor], dict[str, Estimate]]
    """Figures of a solver, the times that it stepped through, and its samples."""


def yardstick(model: Denoiser, num: int, seed: int) -> Yardstick:
    """The best one that `model` supports."""
    if not _knows_itself(model):
        return _plain()
    assert isinstance(model, Oracle)
    masked = model.process.mask is not None
    if (model.process.states + masked) ** model.length <= MOST_EXACT[masked]:
        return _exact(model)
    return _likelihood(model, num, seed)


def _knows_itself(model: Denoiser) -> bool:
    """Whether `model` has a likelihood; a wrapper has the methods, but what it wraps may not."""
    if not isinstance(model, Oracle):
        return False
    try:
        model.entropy()
    except ValueError:
        return False
    return True


# --- the whole law


def _exact(model: Oracle) -> Yardstick:
    """Exact laws beside the true one: nothing is random."""
    about = (
        "kl is KL(p0 || law of the samples) in nats and tv the total variation, both from exact laws without any Monte "
        "Carlo."
    )

    def measure(solver: Method, times: Tensor, x: Tensor) -> dict[str, Estimate]:
        p0, law = true_law(model), exact.law(model, solver, times)
        return {"kl": Measured(kl(p0, law)), "tv": Measured(total_variation(p0, law))}

    return Yardstick("exact", about, ("kl",), measure)


def true_law(model: Oracle) -> Float64[Tensor, ...]:
    """The probability of every sequence, as a tensor of shape (S,)*d."""
    states, length = model.process.states, model.length
    everything = torch.cartesian_prod(*[torch.arange(states)] * length).view(-1, length)
    return model.log_prob(everything).exp().view((states,) * length)


# --- likelihood, and pairs


@dataclass(frozen=True)
class Pairs:
    """The true law of neighbouring pairs: `law`, and as many versions of it as its own noise calls for."""

    positions: tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]
    law: Float64[Tensor, " cells"]
    again: Float64[Tensor, "resamples cells"]
    source: str


def _likelihood(model: Oracle, num: int, seed: int) -> Yardstick:
    """How unlikely samples are under the true law, and, because near-duplicates are likely, how their neighbouring
    pairs and their entropy differ from those of true samples."""
    true = model.draw(TRUE_FOLD * num, seed)
    pairs, weights, truth = _pair_law(model, true, seed), _weights(num, seed, 1), mean(token_entropy(true))
    told = f"no pair figure, as there are more than {MOST_PAIRS} kinds of pairs"
    if pairs is not None:
        told = (
            f"pair_kl is the KL of their neighbouring pairs from {pairs.source}, in nats, with the bias of finite samples "
            "taken off by the bootstrap (so that it can come out a little below 0), which a loss of diversity makes worse"
        )
    about = (
        "excess is (-log p(x) - entropy)/d in nats per token: 0 for true samples, above for unlikely ones, below for "
        f"samples that are likely but too similar; {told}; entropy_gap is the mean entropy of the tokens within a sample "
        "less that of true samples."
    )

    def measure(solver: Method, times: Tensor, x: Tensor) -> dict[str, Estimate]:
        figures: dict[str, Estimate] = {"excess": _mean((-model.log_prob(x) - model.entropy()) / model.length)}
        if pairs is not None:
            figures["pair_kl"] = _pair_kl(x, pairs, weights, model.process.states)
        own = mean(token_entropy(x))
        return figures | {"entropy_gap": Measured(own.value - truth.value, math.hypot(own.error, truth.error))}

    return Yardstick("oracle", about, ("excess",) if pairs is None else ("excess", "pair_kl"), measure)


def _pair_kl(x: Tensor, pairs: Pairs, weights: Tensor, states: int) -> Estimate:
    """``KL(pairs of x || true pairs)``. This direction is finite where a rare pair never occurs.

    Whole samples are resampled, as pairs of one sample depend on each other. Resampling adds about as much bias as
    sampling did, so the estimate is reflected at it: twice the plain one less the mean of the resampled ones.
    """
    seen = pair_frequencies(x, pairs.positions, torch.ones((1, len(x)), dtype=torch.float64), states)
    plain = float(_divergence(seen, pairs.law)[0])
    if not math.isfinite(plain):
        return Measured(plain)
    again = 2 * plain - _divergence(pair_frequencies(x, pairs.positions, weights, states), pairs.again)
    return Resampled(float(again.mean()), again)


def _divergence(p: Float64[Tensor, "n cells"], q: Tensor) -> Float64[Tensor, " n"]:
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(1)


def pair_frequencies(
    x: Int64[Tensor, "num d"], positions: tuple[Tensor, Tensor], weights: Float64[Tensor, "n num"], states: int
) -> Float64[Tensor, "n cells"]:
    """How often each pair of values occurs at pairs of `positions`, with each sample taken as often as `weights` says.

    Whole numbers, so that the product is exact, in whatever order it is summed.
    """
    cells = states**2
    result = torch.zeros((len(weights), cells), dtype=torch.float64)
    for rows in torch.arange(len(x)).split(max(1, AT_ONCE // cells)):
        code = x[rows][:, positions[0]] * states + x[rows][:, positions[1]]
        code = code + torch.arange(len(rows)).unsqueeze(1) * cells
        counts = torch.bincount(code.flatten(), minlength=len(rows) * cells).view(len(rows), cells)
        result += weights[:, rows] @ counts.to(torch.float64)
    return result / (len(x) * len(positions[0]))


def _pair_law(model: Oracle, true: Int64[Tensor, "num d"], seed: int) -> Pairs | None:
    """The law of neighbouring pairs: known for chains of order one, else that of `true` samples."""
    states, positions = model.process.states, neighbours(model)
    if states**2 > MOST_PAIRS or not len(positions[0]):
        return None
    if isinstance(model, MarkovChain) and model.order == 1:
        law = (model.starts[:-1].mean(0).unsqueeze(1) * model.transition).flatten()
        return Pairs(positions, law, law.expand(RESAMPLES, -1), "their exact law")
    count = len(true)
    weights = torch.cat([torch.ones((1, count), dtype=torch.float64), _weights(count, seed, 2)])
    seen = pair_frequencies(true, positions, weights, states) * count * len(positions[0])
    # half a count for each pair, so that one which these samples lack does not make the divergence infinite
    laws = (seen + 0.5) / (seen + 0.5).sum(1, keepdim=True)
    return Pairs(positions, laws[0], laws[1:], f"those of {count:,} true samples")


def neighbours(model: Denoiser) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]:
    """All pairs of positions next to each other: to the right and below in the plane, else in order."""
    shape = getattr(model, "shape", None)
    height, width = shape if shape is not None and len(shape) == 2 else (1, model.length)
    place = torch.arange(model.length).view(height, width)
    first = torch.cat([place[:, :-1].flatten(), place[:-1].flatten()])
    return first, torch.cat([place[:, 1:].flatten(), place[1:].flatten()])


def _weights(num: int, seed: int, part: int) -> Float64[Tensor, "resamples num"]:
    """How often each sample is drawn in each resampling with replacement."""
    drawn = torch.from_numpy(philox(seed, (0, 0, part, Use.METRICS), RESAMPLES * num)).mul_(num).long()
    drawn += (torch.arange(RESAMPLES) * num).repeat_interleave(num)
    return torch.bincount(drawn, minlength=RESAMPLES * num).view(RESAMPLES, num).to(torch.float64)


# --- samples alone


def _plain() -> Yardstick:
    """What samples say of themselves."""
    about = (
        "The model has no likelihood, so nothing here says how near the samples are to the truth, and nobody is "
        "ranked. entropy is the mean entropy of the tokens within a sample, in nats, and distinct the share of samples "
        "that differ from all before: both fall if samples become too similar, and neither tells good ones from noise."
    )

    def measure(solver: Method, times: Tensor, x: Tensor) -> dict[str, Estimate]:
        return {"entropy": _mean(token_entropy(x)), "distinct": Measured(len(torch.unique(x, dim=0)) / len(x))}

    return Yardstick("samples", about, (), measure)


def token_entropy(x: Int64[Tensor, "num d"]) -> Float64[Tensor, " num"]:
    """The entropy of the frequencies of tokens within each sample, in nats."""
    base = int(x.max()) + 1
    kinds, counts = torch.unique(x + base * torch.arange(len(x)).unsqueeze(1), return_counts=True)
    share = counts.to(torch.float64) / x.shape[1]
    return torch.zeros(len(x), dtype=torch.float64).index_add_(0, kinds // base, -torch.xlogy(share, share))


def _mean(values: Float64[Tensor, " n"]) -> Measured:
    """The mean, which is certain if infinite."""
    figure = mean(values)
    return figure if math.isfinite(figure.value) else Measured(figure.value)
