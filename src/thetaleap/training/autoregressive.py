"""An autoregressive network for reference: of the size of a model, trained on the same data by the same recipe.

::

    python -m thetaleap.training.autoregressive input.txt --like shakespeare --out runs/left-to-right

Everything is as on the card of the model, but that each position sees those before it alone and is asked for the next
token, so that its held-out bits are a likelihood and no bound. Of sums the card says how many come out right, one word
after the other. A run that was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import __version__
from ..core.checks import require
from ..core.fields import check_fields, knob
from ..core.noise import Draw, Stream, inverse_cdf
from ..core.storage import SHIPPED
from ..evaluation.metrics.accuracy import Accuracy
from ..models.trained import CARD
from ..models.transformer import Sizes, Transformer
from .data import Batch, Corpus, Examples, read_corpus
from .recipes import Card, command, run_script, write_card
from .sums import Sums, encoded, problems, result_of
from .trainer import CHECKPOINT, Recipe, Run, averaged, compiler, descend, optimizers, resume, save, sizes_of

SCRIPT = "thetaleap.training.autoregressive"
EVERY = 180.0
"""Seconds between checkpoints."""
LEAST = 256
"""Held-out examples."""
ASKED = 400
"""Held-out problems."""
PRECISIONS = ("model", "float32", "bfloat16")


@dataclass(frozen=True)
class Likeness:
    """What to train: the recipe is that of a model."""

    like: str = knob("shakespeare", "The model whose size and recipe to take: a name in the package, or a folder.")
    steps: int = knob(0, "Steps to train; 0 for as many as the model has taken.", least=0)
    precision: str = knob("model", "In which to train: float32, bfloat16, or as the model.", choices=PRECISIONS)

    def __post_init__(self) -> None:
        check_fields(self)


def make(path: Path, folder: Path, likeness: Likeness) -> Card:
    """Train on the data in `path`, and write the card, with bits per token that was held out, to `folder`."""
    known = card_of(likeness.like)
    recipe = recipe_of(known, likeness.steps, likeness.precision)
    corpus = Sums() if str(path) == "sums" else read_corpus(path, **reading(known))
    corpus.check(recipe.length, str(path))
    kept, unseen = corpus.split()
    run = train(kept, recipe, folder)
    bits, error = (nats / math.log(2) for nats in held_out(run, unseen))
    found = {"bits per token": bits, "standard error": error}
    if isinstance(unseen, Corpus) and unseen.characters_per_token is not None:
        found["bits per character"] = bits / unseen.characters_per_token
    if isinstance(unseen, Sums):
        ways = {"right, drawn": False, "right, the likeliest": True}
        found |= {name: asdict(solved(run, likeliest)) for name, likeliest in ways.items()}
    card: Card = {
        "command": command(SCRIPT, path, likeness),
        "data sha256": corpus.digest,
        "recipe": asdict(recipe),
        "parameters": sum(value.numel() for value in run.model.parameters()),
        "held out": found,
        f"held-out bound of {likeness.like}": known["held-out bound"],
        "version": __version__,
    }
    write_card(folder / CARD, card)
    return card


def card_of(like: str) -> dict[str, Any]:
    """The card of a model in the package, or in a folder."""
    inside = [folder.name for folder in SHIPPED.iterdir() if (folder / CARD).is_file()]
    path = (SHIPPED / like if like in inside else Path(like).expanduser()) / CARD
    require(path.is_file(), "like", like, f"there is no card; give one of {', '.join(sorted(inside))}, or a folder")
    card = json.loads(path.read_text(encoding="utf-8"))
    require("recipe" in card and "sizes" in card, "like", like, "was not made by thetaleap train; give one that was")
    return card


def recipe_of(card: dict[str, Any], steps: int, precision: str) -> Recipe:
    """That of the card, with so many steps or its own, and in this precision or its own; compiled if it can be, and there is
    no noise to choose. A network that sees squares cannot be asked for one position after the other, and so every position
    is one."""
    known = {one.name for one in fields(Recipe)}
    told = {key: value for key, value in card["recipe"].items() if key in known}
    compiled = told.get("compiled", False) and compiler()
    own = {"process": "masked", "patch": 1, "compiled": compiled, "steps": steps or told["steps"]}
    own |= {} if precision == "model" else {"precision": precision}
    return Recipe(**{**told, **own})


def reading(card: dict[str, Any]) -> dict[str, Any]:
    """How `read_corpus` is to read the data of the card."""
    if card["shape"]:
        return {"levels": card["sizes"]["tokens"], "side": card["shape"][0]}
    name = (card["tokenizer"] or {}).get("name")
    return {"tokenizer": f"bpe:{card['sizes']['tokens']}" if name == "bpe" else name}


def start(recipe: Recipe, corpus: Examples) -> Run:
    """A fresh run; the mask's embedding stands before the first token."""
    sizes = replace(sizes_of(recipe, corpus), causal=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = Transformer(sizes).train()
    averages = {name: value.detach().clone() for name, value in model.named_parameters()}
    fast = torch.compile(model) if recipe.compiled else None
    return Run(recipe, model, averages, optimizers(recipe, model), fast=fast)  # pyright: ignore[reportArgumentType]


def loss_of(recipe: Recipe, sizes: Sizes, model: nn.Module, batch: Batch, noise: Stream) -> tuple[Tensor, Tensor]:
    """``-log p`` of each example in nats, and how many tokens it has that are not given."""
    x, labels = batch.tokens, batch.labels
    if labels is not None:
        dropped = noise(Draw.LABEL).uniform(len(labels)) < recipe.drop_label
        labels = torch.where(dropped, sizes.classes or 0, labels)
    before = torch.cat([torch.full_like(x[:, :1], sizes.tokens), x[:, :-1]], 1)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
        logits = model(before, None, labels)
    nats = F.cross_entropy(logits.float().transpose(1, 2), x, reduction="none")
    asked = torch.ones_like(nats) if batch.given is None else (~batch.given).to(nats)
    return (nats * asked).sum(1), asked.sum(1)


def train(corpus: Examples, recipe: Recipe, folder: Path) -> Run:
    """Until the recipe's last step, from the checkpoint in `folder` if there is one."""
    run = start(recipe, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / CHECKPOINT).is_file():
        run = resume(run, folder)
    saved = time.monotonic()
    while run.step < recipe.steps:
        noise = Stream(recipe.seed, 0, recipe.batch).at(run.step)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(noise(Draw.DROPOUT).uniform(recipe.batch)[0] * 2**53))
            batch, model = corpus.draw(recipe.batch, recipe.length, noise), run.model if run.fast is None else run.fast
            nats, _ = loss_of(recipe, run.model.sizes, model, batch, noise)
            loss = descend(run, nats.mean() / recipe.length)
        if run.step % 100 == 0:
            print(f"step {run.step} of {recipe.steps}: {loss / math.log(2):.3f} bits per token", file=sys.stderr)
        if time.monotonic() - saved > EVERY:
            save(run, folder)
            saved = time.monotonic()
    save(run, folder)
    return run


