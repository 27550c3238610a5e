"""Options that several commands have, and those that are made from the hyper-parameters of solvers."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..core.checks import require, require_choice
from ..core.fields import Parameter
from ..evaluation.choice import PARTS, hyper_parameters, kind_of
from ..models import load
from ..registry import SOLVERS, WRITTEN

DTYPES = ("float16", "bfloat16", "float32", "float64")
METHOD = "The method: [cyan]thetaleap solvers[/] lists them."
DEVICE = "Where the network runs, as in cuda:0."
DTYPE = f"The network's precision: {', '.join(DTYPES)}."
SPREAD = "How to spread the network over several devices, as in auto; for language models, with accelerate."
REMOTE = "Run the code that comes with the model; published language models need it."
REUSE = "Run the network on part of the positions within a --block: faster, but another law; for llada and dream."
DUAL = "Run it on the positions of the block alone: another law again; in place of the option before."
SEED = "From 0 to 2^64 - 1."


def option(panel: str | None, help: str, *names: str, show: bool | str = True, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, show_default=show, metavar=metavar, rich_help_panel=panel)


Device = Annotated[str | None, option("Model", DEVICE, metavar="DEVICE", show="cpu")]
Dtype = Annotated[
    str | None, option("Model", DTYPE, metavar="DTYPE", show="the model's own; of language models on a GPU bfloat16")
]
DeviceMap = Annotated[str | None, option("Model", SPREAD, metavar="MAP", show="all on --device")]
TrustRemoteCode = Annotated[bool, option("Model", REMOTE, "--trust-remote-code", show=False)]


def opened(model: str, **options: Any) -> Any:
    """The model, with those of the options that were given."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if "dtype" in given:
        require_choice("dtype", given["dtype"], DTYPES)
    return load(model, **given)


def parse_budgets(text: str) -> list[int]:
    """Whole numbers with commas between."""
    parts = text.split(",")
    good = all(part.strip().isdigit() and int(part) > 0 for part in parts)
    require(good, "nfe", text, "give whole numbers of at least 1, with commas between, as in 4,8,16")
    return [int(part) for part in parts]


def extended(command: Callable[..., None], more: Mapping[str, Any], before: str | None = None) -> Callable[..., None]:
    """A command that ends with ``**rest``, and takes `more` options: annotations by name, with None as default. They
    stand `before` one of its own, or at the end; its own names win."""
    signature, keyword = inspect.signature(command, eval_str=True), inspect.Parameter.KEYWORD_ONLY
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    names = [one.name for one in own]
    place = names.index(before) if before else len(own)
    made = [
        inspect.Parameter(name, keyword, default=None, annotation=annotation)
        for name, annotation in more.items()
        if name not in names
    ]
    every = [one.replace(kind=keyword) for one in (*own[:place], *made, *own[place:])]
    command.__signature__ = signature.replace(parameters=every)  # pyright: ignore[reportFunctionMemberAccess]
    return command


def with_hyper_parameters(before: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """An option for each hyper-parameter of any solver; `require_no_clash` is for those with the name of another."""
    made = {name: _annotation(owners) for name, owners in hyper_parameters().items() if name not in WRITTEN}
    return lambda command: extended(command, made, before)


def require_no_clash(solver: str, command: Callable[..., None]) -> None:
    """A solver of another package may have no hyper-parameter that is called as an option of the command itself."""
    if solver in SOLVERS and SOLVERS[solver].packages:
        made = [name for name, owners in hyper_parameters().items() if solver in owners]
        taken = [name for name in made if name in command.__annotations__]
        package = ", ".join(SOLVERS[solver].packages)
        require(not taken, "solver", solver, f"its {', '.join(taken)} of the package {package} is an option already")


def _annotation(owners: dict[str, Parameter]) -> Any:
    """The type and the option of a hyper-parameter that these solvers have."""
    kinds = {one.plain for one in owners.values()}
    kind = kinds.pop() if len(kinds) == 1 else str
    given = [one.default for one in owners.values() if one.default is not None and one.default is not MISSING]
    values = dict.fromkeys(_shown(default) for default in given)
    default = f" [dim]\\[default: {escape(' or '.join(values))}][/]" if values else ""
    help = f"{escape(_about(owners))} For {', '.join(owners)}.{default}".lstrip()
    return Annotated[kind | None, option("Solver", help, show=False)]


def _shown(default: Any) -> str:
    """A default as it is typed."""
    parts = (found for _, registry in PARTS.values() for found in registry.loaded().items())
    return next((name for name, made in parts if type(default) is made), str(default))


def _about(owners: dict[str, Parameter]) -> str:
    """What the hyper-parameter is for, and which values it takes: the usual ones first."""
    told: list[str] = []
    for help in dict.fromkeys(one.knob.help for one in owners.values()):
        same = {name: one for name, one in owners.items() if one.knob.help == help}
        ranges = Counter(_range(one) for one in same.values())
        usual = ranges.most_common(1)[0][0]
        parts = [help, usual] + [f"for {name} {_range(one)}" for name, one in same.items() if _range(one) != usual]
        told.append(", ".join(part for part in parts if part))
    return " ".join(f"{part}." for part in told if part)


def _range(one: Parameter) -> str:
    kind = kind_of(one)
    if kind == "solver":
        return "by name, or as in Python"
    if kind is not None:
        return f"one of {', '.join(PARTS[kind][1])}; NAME:VALUE sets the first of its hyper-parameters"
    said = all(choice in one.knob.help for choice in one.knob.choices)
    return "" if one.knob.choices and said else one.knob.range
