"""What the documents say, run."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import typer.testing

import thetaleap as tl
from docs.builder import reference
from thetaleap.cli import app
from thetaleap.registry import SOLVERS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted((ROOT / "docs").glob("*.md"))
PROSE = {"bibtex", "text", "toml"}
"""Languages in which there is nothing to run."""
RUN = {"python", "", "sh"}
NOT_RUN = re.compile(r"<!-- not run: \S.* -->\n.*|.*\n# needs \w.*")
"""The line above a fence, or the first one of the code."""
NEEDS = re.compile(r"<!-- needs (\w+) -->|\bintegrations\.(diffusers|flow_matching|ray) import")
"""A mark of pytest: in the line above the fence, or the name of a package that the code drives."""


@dataclass(frozen=True)
class Block:
    """Code between fences."""

    page: str
    number: int
    language: str
    code: str
    before: str
    """The line above it."""

    @property
    def runs(self) -> bool:
        first = self.code.partition("\n")[0]
        return self.language not in PROSE and not NOT_RUN.fullmatch(f"{self.before}\n{first}")


def blocks_of(path: Path) -> list[Block]:
    """All blocks of a page; the line above a fence says what a block needs, or why it is not run."""
    found = re.finditer(r"^([^\n]*)\n```(\w*)\n(.*?)^```$", "\n" + path.read_text(), re.MULTILINE | re.DOTALL)
    return [
        Block(path.name, n, language, code, before)
        for n, (before, language, code) in enumerate(m.groups() for m in found)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def marked(block: Block, value: object, name: str) -> object:
    needs = NEEDS.search(f"{block.before}\n{block.code}")
    if needs is None:
        return pytest.param(value, id=name)
    theirs = pytest.mark.filterwarnings("ignore:invalid escape sequence")  # in the source of such packages
    return pytest.param(value, id=name, marks=[getattr(pytest.mark, needs[1] or needs[2]), theirs])


@pytest.mark.parametrize(
    "code",
    [marked(one, one.code, f"{one.page}-{one.number}") for one in BLOCKS if one.language == "python" and one.runs],
)
def test_examples_run_when_pasted(code: str) -> None:
    exec(compile(code, "example", "exec"), {})


COMMANDS = {
    line: block
    for block in BLOCKS
    if block.language in ("", "sh") and block.runs
    for line in re.sub(r"\\\n\s*", "", block.code).splitlines()
}
"""Each once, with a block that has it."""


@pytest.mark.parametrize("command", [marked(block, line, line) for line, block in COMMANDS.items()])
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command, comments=True)
    assert program == "thetaleap", "only these can be run; write <!-- not run: REASON --> above the block"
    result = typer.testing.CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert ["--out" in words] == [bool(list(tmp_path.iterdir()))]


def test_blocks_run_or_say_why_not() -> None:
    """Python and commands run, unless the line above the fence is ``<!-- not run: REASON -->``, or their first line begins
    with ``# needs``."""
    unknown = [
        f"{one.page}: block {one.number}, {one.language}" for one in BLOCKS if one.runs and one.language not in RUN
    ]
    assert unknown == [], "write ```python or ```sh, or <!-- not run: REASON --> above the block"


@pytest.mark.parametrize(
    "block", [pytest.param(one, id=f"{one.page}-{one.number}") for one in BLOCKS if one.language == "py"]
)
def test_python_that_is_not_run_is_python(block: Block) -> None:
    """It compiles, and what it imports of this package is there."""
    for node in ast.walk(ast.parse(block.code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("thetaleap"):
            module = import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


def test_pictures_say_which_command_makes_them() -> None:
    """In the paragraph below each: a program of examples/, a module of benchmarks/, or a command."""
    made = re.compile(r"`(python examples/(\w+)\.py|python -m (benchmarks\.\w+)[^`]*|thetaleap [^`]+)`")
    for page in PAGES:
        for picture, below in re.findall(r"!\[[^]]*\]\(([^)]+)\)\n+(.*?)(?:\n\n|$)", page.read_text(), re.DOTALL):
            assert (page.parent / picture).exists(), f"{page.name}: {picture}"
            found = made.search(below)
            assert found, f"{page.name}: {picture}: say below it which command makes it"
            for file in (found[2] and f"examples/{found[2]}.py", found[3] and f"{found[3].replace('.', '/')}.py"):
                assert not file or (ROOT / file).exists(), file


def test_the_readme_has_every_extra_and_the_citation_the_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = re.findall(r"^\| `pip install '\.\[(\w+)\]'` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(extras)
    assert f"\nversion: {tl.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_guide_names_every_solver() -> None:
    text = (ROOT / "docs" / "solvers.md").read_text()
    for entry in SOLVERS.values():
        assert f"`{entry.load().__name__}(" in text


def test_links_lead_somewhere() -> None:
    """To files, or to pages that only the site has, whose links `make docs` follows once more."""
    made = {"gallery.md", *reference.pages()}
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            there = target.startswith("http") or target in made or (page.parent / target).exists()
            assert there, f"{page.name}: {target}"


def test_files_that_pages_name_exist() -> None:
    """Tests by path, benchmarks as ``python -m`` takes them."""
    for page in [*PAGES, ROOT / "benchmarks" / "README.md"]:
        told = page.read_text()
        paths = [*re.findall(r"\b(?:tests|benchmarks|src|docs)/[\w/]+\.(?:py|md|png)", told)]
        paths += [f"benchmarks/{name}.py" for name in re.findall(r"python -m benchmarks\.(\w+)", told)]
        assert [path for path in paths if not (ROOT / path).exists()] == [], page.name


def test_names_in_prose_exist() -> None:
    """Classes that pages call, as in `Geometric(low, high)`, and what they say of `tl`; or of the integrations."""
    folder = ROOT / "src" / "thetaleap" / "integrations"
    engines = set(re.findall(r"^class (\w+)", "".join(file.read_text() for file in folder.rglob("*.py")), re.MULTILINE))
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for span in re.findall(r"`([^`\n]+)`", prose):
            names = re.findall(r"(?<![\w.])([A-Z]\w*[a-z]{2}\w*)\(|\btl\.(\w+)", span)
            known = (hasattr(tl, one or other) or one in engines for one, other in names)
            assert all(known), f"{page.name}: {span}"


def test_public_names_exist_and_are_sorted() -> None:
    for name in tl.__all__:
        assert getattr(tl, name).__doc__, f"{name} has no docstring"
        # a module is found by itself: what else was imported before must not matter
        assert inspect.ismodule(getattr(tl, name)) == (name not in tl._HOME)
    # constants, then classes, then functions and modules, as ruff sorts them
    assert tl.__all__ == sorted(tl.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
