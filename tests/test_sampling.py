"""`sample`: grids, budgets, callbacks, networks, and errors that help."""

from __future__ import annotations

import inspect
import itertools
import math
from dataclasses import dataclass

import pytest
import torch

import thetaleap as tl
from thetaleap.core.checks import require_choice, require_number
from thetaleap.sampling import plan

CUBE, MOVING, TOY = tl.load("cube3"), tl.load("cube3-uniform"), tl.load("toy15")


def test_the_example_of_the_readme_works() -> None:
    p0 = torch.full((15,), 1 / 15, dtype=torch.float64)
    process = tl.Uniform(states=15, schedule=tl.Constant())
    model = tl.oracles.joint(p0, process, horizon=12.0)
    out = tl.sample(model, tl.Trapezoidal(theta=0.5, rule="exact"), nfe=128, num=1000, seed=0)
    assert out.x.shape == (1000, 1)
    assert out.nfe.tolist() == [128] * 1000
    assert 0.9 < out.info["positive"] <= 1
    assert tl.exact.law(model, tl.Tweedie(), tl.grids.uniform(12.0, 0.0, 4)).shape == (15,)


def test_nfe_steps_and_grid_say_the_same() -> None:
    by_nfe = tl.sample(MOVING, tl.Trapezoidal(), nfe=8, num=50)
    by_steps = tl.sample(MOVING, tl.Trapezoidal(), steps=4, num=50)
    by_grid = tl.sample(MOVING, tl.Trapezoidal(), grid=tl.grids.uniform(6.0, 0.0, 4), num=50)
    assert torch.equal(by_nfe.x, by_steps.x)
    assert torch.equal(by_nfe.x, by_grid.x)
    curved = tl.sample(MOVING, tl.Trapezoidal(), nfe=8, grid=tl.grids.power, num=50)
    assert torch.equal(curved.x, tl.sample(MOVING, tl.Trapezoidal(), grid=tl.grids.power(6.0, 0.0, 4), num=50).x)


def test_masked_models_stop_early_and_are_filled() -> None:
    """From the grid's last time on, one counted evaluation for the samples that still hold masks."""
    seen: list[tl.Moment] = []
    out = tl.sample(CUBE, tl.TauLeaping(), steps=3, num=500, on_step=seen.append)
    before, after = seen[-2], seen[-1]
    left = (before.x == CUBE.process.mask).any(1)
    assert before.t == pytest.approx(1 / 4)  # a stretch for each of the three, and one for the last
    assert 0 < int(left.sum()) < 500
    assert torch.equal(after.nfe - before.nfe, left.long())
    assert torch.equal(after.x[~left], before.x[~left])
    assert torch.equal(out.nfe, after.nfe)
    assert not bool((out.x == CUBE.process.mask).any())


@pytest.mark.parametrize(
    "solver", [tl.Euler(), tl.TauLeaping(), tl.AdamsBashforth(), tl.RK2(), tl.Trapezoidal()], ids=str
)
def test_budgets_are_spent(solver: tl.solvers.Solver) -> None:
    """All of an odd budget; a two-stage method cannot spend an even one beside the last evaluation."""
    for nfe in (4, 5, 8):
        out = tl.sample(tl.load("mixture32"), solver, nfe=nfe, num=20)
        spent = nfe if solver.evaluations == 1 else nfe - 1 + nfe % 2
        assert out.nfe.tolist() == [spent] * 20
        model = tl.load("chain64")
        blocks = tl.Blocks(solver, 32)
        assert plan(model, blocks, nfe=12)[-1] == pytest.approx(1 / 6)
        assert int(tl.sample(model, blocks, nfe=12, num=20).nfe.max()) <= 12


def test_euler_is_tweedie_where_intensities_are_those_of_the_schedule() -> None:
    """On masked log-linear models, at equal evaluations."""
    for nfe in (2, 4, 7):
        laws = [tl.exact.law(CUBE, solver, plan(CUBE, solver, nfe=nfe)) for solver in (tl.Euler(), tl.Tweedie())]
        assert torch.allclose(*laws, rtol=0, atol=1e-14)


def test_finished_samples_cost_nothing() -> None:
    out = tl.sample(CUBE, tl.Tweedie(), steps=50, num=500)
    assert int(out.nfe.max()) <= 50
    assert int(out.nfe.min()) < 45


