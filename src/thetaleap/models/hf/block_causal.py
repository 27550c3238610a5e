"""Transformers in which no block of positions sees those behind it: keys and values of finished blocks are kept, exactly.

BD3-LM (Arriola et al. 2025, arXiv:2503.09573), SDAR and LLaDA2 are trained so: a block is denoised given the clean ones
before it. What a finished block says to later ones then never changes, unlike in a bidirectional network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable
from weakref import WeakValueDictionary

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from ...core.evaluation import Conditionals
from ..network import Headed, numbered
from .bidirectional import MASKS, Trunk, some_tokens
from .heads import Rounding
from .hub import FAILURES, transformers

FORMS = ("additive", "boolean", "bias")
"""Forms of a mask that can say of each position which others it sees."""
TELLS: tuple[dict[str, Any], ...] = ({}, {"store_kv": True})
"""What may have to be said so that keys and values are added to a cache; the second is SDAR's."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """Keys and values of the finished blocks that a sequence begins with: of each layer (heads, positions, size)."""

    layers: list[tuple[Tensor, Tensor]]
    length: int


@dataclass(eq=False)
class Kept:
    """Prefixes by their tokens, for as long as an evaluation of a sequence that begins so is held, as runs do; and
    for how many positions the network was run."""

    prefixes: WeakValueDictionary[bytes, Prefix] = field(default_factory=WeakValueDictionary)
    positions: int = 0

    def longest(self, tokens: Int64[Tensor, " n"]) -> Prefix | None:
        """The longest known one that `tokens` begin with."""
        for length in sorted({one.length for one in self.prefixes.values()}, reverse=True):
            found = self.prefixes.get(_key(tokens[:length])) if length <= len(tokens) else None
            if found is not None:
                return found
        return None


def _key(tokens: Int64[Tensor, " n"]) -> bytes:
    return tokens.numpy().tobytes()


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences, and which of their positions are there."""

    x: Int64[Tensor, "b d"]
    valid: Bool[Tensor, "b d"]
    block: int

    @staticmethod
    def of(x: Int64[Tensor, "b d"], valid: Bool[Tensor, "b d"] | None, block: int) -> Batch:
        """With all positions, where it is not said which are valid."""
        return Batch(x, torch.ones_like(x, dtype=torch.bool) if valid is None else valid, block)

    @cached_property
    def places(self) -> Int64[Tensor, "b d"]:
        return numbered(self.valid)

    @cached_property
    def blocks(self) -> Int64[Tensor, "b d"]:
        return self.places // self.block

    def __getitem__(self, rows: list[int]) -> Batch:
        return Batch(self.x[rows], self.valid[rows], self.block)

    def seen(self, queries: Int64[Tensor, "b q"], keys: Int64[Tensor, "b k"]) -> Bool[Tensor, "b 1 q k"]:
        """Whether the position of a query sees that of a key; a key below 0 is at no position."""
        at = keys.clamp(min=0)
        there = (keys >= 0) & self.valid.gather(1, at)
        earlier = self.blocks.gather(1, at).unsqueeze(1) <= self.blocks.gather(1, queries).unsqueeze(2)
        return (there.unsqueeze(1) & earlier).unsqueeze(1)


@runtime_checkable
class SeesInBlocks(Protocol):
    """A network in which no block sees those behind it, run on some positions of sequences."""

    block: int
    """Positions of a block."""

    @property
    def keeps(self) -> bool:
        """Whether it can be run behind keys and values of other positions."""
        ...

    @property
    def states(self) -> int:
        """What stands for a masked position."""
        ...

    def cache(self) -> Any:
        """What keys and values are added to, empty: a cache of transformers', or one that is used like it."""
        ...

    def __call__(self, batch: Batch, start: list[int], count: int, past: Any = None) -> Float[Tensor, "b n h"]:
        """Rows of `count` positions of each sequence, from `start` on. What `past` holds are the positions before, with
        nothing before those of shorter ones."""
        ...


def whole(network: SeesInBlocks, batch: Batch) -> Float[Tensor, "b d h"]:
    """Rows of all positions."""
    return network(batch, [0] * len(batch.x), batch.x.shape[1])


