"""How many extrapolated intensities stay positive, by evaluations: the paper's table on its theorems' assumption.

Both two-stage methods subtract one intensity from another, and what comes out negative counts as zero. The share is of
the intensities that are not zero, at positions that are drawn about as often as they jump. theta-RK-2 subtracts only
where theta is below 1/2: at 1/2 the earlier intensity has weight 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from .. import __version__
from ..core.checks import require_count
from ..core.intensity import Combined
from ..core.jumps import Share, jump_probability, leap
from ..core.noise import Noise
from ..core.reverse import Reverse
from ..evaluation.metrics.sequences import Measured
from ..models.network import Network
from ..sampling import DELTA, sample
from ..solvers import Solver, Trapezoidal
from ..solvers.base import Memory, Step
from . import _paper, _words
from ._output import COLOURS, Claim, Report, bar, panels, verdicts, write_csv, write_json, write_png, write_text
from ._text_page import UNUSUAL, markdown, points, shown
from .text import MODEL, budgets_of, model_of

NUM = 8
GROUPS = 8
"""Of samples, whose shares give the standard error; or as many as there are samples."""
MOST = 95.0
"""Percent: what the paper has at least, everywhere."""
HALF = 0.5


@dataclass(frozen=True)
class Watched(Solver):
    """`RK2` with rule "reject", that also looks where it need not: at positions that the first stage has tried to
    unmask.

    There all intensities of the second stage are negative, if theta is below 1/2, and `RK2` itself leaves them out.
    """

    theta: float
    evaluations = 2

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        rho = t - self.theta * (t - s)
        before = reverse.intensity(x, t)
        y, _ = leap(x, before, t - rho, noise("predict"), "reject")
        mixed = Combined(x, before, reverse.intensity(y, rho), 1 / (2 * self.theta), where_earlier=True)
        moved, _ = leap(x, mixed, t - s, noise("correct"), "reject")
        positions, _ = noise("watch").flip(jump_probability(before.bound() * (t - s), "exact").expand_as(x))
        positive = Share(0, 0)
        for some in positions.split(mixed.at_once):
            rates = mixed.rows(some)
            positive += Share(int((rates > 0).sum()), int((rates != 0).sum()))
        return Step(moved, info={"positive": positive})


METHODS: dict[str, Solver] = {
    "theta-RK-2, 1/3": Watched(1 / 3),
    "theta-RK-2, 1/2": Watched(HALF),
    "theta-Trapezoidal, 1/3": Trapezoidal(1 / 3, "reject"),
    "theta-Trapezoidal, 1/2": Trapezoidal(HALF, "reject"),
}
PUBLISHED = {"theta-RK-2, 1/2": _paper.RK2, "theta-Trapezoidal, 1/2": _paper.TRAPEZOIDAL}
"""Methods of the paper's table; its theta is 1/2 throughout on text."""
LOOKS = {"theta-RK-2": COLOURS["RK2"], "theta-Trapezoidal": COLOURS["Trapezoidal"]}


@dataclass(frozen=True)
class Row:
    """One method at one budget: a row of the CSV. In percent."""

    method: str
    nfe: int
    num: int
    positive: float
    positive_se: float
    paper: float | None
    """What the paper reports for RADD."""
    paper_spread: float | None
    """What it writes behind ±."""


def run(
    folder: Path,
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    model: str | Network = MODEL,
    budgets: Sequence[int] | None = None,
    device: str = "cpu",
    dtype: str = "auto",
) -> Report:
    """Measure, and write ``positivity.md``, ``.png``, ``.csv`` and ``.json`` to `folder`.

    Args:
        folder: where to; it is made.
        num: samples of each row, at least 2; by default 8.
        seed: of the samples.
        progress: show a bar; by default if standard error is a terminal.
        model: any that `load` knows.
        budgets: evaluations of a sample; by default 32, 64, ... 1024, those that are not above the model's length.
        device: where the network runs.
        dtype: its precision, by default its own.
    """
    num = NUM if num is None else num
    require_count("num", num, least=2)
    require_count("seed", seed, least=0)
    network, name = model_of(model, device, dtype)
    wanted = budgets_of(network, budgets, _paper.NFES[1:])
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with bar(progress, "evaluations", len(METHODS) * sum(wanted)) as advance:
        for method, solver in METHODS.items():
            for nfe in wanted:
                rows.append(_row(method, nfe, num, shares(network, solver, nfe, num, seed)))
                advance(nfe)
    settings = {"model": name, "num": num, "seed": seed, "length": network.length, "budgets": wanted}
    settings |= {"solvers": {method: repr(solver) for method, solver in METHODS.items()}}
    claims = claims_of(rows, settings)
    card = {"experiment": "positivity", "version": __version__, "settings": settings}
    card |= {"rows": [asdict(row) for row in rows], "paper": asdict(_paper.POSITIVE)}
    files = [
        write_text(folder / "positivity.md", page(rows, settings, claims)),
        write_png(folder / "positivity.png", draw(rows, name)),
        write_csv(folder / "positivity.csv", [asdict(row) for row in rows]),
        write_json(folder / "positivity.json", {**card, "claims": [asdict(claim) for claim in claims]}),
    ]
    return Report(describe(rows, settings, claims), files, claims)


