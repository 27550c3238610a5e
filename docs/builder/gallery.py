"""The page of the gallery: every program of examples/ with its picture."""

from __future__ import annotations

import ast
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
PICTURES = Path(__file__).parents[1] / "gallery"
ORDER = (
    *("own_network", "infilling", "guidance", "choosing_a_solver", "uniform_text", "exact_laws", "antibodies"),
    *("many_machines", "animation"),
)
ABOUT = """# Gallery

Each program is complete, and the tests run it. `python -m examples` runs them all and draws the pictures of this page
again; `python examples/infilling.py` runs one, in the folder you are in. """


def files() -> list[Path]:
    """What the page links to besides pictures: the notebooks."""
    return sorted(EXAMPLES.glob("*.ipynb"))


def page() -> str:
    """One section per program, as Markdown."""
    return "\n\n".join([ABOUT, *(_section(EXAMPLES / f"{name}.py") for name in ORDER)]) + "\n"


def _section(program: Path) -> str:
    source = program.read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, _, about = (ast.get_docstring(tree) or "").partition("\n\n")
    code = "\n".join(source.splitlines()[tree.body[0].end_lineno :]).strip().replace("# %%\n", "")
    picture = next(PICTURES.glob(f"{program.stem}.*"))
    notebook = program.with_suffix(".ipynb")
    links = f" As a notebook: [{notebook.name}](gallery/{notebook.name})." if notebook.exists() else ""
    shown = f"![{title.rstrip('.')}](gallery/{picture.name})"
    made = f"`python examples/{program.name}` draws this.{links}"
    return "\n\n".join([f"## {title.rstrip('.')}", about, shown, made, f"```python\n{code}\n```"])
