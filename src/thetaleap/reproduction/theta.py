"""Quality against theta, for both two-stage methods: the paper's figures on text and on images.

Text is judged by perplexity, with its entropy beside it; images of digits by the Fréchet distance on the features of a
classifier, which is not FID. All else is as in the paper but for guidance, which is not used: equal steps down to 1e-3,
and at most one event at a position in a step (rule "reject").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from ..conditioning.wrappers import guided
from ..core.checks import require, require_count, require_number
from ..core.evaluation import Denoiser
from ..evaluation.figures import direct_labels, headline, panels
from ..evaluation.judges.causal import Critic
from ..evaluation.metrics.digits import digit_features
from ..evaluation.metrics.digits import judge as digit_judge
from ..evaluation.metrics.images import frechet
from ..evaluation.metrics.resampled import resampled_frechet
from ..models.network import Network
from ..sampling import DELTA, sample
from .looks import Cell, draw, fingerprint, until_decided
from .methods import METHODS, MINE, RK, pick
from .pages import Job, experiment, model_of, publish
from .rules import Claim, Report
from .rules import judge as judged
from .study import Row, Study, row
from .text import critic_of, figures_of, texts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("shakespeare", "mnist")
THETAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
RATIOS = (1 / 16, 1 / 8)
"""Evaluations per position."""
NUMS = {"bits": 32, "distance": 64}
MATTERS = {"bits": 0.01, "distance": 0.15}
"""The share of a figure by which methods must differ for it to matter; of 5 bits per token, 0.05."""
LEAST = {"bits": 2, "distance": 40}
"""Fewer samples have no standard error."""
BEST = {RK: (0.15, 0.4), MINE: (0.3, 0.5)}
"""Where the paper has the best theta: for theta-RK-2 on images, for theta-Trapezoidal on text and images."""
COLUMNS = {name: (name, 1.0, 1) for name in ("perplexity", "entropy", "distance", "bias")}


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and how it is measured: by `figure`, lower is better."""

    name: str
    figure: str
    by: str
    told: Callable[[int, int], Denoiser]
    """The model for samples from a number on."""
    measure: Callable[[torch.Tensor], dict[str, Any]]
    num: int
    budgets: list[int]


@experiment()
def run(
    job: Job,
    model: str | Network | None = None,
    judge: str | Critic | None = None,
    thetas: Sequence[float] = THETAS,
    budgets: Sequence[int] | None = None,
    batch_size: int = 32,
    device: str = "cpu",
    dtype: str = "auto",
) -> Report:
    """Measure, and write ``theta.md``, ``.png``, ``.csv`` and ``.json`` to the job's folder.

    By default both models, 32 texts and 64 images of each row, with 1/16 and 1/8 of an evaluation for each position.
    `thetas` are above 0, at most 1, which is for theta-RK-2 alone. See `text.run` for the rest.
    """
    for theta in thetas:
        require_number("theta", theta, 0, 1, closed="high")
    order = sorted(set(thetas))
    require(len(order) >= 2, "thetas", list(thetas), "give two or more")
    place = {"device": device, "dtype": dtype}
    found = [model_of(one, **place) for one in (MODELS if model is None else [model])]
    subjects = [subject_of(network, name, job.num, judge, budgets, device) for network, name in found]
    cases = [(method, theta) for method in BEST for theta in order if theta < 1 or method == RK]
    manner = {"seed": job.seed, "batch_size": batch_size, "delta": DELTA, "progress": False}
    rows, claims = [], []
    for one in subjects:
        weights = fingerprint(one.told(0, 1))

        def row_of(cell: Cell, num: int, one: Subject = one, weights: str = weights) -> Row:
            solver = pick(cell.method, theta=cell.theta or 0.5)[cell.method]
            told = {"theta": weights, "solver": repr(solver), "nfe": cell.nfe, "seed": job.seed}
            drawn = draw(
                job,
                told,
                num,
                lambda first, count: sample(
                    one.told(first, count), solver, nfe=cell.nfe, first=first, num=count, **manner
                ),
            )
            entries = {"model": one.name, "solver": repr(solver), "theta": cell.theta, "nfe": cell.nfe}
            return row(cell.method, drawn.nfe.tolist(), **entries, **one.measure(drawn.x))

        cells = [Cell(m, nfe, one.num, nfe, theta) for (m, theta), nfe in product(cases, one.budgets)]
        study, found = until_decided(
            job, "theta", cells, row_of, lambda s, one=one: claims_of(s, {one.name: one.figure})
        )
        rows += study.rows
        claims += found
    study, figures = Study.of("theta", rows), {s.name: s.figure for s in subjects}
    told = {s.name: {"figure": s.figure, "by": s.by, "num": s.num, "budgets": s.budgets} for s in subjects}
    settings = {"thetas": order, "models": told, "weights": {s.name: fingerprint(s.told(0, 1)) for s in subjects}}
    return publish(job, "theta", study, settings, claims, drawing(study, figures, claims), columns=COLUMNS)


