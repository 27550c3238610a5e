"""Planned counts: grids that say them, pilots that measure, the cheapest path, and what it gains."""

from __future__ import annotations

import itertools
import math
import statistics
from functools import cache, lru_cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thetaleap as tl
from benchmarks.planned_chain import path_kl
from tests.cases import dirichlet
from thetaleap.control import pilots as planning
from thetaleap.control.pilots import EntropyTable, counted, pilot_entropies, plan_counts, planned
from thetaleap.core.schedules import Schedule
from thetaleap.planners import expected_counts

SCHEDULES = (tl.LogLinear(), tl.Cosine(), tl.Constant())


@lru_cache
def chain(length: int, schedule: Schedule | None = None, states: int = 3) -> tl.oracles.MarkovChain:
    rows = dirichlet(0, (states, states)) + 0.05
    process = tl.Masked(states, schedule or tl.LogLinear())
    return tl.oracles.markov_chain(rows / rows.sum(1, keepdim=True), length, process=process)


def binary(seed: int, positions: int, concentration: float = 0.5) -> tl.oracles.Joint:
    return tl.oracles.joint(dirichlet(seed, (2,) * positions, concentration), tl.Masked(2))


def spoken(model: tl.oracles.MarkovChain, grid: torch.Tensor) -> tuple[int, ...]:
    """The counts that a planner reads off `grid`."""
    return tuple(expected_counts(model.process, model.length, grid).tolist())


@settings(max_examples=100)
@given(cuts=st.sets(st.integers(1, 1023)), schedule=st.sampled_from(SCHEDULES))
def test_the_grid_says_the_counts(cuts: set[int], schedule: Schedule) -> None:
    model, edges = chain(1024, schedule), [0, *sorted(cuts), 1024]
    counts = tuple(b - a for a, b in itertools.pairwise(edges))
    grid = counted(model, counts)
    assert spoken(model, grid) == counts
    assert (float(grid[0]), float(grid[-1])) == (model.horizon, 0.0)
    assert torch.equal(tl.grids.check(grid, model.horizon), grid)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_position_at_a_time(schedule: Schedule) -> None:
    for length in (1, 2, 7, 1024):
        model = chain(length, schedule)
        assert spoken(model, counted(model, (1,) * length)) == (1,) * length


def table_of(h: torch.Tensor) -> EntropyTable:
    return EntropyTable(h, 2, "FixedCount()", 1, 0, torch.zeros(2, len(h), dtype=torch.float64))


@settings(max_examples=60)
@given(length=st.integers(1, 8), seed=st.integers(0, 10**6), data=st.data())
def test_the_plan_is_the_cheapest(length: int, seed: int, data: st.DataObject) -> None:
    nfe = data.draw(st.integers(1, length))
    h = torch.rand((length, length), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).triu()

    def price(counts: tuple[int, ...]) -> float:
        starts = itertools.accumulate(counts, initial=0)
        return sum(float(h[j, m] - h[m, m]) for j, k in zip(starts, counts, strict=False) for m in range(j, j + k))

    edges = ([0, *cut, length] for cut in itertools.combinations(range(1, length), nfe - 1))
    best = min(price(tuple(b - a for a, b in itertools.pairwise(path))) for path in edges)
    counts = plan_counts(table_of(h), nfe)
    assert (len(counts), sum(counts), min(counts) > 0) == (nfe, length, True)
    assert price(counts) == pytest.approx(best, abs=1e-12)


def conditional_entropy(p0: torch.Tensor, position: int, known: tuple[int, ...]) -> float:
    """``H(x_position, x_known) - H(x_known)``, from the table."""

    def entropy(positions: set[int]) -> float:
        rest = [n for n in range(p0.ndim) if n not in positions]
        p = p0.sum(rest) if rest else p0
        return -float(torch.xlogy(p, p).sum())

    return entropy({position, *known}) - entropy(set(known))


def exact_table(p0: torch.Tensor, orders: list[tuple[int, ...]]) -> torch.Tensor:
    """h of equally likely `orders`."""
    entropy = lru_cache(lambda position, known: conditional_entropy(p0, position, known))
    h, d = torch.zeros((p0.ndim, p0.ndim), dtype=torch.float64), p0.ndim
    for o in orders:
        for j, m in itertools.combinations_with_replacement(range(d), 2):
            h[j, m] += entropy(o[m], tuple(sorted(o[:j]))) / len(orders)
    return h


