"""A comparison as words, as a table, as files and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .. import files
from ..sampling import Samples
from .choice import AUTO
from .compare import Comparison, Row, surely_smaller
from .contenders import EXACT
from .figures import (
    budget_axis,
    direct_labels,
    listing,
    number,
    page,
    panels,
    runs,
    table,
    write_csv,
    write_json,
    write_png,
)
from .metrics.measured import LEVEL, Measured, Scattered

NOBODY = "nobody surely"
NAMES = {
    "kl": "KL(p0 || law of the samples), nats",
    "excess": "|excess cross-entropy|, nats per token",
    "pair_kl": "KL of neighbouring pairs, nats",
    "nll": "|nll gap to the reference|, nats per token",
    "pairs": "squared distance of pair frequencies",
    "tokens": "squared distance of token frequencies",
}
UNITS = {"kl": "nats", "excess": "nats per token", "nll": "nats per token"}
TRUTH = {"exact": "the truth", "oracle": "the truth", "reference": "the reference"}
SHOWN = {AUTO: "#D55E00", "tweedie": "#0072B2", "trapezoidal-paper": "#009E73"}
"""Contenders with a line of their own, beside the best and, where at most six were run, the others."""
COLOURS, MOST_LINES = ("#000000", "#E69F00", "#CC79A7", "#56B4E9"), 6
LOWEST = 1e-9
"""Smaller figures are drawn as this: exact samplers would stretch the axis down to rounding."""


# --- words


def describe(comparison: Comparison) -> str:
    """The verdict, the table, and what must be known to read it."""
    settings = comparison.settings
    random = any(one.error for row in comparison.rows for one in row.figures.values())
    told = (
        f"{settings['model']}: {settings['length']} positions of {settings['states']} values, {settings['process']} "
        f"process; {settings['num']:,} samples of each contender, seed {settings['seed']}. {comparison.about} "
        f"{f'After +- is half the width of the {LEVEL:.0%} interval. ' if random else ''}nfe is the mean used, rounds how "
        "many batches these were in, one after the other, and s/1000 wall time on this machine for 1000 samples."
    )
    return "\n\n".join(
        [page(verdicts(comparison)), _table(comparison), page([_findings(comparison), told, _about_ranks(comparison)])]
    )


def verdicts(comparison: Comparison) -> list[str]:
    """A sentence for each budget: who is best, and how far behind the default, `auto`, and `tweedie` are."""
    told = []
    for budget, rows in _ranked(comparison).items():
        lead, others = rows[0], rows[1:]
        near = [row for row in others if not comparison.better(lead, row)]
        first = "evaluation" if budget == 1 else "evaluations"
        if _tied(comparison, rows):
            told.append(f"At {budget} {first} all are within error of each other.")
            continue
        parts = [f"At {budget} {first} {lead.contender} is best"]
        named = [row for row in others if row.contender in (AUTO, "tweedie")] or [
            row for row in others if row not in near
        ][:1]
        ties = [row.contender for row in near if row not in named]
        parts += (
            [f"{listing(ties)} {'is' if len(ties) == 1 else 'are'} within error of it"] if 0 < len(ties) < 4 else []
        )
        parts += [f"{len(ties)} others are within error of it"] if len(ties) >= 4 else []
        for row in named:
            who = "the default, auto," if row.contender == AUTO else row.contender
            parts.append(f"{who} is {_behind(comparison, lead, row)}")
        told.append("; ".join(parts) + ".")
    return told or ["No contender could be run."]


def _tied(comparison: Comparison, rows: Sequence[Row]) -> bool:
    """Whether there are several, and none is surely better than another."""
    return len(rows) > 1 and not any(comparison.better(a, b) for a in rows for b in rows)


def _behind(comparison: Comparison, lead: Row, row: Row) -> str:
    """How far a contender is behind the first, where it surely is."""
    figures = [
        name for name in comparison.ranking if surely_smaller(lead.figures[name], row.figures[name], comparison.level)
    ]
    if not comparison.better(lead, row):
        return "within error" if not figures else f"farther in {listing(figures)} and nearer in others"
    name = figures[0]
    gap = abs(row.figures[name].value) - abs(lead.figures[name].value)
    return f"{number(gap)} {UNITS[name]} behind" if name in UNITS else f"behind in {name}"


def _ranked(comparison: Comparison) -> dict[int, list[Row]]:
    """Contenders that were run at each budget, the best first."""
    found: dict[int, list[Row]] = {}
    for row in comparison.rows:
        if row.budget is not None and row.rank is not None:
            found.setdefault(row.budget, []).append(row)
    return found


def _about_ranks(comparison: Comparison) -> str:
    if comparison.kind == "exact":
        return "Ranks go by kl; laws that differ by no more than rounding share a rank."
    return (
        f"Ranks go by {listing(comparison.ranking)}: one is ahead of another if it is surely nearer to {TRUTH[comparison.kind]} "
        "in one of them, and surely farther in none. Differences are of samples with the same seed, and their intervals "
        f"hold for all contenders of a budget at once (Bonferroni, {LEVEL:.0%} together). 2-4 says that one is surely better, "
        "that all beyond the fourth place are surely worse, and no more."
    )


def _table(comparison: Comparison) -> str:
    rows = [row for row in comparison.rows if not row.reason]
    names = {name: any(row.figures[name].error for row in rows) for name in (rows[0].figures if rows else ())}
    header = ["contender", "budget", "rank", "nfe", "rounds", "s/1000"]
    for name, random in names.items():
        header += [name, "+-"] if random else [name]

    def line(row: Row) -> list[str]:
        assert row.seconds is not None
        rank = "" if row.rank is None else str(row.rank)
        spent = f"{row.nfe:.1f}{'*' if row.note else ''}"
        cells = [row.contender, "any" if row.budget is None else str(row.budget), rank, spent]
        cells += ["" if row.rounds is None else f"{row.rounds:.1f}", number(row.seconds)]
        for name, random in names.items():
            low, high = row.figures[name].interval()
            cells += [f"{row.figures[name].value:.3g}"] + [number((high - low) / 2)] * random
        return cells

    return table(header, list(map(line, rows)))


def _findings(comparison: Comparison) -> list[str]:
    """What auto stands for, why evaluations are left, who buys likelihood with diversity, who could not be run."""
    rows, likely = comparison.rows, "nll" if comparison.kind == "reference" else "excess"
    what = "never make something that the model can" if comparison.kind == "exact" else "make the impossible"
    low = [row for row in rows if likely in row.figures and row.figures[likely].interval(comparison.level)[1] < 0]
    found = {
        f"Infinite, as their samples {what}": [
            _at(row) for row in rows if any(math.isinf(one.value) for one in row.figures.values())
        ],
        f"{likely} surely below 0, likelier than {TRUTH[comparison.kind]} because too similar": [
            _at(row) for row in low
        ],
    }
    auto = [(row.budget, row.solver) for row in rows if row.contender == AUTO and row.budget and row.solver]
    points = [f"auto is {runs(auto)}."] if auto else []
    notes = {note: [row for row in rows if row.note == note] for note in dict.fromkeys(row.note for row in rows)}
    points += [
        f"* {listing(list(dict.fromkeys(row.contender for row in some)))}: {note}."
        for note, some in notes.items()
        if note
    ]
    points += [f"{told}: {listing(who)}." for told, who in found.items() if who]
    return points + [f"No numbers for {_at(row)}: {row.reason}." for row in rows if row.reason]


def _at(row: Row) -> str:
    return row.contender if row.budget is None else f"{row.contender} at {row.budget}"


# --- files


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """The rows as CSV, rows and settings as JSON, the picture, and samples of the reference for the next comparison."""
    folder.mkdir(parents=True, exist_ok=True)
    names = next((list(row.figures) for row in comparison.rows if row.figures), [])
    rows = [flat(row, names) for row in comparison.rows]
    value = {
        "verdict": verdicts(comparison),
        "settings": comparison.settings,
        "kind": comparison.kind,
        "ranking": list(comparison.ranking),
        "about": comparison.about,
        "rows": [{key: plain(cell) for key, cell in row.items()} for row in rows],
    }
    written = [
        write_csv(folder / "comparison.csv", rows),
        write_json(folder / "comparison.json", value),
        write_png(folder / "comparison.png", draw(comparison)),
    ]
    if comparison.reference is not None:
        written.append(write_reference(comparison.reference, folder))
    return written


def write_reference(samples: Tensor, folder: Path) -> Path:
    """The samples of a reference, for the next comparison."""
    folder.mkdir(parents=True, exist_ok=True)
    path, none = folder / "reference.npy", samples.new_zeros(len(samples))
    files.write(path, Samples(samples, none, none, none, {}), {})
    return path


def flat(row: Row, figures: Sequence[str]) -> dict[str, Any]:
    """A row as one level of names: ``kl, kl_low, kl_high``, and the others; None where there is no number."""
    cells: dict[str, Any] = {"contender": row.contender, "budget": row.budget}
    cells |= {"rank": row.rank and row.rank.best, "rank_worst": row.rank and row.rank.worst}
    cells |= {"nfe": row.nfe, "rounds": row.rounds, "seconds_per_1000": row.seconds}
    for name in figures:
        one = row.figures.get(name)
        numbers = (None,) * 3 if one is None else (one.value, *one.interval())
        cells |= dict(zip((name, f"{name}_low", f"{name}_high"), numbers, strict=True))
    return cells | {"solver": row.solver, "note": row.note, "reason": row.reason}


def plain(cell: Any) -> Any:
    """JSON has no infinity: it is written as a word."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


