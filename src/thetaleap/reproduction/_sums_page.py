"""What the experiment on sums shows, in words, tables and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from . import _words
from ._output import Claim, panels, verdicts

if TYPE_CHECKING:
    from .sums import Row

SEMI = ("Semi-AR (confidence)", "Semi-AR (random)")
TRAPEZOIDAL, BLOCKWISE, EXACT = "theta-Trapezoidal", "theta-Trapezoidal in blocks", "first-hitting"
COLOURS = {
    SEMI[0]: "#0072B2",
    SEMI[1]: "#56B4E9",
    TRAPEZOIDAL: "#D55E00",
    BLOCKWISE: "#D55E00",
    "Tweedie": "#CC79A7",
    "multistep": "#7A3E9D",
    "multistep in blocks": "#7A3E9D",
    "exponential Trapezoidal": "#000000",
    "exponential Trapezoidal in blocks": "#000000",
}
WITHOUT = "LLaDA-8B-Instruct itself takes its weights: thetaleap reproduce gsm8k --model llada:FOLDER --data test.jsonl"


# --- words


def opening(settings: Mapping[str, Any]) -> str:
    """What was measured."""
    return (
        f"{settings['num']} word problems whose numbers the model {settings['model']} was not trained on: the question "
        f"is given, the {settings['free']:.0f} positions behind it (on average) are free, the temperature is "
        f"{settings['temperature']:g}. A sum is right if the number behind #### is, and worked out if every step of "
        "the answer is as it should be. In brackets Wilson's 95% intervals. A budget is the most evaluations that an "
        f"answer may take; {EXACT} is exact and takes one for each free position. Blocks are of {settings['block']} positions; "
        "where a budget has no room for a step of each, the row is left out."
    )


HEADER = ("method", "budget", "spent", "right, %", "worked out, %")


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table, as text."""
    return [
        [
            row.method,
            "-" if row.nfe is None else str(row.nfe),
            f"{row.evaluations:.1f}",
            f"{_percent(row.accuracy)} ({_percent(row.low)} to {_percent(row.high)})",
            f"{_percent(row.accuracy_worked)} ({_percent(row.low_worked)} to {_percent(row.high_worked)})",
        ]
        for row in rows
    ]


def sentences(rows: Sequence[Row]) -> list[str]:
    """Who has the most right at each budget, and who comes near to exact sampling first."""
    found = []
    for nfe in sorted({row.nfe for row in rows if row.nfe is not None}):
        here = [row for row in rows if row.nfe == nfe]
        best = max(here, key=lambda row: row.right)
        if best.right == 0:
            found.append(f"With {nfe} evaluations no method has a sum right.")
            continue
        first = [row.method for row in here if row.right == best.right]
        clear = [row.method for row in here if row.high < best.low]
        text = f"With {nfe} evaluations {_words.listing(first)}: {best.right} of {best.num} right, the most"
        text += f"; the interval is above those of {_words.listing(clear)}" if clear else ""
        found.append(f"{text}.")
    exact = next((row for row in rows if row.method == EXACT), None)
    if exact is not None:
        near = [(first, method) for method in COLOURS if (first := _near_from(rows, method, exact)) is not None]
        text = f"Exact sampling ({EXACT}) has {_percent(exact.accuracy)}% right in {exact.evaluations:.1f} evaluations"
        listed = [f"{method} from {first} on" for first, method in sorted(near)] if exact.right else []
        found.append(f"{text}; not clearly below it: {_words.listing(listed)}." if listed else f"{text}.")
    return found


def _near_from(rows: Sequence[Row], method: str, exact: Row) -> int | None:
    """The budget from which on the interval of `method` is not below that of exact sampling."""
    own = sorted((row.nfe, row.high >= exact.low) for row in rows if row.method == method and row.nfe is not None)
    far = [nfe for nfe, near in own if not near]
    return next((nfe for nfe, near in own if near and nfe > max(far, default=0)), None)


# --- what the paper says


