"""What the text experiment shows, in words, tables and a figure, and what of the paper it bears on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..evaluation.judges.causal import NAMES
from ..evaluation.metrics.sequences import Measured
from . import _paper, _words
from ._output import COLOURS, Claim, Verdict, panels, verdicts

if TYPE_CHECKING:
    from .text import Row

UNUSUAL = 3.0
"""Figures are told apart beyond so many standard errors of their difference."""
SOME = 4
"""More names than these are counted, not listed."""
NEAR = 0.1
"""A figure of the paper is met within this share of it."""
LOOKS: dict[str, tuple[str, str]] = {
    "first-hitting": ("0.25", ":"),
    "Euler": (COLOURS["Euler"], "-"),
    "Tweedie tau-leaping": (COLOURS["Tweedie"], "-"),
    "tau-leaping": (COLOURS["TauLeaping"], "-"),
    "theta-RK-2": (COLOURS["RK2"], "-"),
    "theta-Trapezoidal": (COLOURS["Trapezoidal"], "-"),
    "Semi-AR (random)": ("#999999", "-"),
    "Semi-AR (confidence)": ("#8C564B", "-"),
    "parallel decoding": ("#6A3D9A", "-"),
    "theta-Trapezoidal (exact rule)": (COLOURS["Trapezoidal"], "--"),
    "exponential Trapezoidal": ("#56B4E9", "--"),
    "multistep": ("#000000", "--"),
    "Tweedie (fixed counts)": (COLOURS["Tweedie"], "--"),
    "low discrepancy": ("#B8A800", "--"),
    "multistep, low discrepancy": ("#1B1464", "--"),
    "Euler (legacy)": (COLOURS["Euler"], "-."),
    "Tweedie tau-leaping (legacy)": (COLOURS["Tweedie"], "-."),
    "tau-leaping (legacy)": (COLOURS["TauLeaping"], "-."),
}
"""Colour and line of each method: the paper's are drawn through, ours dashed."""
PAPER_LOOKS = {
    _paper.FHS: "0.25",
    _paper.EULER: COLOURS["Euler"],
    _paper.TWEEDIE: COLOURS["Tweedie"],
    _paper.TAU: COLOURS["TauLeaping"],
    _paper.SEMI_AR: "#999999",
    _paper.RK2: COLOURS["RK2"],
    _paper.TRAPEZOIDAL: COLOURS["Trapezoidal"],
}
EXACT = "first-hitting"
MINE = "theta-Trapezoidal"


def _samples(settings: Mapping[str, Any]) -> str:
    """How many, in words."""
    num = settings["num"]
    return f"{num} samples" if isinstance(num, int) else f"{min(num.values())} to {max(num.values())} samples"


def opening(settings: Mapping[str, Any]) -> list[str]:
    """What was measured."""
    found = [
        f"Text of {settings['model']}, {_samples(settings)} of {settings['length']} tokens in each row, judged by "
        f"{settings['judge']}. Perplexity, and unigram entropy in bits, are in the judge's tokens, with standard "
        "errors. Perplexity alone says little: it falls as samples repeat themselves, and then the entropy falls too. "
        "Exact sampling has the model's own perplexity; below it is not better, it is another law.",
        f"Semi-AR is in blocks of {settings['block']}. A budget counts every look at the network, that which fills the "
        "last masks included; two-stage methods take two a step.",
    ]
    if settings["reference"] is not None:
        likely, varied = (Measured(**settings["reference"][name]) for name in ("perplexity", "unigram_entropy"))
        found.append(
            f"Held-out text of the plays, in pieces as long, has perplexity {shown(likely)} and entropy "
            f"{shown(varied)} under this judge."
        )
    if settings["left out"]:
        found.append(f"Not for this model, which has no masks: {_words.listing(settings['left out'])}.")
    return found


