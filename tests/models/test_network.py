"""Networks split into trunk and head: the head runs where a position jumps, and nothing else changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thetaleap as tl
from tests.cases import SOLVERS, allowed, informed
from thetaleap.core.evaluation import COPIES, Dense, Evaluation, Gathered
from thetaleap.solvers import Solver

LENGTH, STATES, WIDTH = 6, 5, 8
HALF = torch.tensor(0.5, dtype=torch.float64)
PROCESSES = [tl.Masked(STATES), tl.Uniform(STATES)]


class Split:
    """A small network of two parts that keeps count of the rows each part was run on."""

    def __init__(self, process, *, time_free: bool = False, dtype: torch.dtype = torch.float64) -> None:
        made = torch.Generator().manual_seed(4)
        symbols = process.states + 1
        self.embedding = torch.randn(LENGTH, symbols, WIDTH, generator=made, dtype=torch.float64).to(dtype)
        self.last = (2 * torch.randn(WIDTH, process.states, generator=made, dtype=torch.float64)).to(dtype)
        self.process, self.time_free = process, time_free
        self.runs = self.heads = 0
        self.most = 0

    def trunk(self, x: Tensor, t: Tensor) -> Tensor:
        self.runs += len(x)
        seen = self.embedding[torch.arange(LENGTH), x]
        others = seen.sum(1, keepdim=True) - seen
        own = self.embedding[:, -1]
        late = 0 if self.time_free else t.view(-1, 1, 1).to(seen.dtype)
        return torch.tanh(others / 2 + own + late)

    def head(self, rows: Tensor) -> Tensor:
        self.heads += len(rows)
        self.most = max(self.most, len(rows))
        return rows @ self.last

    def dense(self, x: Tensor, t: Tensor) -> Tensor:
        return self.trunk(x, t) @ self.last

    def model(self, whole: bool = False) -> tl.models.Network:
        horizon = None if self.process.mask is not None else 4.0
        parts: dict[str, Any] = {"network": self.dense} if whole else {"trunk": self.trunk, "head": self.head}
        model = tl.from_network(self.process, length=LENGTH, horizon=horizon, time_free=self.time_free, **parts)
        model.inspect()
        self.runs = self.heads = self.most = 0  # the runs count, not the look before the first
        return model


def budget(solver: Solver) -> dict[str, Any]:
    return {} if solver.evaluations is None else {"nfe": 7}


PAIRS = [
    (process, solver)
    for process in PROCESSES
    for solver in SOLVERS
    if allowed(solver, process) and not (process.mask is not None and informed(solver))
]


@pytest.mark.parametrize(("process", "solver"), PAIRS, ids=str)
def test_a_split_network_gives_what_the_whole_one_gives(process, solver) -> None:
    split = Split(process)
    whole = tl.sample(split.model(whole=True), solver, num=12, seed=5, **budget(solver))
    parts = tl.sample(split.model(), solver, num=12, seed=5, **budget(solver))
    assert torch.equal(whole.x, parts.x)
    assert torch.equal(whole.nfe, parts.nfe)


@pytest.mark.parametrize(("process", "solver"), PAIRS, ids=str)
def test_rows_in_parts_are_the_same_rows(process, solver) -> None:
    split = Split(process)
    whole = tl.sample(split.model(), solver, num=12, seed=5, batch_size=12, **budget(solver))
    split.most = 0
    memory = 5 * COPIES * 8 * STATES
    parts = tl.sample(split.model(), solver, num=12, seed=5, batch_size=12, memory=memory, **budget(solver))
    assert torch.equal(whole.x, parts.x)
    one_each = isinstance(solver, tl.FirstHitting | tl.Uniformization)
    assert split.most <= (12 if one_each else 5)


ONCE = [
    tl.Tweedie(),
    tl.Tweedie(tl.FixedCount()),
    tl.Tweedie(tl.LowDiscrepancy()),
    tl.Euler(),
    tl.TauLeaping(),
    tl.ExponentialTrapezoidal(),
    tl.FirstHitting(),
]
"""Solvers that know who jumps before they know anything else."""


@pytest.mark.parametrize("solver", ONCE, ids=str)
def test_the_head_runs_once_for_each_masked_position_of_a_run(solver) -> None:
    split = Split(PROCESSES[0])
    tl.sample(split.model(), solver, num=50, seed=1, **budget(solver))
    twice = isinstance(solver, tl.ExponentialTrapezoidal)  # two looks are asked about positions that go second
    low, high = (50 * LENGTH, 2 * 50 * LENGTH) if twice else (50 * LENGTH, 50 * LENGTH)
    assert low <= split.heads <= high


@pytest.mark.parametrize("solver", [tl.Trapezoidal(), tl.RK2(), tl.Multistep()], ids=str)
def test_thinning_keeps_the_head_to_few_rows(solver) -> None:
    """All masked positions at every look of 64 would be about 32 times as many as positions; thinning asks for a few
    a position."""
    split = Split(PROCESSES[0])
    tl.sample(split.model(), solver, nfe=64, num=50, seed=1)
    assert split.heads <= 5 * 50 * LENGTH


@pytest.mark.parametrize("solver", [tl.Tweedie(), tl.Trapezoidal(), tl.Multistep(planner=tl.Bernoulli())], ids=str)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "split"])
def test_a_network_without_time_is_not_run_again_for_what_it_has_seen(solver, whole) -> None:
    forgetful, mindful = (Split(PROCESSES[0], time_free=True) for _ in range(2))
    object.__setattr__(plain := forgetful.model(whole), "time_free", False)
    every = tl.sample(plain, solver, nfe=40, num=30, seed=2)
    some = tl.sample(mindful.model(whole), solver, nfe=40, num=30, seed=2, batch_size=11)
    assert torch.equal(every.x, some.x)
    assert torch.equal(every.nfe, some.nfe)
    assert torch.equal(every.spent, every.nfe)
    assert forgetful.runs == int(every.nfe.sum())
    assert mindful.runs == int(some.spent.sum())
    assert int(some.spent.max()) <= LENGTH + 1, "a sample can only change as often as it has positions"
    assert int(some.spent.sum()) < int(some.nfe.sum()) / 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_solver_does_not_inherit_the_network_s_precision(dtype) -> None:
    """Rounded logits are all that a rough network has to say: the rest is as for exact ones."""
    rough = Split(PROCESSES[0], dtype=dtype)

    def as_doubles(x: Tensor, t: Tensor) -> Tensor:
        return rough.dense(x, t).double()

    exact = tl.from_network(PROCESSES[0], length=LENGTH, network=as_doubles)
    whole = tl.sample(exact, tl.Multistep(), nfe=6, num=100)
    assert torch.equal(whole.x, tl.sample(rough.model(whole=True), tl.Multistep(), nfe=6, num=100).x)
    assert tl.sample(rough.model(), tl.Multistep(), nfe=6, num=100).x.shape == (100, LENGTH)


@settings(max_examples=60)
@given(st.data())
def test_gathered_conditionals_are_those_of_their_parts(data) -> None:
    """Any sequence of picking samples and replacing some of them gives the rows that tables would give."""
    table = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    gathered = Gathered.of(Dense(table), 4, 3, table.device)
    for n in range(data.draw(st.integers(1, 6))):
        batch = len(table)
        if data.draw(st.booleans()):
            rows = torch.tensor(data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=6)))
            table, gathered = table[rows], gathered[rows]
        else:
            rows = torch.tensor(data.draw(st.lists(st.integers(0, batch - 1), min_size=1, unique=True)))
            new = torch.randn(len(rows), 3, 2, generator=torch.Generator().manual_seed(n + 1))
            table = table.index_copy(0, rows, new)
            gathered = gathered.replaced(rows, Gathered.of(Dense(new), len(rows), 3, new.device))
        assert len(gathered.parts) <= len(table), "parts that nobody needs are dropped"
        positions = torch.tensor(data.draw(st.lists(st.integers(0, 3 * len(table) - 1), max_size=9)), dtype=torch.int64)
        assert torch.equal(gathered.logits(positions), table.flatten(0, 1)[positions])


def test_a_look_with_other_samples_in_it() -> None:
    def evaluation(seed: int, batch: int, t: float) -> Evaluation:
        x = torch.full((batch, 3), seed)
        table = torch.randn(batch, 3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return Evaluation(x, torch.tensor(t, dtype=torch.float64), Dense(table), 2, "a test")

    old, new, rows = evaluation(0, 4, 0.5), evaluation(1, 2, 0.25), torch.tensor([2, 0])
    both = old.replaced(rows, new)
    assert both.x[:, 0].tolist() == [1, 0, 1, 0]
    assert both.t.tolist() == [0.25, 0.5, 0.25, 0.5]
    positions = torch.arange(12)
    expected = (
        old.probabilities(positions).view(4, 3, 2).index_copy(0, rows, new.probabilities(torch.arange(6)).view(2, 3, 2))
    )
    assert torch.equal(both.probabilities(positions).view(4, 3, 2), expected)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.floats(-3e4, 3e4, width=32), st.lists(st.floats(-2e3, 2e3, width=32), min_size=3, max_size=3)),
        min_size=1,
        max_size=5,
    )
)
def test_rows_of_any_size(rows: list[tuple[float, list[float]]]) -> None:
    """Exponents that are out of range as they are, in some of the rows."""
    logits = torch.tensor([[offset + value for value in values] for offset, values in rows], dtype=torch.float64)
    evaluation = Evaluation(torch.zeros(len(rows), 1, dtype=torch.int64), HALF, Dense(logits.unsqueeze(1)), 3, "a test")
    positions = torch.arange(len(rows))
    for row, p, odds in zip(
        logits.tolist(), evaluation.probabilities(positions), evaluation.unnormalised(positions), strict=True
    ):
        truth = [1 / sum(math.exp(min(700, other - value)) for other in row) for value in row]
        assert p.tolist() == pytest.approx(truth, rel=1e-12, abs=1e-140)
        assert (odds / odds.sum()).tolist() == pytest.approx(truth, rel=1e-12, abs=1e-140)


def test_wrong_networks() -> None:
    process = tl.Masked(3)
    rows = torch.zeros(1, 2, 4)
    with pytest.raises(ValueError, match=r"\(network, trunk, head\).*both a trunk and a head"):
        tl.from_network(process, length=2, trunk=lambda x, t: rows)
    with pytest.raises(ValueError, match=r"\(trunk, head\).*not both"):
        tl.from_network(process, length=2, network=lambda x, t: rows, head=lambda rows: rows)
    with pytest.raises(ValueError, match=r"shape=\(2, 2\).*the length is 2"):
        tl.from_network(process, length=2, network=lambda x, t: rows, shape=(2, 2))
    flat = tl.from_network(process, length=2, trunk=lambda x, t: rows[0], head=lambda rows: rows)
    with pytest.raises(ValueError, match=r"trunk output=\(2, 4\): must be hidden rows of shape"):
        tl.sample(flat, tl.Tweedie(), nfe=1)
    wide = tl.from_network(process, length=2, trunk=lambda x, t: rows, head=lambda rows: rows)
    with pytest.raises(ValueError, match=r"logits of shape \(.*, 4\)"):
        tl.sample(wide, tl.Tweedie(), nfe=1)
    whole = tl.from_network(process, length=2, trunk=lambda x, t: rows, head=lambda rows: rows[:, :3].long())
    with pytest.raises(TypeError, match=r"head output=torch.int64"):
        tl.sample(whole, tl.Tweedie(), nfe=1)
