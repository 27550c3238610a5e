"""Do correctors pay at equal evaluations? Below one evaluation per position, and beyond.

Rules, fixed before the run:

- The candidates are those of `uncorrected` and `corrected` below, all at the same budget of evaluations, as `sample`
  and `exact.law` plan it.
- Where the law is exact, the best of each side is the one of least KL from the truth. Where it is sampled, the best is
  found with seed 0 on 2,000 samples, and its KL is that of 20,000 fresh samples with seed 1.
- Correctors pay at a budget if the best corrected scheme is at least 2 times below the best uncorrected one; of sampled
  figures with the ends of their 95% intervals.
- Beyond one evaluation per position the yardstick is one position at a time. Correctors pay if they are nearer to the
  truth: of exact laws in KL, of text by more than two standard errors of the difference, in bits per character of the
  judge from that of held-out text, with the entropy of characters beside it. The best setting is drawn again, on twice as
  many samples of fresh seeds.

`python -m benchmarks.correctors exact|sampled|noisy|uniform|text FILE [NUM SEED ONLY]|figure`; results are kept in runs/correctors.json, and
`figure` draws docs/correctors.png from it.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import thetaleap as tl
from thetaleap.evaluation.metrics import kl, ngram_divergence, total_variation, unigram_entropy
from thetaleap.evaluation.yardsticks import true_law
from thetaleap.sampling import plan
from thetaleap.solvers import Corrector, Solver

KEPT, FIGURE = Path("runs") / "correctors.json", Path("docs") / "correctors.png"
EVEN = tl.FixedCount("even")
FEW, MANY = 2000, 20_000
CHARACTERS = 2.42
"""Of one byte pair of `shakespeare`, in the mean."""
CORRECTORS: list[Corrector] = [
    *(tl.Gibbs(1), tl.Gibbs(2), tl.Gibbs(1, tl.LowDiscrepancy()), tl.Gibbs(2, tl.LowDiscrepancy())),
    *(tl.Informed(1), tl.Informed(2), tl.Informed(1, "confidence")),
]
REMASKING: list[Solver] = [
    *(tl.ReMDM("cap", 0.1), tl.ReMDM("cap", 0.3), tl.ReMDM("rescale", 0.2), tl.ReMDM("rescale", 0.6)),
    *(tl.ReMDM("confidence"), tl.ReMDM("loop", 0.1)),
]
PREDICTORS: list[Solver] = [
    tl.Tweedie(EVEN),
    tl.Tweedie(tl.LowDiscrepancy(schedule="even")),
    tl.Tweedie(tl.Confidence(schedule="even")),
    tl.Multistep(planner=EVEN),
]


def uncorrected(model: Any) -> list[tuple[Solver, Any]]:
    """Solvers with their grids: None is the uniform one."""
    shape = model.shape
    plane = [tl.Tweedie(tl.LowDiscrepancy(shape, "even"))] if shape is not None and len(shape) == 2 else []
    others = [tl.Tweedie(), tl.ExponentialTrapezoidal(planner=EVEN), *plane]
    return [*((solver, None) for solver in (*PREDICTORS, *others)), (tl.Tweedie(tl.FixedCount()), tl.grids.cosine)]


def corrected(budget: int, few: bool = False) -> Iterator[tuple[Solver, Any]]:
    """Sweeps after every step, or after the last one alone: one, or for half of the budget; and re-masking. With `few`,
    three predictors and three correctors; from 4 evaluations on two predictors, without re-masking, as memories and masks
    that come back make an exact law of 6 positions take more than ten minutes."""
    quick = few and budget > 3
    yield from () if quick else ((solver, None) for solver in REMASKING)
    some = PREDICTORS[:1] if quick else [PREDICTORS[0], PREDICTORS[3]] if few else PREDICTORS
    for predictor, grid in [*((one, None) for one in some), (tl.Tweedie(tl.FixedCount()), tl.grids.cosine)]:
        for corrector in (tl.Gibbs(1), tl.Gibbs(2), tl.Informed(1)) if few else CORRECTORS:
            if budget > 1:
                yield tl.Corrected(predictor, corrector), grid
            for sweeps in sorted({1, budget // 2} & set(range(1, budget))):
                yield tl.Corrected(predictor, corrector, every=budget - sweeps, sweeps=sweeps), grid


def family(solver: Solver) -> str:
    """What a scheme is a case of."""
    return type(solver.corrector).__name__ if isinstance(solver, tl.Corrected) else type(solver).__name__


def keep(key: str, value: Any) -> None:
    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps({**found, key: value}, indent=1))


# --- exact laws


def divergence(model: Any, solver: Solver, budget: int, truth: torch.Tensor, grid: Any = None) -> float:
    """KL of the truth from the law of the samples; infinite where the budget is too small."""
    return figures(model, solver, budget, truth, grid)[0]


def figures(
    model: Any, solver: Solver, budget: int, truth: torch.Tensor, grid: Any = None
) -> tuple[float, float, float]:
    """KL and total variation of the truth from the law of the samples, and the entropy lost; infinite where the budget
    is too small."""
    try:
        law = tl.exact.law(model, solver, plan(model, solver, nfe=budget, grid=grid))
    except ValueError:
        return math.inf, math.inf, math.inf
    lost = float(torch.xlogy(law, law).sum() - torch.xlogy(truth, truth).sum())
    return max(0.0, kl(truth, law)), total_variation(truth, law), lost


def best(rows: list[tuple[tuple[float, float, float], str, str]]) -> dict[str, Any]:
    (least, variation, lost), name, kind = min(rows)
    return {"kl": least, "tv": variation, "entropy lost": lost, "solver": name, "family": kind}


def exact(name: str, model: Any, budgets: list[int], few: bool = False) -> None:
    truth, found = true_law(model), {}
    for budget in budgets:
        begin = time.time()
        plainly = [
            (figures(model, solver, budget, truth, grid), repr(solver), "plain") for solver, grid in uncorrected(model)
        ]
        mended = [
            (figures(model, solver, budget, truth, grid), repr(solver), family(solver))
            for solver, grid in corrected(budget, few)
        ]
        kinds = {kind: best([row for row in mended if row[2] == kind]) for kind in {row[2] for row in mended}}
        found[budget] = {"plain": best(plainly), "corrected": best(mended), "families": kinds}
        sides = (found[budget]["plain"], found[budget]["corrected"])
        told = (f"{s['kl']:.3g}, TV {s['tv']:.2g}, lost {s['entropy lost']:.2g}, {s['solver']}" for s in sides)
        print(
            f"{name}, {budget}: {' | '.join(told)} | " + ", ".join(f"{k} {v['kl']:.3g}" for k, v in kinds.items()),
            f"({time.time() - begin:.0f} s)",
            flush=True,
        )
        keep(name, found)


# --- sampled laws


def rule_kl(model: Any, x: torch.Tensor) -> tuple[float, float]:
    """KL of a uniform law on the sequences that keep a rule, and its standard error.

    For permutations it is ``-log P(kept)``: relabelling the values leaves model and solvers the same, so that those kept
    are equally likely. For listed sequences it is taken from how often each was drawn.
    """
    if isinstance(model, tl.oracles.Shuffle):
        share = max(float(model.allowed(x).double().mean()), 0.5 / len(x))
        return -math.log(share), math.sqrt((1 - share) / share / len(x))
    count = torch.stack([(x == row).all(1).sum() for row in model.sequences]).double()
    p = count / len(x)
    if bool((count == 0).any()):
        return math.inf, math.inf
    n = len(model.sequences)
    value = float(-math.log(n) - p.log().mean())
    return value - float((1 / p - 1).mean()) / (2 * len(x)), float(
        ((1 / p).sum() / n**2 - 1).clamp_min(0) / len(x)
    ) ** 0.5


def sampled(name: str, model: Any, budgets: list[int]) -> None:
    found = {}
    for budget in budgets:
        begin, sides = time.time(), {"plain": uncorrected(model), "corrected": list(corrected(budget))}
        row: dict[str, Any] = {}
        for side, candidates in sides.items():
            tried = []
            for solver, grid in candidates:
                try:
                    x = tl.sample(model, solver, nfe=budget, grid=grid, num=FEW, seed=0).x
                    tried.append((rule_kl(model, x)[0], repr(solver), solver, grid))
                except ValueError:
                    continue
            _, told, solver, grid = min(tried, key=lambda one: one[:2])
            value, error = rule_kl(model, tl.sample(model, solver, nfe=budget, grid=grid, num=MANY, seed=1).x)
            row[side] = {"kl": value, "error": error, "solver": told}
            kinds = {family(solver) for _, _, solver, _ in tried} if side == "corrected" else set()
            row["families"] = {kind: {"kl": min(one[0] for one in tried if family(one[2]) == kind)} for kind in kinds}
        found[budget] = row
        print(
            f"{name}, {budget}: "
            + " | ".join(f"{row[s]['kl']:.3g} ± {row[s]['error']:.2g} {row[s]['solver']}" for s in sides),
            {kind: round(one["kl"], 3) for kind, one in row["families"].items()},
            f"({time.time() - begin:.0f} s)",
            flush=True,
        )
        keep(name, found)


# --- imperfect models, beyond one evaluation per position


def beyond(length: int, budget: int) -> dict[str, Solver]:
    """One position at a time, and what to do with evaluations beyond that."""
    one, spare = tl.Tweedie(EVEN), budget - length
    known: dict[str, Solver] = {"one at a time": one}
    if spare > 0:
        known |= {
            "Gibbs at the end": tl.Corrected(one, tl.Gibbs(), every=length, sweeps=spare),
            "Gibbs between": tl.Corrected(one, tl.Gibbs(), sweeps=spare // length),
            "Gibbs, low discrepancy, at the end": tl.Corrected(
                one, tl.Gibbs(planner=tl.LowDiscrepancy()), every=length, sweeps=spare
            ),
            "Informed at the end": tl.Corrected(one, tl.Informed(), every=length, sweeps=spare),
            "ReMDM cap 0.1": tl.ReMDM("cap", 0.1),
            "ReMDM loop 0.1": tl.ReMDM("loop", 0.1),
        }
    return known


def noisy(name: str, model: Any, scale: float, seeds: int = 2) -> None:
    """KL of the truth from the law of samples of a model with errors: the mean over several draws of the errors."""
    truth, length = true_law(model), model.length
    found: dict[str, dict[str, float]] = {}
    for budget in (length // 2, length, 2 * length, 4 * length):
        for key, solver in beyond(length, budget).items():
            laws = [divergence(tl.oracles.noisy(model, scale, seed), solver, budget, truth) for seed in range(seeds)]
            found.setdefault(key, {})[str(budget)] = sum(laws) / seeds
            print(
                f"{name}, errors {scale}, {budget}: {key} {sum(laws) / seeds:.4g}",
                [f"{one:.3g}" for one in laws],
                flush=True,
            )
    keep(f"{name}, errors {scale}", found)


# --- processes without masks


def uniform(budgets: list[int]) -> None:
    model = tl.load("cube3-uniform")
    truth, grid = true_law(model), tl.grids.alpha_power(model.process.schedule, 2.0)
    gibbs = tl.Gibbs(planner=tl.LowDiscrepancy())
    solvers: list[Solver] = [
        *(
            tl.Tweedie(),
            tl.Multistep(),
            tl.Corrected(),
            tl.Corrected(tl.Multistep()),
            tl.Corrected(tl.Multistep(), gibbs),
        ),
        *(
            tl.Corrected(tl.Tweedie(), tl.Informed()),
            tl.Psi("constant", 0.1),
            tl.Psi("rescale", 0.05),
            tl.Psi("cap", 0.05),
        ),
    ]
    rows = {repr(s): [divergence(model, s, budget, truth, grid) for budget in budgets] for s in solvers}
    for budget in budgets:
        half = tl.Corrected(tl.Multistep(), tl.Gibbs(), every=budget // 2, sweeps=budget // 2)
        rows.setdefault("Multistep, Gibbs at the end", []).append(divergence(model, half, budget, truth, grid))
    for key, values in rows.items():
        print(key, [f"{value:.3g}" for value in values], flush=True)
    keep("cube3-uniform", {"budgets": budgets, "rows": rows})


# --- text


def text(file: Path, num: int = 32, seed: int = 0, only: str = "") -> None:
    """Samples of the network `shakespeare` at its own length, judged by the n-grams that come with the package: one position
    at a time, and correctors whose name begins with `only`."""
    from thetaleap.evaluation.judges import ngram

    judge, model, plays = ngram.load(), tl.load("shakespeare"), file.read_text()
    held, length = plays[-ngram.card()["held-out characters"] :], model.length
    letters = round(model.length * CHARACTERS)
    real = [judge.encode(held[n : n + letters]) for n in range(0, len(held) - letters, letters)]

    def judged(rows: list[list[int]], others: list[list[int]]) -> dict[str, float]:
        bits = judge.nats(rows) / torch.tensor([len(row) for row in rows]) / math.log(2)
        entropy, error = unigram_entropy(rows), float(bits.std()) / len(rows) ** 0.5
        spread = {"entropy": entropy.value, "entropy error": entropy.error}
        return {"bits": float(bits.mean()), "error": error, **spread, "js": ngram_divergence(rows, others, 3).js.value}

    found: dict[str, Any] = {"held-out": judged(real[:num], real[num:]) | {"bits": judged(real, real)["bits"]}}
    print("held-out text:", {k: round(v, 4) for k, v in found["held-out"].items()}, flush=True)
    for factor in (1, 2, 4):
        spare = (factor - 1) * length
        one = tl.Tweedie(EVEN)
        cases: dict[str, Solver] = (
            {"one at a time": one}
            if factor == 1
            else {
                "Gibbs(1) at the end": tl.Corrected(one, tl.Gibbs(), every=length, sweeps=spare),
                "Gibbs(4, low discrepancy) at the end": tl.Corrected(
                    one, tl.Gibbs(4, tl.LowDiscrepancy()), every=length, sweeps=spare
                ),
                "ReMDM('loop')": tl.ReMDM("loop"),
            }
        )
        for key, solver in cases.items():
            if factor > 1 and not key.startswith(only):
                continue
            begin = time.time()
            out = tl.sample(model, solver, nfe=factor * length, num=num, seed=seed + factor, progress=False)
            figure = judged([judge.encode(one) for one in out.text], real)
            figure["nfe"] = float(out.nfe.double().mean())
            found[f"{key}, {factor}"] = figure
            print(f"{key}, {factor} per position:", {k: round(v, 4) for k, v in figure.items()}, end=" ")
            print(f"({time.time() - begin:.0f} s)", flush=True)
            keep(f"text, seed {seed}", found)


# --- the figure


def figure() -> None:
    """Quality against evaluations, below and beyond one per position: a permutation, and a trained network."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    found = json.loads(KEPT.read_text())
    picture, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    row = found["shuffle(8)"]
    for side, label, colour in (("plain", "best without a corrector", "k"), ("corrected", "best with one", "C3")):
        points = [(int(budget) / 8, one[side]["kl"]) for budget, one in row.items() if one[side]["kl"] > 1e-9]
        left.plot(*zip(*points, strict=True), marker="o", color=colour, label=label)
    left.set(title="A random permutation of 8: correctors pay", ylabel="KL, nats", yscale="log")
    left.legend(frameon=False)
    told, base = found["text, seed 0"], found["text, seed 0"]["one at a time, 1"]
    real = told["held-out"]["bits"]
    right.errorbar([1], [base["bits"] - real], 2 * base["error"], marker="o", color="k", label="one position at a time")
    right.axhline(base["bits"] - real, color="k", linewidth=1)
    shown = {
        "Gibbs(1) at the end": ("C0", 0.97),
        "Gibbs(4, low discrepancy) at the end": ("C3", 1.0),
        "ReMDM('loop')": ("C2", 1.03),
    }
    for key, (colour, aside) in shown.items():
        rows = [told[f"{key}, {factor}"] for factor in (2, 4)]
        above, spread = [row["bits"] - real for row in rows], [2 * row["error"] for row in rows]
        right.errorbar([2 * aside, 4 * aside], above, spread, marker="o", color=colour, label=key)
    right.set(
        title="Text of shakespeare: sweeps of four positions help",
        ylabel="bits per character above held-out text",
        xscale="log",
    )
    right.axhline(0, color="0.6", linestyle=":", linewidth=1)
    right.set_ylim(bottom=-0.17)
    right.set_xticks([1, 2, 4], ["1", "2", "4"])
    right.minorticks_off()
    right.legend(frameon=False, loc="lower left", fontsize="small")
    for panel in (left, right):
        panel.set_xlabel("evaluations per position")
        panel.spines[["top", "right"]].set_visible(False)
    picture.savefig(FIGURE, dpi=150)


def main(what: str, *rest: str) -> None:
    if what == "exact":
        exact("shuffle(4)", tl.oracles.shuffle(4), [2, 3, 4])
        exact("ising(2, 2, 0.8)", tl.oracles.ising(2, 2, 0.8), [2, 3])
        exact("ising(2, 3, 0.8)", tl.oracles.ising(2, 3, 0.8), [2, 3, 4, 5], few=True)
    elif what == "sampled":
        sampled("shuffle(8)", tl.oracles.shuffle(8), [2, 3, 4, 6])
        sampled("latin(3)", tl.oracles.latin(3), [5, 7])
    elif what == "noisy":
        for scale in (0.2, 0.5):
            noisy("cube3", tl.load("cube3"), scale)
        for scale in (0.2, 0.5):
            noisy("ising(2, 2, 0.8)", tl.oracles.ising(2, 2, 0.8), scale)
    elif what == "uniform":
        uniform([4, 8, 16])
    elif what == "text":
        file, num, seed, only = (*rest, *("32", "0", "")[len(rest) - 1 :])
        text(Path(file), int(num), int(seed), only)
    else:
        figure()


if __name__ == "__main__":
    main(*sys.argv[1:])