def test_delta() -> None:
    last: list[float] = []
    tl.sample(CUBE, tl.Trapezoidal(), steps=2, delta=0.1, on_step=lambda moment: last.append(moment.t))
    assert last == pytest.approx([1.0, 0.55, 0.1, 0.0])
    tl.sample(CUBE, tl.Trapezoidal(), steps=2, delta=0.0, num=20)  # t = 0 itself is allowed
    budget = tl.sample(MOVING, tl.Tweedie(), nfe=4, delta=0.5, num=5)
    assert budget.nfe.tolist() == [4] * 5  # three steps and the finish


def test_uniformization_on_a_masked_model_looks_only_at_masks() -> None:
    out = tl.sample(tl.load("mixture32"), tl.Uniformization(), num=50)
    assert 0 <= int(out.x.min()) <= int(out.x.max()) < 6
    # 32 positions are unmasked, with few candidates in vain; candidates at unmasked positions are not looked at
    assert 32 <= float(out.nfe.double().mean()) <= 45


def test_geometric_noise_is_finished() -> None:
    """At t = 0 the geometric schedule still has some noise; samples are data all the same."""
    model = tl.oracles.joint(torch.tensor([1.0, 0.0], dtype=torch.float64), tl.Uniform(2, tl.Geometric()))
    out = tl.sample(model, tl.Tweedie(), nfe=5, num=200)
    assert out.nfe.tolist() == [5] * 200
    assert out.x.sum() == 0


def test_on_step_sees_the_whole_trajectory() -> None:
    seen: list[tl.Moment] = []
    out = tl.sample(CUBE, tl.Tweedie(), nfe=4, num=5, batch_size=2, on_step=seen.append)
    assert [moment.step for moment in seen] == [0, 1, 2, 3, 4, 5] * 3
    assert [moment.first for moment in seen[::6]] == [0, 2, 4]
    assert all(bool((moment.x == CUBE.process.mask).all()) for moment in seen[::6])
    assert torch.equal(torch.cat([moment.x for moment in seen[5::6]]), out.x)
    assert not any(bool(moment.nfe.any()) for moment in seen[::6]), "counts of a moment stay as they were"
    assert all(moment.nfe.tolist() == [1] * len(moment.nfe) for moment in seen[1::6])
    for earlier, later in itertools.pairwise(seen):
        if later.step:
            kept = earlier.x != CUBE.process.mask
            assert torch.equal(earlier.x[kept], later.x[kept])


def test_samples_are_run_in_batches() -> None:
    """What is in work at once does not grow with `num`: 128 MiB of rows at most, or what the user says."""
    sizes: list[int] = []
    tl.sample(TOY, tl.TauLeaping(), steps=1, num=300_000, on_step=lambda moment: sizes.append(len(moment.x)))
    assert max(sizes) * 15 * 32 <= 128 * 2**20
    assert sum(sizes) == 3 * 300_000
    sizes.clear()
    tl.sample(TOY, tl.TauLeaping(), steps=1, num=10, batch_size=4, on_step=lambda moment: sizes.append(len(moment.x)))
    assert sizes == [4] * 6 + [2] * 3


def test_progress_bar(capfd) -> None:
    tl.sample(CUBE, tl.Tweedie(), nfe=2, progress=True)
    assert "sampling" in capfd.readouterr().err
    tl.sample(CUBE, tl.Tweedie(), nfe=2, progress=False)
    assert capfd.readouterr().err == ""


