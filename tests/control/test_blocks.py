"""Blocks from left to right: the same solver, one block after the other, within one budget."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thetaleap as tl
from tests.cases import RENOISING, SOLVERS, dirichlet, informed, masked, uniform
from thetaleap.control import Method, control_of
from thetaleap.control.tolerance import Tolerance
from thetaleap.sampling import plan

LENGTH, STATES = 7, 3
MASKED = [solver for solver in SOLVERS if solver not in RENOISING]
"""Those for masked processes."""


def often(solver: Method) -> bool:
    """Blocks of one step are long enough for it."""
    return not isinstance(solver, tl.Corrected) or solver.every == 1


NETWORK = [solver for solver in MASKED if not informed(solver)]
ONCE = tl.SemiAutoregressive | tl.Uniformization
QUICK = [solver for solver in NETWORK if often(solver) and not isinstance(solver, ONCE)]
"""Solvers to run in blocks; those with blocks of their own, and the slow one, are tried once."""


def quick() -> tl.models.Network:
    """Logits that depend on all other positions, and cost next to nothing."""
    table = torch.randn(LENGTH, STATES + 1, STATES, generator=torch.Generator().manual_seed(0))

    def network(x: Tensor, t: Tensor) -> Tensor:
        seen = table[torch.arange(LENGTH), x]
        return seen.sum(1, keepdim=True) - seen + table[:, -1]

    return tl.from_network(tl.Masked(STATES), length=LENGTH, network=network, time_free=True)


MODEL = quick()


def cube() -> tl.oracles.Joint:
    """Four positions with a random law."""
    return tl.oracles.joint(dirichlet(5, (STATES,) * 4), tl.Masked(STATES))


def block_of(template: Tensor, length: int) -> Tensor:
    """Which block each free position is in, by counting; -1 where given."""
    result = torch.full_like(template, -1)
    for n, row in enumerate(template.tolist()):
        free = [position for position, value in enumerate(row) if value == tl.FREE]
        for rank, position in enumerate(free):
            result[n, position] = rank // length
    return result


def shares(steps: int, blocks: int) -> list[int]:
    return [steps // blocks + (n < steps % blocks) for n in range(blocks)]


def templates(data, num: int, length: int = LENGTH) -> Tensor:
    row = st.lists(st.one_of(st.just(tl.FREE), st.integers(tl.FREE, STATES - 1)), min_size=length, max_size=length)
    return torch.tensor(data.draw(st.lists(row, min_size=num, max_size=num)))


# --- order, budget, given positions


@settings(max_examples=25)
@given(st.data())
def test_blocks_go_from_left_to_right_within_the_budget(data) -> None:
    solver, size, num = data.draw(st.sampled_from(QUICK)), data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    template, model = templates(data, num), MODEL
    fewest = math.ceil(LENGTH / size)
    blocks, block = tl.Blocks(solver, size), block_of(template, size)
    options: dict[str, Any] = {}
    if solver.evaluations is not None:
        least = fewest * (solver.evaluations + (not control_of(solver).reaches_data(model.process)))
        options = {"nfe": data.draw(st.integers(least, least + 9))}
    seen: list[tl.Moment] = []
    out = tl.sample(model, blocks, template=template, seed=data.draw(st.integers(0, 9)), on_step=seen.append, **options)
    given_positions = template != tl.FREE
    for moment in seen:
        assert torch.equal(moment.x[given_positions], template[given_positions])
        for x, where in zip(moment.x, block, strict=True):
            left, gone = where[x == STATES], where[(x != STATES) & (where >= 0)]
            if len(left) and len(gone):
                assert int(gone.max()) <= int(left.min()), "a later block has begun before an earlier one was done"
    assert bool(((out.x >= 0) & (out.x < STATES)).all())
    if options:
        assert int(out.nfe.max()) <= options["nfe"]
    assert bool((out.nfe[given_positions.all(1)] == 0).all())


@settings(max_examples=20)
@given(st.data())
def test_with_counts_every_block_costs_its_steps_or_its_positions_whichever_are_fewer(data) -> None:
    """So that, with as many positions in each block as steps or more, all of the budget is used, by every sample."""
    solver = data.draw(st.sampled_from([tl.Tweedie(tl.FixedCount()), tl.Multistep(), tl.Tweedie(tl.LowDiscrepancy())]))
    size, num = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    template = templates(data, num)
    nfe = data.draw(st.integers(math.ceil(LENGTH / size), 12))
    out = tl.sample(MODEL, tl.Blocks(solver, size), template=template, nfe=nfe)
    for spent, where in zip(out.nfe.tolist(), block_of(template, size), strict=True):
        count = int(where.max()) + 1
        positions = [int((where == n).sum()) for n in range(count)]
        wanted = sum(min(pair) for pair in zip(positions, shares(nfe, count), strict=True)) if count else 0
        assert spent == wanted
        if count and all(n >= share for n, share in zip(positions, shares(nfe, count), strict=True)):
            assert spent == nfe


@settings(max_examples=8)
@given(st.data())
def test_ragged_samples_do_not_depend_on_their_batch(data) -> None:
    solver, size = data.draw(st.sampled_from(QUICK)), data.draw(st.integers(1, 4))
    template, seed = templates(data, 3), data.draw(st.integers(0, 9))
    options: dict[str, Any] = {} if solver.evaluations is None else {"steps": 9}
    stop = data.draw(st.sampled_from([None, 0]))
    whole = tl.sample(MODEL, tl.Blocks(solver, size, stop), template=template, seed=seed, **options)
    parts = tl.sample(MODEL, tl.Blocks(solver, size, stop), template=template, seed=seed, batch_size=1, **options)
    assert torch.equal(whole.x, parts.x)
    assert torch.equal(whole.nfe, parts.nfe)
    assert torch.equal(whole.spent, parts.spent)


@pytest.mark.parametrize("solver", [tl.Uniformization(), *NETWORK], ids=str)
def test_every_solver_runs_in_blocks(solver: Method) -> None:
    if isinstance(solver, tl.SemiAutoregressive) and solver.block_length is not None:
        with pytest.raises(ValueError, match="it has blocks already"):
            tl.Blocks(solver, 4)
        return
    options: dict[str, Any] = {} if solver.evaluations is None else {"nfe": 16 * solver.evaluations}
    out = tl.sample(MODEL, tl.Blocks(solver, 4), num=3, **options)
    assert bool(((out.x >= 0) & (out.x < STATES)).all())


def test_the_last_block_is_shorter() -> None:
    left: list[list[int]] = []
    solver = tl.Blocks(tl.Tweedie(tl.FixedCount()), 3)
    tl.sample(MODEL, solver, steps=3, on_step=lambda m: left.append(torch.nonzero(m.x[0] == STATES).flatten().tolist()))
    assert left == [[0, 1, 2, 3, 4, 5, 6], [3, 4, 5, 6], [6], [], []]


# --- laws


GRID = torch.tensor([1.0, 0.55, 0.2, 0.01], dtype=torch.float64)


@pytest.mark.parametrize("solver", QUICK, ids=str)
def test_one_block_is_the_solver_itself(solver: Method) -> None:
    case = masked(1, (2, 2, 2))
    grid = GRID.clone()
    if control_of(solver).reaches_data(case.model.process):
        grid[-1] = 0
    law = tl.exact.law(case.model, tl.Blocks(solver, 3), grid)
    torch.testing.assert_close(law, tl.exact.law(case.model, solver, grid), rtol=0, atol=1e-12)
    template = torch.tensor([tl.FREE, 1, tl.FREE])
    law = tl.exact.law(case.model, tl.Blocks(solver, 2), grid, template)
    torch.testing.assert_close(law, tl.exact.law(case.model, solver, grid, template), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "solver", [tl.FirstHitting(), tl.Tweedie(tl.FixedCount()), tl.Multistep(), tl.Tweedie(tl.LowDiscrepancy())], ids=str
)
def test_one_position_at_a_time_gives_the_data_law(solver: Method, size: int) -> None:
    p0 = dirichlet(3, (2, 2, 2, 2))
    model = tl.oracles.joint(p0, tl.Masked(2))
    law = tl.exact.law(model, tl.Blocks(solver, size), tl.grids.uniform(1.0, 0.0, 12))
    assert float((p0 * (p0 / law).log()).sum()) < 1e-12
    torch.testing.assert_close(law, p0, rtol=0, atol=1e-12)


def one_after_the_other(model, solver: Method, template: list[int], size: int, shares: list[Tensor]) -> Tensor:
    """The law of blocks, one by one: what the solver does to a block is its law where all later positions are
    masked, which is a model of the positions up to there."""
    law = {tuple(template): 1.0}
    free = [position for position, value in enumerate(template) if value == tl.FREE]
    for n, grid in enumerate(shares):
        block, after = free[n * size : (n + 1) * size], {}
        for x, p in law.items():
            now = [value if position in block or value != tl.FREE else STATES for position, value in enumerate(x)]

            def seen(y: Tensor, t: Tensor, now=now) -> Tensor:
                hidden = torch.tensor([value == STATES for value in now])
                whole = y.masked_fill(hidden, STATES)
                return model(whole, t).logits(torch.arange(whole.numel())).view(*whole.shape, -1)

            part = tl.from_network(model.process, length=model.length, network=seen, time_free=True)
            place = torch.tensor([0 if value == STATES else value for value in now])
            for y, q in _entries(tl.exact.law(part, solver, grid, place)):
                key = tuple(y[position] if position in block else x[position] for position in range(len(x)))
                after[key] = after.get(key, 0.0) + p * q
        law = after
    result = torch.zeros((STATES,) * len(template), dtype=torch.float64)
    for x, p in law.items():
        result[x] += p
    return result


def _entries(law: Tensor) -> list[tuple[tuple[int, ...], float]]:
    return [(tuple(place), float(law[tuple(place)])) for place in torch.nonzero(law).tolist()]


@pytest.mark.parametrize(
    "solver",
    [
        tl.Tweedie(),
        tl.Tweedie(tl.FixedCount()),
        tl.Tweedie(tl.EntropyBounded(0.3)),
        tl.Multistep(),
        tl.Multistep(planner=tl.Bernoulli()),
        tl.Trapezoidal(),
        tl.TauLeaping(rule="reject"),
        tl.AdamsBashforth(),
        tl.ParallelDecoding(),
    ],
    ids=str,
)
@pytest.mark.parametrize(("template", "size"), [([-1, -1, -1, -1], 2), ([-1, 2, -1, -1], 2)], ids=str)
def test_the_law_of_two_blocks_is_that_of_one_after_the_other(solver: Method, template: list[int], size: int) -> None:
    """In five steps the first block has three and the second two; both walk the whole grid."""
    model = cube()
    end = 0.0 if control_of(solver).reaches_data(model.process) else 0.02
    grid = tl.grids.uniform(1.0, end, 5)
    parts = [tl.grids.uniform(1.0, end, 3), tl.grids.uniform(1.0, end, 2)]
    law = tl.exact.law(model, tl.Blocks(solver, size), grid, torch.tensor(template))
    wanted = one_after_the_other(model, solver, template, size, parts)
    torch.testing.assert_close(law, wanted, rtol=0, atol=1e-12)
    assert float(law.sum()) == pytest.approx(1)


def test_samples_follow_the_exact_law() -> None:
    """TV above 0.05 of 20,000 samples in 81 cells has a chance below 1e-18 (Bretagnolle-Huber-Carol:
    2^81 exp(-2 n TV^2)); the law without blocks is 0.16 away, that of blocks of three 0.21."""
    model, solver, grid = cube(), tl.Blocks(tl.Multistep(planner=tl.Bernoulli()), 2), tl.grids.uniform(1.0, 0.0, 3)
    law = tl.exact.law(model, solver, grid)
    x = tl.sample(model, solver, grid=grid, num=20_000).x
    seen = torch.bincount((x * torch.tensor([27, 9, 3, 1])).sum(1), minlength=81) / len(x)
    assert float((seen - law.flatten()).abs().sum() / 2) < 0.05


# --- the stop token


def spelling(words: Tensor) -> tl.models.Network:
    """A network that is sure of every position: sample i of the first position's value writes ``words[i]``."""

    def network(x: Tensor, t: Tensor) -> Tensor:
        word = words[x[:, 0].clamp(max=len(words) - 1)]
        return torch.nn.functional.one_hot(word, STATES).double().log()

    return tl.from_network(tl.Masked(STATES), length=LENGTH, network=network, time_free=True)


