"""SEDD's own sampler with raw ratios: its exact law, against the published algorithm written down once more."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import thetaleap as tl
from tests.cli.test_cli import call
from tests.models.test_published import GEOMETRIC, nested, saved
from tests.models.test_transformer import SEDD, UNIFORM, straight
from thetaleap.files import read_samples
from thetaleap.models.hf.published import sedd
from thetaleap.models.hf.raw_rates import RawRates
from thetaleap.models.network import Network

pytestmark = pytest.mark.filterwarnings("ignore:the network's score ratios")  # its weights are random
LENGTH, TOKENS = 2, 3
TIMES = [1.0, 0.55, 0.2, 0.05]
SHIFT = {("absorb", True): 5.0, ("absorb", False): 7.0, ("uniform", False): 0.0}
"""Of all outputs, so that raw rates are too small, and not everything is unmasked in the first step."""


def loaded(folder: Path, graph: str, scaled: bool) -> tuple[Network, dict[str, Any]]:
    sizes = replace(SEDD if graph == "absorb" else UNIFORM, tokens=TOKENS)
    config = nested(sizes, graph={"type": graph}, noise=GEOMETRIC | {"sigma_max": 3})
    config["model"]["scale_by_sigma"] = scaled
    weights = saved(folder, sizes, config)
    weights["output_layer.linear.bias"] -= SHIFT[graph, scaled]
    save_file(weights, folder / "model.safetensors")
    return sedd(folder, LENGTH, torch.float64), weights


def published(weights: dict[str, Any], graph: str, scaled: bool, sigma: list[float]) -> np.ndarray:
    """The law of the samples, from a table of scores of all sequences: SEDD's staggered score times its transposed
    transition, negative entries as 0; at the end the clean tokens given the last scores, those that are negative as 0."""
    masked = graph == "absorb"
    channels = TOKENS + masked
    every = torch.tensor(list(itertools.product(range(channels), repeat=LENGTH)))
    law = np.zeros(len(every)) if masked else np.full(len(every), 1 / len(every))
    law[-1] = 1.0 if masked else law[-1]
    own = np.eye(channels)

    def scores(level: float) -> np.ndarray:
        table = straight(weights, every, SEDD.heads, torch.full((len(every),), level, dtype=torch.float64))
        table = table - math.log(math.expm1(level)) - math.log(channels - 1) if scaled else table
        return np.where(own[every.numpy()] > 0, 1.0, np.exp(table))

    for now, then in itertools.pairwise(sigma):
        step, score = now - then, scores(now)
        if masked:
            staggered = score * math.exp(step)
            staggered[..., -1] += (1 - math.exp(step)) * score.sum(-1)
            back = math.exp(-step) * own + (own[-1][:, None] * (1 - math.exp(-step)))  # row: the present token
        else:
            keep = math.exp(-step)
            staggered = (keep - 1) / (channels * keep) * score.sum(-1, keepdims=True) + score / keep
            back = keep * own + (1 - keep) / channels
        moves = np.clip(staggered * back[every.numpy()], 0, None)
        moves /= moves.sum(-1, keepdims=True)
        law = np.einsum("n,na,nb->ab", law, moves[:, 0], moves[:, 1]).flatten()
    score, alpha = scores(sigma[-1]), math.exp(-sigma[-1])
    if masked:
        clean = np.where((every == TOKENS).numpy()[..., None], score[..., :TOKENS], own[every.numpy()][..., :TOKENS])
    else:
        clean = np.clip(score - (1 - alpha) * score.mean(-1, keepdims=True), 0, None)
        clean = clean * (alpha * own[every.numpy()] + (1 - alpha) / channels)
    clean = clean / clean.sum(-1, keepdims=True)
    return np.einsum("n,na,nb->ab", law, clean[:, 0], clean[:, 1])


@pytest.mark.parametrize(("graph", "scaled"), [("absorb", True), ("absorb", False), ("uniform", False)])
def test_the_law_is_that_of_the_published_sampler(graph: str, scaled: bool, tmp_path: Path) -> None:
    """And not that of the ratios scaled to a law, which for such a poor network is far from it."""
    model, weights = loaded(tmp_path, graph, scaled)
    times = torch.tensor(TIMES, dtype=torch.float64)
    sigma = (-torch.log(model.process.schedule.alpha(times))).tolist()
    theirs = published(weights, graph, scaled, sigma)
    mine = tl.exact.law(model, RawRates(), times).numpy()
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)
    other = tl.exact.law(model, tl.Tweedie(), times).numpy()
    assert 0.5 * np.abs(mine - other).sum() > 0.02
    out = tl.sample(model, RawRates(), grid=times, num=4000, seed=1)
    drawn = np.bincount((out.x[:, 0] * TOKENS + out.x[:, 1]).numpy(), minlength=TOKENS**2) / 4000
    assert np.abs(drawn - mine.flatten()).max() < 6 * 0.5 / 4000**0.5, "six standard errors: 2e-9 for each of nine"


def test_where_there_are_no_ratios(tmp_path: Path) -> None:
    model, _ = loaded(tmp_path, "absorb", True)
    with pytest.raises(ValueError, match=r"model=Joint: RawRates needs the score ratios that models of sedd: give"):
        tl.sample(tl.load("cube3"), RawRates(), nfe=4)
    with pytest.raises(ValueError, match=r"model=Tempered: RawRates needs the score ratios"):
        tl.sample(tl.tempered(model, 0.5), RawRates(), nfe=4)
    with pytest.raises(ValueError, match=r"process='RateMatrix': RawRates is for models of sedd:; use Tweedie"):
        RawRates().check(tl.RateMatrix.birth_death(4), 2)


# --- the command line


def test_sample_on_the_command_line(tmp_path: Path) -> None:
    """The samples of the solver in Python, which the file names."""
    model, _ = loaded(tmp_path, "absorb", True)
    given, out = (
        ("sample", f"sedd:{tmp_path}", "--length", LENGTH, "--dtype", "float64", "--legacy"),
        tmp_path / "a.npy",
    )
    drawn = call(*given, "--nfe", 4, "--num", 64, "--seed", 3, "--out", out)
    assert drawn.exit_code == 0, drawn.output
    x, card = read_samples(out)
    assert torch.equal(x, tl.sample(model, RawRates(), nfe=4, num=64, seed=3).x)
    assert card["solver"] == "RawRates()"
    for more, message in (
        ((), "--nfe and --steps are missing: say how much RawRates() may spend"),
        (("--nfe", 4, "--solver", "tweedie"), "--solver tweedie: --legacy is a solver by itself; leave out one"),
        (("--nfe", 4, "--theta", 0.5), "--theta 0.5: --legacy is a solver by itself; leave out one"),
        (("--tolerance", 0.1), "--tolerance 0.1: --legacy is a solver by itself; leave out one"),
    ):
        wrong = call(*given, *more)
        assert wrong.exit_code == 2
        assert message in wrong.stderr
        assert "Traceback" not in wrong.stderr


def test_compare_on_the_command_line(tmp_path: Path) -> None:
    loaded(tmp_path, "absorb", True)
    out = tmp_path / "out"
    name = f"sedd:{tmp_path},length=2"
    done = call("compare", name, "--solvers", "tweedie,legacy", "--nfe", 4, "--num", 64, "--out", out)
    assert done.exit_code == 0, done.output
    rows = json.loads((out / "comparison.json").read_text())["rows"]
    assert {row["solver"] for row in rows} == {"Tweedie()", "RawRates()"}
    other = call("compare", "cube3", "--solvers", "tweedie,legacy", "--nfe", 4, "--num", 16, "--out", out)
    assert other.exit_code == 0, other.output
    reasons = {row["contender"]: row["reason"] for row in json.loads((out / "comparison.json").read_text())["rows"]}
    assert "RawRates needs the score ratios that models of sedd: give" in reasons["legacy"]
    assert not reasons["tweedie"]
