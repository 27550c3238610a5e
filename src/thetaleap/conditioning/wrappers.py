"""Models made of models: temperature, top-k, top-p, allowed tokens and guidance.

All of them act on the conditionals, before any rate is formed, so that they change which values positions take and
never when a position is unmasked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ..core.checks import finite, require, require_count, require_number, shown
from ..core.evaluation import Conditionals, Denoiser, Duplicates, as_model, of_samples, ranked
from ..core.free import read_tokens
from ..core.wrapped import Wrapped, cost_of
from ..models.network import Network

Logits = Float[Tensor, "n S"]
Positions = Int64[Tensor, " n"]


@dataclass(frozen=True)
class Reshaped:
    """`inner`, with its rows changed by a function of (rows, positions) that keeps duplicates duplicates."""

    inner: Conditionals
    change: Callable[[Tensor, Tensor], Tensor]

    def logits(self, positions: Positions) -> Logits:
        return self.change(self.inner.logits(positions), positions)

    def duplicates(self) -> Duplicates | None:
        return self.inner.duplicates()

    def ranked(self, untempered: bool) -> Conditionals:
        inner = ranked(self.inner, untempered)
        return self if inner is self.inner else replace(self, inner=inner)


# --- temperature, top-k, top-p


@dataclass(frozen=True)
class Sharpened:
    """What `by` makes of `inner`."""

    inner: Conditionals
    by: Tempered

    def logits(self, positions: Positions) -> Logits:
        return self.by.shape_rows(self.inner.logits(positions))

    def duplicates(self) -> Duplicates | None:
        return self.inner.duplicates()

    def ranked(self, untempered: bool) -> Conditionals:
        inner = ranked(self.inner, untempered)
        if untempered or (self.by.temperature and inner is self.inner):
            return inner if untempered else self
        return Sharpened(inner, replace(self.by, temperature=self.by.temperature or 1.0))


@dataclass(frozen=True)
class Tempered(Wrapped):
    """Sharper or flatter conditionals: see `tempered`."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        return Sharpened(self.model(x, t), self)

    def shape_rows(self, logits: Logits) -> Logits:
        """Rows of logits, sharper or flatter."""
        if self.temperature == 0:
            best = logits.argmax(1, keepdim=True)
            # its own logit, so that a row without a value, or with NaN, stays one
            return torch.full_like(logits, -math.inf).scatter(1, best, logits.gather(1, best))
        if self.temperature != 1:
            logits = logits.to(torch.float64)
            # the largest is 0, so that no temperature is too small
            logits = (logits - _if_finite(logits.amax(1, keepdim=True))) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[1]:
            logits = logits.masked_fill(logits < logits.topk(self.top_k, dim=1).values[:, -1:], -math.inf)
        if self.top_p is not None and self.top_p < 1:
            p = torch.softmax(logits.to(torch.float64), 1)
            p, order = torch.sort(p, dim=1, descending=True, stable=True)
            beyond = torch.nn.functional.pad(p.cumsum(1)[:, :-1], (1, 0)) >= self.top_p
            logits = logits.masked_fill(torch.empty_like(beyond).scatter(1, order, beyond), -math.inf)
        return logits


def _if_finite(shift: Float64[Tensor, "n 1"]) -> Float64[Tensor, "n 1"]:
    """What to take from rows that have it; the others are not to be mended, but complained about."""
    return torch.where(torch.isfinite(shift), shift, 0.0)


