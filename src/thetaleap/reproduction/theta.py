"""Quality against theta, for both two-stage methods: the paper's figures on text and on images.

Text is judged by perplexity, with its entropy beside it; images of digits by the Fréchet distance on the features of a
classifier, which is not FID. All else is as in the paper but for guidance, which is not used: equal steps down to 1e-3,
and at most one event at a position in a step (rule "reject").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from .. import __version__
from ..conditioning.wrappers import guided
from ..core.checks import require, require_count, require_number
from ..core.evaluation import Denoiser
from ..evaluation.judges.causal import Critic
from ..evaluation.metrics.digits import digit_distance
from ..evaluation.metrics.sequences import Measured
from ..models.network import Network
from ..sampling import DELTA, sample
from ..solvers import RK2, Solver, Trapezoidal
from . import _words
from ._output import (
    COLOURS,
    Claim,
    Report,
    Verdict,
    bar,
    panels,
    verdicts,
    write_csv,
    write_json,
    write_png,
    write_text,
)
from ._text_page import UNUSUAL, markdown, points, shown
from .text import critic_of, model_of, quality_of, texts_of

MODELS = ("shakespeare", "mnist")
THETAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
BUDGETS = {"perplexity": (16, 32), "distance": (8, 16)}
NUMS = {"perplexity": 32, "distance": 120}
LEAST = {"perplexity": 2, "distance": 40}
"""Fewer samples have no standard error."""
BATCH = 32
METHODS: dict[str, Callable[[float], Solver]] = {
    "theta-RK-2": lambda theta: RK2(theta, "reject"),
    "theta-Trapezoidal": lambda theta: Trapezoidal(theta, "reject"),
}
LOOKS = {"theta-RK-2": COLOURS["RK2"], "theta-Trapezoidal": COLOURS["Trapezoidal"]}
BEST = {"theta-RK-2": (0.15, 0.4), "theta-Trapezoidal": (0.3, 0.5)}
"""Where the paper has the best theta: for theta-RK-2 on images, for theta-Trapezoidal on text and images."""


@dataclass(frozen=True)
class Row:
    """One method with one theta at one budget: a row of the CSV."""

    model: str
    figure: str
    """``perplexity``, or ``distance`` for images."""
    method: str
    theta: float
    nfe: int
    num: int
    value: float
    """Lower is better."""
    error: float
    """Its standard error."""
    entropy: float | None
    """Of text, in bits."""
    entropy_se: float | None
    bias: float | None
    """Of a distance: by about how much it is too large, as there are no more samples."""


Figures = tuple[float, float, float | None, float | None, float | None]
"""Value, error, entropy, its error, and bias."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and how it is measured."""

    name: str
    figure: str
    by: str
    """Who judges."""
    model: Denoiser
    measure: Callable[[torch.Tensor], Figures]
    num: int
    budgets: list[int]


def run(
    folder: Path,
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    model: str | Network | None = None,
    judge: str | Critic | None = None,
    thetas: Sequence[float] = THETAS,
    budgets: Sequence[int] | None = None,
    batch_size: int = BATCH,
    device: str = "cpu",
    dtype: str = "auto",
) -> Report:
    """Measure, and write ``theta.md``, ``.png``, ``.csv`` and ``.json`` to `folder`.

    Args:
        folder: where to; it is made.
        num: samples of each row; by default 32 texts, 120 images.
        seed: of the samples.
        progress: show a bar; by default if standard error is a terminal.
        model: of text, or of digits as ``mnist``; by default "shakespeare" and "mnist", both.
        judge: of text, see `text.run`.
        thetas: above 0, at most 1, which is for theta-RK-2 alone.
        budgets: evaluations of a sample; by default 16 and 32 for text, 8 and 16 for images.
        batch_size: samples that are drawn together.
        device: where the network and the judge run.
        dtype: the network's precision, by default its own.
    """
    require_count("seed", seed, least=0)
    for theta in thetas:
        require_number("theta", theta, 0, 1, closed="high")
    require(len(set(thetas)) >= 2, "thetas", list(thetas), "give two or more")
    found = [model_of(one, device, dtype) for one in (MODELS if model is None else [model])]
    subjects = [subject_of(network, name, num, judge, budgets, device) for network, name in found]
    order = sorted(set(thetas))
    cases = [(method, theta) for method in METHODS for theta in order if theta < 1 or method == "theta-RK-2"]
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    manner = {"seed": seed, "batch_size": batch_size, "delta": DELTA, "progress": False}
    with bar(progress, "evaluations", len(cases) * sum(one.num * sum(one.budgets) for one in subjects)) as advance:
        for one in subjects:
            for (method, theta), nfe in product(cases, one.budgets):
                drawn = sample(one.model, METHODS[method](theta), nfe=nfe, num=one.num, **manner)
                rows.append(Row(one.name, one.figure, method, theta, nfe, one.num, *one.measure(drawn.x)))
                advance(one.num * nfe)
    told = {s.name: {"figure": s.figure, "by": s.by, "num": s.num, "budgets": s.budgets} for s in subjects}
    settings = {"seed": seed, "thetas": order, "models": told}
    claims = claims_of(rows)
    card = {"experiment": "theta", "version": __version__, "settings": settings, "rows": [asdict(row) for row in rows]}
    files = [
        write_text(folder / "theta.md", page(rows, settings, claims)),
        write_png(folder / "theta.png", draw(rows)),
        write_csv(folder / "theta.csv", [asdict(row) for row in rows]),
        write_json(folder / "theta.json", {**card, "claims": [asdict(claim) for claim in claims]}),
    ]
    return Report(describe(rows, settings, claims), files, claims)


