"""Output laws of solvers that remember or plan, computed a second time: loops over whole histories."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from tests.reference import Law, State, Truth, finish, kernel, product

History = tuple[State, ...]
"""States seen so far, the newest first."""
HistoryStep = Callable[[History, int], Law]


def run(truth: Truth, times: list[float], step: HistoryStep, memory: int) -> np.ndarray:
    """The law of the samples if step n depends on the last `memory` states."""
    law: dict[History, float] = {(x,): p for x, p in truth.prior().items()}
    for n in range(len(times) - 1):
        after: dict[History, float] = defaultdict(float)
        for history, p in law.items():
            if truth.generator is None and truth.states not in history[0]:
                after[history] += p
                continue
            for y, q in step(history, n).items():
                after[(y, *history)[:memory]] += p * q
        law = after
    last: Law = defaultdict(float)
    for history, p in law.items():
        last[history[0]] += p
    if any(truth.states in x for x in last) or truth.alpha(times[-1]) < 1:
        last = finish(truth, last, times[-1])
    result = np.zeros_like(truth.p0)
    for x, p in last.items():
        result[x] += p
    return result


def blend(new: np.ndarray, old: np.ndarray, w: float, form: str, floor: float) -> np.ndarray:
    """Extrapolated conditional."""
    if form == "linear":
        rows = np.maximum((1 + w) * new - w * old, floor * new)
    else:
        rows = new * np.clip(new / old, 1 / 20, 20) ** w
    return rows / rows.sum()


def exponential(truth: Truth, x: State, t: float, s: float, theta: float, form: str) -> Law:
    """Two exact kernels, the second with extrapolated conditionals."""
    rho, result = t - theta * (t - s), defaultdict(float)
    w = 1 / (2 * theta * (1 - theta)) - 1
    positions = range(truth.positions)
    for y, p in product([kernel(truth, x, position, t, truth.alpha(rho)) for position in positions]).items():
        rows = []
        for position in positions:
            c = blend(truth.c(y, position, rho), truth.c(x, position, t), w, form, 0.0)
            rows.append(kernel(truth, y, position, rho, truth.alpha(s), c))
        for z, q in product(rows).items():
            result[z] += p * q
    return dict(result)


def multistep(
    truth: Truth, times: list[float], window: int, form: str, floor: float, coins: bool, plain: bool = False
) -> np.ndarray:
    """One look per step. `coins`: each masked position goes on its own; otherwise fixed counts, a uniform subset.
    `plain`: nothing is extrapolated."""
    noise = [1 - truth.alpha(t) for t in times]
    left = [round(truth.positions * level / noise[0]) for level in noise]

    def weight(n: int, back: int) -> float:
        if truth.generator is not None:
            return 0.5
        now, before, alone = left[n] - left[n + 1], left[n - back] - left[n], 1
        if coins:
            now, before, alone = noise[n] - noise[n + 1], noise[n - back] - noise[n], 0
        w = max(0.0, now - alone) / (2 * before) if before > 0 else 0.0
        if n == 1:
            return min(1.0, w + (max(0.0, before - alone) / (2 * now) if now > 0 else 0.0))
        return min(0.5, w)

    def step(history: History, n: int) -> Law:
        x, back = history[0], min(window, n)
        c = []
        for position in range(truth.positions):
            new = truth.c(x, position, times[n])
            if n and not plain:
                new = blend(new, truth.c(history[back], position, times[n - back]), weight(n, back), form, floor)
            c.append(new)
        alpha = truth.alpha(times[n + 1])
        if coins or truth.generator is not None:
            return product(
                [kernel(truth, x, position, times[n], alpha, c[position]) for position in range(truth.positions)]
            )
        return subsets(truth, x, left[n] - left[n + 1], c)

    return run(truth, times, step, window + 1)


def subsets(truth: Truth, x: State, count: int, c: list[np.ndarray]) -> Law:
    """A uniform subset of `count` masked positions is drawn from `c`."""
    masked = [position for position in range(truth.positions) if truth.masked(x, position)]
    choices = list(itertools.combinations(masked, count))
    result: Law = defaultdict(float)
    for chosen in choices:
        for y, p in reveal(x, chosen, c).items():
            result[y] += p / len(choices)
    return dict(result)


def reveal(x: State, chosen: tuple[int, ...], c: list[np.ndarray]) -> Law:
    """Draw the `chosen` positions independently."""
    rows = [
        dict(enumerate(map(float, c[position]))) if position in chosen else {v: 1.0} for position, v in enumerate(x)
    ]
    return product(rows)


def ordered(truth: Truth, times: list[float], orders: list[tuple[int, ...]]) -> np.ndarray:
    """Fixed counts along a given order of the positions, averaged over `orders`."""
    noise = [1 - truth.alpha(t) for t in times]
    left = [round(truth.positions * level / noise[0]) for level in noise]
    laws = []
    for order in orders:

        def step(history: History, n: int, order: tuple[int, ...] = order) -> Law:
            x = history[0]
            going = [position for position in order if truth.masked(x, position)][: left[n] - left[n + 1]]
            return reveal(x, tuple(going), [truth.c(x, position, times[n]) for position in range(truth.positions)])

        laws.append(run(truth, times, step, 1))
    return np.mean(laws, axis=0)


def entropy_bounded(truth: Truth, times: list[float], gamma: float) -> np.ndarray:
    """The surest positions while the entropies of the surer ones sum to at most gamma."""

    def step(history: History, n: int) -> Law:
        x = history[0]
        c = [truth.c(x, position, times[n]) for position in range(truth.positions)]
        masked = [position for position in range(truth.positions) if truth.masked(x, position)]
        entropy = {position: -sum(p * math.log(p) for p in c[position] if p > 0) for position in masked}
        chosen, known = [], 0.0
        for position in sorted(masked, key=lambda position: entropy[position]):
            if chosen and known > gamma:
                break
            chosen.append(position)
            known += entropy[position]
        return reveal(x, tuple(chosen), c)

    return run(truth, times, step, 1)


def adams_bashforth(truth: Truth, times: list[float]) -> np.ndarray:
    """Frozen intensities in log time, extrapolated over two steps."""
    noise = [1 - truth.alpha(t) for t in times]

    def per_log(x: State, position: int, n: int) -> np.ndarray:
        alpha = truth.alpha(times[n])
        return truth.mu(x, position, times[n]) * (1 - alpha) / (truth.sigma(times[n]) * alpha)

    def step(history: History, n: int) -> Law:
        x, h, rows = history[0], math.log(noise[n] / noise[n + 1]), []
        for position in range(truth.positions):
            u = per_log(x, position, n)
            if n and 1 - noise[n] <= 0.99:
                half = 0.5 * h / math.log(noise[n - 1] / noise[n])
                u = np.maximum((1 + half) * u - half * per_log(history[1], position, n - 1), 0)
                if x[position] < truth.states:
                    u[x[position]] = 0
            total = u.sum() * h
            row = {v: float(p) for v, p in enumerate(u * h * (-math.expm1(-total) / total if total else 0.0))}
            row[x[position]] = row.get(x[position], 0.0) + math.exp(-total)
            rows.append(row)
        return product(rows)

    return run(truth, times, step, 2)
