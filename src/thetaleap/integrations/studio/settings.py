"""Settings of a tab: dataclasses, read from what was typed or from a link, and written as a link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar
from urllib.parse import urlencode

from ...core.checks import require, require_choice
from ...core.fields import check_fields, parameters

T = TypeVar("T")
LONGEST = 4000
"""Characters of one setting."""


def read(kind: type[T], given: Mapping[str, Any]) -> T:
    """Settings of this `kind`: numbers, texts, or several texts, as a form or a link has them."""
    known, values = parameters(kind), dict[str, Any]()
    for name, value in given.items():
        require_choice("setting", name, known)
        text = _text(value)
        require(len(text) <= LONGEST, name, text[:20], f"give at most {LONGEST} characters")
        values[name] = known[name].read(name, text)
    return kind(**values)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    whole = isinstance(value, float) and value.is_integer()
    return "" if value is None else str(int(value) if whole else value)


def query(tab: str, settings: Any) -> str:
    """All settings of a tab as the end of a link."""
    return "?" + urlencode({"tab": tab, **{one.name: getattr(settings, one.name) for one in fields(settings)}})


def check(settings: Any, **most: int) -> None:
    """Raise ``ValueError`` unless every setting is what its knob allows, and these are no more than a page is for."""
    check_fields(settings)
    for name, limit in most.items():
        require_most(name, getattr(settings, name), limit)


def require_most(name: str, value: float, most: float) -> None:
    """A page is for short work: no more than `most`."""
    require(value <= most, name, value, f"give at most {most}, or use the command line")
