"""Scripts made from recipes, which are dataclasses whose fields say what they are for; and the cards they leave."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ..core.fields import knob_of
from ..core.storage import replacing

Card = dict[str, Any]


def command(script: str, path: Path, recipe: Any) -> str:
    """What to type to have the same again."""
    return " ".join(
        [f"python -m {script} {path.name} --out FOLDER", *(f"--{k} {v}" for k, v in asdict(recipe).items())]
    )


def run_script(
    script: str, about: str | None, path_help: str, recipe: type, make: Callable[[Path, Path, Any], Card]
) -> None:
    """Call `make` with the path, the folder and the recipe of the command line, and print the card that it returns."""
    parser = argparse.ArgumentParser(prog=f"python -m {script}", description=about)
    parser.add_argument("path", type=Path, help=path_help)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    for one in fields(recipe):
        told = f"{knob_of(one).help} (default: {one.default})"
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default, help=told)
    options = vars(parser.parse_args())
    path, folder = options.pop("path"), options.pop("out")
    print(json.dumps(make(path, folder, recipe(**options)), indent=2, ensure_ascii=False))


def write_card(path: Path, card: Card) -> None:
    """As JSON, which has no NaN."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, str] | None = None) -> None:
    """As safetensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ready = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with replacing(path) as part:
        save_file(ready, part, facts)
