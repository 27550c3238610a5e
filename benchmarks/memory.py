"""Peak memory beyond the network for 8 samples of 1024 positions and 50257 values.

Each solver runs in a process of its own, by `resource.getrusage`: the peak resident memory of one that draws the batch,
less that of one that stops after it has built the same model, the table of a free network included. The rows that the
head makes count as ours.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import torch

import thetaleap as tl
from thetaleap.solvers.base import Solver

from .free_network import FreeNetwork

BATCH, LENGTH, STATES, STEPS, KINDS, MOST = 8, 1024, 50257, 16, 64, 1.0
SOLVERS: dict[str, Solver | None] = {
    "nothing": None,
    "Tweedie()": tl.Tweedie(),
    "Tweedie(FixedCount())": tl.Tweedie(tl.FixedCount()),
    "Multistep()": tl.Multistep(),
    "ExponentialTrapezoidal()": tl.ExponentialTrapezoidal(),
    "Trapezoidal()": tl.Trapezoidal(),
}


def peak(name: str) -> float:
    """Of a process that samples with this solver, in GiB."""
    out = subprocess.run([sys.executable, "-m", "benchmarks.memory", name], check=True, capture_output=True, text=True)
    return float(out.stdout)


def child(name: str) -> None:
    torch.set_num_threads(1)
    network = FreeNetwork(BATCH, LENGTH, torch.randn((KINDS, STATES)))
    solver = SOLVERS[name]
    if solver is not None:
        network.sample(solver, STEPS)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main() -> None:
    base = peak("nothing")
    print(f"{BATCH} samples, {LENGTH} positions, {STATES} values, {STEPS} steps; without sampling {base:.2f} GiB")
    for name in list(SOLVERS)[1:]:
        beyond = peak(name) - base
        print(f"  {name:26} {beyond:.2f} GiB more (under {MOST:g}): {'reached' if beyond < MOST else 'MISSED'}")


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
