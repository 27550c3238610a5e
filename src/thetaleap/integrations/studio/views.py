"""What tabs with more than samples show, as HTML."""

from __future__ import annotations

from html import escape

from ...evaluation.compare import Comparison
from ...evaluation.report import draw, verdicts
from . import paint, race, ranking, truth


def lanes(standing: race.Standing, evaluations: int) -> str:
    """Racers side by side, each as it was when it had spent so many evaluations, with its quality below."""
    made = []
    for name, film in standing.lanes.items():
        step = film.after(evaluations)
        spent = int(film.moments[step].nfe.max())
        told = "".join(f"<li>{escape(text)}</li>" for text in race.quality(standing, name))
        shown = paint.samples(film, step)
        made.append(f"<section><h3>{escape(name)}, {spent} evaluations</h3>{shown}<ul>{told}</ul></section>")
    return f'<div class="tl-lanes">{"".join(made)}</div>'


def laws(settings: truth.Truth, found: truth.Laws) -> str:
    """The truth and laws as bars; KL and total variation as curves, and as numbers."""
    labels = [truth.label_of(one) for one in settings.sequences]
    every = {"truth": found.truth, **found.laws}
    parts = [paint.bars(labels, {name: law.flatten().tolist() for name, law in every.items()}, truth.COLOURS)]
    if found.curves:
        parts.append(paint.figure(truth.draw(found), "KL and total variation against evaluations"))
        header = ["solver", "evaluations", "KL, nats", "total variation"]
        rows = [
            [row.contender, str(row.budget or "any"), *(f"{row.figures[key].value:.3g}" for key in ("kl", "tv"))]
            for row in found.curves
            if not row.reason
        ]
        parts.append(paint.table(header, rows, "distance from the truth"))
        without = {f"{row.contender} at {row.budget}: {row.reason}": None for row in found.curves if row.reason}
        parts += [f"<p>{escape(text)}</p>" for text in without]
    return "".join(parts)


def ranked(comparison: Comparison) -> str:
    """Who is best, the ranking, and its figure."""
    parts = [f"<p><strong>{escape(text)}</strong></p>" for text in verdicts(comparison)]
    parts += [paint.table(*ranking.table(comparison), "ranking")]
    parts += [paint.figure(draw(comparison), "the ranking as a figure")]
    return "".join([*parts, *(f"<p>{escape(text)}</p>" for text in ranking.notes(comparison))])
