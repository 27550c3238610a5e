"""What experiments leave behind: a report, files written whole or not at all, figures alike in style."""

from __future__ import annotations

import csv
import json
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {
    "TauLeaping": "#0072B2",
    "RK2": "#E69F00",
    "Trapezoidal": "#D55E00",
    "Euler": "#009E73",
    "Tweedie": "#CC79A7",
}
"""One colour for each solver in all figures; apart also for the colour-blind (Okabe and Ito)."""


Verdict = Literal["agrees", "differs", "cannot be checked here"]


@dataclass(frozen=True)
class Claim:
    """What the paper says, and what was found."""

    paper: str
    """In our words, with its own figures."""
    verdict: Verdict
    """Follows from numbers, never written down beforehand."""
    found: str
    """The figures behind the verdict, or what it would take to have them."""


def verdicts(claims: Sequence[Claim]) -> list[str]:
    """A point for each claim."""
    return [f"The paper: {claim.paper}. {claim.verdict.capitalize()}: {claim.found}." for claim in claims]


@dataclass(frozen=True)
class Report:
    """The outcome of an experiment: what it shows, in words, the files it wrote, and what of the paper it bears on."""

    text: str
    files: list[Path]
    claims: list[Claim] = field(default_factory=list)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A fresh name beside `path` to write to; moved to `path` at the end, and gone after an error."""
    part = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """One line per row, one column per key of the first; None is left empty."""
    with whole(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    """Indented; NaN and infinity are no JSON and raise ``ValueError``."""
    with whole(path) as part:
        part.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def write_text(path: Path, text: str) -> Path:
    """As it is."""
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def write_lines(path: Path, entries: Sequence[Mapping[str, Any]]) -> Path:
    """One object of JSON on each line."""
    return write_text(path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))


def write_png(path: Path, figure: Figure) -> Path:
    """A figure, sharp enough for print."""
    with whole(path) as part:
        figure.savefig(part, format="png", dpi=160)
    return path


def panels(width: float, height: float, rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """An empty figure, in inches, with a grid of panels. No global state: nothing to close."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.grid(visible=True, which="major", color="0.9", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    return figure, axes.tolist()


def reference_slope(panel: Axes, slope: float, start: tuple[float, float], end: float) -> None:
    """A thin line of `slope` on logarithmic axes from `start` to the abscissa `end`, labelled there."""
    x, y = start
    last = y * (end / x) ** slope
    panel.plot([x, end], [y, last], color="0.55", linewidth=1, zorder=1)
    panel.annotate(
        f"slope {slope:g}", (end, last), (4, 0), textcoords="offset points", color="0.4", fontsize=8, va="center"
    )


@contextmanager
def bar(progress: bool | None, label: str, total: float) -> Iterator[Callable[[float], None]]:
    """A progress bar on standard error, by default if that is a terminal; gives the function that advances it."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=total)
        yield lambda amount: shown.advance(task, amount)
