"""The programs of examples/, run as somebody would, and the notebooks made of two of them."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from docs.builder import gallery
from examples.__main__ import PICTURES, PROGRAMS

NEEDS = {"antibodies": pytest.mark.antibodies, "many_machines": pytest.mark.ray}
NOTEBOOKS = sorted(path.stem for path in gallery.files())


@pytest.mark.parametrize("program", [pytest.param(one, id=one.stem, marks=NEEDS.get(one.stem, ())) for one in PROGRAMS])
def test_programs_draw_their_pictures(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each leaves one picture, of the size of the one that the gallery shows."""
    monkeypatch.chdir(tmp_path)
    if program.stem == "many_machines":  # Ray wants a process of its own
        subprocess.run([sys.executable, program], check=True, timeout=600)
    else:
        runpy.run_path(str(program), run_name="__main__")
    plt.close("all")
    (shown,) = PICTURES.glob(f"{program.stem}.*")
    with Image.open(tmp_path / shown.name) as drawn, Image.open(shown) as kept:
        assert drawn.size == kept.size
        assert getattr(drawn, "n_frames", 1) == getattr(kept, "n_frames", 1)
        assert len(drawn.convert("L").getcolors() or ()) > 4, "it is not empty"


def test_the_gallery_has_every_program() -> None:
    assert sorted(gallery.ORDER) == [one.stem for one in PROGRAMS]
    page = gallery.page()
    for program in PROGRAMS:
        assert f"`python examples/{program.name}` draws this." in page


def test_there_are_two_notebooks() -> None:
    assert len(NOTEBOOKS) == 2


@pytest.mark.docs
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_the_programs_and_run(name: str, tmp_path: Path) -> None:
    """To write them again: python -m examples.notebooks."""
    from examples import notebooks

    kept = json.loads((gallery.EXAMPLES / f"{name}.ipynb").read_text())
    sources = ["".join(cell["source"]) for cell in kept["cells"]]
    assert sources == [cell.source for cell in notebooks.notebook(name).cells]
    run = notebooks.executed(name, tmp_path)
    pictures = [
        output for cell in run.cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1
