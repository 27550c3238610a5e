"""A masked Markov chain in 4 evaluations: what order and planned counts are worth, as the KL divergence of paths.

The path KL is ``E[log p(x) - sum over steps and their positions of log c(x_position | known at the step's start)]``
over true
draws x and orders: what drawing positions together costs, in nats per sequence. It bounds the KL of the samples. The
draws are others than the pilots that the plan is made from.
"""

from __future__ import annotations

import math

import torch

import thetaleap as tl
from thetaleap.control.pilots import Ordered, counted, pilot_entropies, plan_counts
from thetaleap.core.noise import Stream
from thetaleap.core.reverse import Reverse

NFE, PILOTS, DRAWS, BATCH = 4, 300, 4096, 512
PILOT_SEED, DRAW_SEED, ORDER_SEED = 0, 1, 2


def orders(model: tl.oracles.MarkovChain, planner: Ordered, num: int, seed: int) -> torch.Tensor:
    """Positions in the order in which `planner` unmasks them, for `num` samples."""
    noise, x = Stream(seed, 0, num), torch.full((num, model.length), model.process.mask)
    stops = counted(model, (model.length,)).unsqueeze(0)
    _, order = planner.begin(Reverse.begin(model, num), x, stops, noise)
    return torch.argsort(order.key, 1, descending=True)


def path_kl(
    model: tl.oracles.MarkovChain, planner: Ordered, counts: tuple[int, ...], draws: int = DRAWS
) -> tuple[float, float]:
    """The path KL of `counts` in the order of `planner`, in nats, and its standard error."""
    truth, order = model.draw(draws, DRAW_SEED), orders(model, planner, draws, ORDER_SEED)
    lost = torch.cat([_lost(model, *part, counts) for part in zip(truth.split(BATCH), order.split(BATCH), strict=True)])
    return float(lost.mean()), float(lost.std() / math.sqrt(draws))


def _lost(model: tl.oracles.MarkovChain, x: torch.Tensor, order: torch.Tensor, counts: tuple[int, ...]) -> torch.Tensor:
    """``log p(x) - log q(x | order)`` of each sample."""
    lost, known, first = model.log_prob(x), torch.full_like(x, model.process.mask), 0
    for count in counts:
        going = order[:, first : first + count]
        positions = (torch.arange(len(x)).unsqueeze(1) * model.length + going).flatten()
        log_c = torch.log_softmax(model(known, torch.tensor(0.5, dtype=torch.float64)).logits(positions), 1)
        lost = lost - log_c.gather(1, x.flatten()[positions].unsqueeze(1)).view(len(x), -1).sum(1)
        known, first = known.scatter(1, going, x.gather(1, going)), first + count
    return lost


def main() -> None:
    model = tl.load("chain64")
    even, spread = (model.length // NFE,) * NFE, tl.LowDiscrepancy()
    plan = plan_counts(pilot_entropies(model, spread, PILOTS, PILOT_SEED), NFE)
    random_plan = plan_counts(pilot_entropies(model, tl.FixedCount(), PILOTS, PILOT_SEED), NFE)
    rows: list[tuple[str, Ordered, tuple[int, ...]]] = [
        ("random order, even counts", tl.FixedCount(), even),
        ("random order, planned counts", tl.FixedCount(), random_plan),
        ("low discrepancy, even counts", spread, even),
        ("low discrepancy, planned counts", spread, plan),
    ]
    print(f"chain64, {NFE} evaluations, {DRAWS} draws, {PILOTS} pilots: path KL in nats per sequence")
    found = [path_kl(model, planner, counts) for _, planner, counts in rows]
    for (name, _, counts), (kl, error) in zip(rows, found, strict=True):
        # three standard errors to our disadvantage: the last is too small to be told well from zero
        sure = (found[0][0] - 3 * found[0][1]) / (kl + 3 * error)
        print(f"{name:32} {counts!s:18} {kl:8.4f} +- {error:.4f}   surely {sure:7.1f}x below the first")


if __name__ == "__main__":
    main()
