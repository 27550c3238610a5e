"""Transformers of which every position sees every other, but for those that are left out; found out by trying."""

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
from ..network import Headed
from .vocabulary import Vocabulary

PROBE, PADDING = 5, 3
"""Tokens, and places to leave out, of the input with which a model is tried when it is loaded."""
FAILURES = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What models raise on input that they do not understand."""


# --- how a model is told which positions are there


Table = Bool[Tensor, "b 1 q d"]
MASKS: dict[str, tuple[str, Callable[[Tensor, Table, torch.dtype], Tensor]]] = {
    "additive": (
        "attention_mask",
        lambda valid, seen, dtype: torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(
            ~seen, torch.finfo(dtype).min
        ),
    ),
    "boolean": ("attention_mask", lambda valid, seen, dtype: seen.contiguous()),
    "flat": ("attention_mask", lambda valid, seen, dtype: valid.long()),
    "bias": ("attention_bias", lambda valid, seen, dtype: seen.contiguous()),
}
"""Ways to say so: the argument and its value, from valid positions (b, d) and the same for each looking position."""


@dataclass(frozen=True)
class Form:
    """One way to tell a model which positions are there, and whether to number these from 0 besides."""

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
        """`plain`: every position sees every other without being told; `form`: how to leave positions out, if it
        can."""
        self.plain, self.form = plain, form

    def run(self, ids: Int64[Tensor, "b d"], past: Any = None, **inputs: Tensor) -> Float[Tensor, "b d h"]:
        """The model's own output. `past` is a cache of transformers', which is read and added to."""
        if past is not None:
            keep: dict[str, Any] = {"past_key_values": past, "use_cache": True}
        else:
            keep = {"use_cache": False} if "use_cache" in self.takes else {}
        with torch.no_grad():
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


def _from_the_left(rows: Float[Tensor, "b d h"], valid: Bool[Tensor, "b d"]) -> Float[Tensor, "b d h"]:
    """At each position the row of the nearest valid position to its left; the first one, which has none, keeps its
    own."""
    here = torch.arange(valid.shape[1], device=valid.device).expand_as(valid)
    last = torch.where(valid, here, -1).cummax(1).values
    before = torch.cat([torch.full_like(last[:, :1], -1), last[:, :-1]], 1)
    source = torch.where(before < 0, here, before)
    return rows.gather(1, source.unsqueeze(2).expand_as(rows))


class Head(nn.Module):
    """The last layer, or nothing where the trunk gives logits already; values that are no tokens are ruled out."""

    def __init__(self, layer: nn.Linear | None, forbidden: Int64[Tensor, " n"]) -> None:
        super().__init__()
        self.layer, self.forbidden = layer, nn.Buffer(forbidden)

    def forward(self, rows: Float[Tensor, "n h"]) -> Float[Tensor, "n S"]:
        logits = rows if self.layer is None else self.layer(rows.to(self.layer.weight.device)).to(rows.device)
        return logits.index_fill(1, self.forbidden, -torch.inf)


@dataclass(frozen=True)
class Parts:
    """A trunk and its head as what a `Network` evaluates."""

    trunk: Trunk
    head: Head

    def __call__(
        self, x: Int64[Tensor, "b d"], t: Float64[Tensor, " b"], valid: Bool[Tensor, "b d"] | None = None
    ) -> Headed:
        return Headed(self.trunk(x, t, valid).flatten(0, 1), self.head)


# --- what a model can do, found out by trying


def manner(trunk: Trunk, device: torch.device) -> tuple[bool, Form | None]:
    """Whether the model sees both ways without being told, and how it leaves positions out, if it can."""
    plain = _sees_both_ways(trunk, trunk.run, device)
    # one that sees both ways makes what it needs of the plainest form, with windows and all
    order = ("flat", "boolean", "additive", "bias") if plain else ("additive", "boolean", "bias", "flat")
    ways = [mask for mask in order if MASKS[mask][0] in trunk.takes]
    forms = [Form(way, numbered) for numbered in (True, False) for way in ways]
    for form in forms:
        if form.positions and "position_ids" not in trunk.takes:
            continue
        try:
            if _leaves_out(trunk, form, plain, device):
                return plain, form
        except FAILURES:  # it wants to be told otherwise
            continue
    name = type(trunk.model).__name__
    require(plain, "source", name, "its positions do not look to their right, even if told to; give a model that does")
    return plain, None


def some_tokens(trunk: Trunk, count: int, seed: int, device: torch.device) -> Int64[Tensor, "1 n"]:
    """Some tokens, of which every other is masked."""
    drawn = torch.from_numpy(philox(seed, (0, 0, 0, Use.PROBES), count))
    tokens = (drawn * trunk.vocabulary.states).long().unsqueeze(0)
    tokens[:, 1::2] = trunk.vocabulary.mask
    return tokens.to(device)


def _sees_both_ways(trunk: Trunk, run: Callable[[Tensor], Tensor], device: torch.device) -> bool:
    ids = some_tokens(trunk, PROBE, 0, device)
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % trunk.vocabulary.states
    return bool((run(ids)[:, 0] != run(other)[:, 0]).any())


def _leaves_out(trunk: Trunk, form: Form, plain: bool, device: torch.device) -> bool:
    """Whether sequences padded on the left, the right and both sides are as without, whatever the padding holds."""

    def run(ids: Tensor, valid: Tensor) -> Tensor:
        return trunk.run(ids, **form(valid, trunk.model.dtype))

    ids, starts = some_tokens(trunk, PROBE, 0, device), (PADDING, 0, 1)
    alone = run(ids, torch.ones_like(ids, dtype=torch.bool))
    size, exact = float(alone.abs().max()), torch.finfo(alone.dtype).eps
    if plain and float((trunk.run(ids) - alone).abs().max()) > exact**0.5 * size:
        return False
    if not plain and not _sees_both_ways(trunk, lambda ids: run(ids, torch.ones_like(ids, dtype=torch.bool)), device):
        return False
    outputs = []
    for seed in (1, 2):
        padded = some_tokens(trunk, PROBE + PADDING, seed, device).repeat(len(starts), 1)
        valid = torch.zeros_like(padded, dtype=torch.bool)
        for row, start in enumerate(starts):
            padded[row, start : start + PROBE], valid[row, start : start + PROBE] = ids[0], True
        outputs.append(run(padded, valid)[valid].view(len(starts), PROBE, -1))
    leak = float((outputs[0] - outputs[1]).abs().max())
    return leak <= 4 * exact * size and float((outputs[0] - alone).abs().max()) <= exact**0.5 * size


def take_layer(trunk: Trunk, device: torch.device) -> nn.Linear | None:
    """Take the last layer out of the model, if both together still give the model's own logits; else leave it whole."""
    x, t = some_tokens(trunk, PROBE, 0, device), torch.ones(1, dtype=torch.float64)
    x = x.masked_fill(x == trunk.vocabulary.mask, trunk.vocabulary.states)
    model, logits = trunk.model, trunk(x, t)
    layer = model.get_output_embeddings()
    names = [name for name, part in model.named_modules() if part is layer]
    if not names or not isinstance(layer, nn.Linear) or layer.out_features != trunk.vocabulary.states:
        return None
    model.set_submodule(names[0], nn.Identity())
    try:
        rows = trunk(x, t)
        off = (layer(rows.to(layer.weight.device)).to(device) - logits).abs().max()
    except FAILURES:  # the model wants more of its last layer than its output
        off = torch.tensor(torch.inf)
    if float(off) <= torch.finfo(logits.dtype).eps ** 0.5 * float(logits.abs().max()):
        return layer
    model.set_submodule(names[0], layer)
    return None
