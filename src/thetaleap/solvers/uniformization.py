"""Uniformization: exact sampling of any process, at the price of a random number of evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..core.checks import require
from ..core.jumps import Share
from ..core.noise import Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from .base import Memory, Solver, Step

RATIO = 1.2


@dataclass(frozen=True)
class Uniformization(Solver):
    """Candidate jumps come at a rate that no intensity exceeds, and each is taken with probability
    intensity/rate (van Dijk 1992; Chen and Ying 2024).

    The rate is constant on short stretches of ``-log alpha`` and holds for every model of the process. It grows
    without bound towards the data, like 1/t, so a step must end at a positive time.
    """

    evaluations = None

    def reaches_data(self, process: Process) -> bool:
        return False

    def step(self, reverse: Reverse, x: Tensor, t: float, s: float, noise: Noise, memory: Memory) -> Step:
        process, length = reverse.process, x.shape[1]
        high, low = (-math.log(float(process.schedule.alpha(time))) for time in (t, s))
        require(low > 0, "grid end", s, "Uniformization needs infinitely many candidates to reach it: end above 0")
        edges, rates, spent = _stretches(process, high, low)
        x, candidates, jumps = x.clone(), 0, 0
        clock = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        rows = torch.arange(len(x), device=x.device)
        for event in range(10**9):
            ask = noise(f"event {event}")[rows]
            clock[rows] -= torch.log1p(-ask("gap").uniform(len(rows))) / length
            going = clock[rows] < spent[-1]
            rows, position = rows[going], (ask("position").uniform(len(rows))[going] * length).long()
            if not len(rows):
                break
            # a position that cannot jump needs no evaluation
            able = reverse[rows].process.active(x[rows]).gather(1, position.unsqueeze(1)).squeeze(1)
            here, position = rows[able], position[able]
            if not len(here):
                continue
            stretch = torch.searchsorted(spent, clock[here], right=True) - 1
            now = edges[stretch] - (clock[here] - spent[stretch]) / rates[stretch]
            time = process.schedule.alpha_inverse(torch.exp(-now))
            each = torch.arange(len(here), device=x.device)
            rate = reverse[here].intensity(x[here], time).rows(each * length + position)
            per_unit = rate / process.schedule.sigma(time).unsqueeze(1)
            value = noise(f"value {event}")[here].choose(each, 1, per_unit / rates[stretch].unsqueeze(1), stay=True)
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
