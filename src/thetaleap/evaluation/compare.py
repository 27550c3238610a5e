"""`compare`: which solver gives the best samples of a model for a given number of evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..control import Method, control_of
from ..core.batches import Batches
from ..core.checks import is_whole, require, require_count, require_flag
from ..core.evaluation import Denoiser, as_model, of_samples
from ..core.progress import Told, progress_bar
from ..sampling import Samples, plan, sample
from .choice import written
from .contenders import Contender, Contenders, contenders_of, default_contenders
from .metrics.measured import LEVEL, Scattered
from .threads import one_thread
from .yardsticks import DRAWS, Reference, Yardstick, by_reference, by_truth, exact_sampling, knows_itself

__all__ = ["Comparison", "Contender", "Interrupted", "Rank", "Row", "compare", "default_contenders"]

NUM = 2000
MODEL = "model"
"""As `reference`: the model itself, also where the truth is known."""
POSITIONS, FEWEST, MOST = 2**14, 64, 256
"""Of reference samples where the truth is not known: positions of all together, and the fewest and most samples."""
LONG_ENOUGH = 0.5
"""Seconds after which a run is not repeated to time it better."""
ROUNDING = 1e-12
"""Figures nearer than this are indistinguishable: exact laws are right to rounding only."""


@dataclass(frozen=True)
class Rank:
    """The places that a contender may hold: behind all that are surely better, ahead of all that are surely worse."""

    best: int
    worst: int

    def __str__(self) -> str:
        return str(self.best) if self.best == self.worst else f"{self.best}-{self.worst}"


@dataclass(frozen=True)
class Row:
    """One contender at one budget; or the `reason` why there are no numbers."""

    contender: str
    budget: int | None
    """None: as many evaluations as it takes, for exact solvers."""
    solver: str = ""
    """As in Python."""
    nfe: float | None = None
    """Evaluations spent per sample, on average."""
    seconds: float | None = None
    """Wall time of 1000 samples, run together as `sample` does by default."""
    figures: dict[str, Scattered] = field(default_factory=dict)
    rank: Rank | None = None
    """None for exact solvers, which have no budget."""
    note: str = ""
    """Why it spends less than its budget, if it does."""
    reason: str = ""
    rounds: float | None = None
    """Batches that the evaluations were in: as many as were run one after the other."""


@dataclass(frozen=True)
class Comparison:
    """The outcome of `compare`."""

    rows: list[Row]
    """By budget, the best first; exact solvers last."""
    kind: str
    """What figures go by: "exact" laws, an "oracle" (likelihood and true samples), or samples of a "reference"."""
    ranking: tuple[str, ...]
    """The figures by whose size contenders are ranked."""
    about: str
    """What the figures are, in words."""
    settings: dict[str, object]
    level: float = LEVEL
    """Of the intervals of differences by which contenders are ranked: they hold for all at once (Bonferroni)."""
    reference: Int64[Tensor, "num d"] | None = None
    """Its samples, where it is drawn."""

    def better(self, one: Row, other: Row) -> bool:
        """Whether `one` is surely nearer to the truth in some figure, and surely farther in none."""
        return surely_better(one, other, self.ranking, self.level)

    def text(self) -> str:
        """What was found, in words and as a table."""
        from .report import describe  # with matplotlib, which sampling alone does not need

        return describe(self)

    def save(self, folder: str | Path) -> list[Path]:
        """Write ``comparison.csv``, ``comparison.json``, ``comparison.png`` and, if one was drawn, the reference to
        `folder`, which is made."""
        from .report import write

        return write(self, Path(folder))


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in `compare`, once the reference was there: `comparison` has the rows that were finished."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison


def compare(
    model: Denoiser | str,
    contenders: Contenders | None,
    budgets: Sequence[int],
    *,
    num: int | None = None,
    seed: int = 0,
    reference: Int64[Tensor, "others d"] | Batches | str | int | None = None,
    progress: bool | Told | None = None,
) -> Comparison:
    """Run every contender at every budget, and measure how near its samples are to the truth.

    The truth is that of an oracle. Any other model is compared with exact samples of itself: one position at a time with
    masks, and very fine steps without. All use the same seed, and differences are taken sample by sample.

    Args:
        model: any model, or the name of one.
        contenders: solvers by name, each as a solver, as text (``"auto"``, ``"Multistep(window=2)"``, ``"exact"``: one
            position at a time in few rounds), or with a grid of its own as a `Contender`; or a list of solvers and texts;
            by default `default_contenders`.
        budgets: the most evaluations to spend on a sample. Exact solvers take as many as they need, and run once.
        num: samples of each: by default 2000 for oracles, else 64 to 256, fewer of longer sequences. Exact laws do not
            depend on it, but times do.
        seed: of all samples, and of the draws of likelihoods and the bootstrap.
        reference: samples to compare with instead, at least `num`: the first are taken; a number: samples of the model by
            `auto` at so many evaluations, where exact ones take too long; or "model": exact ones also where the truth is
            known.
        progress: show a progress bar; by default if standard error is a terminal. Or a function: it is called with the
            share that is done, from 0 to 1, and with what was run; what it raises ends the comparison.

    A contender that cannot be run at a budget gets a row that says why. Ctrl-C raises `Interrupted`, which holds the
    rows that were finished.
    """
    model = as_model(model)
    require_reference(reference)
    num = default_num(model, reference) if num is None else num
    require_count("num", num, least=3)
    require_count("seed", seed, least=0)
    listed = isinstance(budgets, Sequence) and not isinstance(budgets, str) and len(budgets) > 0
    require(listed, "budgets", budgets, "give a list of at least one, e.g. [8, 16, 32]")
    if progress is not None and not callable(progress):
        require_flag("progress", progress)
    for n, budget in enumerate(budgets):
        require_count(f"budgets[{n}]", budget)
    budgets, every = sorted(set(budgets)), contenders_of(model, contenders)
    rows: list[Row] = []
    drawn: Tensor | None = None
    stopped = False
    # threads wait for each other on small tensors, as those of oracles
    with one_thread() if knows_itself(model) else nullcontext():
        total = evaluations(model, every, budgets, reference)
        with progress_bar(progress, "comparing", total) as advance:
            measure, drawn = _yardstick(model, num, seed, budgets, reference, advance)
            try:
                for name, budget in _entries(every, budgets):
                    rows.append(_row(model, name, every[name], budget, num, seed, measure))
                    advance((budget or model.length) + measure.evaluations, note=name)
            except KeyboardInterrupt:
                stopped = True
    pairs = len(every) * (len(every) - 1) // 2 * len(measure.ranking)
    level = 1 - (1 - LEVEL) / max(1, pairs)
    groups = [[row for row in rows if row.budget == budget] for budget in (*budgets, None)]
    ranked = [row for group in groups for row in rank(group, measure.ranking, level)]
    settings = _settings(model, every, budgets, num, seed)
    found = Comparison(ranked, measure.kind, measure.ranking, measure.about, settings, level, drawn)
    if stopped:
        raise Interrupted(found)
    return found


# --- what is measured


def require_reference(reference: Any) -> None:
    """Raise ``ValueError`` unless it is one of those that `compare` takes."""
    known = reference is None or isinstance(reference, Tensor | Batches) or is_whole(reference)
    known = known or (isinstance(reference, str) and reference == MODEL)
    require(known, "reference", reference, f'give samples, a number, "{MODEL}", or leave it out')


def default_num(model: Denoiser, reference: Tensor | Batches | str | int | None = None) -> int:
    """How many samples `compare` draws of each contender, unless it is said."""
    if reference is None and knows_itself(model):
        return NUM
    few = max(FEWEST, min(MOST, POSITIONS // model.length))
    return min(few, len(reference)) if isinstance(reference, Tensor | Batches) else few


def evaluations(
    model: Denoiser,
    contenders: Mapping[str, Contender],
    budgets: Sequence[int],
    reference: Tensor | Batches | str | int | None = None,
) -> int:
    """How many evaluations `compare` takes, about, for each of its samples."""
    yardstick = 0 if reference is None and knows_itself(model) else DRAWS
    before = yardstick
    if yardstick and not isinstance(reference, Tensor | Batches):
        before += reference_of(model, budgets, reference).evaluations
    return before + sum((budget or model.length) + yardstick for _, budget in _entries(contenders, budgets))


def seconds_per_evaluation(model: Denoiser, rows: int = 8) -> float:
    """How long one evaluation of one sample takes, about."""
    begin = model.process.mask or 0
    x, t = (
        torch.full((rows, model.length), begin, device=model.device),
        torch.tensor(model.horizon, dtype=torch.float64),
    )
    every, times = torch.arange(x.numel(), device=model.device), []
    for _ in range(2):  # the first one warms up
        start = time.perf_counter()
        with torch.no_grad():
            of_samples(model, torch.arange(rows))(x, t.to(model.device)).logits(every)
        times.append(time.perf_counter() - start)
    return min(times) / rows


def reference_of(model: Denoiser, budgets: Sequence[int], reference: str | int | None) -> Reference:
    """How a reference is drawn."""
    if reference is not None and not isinstance(reference, str):
        require_count("reference", reference, least=max(budgets) + 1)
        return exact_sampling(model, max(budgets), reference)
    return exact_sampling(model, max(budgets))


def _yardstick(
    model: Denoiser,
    num: int,
    seed: int,
    budgets: Sequence[int],
    reference: Tensor | Batches | str | int | None,
    advance: Callable[..., None],
) -> tuple[Yardstick, Tensor | None]:
    """The best one that the model supports, or that is asked for; and the reference's samples, if they were drawn."""
    if reference is None and knows_itself(model):
        return by_truth(model, num, seed), None
    if isinstance(reference, Tensor | Batches):
        given = _given(model, num, reference)
        return by_reference(model, given, f"{len(reference)} samples that were given", seed), None
    source = reference_of(model, budgets, reference)
    rounds = control_of(source.solver).rounds(source.times, model.length) + 2
    drawn = source.draw(
        model, num, seed, lambda moment: advance(source.evaluations / rounds * len(moment.x) / num, note="reference")
    )
    return by_reference(model, drawn, source.about, seed), drawn