@pytest.mark.parametrize(
    "solver",
    [tl.Tweedie(tl.FixedCount()), tl.Tweedie(), tl.FirstHitting(), tl.Trapezoidal(), tl.Tweedie(tl.EntropyBounded())],
    ids=str,
)
def test_a_sample_ends_with_the_block_that_holds_the_stop_token(solver: Method) -> None:
    """Also if the block was done before its last step."""
    words = torch.tensor([[0, 0, 1, 2, 1, 1, 1], [1, 2, 0, 0, 1, 0, 1], [2, 0, 1, 0, 1, 0, 1]])
    template = torch.full((3, LENGTH), tl.FREE)
    template[:, 0] = torch.arange(3)
    seen: list[tl.Moment] = []
    steps: dict[str, Any] = {} if solver.evaluations is None else {"steps": 30}
    blocks = tl.Blocks(solver, 2, stop=2)
    out = tl.sample(spelling(words), blocks, template=template, on_step=seen.append, **steps)
    # blocks are (1, 2), (3, 4), (5, 6); the stop token of the last sample is given, and does not count
    assert out.x.tolist() == [[0, 0, 1, 2, 1, 2, 2], [1, 2, 0, 2, 2, 2, 2], [2, 0, 1, 0, 1, 0, 1]]
    everything = tl.sample(spelling(words), tl.Blocks(solver, 2), template=template, **steps)
    assert everything.x.tolist() == words.tolist()
    assert out.nfe[2] == everything.nfe[2]
    assert bool((out.nfe < everything.nfe)[:2].all()), "later blocks are not run"
    if isinstance(solver, tl.FirstHitting) or solver == tl.Tweedie(tl.FixedCount()):
        assert out.nfe.tolist() == [4, 2, 6]
    for moment in seen:  # what is filled is filled as soon as the block is complete
        for n, block in ((0, [3, 4]), (1, [1, 2])):
            if bool((moment.x[n, block] != STATES).all()):
                assert not bool((moment.x[n] == STATES).any())


