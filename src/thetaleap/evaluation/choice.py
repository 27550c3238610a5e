"""Solvers, their parts and grids as text: by name, as in Python, in a file of ``compare --tune``, or as `recommend` says."""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from ..control import Blocks, Method, grids
from ..core.checks import require, require_choice
from ..core.evaluation import Denoiser
from ..core.fields import Parameter, parameters
from ..planners import Planner
from ..registry import CORRECTORS, PLANNERS, SOLVERS, WRITTEN, Registry
from ..solvers import Corrector, Solver
from .recommend import recommend

AUTO = "auto"
"""Not a solver: the one that `recommend` names for the model and the budget."""
FILE = ".json"
"""The ending of files that ``compare --tune`` writes."""
LONGEST = 1000
"""Characters of a solver as text."""

GRIDS: dict[str, grids.Grid] = {
    "uniform": grids.uniform,
    "power": grids.power,
    "cosine": grids.cosine,
    "logarithmic": grids.logarithmic,
}

PARTS: dict[str, tuple[type, Registry]] = {
    "planner": (Planner, PLANNERS),
    "corrector": (Corrector, CORRECTORS),
    "solver": (Solver, SOLVERS),
}
"""What hyper-parameters may be beside numbers and words, and where it is found by name."""


def hyper_parameters() -> dict[str, dict[str, Parameter]]:
    """All hyper-parameters there are, each with the solvers that have it."""
    found: dict[str, dict[str, Parameter]] = {}
    for solver, made in SOLVERS.loaded().items():
        for name, parameter in parameters(made).items():
            found.setdefault(name, {})[solver] = parameter
    return found


# --- solvers as text


def parse(text: str, argument: str = "solver") -> Method:
    """The solver that `text` names, as ``tweedie``, or writes as in Python: ``Multistep(planner=LowDiscrepancy())``.

    Nothing is run but the classes of solvers, planners and correctors, on numbers, words, True, False, None and tuples
    of them.
    """
    if "(" not in text:
        require_choice(argument, text, (AUTO, *SOLVERS))
        return SOLVERS[text].load()()
    made = _read(text, argument)
    require(isinstance(made, Method), argument, text, "is no solver; give one, as in 'Multistep()'")
    return made


def _read(text: str, argument: str) -> Any:
    """What `text` writes as in Python."""
    try:
        require(len(text) <= LONGEST, argument, text[:20], f"give at most {LONGEST} characters")
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        example = "give a solver as in Python, such as 'Multistep(planner=LowDiscrepancy())'"
        raise ValueError(f"{argument}={text[:LONGEST]!r}: cannot be read; {example}") from None
    return _Text(text.strip(), argument).value(node)


