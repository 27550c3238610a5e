"""`thetaleap compare`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_cli import failed, ran


def test_compare(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    text = ran("compare", "cube3", "--solvers", "tweedie,multistep", "--nfe", "2,3", "--out", folder)
    assert "tweedie" in text
    assert (folder / "comparison.csv").exists()


def test_compare_with_plans(tmp_path: Path) -> None:
    solvers = "multistep,multistep-planned,low-discrepancy-planned"
    text = ran("compare", "cube3", "--solvers", solvers, "--nfe", "2", "--plan", "--out", tmp_path / "c")
    assert "multistep-planned" in text


def test_compare_refuses() -> None:
    assert "did you mean 'tweedie'" in failed("compare", "cube3", "--solvers", "tweedy")
    assert "nfe='4,x'" in failed("compare", "cube3", "--nfe", "4,x")
    assert "plans are for masked models" in failed("compare", "cube3-uniform", "--plan")