def _given(model: Denoiser, num: int, reference: Tensor | Batches) -> Int64[Tensor, "num d"]:
    """The first `num` samples of a reference, all of which must be some of the model's."""
    shape, whole = tuple(reference.shape), isinstance(reference, Batches) or reference.dtype == torch.int64
    good = len(shape) == 2 and shape[1] == model.length and whole
    require(good, "reference", shape, f"give whole numbers of shape (samples, {model.length}), as the model's samples")
    require(len(reference) >= num, "reference", len(reference), f"has fewer samples than num, {num}; give more")
    batches, states = Batches.of(reference), model.process.states
    clean = batches.least >= 0 and batches.most < states
    require(clean, "reference", batches.most, f"its tokens must be 0 to {states - 1}, as the model's")
    return batches[:num].tensor()


def _entries(contenders: Mapping[str, Contender], budgets: Sequence[int]) -> Iterator[tuple[str, int | None]]:
    """What is run: everyone at every budget, and exact solvers once."""

    for budget in budgets:
        yield from ((name, budget) for name, one in contenders.items() if one.spends)
    yield from ((name, None) for name, one in contenders.items() if not one.spends)


def _row(
    model: Denoiser, name: str, contender: Contender, budget: int | None, num: int, seed: int, measure: Yardstick
) -> Row:
    try:
        solver, grid = contender.at(model, budget)
        times = plan(model, solver, nfe=budget, grid=grid)
        how = {"num": num, "seed": seed, "window": contender.window, "progress": False}
        drawn, seconds = _timed(lambda: sample(model, solver, grid=times, **how))
        figures = measure.measure(solver, times, drawn.x)
    except ValueError as error:  # too small a budget, or what the solver or the model cannot do
        return Row(name, budget, reason=str(error))
    nfe, rounds, spent = (float(count.double().mean()) for count in (drawn.nfe, drawn.rounds, drawn.spent))
    note = "" if budget is None else _unspent(model, solver, times, budget, nfe)
    note = note if contender.window is None else f"one position at a time; guesses that fail make it {spent:.1f}"
    return Row(name, budget, written(solver), nfe, seconds * 1000 / num, figures, note=note, rounds=rounds)