def subject_of(
    network: Network, name: str, num: int | None, judge: str | Critic | None, budgets: Sequence[int] | None, device: str
) -> Subject:
    """What to measure of a model: those whose positions lie in the plane are of images."""
    image = network.shape is not None and len(network.shape) == 2
    figure = "distance" if image else "perplexity"
    num = NUMS[figure] if num is None else num
    require_count("num", num, least=LEAST[figure])
    wanted = sorted(set(BUDGETS[figure] if budgets is None else budgets))
    require(len(wanted) > 0, "budgets", wanted, "give at least one")
    if image:
        labels = None if network.classes is None else torch.arange(num) % network.classes
        told = network if labels is None else guided(network, 0.0, labels)
        return Subject(name, figure, "a classifier of digits", told, _measured_image, num, wanted)
    critic = critic_of(name, judge, device)

    def measured(x: torch.Tensor) -> Figures:
        quality = quality_of(critic, texts_of(network, x))
        likely, varied = quality.perplexity, quality.entropy
        return likely.value, likely.error, varied.value, varied.error, None

    return Subject(name, figure, critic.name, network, measured, num, wanted)


def _measured_image(x: torch.Tensor) -> Figures:
    distance = digit_distance(x)
    return distance.value, distance.error, None, None, distance.bias


# --- what the paper says


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """The paper's claims on theta, for each model and budget that was run."""
    claims = []
    for model in dict.fromkeys(row.model for row in rows):
        here = [row for row in rows if row.model == model]
        kind = "images" if here[0].figure == "distance" else "text"
        for method, (low, high) in BEST.items():
            own = [row for row in here if row.method == method]
            only = " (the paper has this on images)" if method == "theta-RK-2" and kind == "text" else ""
            paper = f"{method}: theta from {low:g} to {high:g} is as good as any, on {kind}{only}"
            claims.append(_inside(paper, own, low, high))
        only = " (the paper has this on images)" if kind == "text" else ""
        own = [row for row in here if row.method == "theta-RK-2"]
        claims.append(_extrapolated(f"theta-RK-2 is better where it extrapolates, theta < 1/2, on {kind}{only}", own))
    return claims


def _best(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row.value)


def compare(one: Row, other: Row) -> int:
    """-1 if `one` is lower than `other`, 1 if it is higher, 0 if they cannot be told apart."""
    apart = UNUSUAL * math.hypot(one.error, other.error)
    return 0 if abs(one.value - other.value) <= apart else -1 if one.value < other.value else 1


def _inside(paper: str, rows: Sequence[Row], low: float, high: float) -> Claim:
    """Whether the best theta in a range is not behind the best of all."""
    parts, signs = [], []
    for nfe in sorted({row.nfe for row in rows}):
        here = [row for row in rows if row.nfe == nfe]
        inside = [row for row in here if low <= row.theta <= high]
        if not inside:
            return Claim(paper, "cannot be checked here", "no theta of this run is in that range")
        near, best = _best(inside), _best(here)
        signs.append(compare(near, best))
        far = [f"{row.theta:g}" for row in here if compare(best, row) < 0]
        worse = f", and {_words.listing(far) if far else 'none'} clearly behind"
        parts.append(f"at {nfe} evaluations the best is {_named(best)}, within the range {_named(near)}{worse}")
    return Claim(paper, "differs" if any(signs) else "agrees", f"{rows[0].model}: {'; '.join(parts)}")


