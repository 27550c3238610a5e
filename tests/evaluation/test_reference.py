"""Comparing without the truth: statistics against brute force and closed forms, and against the truth where it is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests.cases import dirichlet
from thetaleap.evaluation.compare import Comparison, compare, default_contenders, default_num, evaluations
from thetaleap.evaluation.metrics.likelihood import evidence_bound
from thetaleap.evaluation.metrics.paired import Cells, overlap, pair_cells, paired_distance, token_cells, token_entropy
from thetaleap.models.tokenizers import Letters


def tokens(seed: int, *shape: int, states: int = 3) -> Tensor:
    return torch.randint(states, shape, generator=torch.Generator().manual_seed(seed))


# --- the model's own bound


MODELS = {
    "masked": tl.load("cube3"),
    "uniform": tl.load("cube3-uniform"),
    "birth-death": tl.oracles.joint(tl.load("cube3").p0, tl.RateMatrix.birth_death(3)),
    "geometric": tl.oracles.joint(tl.load("cube3").p0, tl.Uniform(3, tl.Geometric(1e-6))),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_bound_of_exact_conditionals_is_the_likelihood(name: str) -> None:
    """The mean of 100 estimates of each of 27 sequences, within six standard errors (27 false alarms in 5e8 for each
    model); it catches a wrong weight, time or kernel. The last noise differs from the prior by less than 1e-4 nats."""
    model = MODELS[name]
    x = torch.cartesian_prod(*[torch.arange(3)] * 3)
    each = evidence_bound(model, x.repeat(100, 1), draws=10, seed=1, batch_size=2700).view(100, 27)
    error = each.std(0) / math.sqrt(100)
    assert float(error.max()) < 0.1
    assert bool(((each.mean(0) + model.log_prob(x)).abs() < 6 * error + 1e-4).all())


def test_the_bound_depends_on_the_row_and_not_on_batches() -> None:
    model, x = tl.load("chain64"), tl.load("chain64").draw(20, 3)
    whole = evidence_bound(model, x, draws=2, seed=1)
    assert torch.equal(whole, evidence_bound(model, x, draws=2, seed=1, batch_size=7))
    assert torch.equal(whole[:5], evidence_bound(model, x[:5], draws=2, seed=1))
    assert not torch.equal(whole, evidence_bound(model, x, draws=2, seed=2))


def test_shared_draws_make_differences_precise() -> None:
    """Sequences that differ at one position, on the same draws: their difference scatters less than half as much as on
    others."""
    model = tl.load("chain64")
    x = model.draw(100, 3)
    y = x.clone()
    y[:, 30] = (y[:, 30] + 1) % 16
    paired = evidence_bound(model, y, draws=4, seed=1) - evidence_bound(model, x, draws=4, seed=1)
    others = evidence_bound(model, y, draws=4, seed=1) - evidence_bound(model, x, draws=4, seed=2)
    assert float(paired.std()) < 0.5 * float(others.std())


# --- frequencies


def features(x: Tensor, cells: Cells, states: int) -> Tensor:
    """One-hot, pooled within groups, scaled so that the squared distance is the mean over groups."""
    groups = int(cells.group.max()) + 1
    size = states ** len(cells.places)
    found = torch.zeros((len(x), groups, size), dtype=torch.float64)
    for n, row in enumerate(x.tolist()):
        for m, group in enumerate(cells.group.tolist()):
            value = 0
            for place in cells.places:
                value = value * states + row[int(place[m])]
            found[n, group, value] += 1 / int((cells.group == group).sum())
    return found.flatten(1) / math.sqrt(groups)


CELLS = {
    "tokens of a line": token_cells(6, (6,)),
    "tokens": token_cells(6, None),
    "pairs of a line": pair_cells(6, (6,)),
    "pairs of a plane": pair_cells(6, (2, 3)),
    "pairs": pair_cells(6, None),
}


@pytest.mark.parametrize("name", CELLS)
def test_distances_are_those_of_all_pairs_of_samples(name: str) -> None:
    x, y, cells = tokens(1, 9, 6), tokens(2, 9, 6), CELLS[name]
    gap = features(x, cells, 3) - features(y, cells, 3)

    def mean(some: Tensor) -> float:
        products = some @ some.T
        return float(products.sum() - products.trace()) / (len(some) * (len(some) - 1))

    got = paired_distance(x, y, cells, 3)
    assert got.value == pytest.approx(mean(gap), rel=1e-12, abs=1e-15)
    without = torch.tensor([mean(torch.cat([gap[:n], gap[n + 1 :]])) for n in range(9)], dtype=torch.float64)
    assert got.error == pytest.approx(math.sqrt(8 / 9 * float((without - without.mean()).square().sum())), rel=1e-9)
    assert paired_distance(x, x, cells, 3).value == 0


def test_distances_have_no_bias_however_pairs_depend_on_each_other() -> None:
    """Bits of probability 0.5 and 0.7 from the same numbers: the squared distance is 2 * 0.2^2. The mean of 1000
    estimates from 10 samples, within six standard errors; with the products of a sample with itself it would be 0.04 more."""
    u = torch.rand((1000, 10, 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    each = [paired_distance((one < 0.5).long(), (one < 0.7).long(), token_cells(1, None), 2).value for one in u]
    values = torch.tensor(each, dtype=torch.float64)
    error = float(values.std()) / math.sqrt(1000)
    assert error < 0.005
    assert abs(float(values.mean()) - 0.08) < 6 * error


def test_pairs_lie_as_the_shape_says() -> None:
    def found(cells: Cells) -> dict[int, set[tuple[int, int]]]:
        both = zip(cells.group.tolist(), *(place.tolist() for place in cells.places), strict=True)
        groups: dict[int, set[tuple[int, int]]] = {}
        for group, *pair in both:
            groups.setdefault(group, set()).add((pair[0], pair[1]))
        return groups

    line = found(pair_cells(9, (9,)))
    assert [{b - a for a, b in pairs} for pairs in line.values()] == [{1}, {2}, {4}]
    assert [len(pairs) for pairs in line.values()] == [8, 7, 5]
    plane = found(pair_cells(6, (2, 3)))
    assert list(plane.values()) == [
        {(0, 1), (1, 2), (3, 4), (4, 5)},
        {(0, 3), (1, 4), (2, 5)},
        {(0, 4), (1, 5)},
        {(1, 3), (2, 4)},
    ]
    assert len(found(pair_cells(6, None))) == 15
    assert {b - a for pairs in found(pair_cells(100, None)).values() for a, b in pairs} == {1, 2, 4, 8, 16, 32, 64}


def test_overlap_is_that_of_sets() -> None:
    x, y = tokens(3, 7, 20), tokens(4, 7, 20)

    def grams(row: list[int]) -> list[tuple[int, ...]]:
        return [tuple(row[n : n + 4]) for n in range(17)]

    def share(row: list[int], n: int) -> float:
        others = {gram for m, other in enumerate(y.tolist()) if m != n for gram in grams(other)}
        return sum(gram in others for gram in grams(row)) / 17

    expected = [share(a, n) - share(b, n) for n, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True))]
    assert overlap(x, y, 4).value == pytest.approx(sum(expected) / 7, rel=1e-12)


# --- against the truth


def chain() -> Any:
    sharp = torch.stack([dirichlet(n, (4,), 0.5) for n in range(4)])
    return tl.oracles.markov_chain(0.95 * sharp + 0.05 / 4, length=12)


PARTS = dirichlet(2, (3, 8, 3), 0.3)
ORACLES: dict[str, tuple[Any, int, int]] = {
    "chain": (chain(), 3, 5),
    "ising": (tl.oracles.ising(3, 4, coupling=0.44), 3, 3),
    "mixture": (tl.oracles.mixture(dirichlet(1, (3,)), PARTS / PARTS.sum(-1, keepdim=True)), 3, 3),
    "tree": (tl.load("tree31"), 4, 5),
    "joint": (tl.oracles.joint(dirichlet(5, (3, 3, 3), 0.3), tl.Masked(3)), 3, 5),
    "uniform": (tl.oracles.joint(dirichlet(5, (3, 3, 3), 0.3), tl.Uniform(3)), 4, 3),
}
"""Models, budgets, and how many ranks must be found at least."""
CONTENDERS = ["tweedie", "multistep", "trapezoidal-paper", "rk2", "low-discrepancy", "confidence"]


@pytest.mark.parametrize("name", ORACLES)
def test_ranks_without_the_truth_agree_with_it(name: str) -> None:
    """Wherever both are sure who of two is better, they are sure of the same: intervals of 95% for all pairs at once on both
    sides, so that a chance failure takes two opposite errors at once. `least` ranks must be found: it is no empty claim."""
    (model, budget, least), num = ORACLES[name], 400 if name == "joint" else 200
    some = [one for one in CONTENDERS if one in default_contenders(model, every=True)]
    true = compare(model, some, [budget], num=num, seed=2, progress=False)
    blind = compare(model, some, [budget], num=num, seed=2, reference="model", progress=False)
    assert (true.kind, blind.kind) == ("exact" if name in ("joint", "uniform") else "oracle", "reference")
    told, known = (relations(one) for one in (blind, true))
    assert not {(b, a) for a, b in told} & known
    assert len(told & known) >= least


def relations(comparison: Comparison) -> set[tuple[str, str]]:
    """Who is surely better than whom."""
    ran = [row for row in comparison.rows if row.figures]
    return {(a.contender, b.contender) for a in ran for b in ran if comparison.better(a, b)}


def test_the_gap_is_the_excess_where_conditionals_are_exact() -> None:
    """Within six standard errors of the difference (a false alarm below 1e-8); the errors are small beside the gap."""
    model = chain()
    (row,) = compare(model, ["tweedie"], [2], num=400, seed=3, reference="model", progress=False).rows
    x, y = tl.sample(model, tl.Tweedie(), nfe=2, num=400, seed=3).x, model.draw(20000, 1)
    gap = (-model.log_prob(x).mean() + model.log_prob(y).mean()) / 12
    assert abs(row.figures["nll"].value - float(gap)) < 6 * row.figures["nll"].error < 0.6 * float(gap)


# --- networks


def network(process: Any, length: int = 6, **more: Any) -> Any:
    """Values follow their left neighbour, more or less."""
    states, table = (
        process.states,
        3 * torch.randn((process.states + 1, process.states), generator=torch.Generator().manual_seed(2)),
    )

    def logits(x: Tensor, t: Tensor) -> Tensor:
        return table[torch.cat([torch.full((len(x), 1), states), x[:, :-1].clamp(max=states)], 1)]

    return tl.from_network(process, length=length, network=logits, shape=(length,), **more)


@pytest.fixture(scope="module")
def masked() -> Comparison:
    model = network(tl.Masked(5), tokenizer=Letters("abcde"), time_free=True)
    return compare(model, None, [2, 6], num=60, seed=1, progress=False)


def test_a_network_is_compared_with_exact_samples_of_itself(masked: Comparison) -> None:
    model = network(tl.Masked(5), time_free=True)
    assert (masked.kind, masked.ranking) == ("reference", ("nll", "pairs", "tokens"))
    names = ["auto", "tweedie", "exponential-trapezoidal", "multistep", "trapezoidal-paper", "low-discrepancy"]
    assert set(masked.settings["contenders"]) == {*names, "parallel-decoding", "semi-autoregressive"}  # pyright: ignore[reportArgumentType]
    alone = tl.recommend(model, 6)
    assert masked.reference is not None
    assert torch.equal(masked.reference, tl.sample(model, alone.solver, grid=alone.grid, nfe=6, num=60, seed=1).x)
    at_six = {row.contender: row for row in masked.rows if row.budget == 6}
    # the same seed, order and numbers: one position at a time is the reference itself
    assert all(one.value == one.error == 0 for one in at_six["auto"].figures.values())
    drawn = tl.sample(model, tl.Tweedie(), nfe=2, num=60, seed=1).x
    gap = token_entropy(drawn) - token_entropy(masked.reference)
    (row,) = [row for row in masked.rows if (row.contender, row.budget) == ("tweedie", 2)]
    assert row.figures["entropy_gap"].value == pytest.approx(float(gap.mean()))
    assert set(row.figures) == {"nll", "pairs", "tokens", "ngrams", "entropy_gap"}


def test_the_verdict_comes_first_and_names_auto(masked: Comparison, tmp_path: Path) -> None:
    text = " ".join(masked.text().split())
    assert text.startswith("At 2 evaluations ")
    assert "- auto is " in text
    assert "exact samples of the model, one position at a time" in text
    *_, kept = masked.save(tmp_path)
    assert kept.name == "reference.npy"
    again, _ = tl.files.read_samples(kept)
    assert torch.equal(again, masked.reference)  # pyright: ignore[reportArgumentType]
    # two figures, of six lines with names at most
    from thetaleap.evaluation.report import draw

    figure = draw(masked)
    named = [text.get_text() for text in figure.axes[0].texts]
    assert {"auto", "tweedie", "trapezoidal-paper"} <= set(named)
    assert len(named) <= 6
    assert figure.get_suptitle().startswith("Nearest to the reference: ")


def test_samples_may_be_given_as_the_reference() -> None:
    model = network(tl.Masked(5), time_free=True)
    given = tl.sample(model, tl.FirstHitting(), num=40, seed=9).x
    got = compare(model, {"exact": "first-hitting", "one step": "tweedie"}, [1], reference=given, progress=False)
    assert got.settings["num"] == 40
    assert got.reference is None
    assert "40 samples that were given" in got.about
    one, other = (next(row for row in got.rows if row.contender == name) for name in ("exact", "one step"))
    assert abs(one.figures["nll"].value) < 6 * one.figures["nll"].error
    assert other.figures["pairs"].value > 3 * other.figures["pairs"].error


def test_a_network_without_masks_is_compared_with_fine_steps() -> None:
    model = network(tl.Uniform(3, tl.LogLinear()), length=20)
    got = compare(model, ["auto", "euler"], [2], num=20, progress=False)
    assert "by Multistep at 128 evaluations (fine, not exact" in got.about
    fine = tl.grids.alpha_power(model.process.schedule)
    assert torch.equal(got.reference, tl.sample(model, tl.Multistep(), nfe=128, grid=fine, num=20).x)  # pyright: ignore[reportArgumentType]
    short = compare(network(tl.Uniform(3, tl.LogLinear())), ["auto"], [2], num=5, progress=False)
    assert "exact samples of the model, by uniformization" in short.about


def test_evaluations_that_are_left_are_explained() -> None:
    model = network(tl.Masked(5), time_free=True)
    rows = compare(model, ["trapezoidal-paper", "fixed-count"], [8], num=5, progress=False).rows
    notes = {row.contender: (row.nfe, row.note) for row in rows}
    assert notes["fixed-count"] == (6, "is done after 6, one for each position")
    spent, note = notes["trapezoidal-paper"]
    assert spent is not None
    assert spent <= 7
    assert note == "takes 2 per step and one to finish"


def test_how_much_it_takes() -> None:
    model = network(tl.Masked(5), length=300, time_free=True)
    assert (default_num(model), default_num(tl.load("cube3")), default_num(model, torch.zeros((9, 300)))) == (
        64,
        2000,
        9,
    )
    some = {name: default_contenders(model)[name] for name in ("auto", "tweedie")}
    assert evaluations(model, some, [4, 8]) == 300 + 4 + 2 * (4 + 4 + 8 + 4)
    assert evaluations(model, some, [4, 8], torch.zeros((9, 300), dtype=torch.int64)) == 4 + 2 * (4 + 4 + 8 + 4)


@pytest.mark.parametrize(
    ("reference", "num", "match"),
    [
        (tokens(1, 9, 5), None, r"reference=\(9, 5\): give whole numbers of shape \(samples, 6\)"),
        (tokens(1, 9, 6) + 3, None, "reference=5: its tokens must be 0 to 4"),
        (tokens(1, 9, 6), 10, "reference=9: has fewer samples than num, 10"),
        ("truth", None, "reference='truth': give samples"),
    ],
)
def test_references_are_checked(reference: Any, num: int | None, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        compare(network(tl.Masked(5)), ["auto"], [2], num=num, reference=reference, progress=False)
