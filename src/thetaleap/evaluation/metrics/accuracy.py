"""How many answers are right, and how sure that is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...core.checks import require, require_count, require_number
from .measured import LEVEL

MARK = "#### "
"""What stands before the final answer in GSM8K."""
STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")
"""What lm-evaluation-harness (task gsm8k, version 3) searches an answer for, and leaves out before it compares."""


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers, with its Wilson interval."""

    right: int
    num: int
    low: float
    high: float

    @staticmethod
    def of(right: int, num: int, level: float = LEVEL) -> Accuracy:
        """Of so many right answers among `num`."""
        return Accuracy(right, num, *wilson(right, num, level))

    @property
    def value(self) -> float:
        return self.right / self.num


def wilson(right: int, num: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval for a probability, of `right` successes in `num` independent trials (Wilson 1927)."""
    require_count("num", num)
    require_count("right", right, least=0)
    require(right <= num, "right", right, f"there are {num} trials; give at most as many")
    require_number("level", level, 0, 1)
    from scipy.stats import binomtest  # slow to import

    found = binomtest(right, num).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)


def strict_answer(text: str) -> str | None:
    """The number behind the first ``####`` that has one, as it is written; None without."""
    found = STRICT.search(text)
    return None if found is None else found.group(1)


def flexible_answer(text: str) -> str | None:
    """The last number in `text`, as it is written; None without."""
    found = list(FLEXIBLE.finditer(text))
    return found[-1].group(0) if found else None


def same_answer(given: str | None, solution: str) -> bool:
    """Whether `given` is the final answer of a GSM8K `solution`; commas, dollar signs and a last full stop aside."""
    require(MARK in solution, "solution", solution, f"holds no final answer; give one behind {MARK!r}")
    return given is not None and _plain(given) == _plain(solution)


def _plain(text: str) -> str:
    for pattern in IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()