def subject_of(
    network: Network, name: str, num: int | None, judge: str | Critic | None, budgets: Sequence[int] | None, device: str
) -> Subject:
    """What to measure of a model: those whose positions lie in the plane are of images."""
    image = network.shape is not None and len(network.shape) == 2
    figure = "distance" if image else "bits"
    num = NUMS[figure] if num is None else num
    require_count("num", num, least=LEAST[figure])
    usual = {max(3, round(ratio * network.length)) for ratio in RATIOS}
    wanted = sorted(usual if budgets is None else set(budgets))
    require(len(wanted) > 0, "budgets", wanted, "give at least one")
    if image:

        def told(first: int, count: int) -> Denoiser:
            classes = network.classes
            return network if classes is None else guided(network, 0.0, torch.arange(first, first + count) % classes)

        return Subject(name, figure, "a classifier of digits", told, _distance, num, wanted)
    critic = critic_of(name, judge, device)

    def measure(x: torch.Tensor) -> dict[str, Any]:
        return figures_of(critic, texts_of(network, x))

    return Subject(name, figure, critic.name, lambda first, count: network, measure, num, wanted)


def _distance(x: torch.Tensor) -> dict[str, Any]:
    known, features = digit_judge(), digit_features(x)
    bias = frechet(features, known.mean, known.cov).bias
    return {"distance": resampled_frechet(features, known.mean, known.cov), "bias": bias}


def claims_of(study: Study, figures: dict[str, str]) -> list[Claim]:
    """The paper's claims on theta, for each model."""
    made = []
    for model, figure in figures.items():
        kind, only = ("images", "") if figure == "distance" else ("text", " (the paper has this on images)")
        told = {"figure": figure, "kind": kind, "only": only, "share": MATTERS[figure]}
        made += judged(Study(study.where(model=model)), "theta", (), f"{model}: ", **told)
    return made


def drawing(study: Study, figures: dict[str, str], claims: Sequence[Claim]) -> Figure:
    """Quality of each model against theta; the paper's ranges shaded."""
    wanted = [(m, "perplexity" if f == "bits" else f) for m, f in figures.items()]
    figure, [axes] = panels(6.6 * len(wanted), 4.6, 1, len(wanted))
    for panel, (model, name) in zip(axes, wanted, strict=True):
        own, ends, colours = study.where(model=model), {}, {}
        for method, (n, nfe) in product(BEST, enumerate(sorted({one["nfe"] for one in own})[:3])):
            some = [one for one in own if (one["method"], one["nfe"]) == (method, nfe)]
            at, values, errors = ([one[key] for one in some] for key in ("theta", name, f"{name}_se"))
            colour, label = METHODS[method].colour, f"{method}, {nfe}"
            low, high = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
            panel.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)
            panel.plot(at, values, color=colour, linestyle=("-", "--", ":")[n], marker="o", markersize=3.5)
            ends[label], colours[label] = (at[-1], values[-1]), colour
        for method in BEST:
            panel.axvspan(*BEST[method], color=METHODS[method].colour, alpha=0.06)
        panel.set_xlabel("θ")
        panel.set_ylabel({"distance": "Fréchet distance"}.get(name, name))
        panel.set_title(f"{model}, by evaluations", fontsize=10)
        direct_labels(panel, ends, colours)
    good = sum(claim.verdict == "agrees" for claim in claims if "as good as any" in claim.paper)
    whole = sum("as good as any" in claim.paper for claim in claims)
    title = f"The paper's ranges of θ (shaded) hold a best one in {good} of {whole} cases; ± standard error"
    headline(figure, title, len(wanted))
    return figure
