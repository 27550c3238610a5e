"""Claims of the paper, and the rules that judge them. The claims themselves are in ``claims.toml``.

A rule turns the table into evidence: intervals, each with the range in which it should lie if the claim holds. The
verdict follows from these alone. "differs": some interval lies outside its range. "agrees": none does, and every group
of evidence has an interval inside. Otherwise it cannot be checked here.

Intervals are three standard errors to each side. So a claim that is true is said to differ with a probability of at most
0.27% for each row that it compares; 1.2%, where the errors themselves are estimated from as few as 12 samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ..evaluation.figures import listing
from ..evaluation.metrics.sequences import Measured
from .paper import data
from .study import UNUSUAL, Row, Study, difference, shown

Verdict = Literal["agrees", "differs", "cannot be checked here"]
LABELS = {"bits": "bits per token", "kl_exact": "exact KL", "tv_exact": "exact total variation"}
"""What figures are called, where it is not their name."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


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
    touching: bool = False
    """The interval need only reach into the range, which then has its upper end."""

    @property
    def inside(self) -> bool:
        return not self.outside if self.touching else self.least <= self.low and self.high < self.most

    @property
    def outside(self) -> bool:
        return self.high < self.least or self.low > self.most or (self.low == self.most and not self.touching)

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
        words = {key: value.format(**told) if isinstance(value, str) else value for key, value in entry.items()}
        paper, needs, otherwise = words.pop("paper"), words.pop("needs", None), words.pop("otherwise", "")
        if needs is not None and needs not in known:
            made.append(Claim(paper, "cannot be checked here", otherwise))
            continue
        claim = RULES[words.pop("rule")](study, **words)
        made.append(replace(claim, paper=paper, found=f"{where if claim.evidence else ''}{claim.found}"))
    return made


def decide(evidence: Sequence[Evidence], found: str, pooled: Evidence | None = None) -> Claim:
    """The verdict: see the module. A `pooled` interval inside its range stands for all groups."""
    everything = (*evidence, *([] if pooled is None else [pooled]))
    groups = {one.about: any(each.inside for each in evidence if each.about == one.about) for one in evidence}
    if any(one.outside for one in everything):
        return Claim("", "differs", found, everything)
    if (groups and all(groups.values())) or (pooled is not None and pooled.inside):
        return Claim("", "agrees", found, everything)
    return Claim("", "cannot be checked here", f"{found}; more samples may tell", everything)


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
    closed: bool = False,
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
        closed: not above is enough.
        missing: what to say where there is nothing to compare.
    """
    places = [place for place in sorted(study.column(by)) if beyond < place <= upto]
    pairs: list[tuple[int, Row, dict[str, Row]]] = []
    for place in places[-1:] if last else places:
        one = _best(study, figure, mine, by, place)
        against = {_name(other): _best(study, figure, other, by, place) for other in others}
        found = {name: other for name, other in against.items() if other is not None}
        if one is not None and found:
            pairs.append((place, one, found))
    if not pairs:
        return Claim("", "cannot be checked here", missing)
    evidence = [
        replace(_gap(name, str(place), difference(figure, one, other)), touching=closed)
        for place, one, found in pairs
        for name, other in found.items()
    ]
    place, one, found = pairs[-1]
    beside = "; ".join(dict.fromkeys(_figure(each, figure) for each in (one, *found.values())))
    text = f"{_name(mine)} is {_told(evidence)} in {LABELS.get(figure, figure)} (at {place}: {beside})"
    if not pool and margin is None:
        return decide(evidence, text)
    parts = [difference(figure, one, *found.values()) for _, one, found in pairs]
    value, error = sum(part.value for part in parts), math.hypot(*(part.error for part in parts))
    mean = Measured(value / len(parts), error / len(parts))
    whole = "over all budgets" if len(pairs) > 1 else "the difference is"
    text += f"; {whole} {mean.value:+.3f} ± {mean.error:.3f}"
    text += "" if margin is None else f", where the paper has {-margin:+.2f}"
    return decide(evidence, text, _gap("all", "all budgets", mean, 0.0 if margin is None else -margin / 2))


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
    return f"{name} {shown(one, figure)}" + ("" if one.get("entropy") is None else f", entropy {one['entropy']:.2f}")


def same(study: Study, figure: str, mine: str, other: str, **how: Any) -> Claim:
    """Whether two methods are indistinguishable at every budget that counts; see `below`."""
    made = below(study, figure, mine, [other], closed=True, **how)
    return decide([replace(e, least=0.0) for e in made.evidence], made.found) if made.evidence else made


def change(study: Study, figure: str, method: str, rises: bool = True) -> Claim:
    """Whether a figure rises, or falls, from the smallest budget to the largest."""
    own = sorted(study.where(method=method), key=lambda one: one["nfe"])
    gap = difference(figure, own[-1], own[0])
    ends = (math.inf, 0.0) if rises else (0.0, -math.inf)
    found = listing([f"{shown(one, figure)} at {one['nfe']}" for one in (own[0], own[-1])])
    return decide([_gap(method, "", gap, *ends)] if gap.value else [], found)


def at_least(study: Study, figure: str, method: str, bound: float, holds: bool = True, remark: str = "") -> Claim:
    """Whether a figure is `bound` or more at every budget; with ``holds=False`` the paper says that it is not."""
    one = min(study.where(method=method), key=lambda one: one[figure])
    ends = (math.inf, bound) if holds else (bound, -math.inf)
    evidence = [_gap(method, "", Measured(one[figure], one[f"{figure}_se"]), *ends)]
    return decide(evidence, f"the least is {shown(one, figure)} at {one['nfe']}{remark}")


def published(study: Study, figure: str, column: str, near: float | str, methods: Sequence[str] | None = None) -> Claim:
    """Whether figures are the paper's own: within a share `near` of them, or within what a column says. Of `methods`, or
    of all that are the paper's."""
    wanted = [one for one in study.rows if one.get(column) is not None]
    own = [one for one in wanted if (one["kind"] == "paper" if methods is None else one["method"] in methods)]
    if not own:
        return Claim("", "cannot be checked here", "the paper has no figures for the budgets of this run")
    evidence = []
    for one in own:
        told, room = one[column], one[near] if isinstance(near, str) else near * one[column]
        value = Measured(one[figure], one[f"{figure}_se"])
        evidence.append(_gap(f"{one['method']} at {one['nfe']}", "", value, told + room, told - room))
    ratios = [one[figure] / one[column] for one in own]
    span = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return decide(evidence, f"ours are {span} times the paper's, over {len(own)} rows")


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
    told = [f"{name} {known[name]:.2f}" for name in (*methods, *([] if less is None else [less]))]
    return decide(evidence, f"slopes of the {LABELS.get(figure, figure)} against steps: {listing(told)}")


RULES: dict[str, Callable[..., Claim]] = {
    rule.__name__: rule for rule in (below, same, change, at_least, published, slope)
}
