"""Solvers, planners and grids by name, as command lines and the harness ask for them, or as `recommend` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from ..control import Method, grids
from ..core.checks import require, require_choice
from ..core.evaluation import Denoiser
from ..core.fields import Parameter, parameters
from ..planners import Planner
from ..registry import PLANNERS, SOLVERS
from .recommend import recommend

AUTO = "auto"
"""Not a solver: the one that `recommend` names for the model and the budget."""

GRIDS: dict[str, grids.Grid] = {
    "uniform": grids.uniform,
    "power": grids.power,
    "cosine": grids.cosine,
    "logarithmic": grids.logarithmic,
}


def hyper_parameters() -> dict[str, dict[str, Parameter]]:
    """All hyper-parameters there are, each with the solvers that have it."""
    found: dict[str, dict[str, Parameter]] = {}
    for solver, made in SOLVERS.loaded().items():
        for name, parameter in parameters(made).items():
            found.setdefault(name, {})[solver] = parameter
    return found


def build(name: str, given: Mapping[str, Any]) -> Method:
    """The solver called `name`, with those of the hyper-parameters `given` that are not None."""
    require_choice("solver", name, (AUTO, *SOLVERS))
    solver = SOLVERS[name].load()
    known = parameters(solver)
    chosen = {key: value for key, value in given.items() if value is not None}
    for key, value in chosen.items():
        has = f"it has {', '.join(map(flag, known))}" if known else "it has none"
        require(key in known, flag(key), value, f"{name} has no such option; {has}")
    for key, parameter in known.items():
        require(key in chosen or parameter.default is not MISSING, flag(key), None, f"{name} needs it; give it")
        if isinstance(chosen.get(key), str):
            planned = isinstance(parameter.hint, type) and issubclass(parameter.hint, Planner)
            chosen[key] = make_planner(chosen[key]) if planned else parameter.read(flag(key), chosen[key])
    return solver(**chosen)


def make_planner(text: str) -> Planner:
    """The planner called `text`: a name, and maybe, behind a colon, the first of its hyper-parameters."""
    name, colon, rest = text.partition(":")
    require_choice("planner", name, PLANNERS)
    planner = PLANNERS[name].load()
    if not colon or not rest:
        return planner()
    first = next(iter(parameters(planner).values()), None)
    if first is None:
        raise ValueError(f"planner={text!r}: {name} takes nothing behind a colon")
    return planner(**{first.name: first.read("planner", rest, text)})


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
    reason: str = ""
    """Why it is recommended, if it is."""


@dataclass(frozen=True)
class Budget:
    """How much to spend, and when."""

    nfe: int | None
    steps: int | None = None
    tolerance: float | None = None
    grid: str | None = None
    delta: float | None = None


def choose(model: Denoiser | None, name: str, given: Mapping[str, Any], budget: Budget) -> Choice:
    """The solver called `name`; for "auto" the one that suits the `model` and the budget."""
    if name == AUTO:
        assert model is not None
        others = {"steps": budget.steps, "tolerance": budget.tolerance, "grid": budget.grid, "delta": budget.delta}
        for key, value in {**given, **others}.items():
            require(value is None, flag(key), value, "--solver auto decides it; leave it out, or name a solver")
        if budget.nfe is None:
            raise ValueError("--nfe is missing: --solver auto chooses by how much it may spend, for example --nfe 8")
        advice = recommend(model, budget.nfe)
        return Choice(advice.solver, advice.grid, AUTO, advice.reason)
    solver = build(name, given)
    if budget.tolerance is not None:
        require(budget.grid is None, "--grid", budget.grid, "the tolerance decides it; leave it out")
        return Choice(solver, None, "tolerance")
    spacing = budget.grid or "uniform"
    require_choice("grid", spacing, GRIDS)
    if solver.evaluations is not None and budget.nfe is None and budget.steps is None:
        raise ValueError(f"--nfe and --steps are missing: say how much {name} may spend, for example --nfe 64")
    return Choice(solver, GRIDS[spacing], spacing)
