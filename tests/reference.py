"""Output laws computed a second time: plain loops over all states, sharing nothing with the library.

Everything is a dictionary from state (tuple) to probability; conditionals are Bayes' rule summed over the whole
table; a step is written down as its probabilities, not as code that draws.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg

State = tuple[int, ...]
Law = dict[State, float]
Row = dict[int, float]


@dataclass(frozen=True)
class Truth:
    """A joint law under a process given by ``alpha(t)``, ``sigma(t)`` and a generator, or None for masked."""

    p0: np.ndarray
    alpha: Callable[[float], float]
    sigma: Callable[[float], float]
    generator: np.ndarray | None = None
    known: dict[float, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def states(self) -> int:
        return self.p0.shape[0]

    @property
    def positions(self) -> int:
        return self.p0.ndim

    def forward(self, alpha: float) -> np.ndarray:
        """[i, j]: probability that a clean i has become j."""
        if self.generator is not None:
            if alpha not in self.known:
                self.known[alpha] = scipy.linalg.expm(-math.log(alpha) * self.generator)
            return self.known[alpha]
        return np.hstack([alpha * np.eye(self.states), np.full((self.states, 1), 1 - alpha)])

    def c(self, x: State, position: int, t: float) -> np.ndarray:
        """Law of the clean token at `position` given the other positions of x."""
        p, result = self.forward(self.alpha(t)), np.zeros(self.states)
        for clean in itertools.product(range(self.states), repeat=self.positions):
            weight = self.p0[clean]
            for other in range(self.positions):
                if other != position:
                    weight *= p[clean[other], x[other]]
            result[clean[position]] += weight
        return result / result.sum()

    def masked(self, x: State, position: int) -> bool:
        return self.generator is None and x[position] == self.states

    def mu(self, x: State, position: int, t: float) -> np.ndarray:
        """Reverse intensities at one position."""
        alpha, sigma = self.alpha(t), self.sigma(t)
        if self.generator is None:
            if not self.masked(x, position):
                return np.zeros(self.states)
            return sigma * alpha / (1 - alpha) * self.c(x, position, t)
        q = self.c(x, position, t) @ self.forward(alpha)
        rates = sigma * self.generator[:, x[position]] * q / q[x[position]]
        rates[x[position]] = 0
        return rates

    def prior(self) -> Law:
        if self.generator is None:
            return {(self.states,) * self.positions: 1.0}
        values, vectors = np.linalg.eig(self.generator.T)
        still = np.real(vectors[:, np.argmin(np.abs(values))])
        still = still / still.sum()
        return {x: float(np.prod(still[list(x)])) for x in itertools.product(range(self.states), repeat=self.positions)}


def frozen(rates: np.ndarray, present: int, h: float, rule: str) -> Row:
    """Where one position is after a time h of frozen `rates`."""
    m = np.maximum(rates, 0) * h
    if present < len(m):
        m[present] = 0
    total = m.sum()
    if rule == "reject":
        jump = m * math.exp(-total)
    elif rule == "euler":
        jump = m / max(1.0, total)
    else:
        jump = m * (-math.expm1(-total) / total if total else 0.0)
    row = {v: float(p) for v, p in enumerate(jump) if p > 0}
    row[present] = row.get(present, 0.0) + 1 - float(jump.sum())
    return row


def kernel(truth: Truth, x: State, position: int, t: float, alpha_s: float, c: np.ndarray | None = None) -> Row:
    """The exact one-position kernel by Bayes' rule, for the position's own conditional or for another one."""
    alpha_t, present, c = truth.alpha(t), x[position], truth.c(x, position, t) if c is None else c
    if truth.generator is None:
        if not truth.masked(x, position):
            return {present: 1.0}
        p = (alpha_s - alpha_t) / (1 - alpha_t)
        return {**{v: float(p * c[v]) for v in range(truth.states)}, present: 1 - p}
    back, step = c @ truth.forward(alpha_s), truth.forward(alpha_t / alpha_s)
    weights = back * step[:, present]
    return {v: float(w) for v, w in enumerate(weights / weights.sum())}


def product(rows: list[Row]) -> Law:
    """Positions that move independently."""
    law: Law = {(): 1.0}
    for row in rows:
        law = {(*x, v): p * q for x, p in law.items() for v, q in row.items() if q > 0}
    return law


def all_positions(truth: Truth, x: State, row: Callable[[int], Row]) -> Law:
    return product([row(position) for position in range(truth.positions)])


def one_stage(truth: Truth, x: State, t: float, s: float, rule: str) -> Law:
    return all_positions(truth, x, lambda position: frozen(truth.mu(x, position, t), x[position], t - s, rule))


def tweedie(truth: Truth, x: State, t: float, s: float) -> Law:
    return all_positions(truth, x, lambda position: kernel(truth, x, position, t, truth.alpha(s)))


def shift(rates: np.ndarray, by: int, align: str) -> np.ndarray:
    """Rates of a state for the same displacements from a state `by` higher."""
    if align == "destination" or by == 0:
        return rates
    moved = np.roll(rates, by)
    if align == "displacement":
        if by > 0:
            moved[:by] = 0
        else:
            moved[by:] = 0
    return moved


def two_stage(truth: Truth, x: State, t: float, s: float, theta: float, rule: str, kind: str, align: str) -> Law:
    rho, result = t - theta * (t - s), defaultdict(float)
    first = [truth.mu(x, position, t) for position in range(truth.positions)]
    for y, p in one_stage(truth, x, t, rho, rule).items():
        second = [truth.mu(y, position, rho) for position in range(truth.positions)]
        rows = []
        for position in range(truth.positions):
            a, b = first[position], second[position]
            if kind == "rk2":
                mixed = (1 - 1 / (2 * theta)) * a + shift(b, x[position] - y[position], align) / (2 * theta)
                rows.append(frozen(np.where(a > 0, mixed, 0), x[position], t - s, rule))
            else:
                a1 = 1 / (2 * theta * (1 - theta))
                mixed = a1 * b - (a1 - 1) * shift(a, y[position] - x[position], align)
                rows.append(frozen(mixed, y[position], rho - s, rule))
        for z, q in product(rows).items():
            result[z] += p * q
    return dict(result)


def finish(truth: Truth, law: Law, t: float) -> Law:
    """Whatever noise is left at time t goes by the exact one-position kernel."""
    result: Law = defaultdict(float)
    for x, p in law.items():
        for y, q in all_positions(truth, x, lambda position, x=x: kernel(truth, x, position, t, 1.0)).items():
            result[y] += p * q
    return result


def run(truth: Truth, times: list[float], step: Callable[[State, float, float], Law]) -> np.ndarray:
    """The law of the samples, as an array like p0."""
    law = truth.prior()
    for t, s in itertools.pairwise(times):
        after: Law = defaultdict(float)
        for x, p in law.items():
            if truth.generator is None and truth.states not in x:
                after[x] += p  # nothing left to do
                continue
            for y, q in step(x, t, s).items():
                after[y] += p * q
        law = after
    if truth.generator is None or truth.alpha(times[-1]) < 1:
        if truth.generator is None and truth.alpha(times[-1]) == 1:
            assert all(truth.states not in x for x, p in law.items() if p > 0)
        else:
            law = finish(truth, law, times[-1])
    result = np.zeros_like(truth.p0)
    for x, p in law.items():
        result[x] += p
    return result


def decode(truth: Truth, plan: list[tuple[list[int], int, float | None]]) -> np.ndarray:
    """Order-based decoding: `plan` lists, for each step, the positions that may go, how many go, and the temperature of
    the Gumbel noise on log-confidence (0: none; None: a uniform subset)."""
    law = truth.prior()
    for allowed, count, heat in plan:
        after: Law = defaultdict(float)
        for x, p in law.items():
            for y, q in _decode_step(truth, x, allowed, count, heat).items():
                after[y] += p * q
        law = after
    result = np.zeros_like(truth.p0)
    for x, p in law.items():
        result[x] += p
    return result


def _decode_step(truth: Truth, x: State, allowed: list[int], count: int, heat: float | None) -> Law:
    positions = [position for position in allowed if truth.masked(x, position)]
    c = {position: truth.c(x, position, 0.5) for position in positions}
    result: Law = defaultdict(float)
    for values in itertools.product(range(truth.states), repeat=len(positions)):
        p = math.prod(c[position][v] for position, v in zip(positions, values, strict=True))
        if p == 0:
            continue
        confidence = [c[position][v] for position, v in zip(positions, values, strict=True)]
        for chosen, q in _subsets(confidence, min(count, len(positions)), heat).items():
            y = list(x)
            for n in chosen:
                y[positions[n]] = values[n]
            result[tuple(y)] += p * q
    return result


def _subsets(confidence: list[float], count: int, heat: float | None) -> dict[frozenset[int], float]:
    n = len(confidence)
    if heat == 0:
        order = sorted(range(n), key=lambda i: (-confidence[i], i))
        return {frozenset(order[:count]): 1.0}
    odds = [1.0] * n if heat is None else [c ** (1 / heat) for c in confidence]
    result: dict[frozenset[int], float] = defaultdict(float)
    for order in itertools.permutations(range(n), count):
        p, left = 1.0, sum(odds)
        for i in order:
            p *= odds[i] / left
            left -= odds[i]
        result[frozenset(order)] += p
    return result
