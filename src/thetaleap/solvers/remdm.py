"""ReMDM: tokens are masked again as the process goes on, with the marginals of the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from ..core.checks import require
from ..core.evaluation import Evaluation
from ..core.fields import knob
from ..core.jumps import unmask
from ..core.memory import Memory
from ..core.noise import Draw, Noise
from ..core.processes import Process
from ..core.reverse import Reverse
from ..core.times import Times, column
from .base import Solver, Step

SCHEDULE = "How the chance of being masked again is set"
PUBLISHED = {"cap": 0.008, "rescale": 0.015, "confidence": 1.0, "loop": 0.02}
"""Of eta, in the authors' runs."""
ETA = "How much is masked again, by default as published"


@dataclass(frozen=True)
class ReMDM(Solver):
    """A step from t to s that masks each token again with probability sigma, and unmasks each mask with probability
    ``(alpha_s - (1 - sigma) alpha_t)/(1 - alpha_t)``, value from c (Wang et al. 2025).

    So a position is masked at time s with probability ``1 - alpha_s``, as ever, for any sigma of at most
    ``sigma_max = min(1, (1 - alpha_s)/alpha_t)``. By `schedule`:

    - "cap": ``sigma = min(eta, sigma_max)``;
    - "rescale": ``sigma = eta sigma_max``;
    - "confidence": ``sigma_l = eta sigma_max softmax(-p)_l`` over the tokens of a sample, p being the probability with
      which each was drawn; masks are unmasked as without sigma;
    - "loop": alpha goes straight up to `alpha_on` at the share `t_on` of the time, stays there until `t_off` with
      ``sigma = min(eta, sigma_max)``, and goes straight up to 1; sigma is 0 but on the level stretch.
    """

    schedule: Literal["cap", "rescale", "confidence", "loop"] = knob("cap", SCHEDULE, choices=tuple(PUBLISHED))
    eta: float | None = knob(None, ETA, low=0, high=1, closed="both")
    t_on: float = knob(0.55, "Share of the time left where the loop begins", low=0, high=1)
    t_off: float = knob(0.05, "Share of the time left where the loop ends", low=0, high=1)
    alpha_on: float = knob(0.9, "Share of tokens that are unmasked in the loop", low=0, high=1)
    evaluations = 1
    processes = "masked"
    when = "to revise what was written, with trained networks and more steps than positions"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.t_off < self.t_on, "t_off", self.t_off, f"must be below t_on = {self.t_on:g}: time runs down")

    def reaches_data(self, process: Process) -> bool:
        return True

    def absorbing(self, process: Process) -> bool:
        return False

    def begin(self, reverse: Reverse, x: Tensor, stops: Tensor, noise: Noise) -> Memory:
        return torch.ones_like(x, dtype=torch.float64) if self.schedule == "confidence" else ()

    def step(self, reverse: Reverse, x: Tensor, t: Times, s: Times, noise: Noise, memory: Memory) -> Step:
        alpha_t, alpha_s = (self._alpha(reverse, time) for time in (t, s))
        now = reverse.evaluate(x, self._time(reverse, t, alpha_t))
        masks = reverse.active(x)
        sigma = self._sigma(reverse, masks, t, alpha_t, alpha_s, memory)
        shown = torch.where(alpha_s < 1, (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t), 1.0).clamp(max=1)
        positions, numbers = noise(Draw.MOVE).flip(torch.where(masks, shown, 0.0))
        again, _ = noise(Draw.KEEP).flip(torch.where(reverse.free & ~masks, sigma, 0.0))
        x = unmask(x, positions, now, noise(Draw.MOVE), numbers)
        memory = _recorded(memory, now, x, positions) if self.schedule == "confidence" else ()
        return Step(x.flatten().index_fill(0, again, reverse.process.states).view_as(x), memory)

    def _sigma(
        self, reverse: Reverse, masks: Tensor, t: Times, alpha_t: Tensor, alpha_s: Tensor, drawn: Memory
    ) -> Float64[Tensor, " ..."]:
        eta, most = PUBLISHED[self.schedule] if self.eta is None else self.eta, sigma_max(alpha_t, alpha_s)
        if self.schedule == "rescale":
            return eta * most
        if self.schedule == "confidence":
            doubt = torch.where(reverse.free & ~masks, -drawn, -torch.inf)
            return eta * most * torch.softmax(doubt, 1).nan_to_num(0.0)  # a sample of masks has no token to mask
        u = column(t / reverse.start)
        level = (u > self.t_off) & (u <= self.t_on) if self.schedule == "loop" else True
        return torch.where(torch.as_tensor(level), most.clamp(max=eta), 0.0)

    def _alpha(self, reverse: Reverse, t: Times) -> Float64[Tensor, " ..."]:
        """A number, or a column."""
        if self.schedule != "loop":
            return column(reverse.alpha(t))
        u = column(t / reverse.start)
        early = self.alpha_on * (1 - u) / (1 - self.t_on)
        late = 1 - (1 - self.alpha_on) * u / self.t_off
        return torch.where(u > self.t_on, early, torch.where(u > self.t_off, self.alpha_on, late))

    def _time(self, reverse: Reverse, t: Times, alpha: Tensor) -> Times:
        """What to tell the network: the time at which the process has this alpha."""
        if self.schedule != "loop" or reverse.model.time_free:
            return t
        least = column(reverse.alpha(reverse.start))
        return reverse.process.schedule.alpha_inverse(torch.maximum(alpha, least)).flatten()


def sigma_max(alpha_t: Tensor, alpha_s: Tensor) -> Float64[Tensor, " ..."]:
    """The largest chance of being masked again that leaves ``1 - alpha_s`` masked."""
    return ((1 - alpha_s) / alpha_t).nan_to_num(1.0).clamp(max=1)


def _recorded(drawn: Tensor, now: Evaluation, x: Tensor, positions: Tensor) -> Float64[Tensor, "b d"]:
    """`drawn` with the probabilities of the values that were drawn at `positions`."""
    drawn = drawn.clone()
    for some in positions.split(now.at_once):
        drawn.view(-1)[some] = now.probabilities(some).gather(1, x.flatten()[some].unsqueeze(1)).squeeze(1)
    return drawn
