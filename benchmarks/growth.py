"""How the cost of a step outside the network grows with the number of values S, of samples B and of positions d.

`Tweedie(FixedCount())` with a free network, in one thread, processor time. With S, at 16 jumps a step, beside the bare
cost of the rows that are drawn from: an exponential and a cumulated sum, in float64. With B and with d, 64 steps of so
many positions each as that leaves. The figure goes to docs/growth.png.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import torch

import thetaleap as tl

from .free_network import FreeNetwork

STEPS, JUMPS, ROUNDS, KINDS = 64, 16, 5, 16
STATES = [2**n for n in (5, 7, 9, 11, 13, 14, 15, 16, 17)]
BATCHES = [2**n for n in range(9)]
LENGTHS = [64 * 2**n for n in range(9)]
SOLVER = tl.Tweedie(tl.FixedCount())
FIGURE = Path("docs") / "growth.png"


def bare(states: int) -> float:
    """Seconds for an exponential and a cumulated sum over as many rows as jump in a step."""
    logits = torch.randn((JUMPS, states), dtype=torch.float64)
    start = time.thread_time()
    for _ in range(STEPS):
        torch.exp(logits).cumsum(1)
    return (time.thread_time() - start) / STEPS


def ours(batch: int, length: int, states: int) -> float:
    return FreeNetwork(batch, length, torch.randn((KINDS, states))).sample(SOLVER, STEPS)


def medians(sizes: list[int], *runs: Callable[[int], float]) -> list[list[float]]:
    """Milliseconds of each of `runs` at each size; all sizes in turn, in rounds, of which the first warms up."""
    taken = [[[run(size) for run in runs] for size in sizes] for _ in range(ROUNDS + 1)][1:]
    return [[1e3 * statistics.median(a[n][m] for a in taken) for n in range(len(sizes))] for m in range(len(runs))]


def line(base: list[float], ms: list[float]) -> tuple[float, float, float]:
    """``a + b base`` that is closest to `ms` in relative terms, and by how much it is off at most."""
    weight = 1 / np.asarray(ms)
    b, a = np.polyfit(base, ms, 1, w=weight)
    return float(a), float(b), float(np.max(np.abs((a + b * np.asarray(base)) * weight - 1)))


def main() -> None:
    torch.set_num_threads(1)
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    found, rows = medians(STATES, lambda states: ours(1, STEPS * JUMPS, states), bare)
    for states, ms, row in zip(STATES, found, rows, strict=True):
        print(f"S={states:7}: {ms:8.3f} ms a step; exp and cumsum of its rows {row:8.3f}")
    a, b, off = line(rows, found)
    print(f"a step: {a:.2f} ms + {b:.2f} times exp and cumsum of its rows, within {off:.0%}")
    axes[0].loglog(STATES, found, "o-", label=f"a step, {JUMPS} jumps")
    axes[0].loglog(STATES, rows, "s--", label=f"exp and cumsum of {JUMPS} rows")
    axes[0].loglog(STATES, [a + b * row for row in rows], "k:", label=f"{a:.2f} ms + {b:.1f} times that")
    axes[0].set(xlabel="values S", ylabel="ms outside the network", title="d = 1024, B = 1", ylim=(1e-4, None))
    for axis, name, sizes, run, title in (
        (axes[1], "samples B", BATCHES, lambda batch: ours(batch, 256, 1024), "d = 256, S = 1024"),
        (axes[2], "positions d", LENGTHS, lambda length: ours(1, length, 1024), "B = 1, S = 1024"),
    ):
        (found,) = medians(sizes, run)
        for size, ms in zip(sizes, found, strict=True):
            print(f"{name[-1]}={size:7}: {ms:8.3f} ms a step")
        a, b, off = line([float(size) for size in sizes], found)
        print(f"a step: {a:.2f} ms + {1e3 * b:.2f} us times the number of {name}, within {off:.0%}")
        axis.loglog(sizes, found, "o-", label="a step")
        axis.loglog(sizes, [a + b * size for size in sizes], "k:", label=f"{a:.2f} ms + {1e3 * b:.2g} us {name[-1]}")
        axis.set(xlabel=name, title=title)
    for axis, corner in zip(axes, ("lower right", "upper left", "upper left"), strict=True):
        axis.legend(frameon=False, loc=corner)
        axis.grid(alpha=0.3)
    figure.savefig(FIGURE, dpi=80)


if __name__ == "__main__":
    main()
