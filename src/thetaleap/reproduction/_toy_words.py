"""What the toy experiment shows, in sentences that the measured numbers choose."""

from __future__ import annotations

from collections.abc import Sequence

from ._output import Claim
from ._toy_points import ABOVE, CURVES, Curve, Fit, Point, horizon_error, of
from ._words import NEAR, listing, number, order_name, page, runs, times

PAPER = [c for c in CURVES if c.rule == "reject"]
NEGLIGIBLE = 1e-8
"""An error in total variation below this is the horizon's or the rounding's, not the solver's."""


def describe(points: Sequence[Point], exact: Sequence[Fit], sampled: Sequence[Fit], num: int, floor: float) -> str:
    """The report's text."""
    return page(
        [
            _setting(num, floor),
            _sampled_slopes(sampled),
            _paper_claim(sampled),
            _against_exact(points, floor),
            _in_total_variation(exact),
            "Letting later jumps of a position overwrite earlier ones (rule exact), at equal steps,",
            _rules(points, exact),
            _contest(points),
            _second_stage(points),
        ]
    )


def _find(fits: Sequence[Fit], curve: Curve, error: str) -> Fit | None:
    found = [f for f in fits if (f.solver, f.rule, f.error) == (curve.solver, curve.rule, error)]
    return found[0] if found else None


def _setting(num: int, floor: float) -> str:
    return (
        f"KL(p0 || histogram of {num:,} samples) against steps, under the paper's rule of dropping the jumps of a position "
        f"that would jump twice (reject). A perfect sampler would score about {number(floor)}, the noise floor; lines "
        f"are fitted to points above {ABOVE:g} times that."
    )


def _sampled_slopes(sampled: Sequence[Fit]) -> list[str]:
    """The paper's figure: slopes of the sampled KL."""
    lines = []
    for curve in PAPER:
        fit = _find(sampled, curve, "kl_mc")
        if fit is None or fit.low is None or fit.high is None:
            lines.append(f"{curve.solver}: too few points for a line")
        else:
            span = f"steps {fit.steps[0]} to {fit.steps[-1]}"
            lines.append(
                f"{curve.solver}: slope {fit.slope:.2f} (95% interval {fit.low:.2f} to {fit.high:.2f}; {span})"
            )
    return lines


def _paper_claim(sampled: Sequence[Fit]) -> str:
    """Whether the paper's reading of its figure, quadratic convergence of Trapezoidal in KL, is seen again."""
    fit = _find(sampled, next(c for c in PAPER if c.solver == "Trapezoidal"), "kl_mc")
    if fit is None:
        return ""
    seen = "is about that" if abs(fit.slope + 2) <= 0.3 else "is not that"
    return f"The paper reads its slope for Trapezoidal as about -2, quadratic; {fit.slope:.2f} {seen}."


def _in_total_variation(exact: Sequence[Fit]) -> str:
    """Slopes of the exact laws in total variation beside those in KL, and what they make of the order."""
    both = [(c, _find(exact, c, "tv_exact"), _find(exact, c, "kl_exact")) for c in PAPER]
    known = [(c, tv, kl) for c, tv, kl in both if tv is not None and kl is not None]
    if not known:
        return ""
    steps = known[0][1].steps
    rows = [f"{c.solver} {tv.slope:.2f} / {kl.slope:.2f}" for c, tv, kl in known]
    text = (
        f"The exact laws have no sampling noise. Their slopes in total variation / in KL, at {steps[0]} to {steps[-1]} "
        f"steps and under the same rule: {listing(rows)}."
    )
    ratios = [kl.slope / tv.slope for _, tv, kl in known]
    if all(abs(ratio - 2) <= 0.3 for ratio in ratios):
        text += (
            f" KL falls about twice as fast ({min(ratios):.2f} to {max(ratios):.2f}), for it is quadratic in total "
            "variation where laws are close: a slope of -2 in KL is first order in total variation."
        )
    names = {c.solver: order_name(tv.slope) for c, tv, _ in known}
    if "TauLeaping" in names and "Trapezoidal" in names:
        text += f" In total variation, Trapezoidal under the paper's rule is {names['Trapezoidal']}"
        same = names["TauLeaping"] == names["Trapezoidal"]
        text += ", like TauLeaping." if same else f"; TauLeaping is {names['TauLeaping']}."
    return text


def _rules(points: Sequence[Point], exact: Sequence[Fit]) -> list[str]:
    """What rule "exact" changes, solver by solver."""
    sentences = []
    for curve in PAPER:
        other = next(c for c in CURVES if c.solver == curve.solver and c.rule == "exact")
        ratios = [a.kl_exact / b.kl_exact for a, b in zip(of(points, curve), of(points, other), strict=True)]
        low, high = min(ratios), max(ratios)
        if low > 1:
            change = f"lowers the KL of {curve.solver} by {times(low, high)}"
        elif high < 1:
            change = f"raises the KL of {curve.solver} by {times(1 / high, 1 / low)}"
        else:
            change = f"multiplies the KL of {curve.solver} by {number(1 / high)} to {number(1 / low)}"
        before, after = _find(exact, curve, "tv_exact"), _find(exact, other, "tv_exact")
        if before is not None and after is not None:
            names = order_name(before.slope), order_name(after.slope)
            change += f"; slope in total variation {before.slope:.2f} before and {after.slope:.2f} with it, "
            change += f"still {names[1]}" if names[0] == names[1] else f"from {names[0]} to {names[1]}"
        sentences.append(change)
    return sentences