def test_given_positions_after_the_stop_token_stay() -> None:
    words = torch.tensor([[0, 2, 1, 1, 1, 1, 1]])
    template = torch.tensor([[0, -1, -1, 1, -1, 0, -1]])
    out = tl.sample(spelling(words), tl.Blocks(tl.Tweedie(), 2, stop=2), template=template, nfe=8)
    assert out.x.tolist() == [[0, 2, 1, 1, 2, 0, 2]]


def test_the_law_with_a_stop_token() -> None:
    """One position at a time, the data law of all that comes before the stop token's block ends, and no more."""
    model = cube()
    law = tl.exact.law(model, tl.Blocks(tl.FirstHitting(), 2, stop=1), tl.grids.uniform(1.0, 0.0, 4))
    p0 = tl.exact.law(model, tl.FirstHitting(), tl.grids.uniform(1.0, 0.0, 4))
    wanted = p0.clone()
    for a in range(STATES):
        for b in range(STATES):
            if 1 in (a, b):
                wanted[a, b] = 0
                wanted[a, b, 1, 1] = p0[a, b].sum()
    torch.testing.assert_close(law, wanted, rtol=0, atol=1e-12)


# --- times


def test_each_block_walks_the_whole_grid() -> None:
    """Seven steps for three blocks: three, two and two, each from the first time to the last."""
    times: list[float] = []

    def network(x: Tensor, t: Tensor) -> Tensor:
        times.append(float(t[0]))
        return torch.zeros(*x.shape, STATES)

    model = tl.from_network(tl.Masked(STATES), length=6, network=network)
    model.inspect()
    times.clear()
    grid = tl.grids.power(1.0, 0.0, 7)
    tl.sample(model, tl.Blocks(tl.ExponentialTrapezoidal(), 2), grid=grid, seed=3, num=50)
    index = torch.arange(8, dtype=torch.float64)

    def at(place: float) -> float:
        low = min(int(place), 6)
        return float(grid[low] + (place - index[low]) * (grid[low + 1] - grid[low]))

    wanted = []
    for steps in (3, 2, 2):
        stops = [at(7 * n / steps) for n in range(steps + 1)]
        for t, s in pairwise(stops):
            wanted += [t, (t + s) / 2]
    assert times == pytest.approx(wanted)
    times.clear()
    tl.sample(model, tl.Blocks(tl.Tweedie(), 6), grid=grid, num=50)
    assert times == grid[:-1].tolist(), "one block has the grid itself"


