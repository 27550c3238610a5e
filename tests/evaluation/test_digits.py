"""The digit classifier that comes with the package."""

from __future__ import annotations

import gzip
import json
import struct
import sys
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import DATA
from thetaleap.evaluation.metrics.digits import (
    CARD,
    REFERENCE,
    SHIPPED,
    WEIGHTS,
    digit_distance,
    digit_features,
    digit_labels,
    digit_precision_recall,
    judge,
)
from thetaleap.evaluation.metrics.images import frechet_distance, statistics
from thetaleap.training.data import read_corpus
from thetaleap.training.digits import Recipe, main, make, train

MNIST = DATA / "mnist"
TRAIN, TEST = MNIST / "train-images-idx3-ubyte.gz", MNIST / "t10k-images-idx3-ubyte.gz"


@lru_cache
def images(path: Path) -> tuple[Tensor, Tensor]:
    return _tokens(path, judge().module.side, judge().module.levels)


def _tokens(path: Path, side: int, levels: int) -> tuple[Tensor, Tensor]:
    corpus = read_corpus(path, levels=levels, side=side)
    assert corpus.labels is not None
    return corpus.tokens, corpus.labels


def noise(num: int, levels: int = 8, side: int = 14) -> Tensor:
    return torch.randint(0, levels, (num, side**2), generator=torch.Generator().manual_seed(0))


def test_what_is_shipped() -> None:
    sizes = {name: (SHIPPED / name).stat().st_size for name in (WEIGHTS, REFERENCE, CARD)}
    assert sizes[WEIGHTS] < 300_000
    assert sizes[REFERENCE] < 50_000
    weights, card = load_file(SHIPPED / WEIGHTS), json.loads((SHIPPED / CARD).read_text(encoding="utf-8"))
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert card["parameters"] == sum(tensor.numel() for tensor in weights.values())
    assert card["test accuracy"]["value"] > 0.98
    assert card["command"].startswith("python -m thetaleap.training.digits train-images-idx3-ubyte.gz --out FOLDER")
    assert (judge().module.side, judge().module.levels) == (card["side"], card["levels"])
    reference = load_file(SHIPPED / REFERENCE)
    assert torch.equal(judge().mean, reference["mean"])
    assert torch.equal(judge().cov, reference["cov"])
    assert reference["mean"].dtype == torch.float64


def straight(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classifier in numpy: sums over shifted images, and largest of cells."""
    w = {name: tensor.double().numpy() for name, tensor in load_file(SHIPPED / WEIGHTS).items()}

    def conv(name: str, x: np.ndarray) -> np.ndarray:
        kernel, (height, width) = w[f"{name}.weight"], x.shape[2:]
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        shifted = (
            np.einsum("kc,bchw->bkhw", kernel[:, :, i, j], padded[:, :, i : i + height, j : j + width])
            for i in range(3)
            for j in range(3)
        )
        return np.maximum(sum(shifted) + w[f"{name}.bias"][:, None, None], 0)

    def largest(x: np.ndarray, cells: int) -> np.ndarray:
        size = x.shape[2]
        ends = [(n * size // cells, -(-(n + 1) * size // cells)) for n in range(cells)]
        return np.stack([np.stack([x[:, :, a:b, c:d].max((2, 3)) for c, d in ends], -1) for a, b in ends], -2)

    x = conv("convolutions.0", (tokens / 7).reshape(-1, 1, 14, 14))
    x = largest(conv("convolutions.2", x), 7)
    x = largest(conv("convolutions.5", x), 3)
    features = x.reshape(len(x), -1) @ w["features.weight"].T + w["features.bias"]
    return features, np.maximum(features, 0) @ w["output.weight"].T + w["output.bias"]


def test_features_and_labels() -> None:
    x = noise(30)
    features, logits = straight(x.numpy())
    np.testing.assert_allclose(digit_features(x), features, atol=1e-5 * np.abs(features).max())
    assert np.array_equal(digit_labels(x), logits.argmax(1))
    assert torch.equal(digit_features(x.repeat(40, 1))[-30:], digit_features(x.repeat(40, 1))[:30])


@pytest.mark.data
def test_accuracy_and_reference() -> None:
    """The card says the truth about the test images, and the shipped statistics are theirs."""
    x, truth = images(TEST)
    card = json.loads((SHIPPED / CARD).read_text(encoding="utf-8"))
    share = float((digit_labels(x) == truth).double().mean())
    assert abs(share - card["test accuracy"]["value"]) <= 2e-4  # two images, on another processor
    mean, cov = statistics(digit_features(x))
    torch.testing.assert_close(mean, judge().mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(cov, judge().cov, rtol=0, atol=1e-4 * float(cov.abs().max()))
    assert abs(frechet_distance(mean, cov, judge().mean, judge().cov)) < 1e-4


@pytest.mark.data
def test_worse_images_are_further_away() -> None:
    x = images(TRAIN)[0][:1000]
    spots = torch.rand(x.shape, generator=torch.Generator().manual_seed(1))
    spoilt = [torch.where(spots < share, noise(1000), x) for share in (0.0, 0.1, 0.3)]
    found = [digit_distance(some) for some in spoilt]
    for near, far in pairwise(found):
        assert near.value + 6 * (near.error + far.error) < far.value
    assert found[0].value < 2 * found[0].bias  # real images are hardly further than their number explains
    expected = frechet_distance(*statistics(digit_features(spoilt[2])), judge().mean, judge().cov)
    assert found[2].value == pytest.approx(expected, rel=1e-12)


@pytest.mark.data
def test_precision_and_recall() -> None:
    same = digit_precision_recall(images(TEST)[0][:400], TEST)
    assert (same.precision, same.recall) == (1.0, 1.0)
    x, labels = images(TRAIN)
    fresh = digit_precision_recall(x[:400], TEST)
    one_digit = digit_precision_recall(x[labels == 1][:400], TEST)
    assert min(fresh.precision, fresh.recall, one_digit.precision) > 0.8
    assert one_digit.recall < 0.2
    assert digit_precision_recall(noise(400), TEST).recall < 0.05


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def bars(folder: Path, part: str, num: int, seed: int) -> None:
    """Images in MNIST's files that are easy to tell apart: digit n is a bar at height 2n."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, num)
    pictures = generator.integers(0, 60, (num, 28, 28))
    for n, label in enumerate(labels):
        pictures[n, 2 * label + 2 : 2 * label + 6, 4:24] = 255
    write_idx(folder / f"{part}-images-idx3-ubyte.gz", pictures)
    write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)


