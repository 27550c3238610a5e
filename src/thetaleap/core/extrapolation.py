"""Two looks made into one: conditionals extrapolated along the way back, always proper distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .evaluation import Duplicates, Evaluation

Form = Literal["linear", "logit"]
FORMS = ("linear", "logit")
STEEPEST = 20.0
"""A probability may have grown or shrunk by this factor between two looks; beyond, the logit form takes it as that."""


@dataclass(frozen=True)
class Extrapolated:
    """``c~`` beyond `later`, away from `earlier`, by a `weight` w for each sample.

    linear: ``c~ ∝ max((1 + w) later - w earlier, floor * later)``; logit: ``c~ ∝ later * clip(later/earlier)^w``.
    """

    later: Evaluation
    earlier: Evaluation
    weight: Float64[Tensor, " b"]
    form: Form
    floor: float = 0.0

    @property
    def at_once(self) -> int:
        return self.later.at_once

    def probabilities(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        rows = self.unnormalised(positions)
        return rows.mul_(rows.sum(1, keepdim=True).reciprocal_())

    def unnormalised(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        new, old = self.later.probabilities(positions), self.earlier.probabilities(positions)
        w = self.weight[positions // self.later.x.shape[1]].unsqueeze(1)
        if self.form == "linear":
            rows = old.lerp_(new, 1 + w)  # new + w (new - old); rows are made for whoever asks, and may be written to
            rows = torch.maximum(rows, new.mul_(self.floor), out=rows) if self.floor else rows.clamp_min_(0)
        else:
            # where both are zero the ratio does not matter; where only the earlier one is, it is clipped
            ratio = torch.div(new, old, out=old).nan_to_num_(nan=1.0).clamp_(1 / STEEPEST, STEEPEST)
            rows = ratio.pow_(w).mul_(new)
        return rows

    def duplicates(self) -> Duplicates | None:
        first, second = self.earlier.duplicates(), self.later.duplicates()
        if first is None or second is None or not bool((self.weight == self.weight[:1]).all()):
            return None
        return Duplicates(first.kind * second.kinds + second.kind, first.kinds * second.kinds)
