"""What reports share: files written whole or not at all, plain words for numbers, and figures of one style."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.storage import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# --- files


def write_text(path: Path, text: str) -> Path:
    """As it is."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """One line per row, one column per key; None is left empty."""
    import pandas as pd  # slow to import

    return write_text(path, pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n"))


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    """Indented; NaN and infinity are no JSON and raise ``ValueError``."""
    return write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_lines(path: Path, entries: Sequence[Mapping[str, Any]]) -> Path:
    """One object of JSON on each line."""
    return write_text(path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))


def write_png(path: Path, figure: Figure) -> Path:
    """A figure, sharp enough for print."""
    with replacing(path) as part:
        figure.savefig(part, format="png", dpi=160)
    return path


# --- figures

LINE = 0.055
"""Of text, as a share of a panel's height."""


def panels(width: float, height: float, rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """An empty figure, in inches, with a grid of panels. No global state: nothing to close."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.grid(visible=True, which="major", color="0.9", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    return figure, axes.tolist()


def budget_axis(panel: Axes, budgets: Sequence[int], label: str = "evaluations per sample (budget)") -> None:
    """A logarithmic axis with a tick at every budget."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(budgets), [str(n) for n in budgets])
    panel.minorticks_off()
    panel.set_xlabel(label)


def log_axis(panel: Axes) -> None:
    """Upwards, with plain numbers where the panel spans less than two powers of ten. Call it after drawing."""
    from matplotlib.ticker import LogFormatter  # slow to import

    panel.set_yscale("log")
    low, high = panel.get_ylim()
    if high < 100 * low:
        panel.yaxis.set_major_formatter(LogFormatter())
        panel.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def direct_labels(panel: Axes, ends: dict[str, tuple[float, float]], colours: dict[str, str]) -> None:
    """Names at the right, at the heights of the last points, pushed apart where they would overlap."""
    scaled = math.log if panel.get_yscale() == "log" else float
    low, high = (scaled(limit) for limit in panel.get_ylim())
    names = sorted(ends, key=lambda name: ends[name][1])
    heights, floor, ceiling = dict[str, float](), -0.06, 1.05
    for name in names:
        heights[name] = floor = max((scaled(ends[name][1]) - low) / (high - low), floor + LINE)
    for name in reversed(names):  # and back down, where they would stand above the panel
        heights[name] = ceiling = min(heights[name], ceiling - LINE)
        place = {"xycoords": "axes fraction", "annotation_clip": False, "va": "center", "fontsize": 8}
        panel.annotate(name, (1.02, heights[name]), color=colours[name], **place)


def headline(figure: Figure, title: str, columns: int) -> None:
    """What a figure of so many columns shows, in as many lines as it takes."""
    figure.suptitle(wrapped(title, 64 * columns), fontsize=11, fontweight="bold")


# --- words


def number(value: float) -> str:
    """Two digits, e.g. 0.031 or 4.2e-06."""
    return f"{value:.2g}"


def listing(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def runs(winners: Sequence[tuple[int, str]]) -> str:
    """Who wins where: ``Euler at 16 to 64 and Trapezoidal at 128`` from (16, Euler), (32, Euler), ..."""
    stretches: list[tuple[str, int, int]] = []
    for place, name in winners:
        if stretches and stretches[-1][0] == name:
            stretches[-1] = (name, stretches[-1][1], place)
        else:
            stretches.append((name, place, place))
    return listing([f"{name} at {a}" if a == b else f"{name} at {a} to {b}" for name, a, b in stretches])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be, the first to the left and the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    padded = [
        "  ".join(cell.rjust(w) if n else cell.ljust(w) for n, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    return "\n".join([padded[0], "  ".join("-" * w for w in widths), *padded[1:]])


def page(parts: Sequence[str | list[str]], width: int = 100) -> str:
    """Paragraphs, and lists of points, wrapped to `width`, with empty lines between."""
    return "\n\n".join(
        wrapped(part, width) if isinstance(part, str) else "\n".join(wrapped(one, width, "- ", "  ") for one in part)
        for part in parts
        if part
    )


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> str:
    """A paragraph in lines of at most `width` characters, the first and the others behind a prefix."""
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
