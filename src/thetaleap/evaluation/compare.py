"""`compare`: which solver gives the best samples of a model for a given number of evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..control import Method, Preset, control_of, grids
from ..core.checks import require, require_count
from ..core.evaluation import Denoiser
from ..core.fields import parameters
from ..core.progress import progress_bar
from ..planners import Bernoulli, LowDiscrepancy
from ..registry import PLANNERS, SOLVERS, Registry
from ..sampling import Samples, plan, sample
from ..solvers import Trapezoidal, Tweedie
from .metrics.measured import LEVEL, Estimate
from .threads import one_thread
from .yardsticks import Yardstick, size, yardstick

NUM = 2000
BLOCKS = 4
LONGEST_EXACT = {True: 128, False: 16}
"""The longest sequences, with masks and without, for which exact solvers are among the default contenders."""
LONG_ENOUGH = 0.5
"""Seconds after which a run is not repeated to time it better."""
ROUNDING = 1e-12
"""Figures nearer than this are indistinguishable: exact laws are right to rounding only."""


@dataclass(frozen=True)
class Contender:
    """A solver and the grid it walks; None is the uniform one."""

    solver: Method
    grid: grids.Grid | None = None


@dataclass(frozen=True)
class Rank:
    """The places that a contender may hold: behind all that are surely better, ahead of all that are surely worse.

    Two contenders that are indistinguishable always share a place.
    """

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
    nfe: float | None = None
    """Evaluations spent per sample, on average."""
    seconds: float | None = None
    """Wall time of 1000 samples, run together as `sample` does by default."""
    figures: dict[str, Estimate] = field(default_factory=dict)
    ranks: dict[str, Rank] = field(default_factory=dict)
    """For each figure that ranks; empty for exact solvers, which have no budget."""
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """The outcome of `compare`."""

    rows: list[Row]
    """By budget, in the order of the contenders; exact solvers last."""
    kind: str
    """What the model can tell: "exact" laws, "oracle" (likelihood and true samples), or "samples" alone."""
    ranking: tuple[str, ...]
    """The figures by whose size contenders are ranked."""
    about: str
    """What the figures are, in words."""
    settings: dict[str, object]
    level: float = LEVEL
    """Of the intervals by which contenders are ranked: they hold for all at once (Bonferroni)."""

    def text(self) -> str:
        """What was found, in words and as a table."""
        from .report import describe  # with matplotlib, which sampling alone does not need

        return describe(self)

    def save(self, folder: str | Path) -> list[Path]:
        """Write ``comparison.csv``, ``comparison.json`` and ``comparison.png`` to `folder`, which is made."""
        from .report import write

        return write(self, Path(folder))


def compare(
    model: Denoiser,
    contenders: dict[str, Contender],
    budgets: Sequence[int],
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Comparison:
    """Run every contender at every budget, and measure how near its samples are to the truth.

    Args:
        model: an oracle, which knows the truth, or any model, of which less can be said.
        contenders: by name; `default_contenders` has those that make sense for a model.
        budgets: the most evaluations to spend on a sample. Exact solvers take as many as they need, and run once.
        num: samples of each, by default 2000. Exact laws do not depend on it, but times do.
        seed: of the samples, the true samples and the bootstrap.
        progress: show a progress bar; by default if standard error is a terminal.

    A contender that cannot be run at a budget gets a row that says why.
    """
    num = NUM if num is None else num
    require_count("num", num, least=2)
    require_count("seed", seed, least=0)
    require(len(contenders) > 0, "contenders", contenders, "give at least one, e.g. default_contenders(model)")
    require(len(budgets) > 0, "budgets", budgets, "give at least one, e.g. [8, 16, 32]")
    for n, budget in enumerate(budgets):
        require_count(f"budgets[{n}]", budget)
    budgets = sorted(set(budgets))
    rows: list[Row] = []
    entries = list(_entries(contenders, budgets))
    with one_thread(), progress_bar(progress, "comparing", len(entries)) as advance:
        measure = yardstick(model, num, seed)
        for name, budget in entries:
            rows.append(_row(model, name, contenders[name], budget, num, seed, measure))
            advance(1)
    level = 1 - (1 - LEVEL) / len(contenders)
    groups = [[row for row in rows if row.budget == budget] for budget in budgets]
    ranked = [row for group in groups for row in rank(group, measure.ranking, level)]
    ranked += [row for row in rows if row.budget is None]
    settings = _settings(model, contenders, budgets, num, seed)
    return Comparison(ranked, measure.kind, measure.ranking, measure.about, settings, level)


def _entries(contenders: dict[str, Contender], budgets: Sequence[int]) -> Iterator[tuple[str, int | None]]:
    """What is run: everyone at every budget, and exact solvers once."""
    for budget in budgets:
        for name, contender in contenders.items():
            if contender.solver.evaluations is not None:
                yield name, budget
    for name, contender in contenders.items():
        if contender.solver.evaluations is None:
            yield name, None


def _row(
    model: Denoiser, name: str, contender: Contender, budget: int | None, num: int, seed: int, measure: Yardstick
) -> Row:
    try:
        times = plan(model, contender.solver, nfe=budget, grid=contender.grid)
        drawn, seconds = _timed(lambda: sample(model, contender.solver, grid=times, num=num, seed=seed, progress=False))
        figures = measure.measure(contender.solver, times, drawn.x)
    except ValueError as error:  # too small a budget, or what the solver or the model cannot do
        return Row(name, budget, reason=str(error))
    return Row(name, budget, float(drawn.nfe.double().mean()), seconds * 1000 / num, figures)


def _timed(draw: Callable[[], Samples]) -> tuple[Samples, float]:
    """The samples, and the seconds of the fastest of up to three runs: short ones are easily disturbed."""
    seconds: list[float] = []
    while True:
        begin = time.perf_counter()
        drawn = draw()
        seconds.append(time.perf_counter() - begin)
        if len(seconds) == 3 or sum(seconds) > LONG_ENOUGH:
            return drawn, min(seconds)


def rank(rows: Sequence[Row], ranking: Sequence[str], level: float = LEVEL) -> list[Row]:
    """`rows` of one budget with their ranks, by intervals of this `level`."""
    ranked = [row for row in rows if not row.reason]
    places: dict[str, dict[str, Rank]] = {row.contender: {} for row in ranked}
    for figure in ranking:
        sizes = {row.contender: size(row.figures[figure], level) for row in ranked}
        for name, (least, most) in sizes.items():
            better = sum(other[1] + ROUNDING < least for other in sizes.values())
            worse = sum(most + ROUNDING < other[0] for other in sizes.values())
            places[name][figure] = Rank(1 + better, len(sizes) - worse)
    return [replace(row, ranks=places.get(row.contender, {})) for row in rows]


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
        "contenders": {name: _described(contender) for name, contender in contenders.items()},
    }


def _described(contender: Contender) -> dict[str, str]:
    name = "uniform" if contender.grid is None else getattr(contender.grid, "__qualname__", repr(contender.grid))
    return {"solver": repr(contender.solver), "grid": name.split(".")[0]}


def default_contenders(model: Denoiser) -> dict[str, Contender]:
    """All solvers of the registry that make sense for `model`, with the grid that suits its process.

    That is the uniform one with masks, and without them ``alpha_power(schedule, 2)``. Exact solvers are among them
    where sequences are short.
    """
    masked = model.process.mask is not None
    grid = None if masked else grids.alpha_power(model.process.schedule, 2.0)
    solvers = _solvers(model)
    if masked:  # first-hitting does the same for less
        del solvers["uniformization"]
    short = model.length <= LONGEST_EXACT[masked]
    kept = {name: solver for name, solver in solvers.items() if short or solver.evaluations is not None}
    return {name: Contender(solver, grid) for name, solver in kept.items() if _fits(solver, model)}


def _solvers(model: Denoiser) -> dict[str, Method]:
    """Solvers, `Tweedie` with every other planner, presets, and exact solvers."""
    suited = {
        "exponential-trapezoidal": {"extrapolation": "logit" if model.process.mask is None else "linear"},
        "semi-autoregressive": {"block_length": -(-model.length // BLOCKS)},
    }
    made: dict[str, Method] = {}
    for name, solver in _complete(SOLVERS).items():
        made[name] = solver(**suited.get(name, {}))
        if name == "trapezoidal":
            made["trapezoidal-paper"] = Trapezoidal(rule="reject")
    planned: dict[str, Method] = {}
    for name, planner in _complete(PLANNERS).items():
        if planner is not Bernoulli:
            planned[name] = Tweedie(planner())
        shape = getattr(model, "shape", None)
        if planner is LowDiscrepancy and shape is not None and len(shape) == 2:
            planned[f"{name}-2d"] = Tweedie(LowDiscrepancy((shape[0], shape[1])))
    kinds = {name: 3 if one.evaluations is None else 2 * isinstance(one, Preset) for name, one in made.items()}
    every = {**made, **{name: one for name, one in planned.items() if name not in made}}
    return {name: every[name] for name in sorted(every, key=lambda name: kinds.get(name, 1))}


def _complete(registry: Registry) -> dict[str, Callable[..., Any]]:
    """Those that need no hyper-parameter to be given."""
    found = registry.loaded()
    return {name: one for name, one in found.items() if all(p.default is not MISSING for p in parameters(one).values())}


def _fits(solver: Method, model: Denoiser) -> bool:
    try:
        control_of(solver).check(model.process, model.length)
    except ValueError:
        return False
    return True