def held_out(run: Run, corpus: Examples) -> tuple[float, float]:
    """``-log p`` of unseen data in nats per token, by the averaged weights in float32, and its standard error. As for the
    bounds of models, a token that is given counts among those of an example, with nothing to add."""
    model, recipe, parts = averaged(run), replace(run.recipe, precision="float32"), []
    for first in range(0, max(LEAST, 8 * recipe.batch), recipe.batch):
        noise = Stream(recipe.seed, first, recipe.batch).at(2**40)  # no step of training
        with torch.no_grad():
            nats, _ = loss_of(recipe, model.sizes, model, corpus.draw(recipe.batch, recipe.length, noise), noise)
        parts.append(nats.double().mean() / recipe.length)
    means = torch.stack(parts)
    return float(means.mean()), float(means.std() / len(means) ** 0.5)


def solved(run: Run, likeliest: bool, num: int = ASKED) -> Accuracy:
    """How many of `num` held-out problems come out right, the words of an answer drawn one after the other, or each the
    likeliest."""
    model, recipe, asked = averaged(run), run.recipe, problems(num, held_out=True)
    rows = [encoded(one, recipe.length) for one in asked]
    x, sizes = torch.stack([ids for ids, _ in rows]), torch.tensor([size for _, size in rows])
    noise, blank = Stream(recipe.seed, 0, num), torch.full((num, 1), run.model.sizes.tokens)
    for place in range(int(sizes.min()), recipe.length):
        with torch.no_grad():
            said = model(torch.cat([blank, x[:, :-1]], 1), None, None)[:, place].double()
        number = noise.at(place)(Draw.VALUE).uniform(num)
        word = said.argmax(1) if likeliest else inverse_cdf(said.softmax(1), number, stay=False)
        x[:, place] = torch.where(place < sizes, x[:, place], word)
    words = Sums().tokenizer
    right = [result_of(words.decode(ids)) == one.result for ids, one in zip(x.tolist(), asked, strict=True)]
    return Accuracy.of(sum(right), num)


def main() -> None:
    run_script(SCRIPT, __doc__, "the data of the model: text, MNIST's images, or sums", Likeness, make)


if __name__ == "__main__":
    main()
