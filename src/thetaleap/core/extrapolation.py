"""Two evaluations made into one prediction: conditionals extrapolated towards the data, always proper distributions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .evaluation import Duplicates, Evaluation, Prediction, joint_duplicates
from .times import Times, at, shared

Form = Literal["linear", "logit"]
FORMS = ("linear", "logit")
STEEPEST = 20.0
"""A probability may have grown or shrunk by this factor between two evaluations; the logit form clips beyond."""


def extrapolated(
    later: Evaluation, earlier: Evaluation, weight: float | Times, form: Form, floor: float = 0.0
) -> Prediction:
    """``c~`` beyond `later`, away from `earlier`, by a `weight` w for each sample; `later` itself if they are one.

    linear: ``c~ ∝ max((1 + w) later - w earlier, floor * later)``; logit: ``c~ ∝ later * clip(later/earlier)^w``.
    """
    return later if earlier is later else Extrapolated(later, earlier, shared(weight), form, floor)


@dataclass(frozen=True)
class Extrapolated:
    """A prediction made by `extrapolated`."""

    later: Evaluation
    earlier: Evaluation
    weight: Times
    form: Form
    floor: float

    @property
    def at_once(self) -> int:
        return self.later.at_once

    def probabilities(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        rows = self.unnormalised(positions)
        return rows.mul_(rows.sum(1, keepdim=True).reciprocal_())

    def unnormalised(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        new, old = self.later.probabilities(positions), self.earlier.probabilities(positions)
        w = at(self.weight.to(new.device), positions, self.later.x.shape[1])
        if self.form == "linear":
            rows = old.lerp_(new, 1 + w)  # new + w (new - old); rows are made for whoever asks, and may be written to
            return torch.maximum(rows, new.mul_(self.floor), out=rows) if self.floor else rows.clamp_min_(0)
        # where both are zero the ratio does not matter; where only the earlier one is, it is clipped
        ratio = torch.div(new, old, out=old).nan_to_num_(nan=1.0).clamp_(1 / STEEPEST, STEEPEST)
        return ratio.pow_(w).mul_(new)

    def duplicates(self) -> Duplicates | None:
        return None if self.weight.ndim else joint_duplicates(self.earlier, self.later)

    def ranked(self, untempered: bool) -> Extrapolated:
        later, earlier = self.later.ranked(untempered), self.earlier.ranked(untempered)
        same = later is self.later and earlier is self.earlier
        return self if same else replace(self, later=later, earlier=earlier)
