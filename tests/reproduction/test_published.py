"""The habits of published code: each does what it says, and all together are what the paper writes down, and more."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import thetaleap as tl
from thetaleap.core.intensity import Combined
from thetaleap.core.reverse import Reverse
from thetaleap.reproduction import settings
from thetaleap.reproduction.methods import AUTO, drawn_by
from thetaleap.reproduction.published import LAST, QUIRKS, Published, Rates, ramp
from thetaleap.reproduction.settings import ALL, NONE

from .test_images_experiment import one_of_each, rows_of, stamps
from .test_legacy import close, mixture
from .test_text_experiment import letters, unigrams
from .test_text_experiment import rows_of as text_rows

GRID = torch.tensor([1.0, 0.6, 0.3, 0.1], dtype=torch.float64)


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (Published("trapezoidal", ("drop", "clamp")), tl.Trapezoidal(0.5, "reject")),
        (Published("trapezoidal", ("clamp",), 0.3), tl.Trapezoidal(0.3)),
        (Published("tau-leaping", ("drop",)), tl.TauLeaping("reject")),
        (Published("tau-leaping", ()), tl.TauLeaping()),
    ],
    ids=["dropped", "kept", "tau-leaping dropped", "tau-leaping kept"],
)
def test_exact_laws_are_the_library_s(mine: Published, other: Any) -> None:
    model = tl.load("cube3")
    one, two = (tl.exact.law(model, solver, GRID) for solver in (mine, other))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-13)


def test_each_changes_the_law() -> None:
    """But for half precision, which on three binary positions is far below all others."""
    model = tl.load("cube3")
    plain = tl.exact.law(model, Published("trapezoidal", ()), GRID)
    gaps = {
        name: float((tl.exact.law(model, Published("trapezoidal", (name,)), GRID) - plain).abs().sum()) / 2
        for name in ("drop", "clamp", "argmax", "half")
    }
    assert min(gaps[name] for name in ("drop", "argmax")) > 1e-3
    assert 1e-9 < gaps["half"] < 1e-3
    assert gaps["clamp"] >= 0


def test_rates() -> None:
    """Without "clamp" totals are those of the extrapolation; with it they are larger where entries were negative."""
    model = tl.load("chain64")
    x = torch.full((4, 64), model.process.mask)
    y = x.clone()
    y[:, ::2] = torch.randint(0, model.process.states, (4, 32), generator=torch.Generator().manual_seed(0))
    reverse = Reverse.begin(model, 4)
    of = Combined(y, reverse.intensity(x, 0.8), reverse.intensity(y, 0.7), 2.0)
    masked = torch.nonzero((y == model.process.mask).flatten()).flatten()
    signed = of.rows(masked).clone()
    assert bool((signed < 0).any())
    kept, clamped = (Rates(of, clamp, False).rows(masked) for clamp in (False, True))
    assert torch.equal(clamped, signed.clamp_min(0))
    torch.testing.assert_close(kept.sum(1), signed.sum(1))
    assert float(clamped.sum()) > float(kept.sum()) * 1.001
    half = Rates(of, True, True)
    rounded = half.rows(masked)
    assert torch.equal(rounded, rounded.half().double())
    assert bool((rounded.sum(1) <= half.bound().expand_as(y).flatten()[masked]).all()), "the bound holds after rounding"


def test_the_grid_and_the_budget() -> None:
    """n evaluations: n - 1 steps of one stage, or half as many of two, and the one that fills what is left."""
    one, two = Published("tau-leaping"), Published("trapezoidal")
    assert torch.equal(one.walk(1, 9)["grid"], torch.linspace(1, LAST, 9, dtype=torch.float64))
    assert len(two.walk(1, 9)["grid"]) == 5
    assert Published("trapezoidal", ()).walk(2, 18) == {"steps": 4}
    for solver in (one, two, Published("trapezoidal", ()), Published("trapezoidal", ("grid",))):
        assert int(drawn_by(mixture(), solver, 9, num=20, progress=False).nfe.max()) == 9
    with pytest.raises(ValueError, match="nfe=2: trapezoidal takes 2 a step, and one to finish: at least 3"):
        two.walk(1, 2)


def test_what_is_left_becomes_the_likeliest() -> None:
    """One step to 1/2 drops what is left of a position to the likeliest value, 0. False alarm below 1e-6."""
    num = 300
    grid = torch.tensor([1.0, 0.5], dtype=torch.float64)
    out = tl.sample(mixture(), Published("tau-leaping", ("drop", "argmax")), grid=grid, num=num, seed=1)
    goes = 0.5 * math.exp(-0.5)
    for value, c in ((1, 0.3), (2, 0.2)):
        assert close(float((out.x == value).double().mean()), goes * c, 64 * num)
    drawn = tl.sample(mixture(), Published("tau-leaping", ("drop",)), grid=grid, num=num, seed=1)
    assert close(float((drawn.x == 2).double().mean()), 0.2, 64 * num)


def test_the_ramp() -> None:
    assert ramp(3.0)(torch.tensor([1.0, 0.25])).tolist() == [0.0, 2.25]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="dorp"):
        Published("trapezoidal", ("dorp",))
    with pytest.raises(ValueError, match="needs a Masked process"):
        tl.sample(tl.load("cube3-uniform"), Published(), grid=GRID)


# --- the table


def test_text_without_a_ramp(tmp_path: Path) -> None:
    """The model's letters do not depend on each other, so that no habit matters but the likeliest value."""
    report = settings.run(tmp_path, num=60, progress=False, model=letters(), judge=unigrams())
    rows = {one["method"]: one for one in text_rows(tmp_path, "legacy")}
    assert list(rows) == [NONE, *(name for name in QUIRKS if name != "ramp"), ALL, AUTO]
    changes = {
        name: float(one["change_entropy"]) / max(float(one["change_entropy_se"]), 1e-12)
        for name, one in rows.items()
        if name != NONE
    }
    assert changes["argmax"] < -5
    assert abs(changes["clamp"]) < 1
    assert rows[NONE]["change_entropy"] == ""
    assert "Argmax changes unigram entropy" in " ".join(report.text.split())
    assert all(int(one["most_evaluations"]) <= 3 for one in rows.values())


def test_images_with_a_ramp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In three steps, at two evaluations of the network for each that is guided."""
    monkeypatch.setattr(settings, "RATIO", 1 / 28)
    settings.run(tmp_path, num=40, progress=False, model=stamps(one_of_each()))
    rows = text_rows(tmp_path, "legacy")
    assert [one["method"] for one in rows] == [NONE, *QUIRKS, ALL, AUTO]
    assert all(float(one["distance"]) > 0 and int(one["most_evaluations"]) <= 14 for one in rows)


def test_legacy_rows_of_images(tmp_path: Path) -> None:
    from thetaleap.reproduction import images

    images.run(tmp_path, num=40, progress=False, model=stamps(one_of_each()), budgets=(6,), legacy=True)
    known = [one["method"] for one in rows_of(tmp_path)]
    assert {"tau-leaping (published code)", "theta-Trapezoidal (published code)"} < set(known)