HEADER = ("method", "budget", "spent", "perplexity", "bits per token", "entropy", "repeated 4-grams, %")


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table, as text."""
    return [
        [
            row.method,
            "-" if row.nfe is None else str(row.nfe),
            f"{row.evaluations:.1f}",
            shown(row.measured("perplexity")),
            shown(row.measured("bits")),
            shown(row.measured("entropy")),
            f"{100 * row.repetition:.1f} ± {100 * row.repetition_se:.1f}",
        ]
        for row in rows
    ]


def shown(figure: Measured) -> str:
    """To two digits of the error."""
    if not figure.error > 0:
        return f"{figure.value:g} ± {figure.error:g}"
    digits = max(0, 1 - math.floor(math.log10(figure.error)))
    return f"{figure.value:.{digits}f} ± {figure.error:.{digits}f}"


def sentences(rows: Sequence[Row]) -> list[str]:
    """Who has the lowest perplexity at each budget, who is like exact sampling, and whose text is less varied."""
    found = []
    for nfe in _budgets(rows):
        here = sorted((row for row in rows if row.nfe == nfe), key=lambda row: row.perplexity)
        best = here[0]
        level = [row.method for row in here[1:] if compare(best, row, "perplexity") == 0]
        text = f"At {nfe} evaluations {best.method} has the lowest perplexity, {shown(best.measured('perplexity'))}"
        text += f" (entropy {shown(best.measured('entropy'))})"
        if level:
            names = _words.listing(level) if len(level) <= SOME else f"{len(level)} others"
            text += f", not to be told from {names}"
        found.append(f"{text}.")
    exact = next((row for row in rows if row.method == EXACT), None)
    if exact is not None:
        text = f"Exact sampling ({EXACT}) has perplexity {shown(exact.measured('perplexity'))} and entropy "
        found.append(f"{text}{shown(exact.measured('entropy'))} after {exact.evaluations:.0f} evaluations.")
        others = [row for row in rows if row.nfe is not None]
        for words, some in (
            ("In both not to be told from it", [row for row in others if _alike(row, exact)]),
            ("Lower in entropy than exact sampling", [row for row in others if compare(row, exact, "entropy") < 0]),
        ):
            places: dict[str, list[str]] = {}
            for row in some:
                places.setdefault(row.method, []).append(str(row.nfe))
            listed = "; ".join(f"{method} at {_words.listing(at)}" for method, at in places.items())
            found.append(f"{words}: {listed or 'none'}.")
    return found


def _alike(row: Row, other: Row) -> bool:
    return compare(row, other, "perplexity") == 0 == compare(row, other, "entropy")


def _budgets(rows: Sequence[Row]) -> list[int]:
    return sorted({row.nfe for row in rows if row.nfe is not None})


def compare(one: Row, other: Row, figure: str) -> int:
    """-1 if `figure` is lower for `one` than for `other`, 1 if it is higher, 0 if they cannot be told apart."""
    a, b = one.measured(figure), other.measured(figure)
    apart = UNUSUAL * math.hypot(a.error, b.error)
    return 0 if abs(a.value - b.value) <= apart else -1 if a.value < b.value else 1


# --- what the paper says


def claims_of(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Claim]:
    """The paper's claims on text. Verdicts on the order of methods are of this model and judge."""
    where = "" if _is_radd(settings) else f"on {settings['model']} under {settings['judge']}: "
    claims = [
        _below(rows, where, MINE, [other], f"theta-Trapezoidal has a lower perplexity than {name} at all evaluations")
        for other, name in (
            ("Euler", _told(_paper.EULER)),
            ("Tweedie tau-leaping", _told(_paper.TWEEDIE)),
            ("tau-leaping", _told(_paper.TAU)),
            ("theta-RK-2", _told(_paper.RK2)),
        )
    ]
    semi = ["Semi-AR (random)", "Semi-AR (confidence)"]
    both = f"theta-Trapezoidal has a lower perplexity than {_told(_paper.SEMI_AR)} at all evaluations"
    claims.append(_below(rows, where, MINE, semi, f"{both}; it does not say in which order and blocks"))
    for quick, name in (("tau-leaping", _paper.TAU), ("theta-RK-2", _paper.RK2)):
        at = _paper.GPT2.values
        text = f"{name} beats Euler and Tweedie by a large margin ({at[name][128]:.1f} against "
        text += f"{at[_paper.EULER][128]:.1f} and {at[_paper.TWEEDIE][128]:.1f} at 128)"
        margin = math.log2(at[_paper.EULER][128] / at[name][128])
        claims.append(_below(rows, where, quick, ["Euler", "Tweedie tau-leaping"], text, margin))
    claims.append(_same(rows, where, "Euler", "Tweedie tau-leaping", "Euler and Tweedie tau-leaping perform similarly"))
    own = _paper.GPT2.values
    worse = sum(own[_paper.RK2][nfe] > own[_paper.TAU][nfe] for nfe in _paper.NFES)
    text = (
        f"by its own table theta-RK-2 is above tau-leaping in perplexity, at {worse} of {len(_paper.NFES)} numbers of "
    )
    claims.append(_below(rows, where, "tau-leaping", ["theta-RK-2"], f"{text}evaluations under GPT-2 large"))
    return [*claims, *_against_exact(rows, where), *_figures(rows, settings)]


