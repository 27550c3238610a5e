"""How good are the models that come with the package? ``python -m benchmarks.shipped DATA``, or some of them by name.

DATA is the folder with ``shakespeare/input.txt`` and ``mnist/train-images-idx3-ubyte.gz``. Printed are the figures of the table
in docs/training.md: the held-out bound over all of the data that was held out, in bits, with a standard error; for how many
digits a classifier sees the one that was asked for; and how many held-out problems come out right.

The bound is the mean over all orders of writing a sequence (`evidence_bound`), which is not the code that trains. The
bound on a card is of 256 to 512 examples, each at one time.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import thetaleap as tl
from thetaleap.evaluation.metrics.accuracy import Accuracy
from thetaleap.evaluation.metrics.digits import digit_labels
from thetaleap.evaluation.metrics.likelihood import evidence_bound
from thetaleap.reproduction.sums import answer_of, questions
from thetaleap.training.data import Corpus, read_corpus
from thetaleap.training.sums import problems, result_of

TEXT, IMAGES = "shakespeare/input.txt", "mnist/train-images-idx3-ubyte.gz"
DRAWS = 4
"""Of the bound, for each example."""
GUIDANCE, EVALUATIONS = 2.0, 64


def bound(name: str, nats: Tensor, length: int, characters: float | None = None) -> None:
    bits = nats / length / math.log(2)
    value, error = float(bits.mean()), float(bits.std() / len(bits) ** 0.5)
    also = "" if characters is None else f", {value / characters:.3f} ± {error / characters:.3f} per character"
    print(f"{name}: {value:.4f} ± {error:.4f} bits per token{also}; {len(bits)} examples", flush=True)


def right(what: str, count: int, num: int) -> None:
    share = Accuracy.of(count, num)
    print(f"{what}: {count} of {num}, {share.value:.1%} ({share.low:.1%} to {share.high:.1%})", flush=True)


def text(name: str, data: Path, tokenizer: str) -> None:
    """Of all that was held out, in stretches that do not overlap."""
    model, (_, unseen) = tl.load(name), read_corpus(data / TEXT, tokenizer).split()
    rows = unseen.tokens[: len(unseen.tokens) // model.length * model.length].view(-1, model.length)
    bound(name, evidence_bound(model, rows, draws=DRAWS), model.length, unseen.characters_per_token)


def digits(data: Path, num: int) -> None:
    """Each under its label."""
    model, (_, unseen) = tl.load("mnist"), _images(data)
    assert unseen.labels is not None
    known = tl.guided(model, weight=0.0, condition=unseen.labels)  # each image by its label, without guidance
    bound("mnist", evidence_bound(known, unseen.tokens, draws=DRAWS), model.length)
    asked = torch.arange(num) % 10
    guided = tl.guided(model, weight=GUIDANCE, condition=asked)
    drawn = tl.sample(guided, nfe=EVALUATIONS, num=num)
    what = f"mnist, guidance {GUIDANCE:g} in {EVALUATIONS} evaluations by auto"
    right(what, int((digit_labels(drawn.x) == asked).sum()), num)


def _images(data: Path) -> tuple[Corpus, Corpus]:
    return read_corpus(data / IMAGES, levels=8, side=14).split()


def sums(num: int) -> None:
    """One word at a time at the model's own temperature."""
    model, asked = tl.load("sums"), problems(num, held_out=True)
    template = questions(asked, model.length)
    free = (template == tl.FREE).sum(1)
    orders = {"in random order": tl.FirstHitting(), "by confidence": tl.SemiAutoregressive("confidence")}
    for order, solver in orders.items():
        budget = None if isinstance(solver, tl.FirstHitting) else int(free.max())
        drawn = tl.sample(model, solver, nfe=budget, template=template)
        told = [answer_of(model, row, int(n)) for row, n in zip(drawn.x, free, strict=True)]
        count = sum(result_of(one) == problem.result for one, problem in zip(told, asked, strict=True))
        right(f"sums, one word at a time {order}", count, num)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("models", nargs="*", help="by default all")
    parser.add_argument("--num", type=int, default=2000, help="digits and problems (default: %(default)s)")
    asked = parser.parse_args()
    known: dict[str, Callable[[], None]] = {
        "shakespeare": lambda: text("shakespeare", asked.data, "bpe:1024"),
        "shakespeare-uniform": lambda: text("shakespeare-uniform", asked.data, "bpe:1024"),
        "shakespeare-char": lambda: text("shakespeare-char", asked.data, "char"),
        "mnist": lambda: digits(asked.data, asked.num),
        "sums": lambda: sums(asked.num),
    }
    for name in asked.models or known:
        if name not in known:
            parser.error(f"models={name!r}: give some of {', '.join(known)}")
        known[name]()


if __name__ == "__main__":
    main()