def _unspent(model: Denoiser, solver: Method, times: Float64[Tensor, " times"], budget: int, nfe: float) -> str:
    """Why evaluations are left over, if there are."""
    if nfe > budget - 0.5:
        return ""
    control = control_of(solver)
    each, finish = control.evaluations or 1, not control.reaches_data(model.process)
    planned = control.cost(len(times) - 1) + finish
    if planned < budget and each > 1:
        return f"takes {each} per step{' and one to finish' if finish else ''}"
    if nfe == model.length:
        return f"is done after {model.length}, one for each position"
    return "spends nothing on steps that unmask nothing, and once all is written"


def _timed(draw: Callable[[], Samples]) -> tuple[Samples, float]:
    """The samples, and the seconds of the fastest of up to three runs: short ones are easily disturbed."""
    seconds: list[float] = []
    while True:
        begin = time.perf_counter()
        drawn = draw()
        seconds.append(time.perf_counter() - begin)
        if len(seconds) == 3 or sum(seconds) > LONG_ENOUGH:
            return drawn, min(seconds)


# --- ranks


def surely_smaller(one: Scattered, other: Scattered, level: float) -> bool:
    """Whether `one` is surely nearer to 0: both the difference and the sum are surely on the other one's side of 0."""
    if not (abs(one.value) < abs(other.value) < float("inf")):
        return abs(one.value) < abs(other.value)
    bar = NormalDist().inv_cdf((1 + level) / 2)
    side = 1 if other.value > 0 else -1
    return all(side * apart.value > bar * apart.error + ROUNDING for apart in (other - one, other + one))


