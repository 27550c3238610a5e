"""Claims of the paper, and the rules that judge them. The claims themselves are in ``claims.toml``.

A rule turns the table into evidence: intervals, each with the range in which it should lie if the claim holds. The
verdict follows from these alone.

- "differs": some interval lies outside its range.
- "agrees": none does, and every group of evidence has an interval inside.
- "level": neither, and what is left of the difference is surely too small to matter, by a bound fixed beforehand.
- "undecided": none of these; more samples may tell.
- "needs weights": the claim is about a published model, whose weights do not come with the package.

Intervals are three standard errors to each side. So a claim that is true is said to differ with a probability of at most
0.135% for each row that it compares in one direction, 0.27% in both. That is where errors are known well. They are
estimated, and by Student's law it is 0.27% and 0.53% for rows of 32 samples, 0.45% and 0.9% for 16, the fewest of
`text`, and 1.0% and 2.0% for the eight groups of `positivity`. `looks` says what becomes of that where a claim is judged
several times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ..evaluation.figures import listing
from ..evaluation.metrics.measured import Measured
from .paper import data
from .study import UNUSUAL, Row, Study, between, contrast, difference, shown, with_error

Verdict = Literal["agrees", "differs", "level", "undecided", "needs weights"]
LABELS = {
    "bits": "bits per token",
    "kl_exact": "exact KL",
    "tv_exact": "exact total variation",
    "accuracy": "right answers, %",
}
"""What figures are called, where it is not their name."""
UNITS = {"bits": " bits per token", "entropy": " bits", "positive": "%", "accuracy": " points"}
"""Of differences."""
SCALES = {"accuracy": 100.0}
"""What figures are multiplied by, where they are shown."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
NUMBERS = ("beyond", "upto", "share")
"""Entries of claims that an experiment may fill in."""


@dataclass(frozen=True)
class Evidence:
    """An interval, and where it lies if the claim holds: from `least` to below `most`."""

    about: str
    at: str
    value: float
    low: float
    high: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def inside(self) -> bool:
        return self.least <= self.low and self.high < self.most

    @property
    def outside(self) -> bool:
        return self.high < self.least or self.low >= self.most

    @property
    def sign(self) -> str:
        """Of a difference."""
        return "below" if self.high < 0 else "above" if self.low > 0 else "indistinguishable from"


@dataclass(frozen=True)
class Claim:
    """What the paper says, and what was found."""

    paper: str
    """In our words, with its own figures."""
    verdict: Verdict
    """Follows from numbers, never written down beforehand."""
    found: str
    """The figures behind the verdict, or what it would take to have them."""
    evidence: tuple[Evidence, ...] = ()
    number: str = ""
    """The one number to read beside the verdict."""
    methods: tuple[str, ...] = ()
    """Whose rows are compared."""
    budgets: tuple[int, ...] = ()
    """At which they are; none for all."""
    samples: int | None = None
    """Of the smallest row, when the verdict fell."""
    short: str = ""
    """What the paper says, in a few words."""
    command: str = ""
    """What decides it, where that takes published weights."""
    evaluations: float | None = None
    """Of the network, that the command takes at most."""
    flops: float | None = None
    """Of one of them."""


@dataclass(frozen=True)
class Report:
    """The outcome of an experiment: what it shows, in words, the files it wrote, and what of the paper it bears on."""

    text: str
    files: list[Path]
    claims: list[Claim] = field(default_factory=list)


def judge(study: Study, name: str, known: Collection[str] = (), where: str = "", **told: Any) -> list[Claim]:
    """The paper's claims on an experiment. `known` is what it has of what claims need; `where` is said before what was
    found, and `told` fills in words."""
    made = []
    for entry in data("claims")[name]:
        words: dict[str, Any] = {
            key: value.format(**told) if isinstance(value, str) else value for key, value in entry.items()
        }
        words |= {key: float(words[key]) for key in NUMBERS if key in words}
        paper, needs, otherwise = words.pop("paper"), words.pop("needs", None), words.pop("otherwise", "")
        short = words.pop("short", paper)
        effort = {key: words.pop(key) for key in ("command", "evaluations", "flops") if key in words}
        if needs is not None and needs not in known:
            made.append(Claim(paper, "needs weights", otherwise, short=short, **effort))
            continue
        rule = words.pop("rule", None)
        if rule is None:  # with the weights the figures stand in the table, beside the paper's
            continue
        claim = RULES[rule](study, **words)
        own = [one for one in study.rows if one["method"] in claim.methods and one["num"]]
        counts = [one["num"] for one in own if not claim.budgets or one["nfe"] in (None, *claim.budgets)]
        found = f"{where if claim.evidence else ''}{claim.found}"
        made.append(replace(claim, paper=paper, short=short, found=found, samples=min(counts, default=None)))
    return made


