"""Counter-based randomness: the published generator, and answers with the right laws."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thetaleap.core._fast import largest
from thetaleap.core.noise import Draw, Stream, inverse_cdf, philox
from thetaleap.enumeration import plackett_luce

F = 2**64 - 1
PI = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)
KNOWN = [  # Philox4x64-10 from the known-answer file of Random123: counter, key, output
    ((0, 0, 0, 0), (0, 0), (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
    ((F, F, F, F), (F, F), (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0)),
    (
        PI,
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(counter, key, output) -> None:
    u = philox(key[0] + (key[1] << 64), counter, 4)
    assert [int(v * 2**53) for v in u] == [word >> 11 for word in output]


def reference_philox(key: tuple[int, int], counter: tuple[int, ...]) -> list[int]:
    """Philox4x64-10, written out from the paper (Salmon et al. 2011)."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c[2], 2**64)
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % 2**64, (k1 + 0xBB67AE8584CAA73B) % 2**64
    return c


@settings(max_examples=50)
@given(seed=st.integers(0, F), sample=st.integers(0, 2**40), step=st.integers(0, 2**32), width=st.integers(1, 9))
def test_a_uniform_is_a_function_of_its_key_alone(seed, sample, step, width) -> None:
    """Whatever the batch, the number for (seed, sample, step, label, position) is one word of one block."""
    first = max(0, sample - 3)
    u = Stream(seed, first, 5).at(step)(Draw.LEAP)(Draw.MOVE)._numbers("flip", width)[sample - first]
    label = int.from_bytes(hashlib.blake2b(b"/leap/move:flip", digest_size=8).digest(), "little")
    for position in range(width):
        block, word = divmod(sample * width + position, 4)
        raw = reference_philox((seed, 0), (block, step, label, 0))[word]
        assert float(u[position]) == (raw >> 11) * 2.0**-53


def test_rows_are_a_view_of_the_batch() -> None:
    noise, rows = Stream(3, 10, 8).at(2), torch.tensor([6, 1, 3])
    whole = Stream(3, 10, 8).at(2)(Draw.LEAP)._numbers("flip", 4)
    assert np.array_equal(noise(Draw.LEAP)[rows]._numbers("flip", 4), whole[rows.numpy()])
    twice = Stream(3, 10, 8).at(2)(Draw.LEAP)[rows][torch.tensor([2])]._numbers("flip", 4)
    assert np.array_equal(twice, Stream(3, 13, 1).at(2)(Draw.LEAP)._numbers("flip", 4))


def test_a_label_answers_once() -> None:
    noise, p = Stream(0, 0, 2).at(1), torch.full((2, 3), 0.5, dtype=torch.float64)
    noise(Draw.LEAP).flip(p)
    with pytest.raises(RuntimeError, match="asked twice"):
        noise(Draw.LEAP).flip(p)
    noise(Draw.MOVE).flip(p)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True])
def test_bad_seeds(seed) -> None:
    with pytest.raises(Exception, match="seed"):
        Stream(seed, 0, 1)


def test_flip_has_its_probability() -> None:
    """Binomial test at 1e-9 on 4e5 coins; a probability off by 0.006 would be caught surely."""
    p = torch.tensor([[0.1, 0.5]], dtype=torch.float64).expand(200_000, 2)
    positions, _ = Stream(7, 0, 200_000).at(0)(Draw.LEAP).flip(p)
    for column, chance in enumerate((0.1, 0.5)):
        heads = int((positions % 2 == column).sum())
        assert scipy.stats.binomtest(heads, 200_000, chance).pvalue > 1e-9


@pytest.mark.parametrize("written_out", [True, False])
def test_what_is_left_of_a_coin_is_a_uniform(written_out) -> None:
    """The number u of a head, below its chance p, is passed on as u/p. Kolmogorov-Smirnov at 1e-9 on some 6e3 and 9e4
    heads; in the latter a density that is off by 5% on half of the line would be caught surely."""
    p = torch.tensor([[0.02, 0.3]], dtype=torch.float64).expand(300_000, 2)
    p = p.contiguous() if written_out else p
    positions, left = Stream(7, 0, len(p)).at(0)(Draw.LEAP).flip(p)
    u = Stream(7, 0, len(p)).at(0)(Draw.LEAP)._numbers("flip", 2).ravel()[positions.numpy()]
    assert left is not None
    chance = p[positions // 2, positions % 2].numpy()
    np.testing.assert_array_equal(left.numpy(), u / chance)
    assert float(left.max()) < 1
    for column in (0, 1):
        assert scipy.stats.kstest(left[positions % 2 == column].numpy(), "uniform").pvalue > 1e-9


def test_choices_are_made_by_the_numbers_at_hand() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).expand(4, 3)
    numbers = torch.tensor([0.0, 0.49, 0.51, 0.8], dtype=torch.float64)
    stream = Stream(0, 0, 2)(Draw.VALUE)
    assert stream.choose(torch.arange(4), 2, weights, stay=False, numbers=numbers).tolist() == [0, 0, 1, 2]
    stream.choose(torch.arange(4), 2, weights, stay=False)  # fresh ones are still to be had