# --- picture


def draw(comparison: Comparison) -> Figure:
    """A panel for each figure that ranks, against evaluations: a few lines with their names, the others thin and grey.

    These take an evaluation a round; exact samples in fewer rounds are a point.
    """
    ranked = _ranked(comparison)
    figure, axes = panels(1 + 5 * len(comparison.ranking), 4.8, 1, len(comparison.ranking))
    leaders = [(budget, rows[0].contender) for budget, rows in ranked.items()]
    sure = [(n, NOBODY if _tied(comparison, ranked[n]) else name) for n, name in leaders]
    names = list(dict.fromkeys(row.contender for rows in ranked.values() for row in rows))
    wanted = [*(name for _, name in leaders), *SHOWN, *(names if len(names) <= MOST_LINES else ())]
    chosen = [name for name in dict.fromkeys(wanted) if name in names]
    others = iter([*COLOURS, *["0.5"] * len(chosen)])
    some = {name: SHOWN.get(name) or next(others) for name in chosen}
    for panel, figure_name in zip(axes[0], comparison.ranking, strict=True):
        ends = {}
        for name in sorted(names, key=lambda name: (name in some, name in SHOWN)):
            rows = [row for rows in ranked.values() for row in rows if row.contender == name]
            ends |= {name: _curve(panel, rows, figure_name, some.get(name))}
        panel.set_title(NAMES[figure_name], fontsize=10, loc="left")
        exact = [row for row in comparison.rows if row.contender == EXACT and row.rounds is not None]
        ends |= {row.contender: _exact_point(panel, row, figure_name) for row in exact}
        budget_axis(panel, list(ranked) or [1], "evaluations per sample" + (", one after the other" if exact else ""))
        if any(end is not None for end in ends.values()):  # a logarithmic axis must have something to show
            panel.set_yscale("log", nonpositive="clip")
            direct_labels(panel, {name: end for name, end in ends.items() if name in some and end is not None}, some)
    note = f"bars: {LEVEL:.0%} intervals; hollow: indistinguishable from 0, at the interval's upper end"
    about = "exact laws" if comparison.kind == "exact" else note
    best = f"Nearest to {TRUTH[comparison.kind]}: {runs(sure)} evaluations" if leaders else "No contender could be run"
    figure.suptitle(f"{best}\n", fontsize=12, fontweight="bold", x=0.01, ha="left")
    figure.supxlabel(f"{comparison.settings['model']}, {comparison.settings['process']} process ({about})", fontsize=8)
    return figure


