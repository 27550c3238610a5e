"""The types and shapes of all calls within thetaleap are checked while the tests run: `jaxtyping.jaxtyped`, but faster.

jaxtyping's import hook decorates every function and dataclass with it. It checks every call, by beartype, which took longer
than the calls. What it finds depends on types, dtypes and shapes alone: here each combination of these is checked once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import is_dataclass
from itertools import islice
from types import FunctionType, SimpleNamespace
from typing import Any, get_type_hints

import jaxtyping
import numpy as np
import torch
from beartype import BeartypeConf, beartype

checker = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError))  # an int may stand for a float
sizes = functools.partial(jaxtyping.jaxtyped, "context")
"""Within it, axes of one name have one size."""


FEW = 8
"""Items of a collection by which it is judged; beartype takes one at random."""
_plain: set[type] = set()
"""Classes whose instances are all alike to a check."""


def kind(value: Any) -> Any:
    """All that a check of `value` depends on."""
    cls = type(value)
    if cls in _plain:
        return cls
    if cls is torch.Tensor:
        return value.dtype, value.shape
    if cls is tuple:
        return (len(value), *map(kind, value[:FEW]))
    if cls is list or cls is dict:
        return (cls, *map(kind, islice(value.items() if cls is dict else value, FEW)))
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return cls, value.dtype, tuple(value.shape)
    if isinstance(value, (str, type)):  # a Literal asks for strings
        return value
    _plain.add(cls)
    return cls


class Checks:
    """What a function's annotations ask of a call, and the kinds of calls that have passed."""

    def __init__(self, function: FunctionType) -> None:
        self.function, self.passed, self.result = function, set[Any](), None

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        return {name: _meaning(said, self.function.__globals__) for name, said in self.function.__annotations__.items()}

    @functools.cached_property
    def arguments(self) -> Callable[..., Any]:
        """A function that takes the arguments, and nothing else."""
        return self._like({name: hint for name, hint in self.hints.items() if name != "return"})

    @functools.cached_property
    def both(self) -> Callable[..., Any]:
        """A function that takes the arguments, and gives the result."""
        return self._like(self.hints)

    def _like(self, hints: dict[str, Any]) -> Callable[..., Any]:
        @functools.wraps(self.function)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return self.result

        stand_in.__annotations__ = hints
        return checker(stand_in)

    def call(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = (*map(kind, args), kind(kwargs)) if kwargs else tuple(map(kind, args))
        if given not in self.passed:
            with sizes():
                self.arguments(*args, **kwargs)
            self.passed.add(given)
        result = function(*args, **kwargs)
        if (outcome := (given, "gives", kind(result))) not in self.passed:
            before, self.result = self.result, result
            with sizes():
                self.both(*args, **kwargs)
            self.result = before  # a check may call properties, and these this
            self.passed.add(outcome)
        return result


_checks: dict[int, Checks] = {}
"""By the address of a function's code: closures share it, while equal codes may have other annotations."""


def _checked_function(function: Any) -> Callable[..., Any]:
    if not function.__annotations__:
        return function
    checks = _checks.setdefault(id(function.__code__), Checks(function))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:  # pyright: ignore[reportAttributeAccessIssue]
            return function(*args, **kwargs)
        return checks.call(function, args, kwargs)

    return call


def _meaning(said: Any, names: dict[str, Any]) -> Any:
    """What an annotation says; Any where it names what only static checkers import."""
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"it": said}), names, include_extras=True)["it"]
    except NameError:
        return Any


def checked(what: Any) -> Any:
    """`what`, a function or a class, with checks."""
    if isinstance(what, FunctionType):
        return _checked_function(what)
    if is_dataclass(what) and "__init__" in vars(what) and not hasattr(what.__init__, "__wrapped__"):
        what.__init__ = _checked_function(what.__init__)
    return what