@dataclass(frozen=True)
class _Text:
    """A solver as text, and the argument that it was given for."""

    text: str
    argument: str

    def require(self, condition: bool, remedy: str) -> None:
        require(condition, self.argument, self.text, remedy)

    def value(self, node: ast.expr) -> Any:
        """A literal, or a solver, planner or corrector of literals."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | None):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            amount = self.value(node.operand)
            self.require(isinstance(amount, int | float), f"there is no -{amount!r}; give a number")
            return -amount
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.value(one) for one in node.elts)
        part = ast.get_source_segment(self.text, node)
        good = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        self.require(
            good, f"{part} is neither number, word, solver nor planner; those are written with brackets: Tweedie()"
        )
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        return self.made(node.func.id, node)

    def made(self, name: str, call: ast.Call) -> Any:
        """The solver, planner or corrector of this `name`."""
        parts = (one for registry in (SOLVERS, PLANNERS, CORRECTORS) for one in registry.loaded().values())
        classes = {one.__name__: one for one in (*parts, Blocks)}
        require_choice(f"{self.argument}={self.text!r}: the name", name, classes)
        known, given = parameters(classes[name]), dict[str, Any]()
        has = f"{name} has {', '.join(known) or 'no arguments'}"
        self.require(len(call.args) <= len(known), f"{len(call.args)} arguments are too many; {has}")
        words = [(str(word.arg), word.value) for word in call.keywords]
        for key, node in (*zip(known, call.args, strict=False), *words):
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            self.require(key in known, f"there is no {key!r}; {hint}{has}")
            self.require(key not in given, f"{key} is given twice; give it once")
            given[key] = self.fitting(known[key], self.value(node))
        for key, one in known.items():
            self.require(key in given or one.default is not MISSING, f"{name} needs {key}; give it")
        return classes[name](**given)

    def fitting(self, parameter: Parameter, value: Any) -> Any:
        """`value`, if it is a planner, corrector or solver where there must be one; these may be given by name."""
        kind = kind_of(parameter)
        if kind is None:
            part = isinstance(value, Planner | Corrector | Method) and parameter.hint is not Any
            self.require(not part, f"{parameter.name} is {value!r}; give no {_called(value)}")
            return value
        if isinstance(value, str):
            return make(kind, value)
        right = isinstance(value, parameter.hint) or (value is None and parameter.default is None)
        self.require(right, f"{parameter.name} is {value!r}; give a {kind}: one of {', '.join(PARTS[kind][1])}")
        return value


def kind_of(parameter: Parameter) -> str | None:
    """Which of `PARTS` a hyper-parameter is, if it is one."""
    hint = parameter.hint
    return next((kind for kind, (base, _) in PARTS.items() if isinstance(hint, type) and issubclass(hint, base)), None)


def _called(value: Any) -> str:
    return next((kind for kind, (base, _) in PARTS.items() if isinstance(value, base)), "solver")


def written(made: Any) -> str:
    """A solver, planner or corrector as in Python, without what is the default: what `parse` reads."""
    known = parameters(type(made)).values()
    given = {one.name: getattr(made, one.name) for one in known if getattr(made, one.name) != one.default}
    nested = {
        name: written(value) if isinstance(value, Method | Planner | Corrector) else repr(value)
        for name, value in given.items()
    }
    return f"{type(made).__name__}({', '.join(f'{name}={value}' for name, value in nested.items())})"


def split(text: str) -> list[str]:
    """The parts of `text` between commas that stand in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def build(name: str, given: Mapping[str, Any]) -> Method:
    """The solver called `name`, with those of the hyper-parameters `given` that are not None; or as `parse` reads it."""
    chosen = {key: value for key, value in given.items() if value is not None}
    if "(" in name:
        for key, value in chosen.items():
            raise ValueError(f"{flag(key)}={value!r}: write it into {name!r}, or give the solver by name")
        return parse(name)
    require_choice("solver", name, (AUTO, *SOLVERS))
    solver = SOLVERS[name].load()
    known = parameters(solver)
    for key, value in chosen.items():
        options = [flag(name) for name in known if name not in WRITTEN]
        has = f"it has {', '.join(options)}" if options else "it has none"
        require(key in known, flag(key), value, f"{name} has no such option; {has}")
    for key, parameter in known.items():
        require(key in chosen or parameter.default is not MISSING, flag(key), None, f"{name} needs it; give it")
        if isinstance(chosen.get(key), str):
            kind = kind_of(parameter)
            chosen[key] = make(kind, chosen[key]) if kind else parameter.read(flag(key), chosen[key])
    return solver(**chosen)


def read_grid(model: Denoiser, text: str) -> grids.Grid | None:
    """The grid of a file: a name of `GRIDS`, or ``alpha_power(1.5)`` on the model's own schedule."""
    found = re.fullmatch(r"alpha_power\(([0-9.]+)\)", text)
    if found:
        return grids.alpha_power(model.process.schedule, float(found[1]))
    require_choice("grid", text, GRIDS)
    return None if text == "uniform" else GRIDS[text]


