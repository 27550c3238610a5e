"""Watch: samples as a solver writes them, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ...core.checks import require
from ...core.evaluation import Denoiser, as_model
from ...core.fields import knob
from ...core.free import FREE, as_template
from ...core.reverse import Reverse
from ...evaluation.choice import AUTO, parse
from ...evaluation.contenders import EXACT
from ...files import require_pictures
from ...sampling import Moment
from .allowed import Allowed, loaded
from .calls import Call, program
from .settings import check
from .work import Report

WHEN, SURE = "when", "sure"
MOST_EVALUATIONS, MOST_SAMPLES = 512, 10
SHOW = r'print(*samples.text if samples.source.tokenizer else samples.x, sep="\n")'


@dataclass(frozen=True)
class Watch:
    """What to watch."""

    model: str = knob("shakespeare", "The model to sample from.")
    solver: str = knob("auto", "By name, or as in Python: Multistep(planner=LowDiscrepancy()).")
    nfe: int = knob(32, "Per sample, at most.", least=1)
    num: int = knob(1, "How many to draw.", least=1)
    seed: int = knob(0, "Same seed, same samples.")
    template: str = knob(
        "", "Given text, with an underscore for each token to fill in; token numbers for models without text."
    )
    forbid: str = knob("", "Text whose tokens must not be written.")
    labels: str = knob("", "Classes, for class-conditional models: 3, or 0,1,2 in turn.")
    guidance: float = knob(0.0, "Strength of guidance towards the labels.", low=0, closed="low")
    temperature: float = knob(1.0, "Divides the logits; 0 takes the most likely token.", low=0, closed="low")
    colour: str = knob(WHEN, "What the colour of a token shows.", choices=(WHEN, SURE))

    def __post_init__(self) -> None:
        check(self, nfe=MOST_EVALUATIONS, num=MOST_SAMPLES)


@dataclass(frozen=True)
class Plan:
    """The calls that draw the samples: the model, what is made of it, and `sample`."""

    load: Call
    shape: tuple[Call, ...]
    sample: Call


@dataclass(frozen=True, eq=False)
class Film:
    """A run, moment by moment."""

    model: Denoiser
    """As it was sampled from."""
    moments: tuple[Moment, ...]
    given: Bool[Tensor, " d"]
    """Positions that were given."""
    sure: Float64[Tensor, "steps num d"] | None = None
    """How sure the model was, if that was asked for: see `sureness`."""

    @property
    def x(self) -> Int64[Tensor, "steps num d"]:
        return torch.stack([moment.x for moment in self.moments])

    def when(self, step: int) -> Int64[Tensor, "num d"]:
        """The step in which each position got the token that it has after `step`."""
        x = self.x[: step + 1]
        changed = torch.zeros_like(x)
        changed[1:] = (x[1:] != x[:-1]) * torch.arange(1, len(x)).view(-1, 1, 1)
        return changed.amax(0)

    def after(self, evaluations: int) -> int:
        """The last step before which no sample had spent more."""
        spent = [int(moment.nfe.max()) for moment in self.moments]
        return max(n for n, count in enumerate(spent) if count <= evaluations)


def plan(settings: Watch, allowed: Allowed) -> Plan:
    """The calls that these settings stand for."""
    shape: list[Call] = []
    if settings.labels:
        parts = [part.strip() for part in settings.labels.split(",")]
        remedy = "give whole numbers with commas between, as in 3 or 0,1,2"
        require(all(part.isdecimal() for part in parts), "labels", settings.labels, remedy)
        every = [int(parts[n % len(parts)]) for n in range(settings.num)]
        shape.append(Call.of("guided", settings.guidance, every))
    require(
        bool(settings.labels) or settings.guidance == 0,
        "guidance",
        settings.guidance,
        "needs labels; give some, or leave it at 0",
    )
    if settings.forbid:
        shape.append(Call.of("constrained", forbid=settings.forbid))
    if settings.temperature != 1:
        shape.append(Call.of("tempered", settings.temperature))
    how: dict[str, Any] = {"nfe": settings.nfe}
    solver: tuple[Any, ...] = ()
    if settings.solver == EXACT:
        how = {"exact": True}
    elif settings.solver != AUTO:
        solver = (parse(settings.solver),)
        how = {} if solver[0].evaluations is None else how
    how |= {"template": settings.template} if settings.template else {}
    how |= {"num": settings.num, "batch_size": settings.num} if settings.num > 1 else {}
    return Plan(allowed.load(settings.model), tuple(shape), Call.of("sample", *solver, **how, seed=settings.seed))


def code(settings: Watch, allowed: Allowed) -> str:
    """The Python that draws the same samples, and keeps every moment of the run."""
    calls = plan(settings, allowed)
    lines = [f"model = {calls.load.text()}", *(f"model = {call.text('model')}" for call in calls.shape)]
    lines += ["steps = []", f"samples = {calls.sample.text('model', on_step='steps.append')}"]
    if settings.colour == SURE:
        lines += ["sure = sureness(model, steps)"]
    return program(*lines, SHOW)


def run(settings: Watch, allowed: Allowed, report: Report) -> Film:
    """Draw the samples; `report` gets a film of what there is after every step, or a share of the work and a note."""
    calls = plan(settings, allowed)
    report((0.0, f"loading {settings.model}"))
    model = loaded(calls.load)
    takes = not settings.labels or getattr(model, "classes", None) is not None
    require(takes, "labels", settings.labels, "this model has no classes; leave it empty")
    for call in calls.shape:
        model = call(model)
    free = torch.full((model.length,), FREE)
    given = (as_template(model, settings.template) if settings.template else free) != FREE
    report((0.0, f"first step of {settings.model}"))
    shown = filmed(model, given, partial(calls.sample, model, progress=False), report)
    return with_sureness(shown, report) if settings.colour == SURE else shown


def filmed(model: Denoiser, given: Bool[Tensor, " d"], draw: Callable[..., Any], report: Report) -> Film:
    """The film of ``draw(on_step=...)``, which samples; `report` gets what there is of it after every step."""
    moments: list[Moment] = []

    def on_step(moment: Moment) -> None:
        moments.append(moment)
        report(Film(model, tuple(moments), given))

    draw(on_step=on_step)
    return Film(model, tuple(moments), given)


def with_sureness(shown: Film, report: Report) -> Film:
    """The same film, in which it is known how sure the model was."""
    last = len(shown.moments)
    sure = sureness(shown.model, shown.moments, lambda n: report((n / last, f"how sure the model was at step {n}")))
    return replace(shown, sure=sure)


def sureness(
    model: Denoiser | str, steps: Sequence[Moment], report: Callable[[int], None] = lambda step: None
) -> Float64[Tensor, "steps num d"]:
    """How sure `model` was of each token as it was written: entry ``[k, i, p]`` is the probability that the model gave to
    the token that position p of sample i got in step k, by all other tokens before that step. NaN where none was written.

    Args:
        model: what was sampled from, as it was given to `sample`.
        steps: the moments that `on_step` of `sample` was called with, of one batch.
        report: called with the number of each step before its evaluation.
    """
    model = as_model(model)
    result = torch.full((len(steps), *steps[0].x.shape), torch.nan, dtype=torch.float64)
    reverse = Reverse.begin(model, len(steps[0].x), first=steps[0].first)
    with torch.no_grad():
        for n, (before, after) in enumerate(pairwise(steps), 1):
            wrote = (after.x != before.x) & (after.x != model.process.mask)
            positions = torch.nonzero(wrote.flatten()).flatten()
            if not len(positions):
                continue
            report(n)
            rows = reverse.evaluate(before.x, before.t).probabilities(positions)
            tokens = after.x.flatten()[positions]
            result[n].view(-1)[positions.cpu()] = rows.gather(1, tokens.unsqueeze(1)).squeeze(1).cpu()
    return result


def has_pictures(model: Any) -> bool:
    """Whether samples are pictures."""
    try:
        require_pictures(model)
    except ValueError:
        return False
    return True


def status(shown: Film, step: int, budget: int) -> str:
    """How far the run is after `step`."""
    moment, mask = shown.moments[step], shown.model.process.mask
    spent = int(moment.nfe.max())
    parts = [f"step {step}", f"{spent} of at most {max(spent, budget)} evaluations"]
    if mask is not None:
        free = int((~shown.given).sum()) * len(moment.x)
        parts.append(f"{free - int((moment.x == mask).sum())} of {free} free positions written")
    return ", ".join(parts)
