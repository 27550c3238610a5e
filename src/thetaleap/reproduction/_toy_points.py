"""The toy experiment's numbers: exact errors, their Monte Carlo estimates, and the slopes of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from .. import exact
from ..evaluation.metrics import (
    bootstrap_kls,
    frequencies,
    histogram,
    interval,
    kl,
    loglog_slope,
    noise_floor,
    total_variation,
)
from ..models.oracles import Joint
from ..sampling import Moment, plan, sample
from ..solvers import RK2, Euler, Solver, TauLeaping, Trapezoidal, Tweedie
from ._output import bar

RESAMPLES = 1000
ABOVE = 5.0
"""Monte Carlo points enter a fit above this many times the noise floor."""


@dataclass(frozen=True)
class Curve:
    """One solver under one rule. Solvers without a choice of rule name their own way to jump."""

    solver: str
    rule: str
    method: Solver
    evaluations: int
    sampled: bool = True

    @property
    def name(self) -> str:
        return f"{self.solver} ({self.rule})" if self.sampled else self.solver


CURVES = (
    Curve("TauLeaping", "reject", TauLeaping(rule="reject"), 1),
    Curve("RK2", "reject", RK2(theta=0.5, rule="reject"), 2),
    Curve("Trapezoidal", "reject", Trapezoidal(theta=0.5, rule="reject"), 2),
    Curve("TauLeaping", "exact", TauLeaping(rule="exact"), 1),
    Curve("RK2", "exact", RK2(theta=0.5, rule="exact"), 2),
    Curve("Trapezoidal", "exact", Trapezoidal(theta=0.5, rule="exact"), 2),
    Curve("Euler", "euler", Euler(), 1, sampled=False),
    Curve("Tweedie", "kernel", Tweedie(), 1, sampled=False),
)
"""The paper's solvers under its rule, then under the exact one; the last two have exact curves only."""


@dataclass(frozen=True)
class Point:
    """One solver at one number of steps: a row of the CSV. The last seven are None where nothing was sampled."""

    solver: str
    rule: str
    steps: int
    nfe: int
    kl_exact: float
    tv_exact: float
    num: int | None = None
    seed: int | None = None
    kl_mc: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    tv_mc: float | None = None
    fitted: bool | None = None

    def sure(self, *names: str) -> list[float]:
        """Values known to be there."""
        values = [getattr(self, name) for name in names]
        assert all(value is not None for value in values)
        return values


@dataclass(frozen=True)
class Fit:
    """A straight line through some points of one curve on logarithmic axes."""

    solver: str
    rule: str
    error: str
    """``kl_exact``, ``tv_exact`` or ``kl_mc``."""
    steps: list[int]
    """The points used."""
    slope: float
    intercept: float
    low: float | None = None
    high: float | None = None
    """95% bootstrap interval of a Monte Carlo slope."""


def exact_points(model: Joint, steps: Sequence[int], progress: bool | None) -> list[Point]:
    """Errors of the exact law of every solver, for every number of steps."""
    points = []
    with bar(progress, "exact laws", sum(steps) * sum(c.evaluations for c in CURVES)) as advance:
        for curve in CURVES:
            for n in steps:
                law = exact.law(model, curve.method, plan(model, curve.method, steps=n))
                errors = kl(model.p0, law), total_variation(model.p0, law)
                points.append(Point(curve.solver, curve.rule, n, n * curve.evaluations, *errors))
                advance(n * curve.evaluations)
    return points


def sampled_points(
    model: Joint, points: Sequence[Point], most: int, num: int, seed: int, progress: bool | None
) -> tuple[list[Point], dict[Point, Tensor]]:
    """`points` with Monte Carlo estimates added up to `most` steps, and the bootstrap of each.

    Every point has a seed of its own, ``seed + 2**32 row``, so that their errors are independent.
    """
    methods = {(c.solver, c.rule): c.method for c in CURVES if c.sampled}
    wanted = [(p.solver, p.rule) in methods and p.steps <= most for p in points]
    done, bootstraps = [], {}
    # a sample is shown once as noise, after every step, and once finished
    moments = num * sum(p.steps + 2 for p, want in zip(points, wanted, strict=True) if want)
    with bar(progress, "samples", moments) as advance:

        def seen(moment: Moment) -> None:
            advance(len(moment.x))

        for row, (point, want) in enumerate(zip(points, wanted, strict=True)):
            if want:
                own, method = (seed + 2**32 * row) % 2**64, methods[point.solver, point.rule]
                drawn = sample(model, method, steps=point.steps, num=num, seed=own, progress=False, on_step=seen)
                assert int(drawn.nfe.max()) == point.nfe
                point, kls = _estimate(model, point, drawn.x, own)
                bootstraps[point] = kls
            done.append(point)
    return done, bootstraps


def _estimate(model: Joint, point: Point, x: Tensor, seed: int) -> tuple[Point, Float64[Tensor, " resamples"]]:
    counts = histogram(x, model.process.states)
    law = frequencies(counts)
    value = kl(model.p0, law)
    kls = bootstrap_kls(model.p0, counts, RESAMPLES, seed)
    low, high = interval(kls)
    # an estimate is infinite where a value was never drawn
    fitted = ABOVE * noise_floor(model.p0.numel(), len(x)) < value < math.inf
    return replace(
        point,
        num=len(x),
        seed=seed,
        kl_mc=value,
        kl_low=low,
        kl_high=high,
        tv_mc=total_variation(model.p0, law),
        fitted=fitted,
    ), kls


def of(points: Sequence[Point], curve: Curve) -> list[Point]:
    """The points of one curve."""
    return [p for p in points if (p.solver, p.rule) == (curve.solver, curve.rule)]


def horizon_error(points: Sequence[Point]) -> float:
    """The error in total variation that starting from pure noise at a finite time leaves: Tweedie's, which has no
    other in one dimension."""
    return max(p.tv_exact for p in points if p.solver == "Tweedie")


def exact_fits(points: Sequence[Point]) -> list[Fit]:
    """Slopes of the exact curves over the larger half of the steps, where they are straight.

    Points within ten times the `horizon_error` say nothing about the solver and are left out.
    """
    steps = sorted({p.steps for p in points})
    half, least = steps[(len(steps) - 1) // 2], 10 * horizon_error(points)
    fits = []
    for curve in CURVES:
        used = [p for p in of(points, curve) if p.steps >= half and p.tv_exact > least]
        if len(used) >= 2:
            fits += [_fit(curve, error, used) for error in ("kl_exact", "tv_exact")]
    return fits


def sampled_fits(points: Sequence[Point], bootstraps: dict[Point, Tensor]) -> list[Fit]:
    """Slopes of the Monte Carlo points marked `fitted`, each with the slope of the exact curve at the same steps."""
    fits = []
    for curve in CURVES:
        used = [p for p in of(points, curve) if p.fitted]
        if len(used) >= 2:
            again = zip(*(bootstraps[p].tolist() for p in used), strict=True)
            steps = [p.steps for p in used]
            slopes = [loglog_slope(steps, values)[0] for values in again if max(values) < math.inf]
            low, high = interval(torch.tensor(slopes, dtype=torch.float64))
            fits += [replace(_fit(curve, "kl_mc", used), low=low, high=high), _fit(curve, "kl_exact", used)]
    return fits


def _fit(curve: Curve, error: str, used: Sequence[Point]) -> Fit:
    steps = [p.steps for p in used]
    return Fit(curve.solver, curve.rule, error, steps, *loglog_slope(steps, [p.sure(error)[0] for p in used]))
