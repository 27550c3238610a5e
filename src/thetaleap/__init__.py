"""Solvers for discrete diffusion models: the best samples for the fewest network evaluations."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import exact
    from .conditioning.wrappers import constrained, guided, tempered
    from .control import grids
    from .control.blocks import Blocks
    from .control.decoding import ParallelDecoding, SemiAutoregressive
    from .core.free import FREE
    from .core.processes import Masked, Uniform
    from .core.rate_matrix import RateMatrix
    from .core.schedules import Constant, Cosine, Geometric, LogLinear
    from .evaluation.compare import Contender, compare, default_contenders
    from .evaluation.recommend import Recommendation, recommend
    from .models import from_network, load, oracles
    from .planners import (
        KLASS,
        Bernoulli,
        Confidence,
        Dilated,
        EntropyBounded,
        EntropyConfidence,
        Factor,
        FixedCount,
        LowDiscrepancy,
        MarginConfidence,
        Threshold,
    )
    from .sampling import Moment, Samples, sample
    from .solvers import (
        PUNT,
        RK2,
        WINO,
        AdamsBashforth,
        Corrected,
        Euler,
        ExponentialTrapezoidal,
        FirstHitting,
        Gibbs,
        Informed,
        JointThreshold,
        Multistep,
        Psi,
        ReMDM,
        TauLeaping,
        Trapezoidal,
        Tweedie,
        Uniformization,
    )
    from .training.run import train

__version__ = "0.1.0"

__all__ = [
    "FREE",
    "KLASS",
    "PUNT",
    "RK2",
    "WINO",
    "AdamsBashforth",
    "Bernoulli",
    "Blocks",
    "Confidence",
    "Constant",
    "Contender",
    "Corrected",
    "Cosine",
    "Dilated",
    "EntropyBounded",
    "EntropyConfidence",
    "Euler",
    "ExponentialTrapezoidal",
    "Factor",
    "FirstHitting",
    "FixedCount",
    "Geometric",
    "Gibbs",
    "Informed",
    "JointThreshold",
    "LogLinear",
    "LowDiscrepancy",
    "MarginConfidence",
    "Masked",
    "Moment",
    "Multistep",
    "ParallelDecoding",
    "Psi",
    "RateMatrix",
    "ReMDM",
    "Recommendation",
    "Samples",
    "SemiAutoregressive",
    "TauLeaping",
    "Threshold",
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
    "train",
]

_HOMES = {
    "conditioning.wrappers": ("constrained", "guided", "tempered"),
    "control": ("Blocks", "ParallelDecoding", "SemiAutoregressive"),
    "core.free": ("FREE",),
    "core.processes": ("Masked", "Uniform"),
    "core.rate_matrix": ("RateMatrix",),
    "core.schedules": ("Constant", "Cosine", "Geometric", "LogLinear"),
    "evaluation.compare": ("Contender", "compare", "default_contenders"),
    "evaluation.recommend": ("Recommendation", "recommend"),
    "models": ("from_network", "load"),
    "planners": (
        *("KLASS", "Bernoulli", "Confidence", "Dilated", "EntropyBounded", "EntropyConfidence", "Factor", "FixedCount"),
        *("LowDiscrepancy", "MarginConfidence", "Threshold"),
    ),
    "sampling": ("Moment", "Samples", "sample"),
    "solvers": (
        *("PUNT", "RK2", "WINO", "AdamsBashforth", "Corrected", "Euler", "ExponentialTrapezoidal", "FirstHitting"),
        *("Gibbs", "Informed", "JointThreshold", "Multistep", "Psi", "ReMDM", "TauLeaping", "Trapezoidal", "Tweedie"),
        "Uniformization",
    ),
    "training.run": ("train",),
}
_MODULES = {"grids": "control.grids", "oracles": "models.oracles"}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Public names, and packages, are imported when they are first used: torch takes seconds."""
    if name in _HOME:
        value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
        return value
    module = f".{_MODULES.get(name, name)}"
    if not name.startswith("_") and find_spec(module, __name__):
        return import_module(module, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
