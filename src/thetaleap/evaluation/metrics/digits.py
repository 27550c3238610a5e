"""Samples of digits, judged by a small classifier of MNIST that comes with the package.

The distance is the Fréchet distance on this classifier's features. It is not FID, which is on those of an Inception,
and compares with nothing but itself. ``python -m thetaleap.training.digits`` makes such a classifier.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from safetensors.torch import load_file
from torch import Tensor, nn

from ...core.checks import require, require_count
from ...core.storage import SHIPPED as PACKAGE_DATA
from ...models.weights import fit, read_weights
from .images import Frechet, PrecisionRecall, frechet, precision_recall

SHIPPED = PACKAGE_DATA / "digits"
WEIGHTS, REFERENCE, CARD = "weights.safetensors", "reference.safetensors", "card.json"
WIDTH = 64
"""Number of features."""
DIGITS = 10
BATCH = 500


class Classifier(nn.Module):
    """Which digit an image shows; the features are what the last layer but one says.

    Images are `side` x `side` pixels, row by row, of grey levels from 0, black, to ``levels - 1``.
    """

    def __init__(self, side: int, levels: int) -> None:
        super().__init__()
        self.side, self.levels = side, levels
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(3),
        )
        self.features = nn.Linear(48 * 3 * 3, WIDTH)
        self.output = nn.Linear(WIDTH, DIGITS)

    def forward(self, tokens: Int64[Tensor, "b d"]) -> tuple[Float32[Tensor, "b w"], Float32[Tensor, "b c"]]:
        """Features and logits."""
        grey = tokens.to(torch.float32) / (self.levels - 1)
        features = self.features(self.convolutions(grey.unflatten(1, (1, self.side, self.side))).flatten(1))
        return features, self.output(torch.relu(features))


@dataclass(frozen=True, eq=False)
class Judge:
    """A classifier, and the features' mean and covariance on MNIST's test images."""

    module: Classifier
    mean: Float64[Tensor, " w"]
    cov: Float64[Tensor, "w w"]


@lru_cache
def judge(folder: Path = SHIPPED) -> Judge:
    """The classifier in `folder`; by default the one that comes with the package."""
    for name in (WEIGHTS, REFERENCE, CARD):
        there = (folder / name).is_file()
        require(there, "folder", str(folder), f"holds no {name}; make them with python -m thetaleap.training.digits")
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    module = Classifier(card["side"], card["levels"])
    fit(module, read_weights(folder / WEIGHTS), f"weights={str(folder / WEIGHTS)!r}")
    reference = load_file(folder / REFERENCE)
    return Judge(module.eval().requires_grad_(False), reference["mean"], reference["cov"])


def digit_features(tokens: Int64[Tensor, "n d"], folder: Path = SHIPPED) -> Float64[Tensor, "n w"]:
    """Features of images; `tokens` are their grey levels, as many as the classifier was trained with."""
    return evaluate(judge(folder).module, tokens)[0].double()


def digit_labels(tokens: Int64[Tensor, "n d"], folder: Path = SHIPPED) -> Int64[Tensor, " n"]:
    """The likeliest digit of each image."""
    return evaluate(judge(folder).module, tokens)[1].argmax(1)


def digit_distance(tokens: Int64[Tensor, "n d"], folder: Path = SHIPPED) -> Frechet:
    """The squared Fréchet distance, on the classifier's features, of images from MNIST's 10,000 test images."""
    known = judge(folder)
    return frechet(digit_features(tokens, folder), known.mean, known.cov)


def digit_precision_recall(
    tokens: Int64[Tensor, "n d"], real: str | Path, k: int = 3, folder: Path = SHIPPED
) -> PrecisionRecall:
    """Precision and recall on the classifier's features, by as many of the images in `real`, one of MNIST's files.

    The classifier has never seen anything but digits, and takes some of what is none for an odd one: of white noise,
    about a third is on the real manifold. So read precision beside the distance.
    """
    module = judge(folder).module
    images, _ = read_digits(Path(real).expanduser(), module.levels, module.side)
    require(len(images) >= len(tokens), "tokens", tuple(tokens.shape), f"there are but {len(images)} real images")
    return precision_recall(digit_features(images[: len(tokens)], folder), digit_features(tokens, folder), k)


def evaluate(module: Classifier, tokens: Int64[Tensor, "n d"]) -> tuple[Float32[Tensor, "n w"], Float32[Tensor, "n c"]]:
    """Features and logits of any number of images."""
    positions, levels = module.side**2, module.levels
    good = len(tokens) > 0 and tokens.shape[1] == positions
    require(good, "tokens", tuple(tokens.shape), f"give at least one image of {positions} pixels")
    low, high = int(tokens.min()), int(tokens.max())
    require(low >= 0 and high < levels, "tokens", [low, high], f"this classifier takes grey levels 0 to {levels - 1}")
    with torch.no_grad():
        parts = [module(some) for some in tokens.cpu().split(BATCH)]
    features, logits = zip(*parts, strict=True)
    return torch.cat(features), torch.cat(logits)


# --- MNIST's files


def read_digits(file: Path, levels: int, side: int) -> tuple[Int64[Tensor, "n d"], Int64[Tensor, " n"] | None]:
    """Images in an idx file of MNIST (.gz or not), shrunk by averages, and the labels in the file beside it, if any."""
    require(file.is_file(), "data", str(file), "there is no such file")
    require_count("levels", levels, least=2)
    require(side in (28, 14, 7), "side", side, "give 28, 14 or 7")
    images = _read_idx(file, 3)
    require(images.shape[1:] == (28, 28), "data", str(file), f"holds images of {images.shape[1:]}; MNIST's are 28 x 28")
    small = images.reshape(-1, side, 28 // side, side, 28 // side).mean((2, 4))
    tokens = torch.from_numpy(np.minimum(small * levels // 256, levels - 1).astype(np.int64)).flatten(1)
    beside = file.with_name(file.name.replace("images-idx3", "labels-idx1"))
    if beside == file or not beside.is_file():
        return tokens, None
    labels = torch.from_numpy(_read_idx(beside, 1).astype(np.int64))
    require(len(labels) == len(tokens), "data", str(beside), f"holds {len(labels)} labels of {len(tokens)} images")
    return tokens, labels


def _read_idx(file: Path, dimensions: int) -> np.ndarray:
    """An array of bytes in MNIST's format: two zeros, the type, the number of dimensions, their sizes, the bytes."""
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError) as error:
        raise ValueError(f"data={str(file)!r}: cannot be unpacked ({error}); fetch it again") from None
    head = 4 + 4 * dimensions
    good = len(raw) >= head and raw[:4] == bytes([0, 0, 8, dimensions])
    require(good, "data", str(file), f"is no idx file of bytes in {dimensions} dimensions")
    shape = np.frombuffer(raw[4:head], ">u4").astype(int)
    left, size = len(raw) - head, int(shape.prod())
    require(left == size, "data", str(file), f"holds {left} bytes, but says {size}; is it cut off?")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)
