"""Races of exponentials: the same law as the inverse of a cumulated one, and draws that few changes of it move."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from thetaleap.core.noise import Draw, Stream
from thetaleap.core.philox import Use, philox, word
from thetaleap.core.race import race

FALSE_ALARM = 1e-7
DRAWS = 20000


def drawn(weights: torch.Tensor, num: int = DRAWS, stay: bool = False, **options: Any) -> torch.Tensor:
    """One draw from `weights` for each of `num` samples."""
    noise = Stream(11, 0, num, race=True).at(options.pop("step", 3))(Draw.MOVE)
    which = torch.zeros(num, dtype=torch.int64)
    return noise.choose(torch.arange(num), 1, weights.unsqueeze(0), stay, which, options.get("numbers"))


def test_the_numbers_are_those_of_their_addresses() -> None:
    """Written out: value v at a place is one word of one block, and the smallest of -log(u)/p wins."""
    noise, states, length = Stream(5, 7, 3, race=True).at(4)(Draw.LEAP), 6, 2
    weights = torch.tensor(np.random.default_rng(0).random((3, states)))
    places = [(7 + 0) * length + 1, (7 + 2) * length, (7 + 2) * length + 1]
    found = noise.choose(torch.tensor([1, 4, 5]), length, weights, stay=False)
    for place, row, value in zip(places, weights.numpy(), found.tolist(), strict=True):
        u = philox(5, (2 * place, 4, word("/leap:race"), Use.RACE), 8)[:states]
        assert value == np.argmin(-np.log(u) / row)


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_the_law_is_that_of_the_weights(stay: bool, keyed: bool) -> None:
    """False alarm 1e-7; power: 2% moved from one value to another is noticed in 9 runs of 10."""
    weights = torch.tensor([0.4, 0.0, 0.1, 0.25, 1e-300, 0.05], dtype=torch.float64)
    numbers = torch.from_numpy(philox(1, (0, 0, 0, Use.TESTS), DRAWS)) if keyed else None
    total = 1.0 if stay else float(weights.sum())
    law = np.append(weights.numpy() / total, 1 - float(weights.sum()) if stay else 0.0)
    counts = np.bincount(drawn(weights, stay=stay, numbers=numbers).numpy(), minlength=7)
    seen = law > 1e-9
    assert counts[~seen].sum() == 0
    assert scipy.stats.chisquare(counts[seen], DRAWS * law[seen]).pvalue > FALSE_ALARM
    df, shift = int(seen.sum()) - 1, DRAWS * 0.02**2 * (1 / law[0] + 1 / law[2])
    assert scipy.stats.ncx2.sf(scipy.stats.chi2.isf(FALSE_ALARM, df), df, shift) > 0.9


def test_tiny_weights_keep_their_ratios() -> None:
    """Only ratios matter: from 1e-300 down to numbers without full precision, no NaN and the same winners."""
    weights = torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64)
    assert torch.equal(drawn(weights * 2.0**-1000, 2000), drawn(weights, 2000))
    least = torch.tensor([5e-324, 0.0, 1e-323], dtype=torch.float64)
    counts = np.bincount(drawn(least).numpy(), minlength=3)
    assert scipy.stats.chisquare(counts[[0, 2]], [DRAWS / 3, 2 * DRAWS / 3]).pvalue > FALSE_ALARM
    assert counts[1] == 0
    apart = torch.tensor([1e-300, 1.0, 1e300], dtype=torch.float64)
    assert bool((drawn(apart, 1000) == 2).all())


def test_a_draw_moves_only_to_what_gained() -> None:
    """When weights change, a sample keeps its value, or takes one that gained on it: the inverse of a cumulated law
    moves values that changed nothing."""
    before = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    after = torch.tensor([0.15, 0.2, 0.3, 0.4], dtype=torch.float64)
    one, other = drawn(before), drawn(after)
    assert bool(((one == other) | (other == 0)).all())
    # value 0 takes what it must and no more: the share that moves is the distance between the laws
    distance = 0.5 * float((before / before.sum() - after / after.sum()).abs().sum())
    moved = int((one != other).sum())
    assert abs(moved - DRAWS * distance) < 5.4 * math.sqrt(DRAWS * distance)


def test_steps_have_numbers_of_their_own() -> None:
    """Draws at two steps are independent: no correlation, by a chi-square on the table of pairs."""
    weights = torch.ones(3, dtype=torch.float64)
    pairs = 3 * drawn(weights, step=1) + drawn(weights, step=2)
    assert scipy.stats.chisquare(np.bincount(pairs.numpy(), minlength=9)).pvalue > FALSE_ALARM
    numbers = torch.from_numpy(philox(2, (0, 0, 0, Use.TESTS), DRAWS))
    kept = [drawn(weights, step=step, numbers=numbers) for step in (1, 2)]
    assert torch.equal(*kept)  # a number that a position has for the run makes one draw of it
    other = drawn(weights, numbers=numbers.roll(1))
    both = 3 * kept[0] + other
    assert scipy.stats.chisquare(np.bincount(both.numpy(), minlength=9)).pvalue > FALSE_ALARM


def test_samples_are_drawn_alike_whatever_the_batch() -> None:
    weights = torch.tensor(np.random.default_rng(1).random((6, 5)))
    whole = Stream(3, 0, 3, race=True).at(1)(Draw.MOVE).choose(torch.arange(6), 2, weights, stay=False)
    alone = Stream(3, 2, 1, race=True).at(1)(Draw.MOVE).choose(torch.arange(2), 2, weights[4:], stay=False)
    rows = Stream(3, 0, 3, race=True).at(1)(Draw.MOVE)[torch.tensor([2, 0])]
    assert torch.equal(whole[4:], alone)
    assert torch.equal(rows.choose(torch.arange(4), 2, weights[[4, 5, 0, 1]], stay=False), whole[[4, 5, 0, 1]])
    with pytest.raises(RuntimeError, match="asked twice"):
        rows.choose(torch.arange(4), 2, weights[:4], stay=False)


def test_long_rows_are_done_in_parts() -> None:
    weights = torch.tensor(np.random.default_rng(2).random((3, 40000)))
    places, address = np.array([4, 5, 9]), (1, 2, 3)
    together = race(weights, None, False, places, address)
    each = [race(weights[n : n + 1], None, False, places[n : n + 1], address) for n in range(3)]
    assert torch.equal(together, torch.cat(each))
