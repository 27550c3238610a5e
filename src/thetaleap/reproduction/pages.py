"""Pages, tables and curves of a study: all text comes from the templates."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from .. import __version__
from ..core.checks import require, require_count, require_number
from ..core.progress import progress_bar
from ..evaluation import figures
from ..models import load
from ..models.network import Network
from .methods import look
from .rules import Claim, Report
from .study import UNUSUAL, Row, Study, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 100
MOST_LINES = 6
"""Of a figure, which a reader can tell apart."""
GREY = "0.35"
AXES = {"nfe": "evaluations per sample (budget)", "steps": "steps (two-stage solvers: two evaluations each)"}
Columns = Mapping[str, tuple[str, float, int]]
"""Of a table: by header, the figure, what it is multiplied by, and its digits where it has no error."""


@dataclass(frozen=True)
class Job:
    """What every experiment is told: where to write, how many samples to draw, and how."""

    folder: Path
    num: int | None
    seed: int
    progress: bool | None
    full: bool = False
    """Draw until every claim is decided, and keep what was drawn: see `looks`."""
    hours: float | None = None
    """After which no further look begins."""
    began: float = field(default_factory=time.monotonic)

    @property
    def late(self) -> bool:
        """Whether the hours are over."""
        return self.hours is not None and time.monotonic() - self.began > 3600 * self.hours

    def bar(self, label: str, work: float) -> AbstractContextManager[Callable[..., None]]:
        """A progress bar. The work begins here, and so the folder is made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return progress_bar(self.progress, label, work)


def experiment(least: int = 1) -> Callable[[Callable[..., Report]], Callable[..., Report]]:
    """Makes ``run(folder, *, num=None, seed=0, progress=None, full=False, hours=None, **options)`` of a function of a job
    and its options.

    `num` is `least` or more, and None is as many as the experiment calls for; there is a progress bar by default if
    standard error is a terminal.
    """

    def made(measure: Callable[..., Report]) -> Callable[..., Report]:
        @wraps(measure)
        def run(
            folder: Path,
            *,
            num: int | None = None,
            seed: int = 0,
            progress: bool | None = None,
            full: bool = False,
            hours: float | None = None,
            **options: Any,
        ) -> Report:
            if num is not None:
                require_count("num", num, least)
            require_count("seed", seed, least=0)
            if hours is not None:
                remedy = "only what is drawn in full takes hours; give --full too (in Python full=True)"
                require(full, "hours", hours, remedy)
                require_number("hours", hours, 0, math.inf, closed="low")
            return measure(Job(folder, num, seed, progress, full, hours), **options)

        return run

    return made


def model_of(model: str | Network, **options: Any) -> tuple[Any, str]:
    """The network, and what to call it; `options` that `load` has by default are left out, as some models take none."""
    if isinstance(model, Network):
        return model, "the model given"
    return load(model, **{key: one for key, one in options.items() if one not in (None, False, "cpu", "auto")}), model


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("thetaleap.reproduction"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"listing": lambda items: figures.listing(list(items)), "number": figures.number}
    made.filters |= {"runs": figures.runs, "raw": lambda text: f"\f{text}\f"}
    made.tests |= {"contains_none": lambda keys: None in keys}
    made.globals |= {"version": __version__, "shown": shown, "UNUSUAL": UNUSUAL}
    return made


def render(template: str, **told: Any) -> str:
    """A template of this folder, filled in."""
    return _templates().get_template(template).render(told)


def cells(study: Study, columns: Columns) -> tuple[list[str], list[list[str]]]:
    """Header and lines: method, theta if there are some, budget, what was spent, and figures that were measured."""
    columns = {header: how for header, how in columns.items() if study.column(how[0])}
    keys = ["method", *(["theta"] if study.column("theta") else []), "budget", "spent"]
    keys = [*(["model"] if len(study.column("model")) > 1 else []), *keys]
    lines = []
    for one in study.rows:
        told = {**one, "budget": one["nfe"], "spent": shown(one, "evaluations", digits=1)}
        named = ["-" if told[key] is None else f"{told[key]}" for key in keys]
        lines.append(named + [shown(one, *how) for how in columns.values()])
    return [*keys, *columns], lines


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, numbers to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def flow(text: str, width: int | None) -> str:
    """Paragraphs and points in one line each, or wrapped to `width`; what stands between form feeds is left alone."""

    def joined(part: str, first: str = "", rest: str = "") -> str:
        line = " ".join(part.split())
        return f"{first}{line}" if width is None else figures.wrapped(line, width, first, rest)

    parts = []
    for n, piece in enumerate(text.split("\f")):
        for part in [piece] if n % 2 else re.split(r"\n\s*\n", piece.strip()):
            points = re.split(r"\n(?=- )", part)
            listed = "\n".join(joined(point[2:], "- ", "  ") for point in points)
            parts.append(part if n % 2 else listed if part.startswith("- ") else joined(part))
    return "\n\n".join(part for part in parts if part)


def describe(name: str, study: Study, columns: Columns, page: bool = False, **told: Any) -> str:
    """For the terminal; as a `page`, Markdown with figures and what is only there."""
    told |= {"table": (markdown if page else figures.table)(*cells(study, columns)) if columns else "", "page": page}
    told |= {"study": study, "markdown": markdown}
    return flow(render(f"{name}.j2", **told), None if page else WIDTH) + ("\n" if page else "")


