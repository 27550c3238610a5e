"""What the documents say, run."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
import typer.testing

import thetaleap as tl
from thetaleap.cli import app
from thetaleap.registry import SOLVERS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXTRAS = ("diffusers", "flow_matching")
"""Packages that an example may need, each with a mark of its name."""


def needed(code: str) -> list[pytest.MarkDecorator]:
    marks = [getattr(pytest.mark, name) for name in EXTRAS if f"integrations.{name} import" in code]
    return [*marks, pytest.mark.filterwarnings("ignore:invalid escape sequence")] if marks else []


BLOCKS = [
    pytest.param(code, id=f"{page.name}-{n}", marks=needed(code))
    for page in PAGES
    for n, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_examples_run_when_pasted(code: str) -> None:
    exec(compile(code, "example", "exec"), {})


def test_the_readme_names_every_solver() -> None:
    text = (ROOT / "README.md").read_text()
    for entry in SOLVERS.values():
        assert f"`{entry.load().__name__}(" in text


COMMANDS = re.findall(r"^thetaleap (sample .*)$", (ROOT / "README.md").read_text().replace("\\\n", ""), re.MULTILINE)
"""Of the README; a backslash at the end joins two lines."""


def mark(command: str) -> object:
    return pytest.param(command, marks=pytest.mark.antibodies) if "antiberty" in command else command


@pytest.mark.parametrize("command", [mark(command) for command in COMMANDS])
def test_the_readme_s_sample_commands_run(command: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command, comments=True)
    result = typer.testing.CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "samples.parquet").exists() == ("--out" in words)


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_files_that_pages_name_exist() -> None:
    """Tests by path, benchmarks as ``python -m`` takes them."""
    for page in [*PAGES, ROOT / "benchmarks" / "README.md"]:
        told = page.read_text()
        paths = [*re.findall(r"\b(?:tests|benchmarks|src|docs)/[\w/]+\.(?:py|md|png)", told)]
        paths += [f"benchmarks/{name}.py" for name in re.findall(r"python -m benchmarks\.(\w+)", told)]
        assert [path for path in paths if not (ROOT / path).exists()] == [], page.name


def test_public_names_exist_and_are_sorted() -> None:
    for name in tl.__all__:
        assert getattr(tl, name).__doc__, f"{name} has no docstring"
        # a module is found by itself: what else was imported before must not matter
        assert inspect.ismodule(getattr(tl, name)) == (name not in tl._HOME)
    # constants, then classes, then functions and modules, as ruff sorts them
    assert tl.__all__ == sorted(tl.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
