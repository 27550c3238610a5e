"""Long work in a thread of its own, which reports, and stops at its next report if nobody listens any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

Report = Callable[[Any], None]
PATIENCE = 0.25
"""Seconds after which a listener hears that there is nothing new."""


class Stopped(Exception):
    """Nobody listens any more."""


def listen(task: Callable[[Report], Any], patience: float = PATIENCE) -> Iterator[Any]:
    """Run ``task(report)``; give what it reports as it comes, and at last what it returns. Gives None where there is
    nothing new, so that whoever listens can be stopped meanwhile: closing the iterator stops the work."""
    said: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    over = threading.Event()

    def report(value: Any) -> None:
        if over.is_set():
            raise Stopped
        said.put(("news", value))

    def run() -> None:
        try:
            said.put(("result", task(report)))
        except BaseException as error:  # raised again where someone listens
            said.put(("error", error))

    threading.Thread(target=run, name="studio", daemon=True).start()
    try:
        while True:
            try:
                what, value = said.get(timeout=patience)
            except Empty:
                yield None
                continue
            if what == "error":
                raise value
            yield value
            if what == "result":
                return
    finally:
        over.set()
