"""Experiments: one file per figure or table. Each writes its files to a folder and says what they show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import demo, gsm8k, toy, uniformization
from ._output import Report


@dataclass(frozen=True)
class Experiment:
    """A result of the paper that can be run again.

    ``run(folder, *, num=None, seed=0, progress=None)`` writes to `folder`, which is made; `num` samples, by default
    as many as the experiment calls for; a progress bar by default if standard error is a terminal.
    """

    about: str
    run: Callable[..., Report]
    options: tuple[str, ...] = ()
    """What `run` takes besides, by keyword."""


EXPERIMENTS: dict[str, Experiment] = {
    "toy": Experiment(
        "KL against steps on 15 states, with exact laws: tau-leaping, RK-2, Trapezoidal (figure 2)", toy.run
    ),
    "uniformization": Experiment(
        "where exact simulation spends its evaluations, and where its quality settles (figure 1, left)",
        uniformization.run,
    ),
    "gsm8k": Experiment(
        "right answers to GSM8K's questions, of a language model given by --model: Semi-AR and Trapezoidal (table 2)",
        gsm8k.run,
        ("model", "data", "batch_size", "device", "dtype", "trust_remote_code"),
    ),
}

__all__ = ["EXPERIMENTS", "Experiment", "Report", "demo", "gsm8k", "toy", "uniformization"]
