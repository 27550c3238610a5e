"""What the experiment on images shows, in words, tables and a figure."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from . import _words
from ._output import Claim, Verdict, panels, verdicts

if TYPE_CHECKING:
    from .images import Row

UNUSUAL = 3.0
"""A difference counts from this many standard errors on."""
FEW = 8
"""What the paper calls extremely few evaluations."""
EULER, TAU, RK2 = "Euler", "tau-leaping", "theta-RK-2 (1/3)"
THIRD, HALF, PARALLEL = "theta-Trapezoidal (1/3)", "theta-Trapezoidal (1/2)", "parallel decoding"
COLOURS = {
    EULER: "#009E73",
    TAU: "#0072B2",
    "Tweedie": "#CC79A7",
    RK2: "#E69F00",
    THIRD: "#D55E00",
    HALF: "#8C3B00",
    PARALLEL: "#56B4E9",
    "exponential Trapezoidal": "#000000",
    "multistep": "#7A3E9D",
    "low discrepancy": "#8A8A00",
}
OURS = ("exponential Trapezoidal", "multistep", "low discrepancy")
WITHOUT = (
    "it takes the weights of MaskGIT and its VQGAN, and statistics of ImageNet: thetaleap reproduce images --model "
)
WITHOUT += "maskgit:FILE --vqgan FILE --reference FILE"


# --- words


def opening(settings: Mapping[str, Any]) -> list[str]:
    """What was measured, and how budgets are counted."""
    what, guidance = settings["distance"], settings["guidance"]
    fid = "FID" if what == "FID" else f"the {what}. It is not FID, and compares with nothing but itself"
    doubled = (
        f"With guidance (w = {guidance:g}) the network runs with and without the label, which counts as two "
        "evaluations: a budget of 32 is 16 looks at a sample. The paper does not say whether it counts one or two."
        if settings["cost"] > 1
        else "Without guidance the network runs once for each look."
    )
    return [
        f"Model {settings['model']}: {settings['num']} images of each method at each budget, of all classes in turn. "
        f"The distance is {fid}. Its standard error and its bias (by how much it is too large, there being no more "
        "samples) are estimated by the jackknife; distances compare at the same number of samples.",
        f"A budget is the most evaluations that a sample may take, its finish included. {doubled} Two-stage methods "
        "take two looks a step; where a budget has no room for a step and the finish, the row is left out.",
    ]


HEADER = ("method", "budget", "spent", "distance", "+-", "bias", "class right, %", "precision", "recall")


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table, as text."""
    return [
        [
            row.method,
            str(row.nfe),
            f"{row.evaluations:.1f}",
            f"{row.distance:.1f}",
            f"{row.error:.1f}",
            f"{row.bias:.1f}",
            "-"
            if row.accuracy is None or row.low is None or row.high is None
            else f"{100 * row.accuracy:.0f} ({100 * row.low:.0f} to {100 * row.high:.0f})",
            "-" if row.precision is None else f"{row.precision:.2f}",
            "-" if row.recall is None else f"{row.recall:.2f}",
        ]
        for row in rows
    ]


def sentences(rows: Sequence[Row]) -> list[str]:
    """Who is nearest to real images at each budget, and whose classes are right."""
    found = []
    for nfe in sorted({row.nfe for row in rows}):
        here = [row for row in rows if row.nfe == nfe]
        best = min(here, key=lambda row: row.distance)
        near = [row.method for row in here if row is not best and compare(row, best) == 0]
        text = f"With {nfe} evaluations {best.method} has the smallest distance, {best.distance:.1f} ± {best.error:.1f}"
        text += f", not to be told from {_words.listing(near)}" if near else ""
        sure = [(row.accuracy, row.method) for row in here if row.accuracy is not None]
        if sure:
            most = max(share for share, _ in sure)
            names = _words.listing([name for share, name in sure if share == most])
            text += f"; most classes are right with {names}, {100 * most:.0f}%"
        found.append(f"{text}.")
    return found


def compare(one: Row, other: Row) -> int:
    """-1 if `one` is nearer to real images than `other`, 1 if it is farther, 0 if they cannot be told apart."""
    apart = UNUSUAL * math.hypot(one.error, other.error)
    return 0 if abs(one.distance - other.distance) <= apart else -1 if one.distance < other.distance else 1


# --- what the paper says


def claims_of(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Claim]:
    """The paper's claims on images; verdicts on their order are of this model and distance."""
    many = [row for row in rows if row.nfe > FEW]
    few = [row for row in rows if row.nfe <= FEW]
    where = "" if settings["distance"] == "FID" else "on digits, with another model and another distance, "
    best = [EULER, TAU, RK2, HALF, PARALLEL]
    made = [
        ("theta-Trapezoidal has a lower FID than Euler and tau-leaping at all budgets", rows, THIRD, [EULER, TAU]),
        ("theta-Trapezoidal with theta = 1/3 has the lowest FID but at extremely few evaluations", many, THIRD, best),
        (f"parallel decoding is ahead of theta-Trapezoidal up to {FEW} evaluations", few, PARALLEL, [THIRD]),
        (f"parallel decoding saturates, and is behind theta-Trapezoidal beyond {FEW}", many, THIRD, [PARALLEL]),
        (f"theta-RK-2 with theta = 1/3 is ahead of tau-leaping beyond {FEW} evaluations", many, RK2, [TAU]),
    ]
    claims = [_ahead(paper, where, some, mine, others) for paper, some, mine, others in made]
    claims.append(_alike("theta = 1/2 comes to the quality of theta = 1/3 at many evaluations", where, many))
    positions = settings["positions"]
    claims.append(
        Claim(
            f"first-hitting is ahead up to {FEW} evaluations",
            "cannot be checked here",
            f"it is exact and takes an evaluation for each position, {positions} here, and the paper does not say how it was "
            "kept within a budget",
        )
    )
    if settings["distance"] != "FID":
        claims.append(Claim("the values of FID themselves, 50,000 images", "cannot be checked here", WITHOUT))
    return claims


