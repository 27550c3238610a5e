"""Who is compared: solvers by name, as text or as they are, and those that make sense for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from ..control import Method, Preset, control_of, grids
from ..control.parallel import Window, one_at_a_time
from ..core.checks import require, require_choice, require_flag
from ..core.evaluation import Denoiser, as_model
from ..core.fields import parameters
from ..models.hf.raw_rates import RawRates
from ..planners import Bernoulli, LowDiscrepancy
from ..registry import PLANNERS, SOLVERS, Registry
from ..solvers import Trapezoidal, Tweedie
from .choice import AUTO, FILE, parse, read_tuned, written
from .recommend import recommend
from .yardsticks import LONGEST_EXACT, knows_itself

BLOCKS = 4
EXACT = "exact"
"""Not a solver: one position at a time, with the order and the window of ``sample(exact=True)``."""
LEGACY = "legacy"
"""`RawRates`, for SEDD alone, and so not among solvers by name."""
SHORT = (
    *(AUTO, "tweedie", "low-discrepancy", "low-discrepancy-2d", "multistep", "exponential-trapezoidal"),
    *("trapezoidal-paper", "parallel-decoding", "semi-autoregressive"),
)
"""Contenders where every evaluation counts."""


@dataclass(frozen=True)
class Contender:
    """A solver and the grid it walks; None is the uniform one. "auto" stands for what `recommend` says, and "exact" for
    one position at a time in few rounds."""

    solver: Method | Literal["auto", "exact"]
    grid: grids.Grid | None = None

    @property
    def spends(self) -> bool:
        """Whether it takes a budget."""
        return self.solver.evaluations is not None if isinstance(self.solver, Method) else self.solver == AUTO

    @property
    def window(self) -> Window | None:
        return "auto" if self.solver == EXACT else None

    def at(self, model: Denoiser, budget: int | None) -> tuple[Method, grids.Grid | Tensor | None]:
        """What it is on this model at this budget."""
        if isinstance(self.solver, Method):
            return self.solver, self.grid
        if self.solver == EXACT:
            return one_at_a_time(model)
        advice = recommend(model, budget or model.length)
        return advice.solver, advice.grid

    def described(self) -> dict[str, str]:
        name = "uniform" if self.grid is None else getattr(self.grid, "__qualname__", repr(self.grid))
        named = isinstance(self.solver, str)
        return {"solver": str(self.solver), "grid": str(self.solver) if named else name.split(".")[0]}


Contenders = Mapping[str, Contender | Method | str] | Sequence[Method | str]


def contenders_of(model: Denoiser, given: Contenders | None, argument: str = "contenders") -> dict[str, Contender]:
    """What is `given` as this `argument`, with the grid that suits the model where none is said; by default the
    `default_contenders`."""
    if given is None:
        return default_contenders(model)
    some = isinstance(given, Mapping | Sequence) and not isinstance(given, str) and len(given) > 0
    require(
        some, "contenders", given, "give a list or a dictionary of at least one, e.g. ['auto'] or {'mine': Tweedie()}"
    )
    if not isinstance(given, Mapping):
        good = all(isinstance(one, Method | str) for one in given)
        require(good, "contenders", given, "a list holds solvers or their texts; give others by name, in a dictionary")
        given = {one if isinstance(one, str) else written(one): one for one in given}
    known = default_contenders(model, every=True) if any(isinstance(one, str) for one in given.values()) else {}

    def made(argument: str, one: Contender | Method | str) -> Contender:
        if isinstance(one, str) and one.endswith(FILE):
            tuned = read_tuned(model, Path(one), 0)
            return Contender(tuned.solver, tuned.grid)
        if one == EXACT:
            return Contender(EXACT)
        if one == LEGACY:
            return Contender(RawRates(), _suited_grid(model))
        if isinstance(one, str) and "(" not in one:
            require_choice(argument, one, {**known, EXACT: None, LEGACY: None, **SOLVERS})
        if isinstance(one, str):
            return known[one] if one in known else Contender(parse(one, argument), _suited_grid(model))
        one = one if isinstance(one, Contender) else Contender(one, _suited_grid(model))
        good = isinstance(one.solver, Method) or one.solver in (AUTO, EXACT)
        require(good, argument, one.solver, "give a solver, its text, or a Contender of a solver")
        return one

    return {name: made(argument if name == one else f"{argument}[{name!r}]", one) for name, one in given.items()}


def _suited_grid(model: Denoiser) -> grids.Grid | None:
    """The uniform one with masks, and without them ``alpha_power(schedule, 2)``."""
    return None if model.process.mask is not None else grids.alpha_power(model.process.schedule, 2.0)


def default_contenders(model: Denoiser | str, *, every: bool | None = None) -> dict[str, Contender]:
    """Solvers of the registry that make sense for `model`, with the grid that suits its process; "auto" first.

    All of them (`every`) by default where the truth is known, as on oracles, which are quick; else a choice. The grid is
    the uniform one with masks, and without them ``alpha_power(schedule, 2)``. Exact solvers are among all where
    sequences are short.
    """
    model = as_model(model)
    if every is not None:
        require_flag("every", every)
    masked = model.process.mask is not None
    solvers = _solvers(model)
    if masked:  # first-hitting does the same for less
        del solvers["uniformization"]
    short = model.length <= LONGEST_EXACT[masked]
    kept = {name: solver for name, solver in solvers.items() if short or solver.evaluations is not None}
    fit = {name: Contender(solver, _suited_grid(model)) for name, solver in kept.items() if _fits(solver, model)}
    some = {AUTO: Contender(AUTO), **fit, **({EXACT: Contender(EXACT)} if masked and short else {})}
    wanted = knows_itself(model) if every is None else every
    return some if wanted else {name: one for name, one in some.items() if name in SHORT}


def _solvers(model: Denoiser) -> dict[str, Method]:
    """Solvers, `Tweedie` with every other planner, presets, and exact solvers."""
    suited = {
        "exponential-trapezoidal": {"extrapolation": "logit" if model.process.mask is None else "linear"},
        "semi-autoregressive": {"block_length": -(-model.length // BLOCKS)},
    }
    made: dict[str, Method] = {}
    for name, solver in _complete(SOLVERS).items():
        made[name] = solver(**suited.get(name, {}))
        if name == "trapezoidal":
            made["trapezoidal-paper"] = Trapezoidal(rule="reject")
    planned: dict[str, Method] = {}
    for name, planner in _complete(PLANNERS).items():
        if planner is not Bernoulli:
            planned[name] = Tweedie(planner())
        shape = getattr(model, "shape", None)
        if planner is LowDiscrepancy and shape is not None and len(shape) == 2:
            planned[f"{name}-2d"] = Tweedie(LowDiscrepancy((shape[0], shape[1])))
    kinds = {name: 3 if one.evaluations is None else 2 * isinstance(one, Preset) for name, one in made.items()}
    every = {**made, **{name: one for name, one in planned.items() if name not in made}}
    return {name: every[name] for name in sorted(every, key=lambda name: kinds.get(name, 1))}


def _complete(registry: Registry) -> dict[str, Callable[..., Any]]:
    """Those that need no hyper-parameter to be given."""
    found = registry.loaded()
    return {name: one for name, one in found.items() if all(p.default is not MISSING for p in parameters(one).values())}


def _fits(solver: Method, model: Denoiser) -> bool:
    try:
        control_of(solver).check(model.process, model.length)
    except ValueError:
        return False
    return True
