"""Where uniformization spends its evaluations, and where its quality settles (figure 1, left, of the paper).

Uniformization simulates the reverse process without error, with candidate jumps at a rate that grows like 1/t towards
the data. The paper shows, on text, that the evaluations pile up there while perplexity has long settled. Here the laws
are known: the state at time t has the law p_t, so that its distance from the data, KL(p0 || p_t), is exact, and the
histogram of the states can be laid beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64
from torch import Tensor

from ..control import grids
from ..core.checks import require_count
from ..evaluation.figures import headline, listing, number, panels
from ..evaluation.metrics import bootstrap_kl, frequencies, histogram, kl, noise_floor
from ..evaluation.threads import one_thread
from ..models import load
from ..models.oracles import Joint
from ..sampling import Moment, sample
from ..solvers import Uniformization
from .pages import Job, experiment, legend, publish
from .rules import Claim, Evidence, Report, decide
from .study import Row, Study, row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("toy15", "cube3-uniform")
NUM = 500_000
END = 1e-4
INTERVALS = 96
TOLERANCE = 1e-3
"""The KL has settled once it stays this near its last value (or within the noise floor, if that is more)."""
COST, QUALITY = "#0072B2", "#D55E00"


@experiment()
@one_thread()
def run(job: Job, intervals: int = INTERVALS) -> Report:
    """Measure, and write ``uniformization.md``, ``.png``, ``.csv`` and ``.json`` to the job's folder."""
    num = job.num or NUM
    require_count("intervals", intervals)
    rows: list[Row] = []
    settled: dict[str, Row] = {}
    with job.bar("samples", len(MODELS) * num * (intervals + 2)) as advance:
        for name in MODELS:
            model = load(name)
            assert isinstance(model, Joint)
            own = walk(name, model, num, job.seed, intervals, advance)
            settled[name] = settle(own, noise_floor(model.p0.numel(), num))
            rows += own
    settings = {"models": list(MODELS), "num": num, "grid": "logarithmic", "end": END}
    settings |= {"intervals": intervals, "tolerance": TOLERANCE}
    study, figure = Study.of("uniformization", rows), draw(rows, settled)
    more = {"card": {"settled": settled}, "settled": settled, "columns": {}}
    return publish(job, "uniformization", study, settings, claims(settled), figure, **more)


def walk(name: str, model: Joint, num: int, seed: int, intervals: int, advance: Callable[[float], None]) -> list[Row]:
    """Run uniformization along a logarithmic grid: a row for each time of it, with evaluations and states. The stages
    are ``start``, noise, ``walk``, and ``finish``, the last exact draw that removes what noise is left."""
    states, shape, last = model.process.states, model.p0.shape, intervals + 1
    counts = torch.zeros((intervals + 2, *shape), dtype=torch.int64)
    spent = torch.zeros(intervals + 2, dtype=torch.float64)
    times = [0.0] * (intervals + 2)

    def watch(moment: Moment) -> None:
        counts[moment.step] += histogram(moment.x, states)
        spent[moment.step] += moment.nfe.sum()
        times[moment.step] = moment.t
        advance(len(moment.x))

    grid, solver = grids.logarithmic(model.horizon, END, intervals), Uniformization()
    sample(model, solver, grid=grid, num=num, seed=seed, progress=False, on_step=watch)
    totals = [0.0, *(spent / num).tolist()]
    rows = []
    for n, t in enumerate(times):
        stage, new = "start" if n == 0 else "finish" if n == last else "walk", totals[n + 1] - totals[n]
        low, high = bootstrap_kl(model.p0, counts[n], seed=seed)
        told = {"model": name, "solver": repr(solver), "steps": n, "num": num, "evaluations": totals[n + 1]}
        told |= {"stage": stage, "t": t, "backward": model.horizon - t, "new": new}
        told |= {"rate": new / (times[n - 1] - t) if stage == "walk" else None}
        told |= {"kl_exact": kl(model.p0, law_at(model, t)), "kl_mc": kl(model.p0, frequencies(counts[n]))}
        told |= {"kl_mc_low": low, "kl_mc_high": high}
        rows.append(row("uniformization", **told))
    return rows


def law_at(model: Joint, t: float) -> Float64[Tensor, " ..."]:
    """p_t, the law of the forward process at time t: the one-position kernel applied to p0 along every axis."""
    states = torch.arange(model.process.states)
    kernel = model.process.likelihood(states, torch.tensor(t, dtype=torch.float64))  # [present, clean]
    law = model.p0
    for axis in range(law.ndim):
        law = torch.movedim(torch.movedim(law, axis, -1) @ kernel.T, -1, axis)
    return law


