"""The paper's tables against its source, read a second time."""

from __future__ import annotations

import re

import pytest

from tests.conftest import DATA
from thetaleap.reproduction.methods import RK, TAU
from thetaleap.reproduction.paper import ENTROPY, GPT2, LLAMA, POSITIVE, SHORT, TABLES, TEXT, Table

SOURCE = DATA.parent / "paper" / "fast-solvers.tex"


def rows_of(label: str) -> tuple[list[int], dict[str, list[list[float]]]]:
    """Evaluations, and by method the numbers of each cell, of the table that stands before `label`."""
    before = SOURCE.read_text(encoding="utf-8").split(rf"\label{{{label}}}")
    body = before[1] if label == POSITIVE.label else before[0].rpartition(r"\toprule")[2]
    lines = re.findall(r"^\s*(.+?&.+?)\\\\", body.partition(r"\bottomrule")[0], re.MULTILINE)
    first, *rest = [[cell.strip() for cell in line.split("&")] for line in lines]
    header = [int("".join(re.findall(r"\d+", cell))) for cell in first[1:]]
    found = {}
    for line in rest:
        name, cells = line[0], line[1:]
        plain = name.replace(r"$\tau$", "tau").replace(r"$\theta$", "theta").replace("leap.", "leaping")
        found[plain] = [[float(n) for n in re.findall(r"\d+\.\d+", cell)] for cell in cells]
    return header, found


@pytest.mark.data
@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.label)
def test_the_figures_are_the_paper_s(table: Table) -> None:
    header, found = rows_of(table.label)
    assert set(found) == set(table.values)
    for method, cells in found.items():
        assert table.values[method] == {nfe: cell[0] for nfe, cell in zip(header, cells, strict=True)}
        assert table.spread.get(method, {}) == {
            nfe: cell[1] for nfe, cell in zip(header, cells, strict=True) if len(cell) > 1
        }


def test_they_are_what_their_words_say() -> None:
    assert tuple(TEXT.values()) == (GPT2, LLAMA, ENTROPY)
    full = [(method, nfe) for method, row in SHORT.values.items() for nfe in row]
    apart = [place for place in full if SHORT.values[place[0]][place[1]] != GPT2.values[place[0]][place[1]]]
    assert apart == [(RK, 1024)], "where the paper's two tables differ"
    assert all(set(row) == set(GPT2.values[TAU]) for table in TEXT.values() for row in table.values.values())
    assert POSITIVE.spread.keys() == POSITIVE.values.keys()
