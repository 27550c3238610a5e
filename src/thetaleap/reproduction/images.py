"""How good images are, by solver and evaluations: the paper's figures of FID, with guidance 3.

The paper's model is MaskGIT on ImageNet. Its weights are public, and with them, its VQGAN and reference statistics this
measures FID. By default it runs on digits, with a model that comes with the package and the Fréchet distance on the
features of a classifier of digits, which is not FID. All else is as in the paper: the log-linear schedule, equal steps
down to 1e-3, parallel decoding with arccos counts and noise that falls in a line. Sample i is of class ``i % classes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .. import files
from ..conditioning.wrappers import cost_of, guided
from ..control import Method
from ..core.checks import finite, require
from ..evaluation.judges.inception import fid_features
from ..evaluation.metrics.accuracy import Accuracy
from ..evaluation.metrics.digits import DIGITS, digit_features, digit_labels, judge
from ..evaluation.metrics.images import frechet, precision_recall, statistics
from ..evaluation.metrics.sequences import Measured
from ..models.network import Network
from ..sampling import Samples, plan, sample
from .methods import EULER, MINE, PARALLEL, RK, TAU, TWEEDIE, fewest, pick
from .pages import Job, Panel, chart, experiment, model_of, publish
from .rules import Claim, Report
from .rules import judge as judge_claims
from .study import Row, Study, ranking, row

MODEL = "mnist"
BUDGETS = (4, 8, 16, 32, 64)
NUM = 120
LEAST = 40
"""Fewer samples do not make the groups from which the error of a distance is estimated."""
GUIDANCE = 3.0
SHOWN = 10
"""Classes in the grids of samples, and samples of each, at most."""
ENDINGS = (".jpeg", ".jpg", ".png")
RK2, THIRD, HALF = "theta-RK-2 (1/3)", "theta-Trapezoidal (1/3)", "theta-Trapezoidal (1/2)"
OURS = ("exponential Trapezoidal", "multistep", "low discrepancy")
USED = (EULER, TAU, TWEEDIE, RK2, THIRD, HALF, PARALLEL, *OURS)
DRAWN = (EULER, TAU, RK2, THIRD, PARALLEL, "multistep")
"""In the figure; the table has all."""
COLUMNS = {
    "distance": ("distance", 1.0, 1),
    "bias": ("bias", 1.0, 1),
    "class right, %": ("accuracy", 100.0, 0),
    "precision": ("precision", 1.0, 2),
    "recall": ("recall", 1.0, 2),
}


@dataclass(frozen=True, eq=False)
class Measure:
    """What images are measured by."""

    name: str
    features: Callable[[Tensor], Tensor]
    mean: Float64[Tensor, " w"]
    cov: Float64[Tensor, "w w"]
    labels: Callable[[Tensor], Tensor] | None = None
    """What class an image looks like."""
    real: Float64[Tensor, "n w"] | None = None
    """Features of real images, for precision and recall."""

    def figures(self, x: Tensor, labels: Int64[Tensor, " n"]) -> dict[str, Any]:
        """Those of samples that were asked to be of classes `labels`; None is what is not measured."""
        features = self.features(x)
        distance = frechet(features, self.mean, self.cov)
        sharp = None if self.real is None else precision_recall(self.real, features)
        right = None if self.labels is None else int((self.labels(x) == labels).sum())
        return {
            "distance": Measured(distance.value, distance.error),
            "bias": distance.bias,
            "accuracy": None if right is None else Accuracy.of(right, len(x)),
            "precision": None if sharp is None else sharp.precision,
            "recall": None if sharp is None else sharp.recall,
        }


@experiment(least=LEAST)
def run(
    job: Job,
    model: str | Network = MODEL,
    vqgan: Path | None = None,
    reference: Path | None = None,
    data: Path | None = None,
    guidance: float = GUIDANCE,
    budgets: Sequence[int] = BUDGETS,
    batch_size: int = 32,
    device: str = "cpu",
    sampler: Callable[..., Samples] = sample,
) -> Report:
    """Measure, and write ``images.md``, ``.png``, ``.csv``, ``.json`` and a grid of samples of each method.

    The model is ``mnist``, or another that takes labels: of digits of the same size, or ``maskgit:SOURCE`` with the
    `vqgan` that decodes it. For FID, `reference` is a ``.npz`` file with the mean and the covariance of real features
    (``mean`` and ``cov``, or ``mu`` and ``sigma``), or a folder of real images, which give precision and recall too if
    they are as many as the samples. For digits these take `data`, an idx file of MNIST's images. `guidance` is the weight
    w, 0 for none; budgets that a method cannot do with are left out.
    `sampler` draws as `sample` does.
    """
    num = job.num or NUM
    require(finite(guidance) and guidance >= 0, "guidance", guidance, "give a finite number of at least 0")
    require(len(budgets) > 0, "budgets", list(budgets), "give at least one")
    network, name = _model(model, vqgan, device)
    measure = measure_of(network, num, reference, data, device)
    assert network.classes is not None
    assert network.shape is not None
    labels = torch.arange(num) % network.classes
    told, solvers = guided(network, guidance, labels), solvers_of((network.shape[0], network.shape[1]))
    enough = {method: fewest(told, solver, network.length) for method, solver in solvers.items()}
    todo = [(method, nfe) for method in solvers for nfe in sorted(set(budgets)) if nfe >= enough[method]]
    require(len(todo) > 0, "budgets", list(budgets), "no method can do with so few; give more")
    rows: list[Row] = []
    last: dict[str, tuple[int, Tensor]] = {}
    with job.bar("evaluations", sum(nfe for _, nfe in todo)) as advance:
        for method, nfe in todo:
            solver = solvers[method]
            drawn = sampler(told, solver, nfe=nfe, num=num, seed=job.seed, batch_size=batch_size, progress=False)
            entries = {"model": name, "solver": repr(solver), "nfe": nfe, "steps": len(plan(told, solver, nfe=nfe)) - 1}
            rows.append(row(method, drawn.nfe.tolist(), **entries, **measure.figures(drawn.x, labels)))
            last[method] = nfe, drawn.x
            advance(nfe)
    settings = {"model": name, "distance": measure.name, "num": num, "guidance": guidance}
    settings |= {"cost": cost_of(told), "positions": network.length}
    study = Study.of("images", rows)
    grids = {method: (nfe, grid_name(method)) for method, (nfe, _) in last.items()}
    for method, (nfe, x) in last.items():
        shown = by_class(x, labels)
        note = {"model": name, "solver": repr(solvers[method]), "nfe": nfe, "seed": job.seed}
        drawing = files.image_grid(files.pictures(network, shown.flatten(0, 1)), shown.shape[1])
        files.write_pictures(job.folder / grid_name(method), drawing, note)
    parts = [Panel(study, "distance", f"{measure.name}\n(± standard error)", log=True)]
    parts += [Panel(study, "accuracy", "class as asked for, % of samples", 100.0)] if measure.labels else []
    told = {"columns": COLUMNS, "more": [job.folder / file for _, file in grids.values()], "grids": grids}
    told |= {"ranking": ranking(study, "distance")}
    figure = chart(parts, DRAWN, f"{name}, {num} samples each, guidance {guidance:g}")
    return publish(job, "images", study, settings, claims_of(study, settings), figure, **told)


def solvers_of(shape: tuple[int, int]) -> dict[str, Method]:
    """By name, for images of so many positions in height and width."""
    third, half = pick(RK, MINE, theta=1 / 3), pick(MINE, theta=1 / 2)
    made = {RK2: third[RK], THIRD: third[MINE], HALF: half[MINE]} | pick(*USED[:3], *USED[6:], shape=shape)
    return {name: made[name] for name in USED}


def by_class(x: Int64[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Int64[Tensor, "classes each d"]:
    """The first samples of the first classes, as many of each."""
    classes = labels.unique()[:SHOWN].tolist()
    each = min(SHOWN, *(int((labels == label).sum()) for label in classes))
    return torch.stack([x[labels == label][:each] for label in classes])


# --- what images are measured by


def measure_of(
    model: Network, num: int, reference: Path | None = None, data: Path | None = None, device: str = "cpu"
) -> Measure:
    """The classifier of digits for images that it takes, and FID for models with a decoder of pictures."""
    if model.pictures is not None:
        require(data is None, "data", str(data), "is for digits; leave it out, and give a reference")
        if reference is None:
            raise ValueError("reference=None: FID needs statistics of real images, as in --reference imagenet.npz")

        def features(x: Tensor) -> Tensor:
            return fid_features(files.pictures(model, x), device).double()

        mean, cov, real = read_reference(reference, device)
        return Measure("FID", features, mean, cov, real=None if real is None or len(real) < num else real[:num])
    known = judge()
    side, levels = known.module.side, known.module.levels
    fits = model.shape == (side, side) and model.process.states == levels and model.classes == DIGITS
    size = f"{side} x {side} pixels in {levels} greys"
    require(fits, "model", model.shape, f"give one of {DIGITS} digits, {size}, or a maskgit: model with its --vqgan")
    require(reference is None, "reference", str(reference), "is for FID; digits have their own")
    real = None if data is None else digit_features(_digits(data, levels, side, num))
    title = "squared Fréchet distance on the digit classifier's features"
    return Measure(title, digit_features, known.mean, known.cov, digit_labels, real)


def read_reference(
    path: Path, device: str = "cpu"
) -> tuple[Float64[Tensor, " w"], Float64[Tensor, "w w"], Float64[Tensor, "n w"] | None]:
    """Mean and covariance of real features from a file, or those of the images in a folder with the features too."""
    if path.is_dir():
        found = [file for file in sorted(path.iterdir()) if file.suffix.lower() in ENDINGS]
        require(len(found) > 1, "reference", str(path), f"holds no images; give a folder of {', '.join(ENDINGS)}")
        real = torch.cat([fid_features(_image(file), device) for file in found]).double()
        return *statistics(real), real
    good = path.is_file() and path.suffix == ".npz"
    require(good, "reference", str(path), "give a .npz file of statistics, or a folder of images")
    with np.load(path, allow_pickle=False) as arrays:
        pair = next((pair for pair in (("mean", "cov"), ("mu", "sigma")) if set(pair) <= set(arrays)), None)
        if pair is None:
            raise ValueError(f"reference={str(path)!r}: holds {', '.join(arrays)}; give mean and cov, or mu and sigma")
        mean, cov = (torch.from_numpy(np.asarray(arrays[name], dtype=np.float64)) for name in pair)
    square, shapes = mean.ndim == 1 and cov.shape == mean.shape * 2, (tuple(mean.shape), tuple(cov.shape))
    require(square, "reference", str(path), f"a mean {shapes[0]} and a covariance {shapes[1]} do not fit")
    return mean, cov, None


def _image(path: Path) -> Tensor:
    """An image (1, 3, height, width) with entries from 0 to 1."""
    from matplotlib.image import imread

    pixels = torch.from_numpy(np.array(imread(path)))
    grey = pixels / 255 if pixels.dtype == torch.uint8 else pixels
    colours = grey.unsqueeze(2).expand(-1, -1, 3) if grey.ndim == 2 else grey[:, :, :3]
    return colours.permute(2, 0, 1).unsqueeze(0).float()


def _digits(path: Path, levels: int, side: int, num: int) -> Int64[Tensor, "n d"]:
    """As many real images as there are samples, as precision and recall depend on the number."""
    from ..training.data import read_corpus

    images = read_corpus(path, levels=levels, side=side).tokens
    require(len(images) >= num, "num", num, f"there are but {len(images)} images in {path.name}; give at most as many")
    return images[:num]


def _model(model: str | Network, vqgan: Path | None, device: str) -> tuple[Network, str]:
    """The network, and what to call it."""
    network, name = model_of(model, vqgan=vqgan, device=device)
    plane = isinstance(network, Network) and network.shape is not None and len(network.shape) == 2
    good = plane and network.classes is not None and network.process.mask is not None
    require(good, "model", name, "give a masked model of images that takes labels, such as mnist or maskgit:FILE")
    return network, name


# --- what the paper says


def claims_of(study: Study, settings: Mapping[str, Any]) -> list[Claim]:
    """The paper's claims on images; verdicts on their order are of this model and distance."""
    fid = settings["distance"] == "FID"
    where = "" if fid else "on digits, with another model and another distance, "
    return judge_claims(study, "images", where=where, positions=settings["positions"])[: -1 if fid else None]


def grid_name(method: str) -> str:
    """The file of a method's samples."""
    return f"images-{'-'.join(re.findall('[a-z0-9]+', method.lower()))}.png"
