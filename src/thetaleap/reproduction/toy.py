"""The paper's 15-state toy (figure 2): the error against the number of steps, sampled and exact.

15 values at one position, uniform process with generator ``E/15 - I``, horizon T = 12, true scores, steps of equal
length, theta = 1/2. The paper draws 10^6 samples per point and fits KL(p0 || histogram) against steps. Here the
exact law of every solver stands beside them, in KL and in total variation, under the paper's rule for several jumps of
one position (``reject``) and under ``exact``. What the library advises stands beside them, on a grid of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import exact
from ..control import Method as Led
from ..core.checks import require
from ..evaluation import metrics
from ..evaluation.figures import listing
from ..evaluation.recommend import recommend
from ..evaluation.threads import one_thread
from ..models import load
from ..models.oracles import Joint
from ..sampling import plan, sample
from .methods import AUTO, EULER, METHODS, MINE, RK, SAFE, TAU, TWEEDIE, pick
from .pages import Job, Panel, chart, experiment, publish
from .rules import Claim, Evidence, Report, judge
from .study import Row, Study, row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL = "toy15"
NUM = 10**6
STEPS = (8, 16, 32, 64, 128, 256, 512)
MOST_SAMPLED = 256
"""Beyond this many steps there are exact errors only; samples there would take most of the run's time."""
RESAMPLES = 1000
ABOVE = 5.0
"""Monte Carlo points enter a fit above this many times the noise floor."""
NEGLIGIBLE = 1e-8
"""An error in total variation below this is the horizon's or the rounding's, not the solver's."""
NEAR = 0.2
"""A fitted slope is called first or second order within this of -1 or -2."""
QUADRATIC = (-2.3, -1.7)
"""Slopes of the KL that are called about -2; in ``claims.toml`` too."""
SAFER = {TAU: "tau-leaping (exact rule)", RK: "theta-RK-2 (exact rule)", MINE: SAFE}
"""The paper's three under its rule, and the same under the exact one."""
SOLVERS = pick(*SAFER, *SAFER.values(), EULER, TWEEDIE)
"""The last two have exact curves only."""


@dataclass(frozen=True)
class Fit:
    """A straight line through some points of one method on logarithmic axes."""

    method: str
    error: str
    """``kl_exact``, ``tv_exact`` or ``kl_mc``."""
    steps: list[int]
    """The points used."""
    slope: float
    intercept: float
    low: float | None = None
    high: float | None = None
    """95% bootstrap interval of a Monte Carlo slope."""


@experiment()
@one_thread()
def run(job: Job, steps: Sequence[int] = STEPS) -> Report:
    """Measure, and write ``toy.md``, ``.png``, ``.csv`` and ``.json`` to the job's folder."""
    num, model, order = job.num or NUM, load(MODEL), sorted(set(steps))
    require(len(order) >= 2, "steps", list(steps), "give two different numbers of steps or more")
    assert isinstance(model, Joint)
    floor = metrics.noise_floor(model.p0.numel(), num)
    cases = [(method, solver, n) for method, solver in SOLVERS.items() for n in order]
    rows = []
    with job.bar("laws and samples", sum(n for _, _, n in cases)) as advance:
        for place, (method, solver, n) in enumerate(cases):
            drawn = num if method not in (EULER, TWEEDIE) and n <= MOST_SAMPLED else None
            # a seed of its own, so that errors of rows are independent
            own = (job.seed + 2**32 * place) % 2**64
            rows.append(law_row(model, MODEL, method, solver, plan(model, solver, steps=n), drawn, own))
            advance(n)
    rows += [advised_row(model, MODEL, n) for n in order]
    study = Study.of("toy", rows)
    fits, sampled = exact_fits(study), sampled_fits(study)
    settings = {"model": MODEL, "states": model.process.states, "horizon": model.horizon, "grid": "uniform"}
    settings |= {"theta": 0.5, "num": num, "steps": order, "most_sampled_steps": MOST_SAMPLED, "above": ABOVE}
    card = {"p0": model.p0.tolist(), "noise_floor": floor, "horizon_error_tv": horizon_error(study)}
    card |= {"exact_fits": [asdict(f) for f in fits], "sampled_fits": [asdict(f) for f in sampled]}
    told: dict[str, Any] = facts(study, fits, sampled) | {"floor": floor}
    figure = draw(study, floor, {fit.error: -fit.slope for fit in fits if fit.method == MINE})
    return publish(job, "toy", study, settings, claims_of(study, fits), figure, columns={}, card=card, **told)


