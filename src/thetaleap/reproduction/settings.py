"""What the habits of published code do to samples, one at a time: perplexity and entropy of text, distance of digits.

theta-Trapezoidal at 1/8 of an evaluation for each position, without any of the habits in `published`, with each of them
alone, and with all; images with guidance 3. All rows draw with the same seed, so that differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..conditioning.wrappers import guided
from ..core.checks import require
from ..core.evaluation import Denoiser
from ..evaluation.figures import headline, listing, panels
from ..evaluation.judges.causal import Critic
from ..models.network import Network
from .images import GUIDANCE, measure_of
from .looks import Cell, draw, fingerprint, until_decided
from .methods import drawn_by
from .pages import Job, experiment, model_of, publish
from .published import QUIRKS, Published, ramp
from .rules import Report
from .study import UNUSUAL, Row, Study, difference, row
from .text import critic_of, figures_of, texts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("shakespeare", "mnist")
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
COLUMNS = {
    "perplexity": ("perplexity", 1.0, 1),
    "entropy": ("entropy", 1.0, 1),
    "distance": ("distance", 1.0, 1),
    **{f"change in {label}": (f"change_{name}", 1.0, 3) for name, label in FIGURES.items()},
}


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and how it is measured."""

    name: str
    quirks: tuple[str, ...]
    nfe: int
    told: Callable[[Published, int, int], Denoiser]
    measure: Callable[[torch.Tensor], dict[str, Any]]


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
    found = [model_of(one, device=device) for one in (MODELS if model is None else [model])]
    subjects = [subject_of(network, name, num, judge, device) for network, name in found]
    rows: list[Row] = []
    for one in subjects:
        cases = {NONE: (), **{name: (name,) for name in one.quirks}, ALL: one.quirks}
        weights = fingerprint(one.told(Published(), 0, 1))

        def row_of(cell: Cell, num: int, one: Subject = one, cases: Any = cases, weights: str = weights) -> Row:
            solver = Published("trapezoidal", cases[cell.method])
            told = {"legacy": weights, "solver": repr(solver), "nfe": cell.nfe, "seed": job.seed}
            manner = {"seed": job.seed, "batch_size": batch_size, "progress": False}

            def make(first: int, count: int) -> Any:
                return drawn_by(one.told(solver, first, count), solver, cell.nfe, first=first, num=count, **manner)

            drawn = draw(job, told, num, make)
            entries = {"model": one.name, "solver": repr(solver), "nfe": cell.nfe, "about": ABOUT.get(cell.method)}
            return row(cell.method, drawn.nfe.tolist(), **entries, **one.measure(drawn.x))

        cells = [Cell(name, one.nfe, num, one.nfe) for name in cases]
        study, _ = until_decided(job, "legacy", cells, row_of, lambda study: [])
        base = study.rows[0]
        for each in study.rows[1:]:
            gaps = {name: difference(name, each, base) for name in FIGURES if each.get(name) is not None}
            each.update({f"change_{name}": gap.value for name, gap in gaps.items()})
            each.update({f"change_{name}_se": gap.error for name, gap in gaps.items()})
        rows += study.rows
    study = Study.of("legacy", rows)
    settings = {"num": num, "models": {one.name: one.nfe for one in subjects}, "guidance": GUIDANCE, "theta": 0.5}
    settings |= {"weights": {one.name: fingerprint(one.told(Published(), 0, 1)) for one in subjects}}
    words = {"columns": COLUMNS, "effects": effects(study), "about": ABOUT}
    return publish(job, "legacy", study, settings, [], drawing(study), **words)


def subject_of(network: Network, name: str, num: int, judge: str | Critic | None, device: str) -> Subject:
    """Images have guidance, and so a ramp of it."""
    require(network.process.mask is not None, "model", name, "published code is for masked models; give one")
    nfe = max(3, round(RATIO * network.length))
    classes = network.classes
    if classes is not None and network.shape is not None:
        measure = measure_of(network, num, None, None, device)

        def told(solver: Published, first: int, count: int) -> Denoiser:
            weight = ramp(GUIDANCE) if "ramp" in solver.quirks else GUIDANCE
            return guided(network, weight, torch.arange(first, first + count) % classes)

        def distance(x: torch.Tensor) -> dict[str, Any]:
            return {"distance": measure.figures(x, torch.arange(len(x)) % classes)["distance"]}

        return Subject(name, QUIRKS, 2 * nfe, told, distance)
    critic, quirks = critic_of(name, judge, device), tuple(one for one in QUIRKS if one != "ramp")

    def quality(x: torch.Tensor) -> dict[str, Any]:
        made = figures_of(critic, texts_of(network, x))
        return {key: made[key] for key in ("perplexity", "bits", "entropy")}

    return Subject(name, quirks, nfe, lambda solver, first, count: network, quality)


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
    """The change of each figure by each habit, with three standard errors to each side."""
    wanted = [name for name in FIGURES if study.column(f"change_{name}")]
    figure, [axes] = panels(5.2 * len(wanted), 3.8, 1, len(wanted))
    clear = set[str]()
    for panel, name in zip(axes, wanted, strict=True):
        own = [one for one in study.rows if one.get(f"change_{name}") is not None][::-1]
        gaps, errors = ([one[f"change_{name}{end}"] for one in own] for end in ("", "_se"))
        panel.axvline(0, color="0.35", linewidth=1)
        for n, (one, gap, error) in enumerate(zip(own, gaps, errors, strict=True)):
            sure = abs(gap) > UNUSUAL * error
            clear |= {one["method"]} if sure and one["method"] != ALL else set()
            colour = "#D55E00" if sure else "0.5"
            panel.errorbar([gap], [n], xerr=[UNUSUAL * error], fmt="o", color=colour, markersize=5, capsize=2)
        panel.set_yticks(range(len(own)), [one["method"] for one in own])
        panel.set_xlabel(f"change in {FIGURES[name]}")
        panel.set_title(own[0]["model"], fontsize=10)
    told = f"{listing(sorted(clear))} matter{'s' if len(clear) == 1 else ''}" if clear else "none is seen to matter"
    headline(figure, f"Of the habits of published code {told} (± 3 standard errors)", len(wanted))
    return figure