def tempered(
    model: Denoiser | str, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tempered:
    """`model` with sharper or flatter conditionals.

    Args:
        model: any model.
        temperature: logits are divided by it; 0 leaves the likeliest value alone (of equals the first).
        top_k: keep the k likeliest values, and those as likely as the last of them.
        top_p: keep the likeliest values until their probabilities sum to at least this; the rest is dropped.
    """
    require(finite(temperature) and temperature >= 0, "temperature", temperature, "give a finite number of at least 0")
    if top_k is not None:
        require_count("top_k", top_k)
    if top_p is not None:
        require_number("top_p", top_p, 0, 1, closed="high")
    return Tempered(as_model(model), float(temperature), top_k, top_p)


# --- allowed and forbidden values


Tokens = str | Sequence[Any] | np.ndarray | Tensor
"""Text, values by number, or a table of booleans: (S,) for all positions, or (d, S) for each."""


@dataclass(frozen=True)
class Constrained(Wrapped):
    """Conditionals without forbidden values: see `constrained`."""

    allowed: Bool[Tensor, "#d S"]

    @property
    def restricts(self) -> bool:
        return True

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        return Reshaped(self.model(x, t), self._change)

    def _change(self, logits: Logits, positions: Positions) -> Logits:
        allowed = self.allowed.to(logits.device)
        rows = allowed[positions % self.length] if len(allowed) > 1 else allowed
        return logits.masked_fill(~rows, -math.inf)


def constrained(model: Denoiser | str, allow: Tokens | None = None, forbid: Tokens | None = None) -> Constrained:
    """`model` with only the values in `allow`, if given, and without those in `forbid`.

    Args:
        model: any model.
        allow: values by number, as in ``[0, 3, 7]``, for all positions; or booleans, (S,) for all positions or (d, S)
            for each; or text, as in "xyz", of which the tokens are meant, or several texts.
        forbid: the same.
    """
    require(allow is not None or forbid is not None, "(allow, forbid)", (allow, forbid), "give at least one")
    model = as_model(model)
    states = model.process.states
    every, none = torch.ones((1, states), dtype=torch.bool), torch.zeros((1, states), dtype=torch.bool)
    table = every if allow is None else _table("allow", allow, model)
    table = table & ~(none if forbid is None else _table("forbid", forbid, model))
    empty = torch.nonzero(~table.any(1)).flatten()
    if len(empty):
        where = f"position {int(empty[0])}" if len(table) > 1 else "any position"
        raise ValueError(f"(allow, forbid): no value is left for {where}; allow at least one")
    return Constrained(model, table)


def _table(name: str, given: Tokens, model: Denoiser) -> Bool[Tensor, "#d S"]:
    length, states = model.length, model.process.states
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, list | tuple | set) and texts and all(isinstance(text, str) for text in texts):
        given = [token for text in texts for token in read_tokens(model, name, text)]
    wrong = f"{name}={shown(given)}: give values by number, as in [0, 3, 7], or as text, or a table of booleans"
    try:
        values = torch.as_tensor(given if isinstance(given, Tensor) else np.asarray(list(given))).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(wrong) from None
    if values.dtype == torch.bool:
        shapes = [(states,), (length, states)]
        require(tuple(values.shape) in shapes, f"{name} shape", tuple(values.shape), f"give {shapes[0]} or {shapes[1]}")
        return values.reshape(-1, states)
    if values.ndim != 1 or (len(values) and (values.is_floating_point() or values.is_complex())):
        raise TypeError(wrong)
    for value in values.tolist():
        require(0 <= value < states, name, value, f"values are 0 to {states - 1}")
    table = torch.zeros((1, states), dtype=torch.bool)
    table[0, values.long()] = True
    return table


# --- guidance


Weight = float | Callable[[Tensor], Tensor]
"""One for all times, or a function of time."""


