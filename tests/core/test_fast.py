"""What numpy does for speed, torch does too, and the same: bit for bit, on the CPU."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import thetaleap as tl
from tests.cases import CASES, SOLVERS, Case, works
from tests.solvers.test_contract import grid_for
from thetaleap.control import Method
from thetaleap.core import _fast

PAIRS = [(solver, case) for solver in SOLVERS for case in CASES if works(solver, case)]


@pytest.mark.parametrize(("solver", "case"), PAIRS, ids=[f"{solver!r}-{case.name}" for solver, case in PAIRS])
def test_torch_gives_the_same_samples(solver: Method, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> tl.Samples:
        return tl.sample(case.model, solver, grid=grid_for(solver, case), num=20, seed=3)

    by_numpy = drawn()
    monkeypatch.setattr(_fast, "USE_NUMPY", False)
    by_torch = drawn()
    assert torch.equal(by_numpy.x, by_torch.x)
    assert torch.equal(by_numpy.nfe, by_torch.nfe)


@pytest.mark.parametrize("solver", [tl.Tweedie(tl.FixedCount()), tl.Multistep(), tl.Blocks(tl.Tweedie(), 8)], ids=repr)
def test_the_same_on_a_longer_chain_with_given_positions(solver: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    template = torch.full((64,), tl.FREE)
    template[::5] = 3

    def drawn() -> tl.Samples:
        return tl.sample(tl.load("chain64"), solver, nfe=24, num=20, template=template)

    by_numpy = drawn()
    monkeypatch.setattr(_fast, "USE_NUMPY", False)
    assert torch.equal(by_numpy.x, drawn().x)


def test_forks_are_nowhere_else() -> None:
    root = Path(tl.__file__).parent
    asking = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "is_cpu"
    }
    assert asking == {"core/_fast.py"}
