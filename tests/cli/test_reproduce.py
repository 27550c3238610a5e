"""``thetaleap reproduce`` and ``demo``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.cli.test_cli import failed, ran

ABOUT = "a play with [brackets]"


def act(folder: Path, **given: Any) -> SimpleNamespace:
    """An experiment that says what it was called with."""
    folder.mkdir(parents=True)
    path = folder / "figure.png"
    path.write_bytes(b"figure")
    return SimpleNamespace(text=f"| table | of [{given}] |", files=[path])


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, one = ModuleType("thetaleap.reproduction"), SimpleNamespace(about=ABOUT, run=act)
    vars(module).update(EXPERIMENTS={"toy": one, "uniformization": one}, demo=one)
    monkeypatch.setitem(sys.modules, "thetaleap.reproduction", module)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("play")
@pytest.mark.parametrize(
    ("args", "folder", "given"),
    [
        ("reproduce toy", "runs/toy", {"num": None, "seed": 0, "progress": None}),
        ("reproduce toy --num 5 --seed 3 --out here/there", "here/there", {"num": 5, "seed": 3, "progress": None}),
        ("reproduce toy --full", "runs/toy", {"num": None, "seed": 0, "progress": None, "full": True}),
        ("demo", "runs/demo", {"seed": 0, "progress": None}),
        ("demo --seed 3 --out there", "there", {"seed": 3, "progress": None}),
    ],
)
def test_experiments(args: str, folder: str, given: dict[str, Any]) -> None:
    assert ran(*args.split()) == f"| table | of [{given}] |\nwrote {folder}/figure.png\n"
    assert Path(folder, "figure.png").exists()


@pytest.mark.usefixtures("play")
def test_experiments_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "NAME uniformisation: did you mean 'uniformization'? choose one of uniformization, toy"
    assert failed("reproduce", "uniformisation") == message
    Path("file").touch()
    for command in (["reproduce", "toy"], ["demo"]):
        for out in ("file", "file/folder"):
            assert failed(*command, "--out", out) == f"--out {out}: 'file' is a file; give a folder"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert failed("demo") == "--out 'runs/demo' (the default): '.' is not yours to write to; give another"
    assert [path.name for path in Path().iterdir()] == ["file"]


@pytest.mark.usefixtures("play")
def test_experiments_listed() -> None:
    head, *rows = ran("reproduce").splitlines()
    assert re.split(" {2,}", head.strip()) == ["experiment", "what it shows"]
    assert [re.split(" {2,}", row.strip()) for row in rows] == [["toy", ABOUT], ["uniformization", ABOUT]]


def test_a_real_experiment(tmp_path: Path) -> None:
    text = ran("reproduce", "uniformization", "--num", 20, "--out", tmp_path)
    written = [Path(line.removeprefix("wrote ")) for line in text.splitlines() if line.startswith("wrote ")]
    assert written
    assert set(written) == set(tmp_path.iterdir())
