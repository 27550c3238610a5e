"""Do ranks without the truth agree with it? On oracles both are known: ``python -m benchmarks.statistics``.

Contenders are compared twice on each oracle: by the truth (exact laws, or likelihood and pairs), and as if it were a network,
by samples of the model itself. Printed: of all ordered pairs of contenders, those that the truth surely ranks, those that
the blind comparison surely ranks, those in which they agree, and those in which they say the opposite.
"""

from __future__ import annotations

import sys

import thetaleap as tl
from thetaleap.evaluation.compare import Comparison, compare, default_contenders

MODELS = {"chain64": 8, "chain2-64": 8, "ising4x16": 8, "mixture32": 4, "tree31": 4, "cube3": 3, "cube3-uniform": 4}
NUMS = (64, 200, 1000)


def relations(comparison: Comparison) -> set[tuple[str, str]]:
    """Who is surely better than whom."""
    ran = [row for row in comparison.rows if row.figures and row.budget]
    return {(a.contender, b.contender) for a in ran for b in ran if comparison.better(a, b)}


def main(names: list[str]) -> None:
    print(f"{'model':14} {'nfe':>4} {'samples':>8} {'truth':>6} {'blind':>6} {'agree':>6} {'opposite':>9}")
    totals: dict[int, list[int]] = {}
    for name in names or MODELS:
        model, budget = tl.load(name), MODELS[name]
        contenders = {
            key: one for key, one in default_contenders(model).items() if key not in ("first-hitting", "uniformization")
        }
        known = relations(compare(model, contenders, [budget], seed=1, progress=False))
        for num in NUMS:
            told = relations(compare(model, contenders, [budget], num=num, seed=2, reference="model", progress=False))
            opposite = {(b, a) for a, b in told} & known
            counts = [len(known), len(told), len(told & known), len(opposite)]
            totals[num] = [a + b for a, b in zip(totals.get(num, [0] * 4), counts, strict=True)]
            print(
                f"{name:14} {budget:4} {num:8} {counts[0]:6} {counts[1]:6} {counts[2]:6} {counts[3]:9}",
                *opposite,
                flush=True,
            )
    for num, counts in totals.items():
        print(f"{'all':14} {'':4} {num:8} {counts[0]:6} {counts[1]:6} {counts[2]:6} {counts[3]:9}")


if __name__ == "__main__":
    main(sys.argv[1:])
