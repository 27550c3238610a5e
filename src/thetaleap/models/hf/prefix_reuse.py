"""Keys and values of what is around a block, kept while the block is written: faster, and not the same model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ...core.checks import require, require_count
from ...core.evaluation import Conditionals, Denoiser, Duplicates, Gathered
from ...core.wrapped import Wrapped, own_block
from ..network import Headed, Network, Split
from .bidirectional import Trunk, some_tokens
from .heads import Rounding
from .hub import FAILURES, first_line, transformers

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (b, heads, positions, size)."""


@dataclass(frozen=True)
class Kept:
    """One sample's last full run."""

    x: Int64[Tensor, " d"]
    start: int
    """The first position that is run again."""
    stop: int
    """The position behind the last one that is."""
    layers: Layers
    """Of the other positions."""
    hidden: Float[Tensor, "first h"]
    """Rows of the positions before the first masked one."""
    behind: Float[Tensor, "rest h"]
    """Rows of the positions from `stop` on."""

    @property
    def positions(self) -> tuple[int, int, int]:
        return self.start, self.stop, len(self.hidden)

    def serves(self, x: Int64[Tensor, " d"], mask: int, block: int) -> bool:
        """Whether `x` came of this by writing to masked positions, and the first that is left is in the same block."""
        before, left = self.x == mask, torch.nonzero(x == mask)
        same = bool((before | (self.x == x)).all())
        return same and len(left) > 0 and int(before[: int(left[0])].sum()) < block


@dataclass(eq=False)
class Cell:
    """Where a sample's last full run is kept, for as long as someone holds an evaluation of the sample, as runs do."""

    kept: Kept | None = None


@dataclass(eq=False)
class Runs:
    """Evaluations of samples for which the network was run, on all positions or on part of them; and what is kept."""

    full: int = 0
    partial: int = 0
    cells: WeakValueDictionary[tuple[int, int], Cell] = field(default_factory=WeakValueDictionary)


