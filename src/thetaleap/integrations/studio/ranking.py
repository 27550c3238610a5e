"""Compare: the ranking of ``thetaleap compare``, with its figure and its files."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.checks import require
from ...core.fields import knob
from ...evaluation.compare import Comparison, compare, default_num, evaluations, seconds_per_evaluation
from ...evaluation.contenders import contenders_of
from ...evaluation.figures import number
from .allowed import Allowed, loaded
from .calls import program
from .race import FEWEST, with_error
from .settings import check, require_most
from .watch import MOST_EVALUATIONS
from .work import Report

MOST_SAMPLES, MOST_BUDGETS = 5000, 8


@dataclass(frozen=True)
class Ranking:
    """What to compare."""

    model: str = knob("chain64", "The model to sample from.")
    solvers: str = knob(
        "auto,tweedie,multistep,trapezoidal", "By name, or as in Python; empty: all that suit the model."
    )
    budgets: str = knob("4,8,16", "Budgets per sample, with commas between.")
    num: int = knob(200, "Per solver and budget; 0: the default of compare.", least=0)
    seed: int = knob(0, "The same for all solvers.", least=0)

    def __post_init__(self) -> None:
        check(self, num=MOST_SAMPLES)
        require(self.num == 0 or self.num >= FEWEST, "num", self.num, f"give 0, or at least {FEWEST}")

    def listed(self) -> list[int]:
        """The budgets."""
        parts = self.budgets.split(",")
        good = all(part.strip().isdecimal() and int(part) > 0 for part in parts)
        require(good, "budgets", self.budgets, "give whole numbers of at least 1, with commas between, as in 4,8,16")
        require(len(parts) <= MOST_BUDGETS, "budgets", self.budgets, f"give at most {MOST_BUDGETS}")
        require_most("budgets", max(map(int, parts)), MOST_EVALUATIONS)
        return [int(part) for part in parts]


def code(settings: Ranking, allowed: Allowed) -> str:
    """The Python that compares the same."""
    names, num = allowed.solvers(settings.solvers) or None, settings.num or None
    return program(
        f"model = {allowed.load(settings.model).text()}",
        f"comparison = tl.compare(model, {names!r}, {settings.listed()!r}, num={num}, seed={settings.seed})",
        "print(comparison.text())",
    )


def run(settings: Ranking, allowed: Allowed, report: Report) -> Comparison:
    """Compare; `report` gets the share that is done, and a note."""
    budgets, names = settings.listed(), allowed.solvers(settings.solvers) or None
    call = allowed.load(settings.model)
    report((0.0, f"loading {settings.model}"))
    model = loaded(call)
    field, num = contenders_of(model, names, "solvers"), settings.num or default_num(model)
    each = evaluations(model, field, budgets)
    seconds = num * each * seconds_per_evaluation(model)
    told = f"{num} samples, {each} evaluations each: about {number(max(1.0, seconds))} seconds"

    def tell(share: float, note: str) -> None:
        report((share, f"{told}; {note}"))

    tell(0.0, "started")
    return compare(model, names, budgets, num=num, seed=settings.seed, progress=tell)


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The ranking, by budget, the best first: its header and its rows."""
    ran = [row for row in comparison.rows if not row.reason]
    names = list(ran[0].figures) if ran else []
    rows = []
    for row in ran:
        cells = [row.contender, "any" if row.budget is None else str(row.budget), str(row.rank or ""), f"{row.nfe:.1f}"]
        rows.append(cells + [with_error(row.figures[name]) for name in names])
    return ["contender", "budget", "rank", "evaluations", *names], rows


def notes(comparison: Comparison) -> list[str]:
    """Who has no numbers, and why; and what the figures are."""
    without = [f"{row.contender} at {row.budget}: {row.reason}" for row in comparison.rows if row.reason]
    return [*dict.fromkeys(without), comparison.about]
