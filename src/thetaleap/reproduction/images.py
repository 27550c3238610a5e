"""How good images are, by solver and evaluations: the paper's figures of FID, with guidance 3.

The paper's model is MaskGIT on ImageNet. Its weights are public, and with them, its VQGAN and reference statistics this
measures FID. By default it runs on digits, with a model that comes with the package and the Fréchet distance on the
features of a classifier of digits, which is not FID. All else is as in the paper: the log-linear schedule, equal steps
down to 1e-3, parallel decoding with arccos counts and noise that falls in a line. Sample i is of class ``i % classes``.

Budgets are by evaluations per position, 1/64 to 1/4, which is where the paper's own images are, and with ``--full`` to 1;
claims are judged by the former. With guidance an evaluation is two of the network, and counts as two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .. import files
from ..conditioning.wrappers import Weight, guided
from ..core.checks import finite, require
from ..core.evaluation import Denoiser
from ..evaluation.figures import listing
from ..evaluation.judges.inception import fid_features
from ..evaluation.metrics.accuracy import Accuracy
from ..evaluation.metrics.digits import DIGITS, digit_features, digit_labels, judge
from ..evaluation.metrics.images import precision_recall, statistics
from ..evaluation.metrics.resampled import EACH, resampled_frechet, resampled_mean
from ..models.network import Network
from ..sampling import Samples, sample
from .looks import Cell, draw_by, fingerprint, until_decided
from .methods import (
    APART,
    AUTO,
    CORRECTED,
    EULER,
    METHODS,
    MINE,
    PARALLEL,
    RK,
    SEVERAL,
    TAU,
    Led,
    budgets_by_ratio,
    budgets_for,
    budgets_of,
    look,
    pick,
    steps_of,
)
from .pages import Job, Panel, chart, experiment, model_of, publish
from .published import Published, ramp
from .rules import Claim, Report
from .rules import judge as judge_claims
from .study import Row, Study, compare, fullest, ranking, row

MODEL = "mnist"
NUM = 64
QUARTER = 0.25
"""The most evaluations per position of the paper's images."""
LEAST = 40
"""Fewer samples do not make the groups from which the error of a distance is estimated."""
GUIDANCE = 3.0
FEW = 1 / 32
"""Evaluations per position up to which the paper says "extremely few": 8 for 256 positions."""
SHOWN = 10
"""Classes in the grids of samples, and samples of each, at most."""
ENDINGS = (".jpeg", ".jpg", ".png")
RK2, THIRD, HALF = "theta-RK-2 (1/3)", "theta-Trapezoidal (1/3)", "theta-Trapezoidal (1/2)"
USED = (EULER, TAU, RK2, THIRD, HALF, PARALLEL, SEVERAL, APART, CORRECTED, AUTO)
LEGACY = tuple(name for name, one in METHODS.items() if name.endswith("(published code)"))
DRAWN = (EULER, TAU, RK2, THIRD, PARALLEL, AUTO)
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
    classes: int = 1
    """Sample i was asked to be of class ``i % classes``."""

    def strata(self, num: int) -> int:
        """The classes, where there are enough samples of each; errors are too large where there are not."""
        return self.classes if num >= EACH * self.classes else 1

    def distances(self, features: Tensor) -> dict[str, Any]:
        """From real images."""
        distance = resampled_frechet(features, self.mean, self.cov, self.strata(len(features)))
        return {"distance": distance, "bias": distance.bias}

    def figures(self, x: Tensor, labels: Int64[Tensor, " n"]) -> dict[str, Any]:
        """Those of samples that were asked to be of classes `labels`; None is what is not measured."""
        features = self.features(x)
        sharp = None if self.real is None else precision_recall(self.real, features)
        made = {
            **self.distances(features),
            "accuracy": None,
            "precision": None if sharp is None else sharp.precision,
            "recall": None if sharp is None else sharp.recall,
        }
        if self.labels is not None:
            right = (self.labels(x) == labels).double()
            made |= {
                "accuracy": Accuracy.of(int(right.sum()), len(x)),
                "_accuracy": resampled_mean(right, self.strata(len(x))).again,
            }
        return made