def decide(
    evidence: Sequence[Evidence],
    found: str,
    pooled: Sequence[Evidence] = (),
    *,
    guards: Sequence[Evidence] = (),
    level: Sequence[Evidence] = (),
    **more: Any,
) -> Claim:
    """The verdict: see the module. `pooled` intervals inside their ranges stand for all groups, `guards` can contradict
    alone, and `level` ones say what does not matter."""
    everything = (*evidence, *pooled, *guards)
    groups = {one.about: any(each.inside for each in evidence if each.about == one.about) for one in evidence}
    if any(one.outside for one in everything):
        return Claim("", "differs", found, everything, **more)
    if (groups and all(groups.values())) or (pooled and all(one.inside for one in pooled)):
        return Claim("", "agrees", found, everything, **more)
    if level and all(one.inside for one in level):
        return Claim("", "level", found, tuple(level), **more)
    return Claim("", "undecided", f"{found}; more samples may tell", everything, **more)


# --- rules: each gives a claim without the paper's words

Some = str | Mapping[str, Any]
"""A method; or ``{method, low, high, label}``: its rows with theta in a range, the best of which counts."""


def below(
    study: Study,
    figure: str,
    mine: Some,
    others: Sequence[Some],
    *,
    by: str = "nfe",
    beyond: float = 0,
    upto: float = math.inf,
    last: bool = False,
    pool: bool = False,
    margin: float | None = None,
    matters: float | None = None,
    share: float | None = None,
    closed: bool = False,
    higher: bool = False,
    similar: bool = False,
    missing: str = "no budget of this run has room for both; give more",
) -> Claim:
    """Whether the figure of `mine` is below that of each of `others`: seen at some budget, contradicted at none.

    Args:
        study: the table.
        figure: its name.
        mine: whose it is.
        others: what to compare it with.
        by: "nfe" or "steps": what is equal in a comparison.
        beyond: only budgets above this count, up to `upto`; with `last` the largest of them alone.
        upto: see there.
        last: see there.
        pool: decide over all budgets together where single ones do not.
        margin: by how much it is below in the paper. It differs, if surely less than half of that over all budgets.
        matters: a difference that does not; the claim is "level", if over all budgets it is surely smaller.
        share: the same, as a share of the figure of `others`.
        closed: the claim is that it is not above by what matters; how far it is below does not count.
        higher: above, instead of below.
        similar: the claim is that the two are level.
        missing: what to say where there is nothing to compare.
    """
    methods = tuple(dict.fromkeys(one if isinstance(one, str) else one["method"] for one in (mine, *others)))
    places = [place for place in sorted(study.column(by)) if beyond < place <= upto]
    pairs: list[tuple[int, Row, dict[str, Row]]] = []
    for place in places[-1:] if last else places:
        one = _best(study, figure, mine, by, place)
        against = {_name(other): _best(study, figure, other, by, place) for other in others}
        found = {name: other for name, other in against.items() if other is not None}
        if one is not None and found:
            pairs.append((place, one, found))
    if not pairs:
        return Claim("", "undecided", missing, methods=methods)
    ends = (math.inf, 0.0) if higher else (0.0, -math.inf)
    evidence = [
        _gap(name, str(place), difference(figure, one, other), *ends)
        for place, one, found in pairs
        for name, other in found.items()
    ]
    mean = contrast(
        figure, [(c / len(pairs), one) for _, one, found in pairs for c, one in between(one, *found.values())]
    )
    whole = "over all budgets" if len(pairs) > 1 else "the difference is"
    number = _difference(figure, mean)
    level = _level(figure, pairs, matters, share)
    place, one, found = pairs[-1]
    beside = "; ".join(dict.fromkeys(_figure(each, figure) for each in (one, *found.values())))
    scale = SCALES.get(figure, 1.0)
    text = f"{_name(mine)} is {_told(evidence)} in {LABELS.get(figure, figure)} (at {place}: {beside})"
    text += f"; {whole} {number}" if pool or margin is not None or level else ""
    text += "" if margin is None else f", where the paper has {scale * (margin if higher else -margin):+.3g}"
    text += f"; what is below {scale * level[0].most:.2g} does not matter" if level else ""
    told: dict[str, Any] = {"methods": methods}
    told |= {"budgets": tuple(place for place, _, _ in pairs)} if by == "nfe" else {}
    if similar or closed:
        level = [replace(e, least=-math.inf if closed else e.least) for e in level]
        guards = [replace(e, least=level[0].least, most=level[0].most) for e in evidence if level]
        return decide([], text, level, guards=guards, number=_decisive(guards, mean, number), **told)
    edge = 0.0 if margin is None else margin / 2
    pooled = [_gap("all", "all budgets", mean, *((math.inf, edge) if higher else (-edge, -math.inf)))]
    told |= {"number": _decisive(evidence, mean, number), "level": level}
    return decide(evidence, text, pooled if pool or margin is not None else (), **told)


