"""Pages, tables and curves of a study: all text comes from the templates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from .. import __version__
from ..evaluation.figures import (
    budget_axis,
    listing,
    number,
    panels,
    runs,
    table,
    wrapped,
    write_json,
    write_png,
    write_text,
)
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


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("thetaleap.reproduction"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"listing": lambda items: listing(list(items)), "number": number, "runs": runs}
    made.filters["raw"] = lambda text: f"\f{text}\f"
    made.globals |= {"version": __version__, "shown": shown, "UNUSUAL": UNUSUAL}
    return made


def render(template: str, **told: Any) -> str:
    """A template of this folder, filled in."""
    return _templates().get_template(template).render(told)


def cells(study: Study, columns: Columns) -> tuple[list[str], list[list[str]]]:
    """Header and lines: method, theta if there are some, budget, what was spent, and figures that were measured."""
    columns = {header: how for header, how in columns.items() if how[0] in study.frame and study.column(how[0])}
    keys = ["method", *(["theta"] if study.column("theta") else []), "budget", "spent"]
    keys = [*(["model"] if len(study.column("model")) > 1 else []), *keys]

    def line(one: Row) -> list[str]:
        spent = "-" if one["evaluations"] is None else f"{one['evaluations']:.1f}"
        told = {**one, "budget": one["nfe"], "spent": spent}
        return ["-" if told[key] is None else f"{told[key]}" for key in keys] + [
            shown(one, *how) for how in columns.values()
        ]

    return [*keys, *columns], [line(one) for one in study.rows]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, numbers to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def flow(text: str, width: int | None) -> str:
    """Paragraphs and points in one line each, or wrapped to `width`; what stands between form feeds is left alone."""

    def joined(part: str, first: str = "", rest: str = "") -> str:
        line = " ".join(part.split())
        return f"{first}{line}" if width is None else wrapped(line, width, first, rest)

    parts = []
    for n, piece in enumerate(text.split("\f")):
        for part in [piece] if n % 2 else re.split(r"\n\s*\n", piece.strip()):
            points = re.split(r"\n(?=- )", part)
            listed = "\n".join(joined(point[2:], "- ", "  ") for point in points)
            parts.append(part if n % 2 else listed if part.startswith("- ") else joined(part))
    return "\n\n".join(part for part in parts if part)


def describe(name: str, study: Study, columns: Columns, page: bool = False, **told: Any) -> str:
    """For the terminal; as a `page`, Markdown with figures and what is only there."""
    told |= {"table": (markdown if page else table)(*cells(study, columns)) if columns else "", "page": page}
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
    folder: Path,
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
    """Write ``name.md``, ``.png``, ``.csv`` and ``.json`` to `folder`; `more` files are there already."""
    settings = {**settings, "solvers": {one["method"]: one["solver"] for one in study.rows}}
    told |= {"settings": settings, "claims": claims}
    rows = study.written
    value = {"experiment": name, "version": __version__, "settings": settings, "rows": rows.to_dict("records")}
    value |= {"claims": [asdict(claim) for claim in claims], **(card or {})}
    files = [
        write_text(folder / f"{name}.md", describe(name, study, columns, page=True, **told)),
        write_png(folder / f"{name}.png", figure),
        write_text(folder / f"{name}.csv", rows.to_csv(index=False, lineterminator="\n")),
        write_json(folder / f"{name}.json", plain(value)),
        *more,
    ]
    return Report(describe(name, study, columns, **told), files, list(claims))


def curves(
    panel: Axes,
    study: Study,
    figure: str,
    methods: Sequence[str],
    by: str = "nfe",
    scale: float = 1.0,
    joined: bool = True,
) -> None:
    """A line with bars for each of `methods`: standard errors, or intervals. Across the panel, if it has no budget."""
    for n, method in enumerate(methods):
        own = [one for one in study.where(method=method) if one[figure] is not None]
        style: dict[str, Any] = {"color": look(method).colour, "linestyle": look(method).line if joined else ""}
        if not own:
            continue
        if own[0][by] is None:
            panel.axhline(scale * own[0][figure], label=f"{method}, {own[0]['evaluations']:.0f} evaluations", **style)
            continue
        values, errors = [scale * one[figure] for one in own], [scale * (one.get(f"{figure}_se") or 0.0) for one in own]
        sampled = any(f"{figure}_{end}" in study.frame.columns for end in ("se", "low"))
        style["marker"] = "o" if sampled else ""
        spans: Any = errors
        if own[0].get(f"{figure}_low") is not None:
            ends = [[scale * one[f"{figure}_{end}"] for one in own] for end in ("low", "high")]
            spans = [[abs(v - e) for v, e in zip(values, line, strict=True)] for line in ends]
        # side by side, so that no interval hides another
        at = [one[by] * 1.012 ** (n - len(methods) / 2) for one in own]
        panel.errorbar(
            at,
            values,
            spans,
            label=method if joined else None,
            markersize=4,
            capsize=2,
            linewidth=1.3,
            **style,
        )


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


def chart(parts: Sequence[Panel], methods: Sequence[str], title: str, columns: int = 2) -> Figure:
    """Curves of `methods` against budgets, in panels."""
    columns = min(columns, len(parts))
    figure, grid = panels(
        5.5 * columns + 1, 5.2 * math.ceil(len(parts) / columns), math.ceil(len(parts) / columns), columns
    )
    axes = [panel for line in grid for panel in line]
    for panel, part in zip(axes, parts, strict=True):
        curves(panel, part.study, part.figure, methods, part.by, part.scale)
        ticks = sorted(part.study.column(part.by))
        if part.points:
            seen = [one for one in part.study.rows if one[part.points] and one[f"{part.points}_high"] < math.inf]
            sampled = Study.of("points", seen)
            curves(panel, sampled, part.points, methods, part.by, joined=False)
        if part.level:
            panel.axhline(part.level[0], color="0.35", linestyle=(0, (1, 3)), linewidth=1.2, label=part.level[1])
        if part.slope:
            middle, top = ticks[len(ticks) // 2], 0.9 * max(one[part.figure] for one in part.study.rows)
            line = [top * (n / middle) ** part.slope for n in (middle, ticks[-1])]
            panel.plot([middle, ticks[-1]], line, color="0.55", linewidth=1, label=f"slope {part.slope:g}", zorder=1)
        for method in methods if part.published else []:
            told = [(one["nfe"], one[str(part.published)]) for one in part.study.where(method=method)]
            told = [(nfe, part.scale * value) for nfe, value in told if value is not None]
            style: dict[str, Any] = {"color": look(method).colour, "linestyle": "", "marker": "D"}
            label = f"{method}, the paper's"
            if told:
                panel.plot(*zip(*told, strict=True), markerfacecolor="white", label=label, **style)
        budget_axis(panel, ticks, AXES[part.by])
        panel.set_ylabel(part.label)
        panel.set_title(part.title, fontsize=10)
        if part.log:
            panel.set_yscale("log")
    found = {label: handle for panel in axes for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure
