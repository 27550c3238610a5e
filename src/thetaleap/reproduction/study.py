"""The one table of an experiment: figures with their errors, and their differences, paired by sample numbers.

All methods draw with the same seed. Rows hold what each figure is in resamples that are the same for all of them (see
`evaluation.metrics.resampled`), so that the error of a difference knows what rows share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..evaluation.metrics.accuracy import Accuracy
from ..evaluation.metrics.measured import Measured
from ..evaluation.metrics.resampled import Resampled, scatter

UNUSUAL = 3.0
"""Figures differ beyond this many standard errors of their difference."""
KEYS = ("experiment", "model", "method", "solver", "theta", "steps", "nfe", "evaluations", "most_evaluations", "num")
"""Columns of every table; behind them the figures: ``name``, and ``name_se`` or ``name_low`` and ``name_high``.
Columns that begin with ``_`` hold figures of resamples, and are not written."""

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Study:
    """The table: a row for each method and budget, all with the same columns."""

    rows: Sequence[Row]
    slopes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By figure and method, where some were fitted."""

    @staticmethod
    def of(experiment: str, rows: Sequence[Row]) -> Study:
        """Of rows made by `row`."""
        names = dict.fromkeys([*KEYS, *(name for one in rows for name in one)])
        return Study([dict.fromkeys(names) | {"experiment": experiment} | one for one in rows])

    @property
    def written(self) -> list[Row]:
        """The rows without the figures of resamples."""
        return [{key: value for key, value in one.items() if not key.startswith("_")} for one in self.rows]

    def column(self, name: str) -> list[Any]:
        """Different entries of a column, in order, None left out."""
        return list(dict.fromkeys(one[name] for one in self.rows if one.get(name) is not None))

    def where(self, **wanted: Any) -> list[Row]:
        """Rows with these entries."""
        return [one for one in self.rows if all(one[key] == value for key, value in wanted.items())]


def row(method: str, spent: Any = None, **entries: Any) -> Row:
    """A row: figures may be numbers, `Measured`, `Resampled` or `Accuracy`; `spent` are the evaluations of each sample."""
    made: Row = {"method": method}
    if spent is not None:
        made |= {"evaluations": float(np.mean(spent)), "most_evaluations": int(max(spent)), "num": len(spent)}
    for name, entry in entries.items():
        if isinstance(entry, Resampled):
            made |= {name: entry.value, f"{name}_se": entry.error, f"_{name}": entry.again}
        elif isinstance(entry, Measured):
            made |= {name: entry.value, f"{name}_se": entry.error}
        elif isinstance(entry, Accuracy):
            made |= {f"{name}_right": entry.right, name: entry.value}
            made |= {f"{name}_low": entry.low, f"{name}_high": entry.high}
        else:
            made[name] = entry
    return made


Terms = Sequence[tuple[float, Row]]
"""Rows, each with the factor by which its figure is multiplied."""


def contrast(figure: str, terms: Terms) -> Measured:
    """The sum of a figure over rows, times their factors: by the common resamples, where all rows have some.

    Otherwise rows are taken to be independent. Of shares the error is at least that of one sample, else it would be 0
    where all answers are right.
    """
    factors, rows = np.array([factor for factor, _ in terms]), [one for _, one in terms]
    value = float(factors @ [one[figure] for one in rows])
    if all(one.get(f"_{figure}") is not None for one in rows):
        num = min(one["num"] for one in rows)
        error = scatter(factors @ np.stack([one[f"_{figure}"] for one in rows]), num)
        share = rows[0].get(f"{figure}_low") is not None
        return Measured(value, max(error, float(np.abs(factors).max()) / num) if share else error)
    errors = [one.get(f"{figure}_se") or 0.0 for one in rows]
    return Measured(value, math.hypot(*(factors * errors)))


def between(one: Row, *others: Row) -> Terms:
    """Of a row, from the mean of others."""
    return [(1.0, one), *((-1 / len(others), other) for other in others)]


def difference(figure: str, one: Row, *others: Row) -> Measured:
    """Of a figure, from the mean of others."""
    return contrast(figure, between(one, *others))


def compare(figure: str, one: Row, other: Row) -> int:
    """-1 if the figure is lower for `one`, 1 if it is higher, 0 if the two are indistinguishable: not `UNUSUAL` standard
    errors of the difference apart, or of an error that one sample does not tell. Shares without resamples have
    intervals, which must not overlap."""
    paired = one.get(f"_{figure}") is not None and other.get(f"_{figure}") is not None
    if one.get(f"{figure}_low") is not None and not paired:
        return int(one[f"{figure}_low"] > other[f"{figure}_high"]) - int(one[f"{figure}_high"] < other[f"{figure}_low"])
    gap = difference(figure, one, other)
    return (-1 if gap.value < 0 else 1) if abs(gap.value) > UNUSUAL * gap.error else 0


def fullest(rows: Sequence[Row]) -> list[Row]:
    """Those with the most samples. Distances fall with their number, and so compare among these alone."""
    most = max((one["num"] for one in rows), default=0)
    return [one for one in rows if one["num"] == most]


@dataclass(frozen=True)
class Ranked:
    """The best at a budget, with its ties, those indistinguishable from the best, and those clearly behind."""

    nfe: int
    best: Row
    first: list[str]
    level: list[str]
    behind: list[str]


def ranking(study: Study, figure: str, best: Callable[..., Any] = min) -> list[Ranked]:
    """Who is best at each budget."""
    found = []
    for nfe in sorted(study.column("nfe")):
        here = sorted(study.where(nfe=nfe), key=lambda one: one[figure], reverse=best is max)
        top, sign = here[0], 1 if best is min else -1
        first = [one["method"] for one in here if one[figure] == top[figure]]
        behind = [one["method"] for one in here if compare(figure, one, top) == sign]
        level = [one["method"] for one in here if one["method"] not in (*first, *behind)]
        found.append(Ranked(nfe, top, first, level, behind))
    return found


# --- figures as text


def shown(one: Row, figure: str, scale: float = 1.0, digits: int | None = None) -> str:
    """A figure of a row, to two digits of its error or with its interval; "-" where there is none."""
    value, error, low = one.get(figure), one.get(f"{figure}_se"), one.get(f"{figure}_low")
    if value is None:
        return "-"
    if low is not None:
        digits = digits or 0
        return f"{scale * value:.{digits}f} ({scale * low:.{digits}f} to {scale * one[f'{figure}_high']:.{digits}f})"
    if error is None:
        return f"{scale * value:.3g}" if digits is None else f"{scale * value:.{digits}f}"
    return with_error(scale * value, scale * error)


def with_error(value: float, error: float, sign: Literal["", "+"] = "") -> str:
    """A number to two digits of its error, with a plus before it where `sign` asks for one."""
    if not error > 0:
        return f"{value:{sign}.4g} ± {error:g}"
    places = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:{sign}.{places}f} ± {error:.{places}f}"
