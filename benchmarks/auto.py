"""Is `auto` as good as the best of its kind? Trained networks and oracles, at 4 to 32 evaluations.

::

    python -m benchmarks.auto run --out runs/auto                 # all models: hours; what is there is left as it is
    python -m benchmarks.auto run --out runs/auto sums --num 256  # one of them
    python -m benchmarks.auto table --out runs/auto               # the table of docs/solvers.md
    python -m benchmarks.auto tune --out runs/auto sapiens-vh --budgets 4 --num 1000 --seed 21
    python -m benchmarks.auto run --out runs/duel sapiens-vh --budgets 4 --num 2000 --seed 31 \\
      --candidate "Multistep(planner=LowDiscrepancy(schedule='even'))" --candidate "Tweedie() on cosine"

`run` compares `auto` with seven others by `tl.compare`, one model and budget at a time, and adds the rows to ``auto.csv``
in the folder; it may be stopped and started again. Networks are compared with exact samples of themselves, drawn once for
a model, and oracles with their truth. Sapiens completes a heavy chain from 30 residues, as in `benchmarks.antibodies`.

`tune` searches for something better than `auto`, and confirms it on fresh seeds. The rule, fixed before any run: it takes
the place of `auto` for such models if the confirmation puts it surely ahead, and if on no other network of its kind
`auto` so changed is surely worse than before.

A row is of a model, a budget and a seed; `table` shows those of one seed. For a model that has changed since, give another
folder or another seed.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

import thetaleap as tl
from thetaleap.core.evaluation import Denoiser
from thetaleap.evaluation.choice import parse, read_grid
from thetaleap.evaluation.compare import Comparison
from thetaleap.evaluation.metrics.measured import Scattered
from thetaleap.evaluation.tune import tune
from thetaleap.evaluation.yardsticks import exact_sampling

from . import antibodies

NUMS = {
    **dict.fromkeys(("chain64", "chain2-64", "ising4x16", "tree31", "mixture32"), 1000),
    **{"sums": 256, "sapiens-vh": 256, "mnist": 64, "shakespeare": 64},
}
"""Samples of each contender; the quick models first."""
NETWORKS = ("sums", "sapiens-vh", "mnist", "shakespeare", "shakespeare-char")
BUDGETS = (4, 8, 16, 32)
SEED = 11
AUTO, TWEEDIE = "auto", "Tweedie()"


def contenders(model: Denoiser) -> dict[str, tl.Contender | str]:
    """`auto`, the default of the field, what `auto` chooses from, the paper's, and the surest first."""
    shape = getattr(model, "shape", None)
    plane = (shape[0], shape[1]) if shape is not None and len(shape) == 2 else None
    apart, even = tl.LowDiscrepancy(plane, "even"), tl.FixedCount("even")
    return {AUTO: AUTO} | {
        name: tl.Contender(solver)
        for name, solver in {
            TWEEDIE: tl.Tweedie(),
            "Tweedie, apart": tl.Tweedie(apart),
            "Multistep, random": tl.Multistep(planner=even),
            "Multistep, apart": tl.Multistep(planner=apart),
            "ExponentialTrapezoidal, apart": tl.ExponentialTrapezoidal(planner=apart),
            "Trapezoidal, the paper's": tl.Trapezoidal(rule="reject"),
            "Confidence": tl.Tweedie(tl.Confidence()),
        }.items()
    }


def candidates(model: Denoiser, texts: list[str]) -> dict[str, tl.Contender | str]:
    """`auto`, the default of the field, and solvers as text, each with its grid behind "on" if not the uniform one."""
    parts = {text: text.partition(" on ") for text in texts}
    made = {
        text: tl.Contender(parse(one), read_grid(model, grid or "uniform")) for text, (one, _, grid) in parts.items()
    }
    return {AUTO: AUTO, TWEEDIE: tl.Contender(tl.Tweedie())} | made


def load(name: str) -> Denoiser:
    return completion(name) if name == "sapiens-vh" else tl.load(name)


def completion(name: str) -> Denoiser:
    """The model of what follows the first residues of a heavy chain."""
    whole, given = antibodies.load(name), antibodies.GIVEN
    start, rest = antibodies.template(whole)[:given], whole.length - given

    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        chain = torch.cat([start.expand(len(x), -1), x], 1)
        positions = torch.arange(chain.numel()).view(chain.shape)[:, given:].flatten()
        return whole(chain, t).logits(positions).view(*x.shape, -1)

    return tl.from_network(whole.process, length=rest, network=network, time_free=True, shape=(rest,))


# --- run


@dataclass(frozen=True)
class Row:
    """One figure of one contender, and how much farther from the truth `auto` is by it."""

    model: str
    budget: int
    seed: int
    num: int
    contender: str
    solver: str
    nfe: float
    figure: str
    value: float
    error: float
    behind: float
    """The size of auto's figure less that of this one."""
    behind_error: float
    surely: int
    """1 where all figures together say that this one is better than `auto`, -1 where that it is worse."""


