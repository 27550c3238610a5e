"""Experiments, run small: their files parse and agree, their numbers are right, their words follow the numbers."""

from __future__ import annotations

import csv
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import linalg, special

from thetaleap import TauLeaping, exact, load, sample
from thetaleap.control import grids
from thetaleap.core.progress import progress_bar
from thetaleap.core.storage import replacing
from thetaleap.evaluation.figures import listing, number, page, runs, table, write_json
from thetaleap.models.oracles import Joint
from thetaleap.reproduction import EXPERIMENTS, Report, toy, uniformization
from thetaleap.reproduction.methods import AUTO, EULER, MINE, RK, SAFE, TAU, TWEEDIE
from thetaleap.reproduction.pages import describe
from thetaleap.reproduction.study import Study
from thetaleap.reproduction.toy import SOLVERS, claims_of, exact_fits, facts, order_name

STEPS = (2, 4, 8)


def joint(name: str) -> Joint:
    model = load(name)
    assert isinstance(model, Joint)
    return model


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def toy_row(folder: Path, *which: str) -> dict[str, str]:
    """The row of one method and number of steps."""
    return next(r for r in rows_of(folder / "toy.csv") if (r["method"], r["steps"]) == which)


def flat(report: Report) -> str:
    """The text without its line breaks."""
    return re.sub(r"\s+", " ", report.text)


