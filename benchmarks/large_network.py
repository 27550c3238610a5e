"""What a whole run costs beside its trunk: a network of the size of RADD small, with random weights, on two threads.

12 blocks, 768 wide, 12 heads, 50257 tokens, 1024 positions, one sample, 16 evaluations. The trunk is timed where it
runs, as part of the run, so that both sides of the ratio see the same machine; full forwards, trunk and head on all
positions, run in between. All is time on the wall; medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor

import thetaleap as tl
from thetaleap.models.transformer import Sizes, Transformer
from thetaleap.solvers.base import Solver

TOKENS, LENGTH, NFE, THREADS = 50257, 1024, 16, 2
FORWARD = 0.85
SOLVERS: dict[str, tuple[Solver, float]] = {
    "Tweedie()": (tl.Tweedie(), 1.10),
    "ExponentialTrapezoidal()": (tl.ExponentialTrapezoidal(), 1.10),
    "Trapezoidal()": (tl.Trapezoidal(), 1.25),
}
"""With the most that an evaluation may cost, over the trunk alone."""


def network() -> Transformer:
    torch.manual_seed(0)
    net = Transformer(Sizes(TOKENS, hidden=768, blocks=12, heads=12)).eval()
    torch.nn.init.normal_(net.output_layer.linear.weight, std=0.02)  # else all tokens are alike
    return net


class Clocked:
    """The network as a model, with the time that its trunk and its head take."""

    def __init__(self, net: Transformer) -> None:
        self.net, self.trunk, self.head = net, 0.0, 0.0
        self.model = tl.from_network(tl.Masked(states=TOKENS), length=LENGTH, trunk=self._trunk, head=self._head)

    def _trunk(self, x: Tensor, t: Tensor) -> Tensor:
        start = time.perf_counter()
        hidden = self.net.trunk(x)
        self.trunk += time.perf_counter() - start
        return hidden

    def _head(self, rows: Tensor) -> Tensor:
        start = time.perf_counter()
        logits = self.net.head(rows)
        self.head += time.perf_counter() - start
        return logits

    def run(self, solver: Solver) -> tuple[float, float, float]:
        """Seconds per evaluation: of the run, of its trunk, of its head."""
        self.trunk = self.head = 0.0
        start = time.perf_counter()
        out = tl.sample(self.model, solver, nfe=NFE, progress=False)
        taken, evaluations = time.perf_counter() - start, int(out.spent.sum())
        return taken / evaluations, self.trunk / evaluations, self.head / evaluations

    def forward(self) -> tuple[float, float]:
        """Seconds of the trunk, and of all of the network."""
        x = torch.full((1, LENGTH), TOKENS)
        with torch.no_grad():
            start = time.perf_counter()
            hidden = self.net.trunk(x)
            middle = time.perf_counter()
            self.net.head(hidden.flatten(0, 1))
        return middle - start, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(THREADS)
    clocked = Clocked(network())
    clocked.forward()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in SOLVERS}
    forwards = []
    for _ in range(rounds):
        for name, (solver, _) in SOLVERS.items():
            forwards += [clocked.forward() for _ in range(2)]
            run, trunk, head = clocked.run(solver)
            found[name].append((run, trunk, head))
            print(f"  {name:26} {run:.2f} s an evaluation, trunk {trunk:.2f} s, head {head:.3f} s", flush=True)
    whole = statistics.median(full / trunk for trunk, full in forwards)
    alone = statistics.median(trunk for trunk, _ in forwards)
    print(
        f"one evaluation, {NFE} a run, {rounds} rounds; the trunk by itself {alone:.2f} s, a forward {whole:.2f}x that"
    )
    for name, (_, most) in SOLVERS.items():
        ratio = statistics.median(run / trunk for run, trunk, _ in found[name])
        head = statistics.median(head / trunk for _, trunk, head in found[name])
        verdict = "reached" if ratio <= most and ratio / whole < FORWARD else "MISSED"
        all_rounds = ", ".join(f"{run / trunk:.3f}" for run, trunk, _ in found[name])
        print(
            f"  {name:26} {ratio:.3f}x the trunk (rounds {all_rounds}; at most {most:.2f}), of which head {head:.3f}; "
            f"{ratio / whole:.2f}x a forward (below {FORWARD}): {verdict}"
        )


if __name__ == "__main__":
    main()
