"""Solvers on trained masked networks: heavy chains completed from the first 30 residues of trastuzumab.

::

    python -m benchmarks.antibodies draw sapiens-vh --rounds 2 --num 250
    python -m benchmarks.antibodies score sapiens-vh --per-sample 4
    python -m benchmarks.antibodies report sapiens-vh

`draw` writes the samples of each contender, budget and round to runs/antibodies, `score` the pseudo-likelihoods beside
them (and, where iglm is installed, its opinion); both leave what is there, so that they may be stopped and started
again. `report` prints the tables, and writes them and the figure; `redraw` makes the figure in docs from the tables there. Every contender is charged for every evaluation, and
compared with exact any-order sampling of the same network, one position per evaluation.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import thetaleap as tl
from thetaleap.control import Method
from thetaleap.evaluation.figures import budget_axis, direct_labels, headline, panels, write_png
from thetaleap.evaluation.judges.iglm import iglm
from thetaleap.evaluation.metrics.likelihood import pseudo_log_likelihood
from thetaleap.evaluation.metrics.sequences import (
    Measured,
    frequency_distance,
    frequency_gap,
    mean,
    pairwise_distance,
    position_entropy,
)

HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSR"
    "WGGDGFYAMDYWGQGTLVTVSS"
)
GIVEN = 30
FREE = torch.arange(GIVEN, len(HEAVY))
BUDGETS = (8, 16, 4, 32)
"""In the order in which they are run."""
REFERENCE = "first-hitting"
FOLD = 2
"""So many times as many reference samples as samples."""
BASE = "multistep"
"""The contender that the others' distances are compared with."""
CONTENDERS: dict[str, Method] = {
    "euler": tl.Euler(),
    "tau-leaping": tl.TauLeaping(),
    "tweedie": tl.Tweedie(),
    "fixed-count": tl.Tweedie(tl.FixedCount()),
    "low-discrepancy": tl.Tweedie(tl.LowDiscrepancy()),
    "rk2": tl.RK2(),
    "trapezoidal": tl.Trapezoidal(),
    "trapezoidal-reject": tl.Trapezoidal(rule="reject"),
    "exponential-trapezoidal": tl.ExponentialTrapezoidal(),
    "multistep": tl.Multistep(),
    "multistep-quarter": tl.Multistep(weight=0.25),
    "multistep-low-discrepancy": tl.Multistep(planner=tl.LowDiscrepancy()),
    "parallel-decoding": tl.ParallelDecoding(),
    # two blocks, of 45 free positions each
    "semi-autoregressive": tl.SemiAutoregressive(block_length=75),
}
DRAWN = {
    "tau-leaping": "#0072B2",
    "tweedie": "#CC79A7",
    "trapezoidal-reject": "#D55E00",
    "exponential-trapezoidal": "#56B4E9",
    BASE: "#000000",
    "multistep-low-discrepancy": "#009E73",
}
"""In the figure."""
FAR = ("parallel-decoding", "semi-autoregressive")
"""Whose law is another, and whose distances would hide those of the others."""
FOLDER = Path("runs/antibodies")
PAGE = Path("docs/antibodies.md")
HEADINGS = {"sapiens-vh": "Sapiens", "antiberty": "AntiBERTy"}
"""Of the page."""


def load(name: str) -> Any:
    return tl.load(name, length=len(HEAVY))


def template(model: Any) -> torch.Tensor:
    x = torch.tensor(model.tokenizer.encode(HEAVY))
    x[GIVEN:] = tl.FREE
    return x


# --- draw and score, slowly


