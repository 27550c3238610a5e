"""Small operations that numpy does in a third of torch's time, with torch for what is not in the CPU's memory.

All such forks are here. `USE_NUMPY` off runs the torch branch on the CPU too, as the tests do.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

USE_NUMPY = True
Bound = float | Float64[Tensor, "b 1"]


def _by_numpy(x: Tensor) -> bool:
    return USE_NUMPY and x.is_cpu


def equal(x: Int64[Tensor, "b d"], value: int) -> Bool[Tensor, "b d"]:
    """``x == value``."""
    return torch.from_numpy(x.numpy() == value) if _by_numpy(x) else x == value


def at_value(x: Int64[Tensor, "*n"], value: int, then: float | Tensor) -> Float64[Tensor, " ..."]:
    """`then` where x has the `value`, otherwise 0."""
    if isinstance(then, float) and _by_numpy(x):
        return torch.from_numpy(np.where(x.numpy() == value, then, 0.0))
    return torch.where(x == value, torch.as_tensor(then, dtype=torch.float64, device=x.device), 0.0)


def indices(true: Bool[Tensor, "b d"]) -> Int64[Tensor, " n"]:
    """Flat indices of what is true."""
    if _by_numpy(true):
        return torch.from_numpy(true.numpy().ravel().nonzero()[0])
    return torch.nonzero(true.flatten()).flatten()


def some_but_not_all(rows: Bool[Tensor, " b"]) -> Int64[Tensor, " k"] | None:
    """The rows that are true; None if all are."""
    if _by_numpy(rows):
        true = rows.numpy()
        return None if true.all() else torch.from_numpy(np.flatnonzero(true))
    return None if bool(rows.all()) else torch.nonzero(rows).flatten()


def false_rows(rows: Bool[Tensor, " b"]) -> Int64[Tensor, " k"] | None:
    """The rows that are false; None if all are."""
    if _by_numpy(rows):
        true = rows.numpy()
        return torch.from_numpy(np.flatnonzero(~true)) if true.any() else None
    return torch.nonzero(~rows).flatten() if bool(rows.any()) else None


def any_in_row(true: Bool[Tensor, "b d"]) -> Bool[Tensor, " b"]:
    """Whether each row has one that is true."""
    return torch.from_numpy(true.numpy().any(1)) if _by_numpy(true) else true.any(1)


def count_in_row(true: Bool[Tensor, "b d"]) -> Int64[Tensor, " b"]:
    """How many of each row are true."""
    return torch.from_numpy(np.add.reduce(true.numpy(), 1, np.int64)) if _by_numpy(true) else true.sum(1)


def common(values: Tensor) -> int | float | None:
    """The number that all of `values` are, 0 of none; None if they differ."""
    if not values.shape[0]:
        return 0
    one = values.stride(0) == 0  # expanded
    if _by_numpy(values):
        array = values.numpy()
        return array[0].item() if one or (array == array[0]).all() else None
    return values[0].item() if one or bool((values == values[0]).all()) else None


def same(x: Tensor, y: Tensor, where: Bool[Tensor, "b d"]) -> bool:
    """Whether `x` and `y` agree `where` it is true."""
    if _by_numpy(x):
        return not ((x.numpy() != y.numpy()) & where.numpy()).any()
    return not bool(((x != y) & where).any())


def heads(
    u: Float64[np.ndarray, "b d"], probability: Float64[Tensor, "b d"]
) -> tuple[Int64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Flat indices of where ``u < probability``, and ``u/probability`` there: uniform again."""
    if _by_numpy(probability):
        p = probability.numpy()
        found = (u < p).ravel().nonzero()[0]
        chance = p.ravel()[found] if p.flags.c_contiguous else p[found // p.shape[1], found % p.shape[1]]
        return torch.from_numpy(found), torch.from_numpy(u.ravel()[found] / chance)
    tossed, length = torch.from_numpy(u).to(probability.device), probability.shape[1]
    found = indices(tossed < probability)
    return found, tossed.flatten()[found] / probability[found // length, found % length]


def passed(
    among: Bool[Tensor, "b d"], level: Float64[Tensor, "b d"], high: Bound, low: Bound
) -> tuple[Int64[Tensor, " n"], Float64[Tensor, " n"], bool]:
    """Flat indices of those `among` whose level is above `low`; how far each is on the way from `high`, 0, down to
    `low`, 1; and whether all are on it. A negative `low` stands for 0."""
    if _by_numpy(level) and isinstance(high, float) and isinstance(low, float):
        levels = level.numpy()
        found = (among.numpy() & (levels > low)).ravel().nonzero()[0]
        room = high - max(low, 0.0)
        part = (high - levels.ravel()[found]) / room if room else np.full(len(found), np.nan)
        return torch.from_numpy(found), torch.from_numpy(part), not len(found) or bool(part.min() >= 0)
    found, length = indices(among & (level > low)), level.shape[1]
    top, end = (torch.as_tensor(each, dtype=torch.float64, device=level.device) for each in (high, low))
    top, end = (each if each.ndim == 0 else each[found // length, 0] for each in (top, end.clamp_min(0)))
    part = (top - level.flatten()[found]) / (top - end)
    return found, part, bool((part >= 0).all())


def reaches(high: Float64[Tensor, "b 1"], low: Float64[Tensor, "b 1"]) -> bool:
    """Whether ``high >= low`` anywhere."""
    if _by_numpy(high):
        return bool((high.numpy() >= low.numpy()).any())
    return bool((high >= low).any())


def add_to(counts: Int64[Tensor, " batch"], rows: Int64[Tensor, " n"] | None, number: int) -> None:
    """Add a number to `counts` at different `rows`, or to all."""
    if _by_numpy(counts):
        counts.numpy()[... if rows is None else rows.numpy()] += number
    else:
        counts[... if rows is None else rows] += number


def first(
    key: Float64[Tensor, "b d"], count: Int64[Tensor, " b"], among: Bool[Tensor, "b d"]
) -> tuple[Int64[Tensor, " n"], Float64[Tensor, "b 1"], Float64[Tensor, "b 1"]]:
    """Flat indices of the `count` largest keys of those `among`; the least of these keys in each row, infinite where
    the count is 0; and the largest of those `among`."""
    keep, least, most = _ranked(key, count, among)
    return indices(keep), least, most


def largest(
    key: Float64[Tensor, "b d"], count: Int64[Tensor, " b"], among: Bool[Tensor, "b d"] | None = None
) -> Bool[Tensor, "b d"]:
    """The `count` largest entries of each row, all or those `among`; of equal ones the first."""
    return _ranked(key, count, among)[0]


def _ranked(
    key: Float64[Tensor, "b d"], count: Int64[Tensor, " b"], among: Bool[Tensor, "b d"] | None
) -> tuple[Bool[Tensor, "b d"], Float64[Tensor, "b 1"], Float64[Tensor, "b 1"]]:
    """The `count` largest entries of each row, the least of them, and the largest of all."""
    length = key.shape[1]
    if _by_numpy(key):
        keys, wanted = key.detach().numpy(), count.numpy()
        keys = keys if among is None else np.where(among.numpy(), keys, -np.inf)
        ascending = np.sort(keys, 1)
        least = ascending[np.arange(len(wanted)), length - np.maximum(wanted, 1)]
        least[wanted == 0] = np.inf
        least = least[:, None]
        keep = ~(keys < least)  # NaN is the largest of all
        if np.count_nonzero(keep) == wanted.sum():  # no ties
            return torch.from_numpy(keep), torch.from_numpy(least), torch.from_numpy(ascending[:, -1:])
    key, wanted = key if among is None else torch.where(among, key, -torch.inf), count.unsqueeze(1)
    ordered, order = torch.sort(key, dim=1, descending=True, stable=True)
    ranks = torch.arange(length, device=key.device).expand_as(order)
    keep = torch.empty_like(order).scatter_(1, order, ranks) < wanted
    least = torch.where(wanted > 0, ordered.gather(1, (wanted - 1).clamp_min(0)), torch.inf)
    return keep, least, ordered[:, :1]
