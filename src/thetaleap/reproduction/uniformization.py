"""Where uniformization spends its evaluations, and where its quality settles (figure 1, left, of the paper).

Uniformization simulates the reverse process without error, with candidate jumps at a rate that grows like 1/t towards
the data. The paper shows, on text, that the evaluations pile up there while perplexity has long settled. Here the laws
are known: the state at time t has the law p_t, so that its distance from the data, KL(p0 || p_t), is exact, and the
histogram of the states can be laid beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from .. import __version__
from ..control import grids
from ..core.checks import require_count
from ..evaluation.metrics import bootstrap_kl, frequencies, histogram, kl, noise_floor
from ..models import load
from ..models.oracles import Joint
from ..sampling import Moment, sample
from ..solvers import Uniformization
from ._output import Claim, Report, bar, write_csv, write_json, write_png
from ._threads import one_thread
from ._uniformization_figure import draw
from ._words import number, page

MODELS = ("toy15", "cube3-uniform")
NUM = 500_000
END = 1e-4
INTERVALS = 96
TOLERANCE = 1e-3
"""The KL has settled once it stays this near its last value (or within the noise floor, if that is more)."""


@dataclass(frozen=True)
class Row:
    """One time of one model's run: a row of the CSV. Evaluations are means over the samples."""

    model: str
    stage: str
    """``start``, ``walk`` or ``finish``: noise, simulation, and the last exact draw that removes what noise is left."""
    t: float
    backward: float
    """T - t."""
    evaluations: float
    """Spent since the row before."""
    total: float
    """Spent so far."""
    rate: float | None
    """Evaluations per unit of time since the row before; none at the start and for the finish, which takes no time."""
    kl_exact: float
    kl_mc: float
    kl_low: float
    kl_high: float


@dataclass(frozen=True)
class Settled:
    """When the KL of the samples came, for good, within `tolerance` of its last value."""

    t: float
    backward: float
    tolerance: float
    share_after: float
    """Share of the evaluations of the walk that was spent afterwards."""
    kl_mc: float
    last_kl_mc: float


@one_thread()
def run(
    folder: Path,
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    intervals: int = INTERVALS,
) -> Report:
    """Measure, and write ``uniformization.png``, ``.csv`` and ``.json`` to `folder`."""
    num = NUM if num is None else num
    require_count("num", num)
    require_count("seed", seed, least=0)
    require_count("intervals", intervals)
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[Row]] = {}
    floors: dict[str, float] = {}
    with bar(progress, "samples", len(MODELS) * num * (intervals + 2)) as advance:
        for name in MODELS:
            model = load(name)
            assert isinstance(model, Joint)
            floors[name] = noise_floor(model.p0.numel(), num)
            rows[name] = walk(name, model, num, seed, intervals, advance)
    settled = {name: settle(rows[name], max(TOLERANCE, floors[name])) for name in MODELS}
    files = [
        write_png(folder / "uniformization.png", draw(rows, settled, floors)),
        write_csv(folder / "uniformization.csv", [asdict(row) for name in MODELS for row in rows[name]]),
        write_json(folder / "uniformization.json", summary(settled, floors, num, seed, intervals)),
    ]
    return Report(describe(rows, settled, floors, num), files, claims(rows, settled))


def walk(name: str, model: Joint, num: int, seed: int, intervals: int, advance: Callable[[float], None]) -> list[Row]:
    """Run uniformization along a logarithmic grid, and look at evaluations and states at every time of it."""
    states, shape = model.process.states, model.p0.shape
    counts = torch.zeros((intervals + 2, *shape), dtype=torch.int64)
    spent = torch.zeros(intervals + 2, dtype=torch.float64)
    times = [0.0] * (intervals + 2)

    def watch(moment: Moment) -> None:
        counts[moment.step] += histogram(moment.x, states)
        spent[moment.step] += moment.nfe.sum()
        times[moment.step] = moment.t
        advance(len(moment.x))

    grid = grids.logarithmic(model.horizon, END, intervals)
    sample(model, Uniformization(), grid=grid, num=num, seed=seed, progress=False, on_step=watch)
    totals = (spent / num).tolist()
    return [_row(name, model, n, times, totals, counts[n], seed) for n in range(intervals + 2)]


