"""The demo: what it shows of models whose samples are known, what it measures, and that its words follow."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from tests.reproduction.test_experiments import check_files, flat, joint, rows_of
from tests.reproduction.test_images_experiment import one_of_each, stamps
from tests.reproduction.test_sums_experiment import knowing
from thetaleap import Masked, Multistep, TauLeaping, exact, from_network, load
from thetaleap.control import grids
from thetaleap.evaluation.metrics import kl, noise_floor
from thetaleap.evaluation.metrics.digits import digit_labels
from thetaleap.evaluation.metrics.sequences import Measured
from thetaleap.files import blocks, image_grid
from thetaleap.models import BUILT_IN
from thetaleap.models.hf.masked_lm import Letters
from thetaleap.models.oracles import MarkovChain
from thetaleap.reproduction import Report, demo
from thetaleap.reproduction.demo import AUTO, MINE, OTHERS, chain_facts, draw, pair_kl, sums_facts
from thetaleap.reproduction.pages import flow, render
from thetaleap.reproduction.study import Row, Study, shown
from thetaleap.reproduction.study import row as made
from thetaleap.training.sums import Problem, problems

LINE = "to be, or not to be "


def reciting() -> Any:
    """A model of one text alone."""
    words = Letters("".join(sorted(set(LINE))))
    known = torch.nn.functional.one_hot(torch.tensor(words.encode(LINE * 5)), len(words.alphabet)) * 100.0

    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return known.expand(len(x), -1, -1)

    process = Masked(len(words.alphabet))
    return from_network(process, length=len(LINE) * 5, network=network, time_free=True, tokenizer=words)


@pytest.fixture(scope="module")
def small_models() -> Iterator[None]:
    """Models whose samples are known, in place of those that come with the package."""
    models = {"shakespeare": reciting(), "mnist": stamps(one_of_each()), "sums": knowing(num=8, seed=3)}
    with pytest.MonkeyPatch.context() as patch:
        for name, model in models.items():
            patch.setitem(BUILT_IN, name, replace(BUILT_IN[name], make=lambda model=model: model))
        yield


@pytest.fixture(scope="module")
def demo_run(small_models: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("demo")
    return demo.run(folder, seed=3, progress=False, num=100, budgets=(4, 8), curve_budgets=(4, 16)), folder


def test_demo_files(demo_run: tuple[Report, Path]) -> None:
    report, folder = demo_run
    check_files(report, folder, "digits.png", "convergence.png", "convergence.csv", "chain64.csv", "toy15.csv")
    assert "convergence.png" in report.text
    assert str(folder) in report.text.replace("\n", "")
    for row in rows_of(folder / "chain64.csv"):
        assert row["nfe"] in ("", "4", "8", "16")
        for name in ("excess", "pair_kl"):
            told = shown({key: float(row[key]) for key in (name, f"{name}_se")}, name)
            assert row["nfe"] == "16" or told in report.text
        assert not row["nfe"] or float(row["evaluations"]) <= int(row["nfe"])


def test_demo_shows_samples(demo_run: tuple[Report, Path]) -> None:
    """A text that appears, the digits as asked for, and a sum with its answer."""
    report, folder = demo_run
    stages = re.findall(r"After (\d+) evaluations:\n\n    (.+)\n", report.text)
    assert [int(nfe) for nfe, _ in stages] == [8, 16, 32]
    assert stages[-1][1] == (LINE * 5).rstrip()
    for (_, before), (_, after) in pairwise(stages):
        assert all(a in (b, "·") for a, b in zip(before, after.ljust(100), strict=False))
        assert before.count("·") > after.count("·")
    shown, expected = one_of_each(), digit_labels(one_of_each()).tolist()
    seen = sum(n == label for n, label in enumerate(expected))
    assert f"sees what was asked for in {seen} of 10" in flat(report)
    grey = shown.view(10, 1, 14, 14) / 7
    for line in blocks(grey, 5).split("\n"):
        assert f"    {line}".rstrip() in report.text.split("\n")
    pixels = imread(folder / "digits.png")[:, :, :3] * 255
    np.testing.assert_array_equal(pixels.round(), image_grid(grey, 5).numpy())
    first = problems(8, 3, held_out=True)[0]
    assert "8 of 8 came out right; the first of these:" in flat(report)
    assert f"{first.question} {first.answer}" in flat(report)


def test_demo_tells_of_wrong_sums() -> None:
    def said(solved: list[tuple[Problem, str]]) -> str:
        return " ".join(flow(render("demo_sums.j2", **sums_facts(solved)), 100).split())

    one, two = problems(2, held_out=True)
    wrong = "1 + 1 = 3. #### 0"
    none = said([(one, wrong), (two, wrong)])
    assert f"0 of 2 came out right; this one should be {one.result}: {one.question}" in none
    assert f"1 of 2 came out right; the first of these: {two.question}" in said([(one, wrong), (two, two.answer)])


def test_demo_without_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(BUILT_IN["shakespeare"], make=lambda: load(f"trained:{tmp_path / 'none'}"))
    monkeypatch.setitem(BUILT_IN, "shakespeare", absent)
    wanted = r"^model='shakespeare': is not in this copy of thetaleap \(source=.*none.*\); install it anew$"
    with pytest.raises(ValueError, match=wanted):
        demo.run(tmp_path / "out", progress=False)


def test_demo_numbers(demo_run: tuple[Report, Path]) -> None:
    """True and exact samples are near 0 (6 standard errors: 2e-9 each); laws are those of `exact`."""
    _, folder = demo_run
    rows = {row["method"]: row for row in rows_of(folder / "chain64.csv") if not row["nfe"]}
    for name in ("true samples", "first-hitting"):
        assert abs(float(rows[name]["excess"])) < 6 * float(rows[name]["excess_se"])
    model = joint("cube3-uniform")
    grid = grids.alpha_power(model.process.schedule)
    found = {(r["method"], r["nfe"]): float(r["kl_exact"]) for r in rows_of(folder / "convergence.csv")}
    for name, solver in (("tau-leaping", TauLeaping("reject")), ("auto", Multistep())):
        law = exact.law(model, solver, grid(6.0, 0.0, 4))  # four steps to time 0, and nothing left to finish
        assert found[name, "4"] == pytest.approx(kl(model.p0, law), rel=1e-10)
    assert {name for name, _ in found} == {"auto", *OTHERS}
    assert MINE in OTHERS


def test_demo_figure() -> None:
    """Six lines with their names beside them; the title's ratios are those of the numbers."""
    budgets = (4, 8)

    def study(name: str, paper: float, auto: float) -> Study:
        sizes = dict.fromkeys(OTHERS, 1.0) | {MINE: paper, AUTO: auto}
        return Study.of("demo", [made(one, nfe=nfe, **{name: v / nfe}) for nfe in budgets for one, v in sizes.items()])

    figure = draw(study("pair_kl", 6.0, 0.02), study("kl_exact", 0.9, 0.3), floor=0.001)
    assert figure.get_suptitle().strip() == (
        "At 8 evaluations auto's error is 300 times below the paper's with masks, 3.0 times without"
    )
    for panel in figure.axes:
        assert len(panel.containers) == 6
        assert {"auto, the default here", f"{MINE}, the paper's", "tau-leaping"} <= {
            text.get_text() for text in panel.texts
        }


