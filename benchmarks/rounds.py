"""Exact samples in few rounds: rounds and evaluations by window, against the length, and on the clock.

`python -m benchmarks.rounds table [NUM] [MODEL ...]` draws samples with several windows, and checks that they are those
of ``window=1``; values are also drawn by the inverse of a cumulated law in place of a race. `plain` does the same with
guesses that are not corrected. `figure [LENGTH ...]` draws
docs/rounds.png: rounds against length. `clock` times a small recurrent network; `batches MODEL ...` what a batch
costs. `coupling` times single draws; `rounding [NUM]` compares samples of a float32 network.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import thetaleap as tl
from thetaleap import sampling
from thetaleap.control import parallel
from thetaleap.control.base import Method, control_of
from thetaleap.control.pilots import counted
from thetaleap.core.answers import Answers
from thetaleap.core.evaluation import Dense
from thetaleap.core.noise import Draw, Stream
from thetaleap.evaluation.figures import budget_axis, panels, write_png
from thetaleap.models.examples import _sharp, _simplex
from thetaleap.models.oracles import Oracle

FIGURE = Path("docs") / "rounds.png"
LENGTHS = [64, 256, 1024, 4096]
LOW, RANDOM = tl.Tweedie(tl.LowDiscrepancy()), tl.Tweedie(tl.FixedCount())


@dataclass(frozen=True)
class Row:
    """Samples of a model, `each` positions at a time, or so many `steps` of a grid; by races, or by inverted laws."""

    model: str
    order: Method
    windows: tuple[Any, ...] = (8, 16, 32, "auto")
    each: int = 1
    steps: int | None = None
    race: bool = True


ROWS = [
    Row("chain64", LOW),
    Row("chain64", RANDOM),
    Row("chain2-64", LOW),
    Row("ising4x16", RANDOM),
    Row("mixture32", RANDOM),
    Row("sums", RANDOM, (8, 16, "auto")),
    Row("sapiens-vh", LOW),
    Row("shakespeare", LOW, (8, 16, 32, 64, "auto")),
    Row("shakespeare", RANDOM, (16, 32, "auto")),
    Row("shakespeare-char", LOW, (8, 16, 32, 64, "auto")),
    Row("shakespeare-char", RANDOM, (16, 32, "auto")),
    Row("shakespeare-char", LOW, (16, "auto"), each=4),
    Row("shakespeare-char", LOW, (16, 32), race=False),
    Row("mnist", RANDOM, (16, 32, "auto")),
    Row("antiberty", LOW, (8, 16, "auto")),
    Row("shakespeare-uniform", tl.Tweedie(), (4, 8, "auto"), steps=64),
]


@dataclass
class Kept:
    """A model that is run once for each state: runs of one sample with several windows have most of theirs in common."""

    model: Any
    answers: dict[bytes, Tensor] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, x: Tensor, t: Tensor) -> Dense:
        times = [b""] * len(x) if self.model.time_free else [n.numpy().tobytes() for n in t.expand(len(x))]
        keys = [row.numpy().tobytes() + time for row, time in zip(x, times, strict=True)]
        new = {key: n for n, key in enumerate(keys) if key not in self.answers}
        if new:
            some = torch.tensor(list(new.values()))
            conditionals = self.model(x[some], t if t.ndim == 0 else t[some])
            rows = conditionals.logits(torch.arange(x[some].numel())).view(*x[some].shape, -1)
            self.answers |= dict(zip(new, rows, strict=True))
        return Dense(torch.stack([self.answers[key] for key in keys]))


def table(num: int, names: list[str]) -> None:
    for row in ROWS:
        if row.model not in names:
            continue
        model: Any = Kept(tl.load(row.model, **({"length": 119} if row.model == "antiberty" else {})))
        uniform = tl.grids.alpha_power(model.process.schedule, 2.0)
        times = sampling.plan(model, row.order, grid=uniform, steps=row.steps) if row.steps else None
        times = counted(model, [row.each] * (model.length // row.each)) if times is None else times
        found: dict[Any, list[tuple[float, float]]] = {window: [] for window in row.windows}
        batch = num if isinstance(model.model, Oracle) else 1
        for n in range(0, num, batch):
            run = partial(parallel.run, model, control_of(row.order), times, Stream(0, n, batch, race=row.race))
            ends = []
            with torch.no_grad():
                for window in (1, *row.windows):  # 1 first: what it comes to is then there for the others
                    *_, state = run(window=window)
                    ends.append(state.x)
                    counts = (state.reverse.rounds.tolist(), state.reverse.spent.tolist())
                    found.setdefault(window, []).extend(zip(*counts, strict=True))
            assert all(torch.equal(one, ends[0]) for one in ends), f"{row}: samples from {n} on differ"
            model.answers.clear()
        for window in row.windows:
            rounds, spent = torch.tensor(found[window], dtype=torch.float64).unbind(1)
            told(row, num, window, rounds, spent, len(times) - 1)


def plain(num: int, names: list[str]) -> None:
    """The table with stale answers as they are: tokens that turned out to be others count for nothing."""
    with patch.object(Answers, "_differs", lambda self, slot, *_: torch.zeros(len(slot), dtype=torch.float64)):
        table(num, names)


def told(row: Row, num: int, window: Any, rounds: Tensor, spent: Tensor, steps: int) -> None:
    planner = getattr(row.order, "planner", None)
    what = f"{row.model}, {steps} steps, {type(planner).__name__}, {'race' if row.race else 'inverse'}, {num} samples"
    error = float(rounds.std()) / math.sqrt(num) if num > 1 else math.nan
    print(
        f"{what}, window {window}: rounds {rounds.mean():.1f} ± {error:.1f}, evaluations {spent.mean():.0f}", flush=True
    )


def chain(length: int) -> Any:
    return tl.oracles.markov_chain(_sharp(2, 8, 8), length)


def strip(length: int) -> Any:
    return tl.oracles.ising(4, length // 4, coupling=0.44)


def mixture(length: int) -> Any:
    return tl.oracles.mixture(_simplex(3, 4), _simplex(4, 4, 1, 6).expand(4, length, 6))


CURVES: list[tuple[str, str, Callable[[int], Any], Method]] = [
    ("chain, random order", "#0072B2", chain, RANDOM),
    ("chain, low discrepancy", "#56B4E9", chain, LOW),
    ("Ising strip, random order", "#D55E00", strip, RANDOM),
    ("mixture, random order", "#009E73", mixture, RANDOM),
]


def figure(lengths: list[int]) -> None:
    drawing, ((axis,),) = panels(7, 4.4, 1, 1)
    ends = {"one after the other: d": (lengths[-1], "0.5"), "square root of d": (math.sqrt(lengths[-1]), "0.2")}
    axis.plot(lengths, lengths, ":", color="0.5")
    axis.plot(lengths, [math.sqrt(length) for length in lengths], "--", color="0.2")
    for name, colour, make, solver in CURVES:
        found = []
        for length in lengths:
            model: Any = Kept(make(length))
            num = max(1, min(8, 512 // length))
            grid = counted(model, [1] * length)
            out = tl.sample(model, solver, grid=grid, num=num, window="auto", memory=2**36, batch_size=num)
            found.append(float(out.rounds.double().mean()))
            more = float(out.spent.double().mean()) / length
            print(f"{name}, d={length}, {num} samples: rounds {found[-1]:.1f}, {more:.2f} d evaluations", flush=True)
        axis.plot(lengths, found, "o-", color=colour)
        ends[name] = (found[-1], colour)
    axis.set_yscale("log", base=2)
    axis.set_ylabel("rounds, window = auto")
    axis.set_title("Exact samples, one position at a time", loc="left", fontsize=10)
    budget_axis(axis, lengths, "positions d")
    height = 0.0
    for name, (y, colour) in sorted(ends.items(), key=lambda one: one[1][0]):  # pushed apart where they would overlap
        height = max(math.log2(y), height + 0.55)
        axis.annotate(
            name, (1.02, 2**height), xycoords=("axes fraction", "data"), color=colour, va="center", fontsize=8
        )
    write_png(FIGURE, drawing)


class Recurrent(nn.Module):
    """Two recurrent layers in both directions: their steps follow each other, whatever the batch."""

    def __init__(self, states: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(states + 1, width)
        self.layers = nn.GRU(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, states)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return 8 * self.head(self.layers(self.embed(x))[0])


def seconds(run: Callable[[], object], times: int = 5) -> float:
    """Of one processor, which other programs do not lengthen: all is run in one thread."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def batches(models: dict[str, Any]) -> None:
    """What a batch costs."""
    torch.set_num_threads(1)
    for name, model in models.items():
        costs = []
        for batch in (1, 4, 8, 16, 64):
            x = torch.full((batch, model.length), model.process.mask or 0)
            with torch.no_grad():
                run = partial(model, x, torch.tensor(0.5, dtype=torch.float64))
                costs.append(seconds(run, 3))
        print(f"{name}: a batch of 1 / 4 / 8 / 16 / 64 takes", " / ".join(f"{1e3 * cost:.1f}" for cost in costs), "ms")


