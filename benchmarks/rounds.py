"""Exact samples in few rounds: rounds and evaluations by window, against the length, and on the clock.

`python -m benchmarks.rounds table [MODEL ...]` draws one position at a time with several windows (for `auto`, also with
values drawn by the inverse of a cumulated law in place of a race). `figure` draws docs/rounds.png: rounds against length.
`clock` times a small recurrent network, and what a batch costs.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor, nn

import thetaleap as tl
from thetaleap.control import parallel
from thetaleap.control.base import Method, control_of
from thetaleap.control.pilots import counted
from thetaleap.core.noise import Stream
from thetaleap.models.examples import _sharp, _simplex

FIGURE = Path("docs") / "rounds.png"
LENGTHS = [64, 256, 1024, 4096]
LOW, RANDOM = tl.Tweedie(tl.LowDiscrepancy()), tl.Tweedie(tl.FixedCount())


@dataclass(frozen=True)
class Row:
    """Samples of a model, `each` positions at a time."""

    model: str
    order: Method
    num: int
    windows: tuple[Any, ...] = (8, 16, 32, "auto")
    each: int = 1


ROWS = [
    Row("chain64", LOW, 32),
    Row("chain64", RANDOM, 32),
    Row("chain2-64", LOW, 32),
    Row("ising4x16", RANDOM, 32),
    Row("mixture32", RANDOM, 32),
    Row("sums", RANDOM, 32, (8, 16, "auto")),
    Row("mnist", RANDOM, 8, (16, 32, "auto")),
    Row("sapiens-vh", LOW, 8),
    Row("antiberty", LOW, 4, (16, "auto")),
    Row("shakespeare", LOW, 8, (16, 32, 64, "auto")),
    Row("shakespeare", RANDOM, 4, (16, 32)),
    Row("shakespeare", LOW, 4, (16,), each=4),
]


def drawn(model: Any, solver: Method, grid: Tensor, num: int, window: Any, race: bool = True) -> tuple[Tensor, ...]:
    """Samples, rounds and evaluations."""
    with torch.no_grad():
        *_, state = parallel.run(model, control_of(solver), grid, Stream(0, 0, num, race=race), window=window)
    return state.x, state.reverse.rounds.double(), state.reverse.spent.double()


def table(names: list[str]) -> None:
    for row in ROWS:
        if names and row.model not in names:
            continue
        model = tl.load(row.model)
        grid = counted(model, [row.each] * (model.length // row.each))
        for window, race in [*((window, True) for window in row.windows), (row.windows[-1], False)]:
            _, rounds, spent = drawn(model, row.order, grid, row.num, window, race)
            how = "race" if race else "inverse"
            print(
                f"{row.model}, {row.num} samples, {model.length} positions, {row.each} at a time, "
                f"{type(row.order.planner).__name__}, window {window}, {how}: "  # pyright: ignore[reportAttributeAccessIssue]
                f"rounds {rounds.mean():.1f} ± {rounds.std() / math.sqrt(row.num):.1f}, evaluations {spent.mean():.0f}",
                flush=True,
            )


def chain(length: int) -> Any:
    return tl.oracles.markov_chain(_sharp(2, 8, 8), length)


def strip(length: int) -> Any:
    return tl.oracles.ising(4, length // 4, coupling=0.44)


def mixture(length: int) -> Any:
    return tl.oracles.mixture(_simplex(3, 4), _simplex(4, 4, 1, 6).expand(4, length, 6))


CURVES: list[tuple[str, Callable[[int], Any], Method]] = [
    ("Markov chain, low discrepancy", chain, LOW),
    ("Markov chain, random order", chain, RANDOM),
    ("Ising strip, random order", strip, RANDOM),
    ("mixture, random order", mixture, RANDOM),
]


def figure() -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drawing, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, make, solver in CURVES:
        found = []
        for length in LENGTHS:
            model, num = make(length), max(2, min(16, 4096 // length))
            grid = counted(model, [1] * length)
            out = tl.sample(model, solver, grid=grid, num=num, window="auto", memory=2**36, batch_size=num)
            found.append(float(out.rounds.double().mean()))
            more = float(out.spent.double().mean()) / length
            print(f"{name}, d={length}, {num} samples: rounds {found[-1]:.1f}, {more:.2f} d evaluations", flush=True)
        axis.loglog(LENGTHS, found, "o-", base=2, label=name)
    axis.loglog(LENGTHS, LENGTHS, "k:", base=2, label="one after the other: d")
    axis.loglog(LENGTHS, [math.sqrt(length) for length in LENGTHS], "k--", base=2, label="square root of d")
    axis.set(xlabel="positions d", ylabel="rounds, window = auto", title="Exact samples, one position at a time")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    drawing.savefig(FIGURE, dpi=80)


class Recurrent(nn.Module):
    """One recurrent layer in both directions: its steps follow each other, whatever the batch."""

    def __init__(self, states: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(states + 1, width)
        self.layer = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(4 * width, states)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.layer(self.embed(x))[0]
        before, after = hidden.chunk(2, 2)
        # what is about a position comes from its left and from its right
        around = [nn.functional.pad(before, (0, 0, 1, 0))[:, :-1], nn.functional.pad(after, (0, 0, 0, 1))[:, 1:]]
        return 4 * self.head(torch.cat([*around, *around], 2))


def seconds(run: Callable[[], object], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def clock() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = Recurrent(32, 64).eval()
    model = tl.from_network(tl.Masked(32), network=network, length=256, shape=(256,), time_free=True)
    for name, one in (("recurrent", model), ("shakespeare", tl.load("shakespeare"))):
        costs = []
        for batch in (1, 4, 16, 64):
            x = torch.full((batch, one.length), one.process.mask or 0)
            with torch.no_grad():
                costs.append(seconds(lambda x=x, one=one: one(x, torch.tensor(0.5, dtype=torch.float64))))
        print(f"{name}: a batch of 1 / 4 / 16 / 64 takes", " / ".join(f"{1e3 * cost:.1f}" for cost in costs), "ms")
    ways = {"first-hitting": {"solver": tl.FirstHitting()}, "window 1": {"exact": True, "window": 1}}
    for n in (0, 1, 2):
        for name, how in {**ways, "window 16": {"exact": True, "window": 16}, "auto": {"exact": True}}.items():
            start = time.perf_counter()
            out = tl.sample(model, seed=n, **how)
            taken, rounds, spent = time.perf_counter() - start, int(out.rounds), int(out.spent)
            print(f"{name}: {taken:.2f} s, {rounds} rounds, {spent} evaluations", flush=True)


def main() -> None:
    kind, *names = sys.argv[1:] or ["table", "chain64"]
    {"table": lambda: table(names), "figure": figure, "clock": clock}[kind]()


if __name__ == "__main__":
    main()