def check_files(report: Report, folder: Path, *names: str) -> None:
    """All files are there, nothing else is, and figures are images of a readable size."""
    assert sorted(path.name for path in report.files) == sorted(names)
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    for path in report.files:
        if path.suffix == ".png":
            head = path.read_bytes()[:24]
            assert head.startswith(b"\x89PNG")
            least = 200 if path.name == "digits.png" else 500  # which has no words to read
            assert min(int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")) > least


# --- toy


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("toy") / "made" / "here"
    return toy.run(folder, num=5000, seed=1, progress=False, steps=STEPS), folder


def test_toy_files(toy_run: tuple[Report, Path]) -> None:
    report, folder = toy_run
    check_files(report, folder, "toy.md", "toy.png", "toy.csv", "toy.json")
    rows, card = rows_of(folder / "toy.csv"), json.loads((folder / "toy.json").read_text())
    assert [(r["method"], int(r["steps"])) for r in rows] == [(name, n) for name in (*SOLVERS, AUTO) for n in STEPS]
    named = [repr(solver) for solver in SOLVERS.values() for _ in STEPS]
    assert [r["solver"] for r in rows if r["method"] != AUTO] == named
    assert card["settings"]["num"] == 5000
    assert card["settings"]["steps"] == list(STEPS)
    assert card["noise_floor"] == pytest.approx(14 / 10_000)
    for row in rows:
        two = row["method"].startswith(("theta-RK-2", "theta-Trapezoidal"))
        assert int(row["nfe"]) == int(row["steps"]) * (2 if two else 1)


def test_toy_exact_errors_are_those_of_the_law(toy_run: tuple[Report, Path]) -> None:
    _, folder = toy_run
    model = joint("toy15")
    law = exact.law(model, TauLeaping(rule="reject"), grids.uniform(12.0, 0.0, 8)).numpy()
    row, p0 = toy_row(folder, TAU, "8"), model.p0.numpy()
    assert float(row["kl_exact"]) == pytest.approx(special.rel_entr(p0, law).sum(), rel=1e-10)
    assert float(row["tv_exact"]) == pytest.approx(np.abs(p0 - law).sum() / 2, rel=1e-10)


def test_toy_points_can_be_repeated_alone(toy_run: tuple[Report, Path]) -> None:
    """A sampled KL is that of `sample` with the row's own seed; sampled ones agree with the exact law."""
    _, folder = toy_run
    model, row = joint("toy15"), toy_row(folder, "tau-leaping (exact rule)", "4")
    x = sample(model, TauLeaping(), steps=4, num=5000, seed=int(row["seed"])).x.flatten().numpy()
    histogram = np.bincount(x, minlength=15) / 5000
    assert float(row["kl_mc"]) == pytest.approx(special.rel_entr(model.p0.numpy(), histogram).sum(), rel=1e-10)
    assert float(row["kl_mc_low"]) < float(row["kl_mc"]) < float(row["kl_mc_high"])


def test_toy_fits_use_the_points_above_the_floor(toy_run: tuple[Report, Path]) -> None:
    _, folder = toy_run
    rows, card = rows_of(folder / "toy.csv"), json.loads((folder / "toy.json").read_text())
    for row in rows:
        if row["kl_mc"]:
            assert (row["fitted"] == "True") == (float(row["kl_mc"]) > 5 * card["noise_floor"])
    fits = [fit for fit in card["sampled_fits"] if fit["error"] == "kl_mc"]
    assert fits
    for fit in fits:
        used = [r for r in rows if (r["method"], r["fitted"]) == (fit["method"], "True")]
        assert fit["steps"] == [int(r["steps"]) for r in used]
        slope, _ = np.polyfit(np.log(fit["steps"]), np.log([float(r["kl_mc"]) for r in used]), 1)
        assert fit["slope"] == pytest.approx(slope, rel=1e-9)
        assert fit["low"] <= fit["high"]


def test_toy_text_quotes_the_fits(toy_run: tuple[Report, Path]) -> None:
    report, folder = toy_run
    card = json.loads((folder / "toy.json").read_text())
    for fit in card["sampled_fits"]:
        if fit["method"] in (TAU, RK, MINE) and fit["error"] == "kl_mc":
            assert f"{fit['method']}: slope {fit['slope']:.2f} (95% interval {fit['low']:.2f} to" in flat(report)
    for fit in card["exact_fits"]:
        if fit["method"] in (TAU, RK, MINE) and fit["error"] == "tv_exact":
            assert f"{fit['method']} {fit['slope']:.2f} / " in flat(report)


def imagined(order: dict[str, float], size: dict[str, float] | None = None, tweedie: float = 1e-12) -> Study:
    """Points of solvers whose total variation falls with the given orders, and KL as its square."""
    rows = []
    for method, solver in SOLVERS.items():
        for n in (8, 16, 32, 64):
            power = order.get(method.removesuffix(" (exact rule)"), 1.0)
            tv = tweedie if method == TWEEDIE else (size or {}).get(method, 0.5) * n**-power
            told = {"method": method, "steps": n, "nfe": n * (solver.evaluations or 0)}
            rows.append({**told, "kl_exact": 2 * tv**2, "tv_exact": tv})
    return Study.of("toy", rows)


def told(study: Study) -> str:
    fits = exact_fits(study)
    given = facts(study, fits, []) | {"floor": 0.007, "settings": {"num": 1000, "above": 5.0}}
    return " ".join(describe("toy", study, {}, claims=claims_of(study, fits), **given).split())


def test_toy_words_follow_the_orders() -> None:
    first = told(imagined({}))
    assert "In total variation, theta-Trapezoidal under the paper's rule is first order, like tau-leaping." in first
    assert "a slope of -2 in KL is first order in total variation" in first
    second = told(imagined({MINE: 2.0}))
    assert "theta-Trapezoidal under the paper's rule is second order; tau-leaping is first order." in second
    between = told(imagined({MINE: 1.5}))
    assert "theta-Trapezoidal under the paper's rule is order 1.50; tau-leaping is first order." in between


def test_toy_words_follow_the_contest() -> None:
    # at equal evaluations a two-stage solver has half the steps: 1/2 of the size breaks even at first order
    better = told(imagined({}, {SAFE: 0.2, MINE: 0.4, RK: 0.24}))
    assert f"the lowest KL is that of {SAFE} at 16 to 64; among the paper's three, of {RK}" in better
    assert "tau-leaping at 0 of the 3 budgets compared (16, 32 and 64 evaluations" in better
    assert "lowers the KL of theta-Trapezoidal by 4 times" in better
    assert "raises the KL of theta-RK-2 by 4.3 times" in better
    worse = told(imagined({}, {SAFE: 0.9, EULER: 0.4}))
    assert f"the lowest KL is that of {EULER} at 16 to 64; among the paper's three, of {TAU}" in worse
    assert "tau-leaping at 3 of the 3 budgets compared" in worse
    crossing = told(imagined({MINE: 2.0}, {SAFE: 3.0, MINE: 9.0}))
    assert f"{TAU} at 16 and {SAFE} at 32 to 64" in crossing


def test_toy_words_about_tweedie_need_it_to_be_exact() -> None:
    assert "Tweedie is out of this contest" in told(imagined({}))
    assert "Tweedie is out of this contest" not in told(imagined({}, tweedie=1e-3))


def test_toy_words_without_enough_samples() -> None:
    text = told(imagined({}))
    assert "tau-leaping: too few points for a line" in text
    assert "No sampled point is above 5 times the noise floor" in text


@pytest.mark.parametrize(
    ("slope", "low", "high", "words"),
    [
        (-1.61, -2.1, -1.2, "-1.61 may be that, by its interval."),
        (-1.61, -1.65, -1.5, "-1.61 is not that."),
        (-1.95, -2.6, -1.2, "-1.95 is about that."),
        (-2.6, -2.9, -2.2, "-2.60 may be that, by its interval."),
    ],
)
def test_toy_words_follow_the_interval_of_the_slope(slope: float, low: float, high: float, words: str) -> None:
    study = imagined({})
    sampled = [toy.Fit(MINE, "kl_mc", [8, 16], slope, 0.0, low, high)]
    given = facts(study, exact_fits(study), sampled) | {"floor": 0.007, "settings": {"num": 1000, "above": 5.0}}
    assert words in " ".join(describe("toy", study, {}, claims=[], **given).split())


def test_toy_claims() -> None:
    def verdicts(study: Study) -> list[str]:
        return [claim.verdict for claim in claims_of(study, exact_fits(study))]

    # quadratic; faster than tau-leaping; second order; faster than linear; below theta-RK-2; below tau-leaping
    assert verdicts(imagined({}, {MINE: 0.2})) == ["agrees", "differs", "differs", "agrees", "agrees", "agrees"]
    assert verdicts(imagined({MINE: 2.0}, {MINE: 90.0})) == [
        *["differs", "agrees", "agrees"],
        *["agrees", "differs", "differs"],
    ]
    assert verdicts(imagined({RK: 0.4}))[3:5] == ["differs", "agrees"]


# --- uniformization


@pytest.fixture(scope="module")
def uniformization_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("uniformization")
    return uniformization.run(folder, num=2000, seed=2, progress=False, intervals=16), folder


def test_uniformization_files(uniformization_run: tuple[Report, Path]) -> None:
    report, folder = uniformization_run
    check_files(report, folder, *(f"uniformization.{end}" for end in ("md", "png", "csv", "json")))
    rows, card = rows_of(folder / "uniformization.csv"), json.loads((folder / "uniformization.json").read_text())
    for name in card["settings"]["models"]:
        own = [row for row in rows if row["model"] == name]
        assert [row["stage"] for row in own] == ["start", *["walk"] * 16, "finish"]
        # evaluations add up, and the finish takes one
        assert np.cumsum([float(row["new"]) for row in own]) == pytest.approx([float(r["evaluations"]) for r in own])
        assert float(own[-1]["new"]) == pytest.approx(1)
        found = card["settled"][name]
        spent = {float(row["t"]): float(row["evaluations"]) for row in own}
        end = float(own[-2]["evaluations"])
        assert found["share_after"] == pytest.approx(1 - spent[found["t"]] / end)
        assert f"{100 * found['share_after']:.0f}% of the evaluations were spent afterwards" in flat(report)
        assert f"{name}: {end:.1f} evaluations per sample" in flat(report)


def test_uniformization_rate_is_that_of_the_candidates(uniformization_run: tuple[Report, Path]) -> None:
    """One evaluation per candidate: their number in an interval is Poisson, with a mean the process's ceiling gives.

    Means over 2,000 samples of 32 intervals within 6.5 standard errors: false alarm below 1e-8.
    """
    _, folder = uniformization_run
    for name in uniformization.MODELS:
        model = joint(name)
        own = [row for row in rows_of(folder / "uniformization.csv") if row["model"] == name]
        for before, after in pairwise(own[:-1]):
            high, low = float(before["t"]), float(after["t"])  # -log alpha is t here
            count = math.ceil(math.log(high / low) / math.log(1.2))
            edges = [high * (low / high) ** (n / count) for n in range(count + 1)]
            ceilings = [1 / -math.expm1(-b) - 1 / model.process.states for b in edges[1:]]
            mean = model.length * sum(r * (a - b) for r, a, b in zip(ceilings, edges[:-1], edges[1:], strict=True))
            assert abs(float(after["new"]) - mean) < 6.5 * math.sqrt(mean / 2000)


@pytest.mark.parametrize("name", uniformization.MODELS)
@pytest.mark.parametrize("t", [0.0, 0.3, 2.0])
def test_law_at_is_the_forward_process(name: str, t: float) -> None:
    """Against the matrix exponential of the generator of all positions together."""
    model = joint(name)
    one = np.full((model.process.states,) * 2, 1 / model.process.states) - np.eye(model.process.states)
    kernel = np.ones((1, 1))
    for _ in range(model.length):
        kernel = np.kron(kernel, linalg.expm(t * one))
    expected = model.p0.numpy().flatten() @ kernel
    np.testing.assert_allclose(uniformization.law_at(model, t).flatten().numpy(), expected, rtol=1e-10)


def walk_row(t: float, total: float, value: float, stage: str = "walk", rate: float = 1.0) -> dict[str, Any]:
    told = {"stage": stage, "t": t, "backward": 12 - t, "evaluations": total, "rate": rate}
    return told | {"kl_exact": value, "kl_mc": value}


def test_settled_is_for_good() -> None:
    """The KL comes near its last value, leaves, and comes back: only the return counts."""
    values = [0.5, 0.0104, 0.3, 0.0109, 0.0095, 0.01]
    rows = [walk_row(12 - n, 2.0 * n, v) for n, v in enumerate(values)]
    found = uniformization.settle([*rows, walk_row(0.0, 11.0, 0.0, "finish")], 1e-6)
    assert found["t"] == 9
    assert found["share_after"] == pytest.approx(0.4)
    assert found["kl_mc"] == 0.0109


def test_settled_with_infinite_values() -> None:
    found = uniformization.settle([walk_row(2.0, 0.0, math.inf), walk_row(1.0, 3.0, math.inf)], 1e-6)
    assert found["t"] == 1
    assert found["share_after"] == 0
    assert found["gain"] is None


@pytest.mark.parametrize(
    ("early", "rate", "verdict"), [(1.0, 20.0, "agrees"), (8.0, 20.0, "differs"), (1.0, 5.0, "differs")]
)
def test_uniformization_claims(early: float, rate: float, verdict: str) -> None:
    """Most evaluations must come after the KL has settled, and much faster than at first."""
    rows = [walk_row(12.0, 0.0, 0.5, "start"), walk_row(6.0, early, 0.01), walk_row(1.0, 10.0, 0.01, rate=rate)]
    [claim] = uniformization.claims({"toy15": uniformization.settle(rows, 1e-6)})
    assert claim.verdict == verdict
    assert f"{100 - 10 * early:.0f}% of them after the KL has settled" in claim.found


def test_uniformization_with_hardly_any_samples(tmp_path: Path) -> None:
    """Values that never occur make the KL infinite; everything is still written, and said."""
    report = uniformization.run(tmp_path, num=3, progress=False, intervals=2)
    assert "draw more samples" in flat(report)
    card = json.loads((tmp_path / "uniformization.json").read_text())
    assert card["settled"]["toy15"]["last_kl_mc"] is None


# --- all of them


def test_experiments_are_listed() -> None:
    named = ["toy", "uniformization", "text", "positivity", "theta", "images", "sums", "legacy", "gsm8k", "all"]
    assert list(EXPERIMENTS) == named
    assert EXPERIMENTS["toy"].run is toy.run


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_arguments_are_checked_before_the_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^num=0: "):
        EXPERIMENTS[name].run(tmp_path, num=0)
    with pytest.raises(ValueError, match=r"^seed=-1: "):
        EXPERIMENTS[name].run(tmp_path, seed=-1)


def test_runs_are_repeatable(uniformization_run: tuple[Report, Path], tmp_path: Path) -> None:
    report, folder = uniformization_run
    again = uniformization.run(tmp_path, num=2000, seed=2, progress=False, intervals=16)
    assert again.text == report.text
    assert (tmp_path / "uniformization.csv").read_text() == (folder / "uniformization.csv").read_text()


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail_midway() -> None:
        with replacing(target) as part:
            part.write_text("half")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(target, {"value": math.nan})
    assert target.read_text() == "old"


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    with progress_bar(True, "work to do", 2) as advance:
        advance(1)
    shown = capsys.readouterr()
    assert "work to do" in shown.err
    assert shown.out == ""
    with progress_bar(None, "work to do", 2) as advance:  # no terminal here
        advance(1)
    assert capsys.readouterr().err == ""


# --- words


def test_words() -> None:
    names = [order_name(s) for s in (-1.04, -1.95, -1.5, 0.1)]
    assert names == ["first order", "second order", "order 1.50", "order -0.10"]
    assert number(0.000123) == "0.00012"
    assert [listing(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert runs([(8, "A"), (16, "A"), (32, "B")]) == "A at 8 to 16 and B at 32"
    assert page(["one two", [], ["three four", "five"]], width=7) == "one two\n\n- three\n  four\n- five"
    assert table(["name", "n"], [["a", "10"], ["long name", "5"]]) == (
        "name        n\n---------  --\na          10\nlong name   5"
    )
