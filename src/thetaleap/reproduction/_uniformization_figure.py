"""The figure of the uniformization experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ._output import panels

if TYPE_CHECKING:
    from .uniformization import Row, Settled

COST, QUALITY, MARK = "#0072B2", "#D55E00", "0.35"


def draw(rows: Mapping[str, Sequence[Row]], settled: Mapping[str, Settled], floor: Mapping[str, float]) -> Figure:
    """A row of two panels for each model: over backward time, as in the paper, and over what is left of it."""
    figure, axes = panels(11.5, 0.9 + 3.5 * len(rows), len(rows), 2)
    for (left, right), (name, all_rows) in zip(axes, rows.items(), strict=True):
        walked = [row for row in all_rows if row.stage != "finish"]
        _rate(left, walked)
        _share(right, walked)
        for panel in (left, right):
            panel.set_title(name, fontsize=11, loc="left")
        _quality(left, [row.backward for row in walked], walked, None)
        _quality(right, [row.t for row in walked], walked, floor[name])
        _mark(left, right, settled[name])
    figure.legend(handles=_legend(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("Uniformization: where the evaluations go, and where the quality settles")
    return figure


def _rate(panel: Axes, rows: Sequence[Row]) -> None:
    """Evaluations per unit of backward time, over backward time."""
    edges = [row.backward for row in rows]
    panel.stairs([row.rate for row in rows[1:] if row.rate is not None], edges, color=COST, linewidth=1.8)
    panel.set_yscale("log")
    panel.set_xlabel("backward time T − t")
    panel.set_ylabel("evaluations per unit of time", color=COST)
    panel.tick_params(axis="y", which="both", labelcolor=COST)


def _share(panel: Axes, rows: Sequence[Row]) -> None:
    """Evaluations spent so far, over the time that is left."""
    total = rows[-1].total
    panel.plot([row.t for row in rows], [100 * row.total / total for row in rows], color=COST, linewidth=1.8)
    panel.set_xscale("log")
    panel.invert_xaxis()
    panel.set_xlabel("time left, t (logarithmic)")
    panel.set_ylabel("evaluations spent so far, %", color=COST)
    panel.tick_params(axis="y", labelcolor=COST)
    panel.set_ylim(-3, 103)


def _quality(panel: Axes, place: Sequence[float], rows: Sequence[Row], floor: float | None) -> None:
    """KL of the state's law from the data on an axis of its own; with a noise floor, a logarithmic one."""
    twin = panel.twinx()
    twin.spines[["top", "left"]].set_visible(False)
    twin.plot(place, [row.kl_exact for row in rows], color=QUALITY, linewidth=1.4)
    known = [(x, row) for x, row in zip(place, rows, strict=True) if row.kl_high < math.inf]
    x, seen = [x for x, _ in known], [row for _, row in known]
    twin.vlines(x, [r.kl_low for r in seen], [r.kl_high for r in seen], color=QUALITY, alpha=0.45, linewidth=1.2)
    twin.plot(x, [r.kl_mc for r in seen], ".", color=QUALITY, markersize=5)
    if floor is None:
        twin.set_ylim(bottom=0)
    else:
        twin.axhline(floor, color=QUALITY, linestyle=":", linewidth=1.2)
        twin.set_yscale("log")
        # the exact curve goes on falling where samples cannot follow
        twin.set_ylim(bottom=floor / 30)
    twin.set_ylabel("KL(p0 || law at t), nats", color=QUALITY)
    twin.tick_params(axis="y", which="both", labelcolor=QUALITY)


def _mark(left: Axes, right: Axes, settled: Settled) -> None:
    """Where the KL settled."""
    left.axvline(settled.backward, color=MARK, linestyle="--", linewidth=1.2)
    right.axvline(settled.t, color=MARK, linestyle="--", linewidth=1.2)
    right.annotate(
        f" KL settled:\n {100 * settled.share_after:.0f}% still to spend",
        (settled.t, 97),
        fontsize=8.5,
        color=MARK,
        va="top",
    )


def _legend() -> list[Line2D]:
    return [
        Line2D([], [], color=COST, linewidth=2, label="evaluations"),
        Line2D([], [], color=QUALITY, label="exact KL(p0 || p_t)"),
        Line2D(
            [], [], color=QUALITY, marker=".", linestyle="-", linewidth=0.8, label="KL of the samples, 95% interval"
        ),
        Line2D([], [], color=QUALITY, linestyle=":", label="noise floor of the samples"),
    ]