def clock() -> None:
    torch.manual_seed(0)
    network = Recurrent(32, 32).eval()
    model = tl.from_network(tl.Masked(32), network=network, length=256, shape=(256,), time_free=True)
    batches({"recurrent": model})
    ways: dict[str, dict[str, Any]] = {"first-hitting": {"solver": tl.FirstHitting()}}
    ways |= {f"window {window}": {"exact": True, "window": window} for window in (1, 16, "auto")}
    for n in (0, 1, 2):
        for name, how in ways.items():
            out: list[tl.Samples] = []
            taken = seconds(lambda how=how, n=n, out=out: out.append(tl.sample(model, seed=n, **how)), 1)
            print(f"{name}: {taken:.2f} s, {int(out[0].rounds)} rounds, {int(out[0].spent)} evaluations", flush=True)


def coupling() -> None:
    """What one draw costs, by a race and by an inverted law, beside making its row of probabilities from logits and
    from the 768 numbers of a trunk."""
    torch.set_num_threads(1)
    rows, width = 16, 768
    for states in (64, 1024, 50257):
        logits, hidden, head = torch.randn(rows, states) * 3, torch.randn(rows, width), torch.randn(width, states)
        p, positions, steps = torch.softmax(logits.double(), 1), torch.arange(rows), iter(range(10**6))

        def draw(race: bool, p: Tensor = p, positions: Tensor = positions, steps: Iterator[int] = steps) -> object:
            noise = Stream(0, 0, 1, race=race).at(next(steps))(Draw.MOVE)
            return noise.choose(positions, rows, p, stay=False)

        ways: dict[str, Callable[[], object]] = {
            "race": partial(draw, True),
            "inverse": partial(draw, False),
            "softmax": lambda logits=logits: torch.softmax(logits.double(), 1),
            "head": lambda hidden=hidden, head=head: hidden @ head,
        }
        costs = {name: 1e3 * seconds(way, 21) / rows for name, way in ways.items()}
        print(f"a row of {states}:", ", ".join(f"{name} {cost:.3f} ms" for name, cost in costs.items()), flush=True)


