"""`compare` against the same numbers worked out directly: exact laws, likelihoods, pairs; words and files.

Its ranks are in test_ranks.py, and what it says without knowing the truth in test_reference.py.
"""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests.cases import dirichlet
from thetaleap.control import Method, grids
from thetaleap.evaluation import yardsticks as quality
from thetaleap.evaluation.compare import (
    ROUNDING,
    Comparison,
    Contender,
    Row,
    compare,
    default_contenders,
    rank,
    surely_smaller,
)
from thetaleap.evaluation.metrics import frequencies, histogram, kl, total_variation
from thetaleap.evaluation.metrics.measured import Scattered
from thetaleap.evaluation.metrics.paired import token_entropy
from thetaleap.evaluation.report import draw, verdicts
from thetaleap.sampling import plan

NUM = 400
QUICK: dict[str, Method] = {
    "tweedie": tl.Tweedie(),
    "trapezoidal": tl.Trapezoidal(),
    "low-discrepancy": tl.Tweedie(tl.LowDiscrepancy()),
    # warm, as ties between positions would be broken by rounding without
    "confidence": tl.Tweedie(tl.Confidence(randomness=0.3)),
    "first-hitting": tl.FirstHitting(),
}

SHOWN = (
    "tweedie",
    "trapezoidal",
    "multistep",
    "fixed-count",
    "low-discrepancy",
    "confidence",
    "semi-autoregressive",
    "first-hitting",
)
CUBE = {
    name: one.at(tl.load("cube3"), 4)[0] for name, one in default_contenders(tl.load("cube3")).items() if name in SHOWN
}


def chain(length: int = 12, states: int = 4) -> tl.oracles.MarkovChain:
    """A short chain whose neighbours matter."""
    sharp = torch.stack([dirichlet(n, (states,), 0.5) for n in range(states)])
    return tl.oracles.markov_chain(0.95 * sharp + 0.05 / states, length=length)


@pytest.fixture(scope="module")
def cube() -> Comparison:
    return compare(tl.load("cube3"), CUBE, [2, 4], num=50, progress=False)


@pytest.fixture(scope="module")
def chained() -> Comparison:
    return compare(chain(), QUICK, [1, 3], num=NUM, seed=5, progress=False)


def find(comparison: Comparison, contender: str, budget: int | None) -> Row:
    (row,) = [row for row in comparison.rows if (row.contender, row.budget) == (contender, budget)]
    return row


# --- contenders


def test_default_contenders_fit_the_process() -> None:
    masked, moving = (default_contenders(tl.load(name)) for name in ("cube3", "cube3-uniform"))
    first = ["euler", "tau-leaping", "tweedie", "rk2", "trapezoidal", "trapezoidal-paper", "exponential-trapezoidal"]
    first += ["multistep", "adams-bashforth"]
    revising = ["wino", "joint-threshold", "punt"]
    planned = ["fixed-count", "low-discrepancy", "dilated", "confidence", "margin-confidence", "entropy-confidence"]
    planned += ["entropy-bounded", "threshold", "factor", "klass"]
    decoders = ["parallel-decoding", "semi-autoregressive", "first-hitting", "exact"]
    assert list(masked) == ["auto", *first, "corrected", "remdm", *revising, *planned, *decoders]
    assert list(moving) == ["auto", *first, "corrected", "psi", "uniformization"]
    assert all(one.grid is None for one in masked.values())
    grid = moving["tweedie"].grid
    assert grid is not None
    schedule = tl.load("cube3-uniform").process.schedule
    assert torch.equal(grid(6.0, 0.0, 5), grids.alpha_power(schedule, 2.0)(6.0, 0.0, 5))
    assert moving["exponential-trapezoidal"].solver == tl.ExponentialTrapezoidal(extrapolation="logit")


def test_default_contenders_in_the_plane_and_of_long_sequences() -> None:
    assert default_contenders(tl.load("ising4x16"))["low-discrepancy-2d"].solver == tl.Tweedie(
        tl.LowDiscrepancy((4, 16))
    )
    assert "first-hitting" not in default_contenders(chain(length=200))