def test_solvers_that_stop_before_the_data_do_so_in_every_block() -> None:
    """The last evaluation of a block has as much of its time as the others; two-stage methods spend 11 of 12."""
    for solver, spent in ((tl.Trapezoidal(), 11), (tl.AdamsBashforth(), 12), (tl.Tweedie(tl.EntropyBounded()), 12)):
        assert float(plan(MODEL, solver, nfe=12)[-1]) == pytest.approx(1 / spent)
        assert float(plan(MODEL, tl.Blocks(solver, 3), nfe=12)[-1]) == pytest.approx(3 / spent)
    assert float(plan(MODEL, tl.Blocks(tl.Tweedie(), 3), nfe=12)[-1]) == 0
    # three blocks of at least two evaluations, and one more for each
    assert len(plan(MODEL, tl.Blocks(tl.Trapezoidal(), 3), nfe=9)) == 4


# --- errors


def test_wrong_blocks() -> None:
    with pytest.raises(TypeError, match=r"give a solver to run in blocks, as in Blocks\(Trapezoidal\(\), 8\)"):
        tl.Blocks(tl.Blocks(tl.Tweedie(), 2), 4)
    with pytest.raises(TypeError, match="give a solver to run in blocks"):
        tl.Blocks(Tolerance(tl.Tweedie(), 0.1), 4)
    with pytest.raises(ValueError, match="length=0: give a whole number of at least 1"):
        tl.Blocks(tl.Tweedie(), 0)
    with pytest.raises(ValueError, match=r"solver=Blocks on process=Uniform.*use the solver without blocks here"):
        tl.sample(uniform(2, (3, 3)).model, tl.Blocks(tl.Tweedie(), 2), nfe=4)
    for stop in (-1, STATES):
        with pytest.raises(ValueError, match=f"stop={stop}: give a token, 0 to 2"):
            tl.sample(MODEL, tl.Blocks(tl.Tweedie(), 2, stop), nfe=4)


