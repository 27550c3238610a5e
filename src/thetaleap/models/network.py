"""Bring your own network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..checks import require, require_count
from ..denoiser import Dense
from ..processes import Process


@dataclass(frozen=True)
class Network:
    """A function ``f(x, t) -> logits (b, d, S)`` as a denoiser."""

    process: Process
    length: int
    network: Callable[[Tensor, Tensor], Tensor]
    horizon: float
    time_free: bool
    device: torch.device

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Dense:
        logits = self.network(x, t.to(x.device).expand(len(x)))
        shape = (*x.shape, self.process.states)
        if not isinstance(logits, Tensor) or tuple(logits.shape) != shape:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"network output={got}: must be logits of shape (batch, length, states) = {shape}")
        if not logits.is_floating_point():
            raise TypeError(f"network output={logits.dtype}: must be floating-point logits")
        return Dense(logits)


def from_network(
    process: Process,
    *,
    length: int,
    network: Callable[[Tensor, Tensor], Tensor],
    horizon: float | None = None,
    time_free: bool = False,
    device: torch.device | str = "cpu",
) -> Network:
    """Make a model of `network`, any function or module ``f(x, t) -> logits``.

    Args:
        process: what the network was trained to reverse, e.g. ``Masked(states=50257)``.
        length: number of sites d.
        network: takes ``x``, int64 (b, d), with the value S where a site is masked, and ``t``, float64 (b,), and
            gives logits (b, d, S) of the clean token at each site *given all other sites*. For masked processes
            this is what masked models give; only the rows of masked sites are read. Networks that give score
            ratios are converted by ``process.from_score``. Logits must be probabilities' logarithms up to a
            constant per row: not probabilities.
        horizon: the time of pure noise; by default the schedule's.
        time_free: say True if the network ignores t.
        device: where the network wants its input.
    """
    require_count("length", length)
    require(callable(network), "network", network, "give a function f(x, t) -> logits")
    horizon = process.schedule.horizon if horizon is None else float(horizon)
    require(0 < horizon < float("inf"), "horizon", horizon, "give a positive time")
    return Network(process, length, network, horizon, time_free, torch.device(device))
