"""Templates: which positions are given, and which are free."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

FREE = -1
"""In a template: a position that the sampler may write."""


def check_template(template: Tensor, num: int, length: int, states: int) -> Int64[Tensor, "#num d"]:
    """`template` as one row for each of `num` samples, or one for all, or an error."""
    if not isinstance(template, Tensor) or template.dtype != torch.int64:
        got = template.dtype if isinstance(template, Tensor) else type(template).__name__
        raise TypeError(f"template of {got}: give an int64 tensor, with {FREE} where the sampler may write")
    shapes = [(length,), (1, length), (num, length)]
    if tuple(template.shape) not in shapes:
        wanted = f"({length},), one for all samples, or ({num}, {length})"
        raise ValueError(f"template of shape {tuple(template.shape)}: the model has {length} positions; give {wanted}")
    rows = template if template.ndim == 2 else template.unsqueeze(0)
    wrong = torch.nonzero((rows < FREE) | (rows >= states))
    if len(wrong):
        row, position = wrong[0].tolist()
        value = int(rows[row, position])
        what = "the mask" if value == states else "no token"
        raise ValueError(
            f"template[{row}, {position}]={value}: this is {what}; give tokens from 0 to {states - 1}, or {FREE} where the "
            "sampler may write"
        )
    return rows
