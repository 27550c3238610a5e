"""What the paper reports on text: its tables, as they are printed. Nothing here was measured by this library.

All are for RADD (small, trained with the lambda-DCE loss) on 1024 tokens: 1024 samples a row, log-linear schedule with
eps = 1e-3, equal steps down to delta = 1e-3, theta = 1/2 for both two-stage methods.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NFES = (16, 32, 64, 128, 256, 512, 1024)


def data(name: str) -> dict[str, Any]:
    """A data file of this folder."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Table:
    """Figures of the paper, by method and evaluations."""

    about: str
    """What the figures are, and where the paper has them."""
    label: str
    """What the paper's source calls the table."""
    values: dict[str, dict[int, float]]
    spread: dict[str, dict[int, float]]
    """What the paper writes behind ±, without saying what it is; nothing in most tables."""

    @staticmethod
    def of(entry: dict[str, Any]) -> Table:
        def by_nfe(rows: dict[str, list[float]]) -> dict[str, dict[int, float]]:
            return {name: dict(zip(entry["nfes"], row, strict=True)) for name, row in rows.items()}

        return Table(entry["about"], entry["label"], by_nfe(entry["values"]), by_nfe(entry["spread"]))


TABLES = {name: Table.of(entry) for name, entry in data("paper").items()}
SHORT, GPT2, LLAMA, ENTROPY, POSITIVE = TABLES.values()
"""At 1024 evaluations theta-RK-2 is 36.330 in the short table of the main text, and 33.971 in the full one."""
TEXT = {"perplexity, GPT-2 large": GPT2, "perplexity, LLaMA 3": LLAMA, "unigram entropy": ENTROPY}
"""The three tables on text, by what they show."""
