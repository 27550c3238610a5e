"""Completion in the shell: options, models, solvers and planners, read from the source so that TAB does not wait."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ..registry import ADAPTERS, CORRECTORS, HOME, PLANNERS, SOLVERS, WRITTEN, Target, models
from .base import COMMANDS, alone
from .catalog import from_source

MODELS = (*models(sourced=False), *(f"{kind}:" for kind in ADAPTERS))
SOLVER, PARTS = ("auto", *SOLVERS), {"predictor": (*SOLVERS,), "corrector": (*CORRECTORS,), "planner": (*PLANNERS,)}
KNOWN = {"model": MODELS, "solver": SOLVER, "solvers": SOLVER, **PARTS}
"""Words that an option or argument takes."""


def outline(name: str) -> Any:
    """A command with the options of the real one, which is not imported."""

    def nothing() -> None:
        pass

    nothing.__signature__ = inspect.Signature(list(_parameters(name)))  # pyright: ignore[reportFunctionMemberAccess]
    return alone(name, nothing)


def _parameters(name: str) -> Iterator[inspect.Parameter]:
    function = Target(f"{__package__}.{COMMANDS[name]}").source().args
    required: list[Any] = [None] * (len(function.args) - len(function.defaults))
    for one, default in zip(function.args, [*required, *function.defaults], strict=True):
        words = [part.value for part in ast.walk(one.annotation) if isinstance(part, ast.Constant)]
        spelt = [text for text in words if isinstance(text, str) and re.fullmatch(r"--[\w-]+", text)]
        flag = isinstance(default, ast.Constant) and default.value is False
        yield _parameter(one.arg, flag, "typer.Argument(" in ast.unparse(one.annotation), spelt)
    if function.kwarg is not None:
        taken = {one.arg for one in function.args}
        yield from (_parameter(key, kind == "bool") for key, kind in _more(function.kwarg.arg) if key not in taken)


def _more(rest: str) -> Iterator[tuple[str, str]]:
    """Names and types of the options that a command takes beside its own: those of solvers, or of a recipe."""
    if rest == "hyper":
        own = (from_source(entry).defaults for entry in SOLVERS.values() if not entry.packages)
        yield from dict.fromkeys((key, "str") for defaults in own for key in defaults if key not in WRITTEN)
        return
    for node in Target(f"{HOME}.training.trainer:Recipe").source().body:
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), ast.unparse(node.annotation)


def _parameter(name: str, flag: bool, argument: bool = False, spelt: list[str] | None = None) -> inspect.Parameter:
    spelt = spelt or [f"--{name.replace('_', '-')}"]

    def words(incomplete: str) -> list[str]:
        return [word for word in KNOWN.get(name, ()) if word.startswith(incomplete)]

    told = typer.Argument(autocompletion=words) if argument else typer.Option(*spelt, autocompletion=words)
    annotation = Annotated[bool if flag else str, told]
    default = False if flag else ""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
