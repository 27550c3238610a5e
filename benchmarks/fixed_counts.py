"""Fixed counts against coins on the long oracles, at 4, 8 and 16 evaluations.

Two figures. The path KL is ``E[log p(x) - sum over positions of log c(x_position | what is known when it goes)]``
over true
draws x and over who goes when: it bounds the KL of the samples, by more for coins than for counts, for coins mix over
more ways to go. The excess is ``(-log p(x) - entropy)/d`` of samples, in nats per token, which owes nothing to that
bound, but is no divergence.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import thetaleap as tl
from thetaleap.core.noise import Draw, Stream
from thetaleap.planners import Planner, expected_counts

MODELS = ("chain64", "chain2-64", "ising4x16", "tree31", "mixture32")
BUDGETS = (4, 8, 16)
DRAWS, SAMPLES, BATCH = 4096, 4096, 512
DRAW_SEED, ORDER_SEED, SAMPLE_SEED = 1, 2, 3

Mean = tuple[float, float]
"""A mean and its standard error."""


def mean(values: torch.Tensor) -> Mean:
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def moments(model: Any, planner: Planner, steps: int, num: int, seed: int) -> torch.Tensor:
    """In which of `steps` equal steps each position goes, (num, d)."""
    u = Stream(seed, 0, num)(Draw.ORDER).clock(torch.ones((num, model.length), dtype=torch.bool))
    if isinstance(planner, tl.Bernoulli):
        return (u * steps).long()
    counts = expected_counts(model.process, model.length, tl.grids.uniform(model.horizon, 0.0, steps))
    return torch.repeat_interleave(torch.arange(steps), counts)[u.argsort(1).argsort(1)]


def path_kl(model: Any, planner: Planner, steps: int) -> Mean:
    """In nats per sequence. Both planners see the same draws and the same clocks."""
    truth, when = model.draw(DRAWS, DRAW_SEED), moments(model, planner, steps, DRAWS, ORDER_SEED)
    parts = zip(truth.split(BATCH), when.split(BATCH), strict=True)
    return mean(torch.cat([_lost(model, x, moment, steps) for x, moment in parts]))


def _lost(model: Any, x: torch.Tensor, when: torch.Tensor, steps: int) -> torch.Tensor:
    lost, half = model.log_prob(x), torch.tensor(0.5, dtype=torch.float64)
    for step in range(steps):
        known = torch.where(when < step, x, model.process.mask)
        positions = torch.nonzero((when == step).flatten()).flatten()
        log_c = torch.log_softmax(model(known, half).logits(positions), 1).gather(
            1, x.flatten()[positions].unsqueeze(1)
        )
        lost = lost.index_add(0, positions // model.length, log_c.squeeze(1), alpha=-1)
    return lost


def excess(model: Any, planner: Planner, steps: int) -> Mean:
    """In nats per token."""
    x = tl.sample(model, tl.Tweedie(planner), nfe=steps, num=SAMPLES, seed=SAMPLE_SEED, progress=False).x
    return mean((-model.log_prob(x) - model.entropy()) / model.length)


def verdict(fixed: Mean, coins: Mean) -> str:
    """By three standard errors of the difference."""
    gap, error = coins[0] - fixed[0], math.hypot(fixed[1], coins[1])
    if abs(gap) <= 3 * error:
        return "even"
    return "fixed counts" if gap > 0 else "COINS"


def main() -> None:
    print(f"fixed counts | coins: path KL in nats per sequence ({DRAWS} draws), nats per token above the entropy")
    print(f"({SAMPLES} samples), each with its standard error; ahead by three standard errors")
    for name in MODELS:
        model = tl.load(name)
        for steps in BUDGETS:
            line = f"{name:10} {steps:3}"
            for figure, digits in ((path_kl, 3), (excess, 4)):
                fixed, coins = (figure(model, planner, steps) for planner in (tl.FixedCount(), tl.Bernoulli()))
                both = " | ".join(f"{value:.{digits}f} +- {error:.{digits}f}" for value, error in (fixed, coins))
                line += f"   {both:36} {verdict(fixed, coins):12}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