@pytest.mark.parametrize(("side", "levels"), [(14, 5), (28, 8), (7, 2)])
def test_recipe(side: int, levels: int, tmp_path: Path) -> None:
    bars(tmp_path, "train", 500, 0)
    bars(tmp_path, "t10k", 100, 1)
    recipe, path = Recipe(side, levels, steps=40, batch=24, rate=5e-3), tmp_path / "train-images-idx3-ubyte.gz"
    card = make(path, tmp_path / "out", recipe)
    assert card["test accuracy"]["value"] > 0.9
    x, truth = _tokens(tmp_path / "t10k-images-idx3-ubyte.gz", side, levels)
    right = digit_labels(x, tmp_path / "out") == truth
    assert float(right.double().mean()) == pytest.approx(card["test accuracy"]["value"])
    known = judge(tmp_path / "out")
    features = digit_features(x, tmp_path / "out")
    assert abs(frechet_distance(*statistics(features), known.mean, known.cov)) < 1e-6 * float(known.cov.trace())
    again = train(*_tokens(path, side, levels), recipe).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in known.module.state_dict().items())


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bars(tmp_path, "train", 100, 0)
    bars(tmp_path, "t10k", 100, 1)
    path, folder = tmp_path / "train-images-idx3-ubyte.gz", tmp_path / "out"
    options = [str(path), "--out", str(folder), "--steps", "3", "--levels", "4"]
    monkeypatch.setattr(sys, "argv", ["digits", *options])
    main()
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out) == card
    assert (card["steps"], card["levels"], card["side"]) == (3, 4, 14)
    assert card["command"].endswith("--out FOLDER --side 14 --levels 4 --steps 3 --batch 128 --rate 0.002 --seed 0")
    assert str(tmp_path) not in (folder / CARD).read_text(encoding="utf-8")


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokens=\(2, 784\): give at least one image of 196 pixels"):
        digit_features(torch.zeros(2, 784, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"tokens=\[0, 8\]: this classifier takes grey levels 0 to 7"):
        digit_labels(torch.full((1, 196), 8) * (torch.arange(196) > 3))
    with pytest.raises(ValueError, match=r"holds no weights.safetensors; make them with python -m thetaleap.training"):
        digit_features(noise(1), tmp_path)
    write_idx(tmp_path / "real-ubyte.gz", np.zeros((2, 28, 28)))
    with pytest.raises(ValueError, match=r"tokens=\(5, 196\): there are but 2 real images"):
        digit_precision_recall(noise(5), tmp_path / "real-ubyte.gz")
    with pytest.raises(ValueError, match=r"give the file of MNIST whose name begins with train-images"):
        make(tmp_path / "real-ubyte.gz", tmp_path, Recipe())
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", np.zeros((2, 28, 28)))
    with pytest.raises(ValueError, match=r"there are no labels beside it"):
        make(tmp_path / "train-images-idx3-ubyte.gz", tmp_path, Recipe())
    with pytest.raises(ValueError, match=r"steps=0"):
        Recipe(steps=0)