def _curve(panel: Axes, rows: Sequence[Row], name: str, colour: str | None) -> tuple[float, float] | None:
    """One contender: a line through its points, with bars and hollow markers if it has a `colour`; where it ends."""
    points = [(row.budget or 0, *_point(row.figures[name])) for row in rows]
    points = [point for point in points if math.isfinite(point[1])]
    if not points:
        return None
    x, y = [point[0] for point in points], [point[1] for point in points]
    if colour is None:
        panel.plot(x, y, color="0.75", linewidth=0.8, zorder=1)
        return x[-1], y[-1]
    bars = [[point[1] - point[2] for point in points], [point[3] - point[1] for point in points]]
    panel.errorbar(x, y, bars, color=colour, linewidth=1.6, zorder=3)
    for at, value, _, _, hollow in points:
        panel.plot(at, value, "o", color=colour, markersize=5, markerfacecolor="white" if hollow else colour, zorder=4)
    return x[-1], y[-1]


def _exact_point(panel: Axes, row: Row, name: str) -> None:
    """Exact samples, at their rounds, with a word beside it: a size that is 0 up to noise."""
    assert row.rounds is not None
    y = _point(row.figures[name])[0]
    panel.plot(row.rounds, y, "D", color="0.3", markerfacecolor="white", markersize=6, zorder=4)
    told = f"exact: {row.rounds:.1f} rounds"
    panel.annotate(told, (row.rounds, y), (6, -10), textcoords="offset points", fontsize=8, color="0.3")


def _point(one: Scattered) -> tuple[float, float, float, bool]:
    """Where to draw a size, from where to where its bar goes, and whether it is hollow."""
    if not math.isfinite(one.value):
        return abs(one.value), 0.0, 0.0, False
    half = Measured(0.0, one.error).interval()[1]
    value, top = abs(one.value), max(abs(one.value) + half, LOWEST)
    return (top, top, top, True) if value - half <= LOWEST else (value, value - half, top, False)
