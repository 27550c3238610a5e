"""Models and solvers that the shared tests run over. A new solver is one more row in `SOLVERS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import thetaleap as tl
from tests import reference
from tests.reference import Truth
from thetaleap.control import Method
from thetaleap.core.processes import Process
from thetaleap.solvers import Solver


def dirichlet(seed: int, shape: tuple[int, ...], concentration: float = 1.0) -> torch.Tensor:
    """A random joint law."""
    flat = np.random.default_rng(seed).dirichlet([concentration] * math.prod(shape))
    return torch.from_numpy(flat.reshape(shape))


@dataclass(frozen=True)
class Case:
    """A model, the same in the reference's terms, and a short grid for it."""

    name: str
    model: tl.oracles.Joint
    truth: Truth
    times: list[float]

    @property
    def grid(self) -> torch.Tensor:
        return torch.tensor(self.times, dtype=torch.float64)

    @property
    def p0(self) -> torch.Tensor:
        return self.model.p0


def masked(seed: int, shape: tuple[int, ...]) -> Case:
    p0, eps = dirichlet(seed, shape), 1e-3
    model = tl.oracles.joint(p0, tl.Masked(shape[0], tl.LogLinear(eps)))
    truth = Truth(p0.numpy(), lambda t: 1 - (1 - eps) * t, lambda t: (1 - eps) / (1 - (1 - eps) * t))
    return Case(f"masked{shape}", model, truth, [1.0, 0.6, 0.25, 0.01])


def uniform(seed: int, shape: tuple[int, ...]) -> Case:
    p0, states = dirichlet(seed, shape), shape[0]
    model = tl.oracles.joint(p0, tl.Uniform(states, tl.Constant()), horizon=4.0)
    generator = np.full((states, states), 1 / states) - np.eye(states)
    truth = Truth(p0.numpy(), lambda t: math.exp(-t), lambda t: 1.0, generator)
    return Case(f"uniform{shape}", model, truth, [4.0, 1.5, 0.4, 0.0])


def birth_death(seed: int, shape: tuple[int, ...]) -> Case:
    p0, states = dirichlet(seed, shape), shape[0]
    process = tl.RateMatrix.birth_death(states, tl.Constant(2.0))
    generator = np.zeros((states, states))
    for i in range(states):
        for j in (i - 1, i + 1):
            if 0 <= j < states:
                generator[i, j] = 0.5
        generator[i, i] = -generator[i].sum()
    truth = Truth(p0.numpy(), lambda t: math.exp(-2 * t), lambda t: 2.0, generator)
    return Case(f"birth-death{shape}", tl.oracles.joint(p0, process, horizon=3.0), truth, [3.0, 1.0, 0.3, 0.05])


MASKED = [masked(0, (3, 3)), masked(1, (2, 2, 2))]
MOVING = [uniform(2, (3, 3)), uniform(3, (2, 2, 2)), birth_death(4, (4,)), birth_death(5, (3, 3))]
CASES = [*MASKED, *MOVING]

Step = Callable[[Truth, Any, float, float], reference.Law]


@dataclass(frozen=True)
class Entry:
    """A solver, and its step as the reference writes it down."""

    solver: Solver
    step: Step

    @property
    def name(self) -> str:
        return repr(self.solver)


def _one(rule: str) -> Step:
    return lambda truth, x, t, s: reference.one_stage(truth, x, t, s, rule)


def _two(kind: str, theta: float, rule: str, align: str = "destination") -> Step:
    return lambda truth, x, t, s: reference.two_stage(truth, x, t, s, theta, rule, kind, align)


STEPPING: list[Entry] = [
    Entry(tl.TauLeaping(), _one("exact")),
    Entry(tl.TauLeaping(rule="reject"), _one("reject")),
    Entry(tl.Euler(), _one("euler")),
    Entry(tl.Tweedie(), reference.tweedie),
    Entry(tl.RK2(theta=0.5), _two("rk2", 0.5, "exact")),
    Entry(tl.RK2(theta=1.0, rule="reject"), _two("rk2", 1.0, "reject")),
    Entry(tl.RK2(theta=0.3, align="cyclic"), _two("rk2", 0.3, "exact", "cyclic")),
    Entry(tl.Trapezoidal(theta=0.5), _two("trapezoidal", 0.5, "exact")),
    Entry(tl.Trapezoidal(theta=0.5, rule="reject"), _two("trapezoidal", 0.5, "reject")),
    Entry(tl.Trapezoidal(theta=0.3, align="displacement"), _two("trapezoidal", 0.3, "exact", "displacement")),
    Entry(tl.Trapezoidal(theta=0.7, align="cyclic"), _two("trapezoidal", 0.7, "exact", "cyclic")),
]
"""Solvers whose step is a product of one-position laws, for every process."""

