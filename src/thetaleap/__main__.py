"""``python -m thetaleap``."""

from .cli import app

app()
