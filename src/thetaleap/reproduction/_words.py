"""Plain words for numbers, so that what a report says follows from what was measured."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

ORDERS = {1: "first order", 2: "second order"}
NEAR = 0.2
"""A fitted slope is called first or second order within this of -1 or -2."""


def order_name(slope: float) -> str:
    """The order of convergence that a slope on logarithmic axes shows; "order 1.43" where it is none of note."""
    nearest = round(-slope)
    return ORDERS[nearest] if nearest in ORDERS and abs(-slope - nearest) <= NEAR else f"order {-slope:.2f}"


def number(value: float) -> str:
    """Two digits, e.g. 0.031 or 4.2e-06."""
    return f"{value:.2g}"


def listing(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def times(low: float, high: float) -> str:
    """A range of factors: ``3.0 to 4.2 times``, or one where both print alike."""
    first, last = f"{low:.2g}", f"{high:.2g}"
    return f"{first} times" if first == last else f"{first} to {last} times"


def runs(winners: Sequence[tuple[int, str]]) -> str:
    """Who wins where: ``Euler at 16 to 64 and Trapezoidal at 128`` from (16, Euler), (32, Euler), ..."""
    stretches: list[tuple[str, int, int]] = []
    for place, name in winners:
        if stretches and stretches[-1][0] == name:
            stretches[-1] = (name, stretches[-1][1], place)
        else:
            stretches.append((name, place, place))
    return listing([f"{name} at {a}" if a == b else f"{name} at {a} to {b}" for name, a, b in stretches])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be, the first to the left and the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    padded = [
        "  ".join(cell.rjust(w) if n else cell.ljust(w) for n, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    return "\n".join([padded[0], "  ".join("-" * w for w in widths), *padded[1:]])


def page(parts: Sequence[str | list[str]], width: int = 100) -> str:
    """Paragraphs, and lists of points, wrapped to `width`, with empty lines between."""

    def wrapped(text: str, first: str = "", rest: str = "") -> str:
        return textwrap.fill(
            text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        )

    return "\n\n".join(
        wrapped(part) if isinstance(part, str) else "\n".join(wrapped(one, "- ", "  ") for one in part)
        for part in parts
        if part
    )
