"""What the GSM8K experiment shows, in words, tables and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from . import _words
from ._output import panels

if TYPE_CHECKING:
    from .gsm8k import Row

PAPER: dict[str, dict[str, float]] = {
    "Semi-AR (confidence)": {"64": 0.336, "128": 0.320, "256": 0.391},
    "Semi-AR (random)": {"64": 0.338, "128": 0.343, "256": 0.403},
    "theta-Trapezoidal": {"64": 0.351, "128": 0.384, "256": 0.397},
    "theta-Trapezoidal, blocks": {"64": 0.504, "128": 0.574, "256": 0.625},
}
"""The paper's own figures for LLaDA-8B-Instruct (its appendix, blocks of 8), by method and evaluations. Not measured
here. It does not say how many questions they are of, nor which number of an answer counts."""

COLOURS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7")


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table, as text."""
    return [
        [
            row.method,
            str(row.nfe),
            f"{row.evaluations:.1f}",
            f"{_percent(row.accuracy)} ({_percent(row.low)} to {_percent(row.high)})",
            f"{_percent(row.accuracy_strict)} ({_percent(row.low_strict)} to {_percent(row.high_strict)})",
            "-" if row.paper is None else _percent(row.paper),
        ]
        for row in rows
    ]


HEADER = ("method", "budget", "spent", "last number right, %", "#### right, %", "paper, %")


def sentences(rows: Sequence[Row]) -> list[str]:
    """What the numbers say."""
    found = []
    for nfe in sorted({row.nfe for row in rows}):
        here = sorted((row for row in rows if row.nfe == nfe), key=lambda row: -row.right)
        best = here[0]
        if best.right == 0:
            found.append(f"At {nfe} evaluations no method has an answer right.")
            continue
        first = [row.method for row in here if row.right == best.right]
        clear = [row.method for row in here if row.high < best.low]
        level = [row.method for row in here if row.high >= best.low and row.method not in first]
        who = f"{first[0]} has" if len(first) == 1 else f"{_words.listing(first)} have"
        text = f"At {nfe} evaluations {who} the most answers right, {best.right} of {best.num}"
        text += f"; the interval is above those of {_words.listing(clear)}" if clear else ""
        text += f"; the interval overlaps those of {_words.listing(level)}" if level else ""
        found.append(f"{text}.")
    over = [row for row in rows if row.most_evaluations > row.nfe]
    if over:
        names = _words.listing([f"{row.method} at {row.nfe} (at most {row.most_evaluations})" for row in over])
        found.append(
            f"More than the budget was spent by {names}: one step for each block is the least there is, and what masks "
            "it leaves go in one evaluation more."
        )
    return found


def opening(settings: Mapping[str, Any]) -> str:
    """What was measured."""
    how = "in the model's chat template" if settings["chat_template"] else "as plain text, as the model has no chat"
    return (
        f"GSM8K, {settings['num']} questions of {settings['questions']}, model {settings['model']}: answers of "
        f"{settings['new']} tokens at temperature {settings['temperature']:g}, without examples, {how}; blocks of "
        f"{settings['block']}. In brackets Wilson's 95% intervals."
    )


ABOUT_THE_PAPER = (
    "The last column is not ours: it is what the paper reports for LLaDA-8B-Instruct. It can be compared with the "
    "others only if the model is that one, and all questions were asked; the paper does not say which number of an "
    "answer counts, nor how it words the question."
)


def describe(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """For the terminal."""
    parts = [_words.page([opening(settings)]), _words.table(HEADER, cells(rows))]
    return "\n\n".join([*parts, _words.page([sentences(rows), ABOUT_THE_PAPER])])


def page(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """The same as a page of Markdown, with the figure."""
    lines = [HEADER, ["---"] + ["---:"] * (len(HEADER) - 1), *cells(rows)]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    points = "\n".join(f"- {sentence}" for sentence in sentences(rows))
    solvers = "\n".join(f"- {name}: `{solver}`" for name, solver in settings["solvers"].items())
    parts = ["# GSM8K", opening(settings), grid, points, "![accuracy](gsm8k.png)", ABOUT_THE_PAPER, solvers]
    return "\n\n".join(parts) + "\n"


def draw(rows: Sequence[Row], model: str) -> Figure:
    """Accuracy against evaluations; the paper's figures dashed."""
    figure, [[panel]] = panels(7.5, 5.2, 1, 1)
    for n, (colour, method) in enumerate(zip(COLOURS, PAPER, strict=True)):
        own = [row for row in rows if row.method == method]
        # side by side, so that no interval hides another
        budgets, values = [row.nfe * 1.04 ** (n - 1.5) for row in own], [100 * row.accuracy for row in own]
        below = [100 * (row.accuracy - row.low) for row in own]
        above = [100 * (row.high - row.accuracy) for row in own]
        panel.errorbar(budgets, values, [below, above], color=colour, marker="o", capsize=3, linewidth=1.5)
        told = [(x, 100 * row.paper) for x, row in zip(budgets, own, strict=True) if row.paper is not None]
        if told:
            panel.plot(*zip(*told, strict=True), "--", color=colour, marker="D", markerfacecolor="white", linewidth=1)
    ticks = sorted({row.nfe for row in rows})
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [str(n) for n in ticks])
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.set_xlabel("evaluations per answer (budget)")
    panel.set_ylabel("last number right, % of questions")
    handles = [Line2D([], [], color=c, linewidth=2, label=m) for c, m in zip(COLOURS, PAPER, strict=True)]
    handles += [
        Line2D([], [], color="0.3", marker="o", label="measured, 95% interval"),
        Line2D(
            [], [], color="0.3", linestyle="--", marker="D", markerfacecolor="white", label="paper, LLaDA-8B-Instruct"
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(f"GSM8K, {rows[0].num} questions, {model}", fontsize=11)
    return figure
