"""Solvers for discrete diffusion models: the best samples for the fewest network evaluations."""

from . import exact
from .conditioning.wrappers import constrained, guided, tempered
from .control import grids
from .core.free import FREE
from .core.processes import Masked, RateMatrix, Uniform
from .core.schedules import Constant, Cosine, Geometric, LogLinear
from .evaluation.compare import Contender, compare, default_contenders
from .evaluation.recommend import Recommendation, recommend
from .models import from_network, load, oracles
from .planners.all import Bernoulli, Confidence, EntropyBounded, FixedCount, LowDiscrepancy
from .sampling import Moment, Samples, sample
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
