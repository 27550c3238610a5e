"""Models: oracles, adapters, and those that come with the package, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..checks import require_choice
from ..denoiser import Denoiser
from ..noise import philox
from ..processes import Masked, Uniform
from ..schedules import Constant
from . import oracles
from .network import Network, from_network


@dataclass(frozen=True)
class BuiltIn:
    """A model that `load` knows by name."""

    about: str
    make: Callable[[], Denoiser]


def _simplex(seed: int, *shape: int) -> torch.Tensor:
    """Rows drawn uniformly from the simplex: normalised exponentials."""
    size = int(torch.tensor(shape).prod())
    e = -torch.log1p(-torch.from_numpy(philox(seed, (0, 0, 0, 2), size)).view(shape))
    return e / e.sum(-1, keepdim=True)


def _toy15() -> Denoiser:
    return oracles.joint(_simplex(0, 15), Uniform(15, Constant()), horizon=12.0)


def _cube3(masked: bool) -> Denoiser:
    p0 = _simplex(1, 27).view(3, 3, 3)
    return oracles.joint(p0, Masked(3) if masked else Uniform(3), None if masked else 6.0)


def _chain64() -> Denoiser:
    # a weaker and a stronger pull to few successors, so that neighbours matter
    sharp = _simplex(2, 16, 16) ** 3
    return oracles.markov_chain(sharp / sharp.sum(-1, keepdim=True), length=64)


def _mixture32() -> Denoiser:
    return oracles.mixture(_simplex(3, 4), _simplex(4, 4, 1, 6).expand(4, 32, 6))


BUILT_IN: dict[str, BuiltIn] = {
    "toy15": BuiltIn("the paper's toy: 1 site, 15 values, uniform process, law uniform on the simplex", _toy15),
    "cube3": BuiltIn("3 sites of 3 values with a random joint law, masked", lambda: _cube3(True)),
    "cube3-uniform": BuiltIn("the same law under the uniform process", lambda: _cube3(False)),
    "chain64": BuiltIn("Markov chain, 64 sites of 16 values, masked: local dependence", _chain64),
    "mixture32": BuiltIn("mixture of 4 products, 32 sites of 6 values, masked: global dependence", _mixture32),
}


def load(name: str) -> Any:
    """A built-in model by name, a `Denoiser`; ``thetaleap models`` lists them."""
    require_choice("model", name, BUILT_IN)
    return BUILT_IN[name].make()


__all__ = ["BUILT_IN", "BuiltIn", "Network", "from_network", "load", "oracles"]