def draw(name: str, rounds: range, num: int, budgets: list[int], reference: bool) -> None:
    """Rounds of `num` samples of everyone; round n has seed n. With `reference`, also of exact sampling."""
    model, folder = load(name), FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in rounds:
        jobs: list[tuple[str, int | None, Method, int]] = [(REFERENCE, None, tl.FirstHitting(), FOLD * num)]
        jobs = jobs if reference else []
        jobs += [(who, budget, solver, num) for budget in budgets for who, solver in CONTENDERS.items()]
        for who, budget, solver, count in jobs:
            path = folder / f"{who}_{budget or 'all'}_{seed}.npz"
            if path.exists():
                continue
            begin = time.process_time(), time.perf_counter()
            out = tl.sample(model, solver, nfe=budget, num=count, seed=seed, template=template(model), progress=False)
            own, seconds = time.process_time() - begin[0], time.perf_counter() - begin[1]
            _save(path, x=out.x.numpy().astype(np.int8), nfe=out.nfe.numpy(), seconds=seconds, processor=own)
            print(f"{name} {path.stem}: {seconds:.1f} s", flush=True)


def score(name: str, per_sample: int, judged: int) -> None:
    """Pseudo-likelihoods of all samples of each file, and IgLM's of the first `judged`."""
    model, critic = load(name), iglm() if judged and find_spec("iglm") else None
    for path in sorted((FOLDER / name).glob("*_*_*.npz")):
        target = path.with_suffix(".score")
        if target.exists():
            continue
        x = torch.from_numpy(np.load(path)["x"]).long()
        found = {"likelihood": pseudo_log_likelihood(model, x, FREE, per_sample, seed=1).each.numpy()}
        if critic is not None:
            letters = [model.tokenizer.decode(row) for row in x[:judged].tolist()]
            found["judge"] = -critic.log_likelihoods(letters, FREE).numpy()
        _save(target, **found)
        print(f"{name} {target.name}", flush=True)


def _save(path: Path, **arrays: Any) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(file, **arrays)
    part.replace(path)


# --- report, from the files


@dataclass(frozen=True)
class Drawn:
    """All samples of one contender at one budget, of however many rounds there are."""

    x: torch.Tensor
    nfe: float
    seconds: float
    """Of one processor, per sample."""
    likelihood: torch.Tensor
    judge: torch.Tensor


def drawn(name: str, who: str, budget: int | None) -> Drawn | None:
    paths = sorted((FOLDER / name).glob(f"{who}_{budget or 'all'}_*.npz"))
    if not paths:
        return None
    files = [np.load(path) for path in paths]
    scores = [np.load(path.with_suffix(".score")) for path in paths if path.with_suffix(".score").exists()]
    x = torch.from_numpy(np.concatenate([file["x"] for file in files])).long()
    nfe = float(np.concatenate([file["nfe"] for file in files]).mean())
    spent = [float(file["processor"]) / len(file["x"]) for file in files if "processor" in file]
    seconds = min(spent) if spent else math.nan
    none = np.zeros(0)
    likelihood, judge = (
        torch.from_numpy(np.concatenate([none, *(found[kind] for found in scores if kind in found)]))
        for kind in ("likelihood", "judge")
    )
    return Drawn(x, nfe, seconds, likelihood, judge)


@dataclass(frozen=True)
class Row:
    """The figures of one contender at one budget."""

    who: str
    budget: int | None
    samples: int
    nfe: float
    seconds: float
    likelihood: Measured | None
    judge: Measured | None
    diversity: Measured
    entropy: Measured
    positions: Measured | None = None
    neighbours: Measured | None = None
    pairs: Measured | None = None
    gap: Measured | None = None
    """In pairs, how much further from the reference than `BASE`. Contenders share their noise, so that the standard
    error, which takes them for independent, is rather too large."""


def rows(name: str) -> Iterator[Row]:
    """The reference first, then by budget."""
    reference = drawn(name, REFERENCE, None)
    assert reference is not None, f"draw {name} first"
    yield _row(REFERENCE, None, reference)
    for budget in sorted(BUDGETS):
        base = drawn(name, BASE, budget)
        for who in CONTENDERS:
            own = drawn(name, who, budget)
            if own is not None:
                yield _row(who, budget, own, reference, base if who != BASE else None)


