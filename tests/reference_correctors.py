"""Correctors and samplers that noise again, written down a second time as probabilities; see `tests.reference`.

A run's state is a sequence and what is remembered of it, here a tuple. A step or sweep is a function of (x, memory, ...)
that gives a dictionary from the next (x, memory) to its probability.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from tests.reference import Law, Row, State, Truth, finish, kernel, product

Memory = tuple[float, ...]
Next = dict[tuple[State, Memory], float]


def noised(truth: Truth, x: State, position: int, t: float) -> Row:
    """``p_t(v | others)`` by the forward kernel, the mask among the values."""
    row = truth.c(x, position, t) @ truth.forward(truth.alpha(t))
    return {v: float(p) for v, p in enumerate(row)}


def replaced(truth: Truth, x: State, rows: dict[int, Row]) -> Law:
    """Some positions drawn independently, the others as they are."""
    return product([rows.get(position, {x[position]: 1.0}) for position in range(truth.positions)])


def redrawn(truth: Truth, x: State, chosen: tuple[int, ...], t: float) -> Law:
    """The chosen positions from their noised conditionals, with masks given none of each other."""
    base = x
    if truth.generator is None:
        base = tuple(truth.states if position in chosen else value for position, value in enumerate(x))
    return replaced(truth, x, {position: noised(truth, base, position, t) for position in chosen})


def gibbs(truth: Truth, x: State, t: float, k: int) -> Law:
    """Every subset of k positions is as likely."""
    subsets, result = list(itertools.combinations(range(truth.positions), k)), defaultdict(float)
    for chosen in subsets:
        for y, p in redrawn(truth, x, chosen, t).items():
            result[y] += p / len(subsets)
    return dict(result)


def informed(truth: Truth, x: State, t: float, k: int, by: str) -> Law:
    """The k tokens of least confidence or margin, by conditionals that all belong to x."""
    tokens = [position for position in range(truth.positions) if not truth.masked(x, position)]
    fit = {}
    for position in tokens:
        c = truth.c(x, position, t)
        rest = max((p for v, p in enumerate(c) if v != x[position]), default=0.0)
        fit[position] = c[x[position]] if by == "confidence" else c[x[position]] / rest
    chosen = sorted(tokens, key=lambda position: (fit[position], position))[:k]
    rows = {}
    for position in chosen:
        values = dict(enumerate(truth.c(x, position, t).tolist()))
        rows[position] = values if truth.generator is None else noised(truth, x, position, t)
    return replaced(truth, x, rows)


def remdm(truth: Truth, x: State, alpha_t: float, alpha_s: float, sigma: list[float], t: float) -> Law:
    """Each position on its own; sigma may differ from one to the other."""
    rows = {}
    for position in range(truth.positions):
        if truth.masked(x, position):
            shown = (alpha_s - (1 - sigma[position]) * alpha_t) / (1 - alpha_t)
            rows[position] = {v: shown * float(p) for v, p in enumerate(truth.c(x, position, t))}
            rows[position][truth.states] = 1 - shown
        else:
            rows[position] = {x[position]: 1 - sigma[position], truth.states: sigma[position]}
    return replaced(truth, x, rows)


def loop_alpha(u: float, t_on: float, t_off: float, alpha_on: float) -> float:
    """Through (1, 0), (t_on, alpha_on), (t_off, alpha_on) and (0, 1)."""
    return float(np.interp(u, [0.0, t_off, t_on, 1.0], [1.0, alpha_on, alpha_on, 0.0]))


def psi(truth: Truth, x: State, t: float, s: float, kappa: float) -> Law:
    """``kappa q(x_s | x_t, x_0) + (1 - kappa) q(x_s | x_0)``, averaged over the posterior of x_0."""
    forward, later, rows = truth.forward(truth.alpha(t)), truth.forward(truth.alpha(s)), {}
    step = truth.forward(truth.alpha(t) / truth.alpha(s))
    for position in range(truth.positions):
        here = x[position]
        posterior = truth.c(x, position, t) * forward[:, here]
        posterior /= posterior.sum()
        row = np.zeros(truth.states)
        for clean, weight in enumerate(posterior):
            if weight > 0:
                backward = later[clean] * step[:, here] / forward[clean, here]
                row += weight * (kappa * backward + (1 - kappa) * later[clean])
        rows[position] = dict(enumerate(row.tolist()))
    return replaced(truth, x, rows)


def predicted(truth: Truth, x: State, t: float, s: float) -> Law:
    """Tweedie's step, also of sequences without a mask."""
    return product([kernel(truth, x, position, t, truth.alpha(s)) for position in range(truth.positions)])


def run(
    truth: Truth, times: list[float], step: Callable[[State, Memory, int], Next], memory: dict[Memory, float]
) -> np.ndarray:
    """The law of the samples along `times`; `step` is told the number of the step, and `memory` is how it begins."""
    law: Next = {(x, m): p * q for x, p in truth.prior().items() for m, q in memory.items()}
    for n in range(len(times) - 1):
        after: Next = defaultdict(float)
        for (x, m), p in law.items():
            for state, q in step(x, m, n).items():
                after[state] += p * q
        law = after
    ends: Law = defaultdict(float)
    for (x, _), p in law.items():
        ends[x] += p
    if truth.alpha(times[-1]) < 1:
        ends = finish(truth, ends, times[-1])
    result = np.zeros_like(truth.p0)
    for x, p in ends.items():
        if p > 0:
            result[x] += p
    return result


def marginal(truth: Truth, t: float) -> Law:
    """p_t, of all noised sequences."""
    forward, result = truth.forward(truth.alpha(t)), defaultdict(float)
    for clean in itertools.product(range(truth.states), repeat=truth.positions):
        for x in itertools.product(range(forward.shape[1]), repeat=truth.positions):
            result[x] += float(truth.p0[clean]) * math.prod(forward[a, b] for a, b in zip(clean, x, strict=True))
    return dict(result)
