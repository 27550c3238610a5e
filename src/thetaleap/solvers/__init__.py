"""Solvers: one file for each method."""

from .adams_bashforth import AdamsBashforth
from .base import Planned, Solver, Step
from .corrected import Corrected
from .correctors import Corrector, Gibbs, Informed
from .exponential import ExponentialTrapezoidal
from .first_hitting import FirstHitting
from .high_order import RK2, Trapezoidal
from .joint_threshold import JointThreshold
from .leaping import Euler, TauLeaping
from .multistep import Multistep
from .psi import Psi
from .punt import PUNT
from .remdm import ReMDM
from .tweedie import Tweedie
from .uniformization import Uniformization
from .wino import WINO

__all__ = [
    "PUNT",
    "RK2",
    "WINO",
    "AdamsBashforth",
    "Corrected",
    "Corrector",
    "Euler",
    "ExponentialTrapezoidal",
    "FirstHitting",
    "Gibbs",
    "Informed",
    "JointThreshold",
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