def test_too_few_steps_for_the_blocks() -> None:
    with pytest.raises(ValueError, match=r"steps=2: 3 blocks need at least one each; give more, or use larger blocks"):
        tl.sample(MODEL, tl.Blocks(tl.Tweedie(), 3), steps=2)
    with pytest.raises(ValueError, match=r"nfe=2: Blocks takes 1 per step: give at least 3"):
        tl.sample(MODEL, tl.Blocks(tl.Tweedie(), 3), nfe=2)
    with pytest.raises(ValueError, match=r"nfe=8: Blocks takes 2 per step, and 3 more to finish: give at least 9"):
        tl.sample(MODEL, tl.Blocks(tl.Trapezoidal(), 3), nfe=8)
    short = torch.tensor([0, 0, 0, 0, -1, -1, -1])
    assert tl.sample(MODEL, tl.Blocks(tl.Tweedie(), 3), steps=1, template=short).nfe.tolist() == [1]


def test_budgets_hold_where_a_run_ends_with_noise() -> None:
    """With a delta every block is finished on its own, and the budget has to pay for it."""
    model = tl.load("chain64")
    for length, nfe in ((16, 12), (8, 40)):
        out = tl.sample(model, tl.Blocks(tl.Tweedie(), length), nfe=nfe, delta=0.3, num=20)
        assert int(out.nfe.max()) <= nfe
