"""Conditionals of a chain of order one: only the nearest seen positions matter, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ._common import OnDemand


@dataclass(frozen=True, eq=False)
class Gaps:
    """``P(x_l = v | others) ∝ (T^m)[x_{l-m}, v] (T^n)[v, x_{l+n}]``, with m and n positions to the nearest seen
    ones."""

    powers: Float64[Tensor, "length S S"] = field(repr=False)
    starts: Float64[Tensor, "length S"] = field(repr=False)

    def __call__(self, x: Int64[Tensor, "b d"]) -> OnDemand:
        length, mask = self.starts.shape
        seen, place = x != mask, torch.arange(length)
        left = torch.where(seen, place, -1).cummax(1).values
        right = torch.where(seen, place, length).flip(1).cummin(1).values.flip(1)
        pad = torch.nn.functional.pad  # a position does not see itself
        left = pad(left, (1, 0), value=-1)[:, :-1].flatten()
        right = pad(right, (0, 1), value=length)[:, 1:].flatten()
        return OnDemand(lambda positions: self._between(x, positions, left[positions], right[positions]))

    def _between(self, x: Tensor, positions: Tensor, left: Tensor, right: Tensor) -> Float64[Tensor, "n S"]:
        """``P(value | nearest seen positions)``: the way from the left one times the way to the right one."""
        length, states = self.starts.shape
        row, position = positions // length, positions % length
        before, after = x[row, left.clamp_min(0)], x[row, right.clamp_max(length - 1)]
        way_in = self.powers[(position - left).clamp_max(length - 1), before.clamp_max(states - 1)]
        way_in = torch.where((left >= 0).unsqueeze(1), way_in, self.starts[position])
        way_out = self.powers[(right - position).clamp_max(length - 1), :, after.clamp_max(states - 1)]
        return way_in * torch.where((right < length).unsqueeze(1), way_out, 1.0)


def gaps(transition: Float64[Tensor, "S S"], starts: Float64[Tensor, "length S"]) -> Gaps:
    """The gaps of a chain whose positions have the laws `starts`."""
    powers = [torch.eye(len(transition), dtype=torch.float64)]
    for _ in range(len(starts) - 1):
        powers.append(powers[-1] @ transition)
    return Gaps(torch.stack(powers), starts)
