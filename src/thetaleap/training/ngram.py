"""The judge of plays of `models.ngram`, or one of any other text, from a file.

    python -m thetaleap.training.ngram PATH --out FOLDER

writes the strings of characters in the first nine tenths, and a card that says how it fares on the last tenth.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import __version__
from ..core.fields import check_fields, knob
from ..core.storage import replacing
from ..evaluation.judges.ngram import CARD, TABLE, NGram, fit, save
from ..evaluation.metrics.text import TextQuality
from .data import Corpus, read_corpus
from .recipes import Card, command, run_script, write_card

SCRIPT = "thetaleap.training.ngram"


@dataclass(frozen=True)
class Recipe:
    """All that the judge depends on beside the text."""

    order: int = knob(6, "characters of the longest strings", least=1)
    rare: int = knob(4, "the longest strings that are all kept; of longer ones those that count at least two", least=0)
    length: int = knob(256, "of the pieces of held-out text that samples are compared with", least=4)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def least(self) -> list[int]:
        """How often strings of each length must occur."""
        return [1 if n <= self.rare else 2 for n in range(1, self.order + 1)]


def make(path: Path, folder: Path, recipe: Recipe) -> Card:
    """Count the strings of the text in `path`, and write to `folder` all that `models.ngram` reads; gives the card."""
    corpus = read_corpus(path)
    known, unseen = corpus.split()
    model = fit(known.tokens, corpus.tokenizer.alphabet, recipe.least, folder.name)
    card: Card = {
        "about": "an n-gram model of characters (interpolated Kneser-Ney), to judge samples of text",
        "command": command(SCRIPT, path, recipe),
        **asdict(recipe),
        "alphabet": corpus.tokenizer.alphabet,
        "data sha256": corpus.digest,
        "strings": [len(strings.keys) for strings in model.strings],
        **held_out(model, unseen, recipe.length),
        "version": __version__,
    }
    write_card(folder / CARD, card)
    with replacing(folder / TABLE) as part:
        save(model, part)
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
    run_script(SCRIPT, __doc__, "a text file", Recipe, make)


if __name__ == "__main__":
    main()