def _extrapolated(paper: str, rows: Sequence[Row]) -> Claim:
    parts, signs = [], []
    for nfe in sorted({row.nfe for row in rows}):
        below, above = ([row for row in rows if row.nfe == nfe and cut(row.theta)] for cut in (_less, _more))
        if not below or not above:
            return Claim(paper, "cannot be checked here", "this run has no theta on both sides of 1/2")
        one, other = _best(below), _best(above)
        signs.append(compare(one, other))
        parts.append(f"at {nfe} evaluations {_named(one)} against {_named(other)}")
    verdict: Verdict = "differs" if 1 in signs else "agrees" if -1 in signs else "cannot be checked here"
    more = "; more samples may tell them apart" if verdict == "cannot be checked here" else ""
    return Claim(paper, verdict, f"{rows[0].model}, the best of each: {_words.listing(parts)}{more}")


def _less(theta: float) -> bool:
    return theta < 0.5


def _more(theta: float) -> bool:
    return theta > 0.5


def _named(row: Row) -> str:
    varied = "" if row.entropy is None else f", entropy {row.entropy:.2f}"
    return f"{row.theta:g} ({row.figure} {shown(Measured(row.value, row.error))}{varied})"


# --- on paper

HEADER = ("model", "method", "theta", "evaluations", "figure", "value", "entropy", "bias")


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table, as text."""
    return [
        [
            row.model,
            row.method,
            f"{row.theta:g}",
            str(row.nfe),
            row.figure,
            shown(Measured(row.value, row.error)),
            "-" if row.entropy is None or row.entropy_se is None else shown(Measured(row.entropy, row.entropy_se)),
            "-" if row.bias is None else f"{row.bias:.1f}",
        ]
        for row in rows
    ]


def opening(settings: Mapping[str, Any]) -> list[str]:
    """What was measured."""
    told = [
        f"{name}: {one['num']} samples a row, {one['figure']} by {one['by']}"
        for name, one in settings["models"].items()
    ]
    return [
        "Quality against theta, for both two-stage methods, with standard errors; lower is better. "
        f"{'. '.join(told)}. The distance is not FID, and is too large by about its bias, alike in rows of one model. "
        "Perplexity is to be read with the entropy beside it. There is no guidance.",
    ]


def describe(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """For the terminal."""
    parts = [_words.page(opening(settings)), _words.table(HEADER, cells(rows)), _words.page([verdicts(claims)])]
    return "\n\n".join(parts)


def page(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """The same as a page of Markdown, with the figure."""
    parts = ["# Theta", *opening(settings), markdown(HEADER, cells(rows)), "![quality against theta](theta.png)"]
    return "\n\n".join([*parts, "## What the paper says", points(verdicts(claims))]) + "\n"


def draw(rows: Sequence[Row]) -> Figure:
    """Each figure of each model against theta; the paper's ranges shaded."""
    models = list(dict.fromkeys((row.model, row.figure) for row in rows))
    wanted = models + [(model, "entropy") for model, figure in models if figure == "perplexity"]
    figure, [axes] = panels(5.5 * len(wanted), 5.2, 1, len(wanted))
    for panel, (model, name) in zip(axes, wanted, strict=True):
        own = [row for row in rows if row.model == model]
        budgets = sorted({row.nfe for row in own})
        for method in METHODS:
            for nfe, line in zip(budgets, ("-", "--", ":", "-.") * len(budgets), strict=False):
                some = [row for row in own if (row.method, row.nfe) == (method, nfe)]
                values = [(row.entropy or 0.0) if name == "entropy" else row.value for row in some]
                errors = [(row.entropy_se or 0.0) if name == "entropy" else row.error for row in some]
                style: dict[str, Any] = {"color": LOOKS[method], "linestyle": line, "marker": "o", "markersize": 4}
                style |= {"capsize": 2, "label": f"{method}, {nfe} evaluations"}
                panel.errorbar([row.theta for row in some], values, errors, **style)
            if name != "entropy":
                panel.axvspan(*BEST[method], color=LOOKS[method], alpha=0.08)
        panel.set_xlabel("θ")
        panel.set_ylabel({"entropy": "entropy, bits", "distance": "Fréchet distance"}.get(name, name))
        panel.set_title(model, fontsize=10)
        panel.legend(fontsize=7, frameon=False, handlelength=4)
    figure.suptitle("Quality against θ, ± standard error; shaded: where the paper has the best", fontsize=11)
    return figure
