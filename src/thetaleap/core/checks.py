"""Errors that name the argument, the value and the remedy."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
else:  # the command line checks its arguments without torch
    Tensor = Any


LONGEST = 200
"""Characters of a value in an error."""


def shown(value: Any) -> str:
    """`value` for an error: in one line, and not endless."""
    text = repr(value)
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def require(condition: bool, argument: str, value: Any, remedy: str) -> None:
    """Raise ``ValueError`` saying what was given and what to give instead, unless `condition` holds."""
    if not condition:
        raise ValueError(f"{argument}={shown(value)}: {remedy}")


def require_kind(argument: str, value: Any, kind: Any, remedy: str) -> None:
    """Raise ``TypeError`` saying what was given and what to give instead, unless `value` is of that `kind`."""
    if isinstance(value, type):
        raise TypeError(f"{argument}={value.__name__}: is a class; {remedy}")
    if not isinstance(value, kind):
        raise TypeError(f"{argument}={shown(value)}: {remedy}")


def as_device(value: Any) -> Any:
    """`value` as a torch device that is there, or an error."""
    import torch

    try:
        device = torch.device(value)
        torch.empty(0, device=device).cpu()  # only an attempt tells
    except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError):
        kind = torch.accelerator.current_accelerator()
        others = [] if kind is None else [f"{kind.type}:{n}" for n in range(torch.accelerator.device_count())]
        raise ValueError(f"device={shown(value)}: there is none here; give {' or '.join(['cpu', *others])}") from None
    return device


def as_dtype(value: Any) -> Any:
    """`value`, a torch dtype of floating-point numbers or the name of one; or an error."""
    import torch

    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    good = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    require(good, "dtype", value, "give a floating-point one, such as torch.bfloat16 or 'bfloat16'")
    return dtype


def takes(function: Any, *inputs: Any, **keywords: Any) -> bool | None:
    """Whether it can be called with these; None if it does not say."""
    import torch

    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        inspect.signature(target).bind(*inputs, **keywords)
    except TypeError:
        return False
    except ValueError:
        return None
    return True


def require_flag(argument: str, value: Any) -> None:
    """`value` must be True or False."""
    require_kind(argument, value, bool, "say True or False")


def require_count(argument: str, value: Any, least: int = 1, most: int = 2**63 - 1) -> None:
    """`value` must be a whole number of at least `least`, and at most `most`, one below a power of two."""
    require(is_whole(value) and value >= least, argument, value, f"give a whole number of at least {least}")
    require(value <= most, argument, value, f"must be below 2**{most.bit_length()}")


def require_number(argument: str, value: Any, low: float, high: float, closed: str = "") -> None:
    """`value` must lie between `low` and `high`; `closed` names the ends that belong ("low", "high", "both")."""
    require(is_number(value), argument, value, "give a number")
    above = value >= low if closed in ("low", "both") else value > low
    below = value <= high if closed in ("high", "both") else value < high
    left, right = "[" if closed in ("low", "both") else "(", "]" if closed in ("high", "both") else ")"
    require(above and below, argument, value, f"must lie in {left}{low:g}, {high:g}{right}")


def require_choice(argument: str, value: Any, choices: Iterable[str]) -> None:
    """`value` must be one of `choices`; the error suggests the nearest, and names them first."""
    known = {name.lower(): name for name in choices}
    if not isinstance(value, str) or value not in known.values():
        near = [known.pop(name) for name in difflib.get_close_matches(str(value).lower(), known)]
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{argument}={shown(value)}: {hint}choose one of {', '.join([*near, *known.values()])}")


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


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number, of Python or numpy; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether `value` is a number, of Python or numpy; True and False are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def finite(value: Any) -> bool:
    """Whether `value` is a finite number (and not, say, a string)."""
    return is_number(value) and math.isfinite(value)


def of_this_package(error: BaseException) -> bool:
    """Whether this package raised `error`: such errors say what to do."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return module.partition(".")[0] == __name__.partition(".")[0]