def _against_exact(points: Sequence[Point], floor: float) -> str:
    """How well the samples agree with the exact laws."""
    fitted = [p.sure("kl_low", "kl_exact", "kl_high") for p in points if p.fitted]
    if not fitted:
        return f"No sampled point is above {ABOVE:g} times the noise floor: draw more samples."
    held = sum(low <= truth <= high for low, truth, high in fitted)
    left = sum(p.fitted is False for p in points)
    return (
        f"The 95% bootstrap intervals hold the exact KL at {held} of the {len(fitted)} sampled points used in the fits "
        f"(left out as too near the floor of {number(floor)}: {left})."
    )


def _contest(points: Sequence[Point]) -> str:
    """Who has the lowest exact KL at equal evaluations."""
    rest = horizon_error(points)
    without = rest <= NEGLIGIBLE
    rivals = [c for c in CURVES if not (without and c.solver == "Tweedie")]
    if not _shared(points, rivals):
        return ""
    text = f"At equal evaluations the lowest KL is that of {_winners(points, rivals)};"
    text += f" among the paper's three, of {_winners(points, PAPER)}."
    if without:
        text += (
            f" Tweedie is out of this contest: its one-position kernel is exact in one dimension, and what is left of its "
            f"error ({number(rest)} in total variation) comes from the finite horizon. With more positions it is not exact."
        )
    else:
        text += f" Tweedie, exact in one dimension but for the horizon, is off by {number(rest)} in total variation."
    return text


def _shared(points: Sequence[Point], curves: Sequence[Curve]) -> list[int]:
    """Numbers of evaluations at which all `curves` have a point."""
    sets = [{p.nfe for p in of(points, c)} for c in curves]
    return sorted(set.intersection(*sets))


def _at(points: Sequence[Point], curve: Curve, nfe: int) -> Point:
    return next(p for p in of(points, curve) if p.nfe == nfe)


def _winners(points: Sequence[Point], curves: Sequence[Curve]) -> str:
    best = []
    for nfe in _shared(points, curves):
        winner = min(curves, key=lambda c, nfe=nfe: _at(points, c, nfe).kl_exact)
        best.append((nfe, winner.name if curves is not PAPER else winner.solver))
    return runs(best)


def _second_stage(points: Sequence[Point]) -> str:
    """Whether RK-2 is worth its second evaluation."""
    tau, rk2 = PAPER[0], next(c for c in PAPER if c.solver == "RK2")
    budgets = _shared(points, [tau, rk2])
    if not budgets:
        return ""
    behind = sum(_at(points, rk2, n).kl_exact > _at(points, tau, n).kl_exact for n in budgets)
    return (
        f"RK2's second evaluation costs more than it gains against TauLeaping at {behind} of the {len(budgets)} "
        f"budgets compared ({listing([str(n) for n in budgets])} evaluations, paper's rule)."
    )


def claims(points: Sequence[Point], exact: Sequence[Fit]) -> list[Claim]:
    """What the paper reads off its toy model, against the exact laws under its own rule."""
    tau, rk2, trapezoidal = PAPER
    slopes = {(c.solver, e): _find(exact, c, e) for c in PAPER for e in ("kl_exact", "tv_exact")}
    kl = {c.solver: slopes[c.solver, "kl_exact"] for c in PAPER}
    found: list[Claim] = []
    fit, plain, other = kl["Trapezoidal"], kl["TauLeaping"], kl["RK2"]
    if fit is None or plain is None or other is None:
        return found
    found.append(
        Claim(
            "On 15 states, theta-Trapezoidal converges about quadratically in the number of steps (KL)",
            "agrees" if abs(fit.slope + 2) <= 0.3 else "differs",
            f"Slope of the exact KL {fit.slope:.2f}, at {fit.steps[0]} to {fit.steps[-1]} steps",
        )
    )
    found.append(
        Claim(
            "Its order is higher than that of tau-leaping: the bound on KL falls as the square of the step, not as the "
            "step",
            "agrees" if fit.slope < plain.slope - 0.5 else "differs",
            f"Slopes of the exact KL: Trapezoidal {fit.slope:.2f}, TauLeaping {plain.slope:.2f}",
        )
    )
    order = slopes["Trapezoidal", "tv_exact"]
    if order is not None:
        found.append(
            Claim(
                "theta-Trapezoidal is second-order accurate",
                "agrees" if order.slope <= -2 + NEAR else "differs",
                f"In total variation the exact law's slope is {order.slope:.2f} under the paper's rule: "
                f"{order_name(order.slope)}",
            )
        )
    both = [f"{name} {one.slope:.2f}" for name, one in (("Trapezoidal", fit), ("RK2", other))]
    found.append(
        Claim(
            "Both theta-RK-2 and theta-Trapezoidal converge faster than linearly (KL)",
            "agrees" if max(fit.slope, other.slope) < -1 else "differs",
            f"Slopes of the exact KL: {listing(both)}",
        )
    )
    pairs = list(zip(of(points, trapezoidal), of(points, rk2), strict=True))
    below = sum(a.kl_exact < b.kl_exact for a, b in pairs)
    found.append(
        Claim(
            "theta-Trapezoidal is below theta-RK-2 in KL at the same number of steps",
            "agrees" if below == len(pairs) else "differs",
            f"It is at {below} of {len(pairs)} numbers of steps",
        )
    )
    shared = _shared(points, [tau, trapezoidal])
    won = sum(_at(points, trapezoidal, n).kl_exact < _at(points, tau, n).kl_exact for n in shared)
    found.append(
        Claim(
            "theta-Trapezoidal is better than tau-leaping at equal evaluations",
            "agrees" if won == len(shared) else "differs",
            f"On 15 states its KL is lower at {won} of {len(shared)} budgets",
        )
    )
    return found
