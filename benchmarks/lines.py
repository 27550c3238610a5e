"""Which solver to recommend for trained masked networks on a line: low discrepancy, alone and under two extrapolations.

Text of `shakespeare-char`, judged by `plays`, and heavy chains of `sapiens-vh` as in `benchmarks.antibodies`, on seeds that
no other table has used. Two rules, fixed before the first run: another contender takes the place of the default, which
was `Multistep(planner=LowDiscrepancy())`, if its bits per token are nearer those of exact sampling, on average over the
budgets and by two standard errors, and if its pairs of residues are not further from exact sampling by two standard
errors. The outcome is in docs/antibodies.md.
"""

from __future__ import annotations

import argparse
import math

import torch

import thetaleap as tl
from thetaleap.evaluation.judges.causal import judge
from thetaleap.evaluation.metrics import TextQuality
from thetaleap.evaluation.metrics.sequences import Measured, frequency_distance, frequency_gap
from thetaleap.reproduction.text import texts_of
from thetaleap.solvers import Solver

from . import antibodies

FORMER = "Multistep(planner=LowDiscrepancy())"
CONTENDERS: dict[str, Solver] = {
    FORMER: tl.Multistep(planner=tl.LowDiscrepancy()),
    "Multistep(weight=0.25, planner=LowDiscrepancy())": tl.Multistep(weight=0.25, planner=tl.LowDiscrepancy()),
    "ExponentialTrapezoidal(planner=LowDiscrepancy())": tl.ExponentialTrapezoidal(planner=tl.LowDiscrepancy()),
    "Tweedie(LowDiscrepancy())": tl.Tweedie(tl.LowDiscrepancy()),
}
BUDGETS, RESIDUE_BUDGETS = (4, 8, 16), (4, 8)
SEED, REFERENCE_SEED = 101, 102


def bits(quality: TextQuality) -> Measured:
    likely = quality.perplexity
    return Measured(math.log2(likely.value), likely.error / likely.value / math.log(2))


def text(num: int, exact: int) -> None:
    """Perplexity and entropy of each, and how far its bits are from those of exact sampling."""
    model, critic = tl.load("shakespeare-char"), judge("plays")

    def drawn(solver: Solver, nfe: int, num: int, seed: int) -> TextQuality:
        out = tl.sample(model, solver, nfe=nfe, num=num, seed=seed, batch_size=32, progress=False)
        scores = critic.score(texts_of(model, out.x))
        return TextQuality.of(scores.rows, scores.nats)

    truth = drawn(tl.Tweedie(tl.FixedCount()), model.length, exact, REFERENCE_SEED)
    print(f"exact, {model.length}: perplexity {truth.perplexity}, entropy {truth.entropy}", flush=True)
    far: dict[str, list[Measured]] = {name: [] for name in CONTENDERS}
    for nfe in BUDGETS:
        for name, solver in CONTENDERS.items():
            found = drawn(solver, nfe, num, SEED)
            gap = Measured(bits(found).value - bits(truth).value, bits(found).error)
            far[name].append(gap)
            figures = f"perplexity {found.perplexity}, entropy {found.entropy}, {gap.value:+.3f} bits"
            print(f"{nfe:4} {name:50} {figures}", flush=True)
    for name, gaps in far.items():
        away, nearer = mean_distance(gaps, [], bits(truth).error), mean_distance(far[FORMER], gaps, bits(truth).error)
        print(f"     {name:50} {away} bits away on average, {nearer} nearer than the first")


def mean_distance(gaps: list[Measured], others: list[Measured], reference: float) -> Measured:
    """The mean of the gaps' sizes, less that of the others', if all are from one truth with an error of `reference`."""
    signed = [(gap, math.copysign(1, gap.value)) for gap in gaps]
    signed += [(gap, -math.copysign(1, gap.value)) for gap in others]
    value = sum(sign * gap.value for gap, sign in signed)
    shared = abs(sum(sign for _, sign in signed)) * reference  # cancels where both are on one side of the truth
    return Measured(value / len(gaps), math.hypot(shared, *(gap.error for gap, _ in signed)) / len(gaps))


def residues(num: int, exact: int) -> None:
    """Distance of pair frequencies from exact sampling, in thousandths, and how much above the first contender's."""
    model = antibodies.load("sapiens-vh")
    given = antibodies.template(model)

    def drawn(solver: Solver, nfe: int | None, num: int, seed: int) -> torch.Tensor:
        return tl.sample(model, solver, nfe=nfe, num=num, seed=seed, template=given, progress=False).x

    truth = drawn(tl.FirstHitting(), None, exact, REFERENCE_SEED)
    for nfe in RESIDUE_BUDGETS:
        samples = {name: drawn(solver, nfe, num, SEED) for name, solver in CONTENDERS.items()}
        for name, x in samples.items():
            away = frequency_distance(x, truth, "pairs", antibodies.FREE)
            more = frequency_gap(x, samples[FORMER], truth, "pairs", antibodies.FREE)
            values = [f"{1e3 * found.value:.2f} ± {1e3 * found.error:.2f}" for found in (away, more)]
            print(f"{nfe:4} {name:50} {values[0]} thousandths, {values[1]} more than the first", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=256, help="samples of each")
    parser.add_argument("--exact", type=int, default=128, help="texts by exact sampling; four times as many chains")
    options = parser.parse_args()
    residues(2 * options.num, 4 * options.exact)
    text(options.num, options.exact)


if __name__ == "__main__":
    main()