class BlockTrunk(nn.Module):
    """Rows of a model that is told, in the form of mask that it takes, that no block sees those behind it."""

    def __init__(self, trunk: Trunk, block: int) -> None:
        super().__init__()
        self.trunk, self.block = trunk, block
        self.mask, self.numbers, self.told = FORMS[0], True, None

    def settle(self, mask: str, numbers: bool, told: dict[str, Any] | None) -> None:
        """The form of mask, whether positions can be numbered, and what makes the model keep keys and values, if it
        can."""
        self.mask, self.numbers, self.told = mask, numbers, told

    @property
    def keeps(self) -> bool:
        return self.told is not None

    @property
    def states(self) -> int:
        return self.trunk.vocabulary.states

    def cache(self) -> Any:
        return transformers().DynamicCache()

    def forward(self, batch: Batch, start: list[int], count: int, past: Any = None) -> Float[Tensor, "b n h"]:
        """There is always a position that nobody sees: where all see all, SDAR's code wants flash-attention."""
        words, device = self.trunk.vocabulary, batch.x.device
        first, held = torch.tensor(start, device=device).unsqueeze(1), 0 if past is None else past.get_seq_length()
        lead = 1 if held == 0 and self.numbers else 0
        queries = (first + torch.arange(-lead, count, device=device)).clamp(min=0)
        keys = first + torch.arange(-max(held, lead), count, device=device)
        ids = batch.x.gather(1, queries)
        if bool((ids == words.mask).any()):
            raise ValueError(f"x holds {words.mask}, the checkpoint's own mask token: give FREE where to write")
        ids, seen = ids.masked_fill(ids == words.states, words.mask), batch.seen(queries, keys)
        name, make = MASKS[self.mask]
        inputs: dict[str, Any] = {name: make(batch.valid, seen, self.trunk.model.dtype)}
        if past is not None:
            inputs |= self.told or {}
        if self.numbers:
            inputs["position_ids"] = batch.places.gather(1, queries)
        return self.trunk.run(ids, past, **inputs)[:, lead:].to(device)


@dataclass(frozen=True, eq=False)
class InBlocks:
    """A model that sees in blocks, as what a `Network` evaluates.

    It is run on the block with the first mask, behind what is kept of those before; rows of other positions are found by
    a run on all of them, if they are asked for.
    """

    trunk: SeesInBlocks
    head: Callable[[Tensor], Tensor]
    keep: bool = True
    """Say False to run the network on all positions, always."""
    kept: Kept = field(default_factory=Kept)

    def __call__(
        self, x: Int64[Tensor, "b d"], t: Float64[Tensor, " b"], valid: Bool[Tensor, "b d"] | None = None
    ) -> Conditionals:
        batch = Batch.of(x, valid, self.trunk.block)
        if not self.keep or not self.trunk.keeps:
            self.kept.positions += x.numel()
            return Headed(whole(self.trunk, batch).flatten(0, 1), self.head)
        return self._present(batch)

    def _present(self, batch: Batch) -> Rows:
        x, blocks, states = batch.x, batch.blocks, self.trunk.states
        masked = (x == states) & batch.valid
        block = blocks.gather(1, masked.int().argmax(1, keepdim=True))
        written = masked.any(1)  # nobody asks about sequences without masks
        begins = torch.where(written, (blocks < block).sum(1), 0).tolist()
        ends = torch.where(written, (blocks <= block).sum(1), 0).tolist()
        tokens = torch.where(batch.valid, x, -1).cpu()
        known = [self.kept.longest(tokens[row, :begin]) for row, begin in enumerate(begins)]
        groups: dict[int, list[int]] = {}
        for row, prefix in enumerate(known):
            if ends[row]:
                groups.setdefault(0 if prefix is None else ends[row] - prefix.length, []).append(row)
        hidden, held, taken = [], [], 0
        index = torch.full(x.shape, -1, dtype=torch.int64, device=x.device)
        for count, rows in groups.items():
            before = [one for row in rows if (one := known[row]) is not None]
            start = [one.length for one in before] or [0] * len(rows)
            count = count or max(ends[row] for row in rows)
            cache = _joined(self.trunk.cache(), before)
            out = self.trunk(batch[rows], start, count, cache)
            self.kept.positions += len(rows) * count
            for n, row in enumerate(rows):
                begin, end = begins[row], ends[row]
                held.append(self._keep(tokens[row, :begin], known[row], cache, n, count - (begin - start[n])))
                index[row, begin:end] = torch.arange(taken, taken + end - begin, device=x.device)
                hidden.append(out[n, begin - start[n] : end - start[n]])
                taken += end - begin
        return Rows(self, batch, torch.cat(hidden) if hidden else None, index.flatten(), held)

    def _keep(
        self, tokens: Int64[Tensor, " n"], known: Prefix | None, cache: Any, row: int, behind: int
    ) -> Prefix | None:
        """The prefix `tokens`, which a cache holds before the last `behind` positions, now known."""
        if len(tokens) == 0 or (known is not None and known.length == len(tokens)):
            return known
        layers = [
            tuple(part[row, :, : part.shape[2] - behind][:, -len(tokens) :].clone() for part in (one.keys, one.values))
            for one in cache.layers
        ]
        return self.kept.prefixes.setdefault(_key(tokens), Prefix(layers, len(tokens)))


def _joined(cache: Any, prefixes: list[Prefix]) -> Any:
    """An empty cache, filled with one of `prefixes` in each row, with zeros at one position or more before it."""
    most = max((one.length for one in prefixes), default=0) + 1

    def padded(part: Tensor) -> Tensor:
        return nn.functional.pad(part, (0, 0, most - part.shape[1], 0))

    for n in range(len(prefixes[0].layers) if prefixes else 0):
        cache.update(*(torch.stack([padded(one.layers[n][kind]) for one in prefixes]) for kind in (0, 1)), n)
    return cache


