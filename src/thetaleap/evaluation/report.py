"""A comparison as words, as a table, as files and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

from .compare import Comparison, Row
from .figures import listing, number, page, panels, runs, table, write_csv, write_json, write_png
from .metrics.measured import LEVEL, Estimate
from .yardsticks import size

NAMES = {
    "kl": "KL(p0 || law of the samples), nats",
    "excess": "|excess cross-entropy|, nats per token",
    "pair_kl": "KL of neighbouring pairs, nats",
    "entropy": "entropy of tokens within a sample, nats",
}
SHOWN = {"kl": "KL", "excess": "|excess|", "pair_kl": "pair KL"}
LOWEST = 1e-9
"""Smaller figures are drawn as this: exact samplers would stretch the axis down to rounding."""
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F7F7F", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


# --- words


def describe(comparison: Comparison) -> str:
    """What is measured, the table, and what it shows."""
    settings = comparison.settings
    random = any(_random(comparison.rows, name) for name in _figure_names(comparison.rows))
    head = (
        f"{settings['model']}: {settings['length']} positions of {settings['states']} values, {settings['process']} "
        f"process; {settings['num']:,} samples of each contender, seed {settings['seed']}. {comparison.about} "
        f"{f'After +- is half the width of the {LEVEL:.0%} interval. ' if random else ''}Seconds are wall time on this "
        "machine for 1000 samples."
    )
    return "\n\n".join([page([head, _about_ranks(comparison)]), _table(comparison), page([_findings(comparison)])])


def _about_ranks(comparison: Comparison) -> str:
    """How ranks came about; nothing where there are none."""
    if not comparison.ranking:
        return ""
    figures = listing([SHOWN[name] for name in comparison.ranking])
    if comparison.kind == "exact":
        return f"Ranks and the order of rows go by {figures}; laws that differ by no more than rounding share a rank."
    return (
        f"Ranks go by {figures}, each on its own, and only where intervals separate that hold for all contenders at "
        f"once (Bonferroni: {LEVEL:.0%} for all of a budget together). Contenders that are not separated share a "
        "place: 2-4 says that one is surely better, that all beyond the fourth place are surely worse, and no more. "
        f"Rows are in the order of {SHOWN[comparison.ranking[-1]]}."
    )


def _table(comparison: Comparison) -> str:
    rows, ranking = comparison.rows, comparison.ranking
    names = {name: _random(rows, name) for name in _figure_names(rows)}
    header = ["contender", "budget", "spent", "s/1000"]
    for name, random in names.items():
        header += [name, "+-"] if random else [name]

    def line(row: Row) -> list[str]:
        assert row.seconds is not None
        cells = [row.contender, "any" if row.budget is None else str(row.budget), f"{row.nfe:.1f}", number(row.seconds)]
        for name, random in names.items():
            low, high = row.figures[name].interval()
            cells += [f"{row.figures[name].value:.3g}"] + [number((high - low) / 2)] * random
        return cells + [str(row.ranks.get(name, "")) for name in ranking]

    lines = []
    for budget in _budgets(rows):
        here = [row for row in rows if row.budget == budget and not row.reason]
        lines += map(line, sorted(here, key=lambda row: abs(row.figures[ranking[-1]].value) if ranking else 0.0))
    return table(header + [f"rank {SHOWN[name]}" for name in ranking], lines) if lines else "No contender could be run."


def _findings(comparison: Comparison) -> list[str]:
    """Who is first where, who buys likelihood with diversity, who loses support, who could not be run."""
    rows = comparison.rows
    what = "never make something that the model can" if comparison.kind == "exact" else "make the impossible"
    duplicates = [row for row in rows if "excess" in row.figures]
    duplicates = [row for row in duplicates if row.figures["excess"].interval(comparison.level)[1] < 0]
    found = {
        f"Infinite, as their samples {what}": [
            _at(row) for row in rows if any(math.isinf(one.value) for one in row.figures.values())
        ],
        "Excess surely below 0, likelier than true data because too similar": [_at(row) for row in duplicates],
        "Spent more than the budget": [
            f"{_at(row)} ({row.nfe:.1f})" for row in rows if row.budget and row.nfe and row.nfe > row.budget
        ],
    }
    points = [_first(comparison, name) for name in comparison.ranking]
    points += [f"{told}: {listing(who)}." for told, who in found.items() if who]
    return points + [f"No numbers for {_at(row)}: {row.reason}." for row in rows if row.reason]


def _at(row: Row) -> str:
    return row.contender if row.budget is None else f"{row.contender} at {row.budget}"


def _first(comparison: Comparison, figure: str) -> str:
    """Who is first at each budget: all that nobody is surely better than."""
    leaders = []
    for budget in _budgets(comparison.rows):
        here = [row for row in comparison.rows if row.budget == budget and row.ranks]
        first = [row.contender for row in here if row.ranks[figure].best == 1]
        if budget is not None and first:
            leaders.append((budget, first[0] if len(first) == 1 else f"{listing(first)}, which are indistinguishable,"))
    if not leaders:
        return f"Nobody could be ranked by {SHOWN[figure]}."
    return f"First by {SHOWN[figure]}, with so many evaluations: {runs(leaders)}."


def _figure_names(rows: Sequence[Row]) -> list[str]:
    return next((list(row.figures) for row in rows if row.figures), [])


def _random(rows: Sequence[Row], name: str) -> bool:
    """Whether the figure has intervals worth a column."""
    intervals = [row.figures[name].interval() for row in rows if row.figures]
    return any(low < high for low, high in intervals)


def _budgets(rows: Sequence[Row]) -> list[int | None]:
    """As they come: growing, and None, the exact solvers, last."""
    return list(dict.fromkeys(row.budget for row in rows))


# --- files


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """The rows as CSV, rows and settings as JSON, and the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [flat(row, _figure_names(comparison.rows), comparison.ranking) for row in comparison.rows]
    value = {
        "settings": comparison.settings,
        "kind": comparison.kind,
        "ranking": list(comparison.ranking),
        "about": comparison.about,
        "rows": [{key: _plain(cell) for key, cell in row.items()} for row in rows],
    }
    return [
        write_csv(folder / "comparison.csv", rows),
        write_json(folder / "comparison.json", value),
        write_png(folder / "comparison.png", draw(comparison)),
    ]


