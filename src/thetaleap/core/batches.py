"""Sequences in batches, so that more of them can be gone through than fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

Seen = Callable[[int], None]
"""Called with the number of sequences that were gone through."""


@dataclass(frozen=True, eq=False)
class Batches:
    """Sequences of one length, to be gone through as often as one likes.

    Those of a folder are read from it each time, a part at a time.
    """

    num: int
    length: int
    least: int
    """The smallest token."""
    most: int
    """The largest token."""
    read: Callable[[], Iterable[Int64[Tensor, "n d"]]]
    seen: Seen = lambda count: None

    @staticmethod
    def of(x: Int64[Tensor, "num d"] | Batches) -> Batches:
        """Those of a tensor are one batch."""
        if isinstance(x, Batches):
            return x
        num, length = x.shape
        least, most = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
        return Batches(num, length, least, most, lambda: [x])

    def __len__(self) -> int:
        return self.num

    @property
    def shape(self) -> tuple[int, int]:
        return self.num, self.length

    def __getitem__(self, some: slice) -> Batches:
        """A stretch of them, in order. What comes before is read, and passed over."""
        start, stop, _ = some.indices(self.num)

        def read() -> Iterator[Tensor]:
            at = 0
            for batch in self.read():
                if at + len(batch) > start:
                    yield batch[max(0, start - at) : stop - at]
                at += len(batch)
                if at >= stop:
                    return

        return replace(self, num=max(0, stop - start), read=read)

    def split(self, size: int) -> Iterator[Int64[Tensor, "n d"]]:
        """All, in batches of `size`; the last may have fewer.

        What is computed of such a batch does not depend on how the sequences are stored, to the last bit.
        """
        held, count = list[Tensor](), 0
        for batch in self.read():
            for piece in batch.tensor_split(list(range(size - count, len(batch), size))):
                held.append(piece)
                count += len(piece)
                if count == size:
                    yield torch.cat(held)
                    self.seen(count)
                    held, count = [], 0
        if count:
            yield torch.cat(held)
            self.seen(count)

    def tensor(self) -> Int64[Tensor, "num d"]:
        """All in one."""
        return torch.cat([torch.zeros((0, self.length), dtype=torch.int64), *self.read()])

    def watched(self, seen: Seen) -> Batches:
        """The same; `split` tells how far it is."""
        return replace(self, seen=seen)
