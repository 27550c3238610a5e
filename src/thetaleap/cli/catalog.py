"""``thetaleap models`` and ``thetaleap solvers``, from the registry, without torch."""

from __future__ import annotations

import ast
from dataclasses import MISSING, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..core.fields import parameters
from ..evaluation.advice import ADVICE
from ..registry import ADAPTERS, BUILT_IN, PLANNERS, SOLVERS, Entry, models
from .base import table_of


def list_models() -> None:
    """List the models: name, process, length (positions), states (values per position), and what it is.

    Example: [cyan]thetaleap models[/]
    """
    table = table_of("model", "process", "#length", "#states", "what it is")
    others = {name: one for name, one in models(sourced=False).items() if name not in BUILT_IN}
    sourced = {f"{kind}:SOURCE": one for kind, one in ADAPTERS.items()}
    for name, one in {**BUILT_IN, **sourced, **others}.items():
        sizes = ("" if size is None else str(size) for size in (one.length, one.states))
        table.add_row(name, one.process, *sizes, escape(one.about))
    Console().print(table)


def list_solvers() -> None:
    """List the solvers: name, class with its defaults, evaluations per step, processes, and when to use which.

    Example: [cyan]thetaleap solvers[/]
    """
    table = table_of("solver", "#per step", "processes", "when to use it, class and defaults")
    table.add_row("auto", "1-2", "any", "the default: what measured best for such a model and budget, as below")
    for name, entry in SOLVERS.items():
        try:
            one = described(entry)
        except ImportError as error:
            table.add_row(name, "", "", escape(str(error)))
            continue
        table.add_row(name, one.cost, one.works_for, f"{escape(one.when)}\n[cyan]{escape(one.call)}[/]")
    chosen = table_of("auto takes", "for models that are")
    for one in ADVICE.values():
        chosen.add_row(f"[cyan]{escape(one.solver)}[/]", escape(one.when))
    planners = table_of("planner", "class and defaults, for --planner NAME or NAME:VALUE")
    for name, entry in PLANNERS.items():
        try:
            planners.add_row(name, f"[cyan]{escape(described(entry).call)}[/]")
        except ImportError as error:
            planners.add_row(name, escape(str(error)))
    for part in (table, planners, chosen):
        Console().print(part)
        Console().print()


def advice_markdown() -> str:
    """What ``auto`` takes, for the documents."""
    rows = ["| model and budget | `auto` takes | why |", "| --- | --- | --- |"]
    return "\n".join([*rows, *(f"| {one.when} | `{one.solver}` | {one.reason} |" for one in ADVICE.values())])


def markdown() -> str:
    """The table of solvers, for the documents."""
    rows = [
        "| solver | class and defaults | evaluations per step | processes | use it |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, one in ((name, described(entry)) for name, entry in SOLVERS.items() if not entry.packages):
        rows.append(f"| `{name}` | `{one.call}` | {one.cost} | {one.works_for} | {one.when} |")
    return "\n".join(rows)


@dataclass(frozen=True)
class Description:
    """What is said of a solver."""

    name: str
    """Of its class."""
    defaults: dict[str, str]
    """As they are written in Python; empty where there is none."""
    evaluations: int | None
    processes: str
    when: str

    @property
    def call(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' if value else key for key, value in self.defaults.items())})"

    @property
    def cost(self) -> str:
        return "varies" if self.evaluations is None else str(self.evaluations)

    @property
    def works_for(self) -> str:
        return {"masked": "Masked"}.get(self.processes, self.processes)


def described(entry: Entry) -> Description:
    """What is said of a solver: of this package's by its source, as importing it would import torch."""
    return from_class(entry.load()) if entry.packages else from_source(entry)


def from_class(made: type) -> Description:
    """What an imported class says of itself."""
    from ..evaluation.choice import PARTS, written

    def shown(value: Any) -> str:
        return written(value) if isinstance(value, tuple(base for base, _ in PARTS.values())) else repr(value)

    found = {name: "" if one.default is MISSING else shown(one.default) for name, one in parameters(made).items()}
    said = {"evaluations": None, "processes": "masked", "when": ""}
    return Description(made.__name__, found, *(getattr(made, name, other) for name, other in said.items()))


def from_source(entry: Entry) -> Description:
    """The same, read from the file. Classes of the registry say all of it themselves, in plain values."""
    made = entry.target.source()
    said: dict[str, Any] = {"evaluations": None, "processes": "any", "when": ""}
    defaults: dict[str, str] = {}
    for node in made.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defaults[node.target.id] = _default(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            said[node.targets[0].id] = ast.literal_eval(node.value)
    return Description(made.name, defaults, said["evaluations"], said["processes"], said["when"])


def _default(value: ast.expr | None) -> str:
    """The default of a field: the first argument of `knob`, or a call of its factory."""
    if isinstance(value, ast.Call):
        factory = [ast.unparse(word.value) for word in value.keywords if word.arg == "default_factory"]
        return f"{factory[0]}()" if factory else repr(ast.literal_eval(value.args[0]))
    return "" if value is None else repr(ast.literal_eval(value))
