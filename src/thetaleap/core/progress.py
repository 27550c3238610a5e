"""The one progress bar, and interruptions that wait for the end of a step."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Told = Callable[[float, str], None]
"""Called with the share of the work that is done, from 0 to 1, and a note; what it raises ends the work."""


@contextmanager
def progress_bar(show: bool | Told | None, label: str, total: float) -> Iterator[Callable[..., None]]:
    """A bar on standard error, by default if that is a terminal, or whatever a function makes of it; gives
    ``advance(amount=1, note="")``, which may also show a note behind the bar."""
    if callable(show):
        done = 0.0

        def tell(amount: float = 1, note: str = "") -> None:
            nonlocal done
            done += amount
            show(min(1.0, done / total), note)

        yield tell
        return
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda amount=1, note="": None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, note="")

        def advance(amount: float = 1, note: str = "") -> None:
            bar.update(task, advance=amount, note=note)

        yield advance


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits for a moment at which nothing is half done: gives a function that says whether it came. A second one
    does not wait."""
    came = False

    def note(*_: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    if threading.current_thread() is not threading.main_thread():  # others are never interrupted
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)