def flat(row: Row, figures: Sequence[str], ranking: Sequence[str]) -> dict[str, Any]:
    """A row as one level of names: ``kl, kl_low, kl_high, kl_rank, kl_rank_worst``; None where there is no number."""
    cells: dict[str, Any] = {"contender": row.contender, "budget": row.budget}
    cells |= {"nfe": row.nfe, "seconds_per_1000": row.seconds}
    for name in figures:
        one = row.figures.get(name)
        numbers = (None,) * 3 if one is None else (one.value, *one.interval())
        cells |= dict(zip((name, f"{name}_low", f"{name}_high"), numbers, strict=True))
    for name in ranking:
        place = row.ranks.get(name)
        cells[f"{name}_rank"] = None if place is None else place.best
        cells[f"{name}_rank_worst"] = None if place is None else place.worst
    return cells | {"reason": row.reason}


def _plain(cell: Any) -> Any:
    """JSON has no infinity: it is written as a word."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


# --- picture


def draw(comparison: Comparison) -> Figure:
    """Two panels for each figure that ranks: against evaluations, and against wall time."""
    figures = list(comparison.ranking) or ["entropy"]
    figure, axes = panels(13, 0.9 + 4.6 * len(figures), len(figures), 2)
    names = list(dict.fromkeys(row.contender for row in comparison.rows))
    for line, figure_name in zip(axes, figures, strict=True):
        for n, name in enumerate(names):
            rows = [row for row in comparison.rows if row.contender == name and figure_name in row.figures]
            style = {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[(n + n // len(COLOURS)) % len(MARKERS)]}
            style |= {"linestyle": ("-", "--", ":")[n // len(COLOURS) % 3]}
            _curve(line[0], rows, figure_name, [row.nfe or 0 for row in rows], name, style)
            _curve(line[1], rows, figure_name, [row.seconds or 0 for row in rows], name, style)
        line[0].set_ylabel(NAMES[figure_name])
        line[0].set_xlabel("evaluations spent per sample")
        line[1].set_xlabel("seconds per 1000 samples")
        # a logarithmic axis must have something to show
        if any(math.isfinite(row.figures[figure_name].value) for row in comparison.rows if row.figures):
            _scales(line, comparison)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    note = f"bars: {LEVEL:.0%} intervals; hollow: indistinguishable from 0, drawn at the interval's upper end"
    exact = f"exact laws; below {LOWEST:g} drawn as {LOWEST:g}, hollow"
    about = {"exact": exact, "oracle": note, "samples": f"bars: {LEVEL:.0%} intervals"}[comparison.kind]
    figure.suptitle(f"{comparison.settings['model']}, {comparison.settings['process']} process ({about})", fontsize=11)
    return figure


def _curve(panel: Axes, rows: Sequence[Row], name: str, at: Sequence[float], label: str, style: dict) -> None:
    """One contender: a line through its points, bars, and hollow markers where only an upper end is known."""
    points = [(x, *_point(row.figures[name], log=name != "entropy")) for x, row in zip(at, rows, strict=True)]
    points = [point for point in points if math.isfinite(point[1])]
    x, y = [point[0] for point in points], [point[1] for point in points]
    bars = [[point[1] - point[2] for point in points], [point[3] - point[1] for point in points]]
    panel.errorbar(x, y, bars, label=label, markersize=5, linewidth=1.2, **style)
    hollow = [point for point in points if point[4]]
    style = style | {"linestyle": "", "markerfacecolor": "white", "markersize": 5, "zorder": 4}
    panel.plot([point[0] for point in hollow], [point[1] for point in hollow], **style)


def _point(one: Estimate, log: bool) -> tuple[float, float, float, bool]:
    """Where to draw a figure, from where to where its bar goes, and whether it is hollow."""
    value, (low, high) = abs(one.value), size(one)
    if not log or low > LOWEST or math.isinf(value):
        return value, low, high, False
    top = max(high, LOWEST)
    return top, top, top, True


def _scales(line: Sequence[Axes], comparison: Comparison) -> None:
    """Logarithmic axes with plain numbers: at the budgets on the left, at 1, 2, 5, 10, ... on the right."""
    for panel in line:
        panel.set_xscale("log")
        if comparison.ranking:
            panel.set_yscale("log", nonpositive="clip")
    budgets = [budget for budget in _budgets(comparison.rows) if budget is not None]
    if budgets:
        line[0].set_xticks(budgets, [str(n) for n in budgets])
        line[0].xaxis.set_minor_locator(NullLocator())
    line[1].xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    line[1].xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    line[1].xaxis.set_minor_formatter(NullFormatter())
