"""Models that are measured by what they are of: text by a judge, digits by the distance on a classifier's features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ..evaluation.judges.causal import Critic
from ..models.network import Network
from .images import measure_of_digits
from .pages import model_of
from .text import critic_of, figures_of, texts_of

MODELS = ("shakespeare", "mnist")


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and how it is measured: by `figure`, lower is better."""

    name: str
    network: Network
    figure: Literal["bits", "distance"]
    by: str
    measure: Callable[[Tensor], dict[str, Any]]


def subjects_of(
    model: str | Network | None, judge: str | Critic | None, device: str, dtype: str = "auto"
) -> list[Subject]:
    """Of the `model` given, or of those that come with the package."""
    found = [model_of(one, device=device, dtype=dtype) for one in (MODELS if model is None else [model])]
    return [subject_of(network, name, judge, device) for network, name in found]


def subject_of(network: Network, name: str, judge: str | Critic | None, device: str) -> Subject:
    """What to measure of a model: those whose positions lie in the plane are of images."""
    if network.shape is not None and len(network.shape) == 2:
        digits = measure_of_digits(network)
        return Subject(
            name, network, "distance", "a classifier of digits", lambda x: digits.distances(digits.features(x))
        )
    critic = critic_of(name, judge, device)
    return Subject(name, network, "bits", critic.name, lambda x: figures_of(critic, texts_of(network, x)))