def rows(name: str, num: int, seed: int, result: Comparison) -> Iterator[Row]:
    ran = {row.contender: row for row in result.rows if row.figures}
    auto = ran[AUTO]
    for row in ran.values():
        surely = result.better(row, auto) - result.better(auto, row)
        for figure in result.ranking:
            value, behind = row.figures[figure], size(auto.figures[figure]) - size(row.figures[figure])
            told = name, int(row.budget or 0), seed, num, row.contender, row.solver, row.nfe or math.nan, figure
            yield Row(*told, value.value, value.error, behind.value, behind.error, surely)


def size(figure: Scattered) -> Scattered:
    return figure if figure.value >= 0 else -figure


def run(
    names: list[str], folder: Path, num: int | None, seed: int, budgets: list[int], texts: list[str] | None = None
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        model, count = load(name), num or NUMS[name]
        missing = [n for n in budgets if not any((r.model, r.budget, r.seed) == (name, n, seed) for r in read(folder))]
        for budget in missing:
            exact = reference(model, folder / f"{name}-{count}-{seed}.npy", count, seed) if name in NETWORKS else None
            who = candidates(model, texts) if texts else contenders(model)
            result = tl.compare(model, who, [budget], num=count, seed=seed, reference=exact)
            add(folder, list(rows(name, count, seed, result)))
            print(f"{name} at {budget}\n{result.text().split('Ranks go by')[0]}", flush=True)


def reference(model: Denoiser, path: Path, num: int, seed: int) -> torch.Tensor:
    """Exact samples, kept in a file."""
    if not path.exists():
        np.save(path, exact_sampling(model, max(BUDGETS)).draw(model, num, seed).numpy())
    return torch.from_numpy(np.load(path))


def search(names: list[str], folder: Path, num: int | None, seed: int, budgets: list[int]) -> None:
    """The best of many candidates for each model and budget, confirmed on other seeds; what is there is left as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, budget in ((name, budget) for name in names for budget in budgets):
        path = folder / f"{name}-{budget}-{seed}.json"
        if not path.exists():
            tuned = tune(load(name), budget, num=num or NUMS[name], seed=seed)
            tuned.save(path, name)
            print(f"{name} at {budget}\n{tuned.text()}", flush=True)


def read(folder: Path) -> list[Row]:
    path = folder / "auto.csv"
    if not path.exists():
        return []
    kinds = {one.name: {"int": int, "float": float, "str": str}[str(one.type)] for one in fields(Row)}
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(**{key: kinds[key](value) for key, value in line.items()}) for line in csv.DictReader(file)]


def add(folder: Path, more: list[Row]) -> None:
    """Whole or not at all."""
    part, every = folder / "auto.part", [*read(folder), *more]
    with part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in every)
    part.replace(folder / "auto.csv")


# --- the table


def table(found: list[Row]) -> str:
    """For each model and budget: auto's first figure, Tweedie's, and the best contender's if `auto` is behind it."""
    budgets = sorted({row.budget for row in found})
    lines = ["| model | " + " | ".join(map(str, budgets)) + " |", "|" + " --- |" * (len(budgets) + 1)]
    for name in dict.fromkeys(row.model for row in found):
        own = [[row for row in found if (row.model, row.budget) == (name, budget)] for budget in budgets]
        num, figure = next((part[0].num, part[0].figure) for part in own if part)
        lines.append(f"| `{name}`, {figure}, {num} | " + " | ".join(cell(part) if part else "" for part in own) + " |")
    return "\n".join(lines)


def cell(found: list[Row]) -> str:
    """``auto`` / ``Tweedie()``; in bold where auto is surely worse, with what it is behind by two standard errors."""
    first = {row.contender: row for row in found if row.figure == found[0].figure}
    told = " / ".join(f"{first[who].value:+.4f} ± {first[who].error:.4f}" for who in (AUTO, TWEEDIE))
    if first[TWEEDIE].surely > 0:
        told = f"**{told}**"
    ahead = [row for row in found if row.behind > 2 * row.behind_error and row.behind > 1e-12]
    return "; ".join(
        [told, *map(leader, sorted(ahead, key=lambda row: -row.behind / max(row.behind_error, 1e-300))[:1])]
    )


def leader(row: Row) -> str:
    """By how much `auto` is behind it."""
    sure = "surely" if row.surely > 0 else "perhaps"
    return f"{sure} behind {row.contender} by {row.behind:.4f} ± {row.behind_error:.4f} in {row.figure}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__)
    parser.add_argument("what", choices=["run", "table", "tune"])
    parser.add_argument("models", nargs="*", default=[], help=f"by default {', '.join(NUMS)}")
    parser.add_argument("--out", type=Path, required=True, help="the folder with auto.csv")
    parser.add_argument("--num", type=int, help="samples of each contender")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--candidate", action="append", default=[], help="run these beside auto and Tweedie() alone")
    given = parser.parse_intermixed_args()
    names = given.models or list(NUMS)
    torch.set_num_threads(1)
    if given.what == "run":
        run(names, given.out, given.num, given.seed, given.budgets, given.candidate)
    elif given.what == "tune":
        search(names, given.out, given.num, given.seed, given.budgets)
    else:
        print(table([row for row in read(given.out) if row.seed == given.seed and row.model in names]))


if __name__ == "__main__":
    main()
