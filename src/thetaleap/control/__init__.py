"""Controllers: grids, blocks and tolerances say what each sample does next, and the loop does it."""

from .base import Control, Method, Preset, Turn, Walk, control_of
from .blocks import Blocks
from .decoding import ParallelDecoding, SemiAutoregressive
from .tolerance import Tolerance

__all__ = [
    "Blocks",
    "Control",
    "Method",
    "ParallelDecoding",
    "Preset",
    "SemiAutoregressive",
    "Tolerance",
    "Turn",
    "Walk",
    "control_of",
]
