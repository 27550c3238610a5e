"""Correctors: sweeps that redraw positions at the present time, between the steps of a predictor."""

from .base import Corrector
from .gibbs import Gibbs
from .informed import Informed

__all__ = ["Corrector", "Gibbs", "Informed"]
