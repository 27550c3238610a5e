"""A network that costs nothing: fixed logits that are looked up, on a clock that stops while they are."""

from __future__ import annotations

import time

import torch
from torch import Tensor

import thetaleap as tl
from thetaleap.solvers.base import Solver


class FreeNetwork:
    """A trunk that gives the number of each site and a head that looks up its logits, for `batch` samples.

    Time is the processor time of this thread: others that run on the machine do not count.
    """

    def __init__(self, batch: int, length: int, rows: Tensor) -> None:
        """`rows`, (n, S), are the logits of the sites, over and over if there are fewer than sites."""
        self.batch, self.rows, self.spent = batch, rows, 0.0
        self.numbers = (torch.arange(batch * length) % len(rows)).double().view(batch, length, 1)
        process = tl.Masked(states=rows.shape[1])
        self.model = tl.from_network(process, length=length, trunk=self._trunk, head=self._head)

    def _trunk(self, x: Tensor, t: Tensor) -> Tensor:
        return self.numbers[: len(x)]

    def _head(self, hidden: Tensor) -> Tensor:
        start = time.thread_time()
        found = self.rows[hidden[:, 0].long()]
        self.spent += time.thread_time() - start
        return found

    def sample(self, solver: Solver, steps: int) -> float:
        """Draw the batch; gives the seconds per step that it takes outside the network."""
        self.spent, start = 0.0, time.thread_time()
        out = tl.sample(self.model, solver, steps=steps, num=self.batch, batch_size=self.batch, progress=False)
        taken = time.thread_time() - start - self.spent
        assert int(out.x.max()) < self.model.process.states, "a mask is left"
        return taken / steps
