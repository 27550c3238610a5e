"""The table, its differences, and the rules: verdicts follow from intervals, and never contradict them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from thetaleap.evaluation.metrics.accuracy import Accuracy
from thetaleap.evaluation.metrics.measured import Measured
from thetaleap.evaluation.metrics.resampled import resampled_mean
from thetaleap.reproduction import paper, rules
from thetaleap.reproduction.paper import ENTROPY, GPT2, POSITIVE, data
from thetaleap.reproduction.rules import (
    RULES,
    Claim,
    Evidence,
    at_least,
    below,
    decide,
    judge,
    published,
    rises,
    same,
    slope,
)
from thetaleap.reproduction.study import Row, Study, row

BUDGETS = (8, 16, 32)
Rule = Callable[[Study], Claim]


def study_of(*figures: tuple[str, Sequence[float], float], told: float | None = None) -> Study:
    """Methods with a value at each budget, and an error."""
    made = [
        row(name, nfe=nfe, steps=nfe, figure=Measured(value, error), paper=told, room=2.0)
        for name, values, error in figures
        for nfe, value in zip(BUDGETS, values, strict=False)
    ]
    return Study.of("test", made)


def rule_of(of: Callable[..., Claim], *told: Any, **more: Any) -> Rule:
    return lambda study: of(study, *told, **more)


def verdict(rule: Rule, study: Study) -> str:
    return rule(study).verdict


# --- rules, true and false


def test_below() -> None:
    rule = rule_of(below, "figure", "A", ["B"])
    assert verdict(rule, study_of(("A", [1, 2, 3], 0.1), ("B", [2, 3, 4], 0.1))) == "agrees"
    assert verdict(rule, study_of(("A", [1, 2, 5], 0.1), ("B", [2, 3, 4], 0.1))) == "differs", "above at one budget"
    assert verdict(rule, study_of(("A", [1, 2, 3], 1.0), ("B", [2, 3, 4], 1.0))) == "undecided"
    assert verdict(rule, study_of(("A", [1, 2, 3], 0.1))) == "undecided"
    assert verdict(rule, study_of(("A", [1, 2, 3], 0.0), ("B", [1, 3, 4], 0.0))) == "differs", (
        "exactly equal is not below"
    )
    both = rule_of(below, "figure", "A", ["B", "C"])
    level = study_of(("A", [1, 2, 3], 0.1), ("B", [2, 3, 4], 0.1), ("C", [1, 2, 3], 0.1))
    assert verdict(both, level) == "undecided", "not seen below C anywhere"
    assert verdict(rule_of(below, "figure", "A", ["B"], by="steps"), level) == "agrees"
    late = rule_of(below, "figure", "A", ["B"], last=True)
    assert verdict(late, study_of(("A", [9, 9, 3], 0.1), ("B", [2, 3, 4], 0.1))) == "agrees", "only the last counts"


def test_the_number_shows_why_it_differs() -> None:
    """Where the mean does not, the budgets do."""
    one, two = ("B", [4, 4, 4], 0.1), ("C", [4, 4, 1], 0.1)
    rule = rule_of(below, "figure", "A", ["B"])
    assert rule(study_of(("A", [2, 2, 5], 0.1), one)).number == "above B at 32; over all -1.000 ± 0.082"
    assert rule(study_of(("A", [5, 5, 3], 0.1), one)).number == "+0.333 ± 0.082", "the mean is above as well"
    assert rule(study_of(("A", [2, 2, 2], 0.1), one)).number == "-2.000 ± 0.082"
    assert rule(study_of(("A", [2, 2, 2], 0.0), ("B", [4, 4, 4], 0.0))).number == "-2", "nothing is random"
    both = rule_of(below, "figure", "A", ["B", "C"])(study_of(("A", [2, 5, 2], 0.1), one, two))
    assert both.number == "above B at 16 and C at 16 and 32; over all -0.500 ± 0.071"
    alike = rule_of(same, "figure", "A", ["B"], matters=1.0)(study_of(("A", [6, 2, 4], 0.1), one))
    assert alike.number == "below B at 16 and above B at 8; over all +0.000 ± 0.082"
    assert alike.verdict == both.verdict == "differs"


def test_shares_are_told_in_percent() -> None:
    rows = [row(name, [8] * 100, nfe=8, accuracy=Accuracy.of(right, 100)) for name, right in (("A", 50), ("B", 90))]
    claim = below(Study.of("test", rows), "accuracy", "A", ["B"], margin=0.15, matters=0.03)
    assert claim.number == "-40 points"
    told = (
        "A is below B at 8 in right answers, % (at 8: A 50 (40 to 60); B 90 (83 to 94)); the difference is -40 points"
    )
    assert claim.found == f"{told}, where the paper has -15; what is below 3 does not matter"


def test_below_over_all_budgets() -> None:
    pooled, margin = rule_of(below, "figure", "A", ["B"], pool=True), rule_of(below, "figure", "A", ["B"], margin=4.0)
    faint = study_of(("A", [1.0, 2.0, 3.0], 0.25), ("B", [2.0, 3.0, 4.0], 0.25))
    assert verdict(rule_of(below, "figure", "A", ["B"]), faint) == "undecided"
    assert verdict(pooled, faint) == "agrees", "-1 ± 0.2"
    assert verdict(margin, faint) == "differs", "half the margin is beyond"
    wide = study_of(("A", [1, 2, 3], 1.0), ("B", [4, 5, 6], 1.0))
    assert verdict(margin, wide) == "undecided", "-3 ± 0.8"
    assert verdict(margin, study_of(("A", [1, 2, 3], 0.1), ("B", [5, 6, 7], 0.1))) == "agrees"


def test_as_good_as_any() -> None:
    def rows(*values: float) -> Study:
        pairs = zip((0.2, 0.3, 0.8), values, strict=True)
        return Study.of("test", [row("A", nfe=8, theta=theta, figure=Measured(value, 0.1)) for theta, value in pairs])

    def within(low: float, high: float) -> Rule:
        return rule_of(below, "figure", {"method": "A", "low": low, "high": high}, ["A"], closed=True, matters=1.0)

    assert verdict(within(0.1, 0.4), rows(1, 2, 5)) == "agrees"
    assert verdict(within(0.1, 0.4), rows(2, 1.1, 1)) == "agrees", "0.1 ± 0.14, where 1 would matter"
    assert verdict(within(0.1, 0.4), rows(2, 1.8, 1)) == "undecided", "0.8 ± 0.14"
    assert verdict(within(0.1, 0.4), rows(2, 2, 1)) == "undecided", "worse, but maybe not by what matters"
    assert verdict(within(0.1, 0.4), rows(5, 5, 1)) == "differs"
    assert verdict(within(0.4, 0.5), rows(1, 1, 1)) == "undecided", "no theta is there"


def test_same() -> None:
    rule = rule_of(same, "figure", "A", ["B"], matters=1.0)
    assert verdict(rule, study_of(("A", [1, 2, 3], 0.1), ("B", [1.5, 2.5, 3.5], 0.1))) == "agrees", (
        "0.5 does not matter"
    )
    assert verdict(rule, study_of(("A", [1, 2, 3], 1.0), ("B", [1, 2, 3], 1.0))) == "undecided", "nobody knows"
    for far in ([1, 2, 9], [1, 2, -9]):
        assert verdict(rule, study_of(("A", [1, 2, 3], 0.5), ("B", far, 0.5))) == "differs"
    assert verdict(rule, study_of(("A", [1, 2, 3], 1.0))) == "undecided"


def test_level() -> None:
    rule = rule_of(below, "figure", "A", ["B"], matters=1.0)
    near = study_of(("A", [1.0, 2.0, 3.0], 0.1), ("B", [1.1, 2.1, 2.9], 0.1))
    assert verdict(rule, near) == "level"
    assert verdict(rule_of(below, "figure", "A", ["B"], share=0.5), near) == "level", "half of B's is 1"
    assert verdict(rule_of(below, "figure", "A", ["B"], share=0.05), near) == "undecided"
    assert verdict(rule, study_of(("A", [1, 2, 3], 1.0), ("B", [1, 2, 3], 1.0))) == "undecided"
    assert verdict(rule, study_of(("A", [1, 2, 3], 0.1), ("B", [1.8, 2.8, 3.8], 0.1))) == "agrees", "small, and seen"


def test_above() -> None:
    rule = rule_of(below, "figure", "A", ["B"], higher=True)
    assert verdict(rule, study_of(("A", [3, 4, 5], 0.1), ("B", [2, 3, 4], 0.1))) == "agrees"
    assert verdict(rule, study_of(("A", [3, 4, 3], 0.1), ("B", [2, 3, 4], 0.1))) == "differs"
    margin = rule_of(below, "figure", "A", ["B"], higher=True, margin=4.0)
    assert verdict(margin, study_of(("A", [3, 4, 5], 0.1), ("B", [2, 3, 4], 0.1))) == "differs", "less than half of it"
    assert verdict(margin, study_of(("A", [6, 7, 8], 0.1), ("B", [2, 3, 4], 0.1))) == "agrees"


def test_rises() -> None:
    rule = rule_of(rises, "figure", "A")
    assert verdict(rule, study_of(("A", [1, 9, 3], 0.1))) == "agrees"
    assert verdict(rule, study_of(("A", [3, 9, 1], 0.1))) == "differs"
    assert verdict(rule, study_of(("A", [1, 9, 3], 1.0))) == "undecided"
    assert verdict(rule, study_of(("A", [1], 0.1))) == "undecided", "one budget"


def test_at_least() -> None:
    rule, negated = rule_of(at_least, "figure", "A", 95.0), rule_of(at_least, "figure", "A", 95.0, holds=False)
    for values, error, one, other in (
        ([96, 97, 98], 0.1, "agrees", "differs"),
        ([96, 90, 98], 0.1, "differs", "agrees"),
        ([95, 97, 98], 0.0, "agrees", "differs"),
        ([96, 97, 98], 1.0, *["undecided"] * 2),
    ):
        assert (verdict(rule, study_of(("A", values, error))), verdict(negated, study_of(("A", values, error)))) == (
            one,
            other,
        )


def test_published() -> None:
    for near in (0.2, "room"):
        rule = rule_of(published, "figure", "paper", near, ["A"])
        assert verdict(rule, study_of(("A", [9, 10, 11], 0.1), ("B", [0, 0, 0], 0.1), told=10.0)) == "agrees"
        assert verdict(rule, study_of(("A", [9, 10, 15], 0.1), told=10.0)) == "differs"
        assert verdict(rule, study_of(("A", [9, 10, 11], 1.0), told=10.0)) == "undecided"
        assert verdict(rule, study_of(("A", [9, 10, 11], 0.1))) == "undecided", "the paper has none"


def test_budgets_that_count() -> None:
    study = study_of(("A", [9, 2, 3], 0.1), ("B", [2, 3, 4], 0.1))
    assert verdict(rule_of(below, "figure", "A", ["B"], beyond=8), study) == "agrees"
    assert verdict(rule_of(below, "figure", "A", ["B"], upto=8), study) == "differs"
    assert verdict(rule_of(below, "figure", "A", ["B"], beyond=32), study) == "undecided"


def test_slope() -> None:
    study = replace(study_of(("A", [1], 0.1)), slopes={"figure": {"A": -2.1, "B": -1.0, "C": -1.7}})
    assert verdict(rule_of(slope, "figure", ["A"], -2.3, -1.7), study) == "agrees"
    assert verdict(rule_of(slope, "figure", ["A", "B"], -2.3, -1.7), study) == "differs"
    assert verdict(rule_of(slope, "figure", ["A"], most=-0.5, less="B"), study) == "agrees"
    assert verdict(rule_of(slope, "figure", ["A"], most=-0.5, less="C"), study) == "differs"


def test_claims_that_need_something(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"paper": "{what} is low", "rule": "at_least", "figure": "figure", "method": "A", "bound": 0.0}
    entry |= {"needs": "weights", "otherwise": "it takes {what}", "command": "run {what}"}
    monkeypatch.setattr(rules, "data", lambda name: {"test": [entry]})
    study = study_of(("A", [1, 2, 3], 0.1))
    [claim] = judge(study, "test", what="A")
    assert (claim.paper, claim.verdict, claim.found) == ("A is low", "needs weights", "it takes A")
    assert claim.command == "run A"
    [claim] = judge(study, "test", ["weights"], "here: ", what="A")
    assert (claim.verdict, claim.found) == ("agrees", "here: the least is 1.00 ± 0.10 at 8")


def test_the_paper_s_figures_in_its_claims() -> None:
    """Numbers that are quoted, and margins, are those of its tables."""
    claims = data("claims")
    assert {entry["rule"] for some in claims.values() for entry in some if "rule" in entry} == set(RULES)
    own = GPT2.values
    for entry in claims["text"][:5]:
        method = entry["others"][0].partition(" (")[0] if "Semi" in entry["others"][0] else entry["others"][0]
        assert f"{method} ({own['theta-Trapezoidal'][128]:.1f} against {own[method][128]:.1f} at 128" in entry["paper"]
    for entry in claims["text"][5:7]:
        gap = math.log2(own["Euler"][128] / own[entry["mine"]][128])
        assert entry["margin"] == pytest.approx(gap, abs=0.005)
        told = (
            f"({own[entry['mine']][128]:.1f} against {own['Euler'][128]:.1f} and {own['Tweedie tau-leaping'][128]:.1f}"
        )
        assert told in entry["paper"]
    assert all(own["theta-RK-2"][nfe] > own["tau-leaping"][nfe] for nfe in own["FHS"]), "at 7 of 7"
    likely, varied = claims["text"][9:11]
    ends = own["theta-Trapezoidal"][1024], own["FHS"][1024]
    assert f"({ends[0]:.1f} against {ends[1]:.1f} under" in likely["paper"]
    assert likely["margin"] == pytest.approx(math.log2(ends[1] / ends[0]), abs=0.005)
    mine, exact = ENTROPY.values["theta-Trapezoidal"], ENTROPY.values["FHS"]
    assert f"from {mine[16]:.2f} to {mine[1024]:.2f}, and is then below" in varied["paper"]
    assert f"from {exact[16]:.2f} to {exact[1024]:.2f}" in varied["paper"]
    assert varied["margin"] == pytest.approx(exact[1024] - mine[1024], abs=0.0051)
    for entry, table in zip(claims["text"][11:], paper.TEXT.values(), strict=True):
        assert entry["paper"] == f"the figures themselves: {table.about}"
    for entry, method in ((claims["positivity"][2], "theta-RK-2"), (claims["positivity"][3], "theta-Trapezoidal")):
        row_ = POSITIVE.values[method]
        assert entry["paper"].endswith(f"from {row_[32]:.1f}% at 32 to {row_[1024]:.1f}% at 1024")


# --- no verdict contradicts its own interval


def consistent(claim: Claim) -> bool:
    """Written anew from what intervals mean: a value is possible if it lies within.

    Of level claims, all that is possible is within what does not matter."""
    if claim.verdict == "level":
        return bool(claim.evidence) and all(-e.most == e.least <= e.low <= e.high < e.most for e in claim.evidence)
    wrong = [e for e in claim.evidence if e.high < e.least or e.low > e.most or e.low == e.most]
    right = [e for e in claim.evidence if e.low >= e.least and e.high < e.most]
    if claim.verdict == "differs":
        return bool(wrong)
    return not wrong and (claim.verdict != "agrees" or bool(right))


CASES: dict[str, Callable[[], Rule]] = {
    "below": lambda: rule_of(below, "figure", "A", ["B", "C"]),
    "pooled": lambda: rule_of(below, "figure", "A", ["B", "C"], pool=True),
    "margin": lambda: rule_of(below, "figure", "A", ["B"], margin=1.0),
    "closed": lambda: rule_of(below, "figure", "A", ["B"], closed=True, matters=0.5),
    "same": lambda: rule_of(same, "figure", "A", ["B", "C"], matters=1.0),
    "level": lambda: rule_of(below, "figure", "A", ["B"], matters=2.0),
    "above": lambda: rule_of(below, "figure", "A", ["B", "C"], higher=True, pool=True),
    "theta": lambda: rule_of(
        below, "figure", {"method": "D", "low": 0.0, "high": 0.5}, ["D"], closed=True, matters=0.5
    ),
    "rises": lambda: rule_of(rises, "figure", "A"),
    "at least": lambda: rule_of(at_least, "figure", "A", 0.0),
    "not at least": lambda: rule_of(at_least, "figure", "A", 0.0, holds=False),
    "published": lambda: rule_of(published, "figure", "paper", "room", ["A"]),
    "slope": lambda: rule_of(slope, "figure", ["A", "B"], -2.3, 0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_no_verdict_contradicts_its_own_interval(name: str) -> None:
    rule, seen = CASES[name](), set()
    draw = np.random.default_rng(0)
    for _ in range(200):
        error = float(draw.choice([0.0, 0.05, 0.5]))
        values = [
            (method, draw.normal(shift, 0.5, 3).tolist(), error)
            for method, shift in zip("ABC", draw.normal(0, 1, 3), strict=True)
        ]
        slopes = {"figure": {name: line[0] for name, line, _ in values}}
        wide = [row("D", nfe=8, theta=n / 8, figure=Measured(v, error)) for n, v in enumerate(draw.normal(0, 0.5, 8))]
        study = study_of(*values, told=0.1)
        claim = rule(replace(Study.of("test", [*study.rows, *wide]), slopes=slopes))
        assert consistent(claim), claim
        assert claim.found
        seen.add(claim.verdict)
    assert len(seen) == {"slope": 2, "level": 4}.get(name, 3)


# data of which the claim is just true, and how many rows are then compared
TRUTHS: dict[str, tuple[dict[str, list[float]], int]] = {
    "below": ({"A": [0, 0, 0], "B": [0, 0, 0], "C": [0, 0, 0]}, 6),
    "pooled": ({"A": [0, 0, 0], "B": [0, 0, 0], "C": [0, 0, 0]}, 7),
    "margin": ({"A": [-0.5, -0.5, -0.5], "B": [0, 0, 0]}, 4),
    "closed": ({"A": [0.5, 0.5, 0.5], "B": [0, 0, 0]}, 4),
    "same": ({"A": [0, 0, 0], "B": [1, 1, 1], "C": [-1, -1, -1]}, 8),
    "level": ({"A": [0, 0, 0], "B": [0, 0, 0]}, 3),
    "above": ({"A": [0, 0, 0], "B": [0, 0, 0], "C": [0, 0, 0]}, 7),
    "theta": ({"D": [0, 0, 0]}, 24),
    "rises": ({"A": [0, 9, 0]}, 1),
    "at least": ({"A": [0, 0, 0]}, 3),
    "not at least": ({"A": [9, 0, 9]}, 1),
    "published": ({"A": [2.1, 2.1, -1.9]}, 3),
    "slope": ({"A": [0.4], "B": [-2.3]}, 0),
}


def rows_of_truth(truth: dict[str, list[float]], draw: np.random.Generator, samples: int | None) -> list[Row]:
    """Rows whose figures are `truth` on average: with errors that are known, or of samples that share what is most of
    their noise, as with one seed."""
    shared, made = draw.normal(0, 0.6, samples or 1), []
    for method, values in truth.items():
        places = [(nfe, value, None) for nfe, value in zip(BUDGETS, values, strict=False)]
        if method == "D":  # one of many thetas
            places = [(nfe, value, n / 8) for nfe, value, _ in places for n in range(8)]
        for nfe, value, theta in places:
            known: Any = Measured(float(draw.normal(value, 0.3)), 0.3)
            if samples is not None:
                known = resampled_mean(torch.from_numpy(value + shared + draw.normal(0, 0.2, samples)))
            told = {"nfe": nfe, "steps": nfe, "theta": theta, "num": samples}
            made.append(row(method, figure=known, paper=0.1, room=2.0, **told))
    return made


SHARING = ("below", "pooled", "margin", "same", "level", "above", "rises", "theta")
"""Rules about differences, whose errors are those of pairs."""


@pytest.mark.parametrize(("name", "samples"), [*((n, None) for n in CASES), *((n, 32) for n in SHARING)])
def test_true_claims_seldom_differ(name: str, samples: int | None) -> None:
    """At most 0.27% of the time for each row; with errors from 32 samples 0.53%, as for Student's t of 31 degrees.

    False alarm below 1e-6 for all of them. Intervals of two errors would be seen in most of the rules that compare three
    rows or more; so would errors of pairs that are taken to be independent the other way, three times too small.
    """
    claimed, (truth, rows) = CASES[name](), TRUTHS[name]
    draw = np.random.default_rng(2)
    rate = 2 * float(stats.norm.sf(3) if samples is None else stats.t.sf(3, samples - 1))
    differs, num = 0, 500
    for _ in range(num):
        slopes = {"figure": {method: values[0] for method, values in truth.items()}}
        claim = claimed(replace(Study.of("test", rows_of_truth(truth, draw, samples)), slopes=slopes))
        assert consistent(claim), claim
        differs += claim.verdict == "differs"
    assert stats.poisson.sf(differs - 1, num * rows * rate) > 2e-8 if rows else differs == 0


def test_every_rule_is_tried() -> None:
    tried = {inspect.getclosurevars(case()).nonlocals["of"].__name__ for case in CASES.values()}
    assert tried == set(RULES)
    assert set(TRUTHS) == set(CASES)


def test_evidence() -> None:
    inside, outside, across = (Evidence("a", "", v, v - 1, v + 1, least=0.0, most=10.0) for v in (5, 12, 10))
    assert [(e.inside, e.outside) for e in (inside, outside, across)] == [(True, False), (False, True), (False, False)]
    assert decide([inside], "words").verdict == "agrees"
    assert decide([inside, outside], "words").verdict == "differs"
    assert decide([inside, Evidence("b", "", 10, 9, 11, most=10.0)], "words").verdict == "undecided"
    assert decide([across], "words", [inside]).verdict == "agrees"
    assert decide([], "words").verdict == "undecided"
    assert decide([across], "words", level=[inside]).verdict == "level"
    assert decide([], "words", [inside], guards=[outside]).verdict == "differs"
