"""``python -m examples.notebooks``: write the notebooks, each from the program of its name, and run them.

A line ``# %%`` of the program begins a cell; its docstring is the text at the top.
"""

import ast
from pathlib import Path

import nbformat  # pyright: ignore[reportMissingImports]
from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).parent
NAMES = ("own_network", "exact_laws")


def notebook(name: str) -> nbformat.NotebookNode:
    """The program as a notebook that was not run yet."""
    source = (HERE / f"{name}.py").read_text(encoding="utf-8")
    title, _, about = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    cells = [nbformat.v4.new_markdown_cell(f"# {title.rstrip('.')}\n\n{about}")]
    cells += [nbformat.v4.new_code_cell(code.strip()) for code in source.split("# %%\n")[1:]]
    for number, cell in enumerate(cells):
        cell.id = f"{name}-{number}"  # the same whenever it is made
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": python})


def executed(name: str, folder: Path) -> nbformat.NotebookNode:
    """The same, run in a folder."""
    made = notebook(name)
    NotebookClient(made, timeout=600, resources={"metadata": {"path": str(folder)}}, record_timing=False).execute()
    return made


if __name__ == "__main__":
    import tempfile

    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            made = executed(name, Path(folder))
        made.metadata.pop("language_info", None)
        nbformat.write(made, HERE / f"{name}.ipynb")
