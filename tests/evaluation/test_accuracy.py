"""Right answers, and Wilson's interval."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from thetaleap.evaluation.metrics.accuracy import Accuracy, flexible_answer, same_answer, strict_answer, wilson


@pytest.mark.parametrize(
    ("right", "num", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_published_intervals(right: int, num: int, low: float, high: float) -> None:
    """Newcombe (1998), table I, method 3."""
    assert wilson(right, num) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_against_the_formula(level: float) -> None:
    """``(p + z^2/2n -+ z sqrt(p (1-p)/n + z^2/4n^2)) / (1 + z^2/n)``, z the normal quantile."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    for num in (1, 7, 1319):
        for right in {0, 1, num // 3, num - 1, num}:
            p = right / num
            middle, half = p + z * z / (2 * num), z * math.sqrt(p * (1 - p) / num + (z / (2 * num)) ** 2)
            wanted = ((middle - half) / (1 + z * z / num), (middle + half) / (1 + z * z / num))
            assert wilson(right, num, level) == pytest.approx(wanted, abs=1e-12)
    assert wilson(0, 9)[0] == 0.0
    assert wilson(9, 9)[1] == 1.0


def test_accuracy() -> None:
    accuracy = Accuracy.of(1, 4)
    assert (accuracy.value, accuracy.low, accuracy.high) == (0.25, *wilson(1, 4))


def test_wrong_counts() -> None:
    with pytest.raises(ValueError, match="right=3: there are 2 trials"):
        wilson(3, 2)
    with pytest.raises(ValueError, match="num=0: give a whole number"):
        wilson(0, 0)
    with pytest.raises(ValueError, match=r"level=1: must lie in \(0, 1\)"):
        wilson(1, 2, 1)


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("so it is 9 * 2 = 18.\n#### 18", "18", "18"),
        ("#### 1,000 and then 7", "1,000", "7"),
        ("#### -3.50", "-3.50", "-3.50"),
        ("the answer is $70,000.", None, "$70,000."),
        ("####42", None, "42"),
        ("#### 4 #### 5", "4", "5"),
        ("none at all", None, None),
        ("", None, None),
    ],
)
def test_answers_are_found(text: str, strict: str | None, flexible: str | None) -> None:
    assert strict_answer(text) == strict
    assert flexible_answer(text) == flexible


def test_answers_are_compared() -> None:
    solution = "130,000 + 5 = 7\n#### 70,000"
    assert same_answer("$70,000.", solution)
    assert same_answer("70000", solution)
    assert not same_answer("7", solution)
    assert not same_answer(None, solution)
    with pytest.raises(ValueError, match="holds no final answer"):
        same_answer("7", "it is 7")
