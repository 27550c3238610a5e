"""Training: losses and what they bound."""

from .losses import masked_bound, noised, score_entropy

__all__ = ["masked_bound", "noised", "score_entropy"]
