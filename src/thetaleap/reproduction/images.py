"""How good images are, by solver and evaluations: the paper's figures of FID, with guidance 3.

The paper's model is MaskGIT on ImageNet. Its weights are public, and with them, its VQGAN and reference statistics this
measures FID. By default it runs on digits, with a model that comes with the package and the Fréchet distance on the
features of a classifier of digits, which is not FID. All else is as in the paper: the log-linear schedule, equal steps
down to 1e-3, parallel decoding with arccos counts and noise that falls in a line. Sample i is of class ``i % classes``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .. import __version__, files
from ..conditioning.wrappers import cost_of, guided
from ..core.checks import finite, require, require_count
from ..core.evaluation import Denoiser
from ..evaluation.judges.inception import fid_features
from ..evaluation.metrics.accuracy import Accuracy
from ..evaluation.metrics.digits import DIGITS, digit_features, digit_labels, judge
from ..evaluation.metrics.images import Frechet, frechet, precision_recall, statistics
from ..models import load
from ..models.network import Network
from ..planners.all import LowDiscrepancy
from ..sampling import plan, sample
from ..solvers import (
    RK2,
    Euler,
    ExponentialTrapezoidal,
    Multistep,
    ParallelDecoding,
    Solver,
    TauLeaping,
    Trapezoidal,
    Tweedie,
)
from ._images_page import claims_of, describe, draw, grid_name, page
from ._output import Report, bar, write_csv, write_json, write_png, write_text

MODEL = "mnist"
BUDGETS = (4, 8, 16, 32, 64)
NUM = 120
LEAST = 40
"""Fewer samples do not make the groups from which the error of a distance is estimated."""
GUIDANCE = 3.0
BATCH = 32
SHOWN = 10
"""Classes in the grids of samples, and samples of each, at most."""
ENDINGS = (".jpeg", ".jpg", ".png")

METHODS: dict[str, Callable[[tuple[int, int]], Solver]] = {
    "Euler": lambda shape: Euler(),
    "tau-leaping": lambda shape: TauLeaping("reject"),
    "Tweedie": lambda shape: Tweedie(),
    "theta-RK-2 (1/3)": lambda shape: RK2(1 / 3, "reject"),
    "theta-Trapezoidal (1/3)": lambda shape: Trapezoidal(1 / 3, "reject"),
    "theta-Trapezoidal (1/2)": lambda shape: Trapezoidal(1 / 2, "reject"),
    "parallel decoding": lambda shape: ParallelDecoding(),
    "exponential Trapezoidal": lambda shape: ExponentialTrapezoidal(),
    "multistep": lambda shape: Multistep(),
    "low discrepancy": lambda shape: Tweedie(LowDiscrepancy(shape)),
}
"""By name, for images of so many positions in height and width; the last three are not the paper's."""


@dataclass(frozen=True)
class Row:
    """One method at one budget: a row of the CSV. Empty is what was not measured."""

    method: str
    nfe: int
    """The budget; an evaluation with guidance counts as two."""
    steps: int
    num: int
    evaluations: float
    """What a sample took on average."""
    distance: float
    """The squared Fréchet distance from the reference."""
    error: float
    """Its standard error."""
    bias: float
    """By about how much it is too large, as there are no more samples."""
    right: int | None
    """Samples that the classifier takes for what was asked for."""
    accuracy: float | None
    low: float | None
    high: float | None
    """Wilson's interval at 95%."""
    precision: float | None
    recall: float | None


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


