"""What a run remembers of every sample, and how the loop picks samples from it and puts them back.

Memory is tensors and evaluations, each with the batch first, in tuples and frozen dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from . import _fast
from .evaluation import Evaluation

Memory = Any
"""Tensors and evaluations, in tuples and frozen dataclasses; all else in it is the same for every sample."""


def mapped(change: Callable[..., Any], memory: Memory, *others: Memory) -> Memory:
    """`change` of every tensor and evaluation in `memory`, and of those that stand there in the `others`."""
    if isinstance(memory, Tensor | Evaluation):
        return change(memory, *others)
    if isinstance(memory, tuple):
        return tuple(mapped(change, *parts) for parts in zip(memory, *others, strict=True))
    if is_dataclass(memory) and not isinstance(memory, type):
        parts = {
            one.name: mapped(change, getattr(memory, one.name), *(getattr(other, one.name) for other in others))
            for one in fields(memory)
        }
        return replace(memory, **parts)
    return memory


def leaves(memory: Memory) -> list[Tensor | Evaluation]:
    """All tensors and evaluations in `memory`."""
    found: list[Tensor | Evaluation] = []
    mapped(lambda leaf: found.append(leaf) or leaf, memory)
    return found


def take(memory: Memory, rows: Int64[Tensor, " k"]) -> Memory:
    """The memory of the samples at `rows`."""
    return mapped(lambda leaf: leaf.index_select(0, rows) if isinstance(leaf, Tensor) else leaf[rows], memory)


def put(memory: Memory, rows: Int64[Tensor, " k"], part: Memory) -> Memory:
    """`memory` with `part` for the samples at `rows`."""
    if isinstance(memory, tuple):
        return tuple(put(one, rows, new) for one, new in zip(memory, part, strict=True))
    if isinstance(memory, History):
        return memory.replaced(rows, part)

    def change(old: Tensor | Evaluation, new: Any) -> Tensor | Evaluation:
        return old.index_copy(0, rows, new) if isinstance(old, Tensor) else old.replaced(rows, new)

    return mapped(change, memory, part)


@dataclass(frozen=True, eq=False)
class History:
    """The last evaluations of every sample, the newest first."""

    taken: Int64[Tensor, " b"]
    """How many each sample has had in all. Where that is less than there are here, the rest is others' and unused."""
    past: tuple[Evaluation, ...] = ()

    @staticmethod
    def none(x: Int64[Tensor, "b d"]) -> History:
        """Of samples that have not been evaluated."""
        return History(torch.zeros(len(x), dtype=torch.int64, device=x.device))

    def before(self, now: Evaluation) -> Evaluation:
        """The oldest evaluation of each sample that is kept; `now` itself for a sample that has none."""
        taken, most = _fast.common(self.taken), len(self.past)
        if taken is not None:
            return self.past[min(int(taken), most) - 1] if taken else now
        depth = self.taken.clamp(max=most)
        oldest = now
        for n, evaluation in enumerate(self.past, 1):
            rows = torch.nonzero(depth == n).flatten()
            oldest = oldest.replaced(rows, evaluation[rows]) if len(rows) else oldest
        return oldest

    def after(self, now: Evaluation, window: int) -> History:
        """The same after one more, of which the last `window` are kept."""
        return History(self.taken + 1, (now, *self.past)[:window])

    def replaced(self, rows: Int64[Tensor, " k"], by: History) -> History:
        """The same, but with `by` for the samples at `rows`."""
        spread = torch.zeros_like(self.taken).index_copy(0, rows, torch.arange(len(rows), device=rows.device))
        past = [
            self.past[n].replaced(rows, new) if n < len(self.past) else new[spread] for n, new in enumerate(by.past)
        ]
        return History(self.taken.index_copy(0, rows, by.taken), (*past, *self.past[len(past) :]))
