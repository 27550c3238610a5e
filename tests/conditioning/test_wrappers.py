"""Temperature, top-k, top-p and allowed tokens: they change which values positions take, not when a masked one goes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thetaleap as tl
from tests import reference
from tests.cases import EXACT, SOLVERS, STEPPING, Case, Entry, birth_death, masked, uniform, works
from thetaleap.conditioning.wrappers import Guided
from thetaleap.core.evaluation import Denoiser, Evaluation
from thetaleap.core.reverse import Reverse
from thetaleap.models.tokenizers import Letters
from thetaleap.planners.ordered import Ordered
from thetaleap.sampling import plan
from thetaleap.solvers import Solver

CASES = [masked(1, (3, 3, 3)), uniform(2, (3, 3, 3)), birth_death(3, (3, 3, 3))]
PAIRS = [(case, solver) for case in CASES for solver in SOLVERS if works(solver, case)]
EVERY_PAIR = pytest.mark.parametrize(
    ("case", "solver"),
    [pair for pair in PAIRS if pair[0] is not CASES[2]],
    ids=lambda it: it.name if isinstance(it, Case) else str(it),
)
INF = math.inf


def budget(solver: Solver) -> dict[str, Any]:
    return {} if solver.evaluations is None else {"nfe": 6}


def fixed(rows: list[list[float]], dtype: torch.dtype = torch.float64) -> tl.models.Network:
    """A model of one position that says the same of it, whatever the rest; a row for each sample."""
    table = torch.tensor(rows, dtype=dtype)
    return tl.from_network(tl.Masked(table.shape[1]), length=1, network=lambda x, t: table.unsqueeze(1))


def probabilities(model: Denoiser, count: int) -> Tensor:
    """The rows of the first position of so many masked samples, as solvers see them."""
    x = torch.full((count, model.length), model.process.states)
    return Reverse.begin(model, count).evaluate(x, 0.5).probabilities(torch.arange(count) * model.length)


# --- nothing asked, nothing changed


@EVERY_PAIR
def test_temperature_one_and_nothing_forbidden_change_nothing(case: Case, solver: Solver) -> None:
    plain = tl.sample(case.model, solver, num=3, seed=3, **budget(solver))
    same: Denoiser = tl.tempered(case.model, 1.0, top_k=3, top_p=1.0)
    if case.model.process.mask is not None or solver.exact_kernels:  # others would stop short of time 0
        same = tl.constrained(tl.tempered(same), forbid=[])
    out = tl.sample(same, solver, num=3, seed=3, **budget(solver))
    assert torch.equal(out.x, plain.x)
    assert torch.equal(out.nfe, plain.nfe)
    assert torch.equal(out.spent, plain.spent)
    assert out.info == plain.info


def test_a_shaped_model_is_like_the_one_inside() -> None:
    network = tl.from_network(
        tl.Masked(3),
        length=4,
        shape=(2, 2),
        tokenizer=Letters("abc"),
        time_free=True,
        network=lambda x, t: torch.zeros(1),
    )
    for model in (tl.tempered(network, 0.5), tl.constrained(tl.tempered(network, 2.0), allow=[1])):
        for name in ("process", "length", "horizon", "time_free", "device", "tokenizer", "shape"):
            assert getattr(model, name) == getattr(network, name)


# --- temperature, top-k and top-p, row by row


ROWS = st.integers(2, 7).flatmap(
    lambda states: st.lists(
        st.lists(st.one_of(st.integers(-4, 4), st.just(-INF)), min_size=states, max_size=states).filter(
            lambda row: max(row) > -INF
        ),
        min_size=1,
        max_size=4,
    )
)


def softmax(row: list[float]) -> list[float]:
    weights = [math.exp(value - max(row)) for value in row]
    return [weight / sum(weights) for weight in weights]


@settings(max_examples=40)
@given(rows=ROWS, temperature=st.sampled_from([0.05, 0.5, 1.0, 2.0, 30.0]))
def test_temperature_divides_logits(rows, temperature) -> None:
    seen = probabilities(tl.tempered(fixed(rows), temperature), len(rows))
    wanted = torch.tensor([softmax([value / temperature for value in row]) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(seen, wanted, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(seen.sum(1), torch.ones(len(rows), dtype=torch.float64))
    logits = torch.tensor(rows)
    assert bool((seen[torch.isneginf(logits)] == 0).all())
    for row, values in zip(seen, logits, strict=True):  # the order is kept
        assert bool((row[:, None] >= row)[values[:, None] >= values].all())


@settings(max_examples=40)
@given(rows=ROWS, k=st.integers(1, 8), temperature=st.sampled_from([0.5, 1.0]))
def test_top_k_keeps_k_values_and_all_ties(rows, k, temperature) -> None:
    seen = probabilities(tl.tempered(fixed(rows), temperature, top_k=k), len(rows))
    for got, row in zip(seen.tolist(), rows, strict=True):
        least = sorted(row, reverse=True)[min(k, len(row)) - 1]
        wanted = softmax([value / temperature if value >= least else -INF for value in row])
        assert got == pytest.approx(wanted, abs=1e-14)
        possible = sum(value > -INF for value in row)
        assert sum(p > 0 for p in got) >= min(k, possible)


@settings(max_examples=60)
@given(rows=ROWS, p=st.sampled_from([1e-9, 0.1, 0.37, 0.5, 0.83, 0.999, 1.0]), temperature=st.sampled_from([0.5, 1.0]))
def test_top_p_keeps_the_smallest_set_that_reaches_p(rows, p, temperature) -> None:
    seen = probabilities(tl.tempered(fixed(rows), temperature, top_p=p), len(rows))
    for got, row in zip(seen.tolist(), rows, strict=True):
        full = softmax([value / temperature for value in row])
        kept = [n for n, q in enumerate(got) if q > 0]
        total = math.fsum(full[n] for n in kept)
        assert total >= p - 1e-12
        assert total - min(full[n] for n in kept) < p + 1e-12, "without the last it would not be enough"
        assert min(full[n] for n in kept) >= max((q for n, q in enumerate(full) if n not in kept), default=0) - 1e-15
        assert [got[n] for n in kept] == pytest.approx([full[n] / total for n in kept])
        dropped = [n for n in range(len(row)) if n not in kept and full[n] == min(full[n] for n in kept)]
        assert all(n > max(m for m in kept if full[m] == full[n]) for n in dropped), "of equals the first stay"


@pytest.mark.parametrize(
    ("p", "kept"), [(0.5, [0]), (0.5000001, [0, 2]), (0.75, [0, 2]), (0.76, [0, 2, 1]), (1.0, [0, 1, 2, 3])]
)
def test_top_p_at_its_edges(p, kept) -> None:
    row = [math.log(q) for q in (8, 2, 4, 2)]
    seen = probabilities(tl.tempered(fixed([row]), top_p=p), 1)
    assert torch.nonzero(seen[0]).flatten().tolist() == sorted(kept)


def test_top_k_comes_before_top_p_and_after_temperature() -> None:
    """After top-k the row is (4/7, 3/7): 0.55 is reached by the first value, which of the whole row it is not."""
    row = [math.log(q) for q in (0.4, 0.3, 0.2, 0.1)]
    seen = probabilities(tl.tempered(fixed([row]), top_k=2, top_p=0.55), 1)
    assert seen.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert int((probabilities(tl.tempered(fixed([row]), top_p=0.55), 1) > 0).sum()) == 2
    assert int((probabilities(tl.tempered(fixed([row]), 0.25, top_p=0.55), 1) > 0).sum()) == 1


@settings(max_examples=40)
@given(rows=ROWS, k=st.sampled_from([None, 1, 2]), p=st.sampled_from([None, 0.3]))
def test_temperature_zero_is_the_first_of_the_likeliest(rows, k, p) -> None:
    seen = probabilities(tl.tempered(fixed(rows), 0, k, p), len(rows))
    assert seen.argmax(1).tolist() == [row.index(max(row)) for row in rows]
    assert bool(((seen == 0) | (seen == 1)).all())


@pytest.mark.parametrize("temperature", [1e-320, 1e-100, 1e300])
def test_extreme_temperatures_are_still_temperatures(temperature) -> None:
    seen = probabilities(tl.tempered(fixed([[700.0, -700.0, 3.0]]), temperature), 1)
    wanted = [1.0, 0.0, 0.0] if temperature < 1 else [1 / 3] * 3
    assert seen.tolist() == [pytest.approx(wanted)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.7}, {"top_k": 2}, {"top_p": 0.6}], ids=str)
def test_rough_logits_are_shaped_as_if_they_were_exact(dtype, options) -> None:
    rows = [[0.5, -1.25, 3.0, 3.0], [-INF, 2.0, 0.25, -8.0]]  # all of them exact in half precision
    rough, exact = tl.tempered(fixed(rows, dtype), **options), tl.tempered(fixed(rows), **options)
    torch.testing.assert_close(probabilities(rough, 2), probabilities(exact, 2), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("row", "message"),
    [([math.nan, 0.0], "logits=NaN"), ([INF, 0.0], r"logits=\+infinity"), ([-INF, -INF], "logits=minus infinity")],
)
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.5}, {"top_k": 1}, {"top_p": 0.5}], ids=str)
def test_bad_rows_are_not_mended(row, message, options) -> None:
    with pytest.raises(ValueError, match=message):
        probabilities(tl.tempered(fixed([row]), **options), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature=-0.1: give a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": INF}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0: give a whole number of at least 1"),
        ({"top_p": 0.0}, r"top_p=0.0: must lie in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p=1.5: must lie in \(0, 1\]"),
    ],
)
def test_wrong_temperatures(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        tl.tempered(CASES[0].model, **options)


# --- laws


class Shaped(reference.Truth):
    """The reference with conditionals changed by hand: to a power, and without some values."""

    power: float = 1.0
    without: tuple[int, ...] = ()

    def c(self, x: reference.State, position: int, t: float) -> np.ndarray:
        row = super().c(x, position, t) ** self.power
        row[list(self.without)] = 0
        return row / row.sum()


@pytest.mark.parametrize("case", [masked(0, (3, 3)), uniform(2, (3, 3))], ids=lambda case: case.name)
@pytest.mark.parametrize("entry", STEPPING, ids=lambda entry: entry.name)
def test_the_exact_law_is_that_of_conditionals_shaped_by_hand(entry: Entry, case: Case) -> None:
    truth = Shaped(case.truth.p0, case.truth.alpha, case.truth.sigma, case.truth.generator)
    object.__setattr__(truth, "power", 2.0)
    object.__setattr__(truth, "without", (1,))
    model = tl.constrained(tl.tempered(case.model, 0.5), forbid=[1])
    times = torch.tensor([*case.times[:-1], 0.01], dtype=torch.float64)
    law = tl.exact.law(model, entry.solver, times)
    wanted = reference.run(truth, times.tolist(), lambda x, t, s: entry.step(truth, x, t, s))
    np.testing.assert_allclose(law.numpy(), wanted, atol=1e-12)
    assert float(law[1].sum() + law[:, 1].sum()) < 1e-12


KNOWN = [
    solver
    for solver in SOLVERS
    if isinstance(solver, tl.TauLeaping | tl.Euler | tl.ExponentialTrapezoidal | tl.Multistep)
    or solver in EXACT
    or (isinstance(solver, tl.Tweedie) and isinstance(solver.planner, tl.Bernoulli | Ordered))
    or (isinstance(solver, tl.SemiAutoregressive) and solver.order == "random")
]
"""Solvers of masked processes which do not ask the model who goes."""

SHAPES: list[Any] = [
    lambda model: tl.tempered(model, 0.3),
    lambda model: tl.tempered(model, 0),
    lambda model: tl.tempered(model, 2.0, top_k=2, top_p=0.6),
    lambda model: tl.constrained(model, forbid=[0, 5]),
    lambda model: tl.guided(model, 2.5, torch.arange(12) < 4),
]


@pytest.mark.parametrize("solver", KNOWN, ids=str)
def test_the_same_positions_go_at_the_same_time_whatever_the_shape(solver: Solver) -> None:
    made = torch.randn(12, 7, 6, generator=torch.Generator().manual_seed(0))

    def network(x: Tensor, t: Tensor) -> Tensor:
        seen = made[torch.arange(12), x]
        return seen.sum(1, keepdim=True) - seen + made[:, -1]

    model = tl.from_network(tl.Masked(6), length=12, network=network, time_free=True)
    template = torch.full((12,), tl.FREE)
    template[:3] = torch.tensor([2, 3, 2])

    def path(shaped: Denoiser) -> tuple[list[Tensor], Tensor]:
        seen: list[Tensor] = []
        steps = 12 if isinstance(solver, tl.SemiAutoregressive) else 4
        out = tl.sample(
            shaped,
            solver,
            num=3 if isinstance(solver, tl.Uniformization) else 8,
            steps=steps,
            seed=8,
            template=template,
            on_step=lambda moment: seen.append(moment.x == model.process.mask),
        )
        return seen, out.nfe

    plain, nfe = path(model)
    assert any(bool(masks.any()) for masks in plain[1:-1]), "there is something to compare"
    for shape in SHAPES:
        shaped, spent = path(shape(model))
        assert all(torch.equal(a, b) for a, b in zip(plain, shaped, strict=True))
        assert torch.equal(spent, nfe * (2 if isinstance(shape(model), Guided) else 1))


# --- allowed and forbidden values


def table(data, length: int, states: int) -> Tensor:
    """Booleans, at least one in each row."""
    rows = st.lists(st.booleans(), min_size=states, max_size=states).filter(any)
    each = st.one_of(rows, st.lists(rows, min_size=length, max_size=length))
    return torch.tensor(data.draw(each))


@EVERY_PAIR
def test_no_solver_writes_forbidden_values(case: Case, solver: Solver) -> None:
    allowed = torch.tensor([[True, False, True], [False, True, True], [False, False, True]])
    out = tl.sample(tl.constrained(case.model, allowed), solver, num=3, **budget(solver))
    assert bool(allowed[torch.arange(3), out.x].all())


@settings(max_examples=40)
@given(st.data())
def test_forbidden_values_never_appear(data) -> None:
    quick = [pair for pair in PAIRS if not isinstance(pair[1], tl.Uniformization)]
    case, solver = data.draw(st.sampled_from(quick))
    allowed = table(data, 3, 3)
    form = data.draw(st.sampled_from(["allow", "forbid", "both"]))
    options = {"allow": allowed} if form == "allow" else {"forbid": ~allowed}
    if form == "both":
        extra = table(data, 3, 3) | allowed
        options = {"allow": extra, "forbid": ~allowed}
    if allowed.ndim == 1 and data.draw(st.booleans()):
        options = {name: torch.nonzero(value).flatten().tolist() for name, value in options.items()}
    rows = st.lists(st.integers(tl.FREE, 2), min_size=3, max_size=3)
    template = torch.tensor(data.draw(st.one_of(st.just([tl.FREE] * 3), rows)))
    model = tl.constrained(case.model, **options)
    if data.draw(st.booleans()):
        model = tl.tempered(model, data.draw(st.sampled_from([0.0, 0.5, 2.0])))
    out = tl.sample(model, solver, num=6, seed=data.draw(st.integers(0, 99)), template=template, **budget(solver))
    good = allowed.expand(3, 3)[torch.arange(3), out.x]
    free = template == tl.FREE
    assert bool(good[:, free].all())
    assert torch.equal(out.x[:, ~free], template[~free].expand(6, -1)), "what is given stays, allowed or not"
    assert solver.evaluations is None or int(out.nfe.max()) <= 6


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
@pytest.mark.parametrize("solver", [tl.Euler(), tl.Trapezoidal(), tl.TauLeaping(rule="reject"), tl.RK2()], ids=str)
def test_where_a_step_to_the_data_could_leave_forbidden_values_the_run_stops_before(case: Case, solver: Solver) -> None:
    model = tl.constrained(case.model, forbid=[0])
    assert float(plan(case.model, solver, nfe=5)[-1]) == 0
    for shaped in (model, tl.tempered(model, 0.5), tl.constrained(model, allow=[1, 2])):
        times = plan(shaped, solver, nfe=5)
        assert float(times[-1]) == pytest.approx(1e-3)
        out = tl.sample(shaped, solver, nfe=5, num=300, seed=1)
        assert int(out.x.min()) >= 1
        assert solver.evaluations is not None
        assert out.nfe.tolist() == [solver.evaluations * (len(times) - 1) + 1] * 300, "with one to finish"
        with pytest.raises(ValueError, match=r"delta=0\.0 with forbidden values.*leave delta out"):
            tl.sample(shaped, solver, nfe=5, delta=0.0)
    for exact in (tl.Tweedie(), tl.Multistep()):
        assert float(plan(model, exact, nfe=5)[-1]) == 0
        assert int(tl.sample(model, exact, nfe=5, num=300).x.min()) >= 1


def test_numbers_and_tables_say_the_same() -> None:
    model = CASES[0].model
    by_number = tl.constrained(model, allow=[0, 2]).allowed
    for same in (
        {"allow": torch.tensor([2, 0])},
        {"allow": [True, False, True]},
        {"allow": torch.tensor([True, False, True])},
        {"forbid": [1]},
        {"forbid": torch.tensor([[False, True, False]] * 3).T.contiguous().T},
        {"allow": range(3), "forbid": (1,)},
    ):
        assert torch.equal(tl.constrained(model, **same).allowed.expand(3, 3), by_number.expand(3, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"\(allow, forbid\)=\(None, None\): give at least one"),
        ({"allow": []}, "no value is left for any position; allow at least one"),
        ({"forbid": [0, 1, 2]}, "no value is left for any position"),
        ({"allow": [0], "forbid": [0]}, "no value is left for any position"),
        ({"allow": [1], "forbid": torch.eye(3) == 1}, "no value is left for position 1"),
        ({"allow": [3]}, "allow=3: values are 0 to 2"),
        ({"forbid": [-1]}, "forbid=-1: values are 0 to 2"),
        ({"allow": torch.ones(4, dtype=torch.bool)}, r"allow shape=\(4,\): give \(3,\) or \(3, 3\)"),
        ({"forbid": torch.ones((2, 3), dtype=torch.bool)}, r"forbid shape=\(2, 3\)"),
    ],
)
def test_wrong_constraints(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        tl.constrained(CASES[0].model, **options)
    with pytest.raises(TypeError, match=r"forbid=.*give values by number"):
        tl.constrained(CASES[0].model, forbid=torch.tensor([0.0, 1.5]))


def test_a_model_that_wants_nothing_but_what_is_forbidden() -> None:
    network = fixed([[0.0, -INF, -INF]])
    with pytest.raises(ValueError, match=r"minus infinity for every value.*sample 0, position 0"):
        tl.sample(tl.constrained(network, forbid=[0]), tl.Tweedie(), nfe=1)
    assert isinstance(Reverse.begin(network, 1).evaluate(torch.tensor([[3]]), 0.5), Evaluation)


def test_a_grid_that_ends_at_the_data_is_refused_where_values_would_be_left_behind() -> None:
    model = tl.constrained(tl.load("cube3-uniform"), forbid=[1])
    with pytest.raises(ValueError, match="Euler may leave them behind"):
        tl.sample(model, tl.Euler(), grid=tl.grids.uniform(6.0, 0.0, 8), num=5)
    assert 1 not in tl.sample(model, tl.Euler(), grid=tl.grids.uniform(6.0, 0.01, 8), num=50).x