def settle(rows: Sequence[Row], floor: float) -> Row:
    """When the KL of the samples came, for good, near its value at the walk's end, and what was spent afterwards."""
    walked = [one for one in rows if one["stage"] != "finish"]
    last, tolerance = walked[-1], max(TOLERANCE, floor)
    # the last row is near itself even if its KL is infinite
    near = [one is last or abs(one["kl_mc"] - last["kl_mc"]) <= tolerance for one in walked]
    one = walked[max((n + 1 for n, good in enumerate(near) if not good), default=0)]
    before = min(walked, key=lambda one: abs(math.log(one["t"] / (10 * last["t"]))))
    gain = one["kl_mc"] - last["kl_mc"]
    return {
        "t": one["t"],
        "way": one["backward"] / last["backward"],
        "share_after": 1 - one["evaluations"] / last["evaluations"],  # of the walk's
        "kl_mc": one["kl_mc"],
        "last_kl_mc": last["kl_mc"],
        "gain": gain if math.isfinite(gain) else None,
        "total": last["evaluations"],
        "first_rate": walked[min(1, len(walked) - 1)]["rate"] or 0.0,
        "last_rate": last["rate"] or 0.0,
        "floor": floor,
        # what the last factor of about 10 in t took, and what it did to the exact KL
        "factor": before["t"] / last["t"],
        "late": last["evaluations"] - before["evaluations"],
        "kl_before": before["kl_exact"],
        "kl_last": last["kl_exact"],
    }


def claims(settled: Mapping[str, Row]) -> list[Claim]:
    """The paper's reading of its figure: evaluations pile up at the end, where they no longer help."""
    paper = "Uniformization spends its evaluations mostly near the data, long after the quality of samples has settled"
    made = []
    for name, one in settled.items():
        growth = one["last_rate"] / one["first_rate"] if one["first_rate"] else math.inf
        share, rates = one["share_after"], [number(one[f"{end}_rate"]) for end in ("first", "last")]
        evidence = [Evidence("growth of the rate", "", growth, growth, growth, least=10.0)]
        evidence.append(Evidence("share afterwards", "", share, share, share, least=0.5))
        found = f"{name}: {rates[0]} evaluations per unit of time at first and {rates[1]} at last; {100 * share:.0f}% of them"
        words = {"short": f"evaluations pile up at the end ({name})", "number": f"{100 * share:.0f}% after settling"}
        made.append(replace(decide(evidence, f"{found} after the KL has settled"), paper=paper, **words))
    return made


def draw(rows: Sequence[Row], settled: Mapping[str, Row]) -> Figure:
    """A row of two panels for each model: over backward time, as in the paper, and over what is left of it."""
    figure, axes = panels(11.5, 0.9 + 3.5 * len(settled), len(settled), 2)
    for (left, right), (name, one) in zip(axes, settled.items(), strict=True):
        own = [each for each in rows if each["model"] == name and each["stage"] != "finish"]
        t, backward, total = ([each[key] for each in own] for key in ("t", "backward", "evaluations"))
        left.stairs([each["rate"] for each in own[1:]], backward, color=COST, linewidth=1.8, label="evaluations")
        left.set_yscale("log")
        left.set_xlabel("backward time T − t")
        left.set_ylabel("evaluations per unit of time", color=COST)
        right.plot(t, [100 * each / total[-1] for each in total], color=COST, linewidth=1.8)
        right.set_xscale("log")
        right.invert_xaxis()
        right.set_xlabel("time left, t (logarithmic)")
        right.set_ylabel("evaluations spent so far, %", color=COST)
        for panel, place, mark in ((left, backward, own[0]["t"] - one["t"]), (right, t, one["t"])):
            panel.set_title(name, fontsize=11, loc="left")
            panel.axvline(mark, color="0.35", linestyle="--", linewidth=1.2, label="KL settled")
            twin = panel.twinx()
            twin.spines[["top", "left"]].set_visible(False)
            truth = [each["kl_exact"] for each in own]
            twin.plot(place, truth, color=QUALITY, linewidth=1.4, label="exact KL(p0 || p_t)")
            seen = [(x, each) for x, each in zip(place, own, strict=True) if each["kl_mc_high"] < math.inf]
            at, ends = (
                [x for x, _ in seen],
                [[each[f"kl_mc{end}"] for _, each in seen] for end in ("", "_low", "_high")],
            )
            twin.vlines(at, ends[1], ends[2], color=QUALITY, alpha=0.45, linewidth=1.2)
            twin.plot(at, ends[0], ".", color=QUALITY, markersize=5, label="of the samples, 95% interval")
            twin.set_ylabel("KL(p0 || law at t), nats", color=QUALITY)
            if panel is right:  # the exact curve goes on falling where samples cannot follow
                twin.axhline(one["floor"], color=QUALITY, linestyle=":", linewidth=1.2, label="noise floor")
                twin.set_yscale("log")
                twin.set_ylim(bottom=one["floor"] / 30)
    legend(figure, 5)
    shares = listing([f"{100 * one['share_after']:.0f}%" for one in settled.values()])
    title = f"Uniformization spends {shares} of its evaluations after the KL has settled"
    headline(figure, title, 2)
    return figure
