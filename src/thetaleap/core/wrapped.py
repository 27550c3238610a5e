"""The one base of models around other models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .evaluation import Conditionals, Denoiser, Inspected, as_model, inspects_itself, of_samples
from .processes import Process


@dataclass(frozen=True, eq=False)
class Wrapped(ABC):
    """A model around another one, of which all the same is true but what its conditionals are."""

    model: Denoiser

    @property
    def process(self) -> Process:
        return self.model.process

    @property
    def length(self) -> int:
        return self.model.length

    @property
    def horizon(self) -> float:
        return self.model.horizon

    @property
    def time_free(self) -> bool:
        return self.model.time_free

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def tokenizer(self) -> Any:
        return getattr(self.model, "tokenizer", None)

    @property
    def shape(self) -> tuple[int, ...] | None:
        return getattr(self.model, "shape", None)

    @property
    def pictures(self) -> Any:
        return getattr(self.model, "pictures", None)

    @property
    def cost(self) -> int:
        """Rows of the network that one evaluation of a sample takes."""
        return cost_of(self.model)

    @property
    def restricts(self) -> bool:
        """Whether some values are forbidden, so that samples must end with values of the model's own."""
        return restricts(self.model)

    def of(self, samples: Int64[Tensor, " b"]) -> Wrapped:
        """The same for a batch that consists of these samples of the run."""
        return replace(self, model=of_samples(self.model, samples))

    @abstractmethod
    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals: ...


def cost_of(model: Denoiser) -> int:
    """Rows of the network that one evaluation of a sample takes."""
    return model.cost if isinstance(model, Wrapped) else 1


def restricts(model: Denoiser) -> bool:
    """Whether some values are forbidden, so that samples must end with values of the model's own."""
    return isinstance(model, Wrapped) and model.restricts


def unwrapped(model: Denoiser) -> Denoiser:
    """The model inside all wrappers."""
    while isinstance(model, Wrapped):
        model = model.model
    return model


@runtime_checkable
class Blockwise(Protocol):
    """A model that may write block by block: each block given those before it, whatever stands behind it."""

    @property
    def block(self) -> int | None:
        """Positions of a block; None where the model has none of its own."""
        ...

    def blocks(self, batch: int) -> Int64[Tensor, "b d"]:
        """The number of the block that each position of each sample is in."""
        ...


def own_block(model: Denoiser) -> int | None:
    """Positions of a block of the model's own, if it has some."""
    inner = unwrapped(model)
    return inner.block if isinstance(inner, Blockwise) else None


def own_blocks(model: Denoiser, samples: Int64[Tensor, " b"]) -> Int64[Tensor, "b d"] | None:
    """The number of the block that each position of these samples of the run is in, if the model has blocks."""
    if own_block(model) is None:
        return None
    return cast(Blockwise, unwrapped(of_samples(model, samples))).blocks(len(samples)).to(samples.device)


def inspected(model: Any, given: Int64[Tensor, " d"] | None = None) -> Denoiser:
    """`model`, loaded if it is a name, with the network inside looked through for mistakes, as the sample of a template
    would begin."""
    model = as_model(model)
    inspect(model, given)
    return model


def inspect(model: Denoiser, given: Int64[Tensor, " d"] | None = None) -> None:
    """Look through the network inside `model` for mistakes."""
    inner = unwrapped(model)
    if inspects_itself(type(inner)):
        cast(Inspected, inner).inspect(given)
