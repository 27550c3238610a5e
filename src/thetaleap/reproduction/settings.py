"""What the habits of published code do to samples, one at a time: perplexity and entropy of text, distance of digits.

theta-Trapezoidal at 1/8 of an evaluation for each position, without any of the habits in `published`, with each of them
alone, and with all; images with guidance 3. What the library advises at that budget stands beside them. All rows draw
with the same seed, so that differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.checks import require
from ..core.evaluation import Denoiser
from ..core.wrapped import cost_of
from ..evaluation.figures import headline, listing, panels
from ..evaluation.judges.causal import Critic
from ..models.network import Network
from .images import GUIDANCE, labelled
from .looks import Cell, draw_by, fingerprint, until_decided
from .methods import AUTO, Led, pick, two_stage_budget
from .pages import Job, experiment, publish
from .published import QUIRKS, Published, ramp
from .rules import Report
from .study import UNUSUAL, Row, Study, difference, row
from .subjects import Subject, subjects_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIO = 1 / 8
NUM, FOLD = 64, 16
"""Samples of a row, and how many times as many with ``--full``."""
NONE, ALL = "none of them", "all of them"
ABOUT = {
    "drop": "positions with more than one event are dropped",
    "clamp": "negative rates become 0, and the total grows",
    "grid": "times end at 0.01",
    "argmax": "what is left becomes the likeliest value",
    "ramp": "guidance grows from 0 to w",
    "half": "rates in half precision",
}
FIGURES = {"bits": "bits per token", "entropy": "unigram entropy, bits", "distance": "Fréchet distance"}
KEPT = ("perplexity", *FIGURES)
COLUMNS = {
    **{name: (name, 1.0, 1) for name in ("perplexity", "entropy", "distance")},
    **{f"change in {label}": (f"change_{name}", 1.0, 3) for name, label in FIGURES.items()},
}


@experiment(least=40)
def run(
    job: Job,
    model: str | Network | None = None,
    judge: str | Critic | None = None,
    batch_size: int = 32,
    device: str = "cpu",
) -> Report:
    """Measure, and write ``legacy.md``, ``.png``, ``.csv`` and ``.json`` to the job's folder.

    By default on both models, 64 samples of each row, and with ``full`` 1024.
    """
    num = (job.num or NUM) * (FOLD if job.full else 1)
    subjects = subjects_of(model, judge, device)
    for one in subjects:
        masked = one.network.process.mask is not None
        require(masked, "model", one.name, "published code is for masked models; give one")
    weights = {one.name: fingerprint(led_by(one, Published())(0, 1)) for one in subjects}
    costs = {one.name: cost_of(led_by(one, Published())(0, 1)) for one in subjects}
    budgets = {one.name: costs[one.name] * two_stage_budget(RATIO, one.network.length) for one in subjects}
    rows: list[Row] = []
    for one in subjects:
        quirks = tuple(name for name in QUIRKS if name != "ramp" or one.network.classes is not None)
        cases = {NONE: (), **{name: (name,) for name in quirks}, ALL: quirks}
        solvers = {name: Published("trapezoidal", some) for name, some in cases.items()} | pick(AUTO)

        def row_of(cell: Cell, num: int, one: Subject = one, solvers: Any = solvers) -> Row:
            solver = solvers[cell.method]
            key, model = {"legacy": weights[one.name]}, led_by(one, solver)
            drawn = draw_by(job, key, num, model, solver, cell.nfe, batch_size=batch_size)
            entries = {"model": one.name, "solver": repr(solver), "nfe": cell.nfe, "about": ABOUT.get(cell.method)}
            figures = {name: value for name, value in one.measure(drawn.x).items() if name in KEPT}
            return row(cell.method, drawn.nfe.tolist(), **entries, **figures)

        cells = [Cell(name, budgets[one.name], num, budgets[one.name]) for name in solvers]
        study, _ = until_decided(job, "legacy", cells, row_of, lambda study: [])
        base = study.rows[0]
        for each in study.rows[1:]:
            gaps = {name: difference(name, each, base) for name in FIGURES if each.get(name) is not None}
            each.update({f"change_{name}": gap.value for name, gap in gaps.items()})
            each.update({f"change_{name}_se": gap.error for name, gap in gaps.items()})
        rows += study.rows
    study = Study.of("legacy", rows)
    settings = {"num": num, "models": budgets, "guidance": GUIDANCE, "theta": 0.5, "weights": weights}
    words = {"columns": COLUMNS, "effects": effects(study), "about": ABOUT}
    return publish(job, "legacy", study, settings, [], drawing(study), **words)


def led_by(one: Subject, solver: Led) -> Callable[[int, int], Denoiser]:
    """The model for some samples; of images with guidance, and so maybe a ramp of it."""
    ramps = isinstance(solver, Published) and "ramp" in solver.quirks
    return partial(labelled, one.network, ramp(GUIDANCE) if ramps else GUIDANCE)


def effects(study: Study) -> list[str]:
    """What each does that is more than three standard errors."""
    found = []
    for one in study.rows:
        for name, label in FIGURES.items():
            gap, error = one.get(f"change_{name}"), one.get(f"change_{name}_se")
            if gap is not None and error is not None and abs(gap) > UNUSUAL * error:
                found.append(f"{one['method']} changes {label} of {one['model']} by {gap:+.3g} ± {error:.2g}")
    return found


def drawing(study: Study) -> Figure:
    """The change of each figure by each habit and by our advice, with three standard errors to each side."""
    wanted = [name for name in FIGURES if study.column(f"change_{name}")]
    figure, [axes] = panels(5.2 * len(wanted), 3.8, 1, len(wanted))
    clear = set[str]()
    for panel, name in zip(axes, wanted, strict=True):
        own = [one for one in study.rows if one.get(f"change_{name}") is not None][::-1]
        gaps, errors = ([one[f"change_{name}{end}"] for one in own] for end in ("", "_se"))
        panel.axvline(0, color="0.35", linewidth=1)
        for n, (one, gap, error) in enumerate(zip(own, gaps, errors, strict=True)):
            sure = abs(gap) > UNUSUAL * error
            clear |= {one["method"]} if sure and one["method"] not in (ALL, AUTO) else set()
            colour = "#D55E00" if sure else "0.5"
            panel.errorbar([gap], [n], xerr=[UNUSUAL * error], fmt="o", color=colour, markersize=5, capsize=2)
        panel.set_yticks(range(len(own)), [one["method"] for one in own])
        panel.set_xlabel(f"change in {FIGURES[name]}")
        panel.locator_params(axis="x", nbins=5)
        panel.set_title(own[0]["model"], fontsize=10)
    told = f"{listing(sorted(clear))} matter{'s' if len(clear) == 1 else ''}" if clear else "none is seen to matter"
    headline(figure, f"Of the habits of published code {told} (± 3 standard errors)", len(wanted))
    return figure
