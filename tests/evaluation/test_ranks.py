"""Ranks: which figures are surely smaller, paired by what they share."""

from __future__ import annotations

import math

import pytest
import torch

from thetaleap.evaluation.compare import Row, rank, surely_smaller
from thetaleap.evaluation.metrics.measured import Scattered


def noisy(value: float, *scatter: float) -> Scattered:
    return Scattered(value, torch.tensor(scatter, dtype=torch.float64))


def test_what_two_figures_share_cancels() -> None:
    """Both scatter by 10, and their difference by 0.1: only paired are they told apart, and only on the same side of 0."""
    one, other = noisy(50, 10, 0), noisy(51, 10, 0.1)
    assert one.error == 10
    assert (other - one).error == pytest.approx(0.1)
    assert (other - noisy(50, 0, 0, 10)).error == pytest.approx(math.hypot(10, 0.1, 10))  # of other samples
    assert surely_smaller(one, other, 0.95)
    assert surely_smaller(-one, -other, 0.95)
    assert surely_smaller(one, -other, 0.95)
    assert not surely_smaller(one, noisy(-51, 10, 0.1), 0.95)  # the sum, -1, scatters by 20
    assert not surely_smaller(other, one, 0.95)


def test_sizes_are_rarely_told_apart_in_the_wrong_order() -> None:
    """Two figures of size 1 and of any sign: at most a tenth of 1000 draws say that one is surely smaller, with six
    standard errors for chance (a false alarm below 1e-8). A test of one side alone would say so of a fifth."""
    draws = torch.randn((1000, 2, 50), generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    for sign in (1, -1):
        pairs = [(Scattered.mean(a + 1), Scattered.mean(b + sign)) for a, b in draws]
        wrong = sum(surely_smaller(a, b, 0.9) or surely_smaller(b, a, 0.9) for a, b in pairs)
        assert 20 < wrong < 1000 * (0.1 + 6 * math.sqrt(0.09 / 1000))


def test_ranks_need_one_figure_ahead_and_none_behind() -> None:
    def row(name: str, kl: float, tv: float) -> Row:
        return Row(name, 4, "", 4.0, 1.0, {"kl": noisy(kl, 0.1), "tv": noisy(tv, *[0.0] * 9, 0.1)})

    rows = [row("a", 1, 1), row("b", 1.05, 2), row("c", 3, 1), row("d", 0.1, 9), row("e", 9, 9.5)]
    got = {one.contender: str(one.rank) for one in rank([*rows, Row("f", 4, reason="no")], ["kl", "tv"])}
    # d is ahead of all in one figure and behind them in the other; it is ahead of e, as all are
    assert got == {"a": "1-2", "b": "2-4", "c": "2-4", "d": "1-4", "e": "5", "f": "None"}
