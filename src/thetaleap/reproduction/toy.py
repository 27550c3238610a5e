"""The paper's 15-state toy (figure 2): the error against the number of steps, sampled and exact.

15 values at one position, uniform process with generator ``E/15 - I``, horizon T = 12, true scores, steps of equal
length, theta = 1/2. The paper draws 10^6 samples per point and fits KL(p0 || histogram) against steps. Here the
exact law of every solver stands beside them, in KL and in total variation, under the paper's rule for several jumps of
one position (``reject``) and under ``exact``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .. import __version__
from ..core.checks import require, require_count
from ..evaluation.metrics import noise_floor
from ..models import load
from ..models.oracles import Joint
from ._output import COLOURS, Report, panels, reference_slope, write_csv, write_json, write_png
from ._threads import one_thread
from ._toy_points import (
    ABOVE,
    CURVES,
    RESAMPLES,
    Fit,
    Point,
    exact_fits,
    exact_points,
    horizon_error,
    of,
    sampled_fits,
    sampled_points,
)
from ._toy_words import NEGLIGIBLE, claims, describe

MODEL = "toy15"
NUM = 10**6
STEPS = (8, 16, 32, 64, 128, 256, 512)
MOST_SAMPLED = 256
"""Beyond this many steps there are exact errors only; samples there would take most of the run's time."""

STYLE = {"reject": "--", "exact": "-", "euler": "-", "kernel": "-"}
MARKER = {"reject": "o", "exact": "s"}


@one_thread()
def run(
    folder: Path,
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    steps: Sequence[int] = STEPS,
) -> Report:
    """Measure, and write ``toy.png``, ``toy.csv`` and ``toy.json`` to `folder`."""
    num = NUM if num is None else num
    require_count("num", num)
    require_count("seed", seed, least=0)
    require(len(set(steps)) >= 2, "steps", list(steps), "give two different numbers of steps or more")
    folder.mkdir(parents=True, exist_ok=True)
    model = load(MODEL)
    assert isinstance(model, Joint)
    points = exact_points(model, sorted(set(steps)), progress)
    points, bootstraps = sampled_points(model, points, MOST_SAMPLED, num, seed, progress)
    exact, sampled = exact_fits(points), sampled_fits(points, bootstraps)
    floor = noise_floor(model.p0.numel(), num)
    files = [
        write_png(folder / "toy.png", draw(points, floor)),
        write_csv(folder / "toy.csv", [asdict(p) for p in points]),
        write_json(folder / "toy.json", summary(model, points, exact, sampled, num, seed)),
    ]
    return Report(describe(points, exact, sampled, num, floor), files, claims(points, exact))


def summary(
    model: Joint, points: Sequence[Point], exact: Sequence[Fit], sampled: Sequence[Fit], num: int, seed: int
) -> dict[str, Any]:
    """Settings and slopes, for the JSON file."""
    return {
        "experiment": "toy",
        "version": __version__,
        "settings": {
            "model": MODEL,
            "states": model.process.states,
            "horizon": model.horizon,
            "grid": "uniform",
            "theta": 0.5,
            "num": num,
            "seed": seed,
            "steps": sorted({p.steps for p in points}),
            "most_sampled_steps": MOST_SAMPLED,
            "bootstrap_resamples": RESAMPLES,
        },
        "p0": model.p0.tolist(),
        "noise_floor": noise_floor(model.p0.numel(), num),
        "fitted_above_floors": ABOVE,
        "horizon_error_tv": horizon_error(points),
        "exact_fits": [asdict(f) for f in exact],
        "sampled_fits": [asdict(f) for f in sampled],
    }


def draw(points: Sequence[Point], floor: float) -> Figure:
    """KL and total variation against steps: lines are exact, markers are sampled."""
    figure, [[left, right]] = panels(11, 5.6, 1, 2)
    # an error without anything of the solver in it would only stretch the axes
    shown = [c for c in CURVES if c.solver != "Tweedie" or horizon_error(points) > NEGLIGIBLE]
    for curve in shown:
        own, colour = of(points, curve), COLOURS[curve.solver]
        for panel, error in ((left, "kl_exact"), (right, "tv_exact")):
            panel.plot(
                [p.steps for p in own], [getattr(p, error) for p in own], STYLE[curve.rule], color=colour, linewidth=1.5
            )
        _markers(left, own, colour, MARKER.get(curve.rule, ""))
    left.axhline(floor, color="0.35", linestyle=":", linewidth=1.2)
    steps = sorted({p.steps for p in points})
    left.annotate(
        f"noise floor of the samples, {floor:.1e}",
        (steps[0], floor),
        (0, -3),
        textcoords="offset points",
        fontsize=8,
        color="0.35",
        va="top",
    )
    worst = [max(getattr(p, error) for p in points) for error in ("kl_exact", "tv_exact")]
    middle = steps[len(steps) // 2]
    reference_slope(left, -2, (middle, worst[0] * 0.9), steps[-1])
    reference_slope(right, -1, (middle, worst[1] * 0.9), steps[-1])
    reference_slope(right, -2, (steps[0], min(p.tv_exact for p in of(points, shown[0]))), middle)
    _axes(left, steps, "KL(p0 || law of the samples), nats", "KL divergence")
    _axes(right, steps, "total variation", "total variation")
    figure.legend(handles=_legend([c.solver for c in shown]), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("15 states, T = 12, equal steps, θ = 1/2: error of the law against steps")
    return figure


def _markers(panel: Axes, points: Sequence[Point], colour: str, marker: str) -> None:
    """Sampled points with their intervals; hollow where too near the noise floor to be fitted."""
    for p in points:
        if p.fitted is None or p.kl_mc == math.inf:
            continue
        value, low, high = p.sure("kl_mc", "kl_low", "kl_high")
        panel.plot(
            p.steps,
            value,
            marker,
            color=colour,
            markersize=6,
            markerfacecolor=colour if p.fitted else "white",
            zorder=3,
        )
        if high < math.inf:
            panel.vlines(p.steps, low, high, color=colour, linewidth=2.5, zorder=4)


def _axes(panel: Axes, steps: Sequence[int], label: str, title: str) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(steps, [str(n) for n in steps])
    # room for the label of the reference slope
    panel.set_xlim(steps[0] / 1.15, steps[-1] * (steps[-1] / steps[0]) ** 0.14)
    panel.set_xlabel("steps (two-stage solvers: two evaluations each)")
    panel.set_ylabel(label)
    panel.set_title(title, fontsize=11)


def _legend(solvers: Sequence[str]) -> list[Line2D]:
    names = list(dict.fromkeys(solvers))
    lines = [Line2D([], [], color=COLOURS[name], linewidth=2, label=name) for name in names]
    return [
        *lines,
        Line2D([], [], color="0.3", linestyle="--", label="exact law, rule reject (paper)"),
        Line2D([], [], color="0.3", linestyle="-", label="exact law, rule exact; Euler"),
        Line2D([], [], color="0.3", linestyle="", marker="o", label="samples, 95% interval, reject"),
        Line2D([], [], color="0.3", linestyle="", marker="s", label="samples, exact (hollow: not fitted)"),
    ]
