"""Quality against theta, for both two-stage methods: the paper's figures on text and on images.

Text is judged by perplexity, with its entropy beside it; images of digits by the Fréchet distance on the features of a
classifier, which is not FID. All else is as in the paper but for guidance, which is not used: equal steps down to 1e-3,
and at most one event at a position in a step (rule "reject"). What the library advises at the same budgets has no theta.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from ..core.checks import require, require_count, require_number
from ..evaluation.figures import direct_labels, headline, panels
from ..evaluation.judges.causal import Critic
from ..models.network import Network
from ..sampling import DELTA
from .images import labelled
from .looks import Cell, draw_by, fingerprint, until_decided
from .methods import AUTO, METHODS, MINE, RK, budgets_of, pick, two_stage_budget
from .pages import Job, experiment, publish
from .rules import Claim, Report
from .rules import judge as judged
from .study import Row, Study, row
from .subjects import Subject, subjects_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THETAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
RATIOS = (1 / 16, 1 / 8)
"""Evaluations per position."""
NUMS = {"bits": 32, "distance": 64}
MATTERS = {"bits": 0.02, "distance": 0.15}
"""The share of a figure by which methods must differ for it to matter; of the judge's 2.5 bits per token, 0.05."""
LEAST = {"bits": 2, "distance": 40}
"""Fewer samples have no standard error."""
BEST = {RK: (0.15, 0.4), MINE: (0.3, 0.5)}
"""Where the paper has the best theta: for theta-RK-2 on images, for theta-Trapezoidal on text and images."""
COLUMNS = {name: (name, 1.0, 1) for name in ("perplexity", "entropy", "distance", "bias")}


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
    subjects = subjects_of(model, judge, device, dtype)
    nums = {one.name: NUMS[one.figure] if job.num is None else job.num for one in subjects}
    for one in subjects:
        require_count("num", nums[one.name], least=LEAST[one.figure])
    wanted = {
        one.name: budgets_of(budgets, [two_stage_budget(ratio, one.network.length) for ratio in RATIOS])
        for one in subjects
    }
    weights = {one.name: fingerprint(labelled(one.network, 0.0, 0, 1)) for one in subjects}
    cases = [(method, theta) for method in BEST for theta in order if theta < 1 or method == RK] + [(AUTO, None)]
    rows, claims = [], []
    for one in subjects:

        def row_of(cell: Cell, num: int, one: Subject = one) -> Row:
            solver = pick(cell.method, theta=cell.theta or 0.5)[cell.method]
            key, manner = {"theta": weights[one.name]}, {"delta": DELTA, "batch_size": batch_size}
            drawn = draw_by(job, key, num, partial(labelled, one.network, 0.0), solver, cell.nfe, **manner)
            entries = {"model": one.name, "solver": repr(solver), "theta": cell.theta, "nfe": cell.nfe}
            return row(cell.method, drawn.nfe.tolist(), **entries, **one.measure(drawn.x))

        def judged_by(study: Study, one: Subject = one) -> list[Claim]:
            return claims_of(study, {one.name: one.figure})

        cells = [Cell(m, nfe, nums[one.name], nfe, theta) for (m, theta), nfe in product(cases, wanted[one.name])]
        beside = (*BEST, AUTO) if one.figure == "distance" else ()
        study, made = until_decided(job, "theta", cells, row_of, judged_by, beside)
        rows += study.rows
        claims += made
    study, figures = Study.of("theta", rows), {s.name: s.figure for s in subjects}
    told = {s.name: {"figure": s.figure, "by": s.by, "num": nums[s.name], "budgets": wanted[s.name]} for s in subjects}
    settings = {"thetas": order, "models": told, "weights": weights}
    return publish(job, "theta", study, settings, claims, drawing(study, figures, claims), columns=COLUMNS)


def claims_of(study: Study, figures: dict[str, str]) -> list[Claim]:
    """The paper's claims on theta, for each model."""
    made = []
    for model, figure in figures.items():
        kind, only = ("images", "") if figure == "distance" else ("text", " (the paper has this on images)")
        told = {"figure": figure, "kind": kind, "only": only, "share": MATTERS[figure]}
        made += judged(Study(study.where(model=model)), "theta", (), f"{model}: ", **told)
    return made


def drawing(study: Study, figures: dict[str, str], claims: Sequence[Claim]) -> Figure:
    """Quality of each model against theta, at the two smallest budgets; the paper's ranges shaded."""
    wanted = [(m, "perplexity" if f == "bits" else f) for m, f in figures.items()]
    figure, [axes] = panels(6.6 * len(wanted), 4.6, 1, len(wanted))
    for panel, (model, name) in zip(axes, wanted, strict=True):
        own, ends, colours = study.where(model=model), {}, {}
        for method, (n, nfe) in product(BEST, enumerate(sorted({one["nfe"] for one in own})[:2])):
            some = [one for one in own if (one["method"], one["nfe"]) == (method, nfe)]
            at, values, errors = ([one[key] for one in some] for key in ("theta", name, f"{name}_se"))
            colour, label = METHODS[method].colour, f"{method}, {nfe}"
            low, high = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
            panel.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)
            panel.plot(at, values, color=colour, linestyle=("-", "--")[n], marker="o", markersize=3.5)
            ends[label], colours[label] = (at[-1], values[-1]), colour
        for n, one in enumerate(sorted((one for one in own if one["method"] == AUTO), key=lambda one: one["nfe"])[:2]):
            colour, label, value = METHODS[AUTO].colour, f"{AUTO}, {one['nfe']}", one[name]
            panel.axhspan(value - one[f"{name}_se"], value + one[f"{name}_se"], color=colour, alpha=0.08, linewidth=0)
            panel.axhline(value, color=colour, linestyle=("-", "--")[n], linewidth=1)
            ends[label], colours[label] = (max(one["theta"] or 0 for one in own), value), colour
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
