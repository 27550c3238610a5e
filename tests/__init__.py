"""The package's types and shapes are checked from the first import on."""

import jaxtyping

from tests.checking import checked, checker

__all__ = ["checker"]

jaxtyping.jaxtyped = lambda typechecker: checked
