"""One thread for work made of many small tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread meanwhile; also a decorator.

    A second one gains little on small tensors. Where the machine has other work, the two spend many times longer
    waiting for each other than working: exact laws were seen to take fifteen times as long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
