"""The one model contract: ``denoiser(x, t) -> Conditionals``, whose rows are computed where someone asks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..registry import LOAD
from .checks import shown
from .noise import piece
from .processes import Process

MEMORY = 128 * 2**20
"""Bytes of working memory for rows, by default."""
MODERATE = 230.0
"""Logits up to this size are exponentiated as they are: sums of these are far from overflow and underflow."""
COPIES = 4
"""Copies of a row in float64 that are alive at a time, at most."""


@dataclass(frozen=True)
class Duplicates:
    """Samples of one kind are the same sequence, and the model says the same about them."""

    kind: Int64[Tensor, " b"]
    kinds: int


@runtime_checkable
class Conditionals(Protocol):
    """What a model says about a batch of sequences."""

    def logits(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        """Unnormalised log-probabilities of the clean token at `positions`, given all *other* positions.

        `positions` are flat indices, sample * length + position. Minus infinity forbids a value.
        """
        ...

    def duplicates(self) -> Duplicates | None:
        """Which samples have the same rows, if that is known and there are few kinds: each kind is then done once."""
        ...


@runtime_checkable
class Denoiser(Protocol):
    """A model to sample from: a network behind an adapter, or an oracle."""

    @property
    def process(self) -> Process: ...

    @property
    def length(self) -> int:
        """Number of positions, d."""
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


@runtime_checkable
class PerSample(Protocol):
    """A model that says other things of other samples: it holds prompts, labels or weights for each."""

    def of(self, samples: Int64[Tensor, " b"]) -> Denoiser:
        """The model for a batch that consists of these samples of the run."""
        ...


@runtime_checkable
class Inspected(Protocol):
    """A model that looks for mistakes in itself before a run."""

    def inspect(self, given: Int64[Tensor, " d"] | None = None) -> None:
        """Raise an error that says what is wrong, and how to mend it; `given` is the template of a sample."""
        ...


@runtime_checkable
class Rankable(Protocol):
    """Conditionals, or a prediction, in which some may be tempered."""

    def ranked(self, untempered: bool) -> Any:
        """The same to rank positions by; itself, where that is no other."""
        ...


def ranked(said: Any, untempered: bool) -> Any:
    """What positions are ranked by, of conditionals or a prediction: what is `said` itself, or, `untempered`, what the
    network said. At temperature 0 all tokens would be equally sure, so that what is said at temperature 1 ranks them."""
    return said.ranked(untempered) if isinstance(said, Rankable) else said


def as_model(model: Any) -> Denoiser:
    """`model`, loaded if it is a name; or an error that says how to make one of what was given."""
    if isinstance(model, str):
        return LOAD(model)
    if isinstance(model, Denoiser) and not isinstance(model, type):
        return model
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        remedy = "is a network, and no model yet; make one: from_network(Masked(states=...), length=..., network=...)"
        raise TypeError(f"model={name}: {remedy}")
    remedy = "is no model; give the name of one, as in 'chain64', or what load, from_network or an oracle gives"
    raise TypeError(f"model={shown(model)}: {remedy}")


def of_samples(model: Denoiser, samples: Int64[Tensor, " b"]) -> Denoiser:
    """`model` for a batch that consists of these samples of the run."""
    return cast(PerSample, model).of(samples) if _per_sample(type(model)) else model


@lru_cache(maxsize=256)
def _per_sample(kind: type) -> bool:
    return issubclass(kind, PerSample)  # which takes as long as ten small tensor operations


@lru_cache(maxsize=256)
def inspects_itself(kind: type) -> bool:
    """Whether models of this `kind` are `Inspected`."""
    return issubclass(kind, Inspected)


@dataclass(frozen=True)
class Dense:
    """Conditionals that are there already, for every position."""

    values: Float[Tensor, "b d S"]

    def logits(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        return self.values.flatten(0, 1)[positions]

    def duplicates(self) -> None:
        return None


@dataclass(frozen=True)
class Gathered:
    """Conditionals put together from several evaluations: sample i is row ``row[i]`` of ``parts[part[i]]``."""

    parts: tuple[Conditionals, ...]
    part: Int64[Tensor, " b"]
    row: Int64[Tensor, " b"]
    length: int

    @staticmethod
    def of(whole: Conditionals, batch: int, length: int, device: torch.device) -> Gathered:
        """`whole`, of so many samples, as it is."""
        if isinstance(whole, Gathered):
            return whole
        each = torch.arange(batch, device=device)
        return Gathered((whole,), torch.zeros_like(each), each, length)

    def __getitem__(self, rows: Int64[Tensor, " k"]) -> Gathered:
        """The same for the samples at `rows`."""
        if len(self.parts) == 1:
            return Gathered(self.parts, self.part[rows], self.row[rows], self.length)
        used, part = torch.unique(self.part[rows], return_inverse=True)
        return Gathered(tuple(self.parts[n] for n in used.tolist()), part, self.row[rows], self.length)

    def replaced(self, rows: Int64[Tensor, " k"], by: Gathered) -> Gathered:
        """The same, but with `by` for the samples at `rows`."""
        part = self.part.index_copy(0, rows, by.part + len(self.parts))
        both = Gathered(self.parts + by.parts, part, self.row.index_copy(0, rows, by.row), self.length)
        return both[torch.arange(len(part), device=part.device)]

    def logits(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        sample = positions // self.length
        places, which = self.row[sample] * self.length + positions % self.length, self.part[sample]
        if len(self.parts) == 1:
            return self.parts[0].logits(places)
        order, rows = [], []
        for n, part in enumerate(self.parts):
            here = torch.nonzero(which == n).flatten()
            if len(here):
                order.append(here)
                rows.append(part.logits(places[here]))
        if not rows:
            return self.parts[0].logits(places)
        return torch.cat(rows)[torch.argsort(torch.cat(order))]

    def duplicates(self) -> Duplicates | None:
        same = self.parts[0].duplicates() if len(self.parts) == 1 else None
        return None if same is None else Duplicates(same.kind[self.row], same.kinds)

    def ranked(self, untempered: bool) -> Gathered:
        parts = tuple(ranked(part, untempered) for part in self.parts)
        same = all(new is old for new, old in zip(parts, self.parts, strict=True))
        return self if same else replace(self, parts=parts)


def _exponentials(logits: Float[Tensor, "n S"], unit: bool) -> Float64[Tensor, "n S"] | None:
    """``exp(logits)`` in float64 up to a factor for each row, with `unit` such that it sums to one; None if there is a
    row without a largest finite logit."""
    rows, some = torch.empty_like(logits, dtype=torch.float64), piece(logits)
    if logits.shape[0] <= some:
        return rows if _exponentials_into(rows, logits, unit) else None
    parts = zip(rows.split(some), logits.split(some), strict=True)
    return rows if all(_exponentials_into(*part, unit) for part in parts) else None


def _exponentials_into(rows: Tensor, logits: Tensor, unit: bool) -> bool:
    # in place and one operation after the other, which takes a third of the time of torch.softmax on long rows
    rows.copy_(logits).exp_()
    if not logits.shape[0] or (not unit and _within(logits, -MODERATE, MODERATE)):
        return True
    total = rows.sum(1, keepdim=True)
    good = _within(total, math.exp(-MODERATE), math.exp(MODERATE))
    if not good:  # out of range as they are; or NaN
        rows.copy_(logits).sub_(logits.amax(1, keepdim=True)).exp_()
        total = rows.sum(1, keepdim=True)
        good = not bool(torch.isnan(total).any())
    if unit:
        rows.mul_(total.reciprocal_())
    return good


def _within(values: Tensor, low: float, high: float) -> bool:
    """Whether all are, and none is NaN."""
    least, most = values.aminmax()
    return float(least) > low and float(most) < high


@runtime_checkable
class Prediction(Protocol):
    """What a jump needs to know about the clean tokens."""

    @property
    def at_once(self) -> int:
        """How many rows may be worked on together."""
        ...

    def probabilities(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        """Rows of the leave-one-out conditional at flat indices `positions`."""
        ...

    def unnormalised(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        """The same up to a factor for each row, which saves a division."""
        ...

    def duplicates(self) -> Duplicates | None:
        """Which samples have the same rows, if that is known."""
        ...


@runtime_checkable
class Duplicated(Protocol):
    """Whatever knows which samples are duplicates."""

    def duplicates(self) -> Duplicates | None: ...


LEAST = 1e-12
"""A probability in an earlier evaluation is taken as at least this."""


def divergence(now: Prediction, before: Prediction, positions: Int64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """``KL(now || before)`` at each of `positions`."""
    parts = [torch.zeros(0, dtype=torch.float64, device=positions.device)]
    for some in positions.split(now.at_once):
        new, old = now.probabilities(some), before.probabilities(some)
        parts.append((torch.xlogy(new, new) - torch.xlogy(new, old.clamp_min(LEAST))).sum(1))
    return torch.cat(parts).clamp_min(0)


def joint_duplicates(first: Duplicated, second: Duplicated) -> Duplicates | None:
    """Samples that are duplicates in both, if that is known."""
    one, two = first.duplicates(), second.duplicates()
    if one is None or two is None:
        return None
    return Duplicates(one.kind * two.kinds + two.kind, one.kinds * two.kinds)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation at (x, t): conditionals as float64 probabilities, checked as they are asked for."""

    x: Int64[Tensor, "b d"]
    t: Float64[Tensor, "*b"]
    conditionals: Conditionals
    states: int
    where: tuple[int, float] | str
    """The stage of the run and the time that it goes down to, or another name for errors."""
    samples: Int64[Tensor, " b"] | None = None
    """Their numbers in the run, for errors to name; by default 0, 1, ..."""
    memory: int = MEMORY

    @property
    def at_once(self) -> int:
        return max(1, self.memory // (COPIES * 8 * self.states))

    def probabilities(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        """Rows of the leave-one-out conditional at flat indices `positions`."""
        return self._rows(positions, unit=True)

    def unnormalised(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        """The same up to a factor for each row."""
        return self._rows(positions, unit=False)

    def _rows(self, positions: Int64[Tensor, " n"], unit: bool) -> Float64[Tensor, "n S"]:
        logits = self.conditionals.logits(positions)
        if logits.shape != (positions.shape[0], self.states):
            raise ValueError(
                f"logits of shape {tuple(logits.shape)}: the model must give one row of {self.states} values for "
                f"each of the {len(positions)} positions asked for"
            )
        rows = _exponentials(logits, unit)
        if rows is None:
            raise self._complaint(positions, logits)
        return rows

    def duplicates(self) -> Duplicates | None:
        """Which samples have the same rows: known only where all are evaluated at one time."""
        return self.conditionals.duplicates() if self.t.ndim == 0 else None

    def ranked(self, untempered: bool) -> Evaluation:
        conditionals = ranked(self.conditionals, untempered)
        return self if conditionals is self.conditionals else replace(self, conditionals=conditionals)

    def __getitem__(self, rows: Int64[Tensor, " k"]) -> Evaluation:
        """The same for the samples at `rows`."""
        samples = rows if self.samples is None else self.samples[rows]
        time = self.t if self.t.ndim == 0 else self.t[rows]
        return replace(self, x=self.x[rows], t=time, conditionals=self._gathered()[rows], samples=samples)

    def replaced(self, rows: Int64[Tensor, " k"], by: Evaluation) -> Evaluation:
        """The same, but with `by` for the samples at `rows`."""
        batch, patch = len(self.x), by._gathered()
        time = self.t.expand(batch).index_copy(0, rows, by.t.expand(len(rows)))
        x = self.x.index_copy(0, rows, by.x)
        return replace(self, x=x, t=time, conditionals=self._gathered().replaced(rows, patch))

    def _gathered(self) -> Gathered:
        return Gathered.of(self.conditionals, len(self.x), self.x.shape[1], self.x.device)

    def _complaint(self, positions: Tensor, logits: Tensor) -> ValueError:
        top = logits.amax(1)
        n = int(torch.nonzero(~torch.isfinite(top))[0])
        row, position = divmod(int(positions[n]), self.x.shape[1])
        if bool(torch.isnan(logits[n]).any()):
            what, remedy = "NaN", "look for a division by zero or an overflow in the network"
        elif float(top[n]) > 0:
            what, remedy = "+infinity", "give finite logits, or minus infinity to forbid a value"
        else:
            what, remedy = "minus infinity for every value", "leave at least one value possible"
        sample = row if self.samples is None else int(self.samples[row])
        where = self.where if isinstance(self.where, str) else "step {} (down to t = {:g})".format(*self.where)
        return ValueError(f"logits={what} in {where}, sample {sample}, position {position}: {remedy}")