def claims_of(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Claim]:
    """The paper's claims on GSM8K. They are about LLaDA, of which sums say nothing; what they show stands beside."""
    few = [row.nfe for row in rows if row.nfe is not None and row.nfe < settings["free"]]
    most = max(row.nfe for row in rows if row.nfe is not None)
    flat, blockwise = (TRAPEZOIDAL, *SEMI), (BLOCKWISE, TRAPEZOIDAL, *SEMI)
    made = [
        (
            "theta-Trapezoidal has more answers right than Semi-AR with fewer evaluations than tokens (64 for 256: "
            "35.1% against 33.6 and 33.8%; 128: 38.4% against 32.0 and 34.3%)",
            flat,
            sorted(set(few)),
        ),
        (
            "with as many evaluations as tokens (256) they are level: 39.7% against 39.1 and 40.3%",
            flat,
            [most],
        ),
        (
            "in blocks of 8 theta-Trapezoidal has far more right: 50.4, 57.4 and 62.5% at 64, 128 and 256",
            blockwise,
            sorted({row.nfe for row in rows if row.method == BLOCKWISE and row.nfe is not None}),
        ),
    ]
    return [
        Claim(paper, "cannot be checked here", f"{WITHOUT}. {found(rows, methods, budgets)}")
        for paper, methods, budgets in made
    ]


def found(rows: Sequence[Row], methods: Sequence[str], budgets: Sequence[int]) -> str:
    """Where the first of `methods` stands beside the others on sums, by the intervals."""
    parts = []
    for nfe in budgets:
        here = {row.method: row for row in rows if row.nfe == nfe and row.method in methods}
        if methods[0] not in here or len(here) == 1:
            continue
        own = here.pop(methods[0])
        others = [f"{_place(own, row)} {row.method} ({_percent(row.accuracy)}%)" for row in here.values()]
        parts.append(f"at {nfe} it has {_percent(own.accuracy)}% right, {_words.listing(others)}")
    if not parts:
        return f"On sums no budget of this run has room for {methods[0]} and the others"
    return f"On sums, {methods[0]}: {'; '.join(parts)}"


def _place(own: Row, other: Row) -> str:
    return "above" if own.low > other.high else "below" if own.high < other.low else "level with"


def describe(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """For the terminal."""
    parts = [_words.page([opening(settings)]), _words.table(HEADER, cells(rows))]
    return "\n\n".join([*parts, _words.page([sentences(rows), verdicts(claims)])])


def page(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """The same as a page of Markdown, with the figure."""
    lines = [HEADER, ["---"] + ["---:"] * (len(HEADER) - 1), *cells(rows)]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    solvers = [f"{name}: `{solver}`" for name, solver in settings["solvers"].items()]
    said, told, used = (
        "\n".join(f"- {item}" for item in part) for part in (sentences(rows), verdicts(claims), solvers)
    )
    parts = ["# Sums", opening(settings), grid, said, "![right sums](sums.png)"]
    return "\n\n".join([*parts, "## What the paper says", told, "## Solvers", used]) + "\n"


# --- figure


def draw(rows: Sequence[Row], settings: Mapping[str, Any]) -> Figure:
    """Right sums against evaluations; dashed in blocks, and a line across for exact sampling."""
    figure, [[panel]] = panels(8, 5.6, 1, 1)
    for n, (method, colour) in enumerate(COLOURS.items()):
        own = [row for row in rows if row.method == method and row.nfe is not None]
        # side by side, so that no interval hides another
        at = [row.nfe * 1.015 ** (n - len(COLOURS) / 2) for row in own if row.nfe is not None]
        values = [100 * row.accuracy for row in own]
        spans = [[100 * (row.accuracy - row.low) for row in own], [100 * (row.high - row.accuracy) for row in own]]
        line = "--" if "blocks" in method else "-"
        panel.errorbar(
            at, values, spans, color=colour, linestyle=line, marker="o", markersize=4, capsize=2, label=method
        )
    exact = next((row for row in rows if row.method == EXACT), None)
    if exact is not None:
        label = f"{EXACT}, {exact.evaluations:.0f} evaluations"
        panel.axhspan(100 * exact.low, 100 * exact.high, color="0.92", zorder=0)
        panel.axhline(100 * exact.accuracy, color="0.4", linestyle=":", label=label)
    ticks = sorted({row.nfe for row in rows if row.nfe is not None})
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [str(nfe) for nfe in ticks])
    panel.minorticks_off()
    panel.set_ylim(0, 102)
    panel.set_xlabel("evaluations per answer (budget)")
    panel.set_ylabel("right, % of problems (95% interval)")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"{settings['model']}: {rows[0].num} held-out word problems", fontsize=11)
    return figure