def rounding(num: int) -> None:
    """Whether a network that rounds otherwise in other batches gives other samples: with windows, and one at a time."""
    torch.set_num_threads(1)
    model, plain = tl.load("sums"), tl.sample("sums", exact=True, window=1, num=num, batch_size=num)
    for window in (16, "auto"):
        ahead = tl.sample(model, exact=True, window=window, num=num, batch_size=num)
        print(f"sums, window {window}: {int((ahead.x != plain.x).any(1).sum())} of {num} samples differ", flush=True)
    x, t = plain.x[:16].clone(), torch.tensor(0.5, dtype=torch.float64)
    x[:, ::2] = model.process.mask or 0
    with torch.no_grad():
        every = torch.arange(x.numel())
        whole = torch.softmax(model(x, t).logits(every).double(), 1)
        alone = torch.cat([torch.softmax(model(row[None], t).logits(every[: len(row)]).double(), 1) for row in x])
    print(f"probabilities in a batch of 16 and alone differ by at most {float((whole - alone).abs().max()):.0e}")


def main() -> None:
    kind, *given = sys.argv[1:] or ["table"]
    num = next((int(one) for one in given if one.isdigit()), 32)
    every = list(dict.fromkeys(row.model for row in ROWS)) if kind in ("table", "plain") else []
    names = [one for one in given if not one.isdigit()] or every
    {
        "table": lambda: table(num, names),
        "plain": lambda: plain(num, names),
        "figure": lambda: figure([int(one) for one in given] or LENGTHS),
        "clock": clock,
        "batches": lambda: batches({name: tl.load(name) for name in names}),
        "coupling": coupling,
        "rounding": lambda: rounding(num),
    }[kind]()


if __name__ == "__main__":
    main()
