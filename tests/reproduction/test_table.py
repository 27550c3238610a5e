"""The table of an experiment: rows with one set of columns, paired differences, rankings and words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import thetaleap as tl
from thetaleap.evaluation.figures import write_csv
from thetaleap.evaluation.metrics.accuracy import Accuracy
from thetaleap.evaluation.metrics.measured import Measured
from thetaleap.evaluation.metrics.resampled import resampled_mean
from thetaleap.reproduction.methods import METHODS, look, pick
from thetaleap.reproduction.pages import flow
from thetaleap.reproduction.study import KEYS, Study, compare, difference, ranking, row, shown


def test_rows_have_one_set_of_columns(tmp_path: Path) -> None:
    share = Accuracy.of(3, 4)
    study = Study.of(
        "test", [row("A", [2, 4], nfe=4, share=share, _bits=np.zeros(2)), row("B", [9], figure=Measured(1.5, 0.5))]
    )
    assert [list(one)[: len(KEYS)] for one in study.written] == [list(KEYS)] * 2
    one, other = study.rows
    assert (one["evaluations"], one["most_evaluations"], one["num"], one["figure"]) == (3.0, 4, 2, None)
    assert (one["share"], one["share_right"], one["share_low"]) == (0.75, 3, share.low)
    assert (other["nfe"], other["figure_se"], other["share"]) == (None, 0.5, None)
    assert study.column("nfe") == [4]
    text = write_csv(tmp_path / "a.csv", study.written).read_text()
    assert "_bits" not in text
    assert text.splitlines()[2].startswith("test,,B,,,,,9.0,9,1,")


def test_paired_differences() -> None:
    """Their errors are those of scipy's paired test, to the 3.5% to which 400 resamples know them; without resamples,
    errors add up as if independent."""
    draw = np.random.default_rng(1)
    shared = draw.normal(size=50)
    one, two = shared + draw.normal(0.2, 0.1, 50), shared + draw.normal(0, 0.1, 50)
    figures = [resampled_mean(torch.from_numpy(values)) for values in (one, two)]
    rows = [row(name, num=50, x=figure) for name, figure in zip("AB", figures, strict=True)]
    gap = difference("x", *rows)
    assert gap.value / gap.error == pytest.approx(stats.ttest_rel(one, two).statistic, rel=0.15)
    bare = [{key: value for key, value in each.items() if key != "_x"} for each in rows]
    assert difference("x", *bare).error == pytest.approx(math.hypot(stats.sem(one), stats.sem(two)), rel=0.15)
    assert (compare("x", *rows), compare("x", *bare)) == (1, 0), "pairing tells them apart"
    mean = difference("x", rows[0], rows[0], rows[1])
    assert mean.value == pytest.approx(gap.value / 2)
    assert mean.error == pytest.approx(gap.error / 2)
    few = row("B", num=25, x=resampled_mean(torch.from_numpy(two[:25])))
    expected = math.sqrt(np.var(one[25:], ddof=1) * 25 / 50**2 + np.var(one[:25] / 50 - two[:25] / 25, ddof=1) * 25)
    assert difference("x", rows[0], few).error == pytest.approx(expected, rel=0.15), "the common ones are paired"


def test_one_sample_tells_nothing() -> None:
    """Its error is not known, and so nobody is ahead."""
    sizes = torch.tensor([[1.0], [9.0]], dtype=torch.float64)
    rows = [row(name, [8], nfe=8, x=resampled_mean(size)) for name, size in zip("AB", sizes, strict=True)]
    assert math.isnan(difference("x", *rows).error)
    assert compare("x", *rows) == compare("x", *rows[::-1]) == 0
    [only] = ranking(Study.of("test", rows), "x")
    assert (only.first, only.level, only.behind) == (["A"], ["B"], [])


def test_shares_are_never_certain() -> None:
    sure = [row(n, num=20, x=Accuracy.of(20, 20), _x=resampled_mean(torch.ones(20).double()).again) for n in "AB"]
    assert difference("x", *sure) == Measured(0.0, 1 / 20)
    assert compare("x", *sure) == 0


def test_rankings() -> None:
    study = Study.of(
        "test",
        [row(name, nfe=8, share=Accuracy.of(right, 100)) for name, right in zip("ABC", (90, 85, 20), strict=True)],
    )
    [most], [least] = ranking(study, "share", max), ranking(study, "share")
    assert (most.first, most.level, most.behind) == (["A"], ["B"], ["C"])
    assert (least.first, least.level, least.behind) == (["C"], [], ["B", "A"])


def test_figures_as_text() -> None:
    one = row(
        "A", x=Measured(12.345, 0.678), y=Measured(5.0, 0.0), share=Accuracy.of(45, 100), bare=0.123456, none=None
    )
    assert [shown(one, name) for name in ("x", "y", "bare", "none")] == ["12.35 ± 0.68", "5 ± 0", "0.123", "-"]
    assert shown(one, "share", 100.0, 1) == "45.0 (35.6 to 54.8)"
    assert shown(one, "bare", 100.0, 1) == "12.3"


def test_pages_flow() -> None:
    text = "one\ntwo\n\n\n- three\n  four\n- five\n\n\f  as\n\n  is\f\n\nlast"
    assert flow(text, None) == "one two\n\n- three four\n- five\n\n  as\n\n  is\n\nlast"
    assert flow(text, 7) == "one two\n\n- three\n  four\n- five\n\n  as\n\n  is\n\nlast"


def test_methods() -> None:
    made = pick(*METHODS)
    assert len(set(map(repr, made.values()))) == len(METHODS), "no two are the same"
    assert pick("theta-RK-2", theta=0.25)["theta-RK-2"] == tl.RK2(0.25, "reject")
    assert look("theta-RK-2 (1/3)") is METHODS["theta-RK-2"]
    assert look("Semi-AR (random)") is METHODS["Semi-AR (random)"]
