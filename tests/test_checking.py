"""The checks of types and shapes that all tests run under: they find what jaxtyping's own decorator finds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

import thetaleap as tl
from tests.checking import checked, checker, sizes

PAIR, TABLE = torch.zeros(2, dtype=torch.float64), torch.zeros((3, 2), dtype=torch.int64)
VALUES = [PAIR, PAIR[:1], PAIR.float(), torch.nn.Parameter(PAIR), PAIR.numpy(), TABLE]
VALUES += [7, None, "linear", "cubic", (1, 2), (1, "b"), [1, 2]]


def result(x: Int64[Tensor, "b d"] | str, out: Any) -> Float64[Tensor, " d"] | None:
    return out


def arguments(x: Float64[Tensor, " b"], y: Float64[Tensor, " b"] | Literal["linear"] | tuple[int, int]) -> None:
    pass


def stream(x: Float64[Tensor, " b"] | int, y: object) -> Iterator[object]:
    yield y


def table() -> Any:
    """A dataclass, new each time."""

    @dataclass
    class Table:
        x: Int64[Tensor, "b d"] | None
        weight: Float64[Tensor, " d"] | float

    return Table


def passes(function: Callable[..., Any], *args: Any) -> bool:
    try:
        function(*args)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("make", [lambda: result, lambda: arguments, lambda: stream, table])
def test_the_same_calls_pass(make: Callable[[], Any]) -> None:
    """All pairs of values, and again, so that what has passed comes between what has not."""
    ours, theirs = checked(make()), sizes.func(make(), typechecker=checker)
    pairs = list(itertools.product(VALUES, repeat=2))
    truth = [passes(theirs, *pair) for pair in pairs]
    assert 0 < sum(truth) < len(truth)
    assert [passes(ours, *pair) for pair in pairs] == truth
    assert [passes(ours, *pair) for pair in reversed(pairs)] == truth[::-1]


def test_closures_are_told_apart_by_what_they_hold() -> None:
    def adding(number: int) -> Callable[[int], int]:
        def add(to: int) -> int:
            return to + number

        return checked(add)

    assert [adding(number)(10) for number in (1, 2)] == [11, 12]
    assert not passes(adding(1), "10")


def test_equal_code_with_other_annotations() -> None:
    words, numbers = (checked(make_dataclass("Held", [("it", hint)])) for hint in (str, int))
    assert passes(words, "a")
    assert passes(numbers, 1)
    assert not passes(numbers, "a")
    assert not passes(words, 1)


def test_the_package_is_checked() -> None:
    """An integer model is asked about floats, and about more times than samples."""
    model, time = tl.load("cube3"), PAIR + 0.5
    assert passes(model, torch.zeros((2, 3), dtype=torch.int64), time)
    assert not passes(model, torch.zeros((2, 3)), time)
    assert not passes(tl.Masked, "3")
