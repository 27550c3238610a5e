"""``thetaleap studio``: a page in the browser to watch solvers, race them, and measure them against the truth.

One file per tab (`watch`, `race`, `truth`, `ranking`) does its work in plain functions, and writes the Python that does the
same. `paint` makes HTML of it, and `page` alone knows gradio.
"""

from .watch import sureness

__all__ = ["sureness"]
