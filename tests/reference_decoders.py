"""Laws of the field's decoders computed a second time, straight from their descriptions: plain loops over all states and
drafts, sharing nothing with the library but `reference.Truth`."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.reference import Law, State, Truth, finish

Memory = Any
Outcome = dict[tuple[State, Memory], float]
Decoder = Callable[[Truth, State, Memory], Outcome]
TIME = 0.5
"""Conditionals of masked models do not depend on it."""


def masks(truth: Truth, x: State) -> list[int]:
    return [position for position in range(len(x)) if x[position] == truth.states]


def run(truth: Truth, steps: int, step: Decoder, memory: Memory = None, goes_on: bool = False) -> np.ndarray:
    """So many steps from nothing but masks, and one more evaluation for what is masked then. A sample without masks is
    finished, unless it `goes_on`."""
    law: Outcome = {((truth.states,) * truth.positions, memory): 1.0}
    for _ in range(steps):
        after: Outcome = defaultdict(float)
        for (x, kept), p in law.items():
            moves = step(truth, x, kept) if goes_on or masks(truth, x) else {(x, kept): 1.0}
            for state, q in moves.items():
                after[state] += p * q
        law = after
    ends: Law = defaultdict(float)
    for (x, _), p in law.items():
        ends[x] += p
    result = np.zeros_like(truth.p0)
    for x, p in finish(truth, ends, TIME).items():
        result[x] += p
    return result


def tempered(row: np.ndarray, temperature: float) -> np.ndarray:
    if temperature == 0:
        return np.eye(len(row))[row.argmax()]
    row = row ** (1 / temperature)
    return row / row.sum()


def drafts(
    truth: Truth, x: State, positions: list[int], temperature: float = 1.0
) -> Iterator[tuple[dict[int, int], dict[int, float], float]]:
    """Tokens for `positions`, what the network says of each, and the probability to draw them all."""
    rows = {position: truth.c(x, position, TIME) for position in positions}
    sharp = {position: tempered(row, temperature) for position, row in rows.items()}
    for values in itertools.product(range(truth.states), repeat=len(positions)):
        drawn = dict(zip(positions, values, strict=True))
        p = math.prod(sharp[position][v] for position, v in drawn.items())
        if p > 0:
            yield drawn, {position: float(rows[position][v]) for position, v in drawn.items()}, p


def written(x: State, tokens: dict[int, int]) -> State:
    return tuple(tokens.get(position, v) for position, v in enumerate(x))


def surest(sure: dict[int, float]) -> list[int]:
    """Positions, the surest first, and of equals the leftmost."""
    return sorted(sure, key=lambda position: (-round(sure[position], 9), position))


def accepting(choose: Callable[[dict[int, float]], list[int]], temperature: float = 1.0) -> Decoder:
    """Draw all masked positions, keep those that `choose` takes by confidence, or else the surest."""

    def step(truth: Truth, x: State, memory: Memory) -> Outcome:
        after: Outcome = defaultdict(float)
        for drawn, sure, p in drafts(truth, x, masks(truth, x), temperature):
            keep = choose(sure) or surest(sure)[:1]
            after[written(x, {position: drawn[position] for position in keep}), memory] += p
        return after

    return step


def threshold(least: float, temperature: float = 1.0) -> Decoder:
    return accepting(lambda sure: [position for position, p in sure.items() if p >= least], temperature)


def factor(most: float) -> Decoder:
    def choose(sure: dict[int, float]) -> list[int]:
        order = surest(sure)
        fits = [n for n in range(1, len(order) + 1) if (n + 1) * (1 - sure[order[n - 1]]) <= most]
        return order[: max(fits, default=0)]

    return accepting(choose)


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0))


def klass(least: float, most: float, history: int) -> Decoder:
    """Memory: the state before, and for how many evaluations each position has been calm."""

    def step(truth: Truth, x: State, memory: Memory) -> Outcome:
        before, calm = memory
        now = dict.fromkeys(range(len(x)), 0)
        for position in masks(truth, x):
            if before is not None and kl(truth.c(x, position, TIME), truth.c(before, position, TIME)) < most:
                now[position] = calm[position] + 1
        after: Outcome = defaultdict(float)
        for drawn, sure, p in drafts(truth, x, masks(truth, x)):
            ready = [position for position in sure if sure[position] > least and now[position] >= history]
            keep = ready or surest(sure)[:1]
            state = written(x, {position: drawn[position] for position in keep})
            after[state, (x, tuple(now.values()))] += p
        return after

    return step


def wino(wide: float, narrow: float) -> Decoder:
    """Memory: how many were accepted in the step before."""

    def step(truth: Truth, x: State, memory: Memory) -> Outcome:
        open_, after = masks(truth, x), defaultdict(float)
        most = min(max(int(0.7 * len(open_)), 5), 20)
        trust = {at: float(truth.c(x, at, TIME)[x[at]]) for at in range(len(x)) if at not in open_}
        for drawn, sure, p in drafts(truth, x, open_):
            accepted = [position for position in surest(sure) if sure[position] > wide][:most] or surest(sure)[:1]
            doubtful = sorted((at for at in trust if trust[at] < narrow), key=lambda at: (round(trust[at], 9), at))
            if len(doubtful) >= memory:
                doubtful = doubtful[: memory - 1]
            tokens = {position: drawn[position] for position in accepted}
            if len(accepted) > 1:
                tokens |= dict.fromkeys(doubtful, truth.states)
            after[written(x, tokens), len(accepted)] += p
        return after

    return step


def joint_threshold(unmask: float, edit: float) -> Decoder:
    """Memory: whether the sample is finished."""

    def step(truth: Truth, x: State, memory: Memory) -> Outcome:
        if memory:
            return {(x, True): 1.0}
        open_, after = masks(truth, x), defaultdict(float)
        for drawn, sure, p in drafts(truth, x, list(range(len(x)))):
            to_unmask = [at for at in open_ if sure[at] > unmask] or surest({at: sure[at] for at in open_})[:1]
            to_edit = [at for at in sure if at not in open_ and drawn[at] != x[at] and sure[at] > edit]
            state = written(x, {at: drawn[at] for at in (*to_unmask, *to_edit)})
            after[state, not (to_unmask or to_edit)] += p
        return after

    return step


def punt(truth: Truth, evaluations: int, epsilon: float) -> np.ndarray:
    """In whole rounds: a state, and how many evaluations have been used. A round that does not end in time writes
    nothing."""
    law: dict[tuple[State, int], float] = {((truth.states,) * truth.positions, 0): 1.0}
    ends: Law = defaultdict(float)
    while law:
        (x, used), p = law.popitem()
        for drawn, _, q in drafts(truth, x, masks(truth, x)):
            keep, cost = _independent(truth, x, drawn, epsilon)
            state = written(x, {position: drawn[position] for position in keep})
            if used + cost > evaluations:
                ends[x] += p * q
            elif not masks(truth, state) or used + cost == evaluations:
                ends[state] += p * q
            else:
                law[state, used + cost] = law.get((state, used + cost), 0.0) + p * q
    result = np.zeros_like(truth.p0)
    for x, p in finish(truth, ends, TIME).items():
        result[x] += p
    return result


def _independent(truth: Truth, x: State, drawn: dict[int, int], epsilon: float) -> tuple[list[int], int]:
    """Positions that survive all tests, and how many evaluations that took."""
    rows = {position: truth.c(x, position, TIME) for position in drawn}
    entropy = {position: round(float(-(row * np.log(row)).sum()), 9) for position, row in rows.items()}
    order = sorted(drawn, key=lambda position: (entropy[position], position))
    width = max(1, (len(order) - 1).bit_length())
    label = {position: format(n, f"0{width}b") for n, position in enumerate(order)}
    keep, cost = list(order), 1
    for place in range(width):
        anchors = [position for position in keep if label[position][place] == "0"]
        if not anchors or len(anchors) == len(keep):
            continue
        cost += 1
        y = written(x, {position: drawn[position] for position in anchors})
        keep = [at for at in keep if at in anchors or kl(truth.c(y, at, TIME), rows[at]) <= epsilon]
    return keep, cost


def certain(measure: Callable[[np.ndarray], float], counts: list[int]) -> Callable[[Truth], np.ndarray]:
    """So many positions in each step, the most certain first."""

    def law(truth: Truth) -> np.ndarray:
        states: Law = {(truth.states,) * truth.positions: 1.0}
        for count in counts:
            after: Law = defaultdict(float)
            for x, p in states.items():
                certainty = {at: float(measure(truth.c(x, at, TIME))) for at in masks(truth, x)}
                for drawn, _, q in drafts(truth, x, surest(certainty)[:count]):
                    after[written(x, drawn)] += p * q
            states = after
        result = np.zeros_like(truth.p0)
        for x, p in states.items():
            result[x] += p
        return result

    return law
