"""Planners."""

from .all import *  # noqa: F403
