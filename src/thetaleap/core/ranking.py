"""How sure a model is of its tokens: what decoders rank positions by, and compare with their thresholds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from . import _fast
from .evaluation import Prediction, ranked
from .noise import Noise, settled

SMALLEST = 1e-300
"""The confidence in a token that was drawn is at least this: it is possible."""


@dataclass(frozen=True)
class Draft:
    """Tokens for many positions, of which some are to be kept."""

    tokens: Int64[Tensor, "b d"]
    """The sequence with all of them."""
    confidence: Float64[Tensor, "b d"]
    """The probability of each; 0 where none was drawn."""

    @property
    def sure(self) -> Float64[Tensor, "b d"]:
        """Confidences to compare with thresholds, and with each other; above 0 wherever a token was drawn."""
        return torch.maximum(settled(self.confidence), 1e-9 * (self.confidence > 0))


def drafted(
    x: Int64[Tensor, "b d"],
    where: Bool[Tensor, "b d"],
    prediction: Prediction,
    noise: Noise,
    untempered: bool = True,
) -> Draft:
    """Draw a token at each of the positions `where`. Confidence is what the network says of it; without `untempered`,
    what the law says that it was drawn from."""
    tokens, confidence = x.flatten().clone(), torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    judge = ranked(prediction, untempered)
    for some in _fast.indices(where).split(prediction.at_once):
        c = prediction.probabilities(some)
        tokens[some] = noise.choose(some, x.shape[1], c, stay=False)
        p = c if judge is prediction else judge.probabilities(some)
        confidence.view(-1)[some] = p.gather(1, tokens[some].unsqueeze(1)).squeeze(1).clamp_min(SMALLEST)
    return Draft(tokens.view_as(x), confidence)


def measured(
    where: Bool[Tensor, "b d"],
    prediction: Prediction,
    measure: Callable[[Tensor, Tensor], Tensor],
    blank: float,
) -> Float64[Tensor, "b d"]:
    """``measure(rows, positions)`` of the conditionals `where` it says; `blank` elsewhere."""
    table = torch.full(where.shape, blank, dtype=torch.float64, device=where.device)
    for some in _fast.indices(where).split(prediction.at_once):
        table.view(-1)[some] = measure(prediction.probabilities(some), some)
    return table


def entropies(where: Bool[Tensor, "b d"], prediction: Prediction) -> Float64[Tensor, "b d"]:
    """Of the conditionals, in nats; infinite elsewhere."""
    return measured(where, prediction, lambda c, _: -torch.xlogy(c, c).sum(1), torch.inf)


def trusted(x: Int64[Tensor, "b d"], where: Bool[Tensor, "b d"], prediction: Prediction) -> Float64[Tensor, "b d"]:
    """What the network says of the tokens that stand `where`; 1 elsewhere."""
    judge, present = ranked(prediction, untempered=True), x.flatten()
    found = measured(where, judge, lambda c, at: c.gather(1, present[at].unsqueeze(1)).squeeze(1), 1.0)
    return settled(found)


def or_surest(ready: Bool[Tensor, "b d"], sure: Float64[Tensor, "b d"]) -> Bool[Tensor, "b d"]:
    """Those that are `ready`; where a sample has none, its surest position, the first of equals."""
    one = (~_fast.any_in_row(ready)).long()
    return ready | (_fast.largest(sure, one) & (sure > 0))
