"""Metrics: pure functions from samples and laws to numbers."""

from .divergence import (
    bootstrap_kl,
    bootstrap_kls,
    frequencies,
    histogram,
    kl,
    loglog_slope,
    noise_floor,
    total_variation,
)
from .measured import interval
from .text import Divergence, TextQuality, distinct, ngram_divergence, repetition, unigram_entropy

__all__ = [
    "Divergence",
    "TextQuality",
    "bootstrap_kl",
    "bootstrap_kls",
    "distinct",
    "frequencies",
    "histogram",
    "interval",
    "kl",
    "loglog_slope",
    "ngram_divergence",
    "noise_floor",
    "repetition",
    "total_variation",
    "unigram_entropy",
]
