"""Truth: a small joint law, and beside it the exact laws of solvers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ... import exact
from ...core.checks import finite, require, require_choice
from ...core.fields import knob
from ...core.processes import Masked, Uniform
from ...evaluation.compare import Row, compare
from ...evaluation.contenders import contenders_of
from ...evaluation.figures import budget_axis, direct_labels, panels
from ...evaluation.report import LOWEST
from ...evaluation.yardsticks import MOST_EXACT
from ...models.oracles import Joint, joint
from ...sampling import plan
from .allowed import Allowed
from .calls import program
from .race import FEWEST
from .settings import check
from .work import Report

PROCESSES = {"masked": Masked, "uniform": Uniform}
BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16)
MOST_EVALUATIONS, MOST_LAWS = 64, 4
COLOURS = ("#888888", "#D55E00", "#0072B2", "#009E73", "#CC79A7")
"""Of the truth, and of up to four solvers."""
LAWS = {
    "two that agree": (2, 2, "9,1,1,9"),
    "three of odd sum": (3, 2, "0,1,1,0,1,0,0,1"),
    "a chain of three": (3, 3, "9,1,1,1,3,1,1,1,3,3,1,1,1,9,1,1,1,3,3,1,1,1,3,1,1,1,9"),
    "one position": (1, 5, "1,2,3,4,5"),
}
"""To begin with: positions, values, and the weights of all sequences in order."""


@dataclass(frozen=True)
class Truth:
    """The true law, and who is measured by it."""

    positions: int = knob(3, "The length of a sequence.", least=1)
    values: int = knob(2, "Per position, from 0 on.", least=2)
    weights: str = knob(
        "0,1,1,0,1,0,0,1", "One per sequence, in the order of the table, with commas between; they are normalised."
    )
    process: str = knob("masked", "The noising process.", choices=tuple(PROCESSES))
    solvers: str = knob("auto,tweedie", "Up to four: by name, or as in Python.")
    nfe: int = knob(2, "Evaluations per sample for the bars.", least=1)

    def __post_init__(self) -> None:
        check(self, nfe=MOST_EVALUATIONS)
        masked = self.process == "masked"
        require(self.positions <= 8 and self.values <= 256, "positions", self.positions, "the table would be too large")
        most, states = MOST_EXACT[masked], (self.values + masked) ** self.positions
        told = f"{states} sequences{', masks included' * masked}: exact laws are quick up to {most}; give fewer"
        require(states <= most, "(positions, values)", (self.positions, self.values), told)

    @property
    def sequences(self) -> list[tuple[int, ...]]:
        """All there are, in order."""
        return list(product(range(self.values), repeat=self.positions))

    def numbers(self) -> list[float]:
        """The weights, one for each sequence."""
        texts = [part.strip() for part in self.weights.split(",")]
        require(len(texts) == len(self.sequences), "weights", self.weights, f"give {len(self.sequences)}, one for each")
        try:
            found = [float(text) for text in texts]
        except ValueError:
            raise ValueError(f"weights={self.weights!r}: give numbers with commas between") from None
        require(all(finite(one) and one >= 0 for one in found), "weights", self.weights, "give numbers of at least 0")
        require(0 < sum(found) < math.inf, "weights", self.weights, "give at least one above 0, and a finite sum")
        return found

    def oracle(self) -> Joint:
        """The model that knows this law."""
        weights = torch.tensor(self.numbers(), dtype=torch.float64).view((self.values,) * self.positions)
        return joint(weights / weights.sum(), PROCESSES[self.process](self.values))


@dataclass(frozen=True)
class Laws:
    """The truth, the laws of solvers at one budget, and how far they are from it at several."""

    truth: Float64[Tensor, " ..."]
    laws: dict[str, Float64[Tensor, " ..."]]
    curves: tuple[Row, ...] = ()


def code(settings: Truth, allowed: Allowed) -> str:
    """The Python that computes the same laws and curves."""
    process = f"tl.{PROCESSES[settings.process].__name__}({settings.values})"
    shape = (settings.values,) * settings.positions
    return program(
        f"p0 = torch.tensor({settings.numbers()!r}, dtype=torch.float64).view({shape!r})",
        f"model = tl.oracles.joint(p0 / p0.sum(), {process})",
        f"solvers = {_names(settings, allowed)!r}",
        "laws = {}",
        "for name, one in contenders_of(model, solvers).items():",
        f"    budget = {settings.nfe} if one.spends else None",
        "    solver, grid = one.at(model, budget)",
        "    laws[name] = tl.exact.law(model, solver, tl.sampling.plan(model, solver, nfe=budget, grid=grid))",
        f"comparison = tl.compare(model, solvers, {list(BUDGETS)!r}, num={FEWEST})",
        "print(laws, comparison.text())",
    )


def _names(settings: Truth, allowed: Allowed) -> list[str]:
    names = allowed.solvers(settings.solvers)
    require(1 <= len(names) <= MOST_LAWS, "solvers", settings.solvers, f"choose one to {MOST_LAWS}")
    return names


def run(settings: Truth, allowed: Allowed, report: Report) -> Laws:
    """All laws, then the curves budget by budget; `report` gets what there is."""
    model, laws = settings.oracle(), dict[str, Tensor]()
    field = contenders_of(model, _names(settings, allowed), "solvers")
    for name, one in field.items():
        budget = settings.nfe if one.spends else None
        solver, grid = one.at(model, budget)
        laws[name] = exact.law(model, solver, plan(model, solver, nfe=budget, grid=grid))
        report(Laws(model.p0, dict(laws)))
    rows: list[Row] = []
    for budget in BUDGETS:
        some = [name for name, one in field.items() if one.spends or budget == BUDGETS[0]]
        rows += (
            compare(model, some, [budget], num=FEWEST, progress=lambda share, note: report(note)).rows if some else []
        )
        report(Laws(model.p0, laws, tuple(rows)))
    return Laws(model.p0, laws, tuple(rows))


def rows_of(table: Any, settings: Truth) -> str:
    """The weights in an edited table, with commas between; its rows may have been sorted."""
    told = {str(label).strip(): weight for label, weight in table}
    labels = [label_of(one) for one in settings.sequences]
    for label in labels:
        require_choice("sequence", label, told)
    return ",".join(str(told[label]).strip() for label in labels)


def label_of(sequence: tuple[int, ...]) -> str:
    """A sequence as it is shown."""
    return " ".join(map(str, sequence))


def table_of(settings: Truth) -> list[list[Any]]:
    """The law as a table: each sequence and its weight."""
    settings.numbers()  # says so if there are too few
    texts = [part.strip() for part in settings.weights.split(",")]
    return [[label_of(one), text] for one, text in zip(settings.sequences, texts, strict=True)]


def draw(laws: Laws) -> Any:
    """KL and total variation against evaluations, on a scale that ends where `compare` ends its own."""
    figure, ((left, right),) = panels(9, 3.4, 1, 2)
    names = list(dict.fromkeys(row.contender for row in laws.curves if row.budget is not None))
    tints: dict[str, str] = dict(zip(dict.fromkeys([*laws.laws, *names]), COLOURS[1:], strict=False))
    for panel, key, title in ((left, "kl", "KL(truth || law), nats"), (right, "tv", "total variation")):
        ends = {}
        for name in names:
            points = [
                (row.budget, max(row.figures[key].value, LOWEST))
                for row in laws.curves
                if row.contender == name and row.budget is not None and key in row.figures
            ]
            points = [point for point in points if math.isfinite(point[1])]
            if points:
                panel.plot(*zip(*points, strict=True), "o-", color=tints[name], markersize=4)
                ends[name] = points[-1]
        budget_axis(panel, BUDGETS, "evaluations per sample")
        panel.set_title(title, fontsize=10, loc="left")
        if ends:
            panel.set_yscale("log")
            direct_labels(panel, ends, tints)
    return figure
