"""The setting of published code beside the one of this library, one difference at a time. Not for use.

Code by people near the paper's authors differs in six ways from what the paper writes down.

- "drop": of Poisson counts, positions with more than one event are left as they are.
- "clamp": entries of the extrapolated rate below 0 become 0, which makes the total too large. Without it they become 0,
  and the others are scaled so that the total is what it was.
- "grid": times are ``linspace(1, 0.01, n)``, so that there are n - 1 steps, and 1% of the masks are left.
- "argmax": these become the likeliest value, where the last evaluation could draw them.
- "ramp": the weight of guidance is w (1 - t), and so 0 at the beginning.
- "half": rates are rounded to half precision; what is below 6e-8 is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.checks import require, require_choice, require_number
from ..core.evaluation import Duplicates
from ..core.intensity import Combined, Frozen
from ..core.jumps import leap
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.processes import Bound, Process
from ..core.reverse import Reverse
from ..core.times import Times, shared_pair
from ..solvers.base import Solver, Step, require_masked
from .legacy import likeliest

QUIRKS = ("drop", "clamp", "grid", "argmax", "ramp", "half")
METHODS = ("tau-leaping", "trapezoidal")
LAST = 0.01
"""Where published times end."""
ROOM = 1 + 2.0**-10
"""By which rounding to half precision may raise a total."""


@dataclass(frozen=True)
class Published(Solver):
    """theta-Trapezoidal, or tau-leaping, with some of `QUIRKS`; without any, later events overwrite earlier ones.

    "grid" and "ramp" are not matters of a step: see `walk` and `ramp`.
    """

    method: Literal["tau-leaping", "trapezoidal"] = "trapezoidal"
    quirks: tuple[str, ...] = QUIRKS
    theta: float = 0.5
    evaluations = 2

    def __post_init__(self) -> None:
        require_choice("method", self.method, METHODS)
        for name in self.quirks:
            require_choice("quirks", name, QUIRKS)
        require_number("theta", self.theta, 0, 1)
        object.__setattr__(self, "evaluations", 1 if self.method == "tau-leaping" else 2)

    def check(self, process: Process, length: int) -> None:
        require_masked(self, process, "Tweedie()")

    def walk(self, cost: int, nfe: int) -> dict[str, Any]:
        """What `sample` is told for a budget of which one evaluation fills what is left."""
        steps = (nfe // cost - 1) // (self.evaluations or 1)
        least = cost * ((self.evaluations or 1) + 1)
        require(
            steps > 0, "nfe", nfe, f"{self.method} takes {self.evaluations} a step, and one to finish: at least {least}"
        )
        if "grid" in self.quirks:
            return {"grid": torch.linspace(1, LAST, steps + 1, dtype=torch.float64)}
        return {"steps": steps}

    def begin(self, reverse: Reverse, x: Tensor, stops: Float64[Tensor, "#b m"], noise: Noise) -> Memory:
        return stops[:, -1].expand(len(x)).to(x.device)

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        (high, low), rule = shared_pair(t, s), "reject" if "drop" in self.quirks else "exact"
        before = reverse.intensity(x, high)
        if self.method == "tau-leaping":
            x, _ = leap(x, self._rates(before), high - low, noise(Draw.PREDICT), rule)
        else:
            rho = high - self.theta * (high - low)
            y, _ = leap(x, self._rates(before), high - rho, noise(Draw.PREDICT), rule)
            ahead = Combined(y, before, reverse.intensity(y, rho), 1 / (2 * self.theta * (1 - self.theta)))
            x, _ = leap(y, self._rates(ahead), rho - low, noise(Draw.CORRECT), rule)
        if "argmax" in self.quirks and bool(s[0] == memory[0]):
            left = torch.nonzero(reverse.left(x)).flatten()
            if len(left):
                x = x.index_copy(0, left, likeliest(x[left], reverse[left].evaluate(x[left], s[left])))
        return Step(x, memory)

    def _rates(self, of: Frozen | Combined) -> Rates:
        return Rates(of, "clamp" in self.quirks, "half" in self.quirks)


@dataclass(frozen=True)
class Rates:
    """Intensities as they are used: without negative ones, and maybe rounded."""

    of: Frozen | Combined
    clamp: bool
    half: bool
    tight = False

    @property
    def at_once(self) -> int:
        return self.of.at_once

    def bound(self) -> Bound:
        return self.of.bound() * ROOM if self.half else self.of.bound()

    def rows(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        rows = self.of.rows(positions)
        if isinstance(self.of, Combined):
            total = rows.sum(1, keepdim=True).clamp_min(0)
            rows = rows.clamp_min(0)
            rows = rows if self.clamp else rows * torch.where(total > 0, total / rows.sum(1, keepdim=True), 0.0)
        return rows.to(torch.float16).to(torch.float64) if self.half else rows

    def duplicates(self) -> Duplicates | None:
        return self.of.duplicates()


def ramp(weight: float) -> Callable[[Tensor], Tensor]:
    """Of guidance: ``w (1 - t)``."""
    return lambda t: weight * (1 - t)
