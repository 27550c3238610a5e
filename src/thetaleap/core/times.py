"""Times of a batch: one for each sample, shape (b,), or one that all share, shape ()."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from . import _fast

Times = Float64[Tensor, "*b"]


def as_time(t: float | Tensor) -> Times:
    """A time as a float64 tensor: shape () for one time, (batch,) for one time per sample."""
    if isinstance(t, float):  # takes two thirds of the time
        return torch.scalar_tensor(t, dtype=torch.float64)
    return torch.as_tensor(t, dtype=torch.float64)


def shared(t: float | Tensor) -> Times:
    """`t` as one time where all samples are at the same, which makes most work about it shorter."""
    time = t if isinstance(t, Tensor) and t.dtype == torch.float64 else as_time(t)
    if time.ndim == 0 or not time.shape[0]:
        return time
    return time[0] if time.stride(0) == 0 or _fast.common(time) is not None else time


def shared_pair(t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """`t` and `s` as two times where all samples are at the same two, otherwise as they are."""
    one, other = shared(t), shared(s)
    return (one, other) if one.ndim == other.ndim else (t, s)


def common(t: float | Tensor) -> float | None:
    """The time that all samples are at, as a number; None if they are at several, or there are none."""
    if isinstance(t, Tensor) and t.ndim:
        return _fast.common(t) if t.shape[0] else None
    return float(t)


def column(t: Times) -> Float64[Tensor, "#b 1"] | Float64[Tensor, ""]:
    """`t` to go with a table that has a row for each sample."""
    return t if t.ndim == 0 else t.unsqueeze(1)


def at(t: Times, positions: Int64[Tensor, " n"], length: int) -> Float64[Tensor, "n 1"] | Float64[Tensor, ""]:
    """`t` to go with a table that has a row for each of `positions`, flat indices."""
    return t if t.ndim == 0 else t[positions // length].unsqueeze(1)
