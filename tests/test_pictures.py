"""Pictures of samples: in files, in the terminal, and what has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import thetaleap as tl
from tests.cli.test_cli import failed, ran
from tests.models import test_maskgit as tiny
from tests.training.test_training import images
from thetaleap import files, sampling
from thetaleap.cli.preview import PREVIEW
from thetaleap.training.export import export
from thetaleap.training.trainer import Recipe, train

GREY = torch.tensor([[[0.0, 1.0], [0.5, 0.25], [1.0, 1.0]], [[1.0, 1.0], [0.0, 0.75], [0.0, 0.0]]]).unsqueeze(1)


def plane(states: int = 5, pictures: Any = None) -> Any:
    return tl.from_network(tl.Masked(states), length=6, network=lambda x, t: x, shape=(2, 3), pictures=pictures)


def read(path: Path) -> np.ndarray:
    """The colours of a file."""
    return np.asarray(Image.open(path).convert("RGB"))


# --- what they are


def test_grey_levels() -> None:
    x = torch.tensor([[0, 1, 2, 3, 4, 0]])
    torch.testing.assert_close(files.pictures(plane(), x), torch.tensor([[[[0, 0.25, 0.5], [0.75, 1, 0]]]]))


class Doubled:
    """A decoder: two pixels a code in height, in three colours."""

    def decode(self, codes: Tensor) -> Tensor:
        return (codes.double() / 1023).repeat_interleave(2, 1).unsqueeze(1).expand(-1, 3, -1, -1)


def test_a_decoder_makes_pictures_of_codes() -> None:
    made = files.pictures(plane(1024, Doubled()), torch.tensor([[0, 1023, 0, 0, 0, 1023]]))
    assert made.shape == (1, 3, 4, 3)
    assert made[0, 2].tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: tl.load("chain64"), r"^model shape=\(64,\): there are no pictures of it"),
        (lambda: tl.load("mixture32"), r"^model shape=None: there are no pictures of it"),
        (lambda: plane(1024), r"^states=1024: these are codes and no grey levels; give their decoder, as in --vqgan"),
    ],
    ids=["line", "neither", "codes"],
)
def test_models_without_pictures(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        files.require_pictures(model())


def test_image_grid() -> None:
    """Three images in two columns, each pixel made as large as it takes, with gaps around; what is left is white."""
    pixels = files.image_grid(torch.cat([GREY, GREY[:1]]), columns=2)
    size = -(-files.LEAST // 3)
    high, wide, gap = 3 * size, 2 * size, files.GAP
    assert pixels.shape == (2 * (high + gap) + gap, 2 * (wide + gap) + gap, 3)
    second = pixels[gap : gap + high, wide + 2 * gap : -gap]
    expected = (GREY[1, 0] * 255).round().to(torch.uint8).repeat_interleave(size, 0).repeat_interleave(size, 1)
    assert torch.equal(second, expected.unsqueeze(2).expand(-1, -1, 3))
    assert bool((pixels[:gap] == 255).all())
    assert bool((pixels[-gap - high :, -gap - wide :] == 255).all())
    large = files.image_grid(torch.rand((5, 3, 130, 7), generator=torch.Generator().manual_seed(0)))
    assert large.shape == (2 * 134 + 4, 3 * 11 + 4, 3), "large ones stay as they are, in about as many rows as columns"


def test_blocks() -> None:
    assert files.blocks(GREY, 2) == "▄▀  ▀█\n▀▀"
    assert files.blocks(GREY, 1) == "▄▀\n▀▀\n\n▀█\n"


def test_a_file_says_how_it_was_made(tmp_path: Path) -> None:
    path, card = tmp_path / "a.png", {"model": "mnist", "seed": 3}
    pixels = files.image_grid(GREY)
    files.write_pictures(path, pixels, card)
    np.testing.assert_array_equal(read(path), pixels.numpy())
    with Image.open(path) as image:
        assert json.loads(image.info["thetaleap"]) == card
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


# --- the command line


def test_samples_as_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "a.PNG"
    said = ran("sample", "ising4x16", "--solver", "tweedie", "--nfe", 4, "--num", 6, "--out", out)
    x = tl.sample(tl.load("ising4x16"), tl.Tweedie(), nfe=4, num=6).x
    np.testing.assert_array_equal(read(out), files.image_grid(x.view(6, 1, 4, 16).float()).numpy())
    assert said.splitlines()[-1].split() == ["file", str(out)]
    with Image.open(out) as image:
        assert json.loads(image.info["thetaleap"])["model"] == "ising4x16"


@pytest.mark.parametrize("width", [40, 80])
def test_preview(width: int) -> None:
    said = ran("sample", "ising4x16", "--solver", "tweedie", "--nfe", 4, COLUMNS=str(width))
    x = tl.sample(tl.load("ising4x16"), tl.Tweedie(), nfe=4, num=PREVIEW).x
    shown = files.blocks(x.view(-1, 1, 4, 16).float(), {40: 2, 80: 4}[width])
    lines = [line.rstrip() for line in said.splitlines()]
    assert "\n".join(lines).startswith(f"{shown}\n\nmodel ")
    assert max(map(len, shown.splitlines())) <= width


def test_a_narrow_terminal_shows_tokens() -> None:
    said = ran("sample", "ising4x16", "--solver", "tweedie", "--nfe", 4, COLUMNS="15")
    assert "token" in said
    assert not set(said) & set("▄▀█")


def test_no_pictures_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "sample", lambda *args, **kwargs: pytest.fail("sampling began"))
    assert "there are no pictures of it" in failed("sample", "chain64", "--nfe", 4, "--out", tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_codes_become_pictures_by_their_decoder(tmp_path: Path) -> None:
    weights = tiny.saved(tmp_path, tiny.filled(tiny.layout(1024, 5, 4, 32, 48, 1)))
    decoder = tiny.saved(tmp_path, tiny.filled(tiny.vqgan_layout(1024, 6, 5, (32, 32), 1, ()), seed=3), "v.safetensors")
    out, model = tmp_path / "a.png", f"maskgit:{weights}"
    args = ("sample", model, "--solver", "tweedie", "--nfe", 4, "--num", 2, "--labels", 3)
    assert "give their decoder, as in --vqgan FILE" in failed(*args, "--out", out)
    ran(*args, "--vqgan", decoder, "--out", out)
    known = tl.load(model, vqgan=decoder)
    x = tl.sample(tl.guided(known, 0.0, 3), tl.Tweedie(), nfe=4, num=2).x
    expected = files.image_grid(known.pictures.decode(x.view(2, 4, 4)))
    assert np.abs(read(out).astype(int) - expected.numpy().astype(int)).max() <= 1  # rounding of the network
    assert "--vqgan " in failed("sample", "cube3", "--nfe", 4, "--vqgan", decoder)


@pytest.fixture(scope="module")
def striped(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("stripes")
    run = train(images(), Recipe(steps=3, length=12, hidden=16, blocks=1, heads=2, batch=4), folder)
    export(run, images(), folder, "stripes")
    return f"trained:{folder}"


@pytest.mark.parametrize(("labels", "condition"), [("1", [1] * 5), ("0,1, 1", [0, 1, 1, 0, 1])], ids=["one", "in turn"])
@pytest.mark.parametrize("guidance", [None, 1.5])
def test_labels(striped: str, labels: str, condition: list[int], guidance: float | None, tmp_path: Path) -> None:
    out, more = tmp_path / "a.npy", () if guidance is None else ("--guidance", guidance)
    ran("sample", striped, "--solver", "tweedie", "--nfe", 8, "--num", 5, "--labels", labels, *more, "--out", out)
    expected = tl.sample(tl.guided(tl.load(striped), guidance or 0.0, condition), tl.Tweedie(), nfe=8, num=5)
    np.testing.assert_array_equal(np.load(out), expected.x.numpy())


def test_wrong_labels(striped: str) -> None:
    args = ("sample", striped, "--nfe", 8)
    assert failed(*args, "--guidance", 1) == "--guidance 1: goes towards a label; give --labels"
    assert failed(*args, "--label", "a").startswith("--label a: give whole numbers with commas between")
    assert "labels are whole numbers, 0 to 1; give one or several" in failed(*args, "--labels", 2)
    assert "--labels 2: this model takes none; leave it out" in failed("sample", "cube3", "--nfe", 4, "--labels", 2)