def _row(who: str, budget: int | None, own: Drawn, reference: Drawn | None = None, base: Drawn | None = None) -> Row:
    x = own.x
    far: dict[str, Measured] = {}
    if reference is not None:
        far = {of: frequency_distance(x, reference.x, of, FREE) for of in ("positions", "neighbours", "pairs")}
    if reference is not None and base is not None:
        far["gap"] = frequency_gap(x, base.x, reference.x, "pairs", FREE)
    likelihood, judge = (mean(values) if len(values) else None for values in (own.likelihood, own.judge))
    diversity, entropy = pairwise_distance(x, FREE), position_entropy(x, FREE)
    return Row(who, budget, len(x), own.nfe, own.seconds, likelihood, judge, diversity, entropy, **far)


HEADS = {
    "likelihood": ("log p", 3),
    "judge": ("IgLM -log p", 3),
    "diversity": ("differ", 3),
    "entropy": ("entropy", 3),
    "positions": ("positions", 4),
    "neighbours": ("neighbours", 4),
    "pairs": ("pairs", 4),
    "gap": (f"pairs less {BASE}", 4),
}


def table(found: list[Row]) -> str:
    lines = ["| solver | nfe | s | " + " | ".join(head for head, _ in HEADS.values()) + " |"]
    lines.append("|" + " --- |" * (len(HEADS) + 3))
    for row in found:
        cells = [f"`{row.who}`", f"{row.nfe:.1f}", f"{row.seconds:.2g}"]
        for name, (_, digits) in HEADS.items():
            figure: Measured | None = getattr(row, name)
            cells.append("" if figure is None else f"{figure.value:.{digits}f} ± {figure.error:.{digits}f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def by_budget(found: list[Row], figures: tuple[str, ...], scale: float, digits: int) -> str:
    """One row for each contender, one column for each budget, with the given figures in the cells."""

    def cell(row: Row) -> str:
        seen = [getattr(row, name) for name in figures]
        if all(figure is None for figure in seen):
            return ""
        return ", ".join(
            "–" if f is None else f"{scale * f.value:.{digits}f} ± {scale * f.error:.{digits}f}" for f in seen
        )

    budgets = sorted({row.budget for row in found if row.budget is not None})
    lines = [f"| solver | {' | '.join(map(str, budgets))} |", "|" + " --- |" * (len(budgets) + 1)]
    for who in (REFERENCE, *CONTENDERS):
        own = {row.budget: cell(row) for row in found if row.who == who}
        if who == REFERENCE and own[None]:
            lines.append(f"| `{who}`, 90 evaluations | {own[None]} |" + " |" * (len(budgets) - 1))
        elif any(own.values()):
            lines.append(f"| `{who}` | {' | '.join(own.get(budget, '') for budget in budgets)} |")
    return "\n".join(lines)


def report(names: list[str]) -> None:
    every = {name: list(rows(name)) for name in names}
    for name, found in every.items():
        (FOLDER / f"{name}.json").write_text(json.dumps([asdict(row) for row in found], indent=1))
        text = [f"{name}: {found[0].samples} reference samples"]
        for budget in (None, *sorted(BUDGETS)):
            part = [row for row in found if row.budget == budget]
            if part:
                text += ["", f"{budget or 'all'} evaluations, {part[0].samples} samples", "", table(part)]
        text += ["", "distance of pairs, in thousandths", "", by_budget(found, ("pairs",), 1000, 1)]
        text += ["", f"the same less that of {BASE}", "", by_budget(found, ("gap",), 1000, 1)]
        text += ["", "log p, share of positions that differ", "", by_budget(found, ("likelihood", "diversity"), 1, 3)]
        text += ["", "-log p under IgLM", "", by_budget(found, ("judge",), 1, 2)]
        (FOLDER / f"{name}.md").write_text("\n".join(text) + "\n")
        print("\n".join(text), flush=True)
    figure({name: pairs_of(found) for name, found in every.items()}, FOLDER / "antibodies.png")


Pairs = dict[str, dict[int, Measured]]
"""Distance of pairs in thousandths, by contender and budget."""


def figure(every: dict[str, Pairs], path: Path) -> None:
    """Distance of pairs against evaluations, in bands of a standard error: six contenders; the tables have all."""
    figure, [axes] = panels(6.4 * len(every), 4.4, 1, len(every))
    for panel, (name, found) in zip(axes, every.items(), strict=True):
        ends = {}
        for who, colour in DRAWN.items():
            own = sorted(found[who].items())
            at, values = [budget for budget, _ in own], [one.value for _, one in own]
            low, high = ([one.value + sign * one.error for _, one in own] for sign in (-1, 1))
            panel.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)
            panel.plot(at, values, color=colour, marker="o", markersize=3.5, linewidth=1.5)
            ends[who] = at[-1], values[-1]
        panel.axhline(0, color="0.35", linewidth=1)
        budget_axis(panel, sorted({budget for own in found.values() for budget in own}), "evaluations per sample")
        panel.set_ylabel("distance of pair frequencies, thousandths")
        far = {who: [one.value for one in found[who].values()] for who in FAR}
        told = "; ".join(f"{who} {min(own):.0f} to {max(own):.0f}" for who, own in far.items())
        panel.set_title(f"{name}\noff the scale: {told}", fontsize=9)
        direct_labels(panel, ends, DRAWN)
    headline(figure, takeaway(every), len(every))
    write_png(path, figure)


