"""Pages, tables and curves of a study: all text comes from the templates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from .. import __version__
from ..core.checks import require_count
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

    def bar(self, label: str, work: float) -> AbstractContextManager[Callable[..., None]]:
        """A progress bar. The work begins here, and so the folder is made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return progress_bar(self.progress, label, work)


def experiment(least: int = 1) -> Callable[[Callable[..., Report]], Callable[..., Report]]:
    """Makes ``run(folder, *, num=None, seed=0, progress=None, **options)`` of a function of a job and its options.

    `num` is `least` or more, and None is as many as the experiment calls for; there is a progress bar by default if
    standard error is a terminal.
    """

    def made(measure: Callable[..., Report]) -> Callable[..., Report]:
        @wraps(measure)
        def run(
            folder: Path, *, num: int | None = None, seed: int = 0, progress: bool | None = None, **options: Any
        ) -> Report:
            if num is not None:
                require_count("num", num, least)
            require_count("seed", seed, least=0)
            return measure(Job(folder, num, seed, progress), **options)

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
    value = {"experiment": name, "version": __version__, "settings": settings, "rows": study.written}
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
    title: str = ""
    log: bool = False
    by: str = "nfe"
    points: str | None = None
    """A figure to show as points, with intervals where they are finite."""
    level: tuple[float, str] | None = None
    """A line across, and its name."""
    slope: float | None = None
    """Of a thin line to compare with."""
    published: str | None = None
    """A column of the paper's own figures, drawn with diamonds."""

    def draw(self, panel: Axes, methods: Sequence[str]) -> None:
        """A line with bars for each of `methods`. Across the panel, if it has no budget."""
        for n, method in enumerate(methods):
            own = [one for one in self.study.where(method=method) if one[self.figure] is not None]
            colour, line = look(method).colour, look(method).line
            if own and own[0][self.by] is None:
                label = f"{method}, {own[0]['evaluations']:.0f} evaluations"
                panel.axhline(self.scale * own[0][self.figure], color=colour, linestyle=line, label=label)
                continue
            shift = 1.012 ** (n - len(methods) / 2)  # side by side, so that no interval hides another
            self._curve(panel, own, self.figure, shift, color=colour, linestyle=line, label=method)
            if self.points:
                seen = [one for one in own if one[self.points] and one[f"{self.points}_high"] < math.inf]
                self._curve(panel, seen, self.points, shift, color=colour, linestyle="")
            told = [one for one in own if self.published and one[self.published] is not None]
            if told:
                values = [self.scale * one[str(self.published)] for one in told]
                at, label = [one["nfe"] for one in told], f"{method}, the paper's"
                panel.plot(at, values, "D", color=colour, markerfacecolor="white", label=label)
        ticks = sorted(self.study.column(self.by))
        if self.level:
            panel.axhline(self.level[0], color="0.35", linestyle=(0, (1, 3)), linewidth=1.2, label=self.level[1])
        if self.slope:
            middle, top = ticks[len(ticks) // 2], 0.9 * max(one[self.figure] for one in self.study.rows)
            ends = [top * (n / middle) ** self.slope for n in (middle, ticks[-1])]
            panel.plot([middle, ticks[-1]], ends, color="0.55", linewidth=1, label=f"slope {self.slope:g}", zorder=1)
        figures.budget_axis(panel, ticks, AXES[self.by])
        panel.set_ylabel(self.label)
        panel.set_title(self.title, fontsize=10)
        if self.log:
            panel.set_yscale("log")

    def _curve(self, panel: Axes, rows: Sequence[Row], figure: str, shift: float, **style: Any) -> None:
        """With standard errors, or intervals."""
        if not rows:
            return
        at, values = [one[self.by] * shift for one in rows], [self.scale * one[figure] for one in rows]
        spans: Any = [self.scale * (one.get(f"{figure}_se") or 0.0) for one in rows]
        if rows[0].get(f"{figure}_low") is not None:
            spans = [
                [self.scale * abs(one[figure] - one[f"{figure}_{end}"]) for one in rows] for end in ("low", "high")
            ]
        style["marker"] = "o" if {f"{figure}_se", f"{figure}_low"} & set(rows[0]) else ""
        panel.errorbar(at, values, spans, markersize=4, capsize=2, linewidth=1.3, **style)


def chart(parts: Sequence[Panel], methods: Sequence[str], title: str) -> Figure:
    """Curves of `methods` against budgets, in panels."""
    columns = min(2, len(parts))
    rows = math.ceil(len(parts) / columns)
    figure, grid = figures.panels(5.5 * columns + 1, 5.2 * rows, rows, columns)
    for panel, part in zip((panel for line in grid for panel in line), parts, strict=True):
        part.draw(panel, methods)
    legend(figure, 3)
    figure.suptitle(title, fontsize=11)
    return figure


def legend(figure: Figure, columns: int) -> None:
    """One for all panels, below them."""
    found = {label: h for panel in figure.axes for h, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns, frameon=False)