@dataclass(frozen=True, eq=False)
class Rows:
    """Conditionals of some positions, and of the others by a run on all, if they are asked for."""

    model: InBlocks
    batch: Batch
    hidden: Float[Tensor, "n h"] | None
    index: Int64[Tensor, " bd"]
    """The row in `hidden` of each position, -1 if there is none."""
    held: list[Prefix | None]
    """What these sequences begin with: it is kept as long as this is."""

    @cached_property
    def whole(self) -> Headed:
        self.model.kept.positions += self.batch.x.numel()
        return Headed(whole(self.model.trunk, self.batch).flatten(0, 1), self.model.head)

    def logits(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        rows = self.index[positions]
        if self.hidden is None or bool((rows < 0).any()):
            return self.whole.logits(positions)
        return Headed(self.hidden, self.model.head).logits(rows)

    def duplicates(self) -> None:
        return None


# --- what a model can do, found out by trying

BLOCK, TOKENS, PADDING = 2, 6, 3
"""With what a model is tried: three blocks, and so much padding before them."""


def probe(trunk: Trunk, block: int, device: torch.device) -> BlockTrunk:
    """The model, told to see in blocks in a form that it takes."""
    tried = BlockTrunk(trunk, BLOCK)
    numberings = (True, False) if "position_ids" in trunk.takes else (False,)
    for numbers in numberings:
        for mask in (mask for mask in FORMS if MASKS[mask][0] in trunk.takes):
            tried.settle(mask, numbers, None)
            try:
                if not _sees_in_blocks(tried, device):
                    continue
            except FAILURES:  # it wants to be told otherwise
                continue
            made = BlockTrunk(trunk, block)
            made.settle(mask, numbers, next((told for told in TELLS if _keeps(tried, told, device)), None))
            return made
    remedy = "it cannot be told which positions see which others; give a model that takes a mask for each position"
    raise ValueError(f"source={type(trunk.model).__name__!r}: {remedy}")


def _tried(trunk: BlockTrunk, device: torch.device) -> Int64[Tensor, "1 n"]:
    words = trunk.trunk.vocabulary
    x = some_tokens(trunk.trunk, TOKENS, 0, device)
    return x.masked_fill(x == words.mask, words.states)


def _sees_in_blocks(trunk: BlockTrunk, device: torch.device) -> bool:
    """Whether a change shows in its own block and those behind it, and in no other; whatever stands in padding."""
    x, words = _tried(trunk, device), trunk.trunk.vocabulary
    with Rounding() as rounding:
        plain = whole(trunk, Batch.of(x, None, BLOCK))
    for place in (BLOCK - 1, 2 * BLOCK - 1):
        other = x.clone()
        other[:, place] = 0 if words.mask else 1  # it was masked
        changed, begin = whole(trunk, Batch.of(other, None, BLOCK)), place // BLOCK * BLOCK
        same = begin == 0 or rounding.equal(changed[:, :begin], plain[:, :begin])
        if not same or any(rounding.equal(changed[:, n], plain[:, n]) for n in range(begin, TOKENS)):
            return False
    if not trunk.numbers:
        return True
    outputs = []
    for seed in (1, 2):
        padded = torch.cat([some_tokens(trunk.trunk, PADDING, seed, device), x], 1)
        padded = padded.masked_fill(padded == words.mask, words.states)
        valid = (torch.arange(PADDING + TOKENS, device=device) >= PADDING).unsqueeze(0)
        outputs.append(whole(trunk, Batch.of(padded, valid, BLOCK))[:, PADDING:])
    return rounding.equal(*outputs) and rounding.same(outputs[0], plain)


def _keeps(trunk: BlockTrunk, told: dict[str, Any], device: torch.device) -> bool:
    """Whether a run behind kept keys and values, with nothing before those of a shorter sequence, is as one in full."""
    if not {"past_key_values", "use_cache"} <= trunk.trunk.takes or not trunk.numbers:
        return False
    trunk.settle(trunk.mask, trunk.numbers, told)
    x = _tried(trunk, device).repeat(2, 1)
    batch, starts, count = Batch.of(x, None, BLOCK), [2 * BLOCK, BLOCK], BLOCK
    try:
        with Rounding() as rounding:
            plain = whole(trunk, batch)
        cache = trunk.cache()
        first = trunk(batch, [0, 0], TOKENS, cache)
        if cache.get_seq_length() != 1 + TOKENS:
            return False
        cut = [
            Prefix([(one.keys[n, :, 1 : 1 + length], one.values[n, :, 1 : 1 + length]) for one in cache.layers], length)
            for n, length in enumerate(starts)
        ]
        second = trunk(batch, starts, count, _joined(trunk.cache(), cut))
    except FAILURES:
        return False
    wanted = torch.stack([plain[n, start : start + count] for n, start in enumerate(starts)])
    return rounding.same(first, plain) and rounding.same(second, wanted)
