"""The judge of plays of `models.ngram`, or one of any other text, from a file.

    python -m thetaleap.training.ngram PATH --out FOLDER

writes the strings of characters in the first nine tenths, and a card that says how it fares on the last tenth.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.checks import require_count
from ..evaluation.judges.ngram import CARD, TABLE, NGram, fit, save
from ..evaluation.metrics.text import TextQuality
from .data import Corpus, read_corpus
from .trainer import replaced

Card = dict[str, Any]
ABOUT = {
    "order": "characters of the longest strings",
    "rare": "the longest strings that are all kept; of longer ones those that count at least two",
    "length": "of the pieces of held-out text that samples are compared with",
}


@dataclass(frozen=True)
class Recipe:
    """All that the judge depends on beside the text."""

    order: int = 6
    rare: int = 4
    length: int = 256

    def __post_init__(self) -> None:
        require_count("order", self.order)
        require_count("rare", self.rare, least=0)
        require_count("length", self.length, least=4)

    @property
    def least(self) -> list[int]:
        """How often strings of each length must occur."""
        return [1 if n <= self.rare else 2 for n in range(1, self.order + 1)]


def make(path: Path, folder: Path, recipe: Recipe) -> Card:
    """Count the strings of the text in `path`, and write to `folder` all that `models.ngram` reads; gives the card."""
    corpus = read_corpus(path)
    known, unseen = corpus.split()
    model = fit(known.tokens, corpus.tokenizer.alphabet, recipe.least, folder.name)
    options = " ".join(f"--{name} {value}" for name, value in asdict(recipe).items())
    card: Card = {
        "about": "an n-gram model of characters (interpolated Kneser-Ney), to judge samples of text",
        "command": f"python -m thetaleap.training.ngram {path.name} --out FOLDER {options}",
        **asdict(recipe),
        "alphabet": corpus.tokenizer.alphabet,
        "data sha256": corpus.digest,
        "strings": [len(strings.keys) for strings in model.strings],
        **held_out(model, unseen, recipe.length),
        "version": __version__,
    }
    replaced(folder / TABLE, lambda file: save(model, file))
    text = json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replaced(folder / CARD, lambda file: file.write_text(text, encoding="utf-8"))
    return card


def held_out(model: NGram, unseen: Corpus, length: int) -> Card:
    """How likely the judge finds text that it has not seen: in one piece, and in pieces like samples."""
    tokens = unseen.tokens
    whole = float(model.nats([tokens.tolist()])[0]) / len(tokens) / math.log(2)
    rows = tokens[: len(tokens) // length * length].view(-1, length).tolist()
    quality = TextQuality.of(rows, model.nats(rows))
    return {
        "held-out characters": len(tokens),
        "held-out bits per character": whole,
        "held-out pieces": {
            "num": len(rows),
            "length": length,
            "perplexity": asdict(quality.perplexity),
            "unigram_entropy": asdict(quality.entropy),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m thetaleap.training.ngram", description=__doc__)
    parser.add_argument("path", type=Path, help="a text file")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    for name, value in asdict(Recipe()).items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{ABOUT[name]} (default: {value})")
    options = vars(parser.parse_args())
    path, folder = options.pop("path"), options.pop("out")
    print(json.dumps(make(path, folder, Recipe(**options)), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
