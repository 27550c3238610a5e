"""A tiny language model that writes numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import tiny_llm

NUMBERS = {"cat": "18", "dog": "3", "sat": "70000", "ran": "540", "hot": "20", "mat": "64", "rug": "260", "the": "####"}
"""What stands for what: the final answers of GSM8K's first test questions, and the sign before them."""


def write(folder: Path, **more: Any) -> None:
    """To `folder`, with room for long prompts."""
    tiny_llm.causal(folder, **{"max_position_embeddings": 1024, **more})
    path = folder / "tokenizer.json"
    words = json.loads(path.read_text())
    vocabulary = words["model"]["vocab"]
    words["model"]["vocab"] = {NUMBERS.get(word, word): number for word, number in vocabulary.items()}
    path.write_text(json.dumps(words))
