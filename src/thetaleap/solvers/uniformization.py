"""Uniformization: exact sampling of any process, at the price of a random number of evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..core.checks import require
from ..core.jumps import Share
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times, shared
from .base import Solver, Step

RATIO = 1.2


@dataclass(frozen=True)
class Uniformization(Solver):
    """Candidate jumps come at a rate that no intensity exceeds, and each is taken with probability
    intensity/rate (van Dijk 1992; Chen and Ying 2024).

    The rate is constant on short stretches of ``-log alpha`` and holds for every model of the process. It grows
    without bound towards the data, like 1/t, so a step must end at a positive time.
    """

    evaluations = None
    when = "exact on every process: reference samples, at a random cost"

    def reaches_data(self, process: Process) -> bool:
        return False

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        process, length = reverse.process, x.shape[1]
        high, low = (-torch.log(reverse.alpha(time)).expand(len(x)) for time in (t, s))
        remedy = "Uniformization needs infinitely many candidates to get there: end above 0"
        require(bool((low > 0).all()), "grid end", float(shared(s).min()), remedy)
        edges, rates, spent = _stretches(process, float(high.max()), float(low.min()))
        x, candidates, jumps = x.clone(), 0, 0
        clock, end = (_spent_at(edge, edges, rates, spent).to(x.device) for edge in (high, low))
        rows = torch.arange(len(x), device=x.device)
        for event in range(10**9):
            ask = noise(Draw.EVENT, event)[rows]
            clock[rows] -= torch.log1p(-ask(Draw.GAP).uniform(len(rows))) / length
            going = clock[rows] < end[rows]
            rows, position = rows[going], (ask(Draw.POSITION).uniform(len(rows))[going] * length).long()
            if not len(rows):
                break
            # a position that cannot jump needs no evaluation
            able = reverse[rows].active(x[rows]).gather(1, position.unsqueeze(1)).squeeze(1)
            here, position = rows[able], position[able]
            if not len(here):
                continue
            stretch = torch.searchsorted(spent, clock[here], right=True) - 1
            now = edges[stretch] - (clock[here] - spent[stretch]) / rates[stretch]
            time = process.schedule.alpha_inverse(torch.exp(-now))
            each = torch.arange(len(here), device=x.device)
            rate = reverse[here].intensity(x[here], time).rows(each * length + position)
            per_unit = rate / process.schedule.sigma(time).unsqueeze(1)
            weights = per_unit / rates[stretch].unsqueeze(1)
            value = noise(Draw.VALUE, event)[here].choose(each, 1, weights, stay=True)
            jumped = value < process.states
            x[here[jumped], position[jumped]] = value[jumped]
            candidates, jumps = candidates + len(here), jumps + int(jumped.sum())
        return Step(x, info={"jumps per evaluation": Share(jumps, candidates)})


def _stretches(process: Process, high: float, low: float) -> tuple[Tensor, Tensor, Tensor]:
    """Cut [low, high] of ``-log alpha`` into stretches of constant rate: their edges from high to low, the rate of
    each, and the expected candidates per position before each edge."""
    count = max(1, math.ceil(math.log(high / low) / math.log(RATIO)))
    edges = [high * (low / high) ** (n / count) for n in range(count + 1)]
    rates = torch.tensor([process.ceiling(a, b) for a, b in pairwise(edges)], dtype=torch.float64)
    steps = torch.tensor(edges, dtype=torch.float64)
    spent = torch.cat([torch.zeros(1, dtype=torch.float64), torch.cumsum(rates * (steps[:-1] - steps[1:]), 0)])
    return steps, rates, spent


def _spent_at(u: Tensor, edges: Tensor, rates: Tensor, spent: Tensor) -> Tensor:
    """The expected candidates per position before each `u`."""
    stretch = (torch.searchsorted(-edges, -u, right=True) - 1).clamp(0, len(rates) - 1)
    return spent[stretch] + (edges[stretch] - u) * rates[stretch]
