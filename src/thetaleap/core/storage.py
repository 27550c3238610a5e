"""Files written whole or not at all, and files inside installed packages."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

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