def law_row(
    model: Joint, name: str, method: str, solver: Led, times: Tensor, num: int | None = None, seed: int = 0
) -> Row:
    """Errors of the exact law of a solver on a grid; with `num` samples, Monte Carlo estimates too. ``_kl_mc`` has their
    bootstrap, and ``fitted`` says whether an estimate is far enough above the noise floor."""
    law, steps = exact.law(model, solver, times), len(times) - 1
    nfe = steps * (solver.evaluations or 0)
    told = {"model": name, "solver": repr(solver), "kind": METHODS[method].kind if method in METHODS else None}
    made = row(method, steps=steps, nfe=nfe, evaluations=float(nfe), **told)
    made |= {"kl_exact": metrics.kl(model.p0, law), "tv_exact": metrics.total_variation(model.p0, law)}
    if num is None:
        return made
    drawn = sample(model, solver, grid=times, num=num, seed=seed, progress=False)
    counts = metrics.histogram(drawn.x, model.process.states)
    seen, again = metrics.frequencies(counts), metrics.bootstrap_kls(model.p0, counts, RESAMPLES, seed)
    value, (low, high) = metrics.kl(model.p0, seen), metrics.interval(again)
    floor = metrics.noise_floor(model.p0.numel(), num)
    made |= {"evaluations": float(drawn.nfe.double().mean()), "most_evaluations": int(drawn.nfe.max()), "num": num}
    made |= {"seed": seed, "kl_mc": value, "kl_mc_low": low, "kl_mc_high": high, "noise_floor": floor}
    # an estimate is infinite where a value was never drawn
    fitted = ABOVE * floor < value < math.inf
    return made | {"tv_mc": metrics.total_variation(model.p0, seen), "fitted": fitted, "_kl_mc": again.numpy()}


def advised_row(model: Joint, name: str, nfe: int) -> Row:
    """Errors of the exact law of what the library advises for a budget."""
    best = recommend(model, nfe)
    return law_row(model, name, AUTO, best.solver, plan(model, best.solver, nfe=nfe, grid=best.grid))


def horizon_error(study: Study) -> float:
    """The error in total variation that starting from pure noise at a finite time leaves: Tweedie's, which has no
    other in one dimension."""
    return max(one["tv_exact"] for one in study.where(method=TWEEDIE))


