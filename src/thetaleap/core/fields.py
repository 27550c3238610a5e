"""Hyper-parameters: dataclass fields that say what they are for, what they may be, and how they are written."""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, dataclass, field, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .checks import require, require_choice, require_count, require_kind, require_number

METADATA = "thetaleap"


@dataclass(frozen=True)
class Knob:
    """What a hyper-parameter is for, and which values it takes; None besides, where that is its default."""

    help: str = ""
    low: float | None = None
    """Numbers from `low` to `high`; `closed` names the ends that belong, as for `require_number`."""
    high: float = math.inf
    closed: str = ""
    least: int | None = None
    """Whole numbers of at least this."""
    choices: tuple[str, ...] = ()
    kind: type | None = None
    """What it must be made by."""
    written: str = ""
    """How to write it as text, where its type does not say."""

    @property
    def range(self) -> str:
        """The values it takes, in words."""
        if self.least is not None:
            return f"at least {self.least}"
        if self.low is None:
            return "True or False" if self.kind is bool else " or ".join(self.choices)
        if math.isinf(self.high):
            return f"{'at least' if self.closed else 'above'} {self.low:g}"
        ends = "[" if self.closed in ("low", "both") else "(", "]" if self.closed in ("high", "both") else ")"
        return f"in {ends[0]}{self.low:g}, {self.high:g}{ends[1]}"

    def check(self, name: str, value: Any) -> None:
        """Raise ``ValueError``, or ``TypeError`` of its kind, unless it may be `value`."""
        if self.least is not None:
            require_count(name, value, self.least)
        if self.low is not None:
            require_number(name, value, self.low, self.high, self.closed)
        if self.choices:
            require_choice(name, value, self.choices)
        if self.kind is not None:
            require_kind(name, value, self.kind, f"give {self.written}")


def knob(default: Any = MISSING, help: str = "", *, default_factory: Any = MISSING, **limits: Any) -> Any:
    """A dataclass field with a `Knob` of these `limits`; `check_fields` holds it to them."""
    metadata = {METADATA: Knob(help, **limits)}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def knob_of(one: Field[Any]) -> Knob:
    """What is known of a field; nothing, where it was made without `knob`."""
    return one.metadata.get(METADATA, Knob())


def check_fields(made: Any) -> None:
    """Raise ``ValueError`` unless every field of a dataclass is what its knob allows."""
    for one in fields(made):
        value = getattr(made, one.name)
        if value is not None or one.default is not None:
            knob_of(one).check(one.name, value)


@dataclass(frozen=True)
class Parameter:
    """A field of a class, with its type and default."""

    name: str
    knob: Knob
    hint: Any
    """Its type, without None."""
    default: Any = MISSING
    """`MISSING` where it must be given."""

    @property
    def plain(self) -> type:
        """What is typed for it on a command line: int, float, bool, or else text, which `read` makes into a value."""
        return self.hint if self.hint in (int, float, bool) else str

    def read(self, argument: str, text: str, typed: str | None = None) -> Any:
        """The value that `text` stands for. Errors name the `argument`, and what was `typed` for it, if that is more."""
        if self.hint in (str, Any) or get_origin(self.hint) is Literal:
            return text
        sides = text.split("x") if get_origin(self.hint) is tuple else [text]
        wanted = get_args(self.hint) if get_origin(self.hint) is tuple else (self.hint,)
        usual = {int: "a whole number", float: "a number"}.get(self.hint, "it in Python; it cannot be written as text")
        shown, remedy = typed or text, f"give {self.knob.written or usual}"
        require(len(sides) == len(wanted) and set(wanted) <= {int, float}, argument, shown, remedy)
        try:
            values = [kind(side) for kind, side in zip(wanted, sides, strict=True)]
        except ValueError:
            raise ValueError(f"{argument}={shown!r}: {remedy}") from None
        return tuple(values) if get_origin(self.hint) is tuple else values[0]


def parameters(made: type) -> dict[str, Parameter]:
    """The hyper-parameters of a dataclass, by name."""
    try:
        hints = get_type_hints(made)
    except Exception:  # of another package: an annotation may name what only type checkers import
        plain = {"int": int, "float": float, "bool": bool}
        hints = {n.name: n.type if isinstance(n.type, type) else plain.get(str(n.type), Any) for n in fields(made)}
    found: dict[str, Parameter] = {}
    for one in (one for one in fields(made) if one.init):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        found[one.name] = Parameter(one.name, knob_of(one), _without_none(hints[one.name]), default)
    return found


def _without_none(hint: Any) -> Any:
    """`hint`, or what is left of it without None; `Any` where that is several types."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if NoneType not in get_args(hint):
        return hint
    return kinds[0] if len(kinds) == 1 else Any
