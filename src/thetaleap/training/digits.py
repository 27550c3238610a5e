"""The digit classifier of `metrics.digits`, from MNIST's files.

    python -m thetaleap.training.digits PATH/train-images-idx3-ubyte.gz --out FOLDER

writes its weights, the reference statistics of the test images, whose file lies beside the other, and a card.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor

from .. import __version__
from ..core.checks import require
from ..core.fields import check_fields, knob
from ..core.noise import Draw, Stream
from ..evaluation.metrics.accuracy import Accuracy
from ..evaluation.metrics.digits import CARD, REFERENCE, WEIGHTS, Classifier, evaluate
from ..evaluation.metrics.images import frechet, statistics
from .data import read_corpus
from .recipes import Card, command, run_script, write_card, write_tensors

SCRIPT = "thetaleap.training.digits"
TRAIN, TEST = "train-images", "t10k-images"
"""How the names of MNIST's files begin."""


@dataclass(frozen=True)
class Recipe:
    """All that the classifier depends on beside the images."""

    side: int = knob(14, "height and width of images: 28, 14 or 7")
    levels: int = knob(8, "grey levels of pixels, at least 2")
    steps: int = knob(2400, "to train", least=1)
    batch: int = knob(128, "images in a step", least=1)
    rate: float = knob(2e-3, "the learning rate, which falls to zero in a line", low=0, high=1)
    seed: int = knob(0, "of all randomness", least=0)

    def __post_init__(self) -> None:
        check_fields(self)


def train(tokens: Int64[Tensor, "n d"], labels: Int64[Tensor, " n"], recipe: Recipe) -> Classifier:
    """A classifier of these images; its weights are a function of them and the recipe, and good to float16."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        module = Classifier(recipe.side, recipe.levels)
    optimizer = torch.optim.AdamW(module.parameters(), lr=recipe.rate)
    for step in range(recipe.steps):
        at = (Stream(recipe.seed, 0, recipe.batch).at(step)(Draw.EXAMPLE).uniform(recipe.batch) * len(tokens)).long()
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * (1 - step / recipe.steps)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(module(tokens[at])[1], labels[at]).backward()
        optimizer.step()
    module.load_state_dict({name: value.half() for name, value in module.state_dict().items()})
    return module.eval().requires_grad_(False)


def make(path: Path, folder: Path, recipe: Recipe) -> Card:
    """Train on the images in `path`, and write to `folder` all that `metrics.digits` reads; gives the card."""
    require(path.name.startswith(TRAIN), "path", str(path), f"give the file of MNIST whose name begins with {TRAIN}")
    tokens, labels = _read(path, recipe)
    unseen, truth = _read(path.with_name(path.name.replace(TRAIN, TEST)), recipe)
    start = time.perf_counter()
    module = train(tokens, labels, recipe)
    seconds = time.perf_counter() - start
    features, logits = evaluate(module, unseen)
    mean, cov = statistics(features)
    right = Accuracy.of(int((logits.argmax(1) == truth).sum()), len(truth))
    floor = frechet(evaluate(module, tokens[: len(unseen)])[0], mean, cov)
    card: Card = {
        "about": "a classifier of MNIST's digits, for the Fréchet distance on its features (not FID)",
        "command": command(SCRIPT, path, recipe),
        **asdict(recipe),
        "data sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "parameters": sum(value.numel() for value in module.parameters()),
        "test accuracy": {"value": right.value, "low": right.low, "high": right.high},
        "reference": f"mean and covariance of the features of the {len(unseen)} test images",
        f"distance of the first {len(unseen)} training images": asdict(floor),
        "seconds of training": round(seconds, 1),
        "version": __version__,
    }
    write_tensors(folder / WEIGHTS, {name: value.half() for name, value in module.state_dict().items()})
    write_tensors(folder / REFERENCE, {"mean": mean, "cov": cov})
    write_card(folder / CARD, card)
    return card


def _read(path: Path, recipe: Recipe) -> tuple[Int64[Tensor, "n d"], Int64[Tensor, " n"]]:
    corpus = read_corpus(path, levels=recipe.levels, side=recipe.side)
    if corpus.labels is None:
        raise ValueError(f"path={str(path)!r}: there are no labels beside it; put MNIST's file of them there")
    return corpus.tokens, corpus.labels


def main() -> None:
    run_script(SCRIPT, __doc__, "MNIST's training images, with the other three files beside them", Recipe, make)


if __name__ == "__main__":
    main()