def plain(value: Any) -> Any:
    """What JSON can hold: no infinity, no NaN."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def publish(
    job: Job,
    name: str,
    study: Study,
    settings: Mapping[str, Any],
    claims: Sequence[Claim],
    figure: Figure,
    *,
    columns: Columns,
    more: Sequence[Path] = (),
    card: Mapping[str, Any] | None = None,
    **told: Any,
) -> Report:
    """Write ``name.md``, ``.png``, ``.csv`` and ``.json`` to the job's folder; `more` files are there already."""
    settings = {**settings, "seed": job.seed, "solvers": {one["method"]: one["solver"] for one in study.rows}}
    told |= {"settings": settings, "claims": claims}
    stopped = job.late and any(claim.verdict == "undecided" for claim in claims)
    value = {"experiment": name, "version": __version__, "full": job.full and not stopped, "settings": settings}
    value |= {"rows": study.written}
    value |= {"minutes": round((time.monotonic() - job.began) / 60, 1)}
    value |= {"claims": [asdict(claim) for claim in claims], **(card or {})}
    files = [
        figures.write_text(job.folder / f"{name}.md", describe(name, study, columns, page=True, **told)),
        figures.write_png(job.folder / f"{name}.png", figure),
        figures.write_csv(job.folder / f"{name}.csv", study.written),
        figures.write_json(job.folder / f"{name}.json", plain(value)),
        *more,
    ]
    return Report(describe(name, study, columns, **told), files, list(claims))


@dataclass(frozen=True, eq=False)
class Panel:
    """A figure of a study, against budgets."""

    study: Study
    figure: str
    label: str
    scale: float = 1.0
    log: bool = False
    by: str = "nfe"
    points: str | None = None
    """A figure to show as points, with intervals where they are finite."""
    level: tuple[float, str] | None = None
    """A line across, and its name."""
    level_error: float = 0.0
    """Of its band, to each side."""
    slope: float | None = None
    """Of a thin line to compare with."""
    published: str | None = None
    """A column of the paper's own figures, drawn with diamonds."""

    def draw(self, panel: Axes, methods: Sequence[str]) -> None:
        """A line in a band for each of `methods`, named where it ends."""
        ends: dict[str, tuple[float, float]] = {}
        for method in methods:
            own = [one for one in self.study.where(method=method) if one[self.figure] is not None]
            own = sorted((one for one in own if one[self.by] is not None), key=lambda one: one[self.by])
            if not own:
                continue
            colour, line = look(method).colour, look(method).line
            self._curve(panel, own, color=colour, linestyle=line)
            ends[method] = own[-1][self.by], self.scale * own[-1][self.figure]
            if self.points:
                self._points(panel, own, self.points, colour)
            told = [one for one in own if self.published and one[self.published] is not None]
            if told:
                values = [self.scale * one[str(self.published)] for one in told]
                panel.plot([one["nfe"] for one in told], values, "D", color=colour, markerfacecolor="white")
        colours, ticks = {method: look(method).colour for method in ends}, sorted(self.study.column(self.by))
        if self.level:
            panel.axhline(self.level[0], color=GREY, linestyle=(0, (1, 2)), linewidth=1.2)
            low, high = self.level[0] - self.level_error, self.level[0] + self.level_error
            panel.axhspan(low, high, color=GREY, alpha=0.1, linewidth=0)
            ends[self.level[1]], colours[self.level[1]] = (ticks[-1], self.level[0]), GREY
        if self.slope:
            middle, top = ticks[len(ticks) // 2], 0.9 * max(one[self.figure] for one in self.study.rows)
            heights = [top * (n / middle) ** self.slope for n in (middle, ticks[-1])]
            panel.plot([middle, ticks[-1]], heights, color="0.6", linewidth=1, zorder=1)
            panel.annotate(f"slope {self.slope:g}", (middle, top), color="0.45", fontsize=8, va="bottom")
        figures.budget_axis(panel, ticks, AXES[self.by])
        panel.set_ylabel(self.label)
        if self.log:
            figures.log_axis(panel)
        figures.direct_labels(panel, ends, colours)

    def _ends(self, one: Row, figure: str) -> tuple[float, float]:
        """An interval where there is one, else a standard error to each side."""
        if one.get(f"{figure}_low") is not None:
            return one[f"{figure}_low"], one[f"{figure}_high"]
        error = one.get(f"{figure}_se") or 0.0
        return one[figure] - error, one[figure] + error

    def _curve(self, panel: Axes, rows: Sequence[Row], **style: Any) -> None:
        at, values = [one[self.by] for one in rows], [self.scale * one[self.figure] for one in rows]
        low, high = ([self.scale * self._ends(one, self.figure)[n] for one in rows] for n in (0, 1))
        if low != high:
            panel.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
        panel.plot(at, values, marker="o", markersize=3.5, linewidth=1.5, **style)

    def _points(self, panel: Axes, rows: Sequence[Row], figure: str, colour: str) -> None:
        """With intervals, where these are finite."""
        seen = [one for one in rows if one[figure] and one[f"{figure}_high"] < math.inf]
        spans = [
            [self.scale * abs(one[figure] - end) for one in seen for end in [self._ends(one, figure)[n]]]
            for n in (0, 1)
        ]
        at, values = [one[self.by] for one in seen], [self.scale * one[figure] for one in seen]
        panel.errorbar(at, values, spans, color=colour, linestyle="", marker="o", markersize=4, capsize=2)


def chart(parts: Sequence[Panel], methods: Sequence[str], title: str) -> Figure:
    """Curves of at most `MOST_LINES` methods against budgets, in panels; the title says what they show."""
    assert len(methods) <= MOST_LINES, methods
    columns = min(2, len(parts))
    rows = math.ceil(len(parts) / columns)
    figure, grid = figures.panels(6.6 * columns, 4.6 * rows, rows, columns)
    for panel, part in zip((panel for line in grid for panel in line), parts, strict=True):
        part.draw(panel, methods)
    figures.headline(figure, title, columns)
    return figure


def legend(figure: Figure, columns: int) -> None:
    """One for all panels, below them."""
    found = {label: h for panel in figure.axes for h, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns, frameon=False)
