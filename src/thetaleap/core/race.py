"""Choices that change as rarely as their laws do.

Value v of weight p_v gets an exponential number E_v, and the smallest ``E_v/p_v`` wins: v does so with probability
``p_v/sum(p)``, since ``E_v/p_v`` is exponential with rate p_v. The numbers do not depend on the weights. So if these
move a little, most likely the same value wins; the inverse of a cumulated law moves all later values instead.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .philox import Use, philox

PIECE = 2**15
"""Numbers that are worked on at a time: they stay in the cache of a processor, and in one piece of memory."""
LEAST = 2.0**-54
"""Stands for a uniform of 0, whose logarithm is infinite; the only one below."""

Address = tuple[int, int | list[int], int]
"""The first three words for a race: seed, step and label. Each position may have a step of its own."""


def race(
    weights: Float64[Tensor, "k S"],
    which: Int64[Tensor, " n"] | None,
    stay: bool,
    positions: Int64[np.ndarray, " n"],
    address: Address,
) -> Int64[Tensor, " n"]:
    """The value that wins at each of the positions, which are in order, with ``weights[which]``, by default a row for
    each. With `stay`, what a row lacks of one takes part as value S.

    The numbers are a function of address, position and value.
    """
    seed, step, label = address
    width = weights.shape[1] + stay
    some, blocks = max(1, PIECE // width), -(-width // 4)
    table = np.empty((min(some, len(positions)), 4 * blocks))
    won = torch.empty(len(positions), dtype=torch.int64, device=weights.device)
    for first in range(0, len(positions), some):
        part = slice(first, first + some)
        u = table[: len(positions[part])]
        for start, end, own in _stretches(positions[part], step[part] if isinstance(step, list) else step):
            counter = (int(positions[first + start]) * blocks, own, label, Use.RACE)
            philox(seed, counter, out=u[start:end].reshape(-1))
        np.log(np.maximum(u, LEAST, out=u), out=u)
        p = weights[part if which is None else which[part]]
        if stay:
            p = torch.cat([p, (1 - p.sum(1, keepdim=True)).clamp_min_(0)], 1)
        # by the largest, so that no quotient that may win is beyond the range of numbers, however small the weights
        p = p / p.amax(1, keepdim=True)
        torch.argmax(torch.from_numpy(u[:, :width]).to(p.device) / p, 1, out=won[part])
    return won


def _stretches(positions: Int64[np.ndarray, " n"], step: int | list[int]) -> list[tuple[int, int, int]]:
    """Positions that follow each other in one step, and so do their numbers: first, end, and the step."""
    if isinstance(step, list):
        return [(n, n + 1, own) for n, own in enumerate(step)]
    ends = [*(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    return [(start, end, step) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
