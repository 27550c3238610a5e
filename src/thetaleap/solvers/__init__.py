"""Solvers: one file for each method."""

from .adams_bashforth import AdamsBashforth
from .base import Planned, Solver, Step
from .exponential import ExponentialTrapezoidal
from .first_hitting import FirstHitting
from .high_order import RK2, Trapezoidal
from .leaping import Euler, TauLeaping
from .multistep import Multistep
from .tweedie import Tweedie
from .uniformization import Uniformization

__all__ = [
    "RK2",
    "AdamsBashforth",
    "Euler",
    "ExponentialTrapezoidal",
    "FirstHitting",
    "Multistep",
    "Planned",
    "Solver",
    "Step",
    "TauLeaping",
    "Trapezoidal",
    "Tweedie",
    "Uniformization",
]