def test_contenders_as_text_as_solvers_and_by_name() -> None:
    model = tl.load("cube3-uniform")
    given = {
        "a": tl.Tweedie(),
        "b": "auto",
        "c": "tweedie",
        "d": "Multistep(weight=0.25)",
        "e": Contender(tl.Tweedie()),
    }
    got = compare(model, given, [2], num=5, progress=False)
    rows = {row.contender: row for row in got.rows}
    assert rows["a"].figures["kl"].value == rows["c"].figures["kl"].value != rows["e"].figures["kl"].value
    assert rows["b"].solver == "Multistep()"
    assert rows["d"].solver == "Multistep(weight=0.25)"
    advice = tl.recommend(model, 2)
    law = tl.exact.law(model, advice.solver, plan(model, advice.solver, nfe=2, grid=advice.grid))
    assert rows["b"].figures["kl"].value == pytest.approx(kl(model.p0, law), rel=1e-9)
    texts = compare(model, ["auto", "tweedie"], [2], num=5, progress=False)
    assert [row.contender for row in texts.rows] == ["auto", "tweedie"]


# --- exact laws


def test_exact_figures_are_those_of_the_law(cube: Comparison) -> None:
    model = tl.load("cube3")
    assert cube.kind == "exact"
    for name, solver in CUBE.items():
        budget = None if solver.evaluations is None else 4
        law = tl.exact.law(model, solver, plan(model, solver, nfe=budget))
        figures = find(cube, name, budget).figures
        assert figures["kl"].value == pytest.approx(kl(model.p0, law), rel=1e-9, abs=1e-15)
        assert figures["tv"].value == pytest.approx(total_variation(model.p0, law), rel=1e-9, abs=1e-15)
        assert len({figures["kl"].value, *figures["kl"].interval()}) == 1  # nothing is random


def test_exact_figures_on_the_grid_of_the_contender() -> None:
    model = tl.load("cube3-uniform")
    wanted = ("euler", "tweedie", "exponential-trapezoidal")
    contenders = {name: one for name, one in default_contenders(model).items() if name in wanted}
    got = compare(model, contenders, [2], num=20, progress=False)
    for name, contender in contenders.items():
        solver, _ = contender.at(model, 2)
        times = plan(model, solver, nfe=2, grid=grids.alpha_power(model.process.schedule, 2.0))
        expected = kl(model.p0, tl.exact.law(model, solver, times))
        assert find(got, name, 2).figures["kl"].value == pytest.approx(expected, rel=1e-9)
    order = sorted(got.rows, key=lambda row: row.figures["kl"].value)
    assert got.rows == order
    assert [str(row.rank) for row in order] == ["1", "2", "3"]


def test_true_law_is_that_of_the_model() -> None:
    model = tl.load("cube3")
    assert torch.allclose(quality.true_law(model), model.p0, rtol=1e-13)
    short = chain(length=3)
    assert float(quality.true_law(short).sum()) == pytest.approx(1, rel=1e-12)


def test_exact_samplers_share_the_first_place(cube: Comparison) -> None:
    """One position at a time is exact: with 4 evaluations for 3 positions, these differ by rounding alone."""
    alone = ("fixed-count", "low-discrepancy", "multistep")
    ranks = [find(cube, name, 4).rank for name in alone]
    assert ranks[0] is not None
    assert len(set(ranks)) == ranks[0].best == 1
    assert ranks[0].worst >= len(alone)
    assert find(cube, "first-hitting", None).rank is None
    assert find(cube, "first-hitting", None).figures["kl"].value < ROUNDING
    assert "are within error of it" in " ".join(cube.text().partition("At 4 evaluations")[2].split())


def test_impossible_budgets_get_a_reason(cube: Comparison) -> None:
    row = find(cube, "trapezoidal", 2)
    assert row.reason.startswith("nfe=2: Trapezoidal takes 2 per step")
    assert (row.nfe, row.figures, row.rank) == (None, {}, None)
    assert find(cube, "semi-autoregressive", 2).reason == "nfe=2: Blocks takes 1 per step: give at least 3"
    ran = [row for row in cube.rows if row.budget == 2 and not row.reason]
    assert {row.rank.worst for row in ran if row.rank} <= set(range(1, len(ran) + 1))
    assert "No numbers for trapezoidal at 2:" in cube.text()


def test_nobody_can_be_run() -> None:
    got = compare(tl.load("cube3"), {"rk2": Contender(tl.RK2())}, [1], num=5, progress=False)
    assert "No contender could be run." in got.text()


