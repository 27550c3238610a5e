"""The command line. A command is imported when it is run: help and lists come without torch."""

from .base import app

__all__ = ["app"]