def read_tuned(model: Denoiser, path: Path, nfe: int | None) -> Choice:
    """The solver and the grid that ``thetaleap compare --tune --save`` wrote to a file."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        text, spacing, budget, trained = (told[key] for key in ("solver", "grid", "nfe", "model"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        wanted = "give a file of thetaleap compare MODEL --tune --save FILE"
        raise ValueError(f"solver={str(path)!r}: cannot be read ({type(error).__name__}: {error}); {wanted}") from None
    reason, solver = f"Tuned for {trained} at {budget} evaluations.", parse(str(text), f"solver of {str(path)!r}")
    return Choice(solver, read_grid(model, str(spacing)), str(spacing), budget if nfe is None else nfe, reason)


def make(kind: str, text: str) -> Any:
    """The planner, corrector or solver called `text`: a name, and maybe, behind a colon, the first of its
    hyper-parameters; or as in Python."""
    base, registry = PARTS[kind]
    if "(" in text:
        made = _read(text, kind)
        require(isinstance(made, base), kind, text, f"is no {kind}; give one of {', '.join(registry)}")
        return made
    name, colon, rest = text.partition(":")
    require_choice(kind, name, registry)
    found = registry[name].load()
    if not colon or not rest:
        return found()
    first = next(iter(parameters(found).values()), None)
    if first is None:
        raise ValueError(f"{kind}={text!r}: {name} takes nothing behind a colon")
    value = first.read(kind, rest, text)
    try:
        return found(**{first.name: value})
    except ValueError as error:  # which names the hyper-parameter: another option may be called so
        raise ValueError(f"{kind}={text!r}: its {first.name} {str(error).partition(': ')[2]}") from None


def flag(name: str) -> str:
    """The option that sets the hyper-parameter `name`."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Choice:
    """A solver and its grid, as asked for or as recommended."""

    solver: Method
    grid: grids.Grid | None
    spacing: str
    """The name of the grid."""
    nfe: int | None = None
    """The budget, as asked for or as recommended."""
    reason: str = ""
    """Why it is recommended, if it is."""
    evidence: str = ""
    """And what was measured."""


@dataclass(frozen=True)
class Budget:
    """How much to spend, and when."""

    nfe: int | None
    steps: int | None = None
    tolerance: float | None = None
    grid: str | None = None
    delta: float | None = None
    positions: int | None = None
    """How many the sampler may write to, if not all."""


def needs_model(name: str | Method) -> bool:
    """Whether `choose` must see the model for this solver."""
    return isinstance(name, str) and (name == AUTO or name.endswith(FILE))


def choose(model: Denoiser | None, name: str | Method, given: Mapping[str, Any], budget: Budget) -> Choice:
    """The solver called `name`, or of a file; for "auto" the one that suits the `model` and the budget."""
    if isinstance(name, str) and needs_model(name):
        assert model is not None
        others = {"steps": budget.steps, "tolerance": budget.tolerance, "grid": budget.grid, "delta": budget.delta}
        for key, value in {**given, **others}.items():
            require(value is None, flag(key), value, f"--solver {name} decides it; leave it out, or name a solver")
        if name != AUTO:
            return read_tuned(model, Path(name), budget.nfe)
        advice = recommend(model, budget.nfe, positions=budget.positions)
        return Choice(advice.solver, advice.grid, AUTO, advice.nfe, advice.reason, advice.evidence)
    solver = build(name, given) if isinstance(name, str) else name
    if budget.tolerance is not None:
        require(budget.grid is None, "--grid", budget.grid, "the tolerance decides it; leave it out")
        return Choice(solver, None, "tolerance", budget.nfe)
    spacing = budget.grid or "uniform"
    require_choice("grid", spacing, GRIDS)
    if solver.evaluations is not None and budget.nfe is None and budget.steps is None:
        raise ValueError(f"--nfe and --steps are missing: say how much {name} may spend, for example --nfe 64")
    return Choice(solver, GRIDS[spacing], spacing, budget.nfe)
