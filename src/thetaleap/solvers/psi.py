"""Psi samplers: some positions go by the reverse process, the others are guessed clean and noised again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.fields import knob
from ..core.jumps import Rows, jump, move
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times, at, column
from .base import Solver, Step
from .remdm import SCHEDULE, sigma_max


@dataclass(frozen=True)
class Psi(Solver):
    """Draw each position from ``kappa q(x_s | x_t, x_0) + (1 - kappa) q(x_s | x_0)``, x_0 from its posterior given x_t
    (Deschenaux, Gulcehre and Sahoo 2026).

    The first part is the exact kernel, the second noises a guess of the clean token down to s; both leave the marginals
    of the process. The second forgets what the position was but for that guess, and so mends it. By `schedule`, with
    ``sigma_max = min(1, (1 - alpha_s)/alpha_t)``:

    - "constant": ``1 - kappa = eta``;
    - "cap": ``1 - kappa = min(eta, sigma_max)/(1 - alpha_s)``, at most 1;
    - "rescale": ``1 - kappa = eta sigma_max/(1 - alpha_s)``, at most 1.

    With masks this is `ReMDM` with ``sigma = (1 - kappa)(1 - alpha_s)``; use that.
    """

    schedule: Literal["constant", "cap", "rescale"] = knob("rescale", SCHEDULE, choices=("constant", "cap", "rescale"))
    eta: float = knob(0.05, "How much is noised again", low=0, high=1, closed="both")
    evaluations = 1
    processes = "without masks"
    when = "to mend with many steps what few have done"
    exact_kernels = True

    def check(self, process: Process, length: int) -> None:
        if process.mask is not None:
            raise ValueError("solver=Psi on process=Masked: with masks it is ReMDM; use ReMDM() here")

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        now, process = reverse.evaluate(x, t), reverse.process
        alpha_t, alpha_s = reverse.alpha(t), reverse.alpha(s)
        again, _ = noise(Draw.KEEP).flip(torch.where(reverse.free, self._share(alpha_t, alpha_s), 0.0))
        rest = reverse.free.flatten().index_fill(0, again, False).view_as(x)

        def noised(rows: Int64[Tensor, " k"]) -> Float64[Tensor, "k S"]:
            clean = now.probabilities(rows) * process.likelihood(x.flatten()[rows], at(t, rows, x.shape[1]))
            return process.noised(clean / clean.sum(1, keepdim=True), at(alpha_s, rows, x.shape[1]))

        y = move(process, x, now, alpha_t, alpha_s, noise(Draw.MOVE), rest)
        return Step(jump(y, again, Rows(noised, again, None, now.at_once), noise(Draw.VALUE), False, None))

    def _share(self, alpha_t: Times, alpha_s: Times) -> Float64[Tensor, " ..."]:
        """``1 - kappa``."""
        if self.schedule == "constant":
            return torch.tensor(self.eta, dtype=torch.float64)
        most = sigma_max(alpha_t, alpha_s)
        sigma = most.clamp(max=self.eta) if self.schedule == "cap" else self.eta * most
        return column((sigma / (1 - alpha_s)).nan_to_num(0.0, posinf=0.0).clamp(max=1))