DECODING: list[Method] = [
    tl.ParallelDecoding(),
    tl.ParallelDecoding(randomness=0.0),
    tl.SemiAutoregressive(),
    tl.SemiAutoregressive(order="random"),
    tl.SemiAutoregressive(order="random", block_length=1),
    tl.SemiAutoregressive(order="confidence", block_length=2),
]
"""Solvers of masked processes that fix how many positions go."""

EXACT: list[Solver] = [tl.FirstHitting(), tl.Uniformization()]
"""Solvers without an error of their own."""

BEYOND: list[Solver] = [
    tl.ExponentialTrapezoidal(),
    tl.ExponentialTrapezoidal(extrapolation="logit"),
    tl.Multistep(),
    tl.AdamsBashforth(),
]
"""Solvers that extrapolate conditionals; their laws are checked in test_planners.py."""

PLANNED: list[Solver] = [
    tl.Tweedie(tl.FixedCount()),
    tl.Tweedie(tl.FixedCount("cosine")),
    tl.Tweedie(tl.LowDiscrepancy()),
    tl.Tweedie(tl.Confidence(randomness=0.5)),
    tl.Tweedie(tl.EntropyBounded(0.5)),
    tl.Tweedie(tl.MarginConfidence("dream")),
    tl.Tweedie(tl.EntropyConfidence("even")),
    tl.Tweedie(tl.Dilated()),
    tl.Tweedie(tl.Threshold(0.6)),
    tl.Tweedie(tl.Factor(1.2)),
    tl.Tweedie(tl.KLASS(0.5, kl_threshold=0.1, kl_history_length=1)),
    tl.ExponentialTrapezoidal(planner=tl.FixedCount()),
    tl.Multistep(window=2, planner=tl.Bernoulli()),
]
"""Solvers of masked processes with a planner or a window."""

CORRECTED: list[Solver] = [
    tl.Corrected(),
    tl.Corrected(tl.Multistep(), tl.Gibbs(planner=tl.LowDiscrepancy()), every=2, sweeps=2),
    tl.Corrected(tl.Tweedie(), tl.Informed()),
    tl.Corrected(tl.Trapezoidal(), tl.Gibbs(), sweeps=0),
]
"""Predictors with correctors, for every process; their laws are checked in test_correctors.py."""

REMASKING: list[Solver] = [
    tl.Corrected(tl.Tweedie(tl.FixedCount()), tl.Gibbs(2), sweeps=2),
    tl.ReMDM("cap", 0.3),
    tl.ReMDM("rescale", 0.5),
    tl.ReMDM("confidence"),
    tl.ReMDM("loop", 0.4, t_on=0.7, t_off=0.2, alpha_on=0.6),
]
"""Solvers of masked processes that mask again."""

RENOISING: list[Solver] = [tl.Psi("constant", 0.4), tl.Psi("cap", 0.2), tl.Psi("rescale", 0.5)]
"""Solvers of processes without masks that noise again."""

REVISING: list[Solver] = [
    tl.WINO(0.4, 0.7),
    tl.JointThreshold(0.3, 0.9),
    tl.PUNT(0.03),
]
"""Decoders of masked processes that are solvers of their own; laws in tests/solvers/test_decoders.py."""

SOLVERS: list[Method] = [
    *(entry.solver for entry in STEPPING),
    *(
        each
        for group in (DECODING, EXACT, BEYOND, PLANNED, REVISING, CORRECTED, REMASKING, RENOISING)
        for each in group
    ),
]


def allowed(solver: Method, process: Process) -> bool:
    """Whether `solver` makes sense for `process`."""
    if process.mask is not None:
        return solver not in RENOISING
    return solver not in (*DECODING, *PLANNED, *REVISING, *REMASKING) and not isinstance(solver, tl.FirstHitting)


def works(solver: Method, case: Case) -> bool:
    """Whether `solver` makes sense on `case`."""
    return allowed(solver, case.model.process)


def informed(solver: Method) -> bool:
    """Whether it is not for networks that were trained on masks."""
    return isinstance(solver, tl.Corrected) and isinstance(solver.corrector, tl.Informed)