def _difference(figure: str, gap: Measured) -> str:
    scale = SCALES.get(figure, 1.0)
    told = with_error(scale * gap.value, scale * gap.error, "+") if gap.error else f"{scale * gap.value:+.2g}"
    return f"{told}{UNITS.get(figure, '')}"


def _decisive(evidence: Sequence[Evidence], mean: Measured, number: str) -> str:
    """The mean difference; before it where the claim is contradicted, if the mean alone does not contradict it."""
    wrong = [one for one in evidence if one.outside]
    if not wrong or _gap("all", "", mean, wrong[0].most, wrong[0].least).outside:
        return number
    return f"{_told(wrong)}; over all {number}"


def _level(
    figure: str, pairs: Sequence[tuple[int, Row, dict[str, Row]]], matters: float | None, share: float | None
) -> list[Evidence]:
    """For each of those that are compared with, the difference over all budgets, and what does not matter."""
    made = []
    for name in dict.fromkeys(name for _, _, found in pairs for name in found):
        own = [(one, found[name]) for _, one, found in pairs if name in found]
        mean = contrast(figure, [(c / len(own), one) for pair in own for c, one in between(*pair)])
        size = sum(abs(other[figure]) for _, other in own) / len(own)
        room = matters if share is None else share * size
        made += [] if room is None else [_gap(name, "all budgets", mean, room, -room)]
    return made


def _name(some: Some) -> str:
    return some if isinstance(some, str) else some.get("label", some["method"])


def _best(study: Study, figure: str, some: Some, by: str, place: int) -> Row | None:
    """The row with the lowest figure at a budget; without a budget or a theta, rows are for all."""
    told = {"method": some} if isinstance(some, str) else some
    low, high = told.get("low", -math.inf), told.get("high", math.inf)
    own = [one for one in study.where(method=told["method"]) if one[by] in (place, None)]
    own = [one for one in own if one["theta"] is None or low <= one["theta"] <= high]
    return min(own, key=lambda one: one[figure], default=None)


def _gap(about: str, at: str, gap: Measured, most: float = 0.0, least: float = -math.inf) -> Evidence:
    half = UNUSUAL * gap.error
    return Evidence(about, at, gap.value, gap.value - half, gap.value + half, least, most)


def _told(evidence: Sequence[Evidence]) -> str:
    """Where a difference is below, above or neither."""
    parts = []
    for sign in ("below", "indistinguishable from", "above"):
        places = {one.about: [e.at for e in evidence if e.about == one.about and e.sign == sign] for one in evidence}
        named = [f"{name} at {listing(at)}" for name, at in places.items() if at]
        parts += [f"{sign} {listing(named)}"] if named else []
    return listing(parts)