class Recorder:
    """A network that gives an oracle's logits, and remembers how it was called."""

    def __init__(self, model) -> None:
        self.model, self.calls = model, []

    def __call__(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.calls.append((x.clone(), t.clone()))
        rows = self.model(x, t).logits(torch.arange(x.numel()))
        return rows.view(*x.shape, -1).clamp_min(-1e9)


@pytest.mark.parametrize("model", [CUBE, MOVING], ids=["masked", "uniform"])
def test_a_network_gives_what_its_oracle_gives(model) -> None:
    network = Recorder(model)
    own = tl.from_network(model.process, length=3, network=network, horizon=model.horizon)
    own.inspect()
    network.calls.clear()
    solver = tl.Trapezoidal()
    out = tl.sample(own, solver, nfe=9, num=40, seed=3)
    assert torch.equal(out.x, tl.sample(model, solver, nfe=9, num=40, seed=3).x)
    rows = sum(len(x) for x, _ in network.calls)
    assert rows == int(out.nfe.sum()), "an evaluation is counted where the network is called"
    assert all(t.shape == (len(x),) and t.dtype == torch.float64 for x, t in network.calls)


def test_a_caller_s_logits_are_not_changed() -> None:
    logits = torch.randn(1, 3, 3, generator=torch.Generator().manual_seed(0))
    copy = logits.clone()
    own = tl.from_network(tl.Masked(3), length=3, network=lambda x, t: logits.expand(len(x), 3, 3))
    for solver in (tl.Tweedie(), tl.RK2(), tl.Trapezoidal(), tl.ParallelDecoding(), tl.SemiAutoregressive()):
        tl.sample(own, solver, nfe=5, num=4)
    assert torch.equal(logits, copy)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_networks_of_any_precision(dtype) -> None:
    """These logits are exact in all of them, and so samples are the same: those of the law of one position.

    A count is beyond seven standard deviations with probability 3e-12; a law that is off by 0.03 is found.
    """
    logits = torch.tensor([-1.0, -1.0, 0.5], dtype=torch.float64)

    def drawn(dtype: torch.dtype) -> torch.Tensor:
        network = lambda x, t: logits.to(dtype).expand(*x.shape, 3)  # noqa: E731
        return tl.sample(tl.from_network(tl.Masked(3), length=4, network=network), tl.Tweedie(), nfe=4, num=5000).x

    x, law = drawn(dtype), torch.softmax(logits, 0)
    assert torch.equal(x, drawn(torch.float64))
    deviation = (20000 * law * (1 - law)).sqrt()
    assert bool(((torch.bincount(x.flatten(), minlength=3) - 20000 * law).abs() < 7 * deviation).all())


def broken(value: float, position: int = 1):
    """A network with one bad logit from the second evaluation of a run on."""
    calls = [0]

    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        logits = torch.zeros((*x.shape, 3))
        if calls[0] > 1:
            logits[-1, position] = value
        return logits

    model = tl.from_network(tl.Uniform(3), length=2, network=network, horizon=1.0)
    object.__setattr__(model, "name", "looked through")
    return model


@pytest.mark.parametrize(
    ("value", "word"), [(math.nan, "NaN"), (math.inf, r"\+infinity"), (-math.inf, "minus infinity for every value")]
)
def test_bad_logits_are_found_where_they_are(value, word) -> None:
    with pytest.raises(ValueError, match=rf"logits={word} in step 2 \(down to t = 0\), sample 6, position 1"):
        tl.sample(broken(value), tl.Tweedie(), nfe=2, num=7)


def test_minus_infinity_forbids() -> None:
    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros((*x.shape, 3))
        logits[..., 1] = -math.inf
        return logits

    out = tl.sample(tl.from_network(tl.Masked(3), length=5, network=network), tl.Trapezoidal(), nfe=9, num=200)
    assert not bool((out.x == 1).any())


def flat(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.zeros((*x.shape, 3))


def grid(*times: float) -> torch.Tensor:
    return torch.tensor(times, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tl.Trapezoidal(theta=0), r"theta=0: must lie in \(0, 1\)"),
        (lambda: tl.Trapezoidal(theta=1.0), r"theta=1.0: must lie in \(0, 1\)"),
        (lambda: tl.RK2(theta=1.5), r"theta=1.5: must lie in \(0, 1\]"),
        (lambda: tl.RK2(theta=math.nan), "theta=nan"),
        (lambda: tl.ParallelDecoding(randomness=-1.0), "randomness=-1"),
        (lambda: tl.SemiAutoregressive(block_length=0), "block_length=0"),
        (lambda: tl.sample(CUBE, tl.Tweedie()), "nfe=64"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), nfe=4, steps=4), "give one of them"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), nfe=4, grid=grid(1, 0)), "nfe=4: the grid says it already"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), nfe=0), "nfe=0"),
        (lambda: tl.sample(CUBE, tl.Trapezoidal(), nfe=2), "nfe=2: Trapezoidal takes 2 per step, and one more"),
        (lambda: tl.sample(MOVING, tl.RK2(), nfe=1), "nfe=1: RK2 takes 2 per step: give at least 2"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), nfe=4, num=0), "num=0"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), nfe=4, batch_size=0), "batch_size=0"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), nfe=4, delta=1.0), r"delta=1.0: give a time in \[0, 1\)"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), nfe=4, delta=math.nan), "delta=nan"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), nfe=4, seed=-1), "seed=-1"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), grid=grid(0.1, 0.5)), "must decrease strictly"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), grid=grid(1.0, 0.5, 0.5)), r"grid\[1:3\]"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), grid=grid(1.5, 0.5)), "must stay within"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), grid=grid(1.0, -0.5)), "must stay within"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), grid=grid(1.0, math.nan)), "NaN"),
        (lambda: tl.sample(CUBE, tl.Tweedie(), grid=grid(1.0)), "at least two times"),
        (lambda: tl.sample(CUBE, tl.FirstHitting(), nfe=4), "as many evaluations as it takes"),
        (lambda: tl.sample(MOVING, tl.Uniformization(), delta=0.0), "grid end=0.0"),
        (lambda: tl.sample(MOVING, tl.FirstHitting()), r"use Uniformization\(\)"),
        (lambda: tl.sample(MOVING, tl.ParallelDecoding(), nfe=4), "Masked process; use Tweedie"),
        (
            lambda: tl.sample(CUBE, tl.SemiAutoregressive(block_length=1), nfe=2),
            "nfe=2: Blocks takes 1 per step: give at least 3",
        ),
        (lambda: tl.load("toy51"), "did you mean 'toy15'"),
        (lambda: tl.load("nonsense"), "choose one of toy15"),
        (lambda: tl.from_network(tl.Masked(3), length=0, network=flat), "length=0"),
        (lambda: tl.from_network(tl.Masked(3), length=2, network=flat, horizon=-1), "horizon=-1"),
        (lambda: tl.sample(tl.from_network(tl.Masked(4), length=2, network=flat), tl.Tweedie(), nfe=2), "states"),
        (lambda: tl.exact.law(tl.load("chain64"), tl.Tweedie(), grid(1, 0)), "exact laws are for at most"),
    ],
)
def test_bad_arguments(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_bad_rule_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="rule='exakt': did you mean 'exact'"):
        require_choice("rule", "exakt", ("exact", "reject"))


