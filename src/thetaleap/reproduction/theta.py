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
from ..evaluation.figures import panels
from ..evaluation.judges.causal import Critic
from ..evaluation.metrics.digits import digit_distance
from ..evaluation.metrics.sequences import Measured
from ..models.network import Network
from ..sampling import DELTA, sample
from .methods import METHODS, MINE, RK, pick
from .pages import Job, experiment, model_of, publish
from .rules import Claim, Report
from .rules import judge as judged
from .study import Study, row
from .text import critic_of, figures_of, texts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("shakespeare-char", "mnist")
THETAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
BUDGETS = {"bits": (16, 32), "distance": (8, 16)}
NUMS = {"bits": 32, "distance": 120}
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
    model: Denoiser
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

    By default both models, 32 texts and 120 images of each row, with 16 and 32 evaluations of text, 8 and 16 of images.
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
    rows = []
    manner = {"seed": job.seed, "batch_size": batch_size, "delta": DELTA, "progress": False}
    with job.bar("evaluations", len(cases) * sum(one.num * sum(one.budgets) for one in subjects)) as advance:
        for one in subjects:
            for (method, theta), nfe in product(cases, one.budgets):
                solver = pick(method, theta=theta)[method]
                drawn = sample(one.model, solver, nfe=nfe, num=one.num, **manner)
                told = {"model": one.name, "solver": repr(solver), "theta": theta, "nfe": nfe}
                rows.append(row(method, drawn.nfe.tolist(), **told, **one.measure(drawn.x)))
                advance(one.num * nfe)
    study, figures = Study.of("theta", rows), {s.name: s.figure for s in subjects}
    told = {s.name: {"figure": s.figure, "by": s.by, "num": s.num, "budgets": s.budgets} for s in subjects}
    settings = {"thetas": order, "models": told}
    return publish(job, "theta", study, settings, claims_of(study, figures), draw(study, figures), columns=COLUMNS)


def subject_of(
    network: Network, name: str, num: int | None, judge: str | Critic | None, budgets: Sequence[int] | None, device: str
) -> Subject:
    """What to measure of a model: those whose positions lie in the plane are of images."""
    image = network.shape is not None and len(network.shape) == 2
    figure = "distance" if image else "bits"
    num = NUMS[figure] if num is None else num
    require_count("num", num, least=LEAST[figure])
    wanted = sorted(set(BUDGETS[figure] if budgets is None else budgets))
    require(len(wanted) > 0, "budgets", wanted, "give at least one")
    if image:
        labels = None if network.classes is None else torch.arange(num) % network.classes
        told = network if labels is None else guided(network, 0.0, labels)
        return Subject(name, figure, "a classifier of digits", told, _distance, num, wanted)
    critic = critic_of(name, judge, device)
    measure = lambda x: figures_of(critic, texts_of(network, x))  # noqa: E731
    return Subject(name, figure, critic.name, network, measure, num, wanted)


def _distance(x: torch.Tensor) -> dict[str, Any]:
    found = digit_distance(x)
    return {"distance": Measured(found.value, found.error), "bias": found.bias}


def claims_of(study: Study, figures: dict[str, str]) -> list[Claim]:
    """The paper's claims on theta, for each model."""
    made = []
    for model, figure in figures.items():
        kind, only = ("images", "") if figure == "distance" else ("text", " (the paper has this on images)")
        made += judged(Study(study.where(model=model)), "theta", (), f"{model}: ", figure=figure, kind=kind, only=only)
    return made


def draw(study: Study, figures: dict[str, str]) -> Figure:
    """Each figure of each model against theta; the paper's ranges shaded."""
    wanted = [(m, name) for m, f in figures.items() for name in (("perplexity", "entropy") if f == "bits" else (f,))]
    figure, [axes] = panels(5.5 * len(wanted), 5.2, 1, len(wanted))
    for panel, (model, name) in zip(axes, wanted, strict=True):
        own = study.where(model=model)
        for method, line in product(BEST, enumerate(sorted({one["nfe"] for one in own}))):
            some = [one for one in own if (one["method"], one["nfe"]) == (method, line[1])]
            values, errors = ([one[key] for one in some] for key in (name, f"{name}_se"))
            style: dict[str, Any] = {"color": METHODS[method].colour, "linestyle": ("-", "--", ":", "-.")[line[0] % 4]}
            style |= {"marker": "o", "markersize": 4, "capsize": 2, "label": f"{method}, {line[1]} evaluations"}
            panel.errorbar([one["theta"] for one in some], values, errors, **style)
        for method in BEST if name != "entropy" else ():
            panel.axvspan(*BEST[method], color=METHODS[method].colour, alpha=0.08)
        panel.set_xlabel("θ")
        panel.set_ylabel({"entropy": "entropy, bits", "distance": "Fréchet distance"}.get(name, name))
        panel.set_title(model, fontsize=10)
        panel.legend(fontsize=7, frameon=False, handlelength=4)
    figure.suptitle("Quality against θ, ± standard error; shaded: where the paper has the best", fontsize=11)
    return figure