def _ahead(paper: str, where: str, rows: Sequence[Row], mine: str, others: Sequence[str]) -> Claim:
    """Whether `mine` is nearer to real images than each of `others`: seen at some budget, and contradicted at none."""
    budgets: dict[int, dict[str, list[int]]] = {-1: {}, 0: {}, 1: {}}
    for own in (row for row in rows if row.method == mine):
        for other in (row for row in rows if row.nfe == own.nfe and row.method in others):
            budgets[compare(own, other)].setdefault(other.method, []).append(own.nfe)
    words = {-1: "below", 0: "not to be told from", 1: "above"}
    parts = [
        f"{words[sign]} {_words.listing([f'{name} at {_budgets(at)}' for name, at in some.items()])}"
        for sign, some in budgets.items()
        if some
    ]
    if not parts:
        return Claim(paper, "cannot be checked here", "no budget of this run has room for both; give more")
    seen = not budgets[0].keys() - budgets[-1].keys()
    known: Verdict = "differs" if budgets[1] else "agrees" if seen else "cannot be checked here"
    more = "" if known != "cannot be checked here" else "; more samples may tell"
    return Claim(paper, known, f"{where}{mine} is {_words.listing(parts)}{_last(rows, mine, others)}{more}")


def _last(rows: Sequence[Row], mine: str, others: Sequence[str]) -> str:
    """The distances at the largest budget that they share."""
    shared = {row.nfe for row in rows if row.method == mine} & {row.nfe for row in rows if row.method in others}
    here = [row for row in rows if row.nfe == max(shared) and row.method in (mine, *others)]
    listed = [f"{row.method} {row.distance:.1f} ± {row.error:.1f}" for row in here]
    return f" (at {max(shared)}: {', '.join(listed)})"


def _alike(paper: str, where: str, rows: Sequence[Row]) -> Claim:
    own, other = ({row.nfe: row for row in rows if row.method == name} for name in (HALF, THIRD))
    shared = set(own) & set(other)
    if not shared:
        return Claim(paper, "cannot be checked here", "no budget of this run has room for both; give more")
    most = max(shared)
    same = compare(own[most], other[most]) == 0
    text = f"at {most} they are {'not ' if same else ''}to be told apart{_last(rows, HALF, [THIRD])}"
    return Claim(paper, "agrees" if same else "differs", f"{where}{text}")


def _budgets(at: Sequence[int]) -> str:
    return _words.listing([str(nfe) for nfe in at])


def describe(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """For the terminal."""
    parts = [_words.page(opening(settings)), _words.table(HEADER, cells(rows))]
    return "\n\n".join([*parts, _words.page([sentences(rows), verdicts(claims)])])


def page(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """The same as a page of Markdown, with the figure and the grids of samples."""
    lines = [HEADER, ["---"] + ["---:"] * (len(HEADER) - 1), *cells(rows)]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    shown = [
        f"{method}, {nfe} evaluations, a row for each class:\n\n![{method}]({grid_name(method)})"
        for method, nfe in settings["most"].items()
    ]
    parts = ["# Images", *opening(settings), grid, _points(sentences(rows)), "![distance and classes](images.png)"]
    parts += ["## What the paper says", _points(verdicts(claims)), "## Samples", *shown]
    solvers = [f"{name}: `{solver}`" for name, solver in settings["solvers"].items()]
    return "\n\n".join([*parts, "## Solvers", _points(solvers)]) + "\n"


def grid_name(method: str) -> str:
    """The file of a method's samples."""
    return f"images-{'-'.join(re.findall('[a-z0-9]+', method.lower()))}.png"


def _points(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


# --- figure


def draw(rows: Sequence[Row], settings: Mapping[str, Any]) -> Figure:
    """Distance, and right classes where they are known, against evaluations; ours dashed."""
    judged = any(row.accuracy is not None for row in rows)
    figure, [axes] = panels(11 if judged else 6.5, 5.6, 1, 2 if judged else 1)
    budgets = sorted({row.nfe for row in rows})
    for n, (method, colour) in enumerate(COLOURS.items()):
        own = [row for row in rows if row.method == method]
        # side by side, so that no interval hides another
        at = [row.nfe * 1.012 ** (n - len(COLOURS) / 2) for row in own]
        style = {"color": colour, "linestyle": "--" if method in OURS else "-", "marker": "o", "markersize": 4}
        values, errors = [row.distance for row in own], [row.error for row in own]
        axes[0].errorbar(at, values, errors, label=method, capsize=2, linewidth=1.3, **style)
        if judged:
            shares = [100 * row.accuracy for row in own if row.accuracy is not None]
            axes[1].plot(at, shares, linewidth=1.3, **style)
    axes[0].set_yscale("log")
    axes[0].set_ylabel(textwrap.fill(f"{settings['distance']} (± standard error)", 44))
    if judged:
        axes[1].set_ylabel("class as asked for, % of samples")
    for panel in axes:
        panel.set_xscale("log", base=2)
        panel.set_xticks(budgets, [str(nfe) for nfe in budgets])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel("evaluations per sample (budget)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4 if judged else 3, frameon=False)
    figure.suptitle(f"{settings['model']}, {rows[0].num} samples each, guidance {settings['guidance']:g}", fontsize=11)
    return figure
