"""The program: ``thetaleap``, or ``python -m thetaleap``."""

import os
import signal
from typing import Any


def leave(*_: Any) -> None:
    """End at once: while commands are imported, nothing is under way, and extensions may not survive an exception."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def run() -> None:
    """The command line, which Ctrl-C ends at any moment without a traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave)
    from .cli import app

    app(prog_name="thetaleap")


if __name__ == "__main__":
    run()
