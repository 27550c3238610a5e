"""What the command line calls things: solvers, planners and grids by name, and how they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any

from .. import solvers
from ..control import grids
from ..core.checks import require, require_choice
from ..core.evaluation import Denoiser
from ..core.processes import Masked, Process, RateMatrix, Uniform
from ..evaluation.recommend import recommend
from ..planners import all as planners
from ..planners.all import Planner
from ..solvers import Solver


@dataclass(frozen=True)
class Entry:
    """A solver that the command line knows by name."""

    solver: type[Solver]
    when: str
    """When to use it."""


SOLVERS: dict[str, Entry] = {
    "euler": Entry(solvers.Euler, "baseline: the plainest first-order step"),
    "tau-leaping": Entry(solvers.TauLeaping, "baseline: the first-order method that the paper improves on"),
    "tweedie": Entry(solvers.Tweedie, "one evaluation per step: first order at its best, for very few evaluations"),
    "rk2": Entry(solvers.RK2, "to compare with the paper, where trapezoidal beats it"),
    "trapezoidal": Entry(solvers.Trapezoidal, "start here: the paper's high-order method"),
    "exponential-trapezoidal": Entry(
        solvers.ExponentialTrapezoidal, "two evaluations per step on exact kernels: smooth laws, many evaluations"
    ),
    "multistep": Entry(solvers.Multistep, "one evaluation per step and a memory: the best of few evaluations"),
    "adams-bashforth": Entry(solvers.AdamsBashforth, "to compare with the published two-step scheme"),
    "uniformization": Entry(solvers.Uniformization, "exact on every process: reference samples, at a random cost"),
    "first-hitting": Entry(
        solvers.FirstHitting, "exact, one evaluation per position: reference samples, short sequences"
    ),
    "parallel-decoding": Entry(solvers.ParallelDecoding, "image tokens in very few steps, the surest first (MaskGIT)"),
    "semi-autoregressive": Entry(solvers.SemiAutoregressive, "text, block by block from left to right (LLaDA)"),
}

AUTO = "auto"
"""Not a solver: the one that `recommend` names for the model and the budget."""

AS_NEEDED = [name for name, entry in SOLVERS.items() if entry.solver.evaluations is None]
"""Those that take no budget of evaluations."""

GRIDS: dict[str, grids.Grid] = {
    "uniform": grids.uniform,
    "power": grids.power,
    "cosine": grids.cosine,
    "logarithmic": grids.logarithmic,
}

PLANNERS: dict[str, Callable[[], Planner]] = {
    "bernoulli": planners.Bernoulli,
    "fixed-count": planners.FixedCount,
    "low-discrepancy": planners.LowDiscrepancy,
    "confidence": planners.Confidence,
    "entropy-bounded": planners.EntropyBounded,
}
"""``low-discrepancy:4x16`` and ``entropy-bounded:0.1`` say the shape and the bound."""


def defaults(solver: type[Solver]) -> dict[str, Any]:
    """The hyper-parameters of a solver class, with their defaults."""
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(solver)  # pyright: ignore[reportArgumentType]
    }


HYPER = list(dict.fromkeys(name for entry in SOLVERS.values() for name in defaults(entry.solver)))
"""All hyper-parameters there are."""


def build(name: str, given: dict[str, Any]) -> Solver:
    """The solver called `name`, with those of the hyper-parameters `given` that are not None."""
    require_choice("solver", name, (AUTO, *SOLVERS))
    solver = SOLVERS[name].solver
    known = defaults(solver)
    chosen = {key: value for key, value in given.items() if value is not None}
    for key, value in chosen.items():
        has = f"it has {', '.join(map(_flag, known))}" if known else "it has none"
        require(key in known, _flag(key), value, f"{name} has no such option; {has}")
    if "planner" in chosen:
        chosen["planner"] = make_planner(chosen["planner"])
    return solver(**chosen)


@dataclass(frozen=True)
class Choice:
    """A solver and its grid, as asked for on the command line or as recommended."""

    solver: Solver
    grid: grids.Grid | None
    spacing: str
    """The name of the grid."""
    reason: str = ""
    """Why it is recommended, if it is."""


@dataclass(frozen=True)
class Budget:
    """How much to spend, and when, as given on the command line."""

    nfe: int | None
    steps: int | None
    tolerance: float | None
    grid: str | None
    delta: float | None


def choose(model: Denoiser | None, name: str, given: dict[str, Any], budget: Budget) -> Choice:
    """The solver called `name`; for "auto" the one that suits the `model` and the budget."""
    if name == AUTO:
        assert model is not None
        others = {"steps": budget.steps, "tolerance": budget.tolerance, "grid": budget.grid, "delta": budget.delta}
        for key, value in {**given, **others}.items():
            require(value is None, _flag(key), value, "--solver auto decides it; leave it out, or name a solver")
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
    if name not in AS_NEEDED and budget.nfe is None and budget.steps is None:
        raise ValueError(f"--nfe and --steps are missing: say how much {name} may spend, for example --nfe 64")
    return Choice(solver, GRIDS[spacing], spacing)


def works_for(solver: Solver) -> str:
    """The processes that `solver` accepts."""
    every = (Masked(2), Uniform(2), RateMatrix.ring(3))
    accepted = [type(process).__name__ for process in every if _accepts(solver, process)]
    return "any" if len(accepted) == len(every) else ", ".join(accepted)


def _accepts(solver: Solver, process: Process) -> bool:
    try:
        solver.check(process, length=2)
    except ValueError:
        return False
    return True


def make_planner(text: str) -> Planner:
    """The planner called `text`: a name, and behind a colon the shape or the bound where there is one."""
    name, _, rest = text.partition(":")
    require_choice("planner", name, PLANNERS)
    if not rest:
        return PLANNERS[name]()
    if name == "low-discrepancy":
        sides = rest.split("x")
        require(len(sides) == 2 and all(side.isdigit() for side in sides), "planner", text, "give HEIGHTxWIDTH")
        return planners.LowDiscrepancy((int(sides[0]), int(sides[1])))
    require(name == "entropy-bounded", "planner", text, f"{name} takes nothing behind a colon")
    try:
        gamma = float(rest)
    except ValueError:
        raise ValueError(f"planner={text!r}: give a number of nats, as in entropy-bounded:0.1") from None
    return planners.EntropyBounded(gamma)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def planned_contenders(model: Any, seed: int) -> dict[str, Any]:
    """Solvers of a masked model whose counts are planned from pilot samples, for a comparison."""
    from ..evaluation.compare import Contender

    require(model.process.mask is not None, "--plan", type(model.process).__name__, "plans are for masked models")
    shape = getattr(model, "shape", None)
    far = planners.LowDiscrepancy(shape if shape is not None and len(shape) == 2 else None)
    pairs: list[tuple[str, Solver, planners.FixedCount | planners.LowDiscrepancy]] = [
        ("multistep-planned", solvers.Multistep(), planners.FixedCount()),
        ("low-discrepancy-planned", solvers.Tweedie(far), far),
    ]

    def contender(method: Solver, planner: planners.FixedCount | planners.LowDiscrepancy) -> Contender:
        table = grids.pilot_entropies(model, planner, seed=seed)
        return Contender(method, lambda start, end, steps: grids.planned(model, method, steps, table=table))

    return {name: contender(method, planner) for name, method, planner in pairs}
