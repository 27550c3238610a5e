"""The experiment on images, on models whose samples are known beforehand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread, imsave
from torch import Tensor

import thetaleap as tl
from tests.conftest import DATA
from tests.models import test_maskgit as tiny
from thetaleap import files
from thetaleap.evaluation.judges.inception import fid_features
from thetaleap.evaluation.metrics.accuracy import Accuracy, wilson
from thetaleap.evaluation.metrics.digits import digit_features, digit_labels, digit_precision_recall, judge
from thetaleap.evaluation.metrics.sequences import Measured
from thetaleap.reproduction import Report, images
from thetaleap.reproduction.images import (
    COLUMNS,
    EULER,
    HALF,
    PARALLEL,
    RK2,
    TAU,
    THIRD,
    USED,
    by_class,
    claims_of,
    measure_of,
    read_reference,
)
from thetaleap.reproduction.pages import describe
from thetaleap.reproduction.rules import Claim
from thetaleap.reproduction.study import Row, Study, ranking, shown
from thetaleap.reproduction.study import row as made

NUM, BUDGETS = 43, (4, 8)
ONE_STAGE = ["Euler", "tau-leaping", "parallel decoding", "low discrepancy", "thetaleap auto"]
ONE_STAGE += ["first-hitting, several at once", "corrected (Gibbs)"]


def one_of_each() -> Tensor:
    """An image for each class: one that the classifier takes for it, where noise makes such a one."""
    pool = torch.randint(0, 8, (300, 196), generator=torch.Generator().manual_seed(0))
    pool[::2, 60:] = 0
    seen = digit_labels(pool)
    return torch.stack([pool[seen == label][0] if (seen == label).any() else pool[0] for label in range(10)])


def stamps(shown: Tensor) -> Any:
    """A model that, told the class, knows the image, and without knows nothing."""
    known = torch.cat([torch.where(torch.nn.functional.one_hot(shown, 8) == 1, 0.0, -1e4), torch.zeros(1, 196, 8)])

    def network(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        return known[labels]

    return tl.from_network(tl.Masked(8), length=196, network=network, time_free=True, shape=(14, 14), classes=10)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path, Tensor]:
    folder, shown = tmp_path_factory.mktemp("images") / "made", one_of_each()
    return images.run(folder, num=NUM, seed=1, progress=False, model=stamps(shown), budgets=BUDGETS), folder, shown


def flat(report: Report) -> str:
    """The text without its line breaks."""
    return " ".join(report.text.split())


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "images.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_files_agree(ran: tuple[Report, Path, Tensor]) -> None:
    report, folder, _ = ran
    grids = [f"images-{name}.png" for name in ("euler", "theta-rk-2-1-3", "parallel-decoding", "low-discrepancy")]
    names = sorted(path.name for path in report.files)
    assert {*grids, "images.md", "images.csv", "images.json", "images.png"} < set(names)
    assert names == sorted(path.name for path in folder.iterdir())
    assert len(names) == 4 + len(USED)
    rows, card = rows_of(folder), json.loads((folder / "images.json").read_text())
    page = (folder / "images.md").read_text()
    for row, entry in zip(rows, card["rows"], strict=True):
        assert {key: str(value if value is not None else "") for key, value in entry.items()} == row
        told = shown({key: float(row[key]) for key in ("distance", "distance_se")}, "distance")
        line = f"| {row['method']} | {row['nfe']} | {float(row['evaluations']):.1f} | {told} |"
        assert line in page
    assert [claim["paper"] for claim in card["claims"]] == [claim.paper for claim in report.claims]
    assert all(f"]({name})" in page for name in names if name.endswith(".png"))
    assert "the squared Fréchet distance on the digit classifier's features. It is not FID" in page
    assert "which counts as two evaluations" in flat(report)


def test_budgets_count_guidance_twice(ran: tuple[Report, Path, Tensor]) -> None:
    """At 4 evaluations, two stages: one step and the finish, or one of two stages without."""
    found = {(row["method"], row["nfe"]): row for row in rows_of(ran[1])}
    at_four = [method for method, nfe in found if nfe == "4"]
    assert at_four == [name for name in USED if name in ONE_STAGE]
    assert [method for method, nfe in found if nfe == "8"] == list(USED)
    assert all(float(row["evaluations"]) <= int(nfe) for (_, nfe), row in found.items())
    steps = {
        name: found[name, "8"]["steps"] for name in ("Euler", "low discrepancy", "theta-RK-2 (1/3)", "thetaleap auto")
    }
    assert steps == {"Euler": "3", "low discrepancy": "4", "theta-RK-2 (1/3)": "1", "thetaleap auto": ""}
    assert found["Euler", "8"]["ratio"] == str(4 / 196)


def test_numbers(ran: tuple[Report, Path, Tensor]) -> None:
    """All samples are known: sample i is the image of class i % 10."""
    _, folder, shown = ran
    labels = torch.arange(NUM) % 10
    features = digit_features(shown[labels]).numpy()
    mean, cov = judge().mean.numpy(), judge().cov.numpy()
    own = np.cov(features.T)
    # the roots of the eigenvalues of a product, in whichever order it is
    root = np.sqrt(np.linalg.eigvals(cov @ own).real.clip(0)).sum()
    expected = np.sum((features.mean(0) - mean) ** 2) + np.trace(own) + np.trace(cov) - 2 * root
    right = int((digit_labels(shown[labels]) == labels).sum())
    assert 0 < right < NUM
    for row in rows_of(folder):
        assert float(row["distance"]) == pytest.approx(expected, rel=1e-4)
        assert int(row["accuracy_right"]) == right
        assert (float(row["accuracy_low"]), float(row["accuracy_high"])) == pytest.approx(wilson(right, NUM))
        assert (row["precision"], row["recall"]) == ("", "")


def test_grids_have_a_row_for_each_class(ran: tuple[Report, Path, Tensor]) -> None:
    _, folder, shown = ran
    grey = shown.repeat_interleave(4, 0).view(40, 1, 14, 14) / 7  # 43 samples are at least four of each
    pixels = (imread(folder / "images-thetaleap-auto.png")[:, :, :3] * 255).round()
    np.testing.assert_array_equal(pixels, files.image_grid(grey, 4).numpy())
    few = by_class(torch.arange(7).unsqueeze(1), torch.arange(7) % 3)
    assert few.squeeze(2).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_without_guidance_a_stage_counts_once(tmp_path: Path) -> None:
    report = images.run(tmp_path, num=40, progress=False, model=stamps(one_of_each()), budgets=(3,), guidance=0.0)
    rows = rows_of(tmp_path)
    assert [row["method"] for row in rows] == list(USED)
    assert "Without guidance the network runs once for each stage." in flat(report)


@pytest.mark.data
def test_precision_and_recall(tmp_path: Path) -> None:
    shown, data = one_of_each(), DATA / "mnist" / "t10k-images-idx3-ubyte.gz"
    images.run(tmp_path, num=50, progress=False, model=stamps(shown), budgets=(4,), data=data)
    expected = digit_precision_recall(shown[torch.arange(50) % 10], data)
    for row in rows_of(tmp_path):
        assert (float(row["precision"]), float(row["recall"])) == (expected.precision, expected.recall)
    with pytest.raises(ValueError, match="num=10001: there are but 10000 images in t10k"):
        measure_of(stamps(shown), 10001, data=data)


# --- FID


def colours(pictures: Tensor, device: str = "cpu") -> Tensor:
    """Cheap features in place of Inception's."""
    return torch.cat([pictures.mean((2, 3)), pictures.std((2, 3))], 1)


