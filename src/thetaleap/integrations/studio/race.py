"""Race: two to four solvers side by side, from one seed and at equal evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...core.checks import require
from ...core.fields import knob
from ...evaluation.compare import Comparison, Row, compare
from ...evaluation.contenders import Contender, contenders_of
from ...evaluation.figures import number
from ...evaluation.report import NAMES, verdicts
from ...sampling import sample
from .allowed import Allowed, loaded
from .calls import program
from .settings import check
from .watch import MOST_EVALUATIONS, Film, filmed
from .work import Report

FEWEST, FIRST, MOST_SAMPLES = 3, 8, 1000
"""Samples that quality can be measured by, at least; those of the first measurement; and at most."""
LANES = (2, 4)


@dataclass(frozen=True)
class Race:
    """Who races, over which distance."""

    model: str = knob("chain64", "The model to sample from.")
    solvers: str = knob("auto,tweedie,trapezoidal", "Two to four: by name, or as in Python.")
    nfe: int = knob(8, "Per sample, for each solver.", least=1)
    seed: int = knob(0, "The same for all solvers.", least=0)
    num: int = knob(256, "To measure quality with, in the end.", least=FEWEST)

    def __post_init__(self) -> None:
        check(self, nfe=MOST_EVALUATIONS, num=MOST_SAMPLES)


@dataclass(frozen=True)
class Standing:
    """What is known of a race: how far each has come, and what was measured so far."""

    lanes: dict[str, Film]
    comparison: Comparison | None = None
    num: int = 0
    """The samples of the comparison."""


def contenders(settings: Race, allowed: Allowed, model: Any) -> dict[str, Contender]:
    """Those who race: all of them take a budget."""
    names = allowed.solvers(settings.solvers)
    require(LANES[0] <= len(names) <= LANES[1], "solvers", settings.solvers, "choose two, three or four")
    found = contenders_of(model, names, "solvers")
    for name, one in found.items():
        require(one.spends, "solvers", name, "spends as many evaluations as it needs; choose one that takes a budget")
    return found


def code(settings: Race, allowed: Allowed, num: int | None = None) -> str:
    """The Python that races the same, and measures by so many samples."""
    call, names = allowed.load(settings.model), allowed.solvers(settings.solvers)
    nfe, seed = settings.nfe, settings.seed
    return program(
        f"model = {call.text()}",
        f"solvers = {names!r}",
        "samples = {}",
        "for name, one in contenders_of(model, solvers).items():",
        f"    solver, grid = one.at(model, {nfe})",
        f"    samples[name] = tl.sample(model, solver, nfe={nfe}, grid=grid, seed={seed})",
        f"comparison = tl.compare(model, solvers, [{nfe}], num={num or settings.num}, seed={seed})",
        "print(comparison.text())",
    )


def stages(num: int) -> Iterator[int]:
    """How many samples to measure by: twice as many each time, up to `num`."""
    stage = min(FIRST, num)
    while stage < num:
        yield stage
        stage *= 2
    yield num


def run(settings: Race, allowed: Allowed, report: Report) -> Standing:
    """Race, then measure; `report` gets the standing whenever it changes, or a share of the work and a note."""
    report((0.0, f"loading {settings.model}"))
    model = loaded(allowed.load(settings.model))
    field = contenders(settings, allowed, model)
    films: dict[str, Film] = {}
    given = torch.zeros(model.length, dtype=torch.bool)
    for name, one in field.items():
        solver, grid = one.at(model, settings.nfe)
        draw = partial(sample, model, solver, nfe=settings.nfe, grid=grid, seed=settings.seed, progress=False)

        def tell(film: Film, name: str = name) -> None:
            report(Standing({**films, name: film}))

        films[name] = filmed(model, given, draw, tell)
    standing = Standing(films)
    for num in stages(settings.num):

        def told(share: float, note: str, num: int = num) -> None:
            report((share, f"measuring quality with {num} samples: {note}"))

        result = compare(model, list(field), [settings.nfe], num=num, seed=settings.seed, progress=told)
        standing = Standing(films, result, num)
        report(standing)
        if result.kind == "exact":  # more samples would say no more
            break
    return standing


def quality(standing: Standing, name: str) -> list[str]:
    """What is known so far of how far the samples of one of them are from exact ones."""
    if standing.comparison is None:
        return ["quality: not measured yet"]
    row = next(row for row in standing.comparison.rows if row.contender == name)
    if row.reason:
        return [f"quality: {row.reason}"]
    source = "exact laws" if standing.comparison.kind == "exact" else f"{standing.num} samples"
    return [f"rank {row.rank} of {len(standing.lanes)}, from {source}", *_figures(row, standing.comparison.ranking)]


def _figures(row: Row, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        what, _, unit = NAMES[name].partition(", ")
        yield f"{what.strip('|')}: {with_error(row.figures[name])} {unit}".rstrip()


def with_error(one: Any) -> str:
    """A figure, with half the width of its interval where it was measured by samples."""
    low, high = one.interval()
    return f"{one.value:.3g}" + (f" ± {number((high - low) / 2)}" if one.error else "")


def verdict(standing: Standing) -> str:
    """Who leads, in a sentence."""
    return "" if standing.comparison is None else " ".join(verdicts(standing.comparison))
