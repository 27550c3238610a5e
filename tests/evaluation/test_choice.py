"""Solvers as text: what is read, what is refused, and that nothing else is run."""

from __future__ import annotations

import pytest

import thetaleap as tl
from tests.cases import SOLVERS
from thetaleap.control import Method
from thetaleap.evaluation.choice import parse, split, written


@pytest.mark.parametrize(
    ("text", "solver"),
    [
        ("tweedie", tl.Tweedie()),
        ("Tweedie()", tl.Tweedie()),
        (
            " Multistep(planner=LowDiscrepancy(shape=(4, 16)), weight=0.25)",
            tl.Multistep(0.25, planner=tl.LowDiscrepancy((4, 16))),
        ),
        ("Multistep(None, 2)", tl.Multistep(window=2)),
        ("Multistep(planner='low-discrepancy')", tl.Multistep(planner=tl.LowDiscrepancy())),
        ("Tweedie(planner='entropy-bounded:0.5')", tl.Tweedie(tl.EntropyBounded(0.5))),
        ("Blocks(Tweedie(FixedCount()), length=4)", tl.Blocks(tl.Tweedie(tl.FixedCount()), 4)),
        ("SemiAutoregressive(block_length=4)", tl.SemiAutoregressive(block_length=4)),
    ],
)
def test_text_is_read_as_in_python(text: str, solver: Method) -> None:
    assert parse(text) == solver
    assert parse(written(solver)) == solver


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_every_solver_can_be_written_and_read(solver: Method) -> None:
    assert parse(written(solver)) == solver


def test_what_is_written_leaves_out_defaults() -> None:
    assert (
        written(tl.ExponentialTrapezoidal(planner=tl.LowDiscrepancy()))
        == "ExponentialTrapezoidal(planner=LowDiscrepancy())"
    )
    assert written(tl.Trapezoidal(rule="reject")) == "Trapezoidal(rule='reject')"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("twedie", "solver='twedie': did you mean 'tweedie'"),
        ("Twedie()", "the name='Twedie': did you mean 'Tweedie'"),
        ("Multistep(wieght=1)", "there is no 'wieght'; did you mean 'weight'"),
        ("Multistep(1, 2, 'linear', 0.1, None, 6)", "6 arguments are too many; Multistep has weight, window"),
        ("Multistep(1, weight=1)", "weight is given twice"),
        ("Multistep(**{})", "there is no 'None'"),
        ("Multistep(planner=Tweedie())", "give a planner: one of bernoulli"),
        ("Multistep(planner=LowDiscrepancy)", "LowDiscrepancy is neither"),
        ("Multistep(weight=Bernoulli())", "give no planner"),
        ("Multistep(window=-1)", "window=-1: give a whole number of at least 1"),
        ("Multistep(weight=-'a')", "there is no -'a'"),
        ("Blocks()", "Blocks needs solver"),
        ("LowDiscrepancy()", "is no solver"),
        ("(1, 2)", "is no solver"),
        ("Multistep(", "cannot be read"),
        ("(" * 500, "cannot be read"),
        ("(" * 2000, "cannot be read"),
        ("__import__('os').system('false')", "is neither number, word, solver nor planner"),
        ("Multistep(weight=().__class__)", "is neither"),
        ("Multistep(weight=1 + 1)", "is neither"),
        ("[Tweedie() for _ in (1,)]", "is neither"),
        ("Tweedie()(1)", "is neither"),
        ("open('x')", "the name='open'"),
    ],
)
def test_what_is_no_solver_is_refused(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match.replace("(", r"\(").replace(")", r"\)").replace("*", r"\*")):
        parse(text)


def test_commas_in_brackets_do_not_split() -> None:
    assert split("auto, Multistep(1, window=2),Tweedie(LowDiscrepancy([4, 16]))") == [
        "auto",
        "Multistep(1, window=2)",
        "Tweedie(LowDiscrepancy([4, 16]))",
    ]
