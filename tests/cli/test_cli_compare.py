"""`thetaleap compare`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cli.test_cli import failed, ran


def test_compare(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    solvers = "tweedie, Multistep(window=1, weight=0.5),auto"
    text = ran("compare", "cube3", "--solvers", solvers, "--nfe", "2,3", "--out", folder)
    assert text.startswith("At 2 evaluations ")
    assert "Multistep(window=1, weight=0.5)" in text
    solvers = "auto is Multistep(planner=FixedCount(schedule='even')) at 2 and Tweedie(planner=FixedCount(schedule='even')) at 3"
    assert solvers in " ".join(text.split())
    assert (folder / "comparison.csv").exists()


def test_compare_with_plans(tmp_path: Path) -> None:
    text = ran("compare", "cube3", "--solvers", "multistep", "--nfe", "2", "--plan", "--out", tmp_path / "c")
    assert "multistep-planned" in text
    some = ran("compare", "cube3", "--solvers", "multistep-planned", "--nfe", "2", "--plan", "--out", tmp_path / "d")
    assert "low-discrepancy-planned" not in some


def test_compare_with_samples_of_a_file(tmp_path: Path) -> None:
    few = ("compare", "cube3", "--solvers", "auto,tweedie", "--nfe", "2", "--num", "9")
    text = ran(*few, "--reference", "model", "--out", tmp_path)
    assert "exact samples of the model, one position at a time" in " ".join(text.split())
    again = ran(*few, "--reference", tmp_path / "reference.npy", "--out", tmp_path / "d")
    assert "9 samples that were given" in " ".join(again.split())
    assert not (tmp_path / "d" / "reference.npy").exists()
    np.save(tmp_path / "wide.npy", np.zeros((9, 4), dtype=np.int64))
    wide = tmp_path / "wide.npy"
    assert f"--reference {wide}: give whole numbers of shape (samples, 3)" in failed(*few, "--reference", wide)
    assert "there is no such file" in failed(*few, "--reference", tmp_path / "none.npy")
    assert "--reference modle: let it end with one of" in failed(*few, "--reference", "modle")


def test_compare_refuses(tmp_path: Path) -> None:
    assert "--solvers tweedy: did you mean 'tweedie'" in failed("compare", "cube3", "--solvers", "tweedy")
    typo = failed("compare", "cube3", "--solvers", "auto,Multistep(wieght=0.5)")
    assert "there is no 'wieght'; did you mean 'weight'? Multistep has weight, window" in typo
    assert "the name='Multstep': did you mean 'Multistep'" in failed("compare", "cube3", "--solvers", "Multstep()")
    assert "cannot be read" in failed("compare", "cube3", "--solvers", "Multistep(weight=")
    assert "did you mean 'cube3'" in failed("compare", "cube33")
    assert "--nfe 4,x: " in failed("compare", "cube3", "--nfe", "4,x")
    assert "plans are for masked models" in failed("compare", "cube3-uniform", "--plan")