def _row(
    name: str, model: Joint, n: int, times: Sequence[float], totals: Sequence[float], counts: Tensor, seed: int
) -> Row:
    stage = "start" if n == 0 else "finish" if n == len(times) - 1 else "walk"
    new = totals[n] - totals[n - 1] if n else 0.0
    rate = new / (times[n - 1] - times[n]) if stage == "walk" else None
    truth = kl(model.p0, law_at(model, times[n]))
    estimate = kl(model.p0, frequencies(counts))
    low, high = bootstrap_kl(model.p0, counts, seed=seed)
    return Row(name, stage, times[n], model.horizon - times[n], new, totals[n], rate, truth, estimate, low, high)


def law_at(model: Joint, t: float) -> Float64[Tensor, ...]:
    """p_t, the law of the forward process at time t: the one-position kernel applied to p0 along every axis."""
    states = torch.arange(model.process.states)
    kernel = model.process.likelihood(states, torch.tensor(t, dtype=torch.float64))  # [present, clean]
    law = model.p0
    for axis in range(law.ndim):
        law = torch.movedim(torch.movedim(law, axis, -1) @ kernel.T, -1, axis)
    return law


def settle(rows: Sequence[Row], tolerance: float) -> Settled:
    """The first time of the walk from which on the KL stays within `tolerance` of its value at the walk's end."""
    walked = [row for row in rows if row.stage != "finish"]
    last = walked[-1]
    # the last row is near itself even if its KL is infinite
    near = [row is last or abs(row.kl_mc - last.kl_mc) <= tolerance for row in walked]
    first = max((n + 1 for n, good in enumerate(near) if not good), default=0)
    row = walked[first]
    return Settled(row.t, row.backward, tolerance, 1 - row.total / last.total, row.kl_mc, last.kl_mc)


def summary(
    settled: dict[str, Settled], floors: dict[str, float], num: int, seed: int, intervals: int
) -> dict[str, Any]:
    """Settings and findings, for the JSON file."""
    return {
        "experiment": "uniformization",
        "version": __version__,
        "settings": {"models": list(MODELS), "num": num, "seed": seed, "grid": "logarithmic", "end": END}
        | {"intervals": intervals, "tolerance": TOLERANCE},
        "noise_floor": floors,
        "settled": {name: {k: _finite(v) for k, v in asdict(one).items()} for name, one in settled.items()},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def describe(rows: dict[str, list[Row]], settled: dict[str, Settled], floors: dict[str, float], num: int) -> str:
    """The report's text."""
    head = (
        f"Uniformization simulates the reverse process without error. {num:,} samples were watched from the horizon "
        f"down to t = {END:g}; the KL of the data from the law of their state is called settled once it stays within "
        f"{TOLERANCE:g} (or the noise floor) of its last value."
    )
    return page([head, *(_findings(name, rows[name], settled[name], floors[name]) for name in rows)])


def claims(rows: dict[str, list[Row]], settled: dict[str, Settled]) -> list[Claim]:
    """The paper's reading of its figure: evaluations pile up at the end, where they no longer help."""
    found = []
    for name in rows:
        walked = [row for row in rows[name] if row.stage == "walk"]
        first, last, after = walked[0].rate or 0.0, walked[-1].rate or 0.0, settled[name].share_after
        found.append(
            Claim(
                "Uniformization spends its evaluations mostly near the data, long after the quality of samples has "
                "settled",
                "agrees" if last > 10 * first and after > 0.5 else "differs",
                f"{name}: {number(first)} evaluations per unit of time at first and {number(last)} at last; "
                f"{100 * after:.0f}% of them after the KL has settled",
            )
        )
    return found


def _findings(name: str, rows: Sequence[Row], settled: Settled, floor: float) -> str:
    walked = [row for row in rows if row.stage == "walk"]
    last = walked[-1]
    way = settled.backward / last.backward
    text = (
        f"{name}: {last.total:.1f} evaluations per sample, at {number(walked[0].rate or 0)} per unit of time in the "
        f"first interval and {number(last.rate or 0)} in the last. The KL settled at t = {number(settled.t)}, after "
        f"{100 * way:.1f}% of the way; {100 * settled.share_after:.0f}% of the evaluations were spent afterwards, "
    )
    gain = settled.kl_mc - settled.last_kl_mc
    if math.isfinite(gain):
        text += (
            f"for a further {number(abs(gain))} nats {'less' if gain >= 0 else 'more, which is noise'} (noise floor "
        )
        text += f"{number(floor)})."
    else:
        text += "but some values were never drawn, so that the KL is infinite: draw more samples."
    before = min(walked, key=lambda row: abs(math.log(row.t / (10 * last.t))))
    text += (
        f" The last factor of {before.t / last.t:.1f} in t took {number(last.total - before.total)} of them, while the "
        f"exact KL went from {number(before.kl_exact)} to {number(last.kl_exact)}."
    )
    return text
