"""A network that costs nothing: fixed logits that are looked up, in a time that is measured again and taken off."""

from __future__ import annotations

import time

import torch
from torch import Tensor

import thetaleap as tl
from thetaleap.solvers.base import Solver


class FreeNetwork:
    """A trunk that gives the number of each position and a head that looks up its logits, for `batch` samples.

    Time is the processor time of this thread: others that run on the machine do not count. To ask for it may take as
    long as a step, so that the look-ups are repeated after a run, and timed together.
    """

    def __init__(self, batch: int, length: int, rows: Tensor) -> None:
        """`rows`, (n, S), are the logits of the positions, over and over if there are fewer than positions."""
        self.batch, self.rows = batch, rows
        self.asked: list[Tensor] = []
        self.numbers = (torch.arange(batch * length) % len(rows)).double().view(batch, length, 1)
        process = tl.Masked(states=rows.shape[1])
        self.model = tl.from_network(process, length=length, trunk=self._trunk, head=self._head)

    def _trunk(self, x: Tensor, t: Tensor) -> Tensor:
        return self.numbers[: len(x)]

    def _head(self, hidden: Tensor) -> Tensor:
        self.asked.append(hidden)
        return self.rows[hidden[:, 0].long()]

    def sample(self, solver: Solver, steps: int) -> float:
        """Draw the batch; gives the seconds per step that it takes outside the network."""
        self.asked.clear()
        start = time.thread_time()
        out = tl.sample(self.model, solver, steps=steps, num=self.batch, batch_size=self.batch, progress=False)
        middle = time.thread_time()
        for hidden in self.asked:
            _ = self.rows[hidden[:, 0].long()]
        taken = (middle - start) - (time.thread_time() - middle)
        assert int(out.x.max()) < self.model.process.states, "a mask is left"
        return taken / steps
