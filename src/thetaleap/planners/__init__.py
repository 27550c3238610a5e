"""Planners, for masked processes: which positions are unmasked in a step, and how many.

For a masked model with exact conditionals the only error of a step is that positions unmasked together are drawn
independently of each other. So it matters which are unmasked together.
"""

from .base import Pace, Plan, Planner
from .bernoulli import Bernoulli
from .confidence import Confidence, EntropyConfidence, MarginConfidence
from .counting import Counting, expected_counts
from .entropy import EntropyBounded
from .klass import KLASS
from .ordered import Dilated, FixedCount, LowDiscrepancy
from .threshold import Factor, Threshold

__all__ = [
    "KLASS",
    "Bernoulli",
    "Confidence",
    "Counting",
    "Dilated",
    "EntropyBounded",
    "EntropyConfidence",
    "Factor",
    "FixedCount",
    "LowDiscrepancy",
    "MarginConfidence",
    "Pace",
    "Plan",
    "Planner",
    "Threshold",
    "expected_counts",
]