@dataclass(frozen=True)
class Holding:
    """`inner`, and what is kept of its samples."""

    inner: Conditionals
    cells: list[Cell]

    def logits(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        return self.inner.logits(positions)

    def duplicates(self) -> Duplicates | None:
        return self.inner.duplicates()


@dataclass(frozen=True)
class ApproximatePrefix(Wrapped):
    """A model that keeps keys and values of the positions before the block that is written; or also of those behind."""

    model: Network
    head: Callable[[Tensor], Tensor]
    trunk: Trunk
    block: int
    dual: bool = False
    """Whether those behind the block are kept too."""
    runs: Runs = field(default_factory=Runs)
    samples: Int64[Tensor, " b"] | None = None

    def of(self, samples: Int64[Tensor, " b"]) -> ApproximatePrefix:
        return replace(self, model=self.model.of(samples), samples=samples)

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        cells, seen = self._cells(len(x)), x.cpu()
        mask = self.process.states
        groups: dict[tuple[int, int, int] | None, list[int]] = {}
        for row, (cell, one) in enumerate(zip(cells, seen, strict=True)):
            served = cell.kept is not None and cell.kept.serves(one, mask, self.block)
            groups.setdefault(cell.kept.positions if cell.kept is not None and served else None, []).append(row)
        parts, part, place = [], torch.zeros(len(x), dtype=torch.int64), torch.zeros(len(x), dtype=torch.int64)
        for n, (kept, some) in enumerate(groups.items()):
            rows = torch.tensor(some, device=x.device)
            valid = None if self.model.valid is None else self.model.valid.to(x.device)[rows]
            inputs = (x[rows], t.to(x.device).expand(len(x))[rows], valid)
            if kept is None or kept[1] - kept[0] == x.shape[1]:
                self.runs.full += len(some)
            else:
                self.runs.partial += len(some)
            run = self._anew if kept is None else self._behind
            parts.append(Headed(run(*inputs, [cells[row] for row in some]).flatten(0, 1), self.head))
            part[some], place[some] = n, torch.arange(len(some))
        return Holding(Gathered(tuple(parts), part.to(x.device), place.to(x.device), x.shape[1]), cells)

    def _cells(self, batch: int) -> list[Cell]:
        """One for each row. A sample may be there twice, as with guidance, and has then a second one."""
        cells, times = [], Counter[int]()
        for sample in range(batch) if self.samples is None else self.samples.tolist():
            key = (sample, times[sample])
            times[sample] += 1
            cells.append(self.runs.cells.setdefault(key, Cell()))
        return cells

    def _anew(self, x: Tensor, t: Tensor, valid: Tensor | None, cells: list[Cell]) -> Float[Tensor, "b d h"]:
        """Rows of a full run, which is kept."""
        cache = _cache([])
        hidden = self.trunk(x, t, valid, cache)
        for row, cell in enumerate(cells):
            one, masked = x[row].cpu(), torch.nonzero(x[row] == self.process.states)
            first = int(masked[0]) if len(masked) else 0
            start = self._start(first, None if valid is None else valid[row])
            stop = int(masked[self.block - 1]) + 1 if self.dual and len(masked) > self.block else x.shape[1]
            kept = hidden[row, :first].clone(), hidden[row, stop:].clone()
            cell.kept = Kept(one, start, stop, _outside(cache, start, stop, row), *kept)
        return hidden

    def _behind(self, x: Tensor, t: Tensor, valid: Tensor | None, cells: list[Cell]) -> Float[Tensor, "b d h"]:
        """Rows of a run on the positions that are not kept, which are the same of all."""
        kept = [cell.kept for cell in cells if cell.kept is not None]
        each = zip(*(one.layers for one in kept), strict=True)
        cache = _cache([(torch.stack([k for k, _ in all]), torch.stack([v for _, v in all])) for all in each])
        start, stop, first = kept[0].positions
        last = stop == x.shape[1]
        rows = self.trunk(x, t, valid, cache) if last else self.trunk.within(x, valid, cache, start, stop)
        before, behind = (torch.stack([getattr(one, name) for one in kept]) for name in ("hidden", "behind"))
        return torch.cat([before, rows[:, first - start :], behind], 1)

    def _start(self, first: int, valid: Bool[Tensor, " d"] | None) -> int:
        """The first masked position; or the one to its left that speaks about it, where logits are about the next."""
        if not self.trunk.shifted or first == 0:
            return first
        if valid is None:
            return first - 1
        before = torch.nonzero(valid[:first])
        return int(before[-1]) if len(before) else first


@dataclass(frozen=True)
class Reuse:
    """`approximate_prefix`, or, if it is `dual`, `approximate_dual`, of a model that is yet to come."""

    block: int
    dual: bool = False

    def __call__(self, model: Denoiser) -> ApproximatePrefix:
        return _reusing(model, self.block, self.dual)


def approximate_prefix(model: Denoiser, block: int) -> ApproximatePrefix:
    """`model`, run on part of its positions while a block is written. **This changes what is sampled.**

    The first evaluation of a block is a full one. Until the block is complete, keys and values of the positions before
    it are then taken from there, and the network is run on the block and what comes after it. In a bidirectional
    network those keys and values depend on what is written, so that the conditionals are not the model's own. A sample
    does not depend on what goes with it in a batch.

    ``runs.full`` and ``runs.partial`` say how many evaluations of samples were of which kind.

    Args:
        model: of `llada` or `dream`, after `resized` and `prepare`, and before it is tempered, guided or constrained.
            Its network must take a cache of transformers' as ``past_key_values``, and say with it what it says
            without, as long as nothing changes: this is tried here.
        block: that of `Blocks`.
    """
    return Reuse(block)(model)


def approximate_dual(model: Denoiser, block: int) -> ApproximatePrefix:
    """As `approximate_prefix`, but run on the block alone: keys and values of the positions behind it, which are masked,
    are kept as well (DualCache of Fast-dLLM, Wu et al. 2025, arXiv:2505.22618). **This changes what is sampled.** The
    network must take ``position_ids``."""
    return Reuse(block, dual=True)(model)


def _reusing(model: Denoiser, block: int, dual: bool) -> ApproximatePrefix:
    own = own_block(model)
    remedy = "this model keeps keys and values of finished blocks as it is, exactly; leave approximate reuse out"
    require(own is None, "model", type(model).__name__, remedy)
    split = model.evaluate if isinstance(model, Network) else None
    if not isinstance(model, Network) or not isinstance(split, Split) or not isinstance(split.trunk, Trunk):
        raise TypeError(f"model={type(model).__name__}: give one made by llada or dream, and shape what comes back")
    require_count("block", block)
    trunk = split.trunk
    reason = _refusal(trunk, model.device, dual)
    remedy = f"{reason}, so that no keys and values can be kept; leave approximate reuse out"
    require(not reason, "model", type(trunk.model).__name__, remedy)
    return ApproximatePrefix(model, split.head, trunk, block, dual)


# --- caches of transformers


def _cache(layers: Layers) -> Any:
    """A new one that holds `layers`."""
    cache = transformers().DynamicCache()
    for n, (keys, values) in enumerate(layers):
        cache.update(keys, values, n)
    return cache


def _outside(cache: Any, start: int, stop: int, rows: int | slice) -> Layers:
    """What it holds of the positions before `start` and from `stop` on; copied, so that the rest can go."""

    def kept(part: Tensor) -> Tensor:
        return torch.cat([part[rows, ..., :start, :], part[rows, ..., stop:, :]], -2)

    return [(kept(layer.keys), kept(layer.values)) for layer in cache.layers]


STARTS, PROBE, TOKENS = (0, 1, 2), 6, 8
"""With what a model is tried: sequences of 6 tokens, at these positions among 8."""


def _refusal(trunk: Trunk, device: torch.device, dual: bool) -> str:
    """Why keys and values cannot be kept; empty if they can."""
    if not {"past_key_values", "use_cache"} <= trunk.takes:
        return "it takes no past_key_values"
    if dual and (trunk.form is None or "position_ids" not in trunk.takes):
        return "it cannot be told where positions are"
    x = some_tokens(trunk, TOKENS, 0, device).expand(len(STARTS), -1)
    x = x.masked_fill(x == trunk.vocabulary.mask, trunk.vocabulary.states)
    place = torch.arange(TOKENS, device=device)
    padded = torch.stack([(place >= start) & (place < start + PROBE) for start in STARTS])
    try:
        for valid in (torch.ones_like(padded), padded) if trunk.form is not None else (torch.ones_like(padded),):
            reason = _differs(trunk, x, valid, dual)
            if reason:
                return reason
    except FAILURES as error:
        return f"it does not take what it gave as past_key_values ({first_line(error)})"
    return ""


def _differs(trunk: Trunk, x: Int64[Tensor, "b d"], valid: Bool[Tensor, "b d"], dual: bool) -> str:
    """What is wrong with runs in parts of a sequence that does not change."""
    t, start, whole = torch.ones(len(x), dtype=torch.float64), TOKENS // 2, _cache([])
    with Rounding() as rounding:
        alone = trunk(x, t, valid)
    first = trunk(x, t, valid, whole)
    if whole.get_seq_length() != TOKENS:
        return "it gives no past_key_values back"
    stop = TOKENS - 2 if dual else TOKENS
    kept = _cache(_outside(whole, start, stop, slice(None)))
    second = trunk.within(x, valid, kept, start, stop) if dual else trunk(x, t, valid, kept)
    # logits may be about the next position, and what is said about the very first one is then never asked for
    late = valid.clone()
    late[:, : start + 1] = late[:, stop:] = False
    good = rounding.same(first[valid], alone[valid]) and rounding.same(second[late[:, start:stop]], alone[late])
    return "" if good else "it says something else if run in two parts"