def _figure(one: Row, figure: str) -> str:
    """A method's figure, with its entropy where it has one."""
    name = one["method"] + ("" if one["theta"] is None else f" ({one['theta']:g})")
    value = shown(one, figure, SCALES.get(figure, 1.0))
    return f"{name} {value}" + ("" if one.get("entropy") is None else f", entropy {one['entropy']:.2f}")


def same(study: Study, figure: str, mine: str, others: Sequence[str], **how: Any) -> Claim:
    """Whether a method is level with `others`: over all budgets by less than what matters, and at none by more."""
    return below(study, figure, mine, others, similar=True, **how)


def rises(study: Study, figure: str, method: str) -> Claim:
    """Whether a figure rises from the smallest budget to the largest."""
    own = sorted(study.where(method=method), key=lambda one: one["nfe"])
    gap = difference(figure, own[-1], own[0])
    found = listing([f"{shown(one, figure)} at {one['nfe']}" for one in (own[0], own[-1])])
    number = _difference(figure, gap)
    evidence = [_gap(method, "", gap, most=math.inf, least=0.0)] if gap.value else []
    return decide(evidence, found, number=number, methods=(method,))


def at_least(
    study: Study, figure: str, method: str, bound: float, holds: bool = True, remark: str = "", beyond: float = 0
) -> Claim:
    """Whether a figure is `bound` or more at every budget above `beyond`; with ``holds=False`` the paper says that it is
    not."""
    own = [one for one in study.where(method=method) if one["nfe"] > beyond]
    if not own:
        return Claim("", "undecided", "no budget of this run is as large; give more", methods=(method,))
    one = min(own, key=lambda one: one[figure])
    ends = (math.inf, bound) if holds else (bound, -math.inf)
    evidence = [_gap(method, "", Measured(one[figure], one[f"{figure}_se"]), *ends)]
    number = f"{shown(one, figure)}{UNITS.get(figure, '')} at {one['nfe']}"
    found = f"the least is {shown(one, figure)} at {one['nfe']}{remark}"
    return decide(evidence, found, number=number, methods=(method,))


def published(study: Study, figure: str, column: str, near: float | str, methods: Sequence[str] | None = None) -> Claim:
    """Whether figures are the paper's own: within a share `near` of them, or within what a column says. Of `methods`, or
    of all that are the paper's."""
    wanted = [one for one in study.rows if one.get(column) is not None]
    own = [one for one in wanted if (one["kind"] == "paper" if methods is None else one["method"] in methods)]
    if not own:
        return Claim("", "undecided", "the paper has no figures for the budgets of this run")
    evidence = []
    for one in own:
        told, room = one[column], one[near] if isinstance(near, str) else near * one[column]
        value = Measured(one[figure], one[f"{figure}_se"])
        evidence.append(_gap(f"{one['method']} at {one['nfe']}", "", value, told + room, told - room))
    ratios = [one[figure] / one[column] for one in own]
    span, names = f"{min(ratios):.2f} to {max(ratios):.2f}", tuple(dict.fromkeys(one["method"] for one in own))
    found = f"ours are {span} times the paper's, over {len(own)} rows"
    return decide(evidence, found, number=f"{span} times", methods=names)


def slope(
    study: Study,
    figure: str,
    methods: Sequence[str],
    least: float = -math.inf,
    most: float = math.inf,
    less: str | None = None,
) -> Claim:
    """Whether slopes lie between two bounds; with `less`, after that method's slope is taken off."""
    known = study.slopes[figure]
    values = {name: known[name] - (0.0 if less is None else known[less]) for name in methods}
    evidence = [_gap(name, "", Measured(value, 0.0), most, least) for name, value in values.items()]
    names = (*methods, *([] if less is None else [less]))
    told = [f"{name} {known[name]:.2f}" for name in names]
    number = f"slope{'s' if len(told) > 1 else ''} {listing([f'{known[name]:.2f}' for name in names])}"
    found = f"slopes of the {LABELS.get(figure, figure)} against steps: {listing(told)}"
    return decide(evidence, found, number=number, methods=tuple(names))


RULES: dict[str, Callable[..., Claim]] = {
    rule.__name__: rule for rule in (below, same, rises, at_least, published, slope)
}
