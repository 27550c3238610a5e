"""Prompts in, answers out: any solver on a masked language model, in batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from ..control import Method, grids
from ..core.checks import require, require_count
from ..core.evaluation import Denoiser
from ..models.hf.llm import resized, vocabulary_of
from ..models.hf.prefix_reuse import Reuse
from ..models.network import Network
from ..sampling import Samples, sample
from .prompts import prepare
from .wrappers import tempered

BUCKET = 32
"""Prompts whose lengths differ by less than this may go together."""


@dataclass(frozen=True)
class Answer:
    """What was written after a prompt."""

    tokens: list[int]
    """Up to the first token that ends a turn, which is not among them."""
    nfe: int
    """Evaluations that it took."""


@dataclass(frozen=True)
class Manner:
    """How answers are drawn: a solver, what it may spend on each, and how the conditionals are sharpened."""

    solver: Method
    nfe: int | None = None
    """The most evaluations of an answer, and so on, as of `sample`."""
    steps: int | None = None
    grid: grids.Grid | None = None
    delta: float | None = None
    tolerance: float | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    reuse: Reuse | None = None
    """How the network is run on part of the positions, if it is."""

    def draw(self, model: Denoiser, template: Int64[Tensor, "num d"], **more: Any) -> Samples:
        """Samples that keep the `template`; `more` is for `sample`."""
        shaped = tempered(model, self.temperature, self.top_k, self.top_p)
        spent = {"nfe": self.nfe, "steps": self.steps, "tolerance": self.tolerance}
        return sample(shaped, self.solver, **spent, grid=self.grid, delta=self.delta, template=template, **more)


def check_lengths(model: Network, lengths: Iterable[int], new: int) -> None:
    """Raise ``ValueError`` if a prompt and its answer are longer than the model takes; nothing is cut off."""
    most, longest = vocabulary_of(model).context, max(lengths, default=0) + new
    remedy = f"the model takes {most}; shorten prompts or answers, or give fewer examples in a prompt"
    require(most is None or longest <= most, "tokens of the longest prompt and answer", longest, remedy)


def answers(
    model: Network,
    manner: Manner,
    prompts: Sequence[Sequence[int]],
    new: int,
    *,
    seed: int = 0,
    batch_size: int = 1,
    progress: bool | None = None,
) -> list[Answer]:
    """Continue each of `prompts` by at most `new` tokens.

    Prompts of about the same length go together, the shorter ones padded on the left (of exactly the same length, where
    the model does not leave padding out). An answer is a function of the seed and of the list of prompts, up to
    rounding: `batch_size` does not matter.

    Args:
        model: of `llada` or `dream`; its length does not matter.
        manner: how to draw them.
        prompts: their tokens.
        new: positions to write after each.
        seed: of the run.
        batch_size: prompts that are answered together.
        progress: show progress bars; by default if standard error is a terminal.
    """
    require_count("new", new)
    words = vocabulary_of(model)
    check_lengths(model, map(len, prompts), new)
    step, most = BUCKET if model.attends else 1, math.inf if words.context is None else words.context
    groups: dict[int, list[int]] = {}
    for n, prompt in enumerate(prompts):
        length = int(min(step * math.ceil(len(prompt) / step) + new, most))
        groups.setdefault(length, []).append(n)
    drawn: dict[int, Answer] = {}
    # shorter ones first: then no two samples share a number, as those of sample i begin at i times the length
    for length, group in sorted(groups.items()):
        network, template = prepare(resized(model, length), [prompts[n] for n in group], new)
        reused = network if manner.reuse is None else manner.reuse(network)
        samples = manner.draw(reused, template, seed=seed, first=len(drawn), batch_size=batch_size, progress=progress)
        for n, tokens, nfe in zip(group, samples.x[:, length - new :].tolist(), samples.nfe.tolist(), strict=True):
            drawn[n] = Answer(words.until_end(tokens), nfe)
    return [drawn[n] for n in range(len(prompts))]
