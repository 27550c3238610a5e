"""Experiments: one file per figure or table. Each writes its files to a folder and says what they show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature

from . import demo, everything, gsm8k, images, positivity, settings, sums, text, theta, toy, uniformization
from .rules import Report


@dataclass(frozen=True)
class Experiment:
    """A result of the paper that can be run again: see `pages.experiment` for what `run` takes."""

    about: str
    run: Callable[..., Report]

    @property
    def options(self) -> list[str]:
        """What `run` takes besides, by keyword: the network, its judge or data, and how they are run."""
        return list(signature(self.run).parameters)[1:]


BUILT_IN = {
    "toy": ("KL against steps on 15 states, with exact laws: tau-leaping, RK-2, Trapezoidal (figure 2)", toy.run),
    "uniformization": (
        "where exact simulation spends its evaluations, and where its quality settles (figure 1, left)",
        uniformization.run,
    ),
    "text": (
        "perplexity and entropy of text against evaluations, all solvers, beside the paper's tables (tables 1, 3 to 5)",
        text.run,
    ),
    "positivity": ("how many extrapolated intensities stay positive, against evaluations (table 6)", positivity.run),
    "theta": ("quality against theta for RK-2 and Trapezoidal, on text and on digits (figures 4 and 6)", theta.run),
    "images": (
        "distance from real images against evaluations, guidance 3, with grids of samples (figures 3, 5 and 7)",
        images.run,
    ),
    "sums": (
        "right answers to held-out word problems against evaluations: table 2 on a model that comes with the package",
        sums.run,
    ),
    "legacy": (
        "what the habits of published code do to perplexity, entropy and distance, one at a time",
        settings.run,
    ),
}
"""Those that need no model from elsewhere."""
EXPERIMENTS = {name: Experiment(*one) for name, one in BUILT_IN.items()}
EXPERIMENTS["gsm8k"] = Experiment(
    "right answers to GSM8K's questions, of a language model given by --model: Semi-AR and Trapezoidal (table 2)",
    gsm8k.run,
)
EXPERIMENTS["all"] = Experiment(
    "all of these but gsm8k, and one page with every table, figure and claim",
    partial(everything.run, experiments=BUILT_IN),
)

__all__ = ["EXPERIMENTS", "Experiment", "Report", "demo", "gsm8k", "toy", "uniformization"]
