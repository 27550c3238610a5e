"""How good samples are: by the whole law or the likelihood, where the model knows the truth, else by how near they are
to samples of a reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .. import exact
from ..control import Method, grids
from ..core.checks import require
from ..core.evaluation import Denoiser
from ..core.noise import Use, philox
from ..models.oracles import MarkovChain, Oracle
from ..planners import FixedCount
from ..sampling import plan, sample
from ..solvers import FirstHitting, Multistep, Tweedie, Uniformization
from .metrics import kl, total_variation
from .metrics.likelihood import evidence_bound
from .metrics.measured import Scattered
from .metrics.paired import beside, overlap, pair_cells, paired_distance, token_cells, token_entropy
from .recommend import recommend

MOST_EXACT = {True: 256, False: 32}
"""Sequences, masks included, up to which exact laws are quick: with masks and without. (Without, every sequence can
follow every other, and multistep solvers remember earlier ones.)"""
RESAMPLES = 1000
MOST_PAIRS = 2**14
TRUE_FOLD = 5
"""So many times as many true samples as samples: their noise is then small beside that of the samples."""
AT_ONCE = 2**22
FINE = 128
"""Evaluations of reference samples without masks, where exact sampling takes too many."""
LONGEST_EXACT = {True: 128, False: 16}
"""The longest sequences, with masks and without, for which exact solvers are among the contenders. Uniformization, which
is for processes without masks, is the reference up to there."""
DRAWS = 4
"""Evaluations that the likelihood of a sample takes. The samples differ from each other more than the draws do."""
NGRAM = {True: 4, False: 2}
"""The length of n-grams, of letters and of longer tokens: of a vocabulary of up to 256, and of a larger one."""


@dataclass(frozen=True, eq=False)
class Yardstick:
    """Turns a contender's samples into figures."""

    kind: Literal["exact", "oracle", "reference"]
    about: str
    """What the figures are, in words."""
    ranking: tuple[str, ...]
    """The figures whose size ranks contenders: less is better."""
    measure: Callable[[Method, Tensor, Tensor], dict[str, Scattered]]
    """Figures of a solver, the times that it stepped through, and its samples."""
    evaluations: int = 0
    """What measuring costs, per sample."""


def knows_itself(model: Denoiser) -> bool:
    """Whether `model` has a likelihood; a wrapper has the methods, but what it wraps may not."""
    if not isinstance(model, Oracle):
        return False
    try:
        model.entropy()
    except ValueError:
        return False
    return True


def by_truth(model: Denoiser, num: int, seed: int) -> Yardstick:
    """The better one that an oracle supports."""
    assert isinstance(model, Oracle)
    masked = model.process.mask is not None
    if (model.process.states + masked) ** model.length <= MOST_EXACT[masked]:
        return _exact(model)
    return _likelihood(model, num, seed)


# --- the whole law


def _exact(model: Oracle) -> Yardstick:
    """Exact laws beside the true one: nothing is random."""
    about = (
        "kl is KL(p0 || law of the samples) in nats and tv the total variation, both from exact laws without any Monte "
        "Carlo."
    )

    def measure(solver: Method, times: Tensor, x: Tensor) -> dict[str, Scattered]:
        p0, law = true_law(model), exact.law(model, solver, times)
        return {"kl": Scattered(kl(p0, law)), "tv": Scattered(total_variation(p0, law))}

    return Yardstick("exact", about, ("kl",), measure)


def true_law(model: Oracle) -> Float64[Tensor, " ..."]:
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
    pairs, weights, truth = _pair_law(model, true, seed), _weights(num, seed, 1), Scattered.mean(token_entropy(true))
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

    def measure(solver: Method, times: Tensor, x: Tensor) -> dict[str, Scattered]:
        figures = {"excess": Scattered.mean((-model.log_prob(x) - model.entropy()) / model.length)}
        if pairs is not None:
            figures["pair_kl"] = _pair_kl(x, pairs, weights, model.process.states)
        return figures | {"entropy_gap": Scattered.mean(token_entropy(x)) - truth}

    return Yardstick("oracle", about, ("excess",) if pairs is None else ("excess", "pair_kl"), measure)


def _pair_kl(x: Tensor, pairs: Pairs, weights: Tensor, states: int) -> Scattered:
    """``KL(pairs of x || true pairs)``. This direction is finite where a rare pair never occurs.

    Whole samples are resampled, as pairs of one sample depend on each other. Resampling adds about as much bias as
    sampling did, so the estimate is reflected at it: twice the plain one less the mean of the resampled ones.
    """
    seen = pair_frequencies(x, pairs.positions, torch.ones((1, len(x)), dtype=torch.float64), states)
    plain = float(_divergence(seen, pairs.law)[0])
    if not math.isfinite(plain):
        return Scattered(plain)
    again = 2 * plain - _divergence(pair_frequencies(x, pairs.positions, weights, states), pairs.again)
    value = float(again.mean())
    return Scattered(value, (again - value) / math.sqrt(len(again) - 1))


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
    plane = shape if shape is not None and len(shape) == 2 else (1, model.length)
    right, below = beside(plane, 0, 1), beside(plane, 1, 0)
    return torch.cat([right[0], below[0]]), torch.cat([right[1], below[1]])


