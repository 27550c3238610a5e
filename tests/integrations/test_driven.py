"""Runs whose network somebody else runs draw what `sample` draws, to the token."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests.cases import MASKED, MOVING, SOLVERS, Case, informed, works
from thetaleap.conditioning.answering import Manner
from thetaleap.control import Method
from thetaleap.integrations.driven import Driven, seed_of
from thetaleap.models.network import Network

NUM = 6


def said(model: Any, x: Tensor, t: Any) -> Tensor:
    """Logits (b, d, S) of a model."""
    time = torch.as_tensor(t, dtype=torch.float64)
    return model(x, time).logits(torch.arange(x.numel())).view(*x.shape, -1)


def network(case: Case) -> Network:
    """The oracle of a case as a network, of which nobody knows which samples are duplicates."""
    oracle = case.model
    return tl.from_network(
        oracle.process,
        length=oracle.length,
        network=lambda x, t: said(oracle, x, t),
        time_free=oracle.process.mask is not None,
    )


def drive(model: Network, run: Driven) -> tuple[Tensor, int]:
    """The samples, and how often the network was asked."""
    asked = 0
    while not run.done:
        run.tell(said(model, run.x, run.t), run.x)
        asked += 1
    return run.x, asked


CASES = [MASKED[1], MOVING[1]]


@pytest.mark.parametrize(
    ("case", "solver"),
    [
        pytest.param(case, solver, id=f"{case.name} {solver}")
        for case in CASES
        for solver in SOLVERS
        if works(solver, case) and not (informed(solver) and case in MASKED)
    ],
)
def test_every_solver_draws_the_same_tokens(case: Case, solver: Method) -> None:
    model, start = network(case), []
    budget: dict[str, Any] = {"steps": 3} if solver.evaluations is None else {"nfe": 7}
    drawn = tl.sample(model, solver, **budget, num=NUM, seed=3, on_step=lambda moment: start.append(moment.x))
    run = Driven(Manner(solver, **budget), model.process, start[0], seed=3, time_free=model.time_free)
    x, asked = drive(model, run)
    assert torch.equal(x, drawn.x)
    if "nfe" in budget:
        assert asked <= 7  # a batch takes what its slowest sample takes


def test_a_mask_token_with_a_number_of_its_own_is_never_drawn() -> None:
    """The engine's mask is token 1, which the network finds likeliest."""
    law = torch.tensor([0.2, 0.5, 0.3])
    run = Driven(Manner(tl.Tweedie(), nfe=3), tl.Masked(3), torch.full((200, 4), 1), seed=0, mask=1)
    while not run.done:
        assert set(run.x.unique().tolist()) <= {0, 1, 2}
        run.tell(law.log().expand(200, 4, 3), run.x)
    assert set(run.x.unique().tolist()) == {0, 2}


def test_what_is_given_stays_and_is_what_sample_keeps() -> None:
    model, template = network(MASKED[1]), torch.tensor([[0, -1, 1], [-1, -1, 1], [1, 0, 1]])
    drawn = tl.sample(model, tl.Multistep(), nfe=2, template=template, seed=1)
    x = torch.where(template == tl.FREE, 2, template)
    run = Driven(Manner(tl.Multistep(), nfe=2), model.process, x, seed=1, given=template != tl.FREE)
    assert torch.equal(drive(model, run)[0], drawn.x)


def test_temperature_is_that_of_tempered() -> None:
    model, how = network(MASKED[1]), dict[str, Any](temperature=0.3, top_p=0.9)
    drawn = tl.sample(tl.tempered(model, **how), tl.Tweedie(), nfe=3, num=NUM, seed=2)
    run = Driven(Manner(tl.Tweedie(), nfe=3, **how), model.process, torch.full((NUM, 3), 2), seed=2)
    assert torch.equal(drive(model, run)[0], drawn.x)


def test_what_the_engine_writes_between_steps_is_gone_on_from() -> None:
    """It fills the first position of every other sample with ones; these stay, and the other samples do not notice."""
    model, masks = network(MASKED[1]), torch.full((40, 3), 2)
    manner = Manner(tl.Tweedie(tl.FixedCount()), nfe=3)
    undisturbed, _ = drive(model, Driven(manner, model.process, masks, seed=5))
    run = Driven(manner, model.process, masks, seed=5)
    while not run.done:
        x = run.x.clone()
        x[::2, 0] = 1
        run.tell(said(model, x, run.t), x)
    assert bool((run.x[::2, 0] == 1).all())
    assert bool((run.x < 2).all())
    assert torch.equal(run.x[1::2], undisturbed[1::2])
    assert not torch.equal(run.x, undisturbed)


def test_what_the_engine_writes_within_a_step_is_kept_to_its_end() -> None:
    model, x = network(MOVING[1]), torch.zeros((40, 3), dtype=torch.int64)
    manner = Manner(tl.ExponentialTrapezoidal(), nfe=2)
    undisturbed, _ = drive(model, Driven(manner, model.process, x, seed=0, time_free=False))
    run = Driven(manner, model.process, x, seed=0, time_free=False)
    run.tell(said(model, run.x, run.t), run.x)
    rewritten = run.x.clone()
    rewritten[::2] = 1 - rewritten[::2]
    run.tell(said(model, run.x, run.t), rewritten)
    assert run.done
    assert torch.equal(run.x[::2], rewritten[::2])
    assert torch.equal(run.x[1::2], undisturbed[1::2])
    assert not torch.equal(run.x, undisturbed)
    run.tell(said(model, run.x, run.t), x)
    assert torch.equal(run.x, x)  # after the end everything is the engine's


def test_correctors_that_are_not_for_networks_are_refused() -> None:
    solver = tl.Corrected(tl.Tweedie(), tl.Informed())
    with pytest.raises(ValueError, match="corrector=Informed on model=Told"):
        Driven(Manner(solver, nfe=4), tl.Masked(2), torch.full((1, 3), 2), seed=0)


def test_seeds_tell_their_parts_apart() -> None:
    assert seed_of(0, "a", 1) == seed_of("0", "a", "1") != seed_of(0, "a", 2)
    assert 0 <= seed_of("x") < 2**64


def test_logits_of_another_vocabulary_are_named() -> None:
    run = Driven(Manner(tl.Tweedie(), nfe=1), tl.Masked(3), torch.full((1, 2), 3), seed=0)
    with pytest.raises(ValueError, match=r"logits=\(1, 2, 4\): need 3 values a row"):
        run.tell(torch.zeros((1, 2, 4)), run.x)


@pytest.mark.parametrize(
    ("name", "part"), [("diffusers", "diffusers.utils.outputs"), ("flow_matching", "flow_matching.path")]
)
def test_what_is_not_installed_is_named(name: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, part, None)
    monkeypatch.delitem(sys.modules, f"thetaleap.integrations.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"{name} is not installed .*: pip install 'thetaleap\[{name}\]'"):
        import_module(f"thetaleap.integrations.{name}")
