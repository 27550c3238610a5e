"""The parts of the documentation that are made: the reference, and the search for dead links."""

from __future__ import annotations

from pathlib import Path

import pytest

import thetaleap as tl
from docs.builder import reference
from docs.builder.links import problems
from thetaleap.core.fields import parameters


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(reference.pages().values())
    modules = {"grids": "control.grids", "oracles": "models.oracles"}
    lacking = [name for name in tl.__all__ if f"::: thetaleap.{modules.get(name, name)}\n" not in text]
    assert lacking == [], "add them to LISTED of docs/builder/reference.py"


@pytest.mark.parametrize("name", reference.REGISTERED)
def test_every_parameter_has_type_range_default_and_effect(name: str) -> None:
    registry, _ = reference.REGISTERED[name]
    page = reference.pages()[f"reference/{name}.md"]
    for one in registry.own:
        made = registry[one].load()
        assert f"::: thetaleap.{made.__name__}\n" in page
        for parameter in parameters(made).values():
            row = reference.cells(parameter)
            assert all(cell.strip("` ") for cell in row), (one, row)
            assert f"| {' | '.join(row)} |" in page


def test_a_row_says_what_the_class_says() -> None:
    row = reference.cells(parameters(tl.Trapezoidal)["theta"])
    assert row == ("`theta`", "float", "in (0, 1)", "`0.5`", "Where in the step the second evaluation is")
    assert reference.cells(parameters(tl.LowDiscrepancy)["shape"])[1:4] == (
        "tuple[int, int] or None",
        "HEIGHTxWIDTH",
        "`None`",
    )


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="other.html#here">good</a><a href="#top">good</a><a href="https://a.org">good</a>'
        '<a href="none.html">dead</a><a href="other.html#there">dead</a><script src="https://cdn.org/a.js"></script>'
    )
    (tmp_path / "other.html").write_text('<p id="here"></p><a href="./">good</a><img src="x.png">')
    assert problems(tmp_path) == [
        "index.html: none.html: no such file",
        "index.html: other.html#there: no such place on that page",
        "index.html: https://cdn.org/a.js: would be fetched from elsewhere",
        "other.html: x.png: no such file",
    ]