def test_lost_support_is_infinite_and_said_to_be(tmp_path: Path) -> None:
    infinite = Scattered(math.inf)
    both = [Row(name, 4, name, 4.0, 1.0, {"kl": infinite}) for name in ("a", "b")]
    rows = rank(both, ["kl"])
    assert [str(row.rank) for row in rows] == ["1-2", "1-2"]
    finite = Row("c", 4, "c", 4.0, 1.0, {"kl": Scattered(9.0)})
    assert [str(row.rank) for row in rank([*both, finite], ["kl"])] == ["1", "2-3", "2-3"]
    settings = {"model": "m", "process": "p", "length": 1, "states": 2, "num": 3, "seed": 0}
    got = Comparison(rows, "exact", ("kl",), "", dict(settings))
    assert "Infinite" in got.text()
    _, path, _ = got.save(tmp_path)
    assert json.loads(path.read_text())["rows"][0]["kl"] == "inf"


# --- Monte Carlo


def drawn(contender: str, budget: int | None) -> Tensor:
    return tl.sample(chain(), QUICK[contender], nfe=budget, num=NUM, seed=5).x


@pytest.mark.parametrize(("name", "budget"), [("tweedie", 3), ("confidence", 3), ("first-hitting", None)])
def test_excess_is_that_of_the_samples(chained: Comparison, name: str, budget: int | None) -> None:
    model, x = chain(), drawn(name, budget)
    excess = (-model.log_prob(x) - model.entropy()) / model.length
    got = find(chained, name, budget).figures["excess"]
    assert got.value == pytest.approx(float(excess.mean()), rel=1e-12)
    half = 1.959964 * float(excess.std()) / math.sqrt(NUM)
    low, high = got.interval()
    assert (low, high) == pytest.approx((got.value - half, got.value + half), rel=1e-6)
    assert chained.level == 1 - 0.05 / (2 * math.comb(len(QUICK), 2))
    least, most = got.interval(chained.level)
    assert least < low < high < most


def test_pair_kl_is_that_of_the_samples_less_its_bias(chained: Comparison) -> None:
    model, x = chain(), drawn("tweedie", 1)
    truth = model.starts[:-1].mean(0).unsqueeze(1) * model.transition
    pairs = torch.stack([x[:, :-1].flatten(), x[:, 1:].flatten()], 1)
    plain = kl(frequencies(histogram(pairs, 4)), truth)
    got = find(chained, "tweedie", 1).figures["pair_kl"]
    assert got.interval()[0] < plain < got.interval()[1]
    assert 0 < plain - got.value < 3 * 15 / (2 * NUM * 11)  # the bias for independent pairs, within a factor of a few


def test_an_exact_sampler_is_not_told_from_the_truth(chained: Comparison) -> None:
    """Within six standard errors: by chance less than one failure in a million. It catches a wrong entropy, law of
    pairs or scale."""
    for name, one in find(chained, "first-hitting", None).figures.items():
        low, high = one.interval()
        assert abs(one.value) < 6 * (high - low) / (2 * 1.96), name


def test_samples_too_alike_are_named(chained: Comparison) -> None:
    """Confidence keeps what is likely: one of the pair and entropy figures must give it away."""
    row = find(chained, "confidence", 3)
    assert row.figures["entropy_gap"].interval(chained.level)[1] < 0
    assert surely_smaller(find(chained, "low-discrepancy", 3).figures["pair_kl"], row.figures["pair_kl"], chained.level)


def test_pairs_from_true_samples_agree_with_the_exact_law() -> None:
    """The wrapped chain hides its table, so that true samples take its place."""
    model = chain()
    hidden = tl.oracles.noisy(model, 0.0)
    one = {"tweedie": Contender(tl.Tweedie())}
    known, sampled = (compare(m, one, [1], num=NUM, progress=False).rows[0].figures for m in (model, hidden))
    assert known["excess"].value == sampled["excess"].value
    assert sampled["pair_kl"].value == pytest.approx(known["pair_kl"].value, rel=0.1)
    low, high = sampled["pair_kl"].interval()
    assert high - low > 0


def test_neighbours_in_the_plane() -> None:
    first, second = quality.neighbours(tl.oracles.ising(2, 3, coupling=0.4))
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    assert pairs == {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}


def test_token_entropy_of_known_samples() -> None:
    x = torch.tensor([[0, 0, 1, 1], [2, 2, 2, 2], [0, 1, 2, 3]])
    expected = torch.tensor([math.log(2), 0, math.log(4)], dtype=torch.float64)
    assert torch.allclose(token_entropy(x), expected)


# --- words and files


