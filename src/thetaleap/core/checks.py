"""Errors that name the argument, the value and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
else:  # the command line checks its arguments without torch
    Tensor = Any


def require(condition: bool, argument: str, value: Any, remedy: str) -> None:
    """Raise ``ValueError`` saying what was given and what to give instead, unless `condition` holds."""
    if not condition:
        raise ValueError(f"{argument}={value!r}: {remedy}")


def require_count(argument: str, value: Any, least: int = 1) -> None:
    """`value` must be a whole number of at least `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= least, argument, value, f"give a whole number of at least {least}")


def require_number(argument: str, value: Any, low: float, high: float, closed: str = "") -> None:
    """`value` must lie between `low` and `high`; `closed` names the ends that belong ("low", "high", "both")."""
    require(isinstance(value, int | float), argument, value, "give a number")
    above = value >= low if closed in ("low", "both") else value > low
    below = value <= high if closed in ("high", "both") else value < high
    left, right = "[" if closed in ("low", "both") else "(", "]" if closed in ("high", "both") else ")"
    require(above and below, argument, value, f"must lie in {left}{low:g}, {high:g}{right}")


def require_choice(argument: str, value: Any, choices: Iterable[str]) -> None:
    """`value` must be one of `choices`; the error suggests the nearest."""
    known = list(choices)
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{argument}={value!r}: {hint}choose one of {', '.join(known)}")


def probability_table(argument: str, table: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """`table` as float64 probabilities that sum to one over `dim`, or an error that says what is wrong.

    The entries are divided by their sum, which may differ from one by rounding (1e-6, as for float32 input).
    """
    import torch

    if not isinstance(table, torch.Tensor) or not table.is_floating_point():
        kind = table.dtype if isinstance(table, torch.Tensor) else type(table).__name__
        raise TypeError(f"{argument} is {kind}: give a floating-point torch tensor of probabilities")
    p = table.detach().to(torch.float64)
    if not bool(torch.isfinite(p).all()):
        raise ValueError(f"{argument} holds NaN or infinite entries: give finite probabilities")
    if bool((p < 0).any()):
        raise ValueError(f"{argument} has the negative entry {float(p.min()):g}: probabilities are at least 0")
    total = p.sum() if dim is None else p.sum(dim, keepdim=True)
    off = (total - 1).abs().max()
    if float(off) > 1e-6:
        worst = float(total.flatten()[(total - 1).abs().argmax()])
        raise ValueError(f"{argument} sums to {worst:.9g}: divide it by its sum so that it sums to 1")
    return p / total


def finite(value: float) -> bool:
    """Whether `value` is a finite number (and not, say, a string)."""
    return isinstance(value, int | float) and math.isfinite(value)
