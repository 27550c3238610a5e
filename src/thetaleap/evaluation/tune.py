"""`tune`: search solvers, weights, windows, planners and grids for one model and budget, and confirm the winner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from ..control import Method
from ..core.batches import Batches
from ..core.checks import require, require_count
from ..core.evaluation import Denoiser, as_model
from ..planners import FixedCount, LowDiscrepancy
from ..solvers import ExponentialTrapezoidal, Multistep, Tweedie
from .choice import AUTO, parse, read_grid, written
from .compare import Comparison, Row, compare, default_num, reference_of, require_reference
from .compare import evaluations as compare_evaluations
from .contenders import Contender
from .figures import number, page, write_json
from .yardsticks import knows_itself

TUNED = "tuned"
EXPONENTS = {True: (0.7, 1.4), False: (1.5, 2.0, 2.5, 3.0)}
"""Of grids ``alpha_power``, with masks, beside equal counts, and without."""
FIRST, KEPT = 4, 6
"""All candidates get a share of the samples, one of so many; so many of them then get all."""


@dataclass(frozen=True)
class Candidate:
    """A solver and a grid, as text."""

    solver: str
    grid: str

    def contender(self, model: Denoiser) -> Contender:
        return Contender(parse(self.solver), read_grid(model, self.grid))

    def __str__(self) -> str:
        return self.solver if self.grid == "uniform" else f"{self.solver} on {self.grid}"


@dataclass(frozen=True)
class Tuned:
    """The best of the candidates, as it was found and as it was confirmed on other samples."""

    winner: Candidate
    nfe: int
    tried: int
    """How many candidates there were."""
    found: Row
    """The winner in the search: the best of many, and so too good."""
    comparison: Comparison
    """The winner, `auto` and `tweedie` on samples that the search has not seen."""

    def row(self, name: str) -> Row:
        return next(row for row in self.comparison.rows if row.contender == name)

    @property
    def confirmed(self) -> bool:
        """Whether the winner is surely better than `auto`."""
        return self.comparison.better(self.row(TUNED), self.row(AUTO))

    def text(self) -> str:
        """What was found, what was confirmed, and the table."""
        name = self.comparison.ranking[0]
        fresh, auto = (self.row(one).figures[name] for one in (TUNED, AUTO))
        verdict = "it is not confirmed better than auto: keep auto"
        if self.confirmed:
            verdict = "it is confirmed better than auto"
        elif self.row(TUNED).solver == self.row(AUTO).solver and fresh.value == auto.value:
            verdict = "it does as auto does, which takes the same"
        told = (
            f"The best of {self.tried} candidates at {self.nfe} evaluations is {self.winner}. On samples that the search has "
            f"not seen, {verdict}. {name} is {number(self.found.figures[name].value)} in the search, "
            f"{number(fresh.value)} +- {number(fresh.interval()[1] - fresh.value)} on fresh samples, and "
            f"{number(auto.value)} +- {number(auto.interval()[1] - auto.value)} for auto on the same."
        )
        return "\n\n".join([page([told]), self.comparison.text()])

    def save(self, path: str | Path, model: str) -> Path:
        """Write it as JSON for ``thetaleap sample MODEL --solver FILE``; `model` is its name."""
        from .report import plain  # with matplotlib

        def told(row: Row) -> dict[str, Any]:
            return {name: {"value": plain(one.value), "error": one.error} for name, one in row.figures.items()}

        settings = {key: self.comparison.settings[key] for key in ("version", "num", "seed")}
        facts = {"solver": self.winner.solver, "grid": self.winner.grid, "nfe": self.nfe, "model": model, **settings}
        facts |= {"confirmed_better_than_auto": self.confirmed, "search": told(self.found)}
        facts |= {"fresh": {one: told(self.row(one)) for one in (TUNED, AUTO, "tweedie")}}
        return write_json(Path(path), facts)


def tune(
    model: Denoiser | str,
    nfe: int,
    *,
    num: int | None = None,
    seed: int = 0,
    reference: Int64[Tensor, "others d"] | Batches | str | int | None = None,
    progress: bool | None = None,
) -> Tuned:
    """Search `candidates` for the one nearest to the truth at `nfe` evaluations, and compare it on fresh samples.

    A quarter of the samples of `seed` chooses a few candidates, all of them the winner. Samples of ``seed + 1`` compare
    it with `auto` and `tweedie`. Arguments are those of `compare`; a `reference` of given samples is used by halves.
    """
    model = as_model(model)
    require_count("nfe", nfe)
    require_reference(reference)
    halves: list[Any] = [reference, reference]
    if isinstance(reference, Tensor | Batches):
        halves = [reference[: len(reference) // 2], reference[len(reference) // 2 :]]
    num = default_num(model, halves[0]) if num is None else num
    require_count("num", num, least=3 * FIRST)
    if not isinstance(halves[0], Tensor | Batches) and not (halves[0] is None and knows_itself(model)):
        halves[0] = reference_of(model, [nfe], halves[0]).draw(model, num, seed)  # once for both rounds

    def best(some: Sequence[Candidate], count: int) -> list[tuple[Candidate, Row]]:
        named = {str(one): one for one in some}
        contenders = {name: one.contender(model) for name, one in named.items()}
        got = compare(model, contenders, [nfe], num=count, seed=seed, reference=halves[0], progress=progress)
        return [(named[row.contender], row) for row in _ordered(got)]

    every = candidates(model)
    few = [one for one, _ in best(every, max(3, num // FIRST))[:KEPT]]
    require(len(few) > 0, "nfe", nfe, "no candidate can be run on so few evaluations; give more")
    winner, found = best(few, num)[0]
    finalists = {TUNED: winner.contender(model), AUTO: AUTO, "tweedie": "tweedie"}
    final = compare(model, finalists, [nfe], num=num, seed=seed + 1, reference=halves[1], progress=progress)
    return Tuned(winner, nfe, len(every), found, final)


def evaluations(model: Denoiser, nfe: int, reference: Tensor | Batches | str | int | None = None) -> int:
    """How many evaluations `tune` takes, about, for each of its samples."""
    rounds = KEPT + len(candidates(model)) // FIRST, 3
    some = ({str(n): Contender(AUTO) for n in range(count)} for count in rounds)
    return sum(compare_evaluations(model, contenders, [nfe], reference) for contenders in some)


def _ordered(comparison: Comparison) -> list[Row]:
    """The nearest first: by the sum of all ranking figures, each in units of its typical error."""
    ran = [row for row in comparison.rows if row.figures]
    units = {name: median([row.figures[name].error for row in ran] or [0]) or 1.0 for name in comparison.ranking}

    def size(row: Row) -> float:
        total = sum(abs(row.figures[name].value) / unit for name, unit in units.items())
        return total if math.isfinite(total) else math.inf

    return sorted(ran, key=size)


def candidates(model: Denoiser) -> list[Candidate]:
    """What is searched: solvers with their weights and windows, in random order and far apart, on grids that spend more or
    less of their steps near the data."""
    masked = model.process.mask is not None
    if not masked:
        solvers: list[Method] = [Multistep(weight) for weight in (0.25, 0.5, 0.75)]
        solvers += [ExponentialTrapezoidal(extrapolation="logit"), Tweedie()]
        spaced = [(one, exponent) for one in solvers for exponent in EXPONENTS[masked]]
        return [Candidate(written(one), f"alpha_power({exponent})") for one, exponent in spaced]
    shape = getattr(model, "shape", None)
    plane = (shape[0], shape[1]) if shape is not None and len(shape) == 2 else None
    found: list[Candidate] = []
    for even, far in ((FixedCount("even"), FixedCount()), (LowDiscrepancy(plane, "even"), LowDiscrepancy(plane))):
        usual = [Tweedie(even), ExponentialTrapezoidal(planner=even), Multistep(window=2, planner=even)]
        usual += [Multistep(weight, planner=even) for weight in (None, 0.25, 0.5)]
        found += [Candidate(written(one), "uniform") for one in usual]
        spaced = [Tweedie(far), Multistep(planner=far), ExponentialTrapezoidal(planner=far)]
        grids = [f"alpha_power({exponent})" for exponent in EXPONENTS[masked]]
        found += [Candidate(written(one), grid) for one in spaced for grid in grids]
    return found