def test_demo_pairs() -> None:
    """The true law of pairs is that of true samples, and a constant sequence is far from it."""
    model = load("chain64")
    assert isinstance(model, MarkovChain)
    found = pair_kl(model, model.draw(3000, seed=1))
    assert 0 < found.value < 4 * noise_floor(256, 3000 * 63)
    assert 0 < found.error < found.value
    found = pair_kl(model, torch.zeros((5, 64), dtype=torch.int64))
    expected = -math.log(float(model.initial[0] * model.transition[0, 0]))
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.error == pytest.approx(0, abs=1e-12)


def test_demo_words_follow_the_numbers() -> None:
    def row(method: str, nfe: int | None, excess: float, pairs: float) -> Row:
        figures = {"excess": Measured(excess, 0.01), "pair_kl": Measured(pairs, 0.01)}
        return made(method, [8, 8], model="chain64", nfe=nfe, **figures)

    def said(rows: list[Row]) -> str:
        return " ".join(flow(render("demo_chain.j2", num=100, **chain_facts(Study.of("demo", rows))), 100).split())

    rows = [
        row("first-hitting", None, 0.02, 0.0),
        row("A", 8, 0.5, 0.10),
        row("B", 8, 0.1, 0.12),
        row("C", 8, -0.4, 0.9),
    ]
    text = said(rows)
    assert "lowest pair KL: A, indistinguishable from B; excess nearest to 0: B." in text
    assert "its excess is within 3 standard errors of 0" in text
    assert "too similar: C at 8 (pair KL 0.9)." in text
    text = said([row("first-hitting", None, 0.2, 0.0), *rows[1:3]])
    assert "its excess is not within 3 standard errors of 0" in text
    assert "too similar:" not in text
