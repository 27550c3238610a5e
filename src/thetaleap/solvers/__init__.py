"""Solvers: one file per idea."""

from ..control.blocks import Blocks
from .base import Memory, Solver, Step
from .decoding import ParallelDecoding, SemiAutoregressive
from .exponential import ExponentialTrapezoidal
from .first_hitting import FirstHitting
from .high_order import RK2, Trapezoidal
from .leaping import Euler, TauLeaping
from .multistep import AdamsBashforth, Multistep
from .tweedie import Tweedie
from .uniformization import Uniformization

__all__ = [
    "RK2",
    "AdamsBashforth",
    "Blocks",
    "Euler",
    "ExponentialTrapezoidal",
    "FirstHitting",
    "Memory",
    "Multistep",
    "ParallelDecoding",
    "SemiAutoregressive",
    "Solver",
    "Step",
    "TauLeaping",
    "Trapezoidal",
    "Tweedie",
    "Uniformization",
]
