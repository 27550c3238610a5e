"""Names that begin with an underscore stay in their module, and modules that do in their folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import thetaleap

ROOT = Path(thetaleap.__file__).parent
SHARED = {"_fast"}
"""All forks for speed are there, and all layers may use it."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def taken(text: str, folder: str) -> Iterator[str]:
    """Private names that a module in `folder` takes from others of the package."""
    tree, ours = ast.parse(text), set[str]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.level or (node.module or "").startswith("thetaleap")):
            continue
        near = node.level == 1 or node.module == f"thetaleap.{folder}"
        names = [alias.name for alias in node.names if private(alias.name)]
        modules = [part for part in (node.module or "").split(".") if private(part) and not near]
        yield from (name for name in [*names, *modules] if name not in SHARED)
        ours |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours:
            yield from [f"{node.value.id}.{node.attr}"] if private(node.attr) else []


def test_none_is_taken_from_another_module() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in ROOT.rglob("*.py")
        if (names := list(taken(path.read_text(encoding="utf-8"), path.parent.name)))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from .noise import _after", ["_after"]),
        ("from ..core.noise import Stream, _after", ["_after"]),
        ("from thetaleap.models.oracles._common import Law", ["_common"]),
        ("from ..models.oracles._common import Law", ["_common"]),
        ("from ..core import noise\nnoise._after(1)", ["noise._after"]),
        ("from ._common import Law", []),
        ("from ..core import _fast\n_fast.indices(x)", []),
        ("from .. import __version__", []),
        ("from torch.nn import _reduction", []),
    ],
)
def test_the_search_finds_them(text: str, names: list[str]) -> None:
    assert list(taken(text, "solvers")) == names
