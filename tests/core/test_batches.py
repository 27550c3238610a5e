"""Sequences in batches are those of the whole, however they are stored."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from thetaleap.core.batches import Batches


def in_parts(x: Tensor, *sizes: int) -> Batches:
    """The same sequences in parts of these sizes, which are made anew for each pass."""
    whole = Batches.of(x)
    return Batches(whole.num, whole.length, whole.least, whole.most, lambda: (part.clone() for part in x.split(sizes)))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), size=st.integers(1, 12), data=st.data())
def test_parts_do_not_matter(sizes: list[int], size: int, data: st.DataObject) -> None:
    x = torch.arange(3 * sum(sizes)).view(-1, 3)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(x)), st.integers(0, len(x)))))
    for one in (Batches.of(x), in_parts(x, *sizes)):
        assert (len(one), one.shape, one.least, one.most) == (len(x), tuple(x.shape), 0, x.numel() - 1)
        for _ in range(2):
            assert [rows.tolist() for rows in one.split(size)] == [rows.tolist() for rows in x.split(size)]
        assert torch.equal(one.tensor(), x)
        some = one[start:stop]
        assert (len(some), some.tensor().tolist()) == (stop - start, x[start:stop].tolist())
    assert Batches.of(one) is one


def test_what_was_seen_is_told() -> None:
    told: list[int] = []
    for _ in in_parts(torch.zeros((7, 2), dtype=torch.int64), 3, 4).watched(told.append).split(2):
        pass
    assert told == [2, 2, 2, 1]


def test_nothing_is_no_batch() -> None:
    empty = Batches.of(torch.zeros((0, 4), dtype=torch.int64))
    assert (list(empty.split(3)), empty.tensor().shape) == ([], (0, 4))