def exact_fits(study: Study) -> list[Fit]:
    """Slopes of the exact curves over the larger half of the steps, where they are straight.

    Points within ten times the `horizon_error` say nothing about the solver and are left out.
    """
    steps = sorted(study.column("steps"))
    half, least = steps[(len(steps) - 1) // 2], 10 * horizon_error(study)
    fits = []
    for method in SOLVERS:
        used = [one for one in study.where(method=method) if one["steps"] >= half and one["tv_exact"] > least]
        if len(used) >= 2:
            fits += [_fit(error, used) for error in ("kl_exact", "tv_exact")]
    return fits


def sampled_fits(study: Study) -> list[Fit]:
    """Slopes of the Monte Carlo points marked `fitted`, each with the slope of the exact curve at the same steps."""
    fits = []
    for method in SOLVERS:
        used = [one for one in study.where(method=method) if one.get("fitted")]
        if len(used) >= 2:
            again = zip(*(one["_kl_mc"].tolist() for one in used), strict=True)
            steps = [one["steps"] for one in used]
            slopes = [metrics.loglog_slope(steps, values)[0] for values in again if max(values) < math.inf]
            fits += [
                _fit("kl_mc", used, *metrics.interval(torch.tensor(slopes, dtype=torch.float64))),
                _fit("kl_exact", used),
            ]
    return fits


def _fit(error: str, used: Sequence[Row], *ends: float) -> Fit:
    steps = [one["steps"] for one in used]
    return Fit(used[0]["method"], error, steps, *metrics.loglog_slope(steps, [one[error] for one in used]), *ends)


# --- what the paper says, and what is seen


def claims_of(study: Study, fits: Sequence[Fit]) -> list[Claim]:
    """What the paper reads off its toy model, against the exact laws under its own rule."""
    slopes = {error: {f.method: f.slope for f in fits if f.error == error} for error in ("kl_exact", "tv_exact")}
    return judge(replace(study, slopes=slopes), "toy") if set(SAFER) <= set(slopes["kl_exact"]) else []


def order_name(slope: float) -> str:
    """The order of convergence that a slope on logarithmic axes shows; "order 1.43" where it is none of note."""
    names, nearest = {1: "first order", 2: "second order"}, round(-slope)
    return names[nearest] if nearest in names and abs(-slope - nearest) <= NEAR else f"order {-slope:.2f}"


def facts(study: Study, fits: Sequence[Fit], sampled: Sequence[Fit]) -> dict[str, Any]:
    """What the page says besides."""
    mc = {f.method: f for f in sampled if f.error == "kl_mc"}
    told = [
        Evidence("", "", f.slope, f.low or 0.0, f.high or 0.0, *QUADRATIC) for name, f in mc.items() if name == MINE
    ]
    kls, tvs = ({f.method: f.slope for f in fits if f.error == error} for error in ("kl_exact", "tv_exact"))
    used = [one for one in study.rows if one.get("fitted")]
    rest = horizon_error(study)
    rivals = [name for name in SOLVERS if name != TWEEDIE or rest > NEGLIGIBLE]
    at = {(one["method"], one["nfe"]): one["kl_exact"] for one in study.rows}
    both = _shared(at, [TAU, RK])
    known = [name for name in SAFER if name in tvs]
    return {
        "slopes": {name: mc.get(name) for name in SAFER},
        "quadratic": next(iter(told), None),
        "fitted": len(used),
        "held": sum(one["kl_mc_low"] <= one["kl_exact"] <= one["kl_mc_high"] for one in used),
        "left": sum(one.get("fitted") is False for one in study.rows),
        "both": {name: (tvs[name], kls[name]) for name in known},
        "ratios": [kls[name] / tvs[name] for name in known],
        "span": next(([f.steps[0], f.steps[-1]] for f in fits), []),
        "orders": {name: order_name(tvs[name]) for name in tvs},
        "rules": {name: _ratios(study, name, other) for name, other in SAFER.items()},
        "tvs": tvs,
        "safer": SAFER,
        "winners": [(n, min(rivals, key=lambda m, n=n: at[m, n])) for n in _shared(at, rivals)],
        "of_three": [(n, min(SAFER, key=lambda m, n=n: at[m, n])) for n in _shared(at, list(SAFER))],
        "without": rest <= NEGLIGIBLE,
        "rest": rest,
        "budgets": both,
        "advised": max((one["tv_exact"] for one in study.where(method=AUTO)), default=None),
        "lost": sum(at[RK, n] > at[TAU, n] for n in both),
    }


def _ratios(study: Study, method: str, other: str) -> tuple[float, float]:
    """The least and the most by which KL is lower under the other rule."""
    pairs = zip(study.where(method=method), study.where(method=other), strict=True)
    found = [one["kl_exact"] / two["kl_exact"] for one, two in pairs]
    return min(found), max(found)


def _shared(at: dict[tuple[str, int], float], methods: Sequence[str]) -> list[int]:
    """Numbers of evaluations at which all `methods` have a point."""
    return sorted(set.intersection(*({nfe for name, nfe in at if name == method} for method in methods)))


def draw(study: Study, floor: float, orders: Mapping[str, float]) -> Figure:
    """KL and total variation against steps: lines are exact, markers are sampled. The title has the paper's `orders`."""
    shown = [name for name in SOLVERS if name not in (EULER, TWEEDIE)]  # whose error would only stretch the axes
    noise = (floor, "noise floor of the samples")
    parts = [
        Panel(study, "kl_exact", "KL(p0 || law), nats", log=True, by="steps", points="kl_mc", level=noise, slope=-2),
        Panel(study, "tv_exact", "total variation", log=True, by="steps", slope=-1),
    ]
    names = {"kl_exact": "in KL", "tv_exact": "in total variation"}
    known = [f"{orders[error]:.1f} {name}" for error, name in names.items() if error in orders]
    told = f"{MINE} has order {listing(known)}" if known else "error against steps, lines are exact"
    return chart(parts, shown, f"15 states: {told}")
