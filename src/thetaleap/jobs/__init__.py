"""Samples in great numbers: drawn in parts, by one process or many, and continued where they were interrupted."""

from .draw import Draw, drawing, part_size_of, settled
from .folder import Shard
from .run import Engine, Here, Outcome, run, write

__all__ = ["Draw", "Engine", "Here", "Outcome", "Shard", "drawing", "part_size_of", "run", "settled", "write"]