def shifted_orders(positions: int) -> list[tuple[int, ...]]:
    """Van der Corput's order, shifted around the ends; for 6 positions it is 0 3 1 4 2 5."""
    base = list(dict.fromkeys(int(int(f"{n:03b}"[::-1], 2) / 8 * positions) for n in range(8)))
    assert len(base) == positions
    return [tuple((position + shift) % positions for position in base) for shift in range(positions)]


@pytest.mark.parametrize("planner", [tl.FixedCount(), tl.LowDiscrepancy()])
def test_pilots_measure_the_entropies(planner: planning.Ordered) -> None:
    """Entropies lie in [0, log 2], so by Hoeffding's inequality each of the 21 is off by more than `most` with
    probability at most 2 exp(-2 n (most/log 2)^2): below 1e-7 for all. Catches an order or a condition shifted by one
    position, which moves entries by 0.008 or more."""
    model, pilots = binary(3, 6, 0.3), 100_000
    orders = shifted_orders(6) if isinstance(planner, tl.LowDiscrepancy) else list(itertools.permutations(range(6)))
    table = pilot_entropies(model, planner, pilots=pilots)
    most = math.log(2) * math.sqrt(math.log(2 * 21 / 1e-7) / (2 * pilots))
    assert most < 0.007
    truth = exact_table(model.p0, orders)
    assert float((table.h - truth).abs().max()) < most
    assert float((truth[0, 1:] - truth.diagonal()[1:]).abs().min()) > 0.008


@pytest.mark.parametrize("planner", [tl.FixedCount(), tl.LowDiscrepancy()])
@pytest.mark.parametrize("length", [20, 130])
def test_pilots_do_not_depend_on_the_batch(planner: planning.Ordered, length: int) -> None:
    model = chain(length)
    whole, parts = (pilot_entropies(model, planner, 5, seed=5, batch_size=size) for size in (5, 2))
    torch.testing.assert_close(whole.h, parts.h, rtol=0, atol=1e-12)
    assert float((whole.h - pilot_entropies(model, planner, 5, seed=6).h).abs().max()) > 1e-3


