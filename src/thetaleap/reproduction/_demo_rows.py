"""The demo's samples and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .. import exact
from ..conditioning.wrappers import guided, tempered
from ..control import grids
from ..evaluation.metrics import bootstrap_kl, frequencies, histogram, kl, noise_floor
from ..evaluation.metrics.digits import digit_labels
from ..files import pictures
from ..models import load
from ..models.network import Network
from ..models.oracles import Joint, MarkovChain
from ..planners.all import LowDiscrepancy
from ..sampling import Moment, plan, sample
from ..solvers import (
    RK2,
    Euler,
    FirstHitting,
    Multistep,
    ParallelDecoding,
    SemiAutoregressive,
    Solver,
    TauLeaping,
    Trapezoidal,
    Tweedie,
)
from ..training.sums import Problem, problems, result_of
from .sums import TEMPERATURE, answer_of, questions

TEXT_BUDGET, DIGITS_BUDGET, SUMS_BUDGET = 32, 64, 32
GUIDANCE = 2.0
GONE = "·"
"""What a mask is shown as."""
SUMS = 8
NUM = 4000
TOY_FOLD = 25
"""The toy is small and its noise floor high: it gets this many times the samples."""
BUDGETS = (8, 32)
CURVE_BUDGETS = (4, 8, 16, 32, 64)
GRID = "quadratic"
CURVED = {"cube3": "masked (cube3), equal steps", "cube3-uniform": "uniform (cube3-uniform), quadratic grid"}
SOLVERS: dict[str, Solver] = {
    "TauLeaping": TauLeaping(),
    "Euler": Euler(),
    "Tweedie": Tweedie(),
    "RK2": RK2(),
    "Trapezoidal": Trapezoidal(),
}
DECODERS: dict[str, Solver] = {"ParallelDecoding": ParallelDecoding(), "SemiAutoregressive": SemiAutoregressive()}

Advance = Callable[[float], None]


def work(budgets: int, curve_budgets: int) -> int:
    """How often `advance` is called, with one each."""
    return 3 + budgets * (2 * len(SOLVERS) + len(DECODERS)) + 2 + len(CURVED) * len(SOLVERS) * curve_budgets


# --- samples of the models that come with the package


def shipped(name: str) -> Network:
    """One of them; an error says so if it is not there."""
    try:
        return load(name)
    except ValueError as error:
        raise ValueError(f"model={name!r}: is not in this copy of thetaleap ({error}); install it anew") from None


def text_stages(seed: int, advance: Advance) -> list[tuple[int, str]]:
    """A text on its way: after how many evaluations it was what, with marks where nothing is yet."""
    model, seen = shipped("shakespeare"), dict[int, Tensor]()

    def watch(moment: Moment) -> None:
        seen[int(moment.nfe[0])] = moment.x[0].clone()

    sample(model, Multistep(planner=LowDiscrepancy()), nfe=TEXT_BUDGET, seed=seed, progress=False, on_step=watch)
    advance(1)
    shown = [min(seen, key=lambda nfe: abs(nfe - part * TEXT_BUDGET)) for part in (0.25, 0.5, 1.0)]
    return [(nfe, _written(model, seen[nfe])) for nfe in sorted(set(shown))]


def _written(model: Network, tokens: Int64[Tensor, " d"]) -> str:
    return "".join(GONE if n == model.process.mask else model.tokenizer.decode([n]) for n in tokens.tolist())


@dataclass(frozen=True)
class Digits:
    """A picture of each digit, and what the classifier takes it for."""

    images: Float[Tensor, "n 1 h w"]
    seen: list[int]


def digits(seed: int, advance: Advance) -> Digits:
    """One of each, in their order."""
    model = shipped("mnist")
    told = guided(model, GUIDANCE, torch.arange(10))
    drawn = sample(told, Multistep(), nfe=DIGITS_BUDGET, num=10, seed=seed, progress=False)
    advance(1)
    return Digits(pictures(model, drawn.x), digit_labels(drawn.x).tolist())


@dataclass(frozen=True)
class Sum:
    """A problem that was not trained on, and what was answered."""

    problem: Problem
    answer: str

    @property
    def right(self) -> bool:
        return result_of(self.answer) == self.problem.result


def sums(seed: int, advance: Advance) -> list[Sum]:
    """A few of them."""
    model, asked = shipped("sums"), problems(SUMS, seed, held_out=True)
    template = questions(asked, model.length)
    solver, sharp = SemiAutoregressive("confidence"), tempered(model, TEMPERATURE)
    drawn = sample(sharp, solver, nfe=SUMS_BUDGET, template=template, seed=seed, progress=False)
    advance(1)
    free = (template < 0).sum(1).tolist()
    return [Sum(one, answer_of(model, x, n)) for one, x, n in zip(asked, drawn.x, free, strict=True)]


# --- the chain


@dataclass(frozen=True)
class ChainRow:
    """How near samples of the chain are to it. `budget` None: as many evaluations as it takes."""

    solver: str
    budget: int | None
    nfe: float
    """Evaluations spent per sample, on average."""
    excess: float
    """Excess cross-entropy, ``(-log p(x) - entropy)/d``, nats per token."""
    excess_se: float
    pair_kl: float
    """KL of the frequencies of neighbouring pairs from the true law of pairs."""
    pair_kl_se: float


def chain_rows(budgets: Sequence[int], num: int, seed: int, advance: Advance) -> list[ChainRow]:
    """True samples, exact ones, and every solver at every budget."""
    model = load("chain64")
    assert isinstance(model, MarkovChain)
    rows = [_chain_row(model, "true samples", None, 0.0, model.draw(num, seed))]
    advance(1)
    drawn = sample(model, FirstHitting(), num=num, seed=seed, progress=False)
    rows.append(_chain_row(model, "FirstHitting", None, float(drawn.nfe.double().mean()), drawn.x))
    advance(1)
    for budget in budgets:
        for name, solver in (SOLVERS | DECODERS).items():
            drawn = sample(model, solver, nfe=budget, num=num, seed=seed, progress=False)
            rows.append(_chain_row(model, name, budget, float(drawn.nfe.double().mean()), drawn.x))
            advance(1)
    return rows


def _chain_row(model: MarkovChain, solver: str, budget: int | None, nfe: float, x: Tensor) -> ChainRow:
    excess = (-model.log_prob(x) - model.entropy()) / model.length
    return ChainRow(solver, budget, nfe, float(excess.mean()), _standard_error(excess), *pair_kl(model, x))


def pair_kl(model: MarkovChain, x: Tensor) -> tuple[float, float]:
    """KL of the frequencies of neighbouring pairs in `x` from their true law, with its standard error.

    The frequencies f are means over the samples, so that to first order the error of ``sum f log(f/p)`` is that of
    the mean of ``log(f/p)`` over the pairs of one sample. (This direction is finite where a rare pair never occurs.)
    """
    truth = model.starts[:-1].mean(0).unsqueeze(1) * model.transition
    pairs = torch.stack([x[:, :-1].flatten(), x[:, 1:].flatten()], 1)
    counts = histogram(pairs, model.process.states)
    seen = frequencies(counts)
    log_ratio = (seen / truth).log()[x[:, :-1], x[:, 1:]]
    return kl(seen, truth), _standard_error(log_ratio.mean(1))


def _standard_error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))


# --- the toy


@dataclass(frozen=True)
class ToyRow:
    """Exact and sampled KL of one solver at one budget."""

    solver: str
    budget: int
    num: int
    kl_exact: float
    kl_mc: float
    kl_low: float
    kl_high: float
    noise_floor: float


def toy_rows(budgets: Sequence[int], num: int, seed: int, advance: Advance) -> list[ToyRow]:
    """Every solver at every budget, on a quadratic grid."""
    model = load("toy15")
    assert isinstance(model, Joint)
    num *= TOY_FOLD
    rows, floor = [], noise_floor(model.p0.numel(), num)
    for budget in budgets:
        for name, solver in SOLVERS.items():
            times = plan(model, solver, nfe=budget, grid=grids.power)
            drawn = sample(model, solver, grid=times, num=num, seed=seed, progress=False)
            counts = histogram(drawn.x, model.process.states)
            truth, estimate = kl(model.p0, exact.law(model, solver, times)), kl(model.p0, frequencies(counts))
            low, high = bootstrap_kl(model.p0, counts, seed=seed)
            rows.append(ToyRow(name, budget, num, truth, estimate, low, high, floor))
            advance(1)
    return rows


# --- exact curves


@dataclass(frozen=True)
class CurveRow:
    """Exact KL of one solver's law at one budget."""

    model: str
    solver: str
    budget: int
    kl_exact: float


def curve_rows(budgets: Sequence[int], advance: Advance) -> list[CurveRow]:
    """Every solver on both models, at all budgets."""
    rows = []
    for name in CURVED:
        model = load(name)
        assert isinstance(model, Joint)
        grid = grids.uniform if model.process.mask is not None else grids.power
        for solver_name, solver in SOLVERS.items():
            for budget in budgets:
                law = exact.law(model, solver, plan(model, solver, nfe=budget, grid=grid))
                rows.append(CurveRow(name, solver_name, budget, kl(model.p0, law)))
                advance(1)
    return rows