@settings(max_examples=200)
@given(
    weights=st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda w: sum(w) > 1e-3),
    u=st.one_of(st.floats(0, 1, exclude_max=True), st.just(1 - 2.0**-53), st.just(0.0)),
)
def test_inverse_cdf(weights, u) -> None:
    w = torch.tensor([weights], dtype=torch.float64)
    value = int(inverse_cdf(w, torch.tensor([u], dtype=torch.float64), stay=False))
    cdf = np.cumsum(weights)
    assert weights[value] > 0, "drew a value of weight zero"
    below = cdf[value - 1] if value else 0.0
    assert below - 1e-12 <= u * cdf[-1] <= cdf[value] + 1e-12


def test_inverse_cdf_stays_for_what_is_missing() -> None:
    w = torch.tensor([[0.25, 0.0, 0.25]], dtype=torch.float64)
    drawn = [
        int(inverse_cdf(w, torch.tensor([u], dtype=torch.float64), stay=True)) for u in (0.0, 0.24, 0.26, 0.5, 0.9)
    ]
    assert drawn == [0, 0, 2, 3, 3]


def test_tiny_probabilities_are_seen() -> None:
    """A token of probability 1e-12 has its own stretch of the line: float32 noise would never find it."""
    w = torch.tensor([[1 - 1e-12, 1e-12]], dtype=torch.float64)
    assert int(inverse_cdf(w, torch.tensor([1 - 5e-13], dtype=torch.float64), stay=False)) == 1
    assert int(inverse_cdf(w, torch.tensor([1 - 2e-12], dtype=torch.float64), stay=False)) == 0


def test_pick_follows_plackett_luce() -> None:
    """Chi-square at 1e-9 on 2e5 picks of two out of four, one of them impossible."""
    weights, num = [0.5, 2.0, 0.0, 1.0], 200_000
    log_w = torch.tensor([weights], dtype=torch.float64).log().expand(num, 4)
    chosen = Stream(1, 0, num).at(0)(Draw.LEAP).pick(3 * log_w, torch.full((num,), 2), torch.full((num,), 3.0).double())
    assert bool((chosen.sum(1) == 2).all())
    law = plackett_luce(weights, 2)
    assert law[(0, 1)] == pytest.approx(0.5 / 3.5 * 2 / 3 + 2 / 3.5 * 0.5 / 1.5)
    observed = {key: int((chosen[:, list(key)].all(1)).sum()) for key in law}
    assert sum(observed.values()) == num
    expected = [num * law[key] for key in law]
    assert scipy.stats.chisquare(list(observed.values()), expected).pvalue > 1e-9


def test_largest_takes_the_first_of_equals() -> None:
    key = torch.tensor([[1.0, 3.0, 3.0, 3.0], [-math.inf, 0.0, -1.0, 5.0]], dtype=torch.float64)
    assert largest(key, torch.tensor([2, 1])).tolist() == [[False, True, True, False], [False, False, False, True]]
    assert largest(key, torch.tensor([0, 4])).sum(1).tolist() == [0, 4]


def test_a_question_may_be_put_in_parts_but_not_twice() -> None:
    """The parts of a choice, and of a batch, are what the whole would be; asking for a number again is an error."""
    weights = torch.full((12, 4), 0.25, dtype=torch.float64)
    positions = torch.arange(12)
    whole = Stream(0, 0, 4)(Draw.VALUE).choose(positions, 3, weights, stay=False)
    stream = Stream(0, 0, 4)
    parts = [stream(Draw.VALUE).choose(some, 3, weights[: len(some)], stay=False) for some in positions.split(5)]
    assert torch.equal(torch.cat(parts), whole)
    with pytest.raises(RuntimeError, match="asked twice"):
        stream(Draw.VALUE).choose(positions[3:6], 3, weights[:3], stay=False)

    half = torch.full((4, 3), 0.5, dtype=torch.float64)
    heads, _ = Stream(0, 0, 4)(Draw.KEEP).flip(half)
    odd, even = torch.tensor([1, 3]), torch.tensor([0, 2])
    stream = Stream(0, 0, 4)
    for rows in (odd, even):
        some, _ = stream[rows](Draw.KEEP).flip(half[:2])
        assert torch.equal(rows[some // 3] * 3 + some % 3, heads[torch.isin(heads // 3, rows)])
    with pytest.raises(RuntimeError, match="asked twice"):
        stream[torch.tensor([2])](Draw.KEEP).flip(half[:1])
    with pytest.raises(RuntimeError, match="asked twice"):
        stream(Draw.KEEP).flip(half)
