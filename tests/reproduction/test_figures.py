"""Figures: few lines, each named beside where it ends, in a band of its error, under a title that says what is shown."""

from __future__ import annotations

from itertools import pairwise

import pytest

from thetaleap.evaluation.figures import LINE, direct_labels, panels
from thetaleap.evaluation.metrics.measured import Measured
from thetaleap.reproduction import gsm8k, images, positivity, sums, text
from thetaleap.reproduction.methods import AUTO, MINE, TAU
from thetaleap.reproduction.pages import MOST_LINES, Panel, chart
from thetaleap.reproduction.study import Study, row


def study() -> Study:
    rows = [row(m, nfe=n, x=Measured(10 / n, 0.5 / n)) for m in (TAU, MINE, AUTO) for n in (4, 8, 16)]
    return Study.of("test", rows)


def test_lines_have_names_and_bands() -> None:
    figure = chart([Panel(study(), "x", "label", level=(1.0, "exact"))], [TAU, MINE, AUTO], "What is shown")
    [panel] = figure.axes
    assert {text.get_text() for text in panel.texts} == {TAU, MINE, AUTO, "exact"}
    assert len(panel.collections) == 3, "bands"
    assert figure.get_suptitle() == "What is shown"
    assert figure.legends == []


def test_at_most_six_lines() -> None:
    for methods in (text.DRAWN, images.DRAWN, sums.DRAWN, positivity.SOLVERS, gsm8k.PAPER):
        assert len(methods) <= MOST_LINES
    assert len(text.DRAWN) < MOST_LINES, "exact sampling is a line as well"
    assert AUTO in text.DRAWN
    assert AUTO in images.DRAWN
    assert AUTO in sums.DRAWN
    with pytest.raises(AssertionError):
        chart([Panel(study(), "x", "label")], ["a"] * (MOST_LINES + 1), "too many")


@pytest.mark.parametrize("values", [[1.0] * 6, [0.0] * 6, [0.0, 0.01, 0.5, 0.51, 0.99, 1.0]])
def test_names_stand_apart_and_beside_the_panel(values: list[float]) -> None:
    _, [[panel]] = panels(4, 3, 1, 1)
    panel.set_ylim(0, 1)
    ends = {f"line {n}": (1.0, value) for n, value in enumerate(values)}
    direct_labels(panel, ends, dict.fromkeys(ends, "black"))
    heights = sorted(text.xy[1] for text in panel.texts)  # pyright: ignore[reportAttributeAccessIssue]
    assert all(b - a > LINE - 1e-9 for a, b in pairwise(heights))
    assert -0.1 < heights[0] <= heights[-1] < 1.05
