"""Muon (Jordan et al. 2024), in the precision of the weights.

torch's own computes in bfloat16. Processors without that are twenty times slower at it, and virtual machines that
announce AMX without allowing it end in "Illegal instruction". In float32 it runs everywhere, with the same update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic a x + b x^3 + c x^5, which in five rounds takes every singular value from (0, 1] to about 1."""
ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """Steps of the nearest orthogonal matrix to the momentum, scaled to the size of AdamW's: 0.2 sqrt(longer side)."""

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                momentum = state.setdefault("momentum_buffer", torch.zeros_like(value)).lerp_(value.grad, 1 - MOMENTUM)
                update = orthogonal(value.grad.lerp(momentum, MOMENTUM))
                value.mul_(1 - group["lr"] * group["weight_decay"])
                value.add_(update, alpha=-0.2 * max(value.shape) ** 0.5 * group["lr"])


def orthogonal(matrix: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """About U V^T of the singular value decomposition U S V^T, by Newton-Schulz iteration: values in S become 0.7 to 1.2."""
    a, b, c = COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(ROUNDS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
