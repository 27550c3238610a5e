"""The one model contract: ``denoiser(x, t) -> Conditionals``, whose rows are computed where someone asks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from .processes import Process


@dataclass(frozen=True)
class Alike:
    """Samples of one kind are the same sequence, and the model says the same about them."""

    kind: Int64[Tensor, " b"]
    kinds: int


@runtime_checkable
class Conditionals(Protocol):
    """What a model says about a batch of sequences."""

    def logits(self, sites: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        """Unnormalised log-probabilities of the clean token at `sites`, given all *other* sites.

        `sites` are flat indices, sample * length + site. Minus infinity forbids a value.
        """
        ...

    def alike(self) -> Alike | None:
        """Which samples have the same rows, if that is known and there are few kinds: each kind is then done once."""
        ...


@runtime_checkable
class Denoiser(Protocol):
    """A model to sample from: a network behind an adapter, or an oracle."""

    @property
    def process(self) -> Process: ...

    @property
    def length(self) -> int:
        """Number of sites, d."""
        ...

    @property
    def horizon(self) -> float:
        """The time at which there is nothing but noise, T."""
        ...

    @property
    def time_free(self) -> bool:
        """Whether the conditionals ignore t, as those of masked models may."""
        ...

    @property
    def device(self) -> torch.device: ...

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        """Evaluate the model once on each row of `x`; `t` is one time, shape (), or one per row."""
        ...


@dataclass(frozen=True)
class Dense:
    """Conditionals that are there already, for every site."""

    values: Float[Tensor, "b d S"]

    def logits(self, sites: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        return self.values.flatten(0, 1)[sites]

    def alike(self) -> None:
        return None


@dataclass(frozen=True)
class Selected:
    """Conditionals of some of the samples."""

    whole: Conditionals
    rows: Int64[Tensor, " b"]
    length: int

    def logits(self, sites: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        return self.whole.logits(self.rows[sites // self.length] * self.length + sites % self.length)

    def alike(self) -> Alike | None:
        same = self.whole.alike()
        return None if same is None else Alike(same.kind[self.rows], same.kinds)


@runtime_checkable
class Seen(Protocol):
    """What a jump needs to know about the clean tokens."""

    def probabilities(self, sites: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        """Rows of the leave-one-out conditional at flat indices `sites`."""
        ...

    def alike(self) -> Alike | None:
        """Which samples have the same rows, if that is known."""
        ...


@dataclass(frozen=True)
class Look:
    """One evaluation at (x, t): conditionals as float64 probabilities, checked as they are asked for."""

    x: Int64[Tensor, "b d"]
    t: Float64[Tensor, "*b"]
    conditionals: Conditionals
    states: int
    where: str
    first: int = 0
    rows: Int64[Tensor, " b"] | None = None

    def probabilities(self, sites: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        """Rows of the leave-one-out conditional at flat indices `sites`."""
        logits = self.conditionals.logits(sites)
        if tuple(logits.shape) != (len(sites), self.states):
            raise ValueError(
                f"logits of shape {tuple(logits.shape)}: the model must give one row of {self.states} values for "
                f"each of the {len(sites)} sites asked for"
            )
        logits = logits.to(torch.float64)
        top = logits.amax(1)
        if len(sites) and not bool(torch.isfinite(top).all()):
            self._complain(sites, logits, top)
        return torch.softmax(logits, 1)

    def alike(self) -> Alike | None:
        """Which samples have the same rows: known only where all are looked at at one time."""
        return self.conditionals.alike() if self.t.ndim == 0 else None

    def __getitem__(self, rows: Int64[Tensor, " k"]) -> Look:
        """The same for the samples at `rows`."""
        samples = rows if self.rows is None else self.rows[rows]
        part = Selected(self.conditionals, rows, self.x.shape[1])
        time = self.t if self.t.ndim == 0 else self.t[rows]
        return replace(self, x=self.x[rows], t=time, conditionals=part, rows=samples)

    def _complain(self, sites: Tensor, logits: Tensor, top: Tensor) -> None:
        n = int(torch.nonzero(~torch.isfinite(top))[0])
        row, site = divmod(int(sites[n]), self.x.shape[1])
        if bool(torch.isnan(logits[n]).any()):
            what, remedy = "NaN", "look for a division by zero or an overflow in the network"
        elif float(top[n]) > 0:
            what, remedy = "+infinity", "give finite logits, or minus infinity to forbid a value"
        else:
            what, remedy = "minus infinity for every value", "leave at least one value possible"
        sample = self.first + (row if self.rows is None else int(self.rows[row]))
        raise ValueError(f"logits={what} in {self.where}, sample {sample}, site {site}: {remedy}")
