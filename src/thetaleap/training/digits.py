"""The digit classifier of `metrics.digits`, from MNIST's files.

    python -m thetaleap.training.digits PATH/train-images-idx3-ubyte.gz --out FOLDER

writes its weights, the reference statistics of the test images, whose file lies beside the other, and a card.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from safetensors.torch import save_file
from torch import Tensor

from .. import __version__
from ..core.checks import require, require_count, require_number
from ..core.noise import Stream
from ..evaluation.metrics.accuracy import Accuracy
from ..evaluation.metrics.digits import CARD, REFERENCE, WEIGHTS, Classifier, evaluate
from ..evaluation.metrics.images import frechet, statistics
from .data import read_corpus
from .trainer import replaced

Card = dict[str, Any]

TRAIN, TEST = "train-images", "t10k-images"
"""How the names of MNIST's files begin."""
ABOUT = {
    "side": "height and width of images: 28, 14 or 7",
    "levels": "grey levels of pixels, at least 2",
    "steps": "to train",
    "batch": "images in a step",
    "rate": "the learning rate, which falls to zero in a line",
    "seed": "of all randomness",
}


@dataclass(frozen=True)
class Recipe:
    """All that the classifier depends on beside the images."""

    side: int = 14
    levels: int = 8
    steps: int = 2400
    batch: int = 128
    rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            require_count(name, getattr(self, name))
        require_count("seed", self.seed, least=0)
        require_number("rate", self.rate, 0, 1)


def train(tokens: Int64[Tensor, "n d"], labels: Int64[Tensor, " n"], recipe: Recipe) -> Classifier:
    """A classifier of these images; its weights are a function of them and the recipe, and good to float16."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        module = Classifier(recipe.side, recipe.levels)
    optimizer = torch.optim.AdamW(module.parameters(), lr=recipe.rate)
    for step in range(recipe.steps):
        at = (Stream(recipe.seed, 0, recipe.batch).at(step)("example").uniform(recipe.batch) * len(tokens)).long()
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
    options = " ".join(f"--{name} {value}" for name, value in asdict(recipe).items())
    card: Card = {
        "about": "a classifier of MNIST's digits, for the Fréchet distance on its features (not FID)",
        "command": f"python -m thetaleap.training.digits {path.name} --out FOLDER {options}",
        **asdict(recipe),
        "data sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "parameters": sum(value.numel() for value in module.parameters()),
        "test accuracy": {"value": right.value, "low": right.low, "high": right.high},
        "reference": f"mean and covariance of the features of the {len(unseen)} test images",
        f"distance of the first {len(unseen)} training images": asdict(floor),
        "seconds of training": round(seconds, 1),
        "version": __version__,
    }
    weights = {name: value.half() for name, value in module.state_dict().items()}
    replaced(folder / WEIGHTS, lambda file: save_file(weights, file))
    replaced(folder / REFERENCE, lambda file: save_file({"mean": mean, "cov": cov}, file))
    text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    replaced(folder / CARD, lambda file: file.write_text(text, encoding="utf-8"))
    return card


def _read(path: Path, recipe: Recipe) -> tuple[Int64[Tensor, "n d"], Int64[Tensor, " n"]]:
    corpus = read_corpus(path, levels=recipe.levels, side=recipe.side)
    if corpus.labels is None:
        raise ValueError(f"path={str(path)!r}: there are no labels beside it; put MNIST's file of them there")
    return corpus.tokens, corpus.labels


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m thetaleap.training.digits", description=__doc__)
    parser.add_argument("path", type=Path, help="MNIST's training images, with the other three files beside them")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    for name, value in asdict(Recipe()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"{ABOUT[name]} (default: {value})")
    options = vars(parser.parse_args())
    path, folder = options.pop("path"), options.pop("out")
    print(json.dumps(make(path, folder, Recipe(**options)), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