def _weights(num: int, seed: int, part: int) -> Float64[Tensor, "resamples num"]:
    """How often each sample is drawn in each resampling with replacement."""
    drawn = torch.from_numpy(philox(seed, (0, 0, part, Use.METRICS), RESAMPLES * num)).mul_(num).long()
    drawn += (torch.arange(RESAMPLES) * num).repeat_interleave(num)
    return torch.bincount(drawn, minlength=RESAMPLES * num).view(RESAMPLES, num).to(torch.float64)


# --- a reference


@dataclass(frozen=True)
class Reference:
    """How to sample the model itself, as exactly as can be paid for."""

    solver: Method
    times: Float64[Tensor, " times"]
    evaluations: int
    """Per sample, about."""
    about: str

    def draw(self, model: Denoiser, num: int, seed: int, on_step: Callable[..., None] | None = None) -> Tensor:
        return sample(model, self.solver, grid=self.times, num=num, seed=seed, progress=False, on_step=on_step).x


def exact_sampling(model: Denoiser, budget: int, fine: int | None = None) -> Reference:
    """One position at a time with masks; without, exactly where sequences are short, else much finer than `budget`; or
    what `recommend` names for `fine` evaluations.

    A masked model that ignores time is walked by `Tweedie`, whose orders and numbers are those of the contenders with
    the same seed.
    """
    if fine is not None:
        advice, about = recommend(model, fine), f"samples of the model by auto at {fine} evaluations (fine, not exact)"
        return Reference(advice.solver, plan(model, advice.solver, nfe=fine, grid=advice.grid), fine, about)
    if model.process.mask is None:
        if model.length <= LONGEST_EXACT[False]:
            times = plan(model, Uniformization())
            return Reference(
                Uniformization(), times, 20 * model.length, "exact samples of the model, by uniformization"
            )
        fine, grid = max(FINE, 4 * budget), grids.alpha_power(model.process.schedule)
        about = f"samples of the model by Multistep at {fine} evaluations (fine, not exact: that would take too many)"
        return Reference(Multistep(), plan(model, Multistep(), nfe=fine, grid=grid), fine, about)
    about = "exact samples of the model, one position at a time"
    if model.time_free:
        one = Tweedie(FixedCount("even"))
        return Reference(one, plan(model, one, steps=model.length), model.length, about)
    return Reference(FirstHitting(), plan(model, FirstHitting()), model.length, about)


def by_reference(model: Denoiser, reference: Int64[Tensor, "num d"], about: str, seed: int) -> Yardstick:
    """How samples differ from those of a reference with the same numbers, by the model's own likelihood, by the
    frequencies of tokens and of pairs, and by their entropy."""
    states, shape, text = model.process.states, getattr(model, "shape", None), getattr(model, "tokenizer", None)
    cells = {"pairs": pair_cells(model.length, shape)} if model.length > 1 else {}
    cells["tokens"] = token_cells(model.length, shape)
    bound, entropy = evidence_bound(model, reference, draws=DRAWS, seed=seed), token_entropy(reference)
    possible = bool(torch.isfinite(bound).all())
    require(possible, "reference", "-inf", "the model finds some of its samples impossible; give samples of this model")
    size = NGRAM[states <= 256]
    grams = text is not None and model.length >= size
    order = "over all orders of writing" if model.process.mask is not None else "by the score entropy"
    words = f" ngrams is the share of {size}-grams that occur in the reference's other samples, less the same of the reference."
    about = (
        f"The reference is {about}, and differences are taken sample by sample. nll is the model's own bound on -log p "
        f"({order}) less that of the reference, in nats per token: above 0 for unlikely samples, below for samples that "
        "are likely but too similar. pairs and tokens are squared distances, without bias, between the frequencies of "
        f"pairs of tokens ({_told(shape)}) and of tokens and those of the reference.{words * grams} entropy_gap is the "
        "mean entropy of the tokens within a sample less that of the reference. All are 0 for the reference's own law."
    )

    def measure(solver: Method, times: Tensor, x: Tensor) -> dict[str, Scattered]:
        own = evidence_bound(model, x, draws=DRAWS, seed=seed)
        figures = {"nll": Scattered.mean((own - bound) / model.length)}
        figures |= {name: paired_distance(x, reference, some, states) for name, some in cells.items()}
        figures |= {"ngrams": overlap(x, reference, size)} if grams else {}
        return figures | {"entropy_gap": Scattered.mean(token_entropy(x) - entropy)}

    return Yardstick("reference", about, ("nll", *cells), measure, DRAWS)


def _told(shape: tuple[int, ...] | None) -> str:
    if shape is None or len(shape) > 2:
        return "at any two positions"
    return "at distances 1, 2, 4, ..." if len(shape) == 1 else "at distances 1, 2, 4, ... along, down and across"
