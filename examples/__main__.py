"""``python -m examples [NAME ...]``: run the programs, and put their pictures where the documentation shows them."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs" / "gallery"
PROGRAMS = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("_") and path.stem != "notebooks")

if __name__ == "__main__":
    wanted = sys.argv[1:] or [path.stem for path in PROGRAMS]
    if unknown := set(wanted) - {path.stem for path in PROGRAMS}:
        sys.exit(
            f"{', '.join(sorted(unknown))}: no such program; give some of {', '.join(path.stem for path in PROGRAMS)}"
        )
    PICTURES.mkdir(exist_ok=True)
    for name in wanted:
        print(name, flush=True)
        subprocess.run([sys.executable, HERE / f"{name}.py"], cwd=PICTURES, check=True)
