"""Solvers: one file for each method."""

from .adams_bashforth import AdamsBashforth
from .base import Planned, Solver, Step
from .corrected import Corrected
from .correctors import Corrector, Gibbs, Informed
from .exponential import ExponentialTrapezoidal
from .first_hitting import FirstHitting
from .high_order import RK2, Trapezoidal
from .leaping import Euler, TauLeaping
from .multistep import Multistep
from .psi import Psi
from .remdm import ReMDM
from .tweedie import Tweedie
from .uniformization import Uniformization

__all__ = [
    "RK2",
    "AdamsBashforth",
    "Corrected",
    "Corrector",
    "Euler",
    "ExponentialTrapezoidal",
    "FirstHitting",
    "Gibbs",
    "Informed",
    "Multistep",
    "Planned",
    "Psi",
    "ReMDM",
    "Solver",
    "Step",
    "TauLeaping",
    "Trapezoidal",
    "Tweedie",
    "Uniformization",
]