def run(
    folder: Path,
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    model: str | Network = MODEL,
    vqgan: Path | None = None,
    reference: Path | None = None,
    data: Path | None = None,
    guidance: float = GUIDANCE,
    budgets: Sequence[int] = BUDGETS,
    batch_size: int = BATCH,
    device: str = "cpu",
) -> Report:
    """Measure, and write ``images.md``, ``.png``, ``.csv``, ``.json`` and a grid of samples of each method to `folder`.

    Args:
        folder: where to; it is made.
        num: how many images of each method at each budget.
        seed: of the images.
        progress: show a bar; by default if standard error is a terminal.
        model: ``mnist``, or another that takes labels: of digits of the same size, or ``maskgit:SOURCE``.
        vqgan: for ``maskgit:``, the file of its decoder.
        reference: for FID, a ``.npz`` file with the mean and the covariance of real features (``mean`` and ``cov``, or
            ``mu`` and ``sigma``), or a folder of real images; if these are as many as the samples, there are precision
            and recall too.
        data: for digits, an idx file of MNIST's images, for precision and recall.
        guidance: weight w; 0 for none.
        budgets: evaluations of a sample. Those that a method cannot do with are left out.
        batch_size: images that are drawn together.
        device: where the network runs.
    """
    num = NUM if num is None else num
    require(isinstance(num, int) and num >= LEAST, "num", num, f"give a whole number of at least {LEAST}")
    require_count("seed", seed, least=0)
    require(finite(guidance) and guidance >= 0, "guidance", guidance, "give a finite number of at least 0")
    require(len(budgets) > 0, "budgets", list(budgets), "give at least one")
    network, name = _model(model, vqgan, device)
    measure = measure_of(network, num, reference, data, device)
    assert network.classes is not None
    assert network.shape is not None
    labels = torch.arange(num) % network.classes
    told = guided(network, guidance, labels)
    solvers = {method: make((network.shape[0], network.shape[1])) for method, make in METHODS.items()}
    todo = [(m, nfe) for m in solvers for nfe in sorted(set(budgets)) if nfe >= least(told, solvers[m])]
    require(len(todo) > 0, "budgets", list(budgets), "no method can do with so few; give more")
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    last: dict[str, Tensor] = {}
    with bar(progress, "evaluations", sum(nfe for _, nfe in todo)) as advance:
        for method, nfe in todo:
            solver = solvers[method]
            steps = len(plan(told, solver, nfe=nfe)) - 1
            drawn = sample(told, solver, nfe=nfe, num=num, seed=seed, batch_size=batch_size, progress=False)
            spent = float(drawn.nfe.double().mean())
            rows.append(_row(method, nfe, steps, spent, drawn.x, labels, measure))
            last[method] = drawn.x
            advance(nfe)
    settings = {
        "model": name,
        "distance": measure.name,
        "num": num,
        "seed": seed,
        "guidance": guidance,
        "cost": cost_of(told),
        "positions": network.length,
        "solvers": {method: repr(solver) for method, solver in solvers.items()},
        "most": {method: max(nfe for m, nfe in todo if m == method) for method in last},
    }
    claims = claims_of(rows, settings)
    card = {"experiment": "images", "version": __version__, "settings": settings, "rows": [asdict(r) for r in rows]}
    written = [
        write_text(folder / "images.md", page(rows, settings, claims)),
        write_png(folder / "images.png", draw(rows, settings)),
        write_csv(folder / "images.csv", [asdict(row) for row in rows]),
        write_json(folder / "images.json", {**card, "claims": [asdict(claim) for claim in claims]}),
    ]
    for method, x in last.items():
        path, shown = folder / grid_name(method), by_class(x, labels)
        note = {"model": name, "solver": repr(solvers[method]), "nfe": settings["most"][method], "seed": seed}
        images = files.pictures(network, shown.flatten(0, 1))
        files.write_pictures(path, files.mosaic(images, shown.shape[1]), note)
        written.append(path)
    return Report(describe(rows, settings, claims), written, claims)


def least(model: Denoiser, solver: Solver) -> int:
    """The fewest evaluations in which `solver` can draw a sample: one step, and a finish where it needs one."""
    assert solver.evaluations is not None
    return cost_of(model) * (solver.evaluations + (not solver.reaches_data(model.process)))


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
    square = mean.ndim == 1 and cov.shape == (len(mean), len(mean))
    require(
        square, "reference", str(path), f"a mean {tuple(mean.shape)} and a covariance {tuple(cov.shape)} do not fit"
    )
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


def _row(
    method: str, nfe: int, steps: int, spent: float, x: Tensor, labels: Int64[Tensor, " n"], measure: Measure
) -> Row:
    features = measure.features(x)
    distance: Frechet = frechet(features, measure.mean, measure.cov)
    seen, sharp = None, None
    if measure.labels is not None:
        seen = Accuracy.of(int((measure.labels(x) == labels).sum()), len(x))
    if measure.real is not None:
        sharp = precision_recall(measure.real, features)
    return Row(
        method,
        nfe,
        steps,
        len(x),
        spent,
        distance.value,
        distance.error,
        distance.bias,
        right=None if seen is None else seen.right,
        accuracy=None if seen is None else seen.value,
        low=None if seen is None else seen.low,
        high=None if seen is None else seen.high,
        precision=None if sharp is None else sharp.precision,
        recall=None if sharp is None else sharp.recall,
    )


def _model(model: str | Network, vqgan: Path | None, device: str) -> tuple[Network, str]:
    """The network, and what to call it."""
    if isinstance(model, Network):
        network, name = model, "given as an object"
    else:
        more: dict[str, Any] = {} if vqgan is None else {"vqgan": vqgan}
        more |= {} if device == "cpu" else {"device": device}
        network, name = load(model, **more), model
    plane = isinstance(network, Network) and network.shape is not None and len(network.shape) == 2
    good = plane and network.classes is not None and network.process.mask is not None
    require(good, "model", name, "give a masked model of images that takes labels, such as mnist or maskgit:FILE")
    return network, name