@experiment(least=LEAST)
def run(
    job: Job,
    model: str | Network = MODEL,
    vqgan: Path | None = None,
    reference: Path | None = None,
    data: Path | None = None,
    guidance: float = GUIDANCE,
    budgets: Sequence[int] | None = None,
    legacy: bool = False,
    batch_size: int = 32,
    device: str = "cpu",
    sampler: Callable[..., Samples] = sample,
) -> Report:
    """Measure, and write ``images.md``, ``.png``, ``.csv``, ``.json`` and a grid of samples of each method.

    The model is ``mnist``, or another that takes labels: of digits of the same size, or ``maskgit:SOURCE`` with the
    `vqgan` that decodes it. For FID, `reference` is a ``.npz`` file with the mean and the covariance of real features
    (``mean`` and ``cov``, or ``mu`` and ``sigma``), or a folder of real images, which give precision and recall too if
    they are as many as the samples. For digits these take `data`, an idx file of MNIST's images. `guidance` is the weight
    w, 0 for none; budgets that a method cannot do with are left out. With `legacy` there are solvers as in published code
    as well, whose guidance grows from 0 to w. `sampler` draws as `sample` does.
    """
    num = job.num or NUM
    require(finite(guidance) and guidance >= 0, "guidance", guidance, "give a finite number of at least 0")
    network, name = _model(model, vqgan, device)
    classes, shape = network.classes, network.shape
    assert classes is not None
    assert shape is not None
    cost = 1 if guidance == 0 else 2
    given = budgets_of(budgets, budgets_by_ratio(network.length, cost, 1.0 if job.full else QUARTER))
    measure = measure_of(network, num, reference, data, device)
    solvers = solvers_of((shape[0], shape[1]), legacy)

    def led_by(solver: Led) -> Callable[[int, int], Denoiser]:
        ramps = isinstance(solver, Published) and "ramp" in solver.quirks and guidance > 0
        return partial(labelled, network, ramp(guidance) if ramps else guidance)

    judged = QUARTER * cost * network.length if budgets is None else max(given)
    cells = [
        Cell(m, n, num, n, judged=n <= judged + cost)
        for m, solver in solvers.items()
        for n in budgets_for(led_by(solver)(0, 1), solver, given, network.length)
        if n is not None
    ]
    require(len(cells) > 0, "budgets", given, "no method can do with so few; give more")
    weights, last = fingerprint(network), dict[str, tuple[int, Tensor]]()

    def row_of(cell: Cell, num: int) -> Row:
        solver, nfe = solvers[cell.method], cell.nfe or 0
        key, manner = {"images": weights, "guidance": guidance}, {"batch_size": batch_size, "sampler": sampler}
        drawn = draw_by(job, key, num, led_by(solver), solver, nfe, **manner)
        if nfe >= last.get(cell.method, (0,))[0]:  # the largest budget is shown, also where others are drawn on
            last[cell.method] = nfe, drawn.x
        entries = {"model": name, "solver": repr(solver), "nfe": nfe, "ratio": nfe / cost / network.length}
        entries |= {"network": float(drawn.spent.double().mean())}
        entries |= {"steps": steps_of(led_by(solver)(0, 1), solver, nfe), "kind": look(cell.method).kind}
        return row(cell.method, drawn.nfe.tolist(), **entries, **measure.figures(drawn.x, torch.arange(num) % classes))

    settings = {"model": name, "weights": weights, "distance": measure.name, "num": num, "guidance": guidance}
    settings |= {"cost": cost, "positions": network.length, "judged": judged + cost}
    study, claims = until_decided(
        job, "images", cells, row_of, lambda study: claims_of(study, settings), (*DRAWN, HALF)
    )
    grids = {method: (nfe, grid_name(method)) for method, (nfe, _) in last.items()}
    for method, (nfe, x) in last.items():
        kept = by_class(x, torch.arange(len(x)) % classes)
        note = {"model": name, "solver": repr(solvers[method]), "nfe": nfe, "seed": job.seed}
        drawing = files.image_grid(files.pictures(network, kept.flatten(0, 1)), kept.shape[1])
        files.write_pictures(job.folder / grid_name(method), drawing, note)
    # distances compare at the same number of samples: at each budget, and along a line at all of its budgets
    fair = Study([one for nfe in study.column("nfe") for one in fullest(study.where(nfe=nfe))])
    drawn = Study(fullest([one for one in study.rows if one["method"] in DRAWN]))
    parts = [Panel(drawn, "distance", f"{measure.name}\n(± standard error)", log=True)]
    parts += [Panel(study, "accuracy", "class as asked for, % of samples", 100.0)] if measure.labels else []
    words = {"columns": COLUMNS, "more": [job.folder / file for _, file in grids.values()], "grids": grids}
    ours = Study([one for one in fair.rows if one["kind"] == "ours"])
    words |= {"ranking": ranking(fair, "distance"), "ours": ranking(ours, "distance")}
    return publish(job, "images", study, settings, claims, chart(parts, DRAWN, takeaway(fair, name)), **words)


