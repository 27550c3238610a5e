"""What a tolerance asks for, and what it gets: error and evaluations on ten oracles of each kind.

With masks the error is the KL of paths, per position, by true sequences; without, it is summed over the whole space.
"""

from __future__ import annotations

import torch

import thetaleap as tl
from tests.control.test_tolerance import UNIFORM, forced, path_divergence

TOLERANCES = (0.1, 0.03, 0.01, 0.003)
LONG = ("chain64", "chain2-64", "ising4x16", "tree31", "mixture32")
DRAWS = 1000


def main() -> None:
    torch.set_num_threads(1)
    print(f"with masks: error / tolerance (evaluations), {DRAWS} true sequences")
    for name in LONG:
        for scale in (0.0, 0.3):
            model = tl.load(name)
            row = []
            for tolerance in TOLERANCES:
                asked = tl.oracles.noisy(model, scale) if scale else model
                error, _ = forced(asked, model.draw(DRAWS, seed=3), tolerance)
                nfe = tl.sample(asked, tl.Tweedie(tl.FixedCount()), tolerance=tolerance, num=200).nfe.double().mean()
                row.append(f"{error / tolerance:.2f} ({float(nfe):.1f})")
            print(f"{name + (f', noise {scale}' if scale else ''):>24}: " + ", ".join(row))
    print("without masks: error / tolerance (steps), exact")
    for name, model in UNIFORM.items():
        row = []
        for tolerance in TOLERANCES:
            grid = tl.grids.adaptive(model, tolerance)
            row.append(f"{path_divergence(model, grid) / model.length / tolerance:.2f} ({len(grid) - 1})")
        print(f"{name:>24}: " + ", ".join(row))


if __name__ == "__main__":
    main()
