"""Looks until claims are decided: the rate of false alarms, what is drawn on, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import thetaleap as tl
from thetaleap.evaluation.metrics.measured import Measured
from thetaleap.reproduction import looks, text
from thetaleap.reproduction.looks import LOOKS, Cell, draw, fingerprint, until_decided
from thetaleap.reproduction.pages import Job
from thetaleap.reproduction.rules import Claim, below, same
from thetaleap.reproduction.study import Row, Study, row

from .test_text_experiment import letters, unigrams

NUM = 32
CELLS = [Cell("A", 8, NUM, 8), Cell("B", 8, NUM, 8), Cell("C", 8, NUM, 8)]


def job(folder: Path, full: bool = True) -> Job:
    return Job(folder, None, 0, progress=False, full=full)


class Source:
    """Rows of normal numbers with known errors; the numbers of an earlier look are among those of a later one."""

    def __init__(self, means: Sequence[float], seed: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = np.array([NUM * 2**look for look in range(LOOKS)])
        parts = np.diff(sizes, prepend=0)
        self.sums = {
            name: (mean * sizes + np.cumsum(rng.normal(0, np.sqrt(parts)))) / sizes
            for name, mean in zip("ABC", means, strict=True)
        }
        self.asked: list[tuple[str, int]] = []

    def __call__(self, cell: Cell, num: int) -> Row:
        self.asked.append((cell.method, num))
        look = (num // NUM).bit_length() - 1
        told = {"nfe": cell.nfe, "num": num}
        return row(cell.method, figure=Measured(float(self.sums[cell.method][look]), num**-0.5), **told)


def lower(study: Study) -> list[Claim]:
    return [below(study, "figure", "A", ["B"])]


def alike(study: Study) -> list[Claim]:
    return [same(study, "figure", "A", ["B"], matters=0.5)]


@pytest.mark.parametrize(
    ("judge", "means", "rate"),
    [(lower, (0.0, 0.0, 0.0), LOOKS * stats.norm.sf(3)), (alike, (0.5, 0.0, 0.0), 2 * LOOKS * stats.norm.sf(3))],
    ids=["below", "same"],
)
def test_true_claims_seldom_differ_at_any_look(judge: Any, means: Sequence[float], rate: float, tmp_path: Path) -> None:
    """At most at the rate that the module states, of claims that are just true. Another is never decided, so that there are
    six looks at them all, whatever the first ones show.

    Of 600 there are then at most 5 or 10 on average: false alarm below 1e-8 each. Two standard errors in place of three
    would make it 45 or more.
    """
    differs, num, open_ = 0, 600, Claim("", "undecided", "", methods=("A", "B"))
    for seed in range(num):
        source = Source(means, seed)
        _, [claim, _] = until_decided(job(tmp_path), "test", CELLS, source, lambda study: [*judge(study), open_])
        assert source.asked[-1] == ("B", NUM * 2 ** (LOOKS - 1))
        differs += claim.verdict == "differs"
    assert stats.poisson.sf(differs - 1, num * float(rate)) > 1e-8


def test_only_what_is_undecided_is_drawn_on(tmp_path: Path) -> None:
    """A is far below B, and C level with A, so that nobody can tell: C is drawn to the cap, and B not."""

    def both(study: Study) -> list[Claim]:
        return [below(study, "figure", "A", ["B"]), below(study, "figure", "A", ["C"])]

    source = Source((0.0, 9.0, 0.0), 3)
    study, claims = until_decided(job(tmp_path), "test", CELLS, source, both)
    assert [claim.verdict for claim in claims] == ["agrees", "undecided"]
    assert {one["method"]: one["num"] for one in study.rows} == {"A": 32 * NUM, "B": NUM, "C": 32 * NUM}
    assert [num for method, num in source.asked if method == "C"] == [NUM * 2**n for n in range(LOOKS)]
    aside = Source((0.0, 9.0, 0.0), 3)
    until_decided(job(tmp_path), "test", [*CELLS[:2], Cell("C", 8, NUM, 8, judged=False)], aside, both)
    assert [num for method, num in aside.asked if method == "C"] == [NUM], "what no claim is about"
    once = Source((0.0, 9.0, 0.0), 3)
    until_decided(job(tmp_path, full=False), "test", CELLS, once, both)
    assert once.asked == [("A", NUM), ("B", NUM), ("C", NUM)], "one look without full"
    beside = Source((0.0, 9.0, 0.0), 3)
    study, [_, claim] = until_decided(job(tmp_path), "test", CELLS, beside, both, beside=["A", "B"])
    assert {one["method"]: one["num"] for one in study.rows} == {"A": 8 * NUM, "B": 8 * NUM, "C": 32 * NUM}, (
        "those of a figure have one size in the table, up to 8n"
    )
    assert claim.evidence[0].high - claim.evidence[0].low == pytest.approx(6 * (2 / (32 * NUM)) ** 0.5), (
        "claims are judged by all that was drawn"
    )
    done = Source((0.0, 9.0, 0.0), 3)
    until_decided(job(tmp_path), "test", CELLS, done, lambda study: both(study)[:1], beside=["C"])
    assert done.asked == once.asked, "and no longer than any claim is undecided"
    late = Source((0.0, 9.0, 0.0), 3)
    _, claims = until_decided(replace(job(tmp_path), hours=0.0), "test", CELLS, late, both)
    assert late.asked == once.asked, "none after the hours"
    assert [claim.verdict for claim in claims] == ["agrees", "undecided"]


@pytest.mark.parametrize(
    ("first", "then", "last"),
    [
        ("agrees", "differs", "differs"),
        ("agrees", "undecided", "agrees"),
        ("differs", "agrees", "differs"),
        ("level", "agrees", "agrees"),
    ],
)
def test_what_differs_stays(first: Any, then: Any, last: str, tmp_path: Path) -> None:
    """And what agrees is judged again, if it is drawn further: here for the sake of B."""

    def flighty(study: Study) -> list[Claim]:
        num = study.rows[0]["num"]
        one, other = (Claim("", first if num == NUM else then, "", methods=methods) for methods in (("A",), ("A", "C")))
        return [one, other, Claim("", "undecided" if num < 4 * NUM else "agrees", "", methods=("A", "B"))]

    study, claims = until_decided(job(tmp_path), "test", CELLS, Source((0, 0, 0), 0), flighty)
    assert [claim.verdict for claim in claims] == [last, first, "agrees"], "C is not drawn further"
    assert study.rows[0]["num"] == 4 * NUM, "and nothing is drawn after the last"


def test_only_budgets_that_are_compared_are_drawn_on(tmp_path: Path) -> None:
    """Level at 8, and far apart at 16: of a claim about 8 alone, rows at 16 are not drawn further."""
    cells, asked = [Cell(name, nfe, NUM, nfe) for name in "AB" for nfe in (8, 16)], list[tuple[Any, ...]]()

    def measure(cell: Cell, num: int) -> Row:
        asked.append((cell.method, cell.nfe, num))
        value = 9.0 if (cell.method, cell.nfe) == ("B", 16) else 0.0
        return row(cell.method, figure=Measured(value, num**-0.5), nfe=cell.nfe, num=num)

    def few(study: Study) -> list[Claim]:
        return [below(study, "figure", "A", ["B"], upto=8), below(study, "figure", "A", ["B"], beyond=8)]

    study, claims = until_decided(job(tmp_path), "test", cells, measure, few)
    assert [(claim.verdict, claim.budgets) for claim in claims] == [("undecided", (8,)), ("agrees", (16,))]
    assert [one["num"] for one in study.rows] == [32 * NUM, NUM] * 2
    assert sum(nfe == 16 for _, nfe, _ in asked) == 2


# --- what was drawn


def test_draws_are_kept_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, after a stop, or in one go: the same samples."""
    model, asked = letters(), list[tuple[int, int]]()
    monkeypatch.setattr(looks, "AT_ONCE", 5)

    def make(first: int, num: int) -> tl.sampling.Samples:
        asked.append((first, num))
        if first == 10 and len(asked) == 3:
            raise KeyboardInterrupt
        return tl.sample(model, tl.Tweedie(), nfe=4, first=first, num=num, progress=False)

    with pytest.raises(KeyboardInterrupt):
        draw(job(tmp_path), {"a": 1}, 12, make)
    parts = draw(job(tmp_path), {"a": 1}, 12, make)
    assert asked == [(0, 5), (5, 5), (10, 2), (10, 2)]
    whole = tl.sample(model, tl.Tweedie(), nfe=4, num=12, progress=False)
    assert torch.equal(parts.x, whole.x)
    assert torch.equal(parts.nfe, whole.nfe)
    assert len(draw(job(tmp_path), {"a": 1}, 7, make).x) == 7
    assert len(asked) == 4, "there are enough in the file"
    draw(job(tmp_path), {"a": 2}, 3, make)
    assert asked[-1] == (0, 3), "other settings are another file"
    assert len(list((tmp_path / "draws").iterdir())) == 2
    fresh = draw(job(tmp_path / "none", full=False), {"a": 1}, 3, make)
    assert len(fresh.x) == 3
    assert not (tmp_path / "none").exists(), "without full nothing is kept"


