"""Fields that say what they are, and hold their values to it."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Any, Literal

import pytest

from thetaleap.core.fields import Knob, check_fields, knob, parameters


@dataclass(frozen=True)
class Made:
    share: float = knob(0.5, "A share", low=0, high=1, closed="high")
    count: int = knob(2, "A count", least=1)
    form: Literal["a", "b"] = knob("a", "A form", choices=("a", "b"))
    limit: float | None = knob(None, "A limit", low=0, closed="low")
    shape: tuple[int, int] | None = knob(None, "A shape", written="HEIGHTxWIDTH")
    rest: list[int] = knob(help="The rest", default_factory=list)

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"share": 0.0}, r"share=0.0: must lie in \(0, 1\]"),
        ({"share": 1.5}, r"share=1.5: must lie in \(0, 1\]"),
        ({"count": 0}, "count=0: give a whole number of at least 1"),
        ({"form": "aa"}, "form='aa': did you mean 'a'"),
        ({"limit": -1.0}, r"limit=-1.0: must lie in \[0, inf\)"),
    ],
)
def test_values_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Made(**given)


def test_none_is_for_fields_that_have_it_as_default() -> None:
    assert Made(limit=None, shape=None) == Made()
    with pytest.raises(ValueError, match="count=None: give a whole number"):
        Made(count=None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"low": 0, "high": 1}, "in (0, 1)"),
        ({"low": 0, "high": 1, "closed": "both"}, "in [0, 1]"),
        ({"low": 0, "closed": "low"}, "at least 0"),
        ({"low": 0}, "above 0"),
        ({"least": 1}, "at least 1"),
        ({"choices": ("a", "b")}, "a or b"),
        ({}, ""),
    ],
)
def test_ranges_in_words(limits: dict[str, Any], words: str) -> None:
    assert Knob("", **limits).range == words


def test_values_are_read_from_text() -> None:
    known = parameters(Made)
    assert {name: one.plain for name, one in known.items()} == {
        **{"share": float, "count": int, "form": str, "limit": float, "shape": str, "rest": str}
    }
    assert [known[name].default for name in ("share", "limit", "rest")] == [0.5, None, []]
    assert MISSING not in [one.default for one in known.values()]
    assert known["limit"].read("--limit", "0.25") == 0.25
    assert known["form"].read("--form", "b") == "b"
    assert known["shape"].read("planner", "4x16") == (4, 16)
    for name, text, message in [
        ("count", "x", "--count='x': give a whole number"),
        ("share", "x", "--share='x': give a number"),
        ("shape", "4", "--shape='4': give HEIGHTxWIDTH"),
        ("rest", "4", "--rest='4': give it in Python; it cannot be written as text"),
    ]:
        with pytest.raises(ValueError, match=message):
            known[name].read(f"--{name}", text)
