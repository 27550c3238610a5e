"""The two primitives that do all the jumping: `leap` for frozen intensities, `move` for exact one-site kernels.

Both toss a coin at every site with at least the probability of a jump, ask for the rows of the heads only, and
draw there: a value, or nothing, which makes good for the coin (thinning).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .denoiser import Look
from .intensity import Intensity
from .noise import Noise
from .processes import Process

Rule = Literal["exact", "reject", "euler"]


@dataclass(frozen=True)
class Share:
    """How much of a whole; the sum over steps and batches is the share of all."""

    part: float
    whole: float

    def __add__(self, other: Share) -> Share:
        return Share(self.part + other.part, self.whole + other.whole)

    def __float__(self) -> float:
        return self.part / self.whole if self.whole else math.nan


def jump_probability(total: Float64[Tensor, "*n"], rule: Rule) -> Float64[Tensor, "*n"]:
    """Probability that a site with frozen total intensity `total` (times h) jumps.

    ``exact``: ``1 - e^-total``, the frozen process itself, whose later events overwrite earlier ones.
    ``reject``: ``total e^-total``, one event and no more, as in the paper.
    ``euler``: ``min(1, total)``.
    """
    if rule == "exact":
        return -torch.expm1(-total)
    return total * torch.exp(-total) if rule == "reject" else total.clamp(max=1)


def leap(
    x: Int64[Tensor, "b d"], intensity: Intensity, h: float, noise: Noise, rule: Rule
) -> tuple[Int64[Tensor, "b d"], Share]:
    """Run `intensity`, frozen, for a time `h`; negative intensities count as zero.

    Also gives the share of non-zero intensities that were positive, among the rows looked at.
    """
    bound = intensity.bound() * h
    # total e^-total is largest at 1
    ceiling = jump_probability(bound.clamp(max=1) if rule == "reject" else bound, rule)
    sites = noise.flip(ceiling)
    rates = intensity.rows(sites) * h
    positive = Share(int((rates > 0).sum()), int((rates != 0).sum()))
    rates = rates.clamp_min(0)
    total = rates.sum(1)
    scale = jump_probability(total, rule) / (total * ceiling.flatten()[sites])
    weights = rates * torch.where(total > 0, scale, 0.0).unsqueeze(1)
    return jump(x, sites, weights, noise, stay=not intensity.tight or rule == "reject"), positive


def move(
    process: Process, x: Int64[Tensor, "b d"], seen: Look, alpha_t: Tensor, alpha_s: Tensor, noise: Noise
) -> Int64[Tensor, "b d"]:
    """Draw every site from its exact one-site kernel, from alpha_t back to alpha_s."""
    bound = process.kernel_bound(x, alpha_t, alpha_s)
    sites = noise.flip(bound)
    kernel = process.kernel(seen.probabilities(sites), x.flatten()[sites], alpha_t, alpha_s)
    weights = kernel / bound.flatten()[sites].unsqueeze(1)
    return jump(x, sites, weights, noise, stay=not process.known_totals)


def jump(
    x: Int64[Tensor, "b d"],
    sites: Int64[Tensor, " n"],
    weights: Float64[Tensor, "n S"],
    noise: Noise,
    stay: bool,
) -> Int64[Tensor, "b d"]:
    """Draw new values at `sites` by `weights`; with `stay`, what is missing of one leaves the site as it is."""
    values = noise.choose(sites, x.shape[1], weights, stay)
    flat = x.flatten().clone()
    if stay:
        moved = values < weights.shape[1]
        sites, values = sites[moved], values[moved]
    flat[sites] = values
    return flat.view_as(x)
