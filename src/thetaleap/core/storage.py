"""Files written whole or not at all, files inside installed packages, and whether more can be had from the hub."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies

SHIPPED = Path(__file__).parents[1] / "data"
"""Models, judges and tables that come with this package, a folder each."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A fresh name to write to, beside `path` or what it links to; moved to `path` once it is whole and on the disk.

    A kill at any moment leaves the old file or the new one. After an error the fresh file is removed.
    """
    real = path.resolve()
    part = real.with_name(f".{real.name}.{secrets.token_hex(4)}.part")
    try:
        part.touch(exist_ok=False)
        usual = part.stat().st_mode
        yield part
        part.chmod(usual)  # safetensors makes files for their owner alone
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(real)
    finally:
        part.unlink(missing_ok=True)


def installed(*packages: str) -> bool:
    """Whether all these packages can be imported; none is."""
    return all(find_spec(name) is not None for name in packages)


def package_folder(package: str, remedy: str) -> Path:
    """The folder of an installed package, without importing it; otherwise an ``ImportError`` with the `remedy`."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"{package} is not installed: {remedy}")
    return Path(found.submodule_search_locations[0])


@cache
def hub_reachable(seconds: float = 3.0) -> bool:
    """Whether the hub, or the proxy before it, answers. Its own client would try again for minutes."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    way = urlsplit(getproxies().get(hub.scheme) or hub.geturl())
    answers: list[bool] = []

    def ask() -> None:
        with suppress(OSError):
            port = way.port or (80 if way.scheme == "http" else 443)
            socket.create_connection((way.hostname or "", port), timeout=seconds).close()
            answers.append(True)

    asking = Thread(target=ask, daemon=True)  # looking up a name knows no time limit
    asking.start()
    asking.join(seconds)
    return bool(answers)
