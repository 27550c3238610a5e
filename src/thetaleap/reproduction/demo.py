"""A short tour: what the models of the package write and draw, and every kind of solver beside the truth.

First samples: a text as it appears, ten digits, and a sum with its answer. Then three things are measured. On a Markov
chain of 64 masked positions, how surprising samples are to the true law, beside the law of their neighbouring pairs;
on the
paper's 15 states, the exact law of every solver beside samples of it; on 27 sequences, masked and uniform, exact laws
alone, against evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from ..core.checks import require_count
from ..files import blocks, mosaic, write_pictures
from ._demo_rows import (
    BUDGETS,
    CURVE_BUDGETS,
    CURVED,
    DIGITS_BUDGET,
    GONE,
    GRID,
    GUIDANCE,
    NUM,
    SUMS_BUDGET,
    TEXT_BUDGET,
    ChainRow,
    CurveRow,
    Digits,
    Sum,
    ToyRow,
    chain_rows,
    curve_rows,
    digits,
    sums,
    text_stages,
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
    """Draw and measure, and write ``digits.png``, ``convergence.png`` and three tables as CSV to `folder`."""
    require_count("num", num, least=2)
    require_count("seed", seed, least=0)
    folder.mkdir(parents=True, exist_ok=True)
    with bar(progress, "demo", work(len(budgets), len(curve_budgets))) as advance:
        text, drawn, solved = text_stages(seed, advance), digits(seed, advance), sums(seed, advance)
        chain = chain_rows(budgets, num, seed, advance)
        toy = toy_rows(budgets, num, seed, advance)
        curves = curve_rows(curve_budgets, advance)
    picture = folder / "digits.png"
    note = {"model": "mnist", "guidance": GUIDANCE, "nfe": DIGITS_BUDGET, "seed": seed}
    write_pictures(picture, mosaic(drawn.images, columns=5), note)
    files = [
        write_png(folder / "convergence.png", draw(curves)),
        write_csv(folder / "convergence.csv", [asdict(row) for row in curves]),
        write_csv(folder / "chain64.csv", [asdict(row) for row in chain]),
        write_csv(folder / "toy15.csv", [asdict(row) for row in toy]),
    ]
    shown = [describe_text(text), describe_digits(drawn, picture), describe_sums(solved)]
    measured = [describe_chain(chain, num), describe_toy(toy), describe_curves(curves, files[0])]
    return Report("\n\n".join(shown + measured), [picture, *files])


# --- words


def describe_text(stages: Sequence[tuple[int, str]]) -> str:
    """The text as it appears."""
    head = (
        f"1. shakespeare: {len(stages[-1][1])} characters by a small model of his plays, {TEXT_BUDGET} evaluations in "
        f"all, with Multistep. Every evaluation writes several characters at once, far apart; {GONE} is still open."
    )
    parts = [f"After {nfe} evaluations:\n\n{_indented(text)}" for nfe, text in stages]
    return "\n\n".join([page([head]), *parts])


def describe_digits(drawn: Digits, picture: Path) -> str:
    """The digits in characters."""
    good = sum(seen == asked for asked, seen in enumerate(drawn.seen))
    head = (
        f"2. mnist: the digits 0 to 9 as asked for, 14 x 14 pixels in 8 greys, guidance {GUIDANCE:g}, {DIGITS_BUDGET} "
        f"evaluations each. A classifier of digits sees what was asked for in {good} of {len(drawn.seen)}. They are in "
        f"{picture.name} too, with all their greys."
    )
    return "\n\n".join([page([head]), _indented(blocks(drawn.images, columns=5))])


def describe_sums(solved: Sequence[Sum]) -> str:
    """The first sum that came out right, or the first one if none did."""
    good = [one for one in solved if one.right]
    one = (good or solved)[0]
    head = (
        f"3. sums: word problems whose numbers the model was not trained on, the surest words first, in {SUMS_BUDGET} "
        f"evaluations. "
        f"{len(good)} of {len(solved)} came out right; "
        + ("the first of these:" if good else f"this one should be {one.problem.result}:")
    )
    return "\n\n".join([page([head]), _indented(page([one.problem.question, one.answer], 90))])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


def describe_chain(rows: Sequence[ChainRow], num: int) -> str:
    """The table of the chain, and what it shows."""
    head = (
        f"4. chain64: a Markov chain, 64 positions of 16 values, masked; {num:,} samples each. Excess cross-entropy is "
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
    duplicates = [row for row in rows if row.excess < -UNUSUAL * row.excess_se]
    if duplicates:
        names = [f"{row.solver} at {row.budget} (pair KL {number(row.pair_kl)})" for row in duplicates]
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
        f"5. toy15: one position of 15 values, uniform process, {GRID} grid. The exact KL of each solver's law, and its "
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
        points.append("Tweedie is exact for one position, with any number of evaluations; part 6 has more positions.")
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
        "6. Exact laws on 27 sequences, masked (cube3) and uniform (cube3-uniform), against evaluations: "
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
