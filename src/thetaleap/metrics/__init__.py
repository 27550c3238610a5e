"""Metrics: pure functions from samples and laws to numbers."""

from .divergence import (
    bootstrap_kl,
    bootstrap_kls,
    frequencies,
    histogram,
    interval,
    kl,
    loglog_slope,
    noise_floor,
    total_variation,
)

__all__ = [
    "bootstrap_kl",
    "bootstrap_kls",
    "frequencies",
    "histogram",
    "interval",
    "kl",
    "loglog_slope",
    "noise_floor",
    "total_variation",
]
