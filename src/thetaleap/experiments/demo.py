"""A short tour: samples of every kind of solver at equal evaluations, measured against models that know the truth.

Three things are measured. On a Markov chain of 64 masked sites, how surprising samples are to the true law, beside the
law of their neighbouring pairs; on the paper's 15 states, the exact law of every solver beside samples of it; on 27
sequences, masked and uniform, exact laws alone, against evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from ..checks import require_count
from ._demo_rows import (
    BUDGETS,
    CURVE_BUDGETS,
    CURVED,
    GRID,
    NUM,
    ChainRow,
    CurveRow,
    ToyRow,
    chain_rows,
    curve_rows,
    toy_rows,
    work,
)
from ._output import COLOURS, Report, bar, panels, write_csv, write_png
from ._threads import one_thread
from ._words import listing, number, page, table

UNUSUAL = 3.0
"""A difference counts from this many standard errors on."""


@one_thread()
def run(
    folder: Path,
    seed: int = 0,
    progress: bool | None = None,
    num: int = NUM,
    budgets: Sequence[int] = BUDGETS,
    curve_budgets: Sequence[int] = CURVE_BUDGETS,
) -> Report:
    """Measure, and write ``convergence.png`` and three tables as CSV to `folder`."""
    require_count("num", num, least=2)
    require_count("seed", seed, least=0)
    folder.mkdir(parents=True, exist_ok=True)
    with bar(progress, "demo", work(len(budgets), len(curve_budgets))) as advance:
        chain = chain_rows(budgets, num, seed, advance)
        toy = toy_rows(budgets, num, seed, advance)
        curves = curve_rows(curve_budgets, advance)
    files = [
        write_png(folder / "convergence.png", draw(curves)),
        write_csv(folder / "convergence.csv", [asdict(row) for row in curves]),
        write_csv(folder / "chain64.csv", [asdict(row) for row in chain]),
        write_csv(folder / "toy15.csv", [asdict(row) for row in toy]),
    ]
    text = "\n\n".join([describe_chain(chain, num), describe_toy(toy), describe_curves(curves, files[0])])
    return Report(text, files)


# --- words


def describe_chain(rows: Sequence[ChainRow], num: int) -> str:
    """The table of the chain, and what it shows."""
    head = (
        f"1. chain64: a Markov chain, 64 sites of 16 values, masked; {num:,} samples each. Excess cross-entropy is "
        "(-log p(x) - entropy)/64 in nats per token under the true law p: 0 for true samples, above for samples that p "
        "finds unlikely, and below for samples that are likely but too alike. So beside it stands the KL of the "
        "frequencies of neighbouring pairs from their true law, which a loss of diversity makes worse. Each with its "
        "standard error."
    )
    body = table(
        ["solver", "budget", "spent", "excess", "+-", "pair KL", "+-"],
        [
            [
                row.solver,
                "" if row.budget is None else str(row.budget),
                f"{row.nfe:.1f}",
                f"{row.excess:+.4f}",
                f"{row.excess_se:.4f}",
                f"{row.pair_kl:.4f}",
                f"{row.pair_kl_se:.4f}",
            ]
            for row in rows
        ],
    )
    return "\n\n".join([page([head]), body, page([_chain_findings(rows)])])


def _chain_findings(rows: Sequence[ChainRow]) -> list[str]:
    """Who is nearest at each budget, who is exact, and who buys likelihood with diversity."""
    points = []
    for budget in sorted({row.budget for row in rows if row.budget is not None}):
        here = [row for row in rows if row.budget == budget]
        pairs = _leaders([(row.solver, row.pair_kl, row.pair_kl_se) for row in here])
        excess = _leaders([(row.solver, abs(row.excess), row.excess_se) for row in here])
        points.append(f"With {budget} evaluations, lowest pair KL: {pairs}; excess nearest to 0: {excess}.")
    exact = next(row for row in rows if row.solver == "FirstHitting")
    off = abs(exact.excess) > UNUSUAL * exact.excess_se
    points.append(
        f"FirstHitting is exact, at {exact.nfe:.0f} evaluations: its excess is {'not ' if off else ''}within "
        f"{UNUSUAL:g} standard errors of 0."
    )
    alike = [row for row in rows if row.excess < -UNUSUAL * row.excess_se]
    if alike:
        names = [f"{row.solver} at {row.budget} (pair KL {number(row.pair_kl)})" for row in alike]
        points.append(f"Below 0, likelier than true data because too alike: {listing(names)}.")
    return points


def _leaders(scores: Sequence[tuple[str, float, float]]) -> str:
    """The lowest of (name, value, standard error), with those that cannot be told from it."""
    first, least, error = min(scores, key=lambda score: score[1])
    near = [n for n, value, se in scores if n != first and value - least <= UNUSUAL * math.hypot(error, se)]
    return f"{first}, not to be told from {listing(near)}" if near else first


def describe_toy(rows: Sequence[ToyRow]) -> str:
    """The table of the toy, and what it shows."""
    head = (
        f"2. toy15: one site of 15 values, uniform process, {GRID} grid. The exact KL of each solver's law, and its "
        f"estimate from {rows[0].num:,} samples with a 95% bootstrap interval (a perfect sampler scores about "
        f"{number(rows[0].noise_floor)})."
    )
    body = table(
        ["solver", "budget", "exact KL", "sampled KL", "from", "to"],
        [
            [
                row.solver,
                str(row.budget),
                *(f"{value:.1e}" for value in (row.kl_exact, row.kl_mc, row.kl_low, row.kl_high)),
            ]
            for row in rows
        ],
    )
    points = []
    for budget in sorted({row.budget for row in rows}):
        order = sorted((row for row in rows if row.budget == budget), key=lambda row: row.kl_exact)
        points.append(f"With {budget} evaluations, best first: {', '.join(row.solver for row in order)}.")
    if all(row.kl_exact < 1e-9 for row in rows if row.solver == "Tweedie"):
        points.append("Tweedie is exact for one site, with any number of evaluations; part 3 has more sites.")
    return "\n\n".join([page([head]), body, page([points])])


def describe_curves(rows: Sequence[CurveRow], figure: Path) -> str:
    """What the figure shows, and where it is."""
    points = []
    for model in CURVED:
        budgets = sorted({row.budget for row in rows if row.model == model})
        here = [row for row in rows if row.model == model and row.budget == budgets[-1]]
        best, worst = min(here, key=lambda row: row.kl_exact), max(here, key=lambda row: row.kl_exact)
        points.append(
            f"{model}, {budgets[-1]} evaluations: {best.solver} has the lowest KL, {number(best.kl_exact)}, and "
            f"{worst.solver} the highest, {number(worst.kl_exact)}."
        )
    head = (
        "3. Exact laws on 27 sequences, masked (cube3) and uniform (cube3-uniform), against evaluations: "
        f"{figure.name}, and as numbers in convergence.csv, both in the folder {figure.parent}."
    )
    return page([head, points])


# --- figure


def draw(rows: Sequence[CurveRow]) -> Figure:
    """Exact KL against evaluations, one panel for each model."""
    figure, [axes] = panels(10.5, 4.8, 1, len(CURVED))
    for panel, (model, title) in zip(axes, CURVED.items(), strict=True):
        own = [row for row in rows if row.model == model]
        for name, colour in COLOURS.items():
            line = [row for row in own if row.solver == name]
            style = "s-" if name in ("RK2", "Trapezoidal") else "o-"
            panel.plot([r.budget for r in line], [r.kl_exact for r in line], style, color=colour, label=name)
        budgets = sorted({row.budget for row in own})
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(budgets, [str(n) for n in budgets])
        panel.set_xlabel("network evaluations")
        panel.set_title(title, fontsize=11)
    axes[0].set_ylabel("KL(p0 || law of the samples), nats")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle("Exact error at equal evaluations (squares: two evaluations per step)")
    return figure