@dataclass(frozen=True)
class Blend:
    """``(1 + w) conditional - w unconditional``, of two halves of one evaluation."""

    both: Conditionals
    weight: Float64[Tensor, " b"]
    length: int

    def logits(self, positions: Positions) -> Float64[Tensor, "n S"]:
        half = len(self.weight) * self.length
        rows = self.both.logits(torch.cat([positions, positions + half])).to(torch.float64)
        # logits are known up to a constant, which matters where only some of a row are blended
        rows = rows - _if_finite(rows.logsumexp(1, keepdim=True))
        told, blind = rows[: len(positions)], rows[len(positions) :]
        w = self.weight[positions // self.length].unsqueeze(1)
        # what the condition forbids stays forbidden; where it alone allows something, it alone counts
        plain = torch.isneginf(told) | torch.isneginf(blind)
        return torch.where(plain, told, told + w * (told - blind))

    def duplicates(self) -> None:
        return None

    def ranked(self, untempered: bool) -> Conditionals:
        both = ranked(self.both, untempered)
        return self if both is self.both else replace(self, both=both)


@dataclass(frozen=True)
class Guided(Wrapped):
    """Conditionals pulled towards a condition: see `guided`."""

    weight: Weight
    condition: Int64[Tensor, " n"] | Bool[Tensor, "n d"]
    samples: Int64[Tensor, " b"] | None = None

    @property
    def time_free(self) -> bool:
        return self.model.time_free and not callable(self.weight)

    @property
    def cost(self) -> int:
        return cost_of(self.model) * (1 if self.weight == 0 else 2)

    def of(self, samples: Int64[Tensor, " b"]) -> Guided:
        return replace(self, samples=samples)

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        batch, device = len(x), x.device
        samples = torch.arange(batch, device=device) if self.samples is None else self.samples
        mine = self._condition(samples)
        if self.weight == 0:
            return self._told(samples, mine)(x, t)
        if mine.dtype == torch.bool:
            assert self.process.mask is not None
            twice, both = torch.cat([x, x.masked_fill(mine, self.process.mask)]), mine
        else:
            assert isinstance(self.model, Network)
            twice, both = x.repeat(2, 1), torch.cat([mine, torch.full_like(mine, self.model.classes or 0)])
        model = self._told(samples.repeat(2), both)
        return Blend(model(twice, t if t.ndim == 0 else t.repeat(2)), self._weights(t, batch, device), x.shape[1])

    def _condition(self, samples: Int64[Tensor, " b"]) -> Int64[Tensor, " b"] | Bool[Tensor, "b d"]:
        condition, count = self.condition.to(samples.device), len(self.condition)
        if count == 1:
            return condition.expand(len(samples), *condition.shape[1:])
        last = int(samples.max()) if len(samples) else 0
        require(last < count, "condition of samples", count, f"there is a sample {last}; give one for each, or for all")
        return condition[samples]

    def _told(self, samples: Tensor, condition: Tensor) -> Denoiser:
        """The model inside, for these samples and, if it takes labels, with these."""
        model = of_samples(self.model, samples)
        if condition.dtype == torch.bool:
            return model
        assert isinstance(model, Network)
        return model.labelled(condition)

    def _weights(self, t: Tensor, batch: int, device: torch.device) -> Float64[Tensor, " b"]:
        if not callable(self.weight):
            return torch.full((batch,), self.weight, dtype=torch.float64, device=device)
        weight = torch.as_tensor(self.weight(t), dtype=torch.float64)
        good = tuple(weight.shape) in ((), (batch,)) and bool((torch.isfinite(weight) & (weight >= 0)).all())
        require(good, "weight", weight.tolist(), f"its function must give finite numbers of at least 0; t={t.tolist()}")
        return weight.to(device).expand(batch)


def guided(model: Denoiser | str, weight: Weight, condition: int | Sequence[int] | Tensor) -> Guided:
    """`model` pulled towards a condition: logits ``(1 + w) l_c - w l_u``, with and without it (Ho and Salimans 2022).

    Both go through the network in one batch of twice the size, and count as two evaluations. A weight of 0 is the model
    under the condition, at the price of one.

    Args:
        model: one made by ``from_network(..., classes=)``, for labels; or any masked model, for positions.
        weight: w, at least 0, or a function of the time that gives it.
        condition: a label for all samples, or one for each; or the positions that are the condition, as booleans
            (d,) for all samples or (num, d): the model without the condition sees them masked. What they hold comes
            from the template.
    """
    if not callable(weight):
        require(finite(weight) and weight >= 0, "weight", weight, "give a finite number of at least 0")
    model = as_model(model)
    try:
        given = torch.as_tensor(condition)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"condition={shown(condition)}: give a label, labels, or booleans for positions") from None
    told = f"condition={shown(condition)}"
    if given.is_complex():
        raise TypeError(f"{told}: give a label, labels, or booleans for positions")
    if given.dtype == torch.bool:
        masked = model.process.mask is not None
        require(masked, "condition", "positions", "only a masked model can do without given positions")
        got, length = tuple(given.shape), model.length
        good = given.ndim in (1, 2) and given.numel() > 0 and given.shape[-1] == length
        require(good, "condition shape", got, f"the model has {length} positions; give ({length},) or (num, {length})")
        return Guided(model, weight, given.reshape(-1, length))
    if not isinstance(model, Network) or model.classes is None:
        raise TypeError(
            f"{told} for {type(model).__name__}: labels are for networks that take them, made by "
            "from_network(..., classes=); guide the network first, and shape the result"
        )
    whole = given.numel() > 0 and not given.is_floating_point() and given.ndim < 2
    good = whole and bool(((given >= 0) & (given < model.classes)).all())
    remedy = f"labels are whole numbers, 0 to {model.classes - 1}; give one or several"
    require(good, "condition", given.tolist(), remedy)
    return Guided(model, weight, given.long().reshape(-1))
