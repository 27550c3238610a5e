"""Experiments: one file per figure or table. Each writes its files to a folder and says what they show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from . import demo, everything, gsm8k, images, positivity, sums, text, theta, toy, uniformization
from .rules import Report


@dataclass(frozen=True)
class Experiment:
    """A result of the paper that can be run again.

    ``run(folder, *, num=None, seed=0, progress=None)`` writes to `folder`, which is made; `num` samples, by default
    as many as the experiment calls for; a progress bar by default if standard error is a terminal.
    """

    about: str
    run: Callable[..., Report]
    options: tuple[str, ...] = ()
    """What `run` takes besides, by keyword: the network, its judge or data, and how they are run."""


def _one(about: str, run: Callable[..., Report], options: str = "") -> Experiment:
    return Experiment(about, run, tuple(options.split()))


EXPERIMENTS: dict[str, Experiment] = {
    "toy": _one("KL against steps on 15 states, with exact laws: tau-leaping, RK-2, Trapezoidal (figure 2)", toy.run),
    "uniformization": _one(
        "where exact simulation spends its evaluations, and where its quality settles (figure 1, left)",
        uniformization.run,
    ),
    "text": _one(
        "perplexity and entropy of text against evaluations, all solvers, beside the paper's tables (tables 1, 3 to 5)",
        text.run,
        "model judge budgets legacy batch_size device dtype",
    ),
    "positivity": _one(
        "how many extrapolated intensities stay positive, against evaluations (table 6)",
        positivity.run,
        "model budgets device dtype",
    ),
    "theta": _one(
        "quality against theta for RK-2 and Trapezoidal, on text and on digits (figures 4 and 6)",
        theta.run,
        "model judge budgets batch_size device dtype",
    ),
    "images": _one(
        "distance from real images against evaluations, guidance 3, with grids of samples (figures 3, 5 and 7)",
        images.run,
        "model vqgan reference data guidance budgets batch_size device",
    ),
    "sums": _one(
        "right answers to held-out word problems against evaluations: table 2 on a model that comes with the package",
        sums.run,
        "model budgets batch_size",
    ),
    "gsm8k": _one(
        "right answers to GSM8K's questions, of a language model given by --model: Semi-AR and Trapezoidal (table 2)",
        gsm8k.run,
        "model data batch_size device dtype trust_remote_code",
    ),
}

BUILT_IN = {name: (one.about, one.run) for name, one in EXPERIMENTS.items() if name != "gsm8k"}
"""Those that need no model from elsewhere."""

EXPERIMENTS["all"] = Experiment(
    "all of these but gsm8k, and one page with every table, figure and claim",
    partial(everything.run, experiments=BUILT_IN),
)

__all__ = ["EXPERIMENTS", "Experiment", "Report", "demo", "gsm8k", "toy", "uniformization"]