def test_long_sequences_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where h is measured, and on its diagonal, it is what full measurement gives; elsewhere it is near."""
    model = chain(160)
    some = pilot_entropies(model, tl.LowDiscrepancy(), 20).h
    kept = planning._measured(160)
    monkeypatch.setattr(planning, "ALL_MEASURED", 160)
    full = pilot_entropies(model, tl.LowDiscrepancy(), 20).h
    assert 50 < len(kept) <= 64
    torch.testing.assert_close(some[kept], full[kept], rtol=0, atol=1e-12)
    torch.testing.assert_close(some.diagonal(), full.diagonal(), rtol=0, atol=1e-12)
    assert float((some - full).abs().max()) < 0.25
    assert float((some - full).abs().mean()) < 0.01


def test_lines_are_filled_in_exactly() -> None:
    """A table that is linear in j comes back from its measured rows and its diagonal."""
    d, kept = 9, [0, 1, 4, 7]
    h = (10.0 + torch.arange(d) - torch.arange(d).unsqueeze(1) * 0.5).triu().double()
    sparse = torch.diag(h.diagonal())
    sparse[kept] = h[kept]
    torch.testing.assert_close(planning._filled(sparse, kept), h, rtol=0, atol=1e-12)


def test_tables_are_kept(tmp_path: Path) -> None:
    model, path = binary(0, 5), tmp_path / "table.npz"
    table = pilot_entropies(model, tl.LowDiscrepancy(), pilots=9, seed=4)
    table.save(path)
    table.save(path)  # over itself
    again = EntropyTable.load(path)
    assert [file.name for file in tmp_path.iterdir()] == ["table.npz"]
    assert torch.equal(again.h, table.h)
    assert (again.states, again.order, again.pilots, again.seed) == (
        2,
        repr(tl.LowDiscrepancy()),
        9,
        4,
    )
    solver = tl.Tweedie(planner=tl.LowDiscrepancy())
    assert torch.equal(planned(model, solver, 3, table=again), planned(model, solver, 3, pilots=9, seed=4))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    for content in (b"", b"PK nothing", b'{"h": 1}'):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"not a file that EntropyTable.save wrote"):
            EntropyTable.load(path)
    table = table_of(torch.full((3, 3), math.nan, dtype=torch.float64))
    table.save(path)
    with pytest.raises(ValueError, match="damaged"):
        EntropyTable.load(path)


def test_tables_of_other_models_are_refused() -> None:
    weak, strong = (tl.oracles.ising(2, 4, coupling=c) for c in (0.3, 0.4))  # every position alone has the same law
    table = pilot_entropies(weak, pilots=3)
    assert len(planned(weak, tl.Multistep(), 3, table=table)) == 4
    with pytest.raises(ValueError, match="another model; measure one"):
        planned(strong, tl.Multistep(), 3, table=table)
    with pytest.raises(ValueError, match=r"the solver goes by LowDiscrepancy\(shape=None, schedule=.process.,"):
        planned(weak, tl.Tweedie(planner=tl.LowDiscrepancy()), 3, table=table)
    with pytest.raises(ValueError, match=r"table \(length, states\)=\(8, 2\): the model has \(5, 2\)"):
        planned(binary(0, 5), tl.Multistep(), 3, table=table)


def test_errors_name_the_remedy() -> None:
    model = binary(0, 4)
    for counts in ((2, 0, 2), (), (True, 3)):
        with pytest.raises(ValueError, match=r"counts=.*whole numbers of at least 1"):
            counted(model, counts)
    with pytest.raises(ValueError, match=r"counts=\(2, 3\): sum to 5, but the model has 4 positions"):
        counted(model, (2, 3))
    uniform = tl.oracles.joint(model.p0, tl.Uniform(2), horizon=6.0)
    with pytest.raises(ValueError, match=r"model.process=.*use a Masked process"):
        planned(uniform, tl.Multistep(), 2)
    with pytest.raises(ValueError, match=r"schedule.alpha\(0\)=0.99.*use a schedule with alpha\(0\) = 1"):
        counted(tl.oracles.joint(model.p0, tl.Masked(2, tl.Geometric())), (2, 2))
    for nfe, what in ((0, "at least 1"), (5, "give at most 4")):
        with pytest.raises(ValueError, match=f"nfe={nfe}: .*{what}"):
            planned(model, tl.Multistep(), nfe)
    with pytest.raises(ValueError, match="solver='ExponentialTrapezoidal': it unmasks in two stages"):
        planned(model, tl.ExponentialTrapezoidal(planner=tl.FixedCount()), 2)
    with pytest.raises(ValueError, match="solver='Euler': its steps cannot be planned"):
        planned(model, tl.Euler(), 2)
    for planner in (tl.Bernoulli(), tl.Confidence(), tl.EntropyBounded()):
        with pytest.raises(ValueError, match=r"solver.planner=.*cannot be planned; use Tweedie"):
            planned(model, tl.Tweedie(planner=planner), 2)
    with pytest.raises(ValueError, match="pilots=0"):
        pilot_entropies(model, pilots=0)
    with pytest.raises(ValueError, match="shape="):
        pilot_entropies(model, tl.LowDiscrepancy(shape=(3, 3)))


@pytest.mark.parametrize("solver", [tl.Multistep(), tl.Tweedie(planner=tl.LowDiscrepancy())])
@pytest.mark.parametrize("nfe", [1, 4, 12])
def test_the_budget_is_spent_exactly(solver: tl.Multistep | tl.Tweedie, nfe: int) -> None:
    model = chain(12)
    drawn = tl.sample(model, solver, grid=planned(model, solver, nfe, pilots=5), num=20)
    assert drawn.nfe.tolist() == [nfe] * 20


def conditionals(p0: torch.Tensor) -> torch.Tensor:
    """[A, x, position]: probability that `position` is 1 given the positions of x in the set A (bit n is position
    n)."""
    d, sets, codes = p0.ndim, torch.arange(2**p0.ndim), torch.arange(2**p0.ndim)
    hidden = ([n for n in range(d) if not A >> n & 1] for A in range(2**d))
    known = torch.stack([(p0.sum(rest, keepdim=True) if rest else p0).expand_as(p0).flatten() for rest in hidden])
    columns = []
    for position in range(d):
        digit = 1 << (d - 1 - position)  # of the position in the code of a sequence
        on, off = (known[sets | 1 << position][:, code] for code in (codes | digit, codes & ~digit))
        columns.append(on / (on + off))
    return torch.stack(columns, 2)


def multistep_law(p0: torch.Tensor, counts: tuple[int, ...]) -> torch.Tensor:
    """The law of Multistep with FixedCount, as the mean over all paths of sets of ``prod c~(x)``.

    `exact.law` gives the same, but follows every sequence with its memory, which takes most of a minute for 8
    positions.
    """
    d, c, x = p0.ndim, conditionals(p0), torch.cartesian_prod(*[torch.arange(2)] * p0.ndim).bool()

    @cache
    def factors(step: int, before: int, now: int) -> torch.Tensor:
        """[x, position]: what c~ gives to the value of x."""
        c_now, w = c[now], 0.0
        if step:
            w = min(0.5, (counts[step] - 1) / (2 * counts[step - 1]))
            if step == 1:
                w = min(1.0, (counts[1] - 1) / (2 * counts[0]) + (counts[0] - 1) / (2 * counts[1]))
        on = torch.maximum((1 + w) * c_now - w * c[before], 0.1 * c_now)
        off = torch.maximum((1 + w) * (1 - c_now) - w * (1 - c[before]), 0.1 * (1 - c_now))
        return torch.where(x, on, off) / (on + off)

    @cache
    def rest(step: int, before: int, now: int) -> torch.Tensor:
        """[x]: the mean over all ways to go on."""
        if step == len(counts):
            return torch.ones(2**d, dtype=torch.float64)
        left = [n for n in range(d) if not now >> n & 1]
        sets = list(itertools.combinations(left, counts[step]))
        f = factors(step, before, now)
        going = (f[:, list(s)].prod(1) * rest(step + 1, now, now | sum(1 << n for n in s)) for s in sets)
        return sum(going, torch.zeros(2**d, dtype=torch.float64)) / len(sets)

    return rest(0, 0, 0).view_as(p0)


def divergence(p: torch.Tensor, q: torch.Tensor) -> float:
    return float(torch.xlogy(p, p / q).sum())


@pytest.mark.parametrize("counts", [(2, 1, 1), (2, 2), (1, 3)])
def test_the_law_by_paths_is_the_law(counts: tuple[int, ...]) -> None:
    model = binary(1, 4)
    truth = tl.exact.law(model, tl.Multistep(planner=tl.FixedCount()), counted(model, counts))
    torch.testing.assert_close(multistep_law(model.p0, counts), truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("concentration", "least", "median"), [(0.5, 1.5, 3.0), (2.0, 5.0, 7.0)])
def test_planned_counts_pay(concentration: float, least: float, median: float) -> None:
    """KL with even counts over KL with planned ones, 4 evaluations, 8 binary positions, exact laws: measured on these
    joints 2.1 to 22, median 4.8, and 8 to 47, median 37; with 20,000 pilots the medians are 15 and 10. They move
    because the paths of (5, 1, 1, 1), which gains least, cost nearly the same as those of (4, 2, 1, 1), and pilots
    decide between the two: the bounds allow for either."""
    ratios = []
    for seed in range(5):
        model = binary(seed, 8, concentration)
        plan = plan_counts(pilot_entropies(model, seed=seed), 4)
        even, ours = (divergence(model.p0, multistep_law(model.p0, counts)) for counts in ((2, 2, 2, 2), plan))
        ratios.append(even / ours)
    assert min(ratios) > least
    assert statistics.median(ratios) > median


def test_order_and_plan_pay_on_a_chain() -> None:
    """Path KL of 4 evaluations on chain64: random order 16 nats, low discrepancy 0.5, planned 0.001; the standard
    errors, 0.2, 0.04 and 0.002 here, leave more than ten of them to each bound."""
    model, even = tl.load("chain64"), (16,) * 4
    plan = plan_counts(pilot_entropies(model, tl.LowDiscrepancy(), 100), 4)
    rows = ((tl.FixedCount(), even), (tl.LowDiscrepancy(), even), (tl.LowDiscrepancy(), plan))
    random, spread, best = (path_kl(model, planner, counts, draws=512)[0] for planner, counts in rows)
    assert spread < random / 8
    assert best < random / 100