def surely_better(one: Row, other: Row, ranking: Sequence[str], level: float) -> bool:
    """Whether `one` is surely nearer to the truth in some figure, and surely farther in none."""
    figures = [(one.figures[name], other.figures[name]) for name in ranking]
    nearer = any(surely_smaller(a, b, level) for a, b in figures)
    return nearer and not any(surely_smaller(b, a, level) for a, b in figures)


def rank(rows: Sequence[Row], ranking: Sequence[str], level: float = LEVEL) -> list[Row]:
    """`rows` of one budget with their ranks, the best first, by intervals of this `level`."""
    ran = [row for row in rows if not row.reason]
    if any(row.budget is None for row in ran):
        return list(rows)
    placed = []
    for row in ran:
        behind = sum(surely_better(other, row, ranking, level) for other in ran)
        ahead = sum(surely_better(row, other, ranking, level) for other in ran)
        placed.append(replace(row, rank=Rank(1 + behind, len(ran) - ahead)))

    def order(row: Row) -> tuple[int, float]:
        assert row.rank is not None
        return row.rank.best + row.rank.worst, abs(row.figures[ranking[0]].value)

    return sorted(placed, key=order) + [row for row in rows if row.reason]


def _settings(
    model: Denoiser, contenders: dict[str, Contender], budgets: Sequence[int], num: int, seed: int
) -> dict[str, object]:
    from .. import __version__

    return {
        "version": __version__,
        "model": type(model).__name__,
        "process": type(model.process).__name__,
        "states": model.process.states,
        "length": model.length,
        "horizon": model.horizon,
        "budgets": list(budgets),
        "num": num,
        "seed": seed,
        "contenders": {name: one.described() for name, one in contenders.items()},
    }