def test_the_text_follows_from_the_numbers(chained: Comparison) -> None:
    text = chained.text()
    assert text.startswith("At 1 evaluation ")
    assert "At 3 evaluations low-discrepancy is best; " in text
    behind = abs(find(chained, "tweedie", 3).figures["excess"].value) - abs(
        find(chained, "low-discrepancy", 3).figures["excess"].value
    )
    assert f"tweedie is {behind:.2g} nats per token behind." in " ".join(text.split())
    assert "* trapezoidal: takes 2 per step and one to finish." not in text  # 3 are spent of 3
    assert "Bonferroni" in text
    for row in chained.rows:
        assert row.contender in text
        if row.figures:
            assert f"{row.figures['pair_kl'].value:.3g}" in text


def test_words_and_title_agree_where_nobody_is_ahead() -> None:
    got = compare(chain(), {"one": tl.Tweedie(), "other": tl.Tweedie()}, [2, 3], num=20, progress=False)
    assert verdicts(got)[0] == "At 2 evaluations all are within error of each other."
    assert draw(got).get_suptitle().strip() == "Nearest to the truth: nobody surely at 2 to 3 evaluations"


def test_files_agree_with_the_rows(chained: Comparison, tmp_path: Path) -> None:
    table, record, picture = chained.save(tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [table.name, record.name, picture.name]
    assert picture.read_bytes().startswith(b"\x89PNG")
    data = json.loads(record.read_text())
    lines = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert data["settings"]["version"] == tl.__version__
    assert (data["settings"]["num"], data["settings"]["seed"], data["settings"]["budgets"]) == (NUM, 5, [1, 3])
    assert data["settings"]["contenders"]["tweedie"]["grid"] == "uniform"
    assert len(data["rows"]) == len(lines) == len(chained.rows)
    for row, kept, line in zip(chained.rows, data["rows"], lines, strict=True):
        assert (kept["contender"], kept["budget"], kept["reason"]) == (row.contender, row.budget, row.reason)
        for name, value in kept.items():
            assert line[name] == ("" if value is None else str(value))
        for name, one in row.figures.items():
            assert (kept[name], kept[f"{name}_low"], kept[f"{name}_high"]) == (one.value, *one.interval())
        place = (None, None) if row.rank is None else (row.rank.best, row.rank.worst)
        assert (kept["rank"], kept["rank_worst"]) == place


def test_a_run_can_be_repeated(chained: Comparison) -> None:
    again = compare(chain(), QUICK, [3, 1, 3], num=NUM, seed=5, progress=False)
    for one, other in zip(again.rows, chained.rows, strict=True):
        assert one.contender == other.contender
        for name, figure in one.figures.items():  # equal but for the rounding of sums
            same = other.figures[name]
            for level in (0.95, again.level):
                assert (figure.value, *figure.interval(level)) == pytest.approx(
                    (same.value, *same.interval(level)), rel=1e-9
                )
    assert [row.rank for row in again.rows] == [row.rank for row in chained.rows]


@pytest.mark.parametrize(
    ("contenders", "budgets", "num", "match"),
    [
        ({}, [4], 10, "contenders"),
        (QUICK, [], 10, "budgets"),
        (QUICK, [0], 10, r"budgets\[0\]"),
        (QUICK, [4], 2, "num"),
        (["tweedy"], [4], 9, "contenders='tweedy': did you mean 'tweedie'"),
        ({"a": "Tweedy()"}, [4], 9, r"contenders\['a'\]='Tweedy\(\)': the name='Tweedy': did you mean 'Tweedie'"),
    ],
)
def test_arguments_are_checked(contenders: Any, budgets: list[int], num: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        compare(tl.load("cube3"), contenders, budgets, num=num)


def test_exact_samples_take_rounds_and_no_budget(tmp_path: Path) -> None:
    """One position at a time is exact, whatever the order; rounds are a column, and evaluations where nothing is guessed."""
    found = compare(tl.load("cube3"), ["tweedie", "exact", "first-hitting"], [2, 3], num=50, progress=False)
    by_name = {(row.contender, row.budget): row for row in found.rows}
    exact, first = by_name["exact", None], by_name["first-hitting", None]
    assert exact.figures["kl"].value < 1e-9
    assert (exact.nfe, first.nfe, first.rounds) == (3, 3, 3)
    assert exact.rounds is not None
    assert exact.rounds < 3
    assert by_name["tweedie", 2].rounds == by_name["tweedie", 2].nfe
    assert re.search(r"^contender +budget +rank +nfe +rounds ", found.text(), re.M)
    found.save(tmp_path)
    with (tmp_path / "comparison.csv").open() as file:
        rows = {row["contender"]: row for row in csv.DictReader(file)}
    assert float(rows["exact"]["rounds"]) == exact.rounds
