"""Schedules and grids: inverse functions, derivatives, ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import thetaleap as tl
from thetaleap.control import Method
from thetaleap.core.schedules import Schedule

SCHEDULES = [tl.LogLinear(), tl.LogLinear(1e-5), tl.Cosine(), tl.Geometric(), tl.Constant(), tl.Constant(0.3)]
GRIDS = [tl.grids.uniform, tl.grids.power, tl.grids.cosine, tl.grids.logarithmic]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@given(u=st.floats(1e-6, 1))
def test_inverse_and_derivative(schedule, u) -> None:
    t = u * schedule.horizon
    assert float(schedule.alpha_inverse(schedule.alpha(t))) == pytest.approx(t, rel=1e-6, abs=1e-9)
    time = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(-torch.log(schedule.alpha(time)), time)
    assert float(schedule.sigma(t)) == pytest.approx(float(slope), rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_noise_grows(schedule) -> None:
    alpha = schedule.alpha(torch.linspace(0, schedule.horizon, 100, dtype=torch.float64))
    assert bool((alpha.diff() < 0).all())
    assert float(alpha[0]) == (1 if not isinstance(schedule, tl.Geometric) else pytest.approx(math.exp(-1e-3)))


def test_log_linear_is_what_the_paper_writes() -> None:
    s, t, eps = tl.LogLinear(), 0.37, 1e-3
    assert float(s.sigma(t)) == pytest.approx((1 - eps) / (1 - (1 - eps) * t))
    assert -math.log(float(s.alpha(t))) == pytest.approx(-math.log(1 - (1 - eps) * t))


@pytest.mark.parametrize("grid", GRIDS)
@given(steps=st.integers(1, 200), start=st.floats(0.1, 50), share=st.floats(1e-6, 0.5))
def test_grids_decrease_between_their_ends(grid, steps, start, share) -> None:
    times = grid(start, start * share, steps)
    assert len(times) == steps + 1
    assert float(times[0]) == start
    assert float(times[-1]) == start * share
    assert bool((times.diff() < 0).all())


def test_shapes_of_grids() -> None:
    assert tl.grids.power(1.0, 0.0, 2).tolist() == [1.0, 0.25, 0.0]
    assert tl.grids.power(1.0, 0.0, 2, exponent=3.0).tolist() == [1.0, 0.125, 0.0]
    assert tl.grids.cosine(1.0, 0.0, 2).tolist() == pytest.approx([1.0, math.sqrt(0.5), 0.0])
    assert tl.grids.logarithmic(1.0, 0.01, 2).tolist() == pytest.approx([1.0, 0.1, 0.01])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tl.LogLinear(0.0), "eps=0.0"),
        (lambda: tl.LogLinear(1.0), "eps=1.0"),
        (lambda: tl.Cosine(-1), "eps=-1"),
        (lambda: tl.Geometric(2.0, 1.0), "low < high"),
        (lambda: tl.Constant(0), "rate=0"),
        (lambda: tl.Constant(float("nan")), "rate=nan"),
        (lambda: tl.grids.uniform(1.0, 1.0, 4), "end < start"),
        (lambda: tl.grids.uniform(1.0, 0.0, 0), "steps=0"),
        (lambda: tl.grids.logarithmic(1.0, 0.0, 4), "delta > 0"),
        (lambda: tl.grids.power(1.0, 0.0, 4, exponent=0), "exponent=0"),
    ],
)
def test_bad_arguments(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@dataclass
class Mutable:
    """A schedule of someone's own, which cannot be hashed."""

    eps: float = 1e-3
    horizon = 1.0

    def alpha(self, t: float | torch.Tensor) -> torch.Tensor:
        return tl.LogLinear(self.eps).alpha(t)

    def sigma(self, t: float | torch.Tensor) -> torch.Tensor:
        return tl.LogLinear(self.eps).sigma(t)

    def alpha_inverse(self, a: float | torch.Tensor) -> torch.Tensor:
        return tl.LogLinear(self.eps).alpha_inverse(a)


@pytest.mark.parametrize("solver", [tl.Tweedie(), tl.Multistep(), tl.Trapezoidal()], ids=repr)
def test_a_schedule_that_can_be_changed_is_asked_every_time(solver: Method) -> None:
    schedule = Mutable(0.3)

    def drawn(schedule: Schedule) -> torch.Tensor:
        process = tl.Masked(3, schedule)
        model = tl.from_network(process, length=6, network=lambda x, t: torch.arange(3.0).expand(*x.shape, 3))
        return tl.sample(model, solver, steps=4, num=50).x

    assert torch.equal(drawn(schedule), drawn(tl.LogLinear(0.3)))
    schedule.eps = 0.01
    assert torch.equal(drawn(schedule), drawn(tl.LogLinear(0.01)))
