"""What to use when, and why: the one place that `recommend`, the command line and the documents take it from.

Words and figures alone, without torch: `recommend` makes the solvers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """One kind of model and budget."""

    when: str
    """Which models and budgets."""
    solver: str
    """As it is written in Python."""
    reason: str
    """In a line."""
    evidence: str
    """What was measured."""
    grid: str = "uniform"


SHORT = 8
"""Below this many positions none lie far enough apart for their order to matter, and shares of them are coarse."""
FEW = 8
"""Below this, each evaluation is a step of its own: at 4 that measured better on trained networks than two evaluations per
step, and at 8 both were within the error. Budgets between were not measured."""
BUDGET = 32
"""Evaluations of a sample, unless told otherwise."""

ADVICE = {
    "moving": Advice(
        "without masks (uniform and general processes)",
        "Multistep()",
        "Without masks, extrapolated exact kernels on a grid that is fine near the data measured best.",
        "On cube3-uniform the KL is 0.0053 at 4 evaluations and 0.000011 at 16, against 0.027 and 0.0020 for Tweedie and "
        "0.052 and 0.0016 for the paper's Trapezoidal on the same grid.",
        "alpha_power(schedule)",
    ),
    "single": Advice(
        "masked, at least one evaluation per position",
        "Tweedie(FixedCount('even'))",
        "The budget is enough to unmask one position at a time, which is exact.",
        "The KL is below 1e-12 on every small oracle: the error that remains is the model's own.",
    ),
    "network on a line": Advice(
        f"masked networks of text and other sequences, {FEW} evaluations or more",
        "ExponentialTrapezoidal(planner=LowDiscrepancy(schedule='even'))",
        "Along a line, positions far apart and a second evaluation per step measured nearest to exact sampling.",
        "At 8 evaluations the network's own bound on -log p is that of exact samples within the error: -0.03 +- 0.07 nats per "
        "token on Shakespeare's plays in byte pairs, where Tweedie has 0.62 +- 0.08, and -0.005 +- 0.018 completing an antibody "
        "with Sapiens. On text of characters, over 4, 8 and 16 evaluations, it was nearer to exact sampling than Multistep with "
        "positions far apart, by 0.046 +- 0.009 bits per token.",
    ),
    "few on a line": Advice(
        f"the same, below {FEW} evaluations",
        "Multistep(planner=LowDiscrepancy(schedule='even'))",
        "Along a line, positions drawn together should lie far apart; so few evaluations take a step each.",
        "At 4, on seeds that no search had seen, the network's own bound on -log p above that of exact samples, in nats per "
        "token: completing an antibody with Sapiens 0.007 +- 0.008, against 0.021 +- 0.007 for ExponentialTrapezoidal with "
        "positions far apart and 0.123 +- 0.009 for Tweedie; Shakespeare's plays in byte pairs 0.13 +- 0.03, 0.18 +- 0.03 and "
        "1.29 +- 0.04, the first surely ahead. Other budgets below 8 were not measured.",
    ),
    "oracle on a line": Advice(
        "masked models with exact conditionals, on a line",
        "Tweedie(LowDiscrepancy(schedule='even'))",
        "Along a line, positions drawn together should lie far apart.",
        "On chain64 at 4 evaluations the KL of neighbouring pairs is 0.0010, against 0.40 for Tweedie and 0.61 for the "
        "paper's Trapezoidal. Where positions depend on more than their neighbours, as on chain2-64, Multistep with positions "
        "far apart is ahead at 4, by 0.15 nats per token; from 8 on it is not.",
    ),
    "short": Advice(
        f"masked, fewer than {SHORT} positions on a line or in a plane",
        "Multistep(planner=FixedCount('even'))",
        f"Of fewer than {SHORT} positions none lie far apart; extrapolation in random order measured best.",
        "On 24 chains of 5 binary positions, at 3 evaluations, its KL is 42 times below Tweedie's in the median, that of "
        "LowDiscrepancy 2.6 times.",
    ),
    "plane": Advice(
        "masked, positions in a plane (images)",
        "Multistep(planner=FixedCount('cosine'))",
        "In the plane, extrapolation in random order, few positions first and many last, measured best.",
        "On seeds that no search had seen, the digits' own bound on -log p above that of exact samples, in nats per token at 4, 8 "
        "and 16 evaluations: 0.260 +- 0.015, 0.101 +- 0.012 and 0.014 +- 0.008, against 0.52, 0.27 and 0.15 with even counts and "
        "0.54, 0.28 and 0.15 for Tweedie, each +- 0.02. Their squared Frechet distance from real digits at 12 and 24 is 13.6 +- 1.9 "
        "and 11.9 +- 2.3, that of the paper's Trapezoidal at its best theta 40 +- 4 and 20 +- 3. On ising4x16 it is surely ahead "
        "of even counts at 4, though its samples are a little too likely there, and level with them from 8 on.",
    ),
    "anyhow": Advice(
        "masked, no known geometry",
        "Multistep(planner=FixedCount('even'))",
        "Where no order is known to keep dependent positions apart, extrapolation in random order measured best.",
        "On mixture32 at 4 evaluations 0.037 nats per token above the entropy, against 0.102 for Tweedie and 0.093 for the "
        'paper\'s Trapezoidal. If the positions lie on a line, as in text, say geometry="line": that is worth more.',
    ),
}