def test_fid_of_a_model_with_a_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same way, with the decoder's pictures and the reference's statistics."""
    decoder = tiny.saved(tmp_path, tiny.PICTURES, "vqgan.safetensors")
    model = tiny.load(tiny.saved(tmp_path), vqgan=decoder)
    monkeypatch.setattr(images, "fid_features", colours)
    with pytest.raises(ValueError, match=r"reference=None: FID needs statistics of real images, as in --reference"):
        images.run(tmp_path / "out", num=40, model=model)
    reference = tmp_path / "real.npz"
    np.savez(reference, mu=np.full(6, 0.5), sigma=np.eye(6))
    out = tmp_path / "out"
    report = images.run(out, num=40, progress=False, model=model, budgets=(4,), guidance=1.0, reference=reference)
    told = tl.guided(model, 1.0, torch.arange(40) % 5)
    x = tl.sample(told, nfe=4, num=40).x
    seen = colours(model.pictures.decode(x.view(40, 4, 4))).double().numpy()
    own = np.cov(seen.T)
    root = np.sqrt(np.linalg.eigvalsh(own)).sum()
    expected = np.sum((seen.mean(0) - 0.5) ** 2) + np.trace(own) + 6 - 2 * root
    row = next(row for row in rows_of(out) if row["method"] == "thetaleap auto")
    assert float(row["distance"]) == pytest.approx(expected, rel=1e-5)
    assert row["accuracy"] == ""
    assert "The distance is FID." in flat(report)
    assert not any("digits" in claim.found or "50,000" in claim.paper for claim in report.claims)
    with pytest.raises(ValueError, match="data='a': is for digits"):
        measure_of(model, 40, reference, Path("a"))


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "fid_features", colours)
    generator = torch.Generator().manual_seed(0)
    pixels = [torch.randint(0, 256, (9, 7 + n, 3), generator=generator, dtype=torch.uint8) for n in range(4)]
    for n, one in enumerate(pixels):
        imsave(tmp_path / f"{n}.png", one.numpy())
    (tmp_path / "notes.txt").write_text("not an image")
    mean, cov, real = read_reference(tmp_path)
    expected = torch.cat([colours(one.permute(2, 0, 1).unsqueeze(0) / 255) for one in pixels]).double()
    assert real is not None
    torch.testing.assert_close(real, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mean.numpy(), expected.mean(0), atol=1e-6)
    np.testing.assert_allclose(cov.numpy(), np.cov(expected.numpy().T), atol=1e-6)
    np.savez(tmp_path / "a.npz", mean=mean.numpy(), cov=cov.numpy())
    again = read_reference(tmp_path / "a.npz")
    assert torch.equal(again[0], mean)
    assert torch.equal(again[1], cov)
    assert again[2] is None


@pytest.mark.inception
def test_references_are_inception_s(tmp_path: Path) -> None:
    pixels = torch.randint(0, 256, (2, 12, 9, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for n, one in enumerate(pixels):
        imsave(tmp_path / f"{n}.png", one.numpy())
    real = read_reference(tmp_path)[2]
    assert real is not None
    torch.testing.assert_close(real.float(), fid_features(pixels.permute(0, 3, 1, 2) / 255), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mean": np.zeros(3)}, "holds mean; give mean and cov, or mu and sigma"),
        ({"mean": np.zeros(3), "cov": np.eye(2)}, r"a mean \(3,\) and a covariance \(2, 2\) do not fit"),
    ],
    ids=["half", "misfit"],
)
def test_wrong_references(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=message):
        read_reference(tmp_path / "a.npz")


def test_errors(tmp_path: Path) -> None:
    model = stamps(one_of_each())
    for given, message in {
        "num": "num=39: give a whole number of at least 40",
        "seed": "seed=-1: give a whole number of at least 0",
        "guidance": "guidance=-1.0: give a finite number",
        "budgets": r"budgets=\[1\]: no method can do with so few",
        "reference": "reference='a': is for FID; digits have their own",
        "model": "model='chain64': give a masked model of images that takes labels",
    }.items():
        wrong = {"num": 39, "seed": -1, "guidance": -1.0, "budgets": (1,), "reference": Path("a"), "model": "chain64"}
        with pytest.raises(ValueError, match=message):
            images.run(tmp_path / "out", **{"model": model, given: wrong[given]})
    other = tl.from_network(tl.Masked(3), length=4, network=lambda x, t, c: x, shape=(2, 2), classes=2)
    with pytest.raises(ValueError, match=r"model=\(2, 2\): give one of 10 digits, 14 x 14 pixels in 8 greys"):
        images.run(tmp_path / "out", model=other)
    with pytest.raises(ValueError, match="holds no images"):
        read_reference(tmp_path)
    with pytest.raises(ValueError, match=r"give a \.npz file of statistics, or a folder of images"):
        read_reference(tmp_path / "none.npz")
    assert not (tmp_path / "out").exists()


# --- words


SETTINGS = {"distance": "squared Fréchet distance", "positions": 128, "cost": 2, "judged": 64}


def row(method: str, nfe: int, distance: float, error: float = 1.0, right: int | None = None) -> Row:
    seen = None if right is None else Accuracy.of(right, 40)
    return made(method, nfe=nfe, evaluations=float(nfe), num=40, distance=Measured(distance, error), accuracy=seen)


def claims(rows: list[Row]) -> dict[str, Claim]:
    names = ["all", "best", "parallel few", "parallel many", "rk2", "half", "first-hitting", "fid"]
    return dict(zip(names, claims_of(Study.of("images", rows), SETTINGS), strict=True))


def test_verdicts_follow_the_numbers() -> None:
    rows = [row(EULER, 4, 90), row(TAU, 4, 95), row(PARALLEL, 4, 40), row(PARALLEL, 8, 40)]
    rows += [row(EULER, 8, 60), row(TAU, 8, 70), row(THIRD, 8, 50), row(HALF, 8, 80), row(RK2, 8, 90)]
    rows += [row(EULER, 32, 31), row(TAU, 32, 33), row(THIRD, 32, 20), row(HALF, 32, 21), row(RK2, 32, 30)]
    rows += [row(PARALLEL, 32, 39)]
    found = claims(rows)
    assert {name: claim.verdict for name, claim in found.items()} == {
        "all": "agrees",
        "best": "undecided",
        "parallel few": "agrees",
        "parallel many": "agrees",
        "rk2": "undecided",
        "half": "undecided",
        "first-hitting": "undecided",
        "fid": "needs weights",
    }
    assert found["all"].found == (
        f"on digits, with another model and another distance, {THIRD} is below {EULER} at 8 and 32 and {TAU} at 8 and "
        f"32 in distance (at 32: {THIRD} 20.0 ± 1.0; {EULER} 31.0 ± 1.0; {TAU} 33.0 ± 1.0); over all budgets -13.50 ± 0.87; "
        "what is below 6.8 does not matter"
    )
    assert found["best"].found.count(f"indistinguishable from {HALF} at 32") == 1
    assert claims([*rows, row(HALF, 16, 41), row(THIRD, 16, 20)])["best"].verdict == "agrees", "ahead of each somewhere"
    assert found["rk2"].found.endswith("; more samples may tell")
    worse = claims([*rows, row(THIRD, 16, 50), row(EULER, 16, 40), row(HALF, 64, 40), row(THIRD, 64, 20)])
    assert worse["all"].verdict == "differs"
    assert f"above {EULER} at 16" in worse["all"].found
    assert worse["half"].verdict == "differs"
    assert f"{HALF} is above {THIRD} at 64" in worse["half"].found
    close = claims([row(HALF, 32, 20, 0.1), row(THIRD, 32, 21, 0.1)])["half"]
    assert close.verdict == "agrees", "15% does not matter"
    assert claims([row(HALF, 8, 40), row(THIRD, 8, 41)])["half"].verdict == "undecided", "not many"
    beyond = claims([*rows, row(THIRD, 128, 90), row(EULER, 128, 1)])
    assert beyond["all"].verdict == "agrees", "budgets above a quarter are shown, and not judged"
    alone = claims([row(EULER, 4, 90), row(TAU, 4, 95)])
    assert {claim.verdict for claim in alone.values()} == {"undecided", "needs weights"}
    assert "no budget of this run has room for both" in alone["half"].found


def test_sentences_follow_the_numbers() -> None:
    def said(rows: list[Row]) -> str:
        settings = {**SETTINGS, "model": "m", "num": 40, "guidance": 3.0, "cost": 2}
        study = Study.of("images", rows)
        told = {"settings": settings, "claims": claims_of(study, settings), "ranking": ranking(study, "distance")}
        told |= {"ours": []}
        return " ".join(describe("images", study, COLUMNS, **told).split())

    text = said([row(EULER, 8, 50, right=20), row(TAU, 8, 53, right=30), row(RK2, 8, 90, right=30)])
    assert (
        f"- With 8 evaluations {EULER} has the smallest distance, 50.0 ± 1.0, indistinguishable from {TAU}; most classes "
        f"are right with {TAU} and {RK2}, 75%."
    ) in text
    assert f"- With 8 evaluations {EULER} has the smallest distance, 50.0 ± 1.0. " in said([row(EULER, 8, 50)])
    assert (
        "The paper: the values of FID themselves, 50,000 images. Needs weights: it takes the weights of MaskGIT" in text
    )
