"""Samples and exact laws run the same lines of every planner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import thetaleap as tl
from tests.cases import masked
from tests.solvers.test_remasking import PLANNERS, Remasking
from thetaleap import planners
from thetaleap.control import Method
from thetaleap.core.noise import Stream
from thetaleap.planners import Plan, Planner

FOLDER = str(Path(planners.__file__).parent)
GRID = tl.grids.uniform(1.0, 0.0, 3)
MODEL = masked(8, (2, 2, 2, 2)).model


def lines_run(call: Callable[[], object], folder: str) -> set[tuple[str, int]]:
    """The lines of files in `folder` that `call` runs."""
    seen: set[tuple[str, int]] = set()

    def inside(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
        return inside

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return inside if frame.f_code.co_filename.startswith(folder) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return seen


def both(method: Method, folder: str = FOLDER) -> list[set[tuple[str, int]]]:
    grid = GRID if method != tl.Tweedie(tl.EntropyBounded()) else tl.grids.uniform(1.0, 0.01, 3)
    calls = (lambda: tl.sample(MODEL, method, grid=grid, num=40), lambda: tl.exact.law(MODEL, method, grid))
    for call in calls:  # what is worked out once and kept is not part of it
        call()
    return [lines_run(call, folder) for call in calls]


@pytest.mark.parametrize("planner", PLANNERS, ids=repr)
@pytest.mark.parametrize("kind", [tl.Tweedie, Remasking])
def test_the_same_lines(kind: Any, planner: Planner) -> None:
    drawn, enumerated = both(kind(planner))
    assert drawn == enumerated
    assert len(drawn) >= 5


def test_multistep_too() -> None:
    for planner in (tl.Bernoulli(), tl.FixedCount(), tl.LowDiscrepancy()):
        drawn, enumerated = both(tl.Multistep(planner=planner))
        assert drawn == enumerated


@dataclass(frozen=True)
class Curious(Planner):
    """Asks which noise it has, as no planner may."""

    def begin(self, reverse: Any, x: torch.Tensor, stops: torch.Tensor, noise: Any) -> Plan:
        return tl.FixedCount().begin(reverse, x, stops, noise)

    def move(self, reverse: Any, x: Any, prediction: Any, t: Any, s: Any, noise: Any, plan: Plan) -> Any:
        if isinstance(noise, Stream):
            return tl.FixedCount().move(reverse, x, prediction, t, s, noise, plan)
        return tl.FixedCount().move(reverse, x, prediction, t, s, noise, plan)


def test_a_planner_that_asks_which_noise_it_has_is_caught() -> None:
    drawn, enumerated = both(tl.Tweedie(Curious()), str(Path(__file__)))
    assert drawn != enumerated
