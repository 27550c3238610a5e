"""How many extrapolated intensities stay positive, by evaluations: the paper's table on its theorems' assumption.

Both two-stage methods subtract one intensity from another, and what comes out negative counts as zero. The share is of
the intensities that are not zero, at positions that are drawn about as often as they jump. theta-RK-2 subtracts only
where theta is below 1/2: at 1/2 the earlier intensity has weight 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from ..core.intensity import Combined
from ..core.jumps import Share, jump_probability, leap
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.reverse import Reverse
from ..core.times import Times, column
from ..evaluation.figures import listing
from ..evaluation.metrics.measured import mean
from ..models.network import Network
from ..sampling import DELTA, sample
from ..solvers import Solver, Trapezoidal
from ..solvers.base import Step
from . import paper
from .looks import fingerprint
from .methods import MINE, RK, budgets_by_ratio, budgets_of
from .pages import Job, Panel, chart, experiment, model_of, publish
from .rules import Claim, Report, judge
from .study import Row, Study, row
from .text import MODEL

NUM, FOLD = 8, 8
"""Samples of a row, and how many times as many with ``--full``."""
GROUPS = 8
"""Of samples, whose shares give the standard error; or as many as there are samples."""


@dataclass(frozen=True)
class Watched(Solver):
    """`RK2` with rule "reject", that also evaluates where it need not: at positions that the first stage has tried to
    unmask.

    There all intensities of the second stage are negative, if theta is below 1/2, and `RK2` itself leaves them out.
    """

    theta: float
    evaluations = 2

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        rho = t - self.theta * (t - s)
        before = reverse.intensity(x, t)
        y, _ = leap(x, before, t - rho, noise(Draw.PREDICT), "reject")
        mixed = Combined(x, before, reverse.intensity(y, rho), 1 / (2 * self.theta), where_earlier=True)
        moved, _ = leap(x, mixed, t - s, noise(Draw.CORRECT), "reject")
        positions, _ = noise(Draw.WATCH).flip(jump_probability(before.bound() * column(t - s), "exact").expand_as(x))
        positive = Share(0, 0)
        for some in positions.split(mixed.at_once):
            rates = mixed.rows(some)
            positive += Share(int((rates > 0).sum()), int((rates != 0).sum()))
        return Step(moved, info={"positive": positive})


HALVES = ("theta-RK-2 (1/2)", "theta-Trapezoidal (1/2)")
SOLVERS: dict[str, Solver] = {
    "theta-RK-2 (1/3)": Watched(1 / 3),
    HALVES[0]: Watched(0.5),
    "theta-Trapezoidal (1/3)": Trapezoidal(1 / 3, "reject"),
    HALVES[1]: Trapezoidal(0.5, "reject"),
}
PUBLISHED: dict[str, str] = dict(zip(HALVES, (RK, MINE), strict=True))
"""Methods of the paper's table; its theta is 1/2 throughout on text."""
COLUMNS = {"positive, %": ("positive", 1.0, 2), "the paper's for RADD, %": ("paper", 1.0, 2)}


@experiment(least=2)
def run(
    job: Job,
    model: str | Network = MODEL,
    budgets: Sequence[int] | None = None,
    device: str = "cpu",
    dtype: str = "auto",
) -> Report:
    """Measure, and write ``positivity.md``, ``.png``, ``.csv`` and ``.json`` to the job's folder.

    By default 8 samples of each row, at least 2, and with ``full`` 64; the paper's budgets: 1/32 to 1 evaluation for each position.
    """
    num, (network, name) = (job.num or NUM) * (FOLD if job.full else 1), model_of(model, device=device, dtype=dtype)
    usual = [n for n in budgets_by_ratio(network.length) if n >= max(3, network.length / 32)]
    wanted = budgets_of(budgets, usual)
    rows = []
    with job.bar("evaluations", len(SOLVERS) * sum(wanted)) as advance:
        for (method, solver), nfe in product(SOLVERS.items(), wanted):
            told = {"model": name, "solver": repr(solver), "nfe": nfe}
            rows.append(row(method, **told, **shares(network, solver, nfe, num, job.seed), **_published(method, nfe)))
            advance(nfe)
    settings = {"model": name, "weights": fingerprint(network), "num": num, "length": network.length, "budgets": wanted}
    study = Study.of("positivity", rows)
    part = Panel(study, "positive", "positive extrapolated intensities, %", published="paper")
    own = {one["nfe"]: one["positive"] for one in study.where(method=HALVES[1])}
    ends = listing([f"{own[nfe]:.0f}% at {nfe}" for nfe in dict.fromkeys((min(own), max(own)))])
    figure = chart([part], list(SOLVERS), f"{name}: of {HALVES[1]}'s intensities {ends} evaluations are positive")
    return publish(job, "positivity", study, settings, claims_of(study, settings), figure, columns=COLUMNS)


def shares(model: Network, solver: Solver, nfe: int, num: int, seed: int) -> Row:
    """The share of positive intensities in percent: the mean over groups of samples, with its standard error."""
    groups = min(GROUPS, num)
    found, spent = [], []
    for first, end in pairwise(num * n // groups for n in range(groups + 1)):
        manner = {"delta": DELTA, "seed": seed, "first": first, "progress": False}
        drawn = sample(model, solver, nfe=nfe, num=end - first, **manner)
        found.append(100 * float(drawn.info["positive"]))
        spent += drawn.nfe.tolist()
    return {"spent": spent, "positive": mean(torch.tensor(found, dtype=torch.float64))}


def _published(method: str, nfe: int) -> dict[str, float | None]:
    """What the paper reports for RADD, and what it writes behind ±."""
    tables = {"paper": paper.POSITIVE.values, "paper_se": paper.POSITIVE.spread}
    return {name: table.get(PUBLISHED.get(method, ""), {}).get(nfe) for name, table in tables.items()}


def claims_of(study: Study, settings: Mapping[str, Any]) -> list[Claim]:
    """What the paper says of the share, which on other models than its own is a matter of that model."""
    known = ["radd"] if settings["model"].startswith("radd:") else []
    return judge(study, "positivity", known, f"on {settings['model']} ", model=settings["model"])