def _is_radd(settings: Mapping[str, Any]) -> bool:
    return str(settings["model"]).startswith("radd:") and settings["length"] == 1024


def _told(name: str) -> str:
    """A method, with the paper's figures beside those of theta-Trapezoidal."""
    own, other = _paper.GPT2.values[_paper.TRAPEZOIDAL], _paper.GPT2.values[name]
    return f"{name} ({own[128]:.1f} against {other[128]:.1f} at 128 under GPT-2 large)"


def _below(
    rows: Sequence[Row], where: str, mine: str, others: Sequence[str], paper: str, margin: float | None = None
) -> Claim:
    """Whether the perplexity of `mine` is below that of all `others`, wherever both were run: at some budget or, where
    that does not tell, over all of them; and by anything like a `margin`, in bits per token, if the paper has one."""
    found: dict[int, dict[str, list[str]]] = {-1: {}, 0: {}, 1: {}}
    pairs = _pairs(rows, mine, others)
    for own, other in pairs:
        found[compare(own, other, "perplexity")].setdefault(other.method, []).append(str(own.nfe))
    if not pairs:
        return Claim(paper, "cannot be checked here", "this run has not both; they are for masked models")
    words = {-1: "below", 0: "not to be told from", 1: "above"}
    parts = [
        f"{words[sign]} {_words.listing([f'{name} at {_words.listing(at)}' for name, at in some.items()])}"
        for sign, some in found.items()
        if some
    ]
    mean, error = _pooled(pairs)
    told = f"; over all budgets {mean:+.3f} ± {error:.3f} bits per token"
    known: Verdict = "differs" if found[1] else "agrees" if found[-1] else "cannot be checked here"
    if known == "cannot be checked here" and abs(mean) > UNUSUAL * error:
        known = "agrees" if mean < 0 else "differs"
    elif known == "cannot be checked here" and margin is not None and mean + margin / 2 > UNUSUAL * error:
        known, told = "differs", f"{told}, where the paper's are {-margin:+.2f}"
    more = "; more samples may tell" if known == "cannot be checked here" else ""
    return Claim(paper, known, f"{where}{mine} is {_words.listing(parts)}{_at_last(pairs)}{told}{more}")


def _pooled(pairs: Sequence[tuple[Row, Row]]) -> tuple[float, float]:
    """Bits per token of the one less those of the others, over all budgets, and the standard error."""
    budgets = {own.nfe: (own, [other for mine, other in pairs if mine is own]) for own, _ in pairs}
    gaps = [own.bits - sum(row.bits for row in some) / len(some) for own, some in budgets.values()]
    spread = [own.bits_se**2 + sum(row.bits_se**2 for row in some) / len(some) ** 2 for own, some in budgets.values()]
    return sum(gaps) / len(gaps), math.sqrt(sum(spread)) / len(gaps)


def _pairs(rows: Sequence[Row], mine: str, others: Sequence[str]) -> list[tuple[Row, Row]]:
    """Rows of `mine` and of others at the same budget."""
    own = {row.nfe: row for row in rows if row.method == mine}
    return [(own[row.nfe], row) for row in rows if row.method in others and row.nfe in own]