def shares(model: Network, solver: Solver, nfe: int, num: int, seed: int) -> Measured:
    """The share of positive intensities in percent: the mean over groups of samples, with its standard error."""
    groups = min(GROUPS, num)
    ends = [num * n // groups for n in range(groups + 1)]
    found = []
    for first, end in pairwise(ends):
        manner = {"delta": DELTA, "seed": seed, "first": first, "progress": False}
        found.append(100 * sample(model, solver, nfe=nfe, num=end - first, **manner).info["positive"])
    return Measured(statistics.fmean(found), statistics.stdev(found) / groups**0.5)


def _row(method: str, nfe: int, num: int, share: Measured) -> Row:
    known = PUBLISHED.get(method, "")
    told, spread = (table.get(known, {}).get(nfe) for table in (_paper.POSITIVE.values, _paper.POSITIVE.spread))
    return Row(method, nfe, num, share.value, share.error, told, spread)


def claims_of(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Claim]:
    """What the paper says of the share, which on other models than its own is a matter of that model."""
    own = [row for row in rows if row.method == "theta-Trapezoidal, 1/2"]
    other = [row for row in rows if row.method == "theta-RK-2, 1/2"]
    least, first, last = min(own, key=lambda row: row.positive), own[0], own[-1]
    told = _paper.POSITIVE.values
    ends = [f"{told[name][32]:.1f}% at 32 to {told[name][1024]:.1f}% at 1024" for name in PUBLISHED.values()]
    gain = last.positive - first.positive
    unusual = UNUSUAL * math.hypot(first.positive_se, last.positive_se)
    radd = str(settings["model"]).startswith("radd:")
    near = [abs(row.positive - row.paper) <= (row.paper_spread or 0) for row in own if row.paper is not None]
    where = f"On {settings['model']}"
    most = f"{where} {_percent(first)} at {first.nfe} and {_percent(last)} at {last.nfe}"
    return [
        Claim(
            f"nearly all extrapolated intensities of theta-Trapezoidal are positive, {MOST:g}% or more from 32 "
            "evaluations on",
            "agrees" if least.positive >= MOST else "differs",
            f"{where} the least is {_percent(least)} at {least.nfe}",
        ),
        Claim(
            "the share rises with evaluations",
            "agrees" if gain > unusual else "differs" if gain < -unusual else "cannot be checked here",
            most,
        ),
        Claim(
            f"not all of theta-RK-2 are positive at theta = 1/2: from {ends[0]}",
            "agrees" if any(row.positive < 100 for row in other) else "differs",
            f"{where} {_percent(other[-1])} at {other[-1].nfe}: the earlier intensity has weight 0, and none can be "
            "negative, whatever the model. The paper does not say what it counts; entries that are zero because the "
            "first stage has unmasked their position would be an explanation",
        ),
        Claim(
            f"the figures themselves, theta-Trapezoidal: from {ends[1]}",
            ("agrees" if all(near) else "differs") if radd and near else "cannot be checked here",
            most if radd and near else f"needs RADD's weights, as in --model radd:FOLDER. {most}",
        ),
    ]


def _percent(row: Row) -> str:
    return f"{shown(Measured(row.positive, row.positive_se))}%"


HEADER = ("method", "evaluations", "positive, %", "the paper's for RADD, %")


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table, as text."""
    return [
        [
            row.method,
            str(row.nfe),
            shown(Measured(row.positive, row.positive_se)),
            "-" if row.paper is None else f"{row.paper:g} ± {row.paper_spread:g}",
        ]
        for row in rows
    ]


def opening(settings: Mapping[str, Any]) -> str:
    """What was measured."""
    return (
        f"Extrapolated intensities of {settings['model']} that are positive, among those that are not zero, at positions "
        f"drawn about as often as they jump; {settings['num']} samples a row, with standard errors. The last column is "
        "not ours: it is what the paper reports, with what it writes behind ±."
    )


def describe(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """For the terminal."""
    parts = [_words.page([opening(settings)]), _words.table(HEADER, cells(rows)), _words.page([verdicts(claims)])]
    return "\n\n".join(parts)


def page(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """The same as a page of Markdown, with the figure."""
    parts = ["# Positive intensities", opening(settings), markdown(HEADER, cells(rows))]
    parts += ["![share of positive intensities](positivity.png)", "## What the paper says", points(verdicts(claims))]
    solvers = [f"{name}: `{solver}`" for name, solver in settings["solvers"].items()]
    return "\n\n".join([*parts, "## Solvers", points(solvers)]) + "\n"


def draw(rows: Sequence[Row], model: str) -> Figure:
    """The share against evaluations; the paper's with diamonds."""
    figure, [[panel]] = panels(8, 5.2, 1, 1)
    for method in METHODS:
        name, _, theta = method.partition(", ")
        own = [row for row in rows if row.method == method]
        style: dict[str, Any] = {"color": LOOKS[name], "linestyle": "-" if theta == "1/2" else ":"}
        values, errors = [row.positive for row in own], [row.positive_se for row in own]
        panel.errorbar([row.nfe for row in own], values, errors, marker="o", capsize=2, label=method, **style)
    for name, row in _paper.POSITIVE.values.items():
        style = {"color": LOOKS[name], "linestyle": "--", "marker": "D", "markerfacecolor": "white"}
        panel.plot(list(row), list(row.values()), label=f"{name}, the paper's for RADD", **style)
    nfes = sorted({row.nfe for row in rows} | set(_paper.NFES[1:]))
    panel.set_xscale("log", base=2)
    panel.set_xticks(nfes, [str(nfe) for nfe in nfes])
    panel.minorticks_off()
    panel.set_xlabel("evaluations per sample")
    panel.set_ylabel("positive extrapolated intensities, %")
    panel.legend(fontsize=8, frameon=False)
    figure.suptitle(f"{model}: {rows[0].num} samples a row, ± standard error", fontsize=11)
    return figure