def takeaway(every: dict[str, Pairs]) -> str:
    """At the smallest budget of the model whose figures are known best."""
    name, found = min(every.items(), key=lambda item: min(one.error for one in item[1][BASE].values()))
    least = min(found[BASE])
    ours, theirs = found[BASE][least], found["trapezoidal-reject"][least]
    return (
        f"{name}, {least} evaluations: {BASE} is {ours.value:.1f} ± {ours.error:.1f} from exact sampling, "
        f"the paper's Trapezoidal {theirs.value:.1f} ± {theirs.error:.1f}"
    )


def pairs_of(found: list[Row]) -> Pairs:
    """The figures of a run."""
    made: Pairs = {}
    for row in found:
        if row.budget is not None and row.pairs is not None:
            made.setdefault(row.who, {})[row.budget] = Measured(1000 * row.pairs.value, 1000 * row.pairs.error)
    return made


def pairs_on(page: Path, name: str) -> Pairs:
    """The same, from the first table behind the heading that names the model."""
    rest = page.read_text(encoding="utf-8").partition(f"\n### {HEADINGS[name]}\n")[2]
    lines = rest.split("| solver |", 1)[1].splitlines()
    budgets = [int(cell) for cell in lines[0].split("|") if cell.strip()]
    made: Pairs = {}
    for line in lines[2 : lines.index("")]:
        who, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        numbers = [[float(part) for part in cell.split("±")] for cell in cells]
        made[who.strip("`")] = {budget: Measured(*pair) for budget, pair in zip(budgets, numbers, strict=True)}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.antibodies", description=__doc__)
    parser.add_argument("what", choices=["draw", "score", "report", "redraw"])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--first", type=int, default=0, help="the first round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--num", type=int, default=16, help="samples per round")
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--no-reference", action="store_true", help="draw no more reference samples")
    parser.add_argument("--per-sample", type=int, default=4, help="positions to ask about, by pseudo-likelihood")
    parser.add_argument("--judged", type=int, default=32, help="samples of each file that IgLM judges")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.models:
        if given.what == "draw":
            draw(name, range(given.first, given.first + given.rounds), given.num, given.budgets, not given.no_reference)
        elif given.what == "score":
            score(name, given.per_sample, given.judged)
    if given.what == "report":
        report(given.models)
    elif given.what == "redraw":  # from the tables in the documents
        figure({name: pairs_on(PAGE, name) for name in given.models}, PAGE.with_suffix(".png"))


if __name__ == "__main__":
    main()
