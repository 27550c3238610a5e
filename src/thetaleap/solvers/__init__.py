"""Solvers: one file per idea."""

from .base import Memory, Solver, Step
from .decoding import ParallelDecoding, SemiAutoregressive
from .first_hitting import FirstHitting
from .high_order import RK2, Trapezoidal
from .leaping import Euler, TauLeaping
from .tweedie import Tweedie
from .uniformization import Uniformization

__all__ = [
    "RK2",
    "Euler",
    "FirstHitting",
    "Memory",
    "ParallelDecoding",
    "SemiAutoregressive",
    "Solver",
    "Step",
    "TauLeaping",
    "Trapezoidal",
    "Tweedie",
    "Uniformization",
]
