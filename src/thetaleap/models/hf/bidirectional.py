"""Transformers in which every position attends to every other but padding; how to tell them so is tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from ...core.checks import require
from ...core.noise import Use, philox
from .heads import Rounding
from .hub import FAILURES, Vocabulary
from .own_code import quiet

PROBE, PADDING = 5, 3
"""Tokens and padding of the input with which a model is tried when it is loaded."""


# --- how a model is told which positions are there


Table = Bool[Tensor, "b 1 q d"]
MASKS: dict[str, tuple[str, Callable[[Tensor, Table, torch.dtype], Tensor]]] = {
    "additive": (
        "attention_mask",
        lambda valid, seen, dtype: torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min),
    ),
    "boolean": ("attention_mask", lambda valid, seen, dtype: seen.contiguous()),
    "flat": ("attention_mask", lambda valid, seen, dtype: valid.long()),
    "bias": ("attention_bias", lambda valid, seen, dtype: seen.contiguous()),
}
"""Forms of a mask: the argument and its value, from valid positions (b, d) and the same for each query."""


@dataclass(frozen=True)
class Form:
    """How to tell a model which positions are there, and whether to number these from 0 besides."""

    mask: str
    positions: bool

    def __call__(self, valid: Bool[Tensor, "b d"], dtype: torch.dtype, start: int = 0) -> dict[str, Tensor]:
        """What to tell a model that is run on the positions from `start` on."""
        name, make = MASKS[self.mask]
        inputs = {name: make(valid, valid[:, None, None].expand(-1, 1, valid.shape[1] - start, -1), dtype)}
        if self.positions:
            inputs["position_ids"] = (valid.cumsum(1) - 1).clamp(min=0)[:, start:]
        return inputs


class Trunk(nn.Module):
    """What `model` gives as logits at each position; hidden rows, once its last layer was taken out.

    Before `settle` it is told nothing but the tokens.
    """

    def __init__(self, model: Any, vocabulary: Vocabulary, shifted: bool) -> None:
        super().__init__()
        self.model, self.vocabulary, self.shifted = model, vocabulary, shifted
        self.takes = set(inspect.signature(model.forward).parameters)
        self.plain, self.form = True, None

    def settle(self, plain: bool, form: Form | None) -> None:
        """`plain`: every position attends to every other by itself; `form`: how to leave positions out, if it can."""
        self.plain, self.form = plain, form

    def run(self, ids: Int64[Tensor, "b d"], past: Any = None, **inputs: Any) -> Float[Tensor, "b d h"]:
        """The model's own output. `past` is a cache of transformers', which is read and added to."""
        if past is not None:
            keep: dict[str, Any] = {"past_key_values": past, "use_cache": True}
        else:
            keep = {"use_cache": False} if "use_cache" in self.takes else {}
        with torch.no_grad(), quiet():
            return self.model(input_ids=ids, **inputs, **keep).logits

    def forward(
        self,
        x: Int64[Tensor, "b d"],
        t: Float64[Tensor, " b"],
        valid: Bool[Tensor, "b d"] | None = None,
        past: Any = None,
    ) -> Float[Tensor, "b n h"]:
        """Rows of all positions; with `past`, of those behind the ones whose keys and values it holds."""
        words = self.vocabulary
        if bool((x == words.mask).any()):
            raise ValueError(f"x holds {words.mask}, the checkpoint's own mask token: give FREE where to write")
        start = 0 if past is None else past.get_seq_length()
        ids = x.masked_fill(x == words.states, words.mask)[:, start:]
        valid = torch.ones_like(x, dtype=torch.bool) if valid is None else valid
        if self.plain and (self.form is None or bool(valid.all())):
            rows = self.run(ids, past)
        else:
            assert self.form is not None
            rows = self.run(ids, past, **self.form(valid, self.model.dtype, start))
        rows = rows.to(x.device)
        return _from_the_left(rows, valid[:, start:]) if self.shifted else rows

    def within(
        self, x: Int64[Tensor, "b d"], valid: Bool[Tensor, "b d"] | None, past: Any, start: int, stop: int
    ) -> Float[Tensor, "b n h"]:
        """Rows of the positions from `start` to `stop`, where `past` holds keys and values of all others."""
        words = self.vocabulary
        assert self.form is not None
        valid = torch.ones_like(x, dtype=torch.bool) if valid is None else valid
        here = slice(start, stop)
        ids = x.masked_fill(x == words.states, words.mask)[:, here]
        there = torch.cat([valid[:, :start], valid[:, stop:], valid[:, here]], 1)
        inputs = self.form(there, self.model.dtype, there.shape[1] - (stop - start))
        inputs["position_ids"] = (valid.cumsum(1) - 1).clamp(min=0)[:, here]
        rows = self.run(ids, past, **inputs).to(x.device)
        return _from_the_left(rows, valid[:, here]) if self.shifted else rows


def _from_the_left(rows: Float[Tensor, "b d h"], valid: Bool[Tensor, "b d"]) -> Float[Tensor, "b d h"]:
    """At each position the row of the nearest valid position to its left; the first one keeps its own."""
    here = torch.arange(valid.shape[1], device=valid.device).expand_as(valid)
    last = torch.where(valid, here, -1).cummax(1).values
    before = torch.cat([torch.full_like(last[:, :1], -1), last[:, :-1]], 1)
    source = torch.where(before < 0, here, before)
    return rows.gather(1, source.unsqueeze(2).expand_as(rows))


# --- what a model can do, found out by trying


def probe(trunk: Trunk, device: torch.device) -> tuple[bool, Form | None]:
    """Whether the model is bidirectional without being told, and how it leaves positions out, if it can."""
    plain = _bidirectional(trunk, trunk.run, device)
    # a bidirectional one makes what it needs, windows included, of the plainest form
    order = ("flat", "boolean", "additive", "bias") if plain else ("additive", "boolean", "bias", "flat")
    masks = [mask for mask in order if MASKS[mask][0] in trunk.takes]
    numberings = (True, False) if "position_ids" in trunk.takes else (False,)
    for form in (Form(mask, numbered) for numbered in numberings for mask in masks):
        try:
            if _ignores_padding(trunk, form, plain, device):
                return plain, form
        except FAILURES:  # it wants to be told otherwise
            continue
    remedy = "its positions do not attend to their right, even if told to; give a bidirectional model"
    require(plain, "source", type(trunk.model).__name__, remedy)
    return plain, None


def some_tokens(trunk: Trunk, count: int, seed: int, device: torch.device) -> Int64[Tensor, "1 n"]:
    """Some tokens, of which every other is masked."""
    drawn = torch.from_numpy(philox(seed, (0, 0, 0, Use.PROBES), count))
    tokens = (drawn * trunk.vocabulary.states).long().unsqueeze(0)
    tokens[:, 1::2] = trunk.vocabulary.mask
    return tokens.to(device)


def _bidirectional(trunk: Trunk, run: Callable[[Tensor], Tensor], device: torch.device) -> bool:
    """Whether the first position depends on the others by more than rounding."""
    ids = some_tokens(trunk, PROBE, 0, device)
    other = (ids + 1) % trunk.vocabulary.states
    other[:, 0] = ids[:, 0]
    with Rounding() as rounding:
        first = run(ids)[:, 0]
    return not rounding.equal(run(other)[:, 0], first)


def _ignores_padding(trunk: Trunk, form: Form, plain: bool, device: torch.device) -> bool:
    """Whether sequences padded on the left, the right and both sides are as without, whatever the padding holds."""

    def run(ids: Tensor, valid: Tensor | None = None) -> Tensor:
        valid = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        return trunk.run(ids, **form(valid, trunk.model.dtype))

    ids, starts = some_tokens(trunk, PROBE, 0, device), (PADDING, 0, 1)
    with Rounding() as rounding:
        alone = run(ids)
    if not (rounding.same(trunk.run(ids), alone) if plain else _bidirectional(trunk, run, device)):
        return False
    outputs = []
    for seed in (1, 2):
        padded = some_tokens(trunk, PROBE + PADDING, seed, device).repeat(len(starts), 1)
        valid = torch.zeros_like(padded, dtype=torch.bool)
        for row, start in enumerate(starts):
            padded[row, start : start + PROBE], valid[row, start : start + PROBE] = ids[0], True
        outputs.append(run(padded, valid)[valid].view(len(starts), PROBE, -1))
    return rounding.equal(*outputs) and rounding.same(outputs[0], alone)