def test_other_advice_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept of `auto` is not taken for what `auto` would draw now."""
    model = letters()

    def drawn() -> tl.sampling.Samples:
        return looks.draw_by(job(tmp_path), {}, 2, lambda first, count: model, "auto", 4)

    before = drawn()
    drawn()
    assert len(list((tmp_path / "draws").iterdir())) == 1
    advice = replace(tl.recommend(model, 4), solver=tl.Tweedie())
    monkeypatch.setattr(looks, "recommend", lambda model, nfe: advice)
    drawn()
    assert len(list((tmp_path / "draws").iterdir())) == 2
    monkeypatch.undo()
    assert torch.equal(drawn().x, before.x)


def test_other_weights_are_another_name() -> None:
    one = fingerprint(letters())
    assert one == fingerprint(letters())
    assert one != fingerprint(letters(length=25))
    assert len({one, fingerprint(tl.load("sums")), fingerprint(tl.load("mnist"))}) == 3


def test_a_whole_experiment_goes_on(tmp_path: Path) -> None:
    """Run to the end, and then again: nothing is drawn, and the table is the same."""
    given: dict[str, Any] = {"model": letters(), "judge": unigrams(), "budgets": (4,), "num": 8, "progress": False}
    text.run(tmp_path, full=True, hours=0.0, **given)
    card = json.loads((tmp_path / "text.json").read_text())
    assert "undecided" in {claim["verdict"] for claim in card["claims"]}
    assert not card["full"], "it was stopped"
    text.run(tmp_path, full=True, **given)
    assert json.loads((tmp_path / "text.json").read_text())["full"]
    first = (tmp_path / "text.csv").read_text()
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "draws").iterdir()}
    text.run(tmp_path, full=True, **given)
    assert (tmp_path / "text.csv").read_text() == first
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "draws").iterdir()} == files
    assert {row.split(",")[9] for row in first.splitlines()[1:]} >= {"8"}
