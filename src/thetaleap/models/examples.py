"""Oracles that come with the package: `load` knows them by these names, with a hyphen in place of an underscore."""

from __future__ import annotations

import torch

from ..core.evaluation import Denoiser
from ..core.noise import Use, philox
from ..core.processes import Masked, Uniform
from ..core.schedules import Constant
from . import oracles


def _simplex(seed: int, *shape: int) -> torch.Tensor:
    """Rows drawn uniformly from the simplex: normalised exponentials."""
    size = int(torch.tensor(shape).prod())
    e = -torch.log1p(-torch.from_numpy(philox(seed, (0, 0, 0, Use.SIMPLEX), size)).view(shape))
    return e / e.sum(-1, keepdim=True)


def toy15() -> Denoiser:
    return oracles.joint(_simplex(0, 15), Uniform(15, Constant()), horizon=12.0)


def cube3() -> Denoiser:
    return oracles.joint(_simplex(1, 27).view(3, 3, 3), Masked(3))


def cube3_uniform() -> Denoiser:
    return oracles.joint(_simplex(1, 27).view(3, 3, 3), Uniform(3), 6.0)


def _sharp(seed: int, *shape: int) -> torch.Tensor:
    """Rows with a weaker and a stronger pull to few successors, so that neighbours matter."""
    cubed = _simplex(seed, *shape) ** 3
    return cubed / cubed.sum(-1, keepdim=True)


def chain64() -> Denoiser:
    return oracles.markov_chain(_sharp(2, 16, 16), length=64)


def chain2_64() -> Denoiser:
    return oracles.markov_chain(_sharp(5, 8, 8, 8), length=64)


def ising4x16() -> Denoiser:
    return oracles.ising(4, 16, coupling=0.44)  # where the whole plane would be critical


def tree31() -> Denoiser:
    return oracles.tree([(position - 1) // 2 for position in range(31)], _simplex(6, 6), _sharp(7, 31, 6, 6))


def mixture32() -> Denoiser:
    return oracles.mixture(_simplex(3, 4), _simplex(4, 4, 1, 6).expand(4, 32, 6))


def shuffle16() -> Denoiser:
    return oracles.shuffle(16)


def latin4() -> Denoiser:
    return oracles.latin(4)