def takeaway(study: Study, name: str) -> str:
    """Where the library's advice stands beside the paper's method."""
    both = [(nfe, study.where(method=AUTO, nfe=nfe), study.where(method=THIRD, nfe=nfe)) for nfe in study.column("nfe")]
    signs = [(nfe, compare("distance", one[0], two[0])) for nfe, one, two in both if one and two]
    ahead, behind = ([str(nfe) for nfe, sign in signs if sign == wanted] for wanted in (-1, 1))
    parts = [f"nearer at {listing(ahead)}"] if ahead else []
    parts += [f"further at {listing(behind)}"] if behind else []
    return f"{name}: {AUTO} is {' and '.join(parts) or 'indistinguishable'} {'than' if parts else 'from'} {THIRD}"


def labelled(network: Network, weight: Weight, first: int, count: int) -> Denoiser:
    """The network, guided to the classes of these samples; as it is, where it takes none."""
    classes = network.classes
    return network if classes is None else guided(network, weight, torch.arange(first, first + count) % classes)


def solvers_of(shape: tuple[int, int], legacy: bool = False) -> dict[str, Led]:
    """By name, for images of so many positions in height and width."""
    third, half = pick(RK, MINE, theta=1 / 3), pick(MINE, theta=1 / 2)
    plain = [name for name in USED if name not in (RK2, THIRD, HALF)]
    made: dict[str, Led] = {RK2: third[RK], THIRD: third[MINE], HALF: half[MINE]}
    made |= pick(*plain, *LEGACY, shape=shape, redraw=max(1, shape[0] * shape[1] // 16))
    return {name: made[name] for name in (*USED, *(LEGACY if legacy else ()))}


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
        enough = None if real is None or len(real) < num else real[:num]
        return Measure("FID", features, mean, cov, real=enough, classes=model.classes or 1)
    made = measure_of_digits(model, ", or a maskgit: model with its --vqgan")
    require(reference is None, "reference", str(reference), "is for FID; digits have their own")
    return made if data is None else replace(made, real=digit_features(_digits(data, num)))


def measure_of_digits(model: Network, otherwise: str = "") -> Measure:
    """The classifier of digits, for models of such images as it takes; an error names these, or what to do `otherwise`."""
    known = judge()
    side, levels = known.module.side, known.module.levels
    fits = model.shape == (side, side) and model.process.states == levels and model.classes in (None, DIGITS)
    size = f"{side} x {side} pixels in {levels} greys"
    require(fits, "model", model.shape, f"give one of {DIGITS} digits, {size}{otherwise}")
    title = "squared Fréchet distance on the digit classifier's features"
    return Measure(title, digit_features, known.mean, known.cov, digit_labels, classes=model.classes or 1)


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


def _digits(path: Path, num: int) -> Int64[Tensor, "n d"]:
    """As many real images as there are samples, as precision and recall depend on the number."""
    from ..training.data import read_corpus

    images = read_corpus(path, levels=judge().module.levels, side=judge().module.side).tokens
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
    few = settings["cost"] * FEW * settings["positions"]
    own = Study([one for one in study.rows if one["nfe"] <= settings["judged"]])
    return judge_claims(own, "images", ["fid"] if fid else [], where, few=few)


def grid_name(method: str) -> str:
    """The file of a method's samples."""
    return f"images-{'-'.join(re.findall('[a-z0-9]+', method.lower()))}.png"
