"""Solvers for discrete diffusion models: the best samples for the fewest network evaluations."""

from . import exact, grids
from .comparison import Contender, compare, default_contenders
from .conditioning import FREE
from .models import from_network, load, oracles
from .planners import Bernoulli, Confidence, EntropyBounded, FixedCount, LowDiscrepancy
from .processes import Masked, RateMatrix, Uniform
from .recommendation import Recommendation, recommend
from .sampling import Moment, Samples, sample
from .schedules import Constant, Cosine, Geometric, LogLinear
from .shaping import constrained, guided, tempered
from .solvers import (
    RK2,
    AdamsBashforth,
    Blocks,
    Euler,
    ExponentialTrapezoidal,
    FirstHitting,
    Multistep,
    ParallelDecoding,
    SemiAutoregressive,
    TauLeaping,
    Trapezoidal,
    Tweedie,
    Uniformization,
)

__version__ = "0.1.0"

__all__ = [
    "FREE",
    "RK2",
    "AdamsBashforth",
    "Bernoulli",
    "Blocks",
    "Confidence",
    "Constant",
    "Contender",
    "Cosine",
    "EntropyBounded",
    "Euler",
    "ExponentialTrapezoidal",
    "FirstHitting",
    "FixedCount",
    "Geometric",
    "LogLinear",
    "LowDiscrepancy",
    "Masked",
    "Moment",
    "Multistep",
    "ParallelDecoding",
    "RateMatrix",
    "Recommendation",
    "Samples",
    "SemiAutoregressive",
    "TauLeaping",
    "Trapezoidal",
    "Tweedie",
    "Uniform",
    "Uniformization",
    "compare",
    "constrained",
    "default_contenders",
    "exact",
    "from_network",
    "grids",
    "guided",
    "load",
    "oracles",
    "recommend",
    "sample",
    "tempered",
]