def _at_last(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Figures at the largest budget."""
    most = max(own.nfe or 0 for own, _ in pairs)
    here = [row for pair in pairs for row in pair if row.nfe == most]
    listed = [
        f"{name} {shown(row.measured('perplexity'))}, entropy {row.entropy:.2f}"
        for name, row in {row.method: row for row in here}.items()
    ]
    return f" (at {most}: {'; '.join(listed)})"


def _same(rows: Sequence[Row], where: str, one: str, other: str, paper: str) -> Claim:
    pairs = _pairs(rows, one, [other])
    if not pairs:
        return Claim(paper, "cannot be checked here", "this run has not both")
    apart = [str(a.nfe) for a, b in pairs if compare(a, b, "perplexity") != 0]
    text = f"apart at {_words.listing(apart)}" if apart else f"not to be told apart at any of {len(pairs)} budgets"
    return Claim(paper, "differs" if apart else "agrees", f"{where}{text}{_at_last(pairs)}")


def _against_exact(rows: Sequence[Row], where: str) -> list[Claim]:
    """What the paper has about exact sampling, at the largest budget of this run."""
    exact, own = (next((r for r in reversed(rows) if r.method == name), None) for name in (EXACT, MINE))
    told, varied = _paper.GPT2.values, _paper.ENTROPY.values
    ends = [f"{varied[name][16]:.2f} to {varied[name][1024]:.2f}" for name in (_paper.TRAPEZOIDAL, _paper.FHS)]
    papers = {
        "perplexity": "theta-Trapezoidal has a lower perplexity than exact sampling (FHS) at 1024 evaluations, one for "
        f"each token ({told[_paper.TRAPEZOIDAL][1024]:.1f} against {told[_paper.FHS][1024]:.1f} under GPT-2 large)",
        "entropy": "by its own table the entropy of theta-Trapezoidal falls with evaluations, "
        f"from {ends[0]}, and is then below that of exact sampling, from {ends[1]}",
    }
    if exact is None or own is None:
        return [
            Claim(paper, "cannot be checked here", "exact sampling is for masked models") for paper in papers.values()
        ]
    found = []
    for figure, paper in papers.items():
        sign = compare(own, exact, figure)
        word = {-1: "below", 0: "not to be told from", 1: "above"}[sign]
        text = f"{where}at {own.nfe} evaluations its {figure}, {shown(own.measured(figure))}, is {word} that of exact "
        text += f"sampling, {shown(exact.measured(figure))}"
        found.append(Claim(paper, "agrees" if sign < 0 else "differs", text))
    return found


def _figures(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Claim]:
    """The paper's figures themselves."""
    claims = []
    for name, table, figure in (
        ("gpt2-large", _paper.GPT2, "perplexity"),
        ("llama-3-8b", _paper.LLAMA, "perplexity"),
        ("llama-3-8b", _paper.ENTROPY, "entropy"),
    ):
        paper = f"the figures themselves: {table.about}"
        known = {"perplexity": "paper_llama" if table is _paper.LLAMA else "paper_gpt2", "entropy": "paper_entropy"}[
            figure
        ]
        both = [(row, getattr(row, known)) for row in rows if row.kind == "paper" and getattr(row, known) is not None]
        if not _is_radd(settings) or settings["judge"] not in (name, NAMES[name]) or not both:
            needs = f"needs RADD's weights and the judge, as in --model radd:FOLDER --judge {name}; here there are "
            claims.append(Claim(paper, "cannot be checked here", f"{needs}{settings['model']} and {settings['judge']}"))
            continue
        ratios = [row.measured(figure).value / value for row, value in both]
        text = f"ours are {min(ratios):.2f} to {max(ratios):.2f} times the paper's, over {len(both)} rows"
        met = all(abs(ratio - 1) <= NEAR for ratio in ratios)
        claims.append(Claim(paper, "agrees" if met else "differs", text))
    return claims


# --- on paper


def describe(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """For the terminal."""
    parts = [_words.page(opening(settings)), _words.table(HEADER, cells(rows))]
    return "\n\n".join([*parts, _words.page([sentences(rows), verdicts(claims)])])


def page(rows: Sequence[Row], settings: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """The same as a page of Markdown, with the figure and the paper's tables."""
    parts = ["# Text", *opening(settings), markdown(HEADER, cells(rows)), points(sentences(rows))]
    parts += ["![perplexity and entropy](text.png)", "## What the paper says", points(verdicts(claims))]
    parts += ["## The paper's tables", "None of this was measured here. RADD, 1024 tokens, 1024 samples a row."]
    for what, table in _paper.TEXT.items():
        nfes = list(next(iter(table.values.values())))
        body = [[name, *(f"{row[nfe]:g}" for nfe in nfes)] for name, row in table.values.items()]
        parts += [f"{what}: {table.about}.", markdown(["method (the paper's figures)", *map(str, nfes)], body)]
    parts.append(" ".join(_twice()))
    solvers = [f"{name}: `{solver}`" for name, solver in settings["solvers"].items()]
    return "\n\n".join([*parts, "## Solvers", points(solvers)]) + "\n"


def _twice() -> list[str]:
    """Where the paper's short table and its full one differ."""
    return [
        f"In the paper's main text {name} has {value:g} at {nfe} evaluations, not {_paper.GPT2.values[name][nfe]:g}."
        for name, row in _paper.SHORT.values.items()
        for nfe, value in row.items()
        if value != _paper.GPT2.values[name][nfe]
    ]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, numbers to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def points(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def draw(rows: Sequence[Row], settings: Mapping[str, Any]) -> Figure:
    """Perplexity and entropy against evaluations: above what was measured, below the paper's."""
    figure, [above, below] = panels(12, 10, 2, 2)
    methods = [method for method in LOOKS if any(row.method == method for row in rows)]
    for n, method in enumerate(methods):
        colour, line = LOOKS[method]
        own = [row for row in rows if row.method == method]
        # side by side, so that no interval hides another
        at = [(row.nfe or row.evaluations) * 1.012 ** (n - len(methods) / 2) for row in own]
        for panel, name in zip(above, ("perplexity", "entropy"), strict=True):
            values, errors = [getattr(row, name) for row in own], [getattr(row, f"{name}_se") for row in own]
            if method == EXACT:
                panel.axhline(values[0], color=colour, linestyle=line, linewidth=1)
            panel.errorbar(
                at, values, errors, color=colour, linestyle=line, marker="o", markersize=4, capsize=2, label=method
            )
    if settings["reference"] is not None:
        for panel, name in zip(above, ("perplexity", "unigram_entropy"), strict=True):
            panel.axhline(settings["reference"][name]["value"], color="0.5", linewidth=1, label="held-out text")
    for panel, table in zip(below, (_paper.GPT2, _paper.ENTROPY), strict=True):
        for method, row in table.values.items():
            panel.plot(list(row), list(row.values()), color=PAPER_LOOKS[method], marker="D", markersize=4, label=method)
    titles = (f"here: {settings['model']}, judged by {settings['judge']}", "here")
    for (panel, title), label in zip(zip(above, titles, strict=True), ("perplexity", "entropy, bits"), strict=True):
        _axes(panel, _budgets(rows), label, title)
    for panel, title, label in zip(
        below, ("the paper: RADD, GPT-2 large", "the paper: RADD, LLaMA 3"), ("perplexity", "entropy"), strict=True
    ):
        _axes(panel, _paper.NFES, label, title)
    above[0].set_yscale("log")
    below[0].set_yscale("log")
    above[1].legend(fontsize=7, frameon=False, handlelength=4, loc="center left", bbox_to_anchor=(1.0, 0.5))
    below[1].legend(fontsize=7, frameon=False, handlelength=4, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"Text: {_samples(settings)} a row, ± standard error; below, the paper's own figures")
    return figure


def _axes(panel: Axes, nfes: Sequence[int], label: str, title: str) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(nfes), [str(nfe) for nfe in nfes])
    panel.minorticks_off()
    panel.set_xlabel("evaluations per sample")
    panel.set_ylabel(label)
    panel.set_title(title, fontsize=10)
