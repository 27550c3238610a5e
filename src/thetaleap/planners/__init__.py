"""Planners, for masked processes: which positions are unmasked in a step, and how many.

For a masked model with exact conditionals the only error of a step is that positions unmasked together are drawn
independently of each other. So it matters which are unmasked together.
"""

from .base import Pace, Plan, Planner
from .bernoulli import Bernoulli
from .confidence import Confidence
from .counting import Counting, expected_counts
from .entropy import EntropyBounded
from .ordered import FixedCount, LowDiscrepancy

__all__ = [
    "Bernoulli",
    "Confidence",
    "Counting",
    "EntropyBounded",
    "FixedCount",
    "LowDiscrepancy",
    "Pace",
    "Plan",
    "Planner",
    "expected_counts",
]