def test_integer_logits_are_refused() -> None:
    own = tl.from_network(tl.Masked(3), length=2, network=lambda x, t: torch.zeros((*x.shape, 3), dtype=torch.int64))
    with pytest.raises(TypeError, match="floating-point logits"):
        tl.sample(own, tl.Tweedie(), nfe=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: require_number("theta", "half", 0, 1), "theta='half': give a number"),
        (lambda: require_number("theta", True, 0, 1), "theta=True: give a number"),
        (lambda: require_number("theta", 0.5, 0.6, 1, closed="both"), r"theta=0.5: must lie in \[0.6, 1\]"),
    ],
)
def test_numbers_are_numbers(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_schedule_that_cannot_be_hashed() -> None:
    """Times are kept by schedule where that can be a key, and nothing changes where it cannot."""

    @dataclass
    class Line:
        horizon: float = 1.0

        def alpha(self, t: float | torch.Tensor) -> torch.Tensor:
            return tl.LogLinear().alpha(t)

        def sigma(self, t: float | torch.Tensor) -> torch.Tensor:
            return tl.LogLinear().sigma(t)

        def alpha_inverse(self, a: float | torch.Tensor) -> torch.Tensor:
            return tl.LogLinear().alpha_inverse(a)

    own, known = (tl.oracles.joint(CUBE.p0, tl.Masked(3, schedule)) for schedule in (Line(), tl.LogLinear()))
    assert torch.equal(*(tl.sample(model, tl.Tweedie(), nfe=3, num=20).x for model in (own, known)))


@pytest.mark.parametrize("solver", [tl.Multistep, tl.Trapezoidal, tl.Tweedie, tl.ExponentialTrapezoidal])
def test_a_step_is_a_few_lines_without_gather_or_scatter(solver) -> None:
    lines = inspect.getsource(inspect.unwrap(solver.step)).strip().splitlines()[1:]
    assert len(lines) <= 12
    assert not any(word in line for line in lines for word in ("index_copy", "gather", "scatter", "[rows]"))
