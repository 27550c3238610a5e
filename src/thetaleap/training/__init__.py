"""Training: losses and what they bound."""

from ..core.bounds import noised
from .losses import masked_bound, score_entropy

__all__ = ["masked_bound", "noised", "score_entropy"]
