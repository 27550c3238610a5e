"""`tune` against all candidates worked out directly; files, and what is read of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import thetaleap as tl
from tests.cases import dirichlet
from tests.cli.test_cli import call, failed, ran
from thetaleap.evaluation.choice import Budget, choose, read_grid
from thetaleap.evaluation.metrics import kl
from thetaleap.evaluation.tune import Candidate, Tuned, candidates, tune
from thetaleap.sampling import plan

MODEL = tl.oracles.joint(dirichlet(3, (2, 2), 0.5), tl.Uniform(2))


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    return tune(MODEL, 3, num=12, progress=False)


def law_kl(one: Candidate) -> float:
    contender = one.contender(MODEL)
    solver, grid = contender.at(MODEL, 3)
    return kl(MODEL.p0, tl.exact.law(MODEL, solver, plan(MODEL, solver, nfe=3, grid=grid)))


def test_the_winner_is_the_nearest_of_all_candidates(tuned: Tuned) -> None:
    every = {one: law_kl(one) for one in candidates(MODEL)}
    assert tuned.tried == len(every) == 20
    assert tuned.winner == min(every, key=lambda one: every[one])
    least = min(every.values())
    for row in (tuned.found, tuned.row("tuned")):
        assert row.figures["kl"].value == pytest.approx(least, rel=1e-9)
    assert tuned.confirmed == (least < tuned.row("auto").figures["kl"].value)
    assert f"The best of 20 candidates at 3 evaluations is {tuned.winner}." in " ".join(tuned.text().split())


def test_candidates_fit_their_model_and_differ() -> None:
    for name in ("chain64", "ising4x16", "cube3-uniform"):
        model = tl.load(name)
        every = candidates(model)
        assert len(set(every)) == len(every) >= 20
        for one in every:
            solver, grid = one.contender(model).at(model, 4)
            plan(model, solver, nfe=4, grid=grid)
    assert any("shape=(4, 16)" in one.solver for one in candidates(tl.load("ising4x16")))


def test_what_is_as_good_as_auto_is_not_called_better() -> None:
    """On a chain `auto` is what wins, or is told from it by chance alone: less than once in 40, by the level; the seed is
    fixed."""
    sharp = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    got = tune(tl.oracles.markov_chain(sharp, length=16), 4, num=40, seed=3, reference="model", progress=False)
    assert not got.confirmed
    assert got.comparison.kind == "reference"
    assert got.comparison.settings["seed"] == 4
    assert "confirmed better than auto: keep auto" in (text := " ".join(got.text().split())) or "as auto does" in text


def test_given_samples_are_used_by_halves() -> None:
    model = tl.oracles.joint(dirichlet(3, (2, 2), 0.5), tl.Masked(2))
    given = model.draw(60, 1)
    got = tune(model, 1, reference=given, progress=False)
    assert got.comparison.settings["num"] == 30
    assert "30 samples that were given" in got.comparison.about


def test_a_tuned_solver_is_saved_and_sampled_with(tuned: Tuned, tmp_path: Path) -> None:
    path = tuned.save(tmp_path / "best.json", "toy15")
    told = json.loads(path.read_text())
    assert (told["solver"], told["grid"], told["nfe"]) == (tuned.winner.solver, tuned.winner.grid, 3)
    assert told["fresh"]["auto"]["kl"]["value"] == tuned.row("auto").figures["kl"].value
    choice = choose(MODEL, str(path), {}, Budget(3))
    assert choice.reason == "Tuned for toy15 at 3 evaluations."
    solver, grid = tuned.winner.contender(MODEL).at(MODEL, 3)
    assert choice.solver == solver
    assert callable(grid)
    assert choice.grid is not None
    assert torch.equal(choice.grid(MODEL.horizon, 0.0, 3), grid(MODEL.horizon, 0.0, 3))
    toy = tl.load("toy15")
    result = call("sample", "toy15", "--solver", path, "--nfe", 3, "--num", 5, "--out", tmp_path / "x.npy")
    assert choice.reason in result.stderr
    x, _ = tl.files.read_samples(tmp_path / "x.npy")
    own = read_grid(toy, tuned.winner.grid)  # on the schedule of the model that it is used for
    assert torch.equal(x, tl.sample(toy, solver, grid=own, nfe=3, num=5).x)
    got = tl.compare(MODEL, {"file": str(path), "same": tuned.winner.contender(MODEL)}, [3], num=3, progress=False)
    assert got.rows[0].figures["kl"].value == got.rows[1].figures["kl"].value


def test_files_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    sample = ("sample", "cube3", "--solver", path)
    assert "cannot be read (FileNotFoundError" in failed(*sample, "--nfe", 2)
    path.write_text("{}")
    assert "cannot be read (KeyError: 'solver')" in failed(*sample, "--nfe", 2)
    good = {"solver": "Tweedie()", "grid": "uniform", "nfe": 2, "model": "cube3"}
    path.write_text(json.dumps(good))
    assert "Tweedie() at 2 evaluations. Tuned for cube3" in call(*sample).stderr
    assert "--steps 3: --solver" in failed(*sample, "--steps", 3)
    path.write_text(json.dumps(good | {"solver": "exit(1)"}))
    assert "the name='exit'" in failed(*sample, "--nfe", 2)
    path.write_text(json.dumps(good | {"grid": "alpha_power(x)"}))
    assert "alpha_power(x)" in failed(*sample, "--nfe", 2)
    assert read_grid(MODEL, "uniform") is None


def test_tune_on_the_command_line(tmp_path: Path) -> None:
    few = ("compare", "toy15", "--tune", "--num", 12, "--out", tmp_path / "c")
    text = ran(*few, "--nfe", 2, "--save", tmp_path / "best.json")
    assert text.startswith("The best of 20 candidates at 2 evaluations is ")
    assert (tmp_path / "best.json").exists()
    assert "--tune is for one budget" in failed(*few, "--nfe", "2,4")
    assert "--tune has candidates of its own" in failed(*few, "--nfe", 2, "--solvers", "auto")
    assert "is for the result of --tune" in failed("compare", "cube3", "--save", "x.json")
    assert "give a name that ends with .json" in failed(*few, "--nfe", 2, "--save", "x.txt")
