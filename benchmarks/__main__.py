"""Run the light benchmarks, and say how to run the others."""

import ast
from pathlib import Path

from . import planned_chain, toy_loop

LIGHT = (toy_loop, planned_chain)

for module in LIGHT:
    module.main()

print("\nby name, as in `python -m benchmarks.peers`:")
for path in sorted(Path(__file__).parent.glob("*.py")):
    source = ast.parse(path.read_text(encoding="utf-8"))
    runs = any(isinstance(part, ast.FunctionDef) and part.name == "main" for part in source.body)
    if runs and f"{__package__}.{path.stem}" not in {module.__name__ for module in LIGHT}:
        print(f"  {path.stem:16} {(ast.get_docstring(source) or '').splitlines()[0]}")
