"""Schedulers of diffusers: by themselves, in a plain loop, they draw what `sample` draws."""

from __future__ import annotations

import itertools
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import thetaleap as tl
from tests.cases import dirichlet
from tests.integrations.test_driven import said
from thetaleap.control import Method
from thetaleap.core.fields import parameters
from thetaleap.evaluation.choice import written

pytestmark = pytest.mark.diffusers
FALSE_ALARM = 1e-7
NUM, SEED = 5, 11


@pytest.fixture(scope="module")
def ours() -> Any:
    return import_module("thetaleap.integrations.diffusers")


KINDS: list[tuple[str, dict[str, Any], Method]] = [
    ("Tweedie", {}, tl.Tweedie()),
    ("Tweedie", {"planner": "confidence"}, tl.Tweedie(tl.Confidence())),
    ("Tweedie", {"planner": "Confidence(randomness=2.0)", "grid": "cosine"}, tl.Tweedie(tl.Confidence(2.0))),
    ("Tweedie", {"planner": "threshold:0.3"}, tl.Tweedie(tl.Threshold(0.3))),
    ("Multistep", {}, tl.Multistep()),
    ("Multistep", {"window": 2, "planner": "low-discrepancy"}, tl.Multistep(window=2, planner=tl.LowDiscrepancy())),
    ("ExponentialTrapezoidal", {"theta": 0.4}, tl.ExponentialTrapezoidal(0.4)),
    (
        "ExponentialTrapezoidal",
        {"extrapolation": "logit", "planner": "fixed-count"},
        tl.ExponentialTrapezoidal(extrapolation="logit", planner=tl.FixedCount()),
    ),
    ("Trapezoidal", {"theta": 0.3, "rule": "reject"}, tl.Trapezoidal(0.3, "reject")),
]
ALL = pytest.mark.parametrize(
    ("kind", "config", "solver"), KINDS, ids=[f"{kind} {config}" for kind, config, _ in KINDS]
)


def loop(scheduler: Any, network: Any, x: Tensor, evaluations: int, **more: Any) -> Tensor:
    """The loop that every pipeline has."""
    scheduler.set_timesteps(evaluations)
    for t in scheduler.timesteps:
        x = scheduler.step(network(x), t, x, **more).prev_sample
    return x


@ALL
def test_a_plain_loop_draws_what_sample_draws(ours: Any, kind: str, config: dict[str, Any], solver: Method) -> None:
    model, grid = tl.load("chain64"), tl.grids.cosine if "grid" in config else None
    scheduler = getattr(ours, f"{kind}Scheduler")(mask_token_id=16, seed=SEED, **config)
    x = loop(scheduler, lambda x: said(model, x, 1.0), torch.full((NUM, 64), 16), 9)
    assert torch.equal(x, tl.sample(model, solver, nfe=9, num=NUM, seed=SEED, grid=grid).x)
    assert scheduler.order == solver.evaluations


@ALL
def test_a_configuration_is_read_as_it_was_written(
    ours: Any, kind: str, config: dict[str, Any], solver: Method, tmp_path: Path
) -> None:
    made = getattr(ours, f"{kind}Scheduler")
    made(mask_token_id=3, seed=4, block_length=8, **config).save_pretrained(tmp_path)
    told = json.loads((tmp_path / "scheduler_config.json").read_text())
    assert told["_class_name"] == f"{kind}Scheduler"
    again = made.from_pretrained(tmp_path)
    assert again.solver == solver
    assert (again.config.mask_token_id, again.config.seed, again.config.block_length) == (3, 4, 8)


@pytest.mark.parametrize("kind", ["Tweedie", "Multistep", "ExponentialTrapezoidal", "Trapezoidal"])
def test_a_scheduler_has_the_fields_and_defaults_of_its_solver(ours: Any, kind: str) -> None:
    scheduler, solver = getattr(ours, f"{kind}Scheduler")(), getattr(tl, kind)
    assert scheduler.solver == solver()
    own = {name for name in scheduler.config if not name.startswith("_")}
    assert own - {"grid", "seed", "mask_token_id", "block_length"} == set(parameters(solver))
    assert written(scheduler.solver) == f"{kind}()"


def test_images_keep_their_shape(ours: Any) -> None:
    """Tokens (b, h, w) and logits (b, S, h, w), as `AmusedScheduler` has them, in the same loop."""
    model = tl.load("chain64")
    network = lambda x: said(model, x.flatten(1), 1.0).transpose(1, 2).unflatten(2, (4, 16))  # noqa: E731
    x = loop(ours.MultistepScheduler(mask_token_id=16), network, torch.full((2, 4, 16), 16), 6)
    assert torch.equal(x.flatten(1), tl.sample(model, tl.Multistep(), nfe=6, num=2).x)


def test_outputs_say_what_was_changed(ours: Any) -> None:
    model, x = tl.load("chain64"), torch.full((2, 64), 16)
    x[:, 5] = 3
    scheduler = ours.TweedieScheduler(mask_token_id=16)
    scheduler.set_timesteps(2)
    logits = said(model, x, 1.0)
    out = scheduler.step(logits, 0, x)
    assert torch.equal(out.transfer_index, out.prev_sample != x)
    assert bool(out.transfer_index.any())
    assert not bool(out.editing_transfer_index.any())
    filled = out.prev_sample != 16
    wanted = torch.softmax(logits, 2).gather(2, out.prev_sample.clamp(max=15).unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(out.sampled_probs, torch.where(filled, wanted, 0.0).float())
    assert out.pred_logits is logits
    last = scheduler.step(said(model, out.prev_sample, 1.0), 1, out.prev_sample, return_dict=False)
    assert [len(part) for part in last] == [2] * 6
    assert not bool((last[0] == 16).any())
    assert torch.equal(last[0][:, 5], x[:, 5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_networks_in_training_and_in_half_precision_will_do(ours: Any, dtype: torch.dtype) -> None:
    """Logits that remember their gradient are not kept alive, and what is drawn is what `sample` draws from them."""
    table = torch.nn.Parameter(torch.randn((7, 6), generator=torch.Generator().manual_seed(0)).to(dtype))
    scheduler = ours.ExponentialTrapezoidalScheduler(mask_token_id=6)
    x = loop(scheduler, lambda x: table[x.roll(1, 1)], torch.full((NUM, 9), 6), 6)
    model = tl.from_network(tl.Masked(6), length=9, network=lambda x: table[x.roll(1, 1)], time_free=True)
    assert torch.equal(x, tl.sample(model, tl.ExponentialTrapezoidal(), nfe=6, num=NUM).x)


def test_a_generator_is_a_fresh_seed_for_every_run(ours: Any) -> None:
    model, noise, how = tl.load("chain64"), torch.full((2, 64), 16), torch.Generator().manual_seed(3)
    scheduler = ours.TweedieScheduler(mask_token_id=16)
    draw = lambda **more: loop(scheduler, lambda x: said(model, x, 1.0), noise, 4, **more)  # noqa: E731
    assert torch.equal(draw(), draw())
    first, second = draw(generator=how), draw(generator=how)
    assert not torch.equal(first, second)
    assert torch.equal(first, draw(generator=how.manual_seed(3)))


@pytest.mark.usefixtures("unchecked")
def test_wrong_configurations_and_calls_are_named(ours: Any) -> None:
    for config, said_of in {
        ("planner", "confidense"): "planner='confidense': did you mean 'confidence'",
        ("planner", 3): "planner=3: give it as text, as in 'confidence'",
        ("grid", "cosin"): "grid='cosin': did you mean 'cosine'",
        ("seed", -1): "seed=-1: give a whole number of at least 0",
        ("block_length", 0): "block_length=0",
    }.items():
        with pytest.raises((ValueError, TypeError), match=said_of):
            ours.TweedieScheduler(**dict([config]))
    with pytest.raises(ValueError, match=r"theta=1.5: must lie in \(0, 1\)"):
        ours.TrapezoidalScheduler(theta=1.5)
    scheduler, x = ours.TrapezoidalScheduler(mask_token_id=4), torch.full((1, 3), 4)
    with pytest.raises(ValueError, match="timestep=0: there are 0 of them, from 0; call set_timesteps"):
        scheduler.step(torch.zeros((1, 3, 4)), 0, x)
    with pytest.raises(ValueError, match="num_inference_steps=0"):
        scheduler.set_timesteps(0)
    scheduler.set_timesteps(2)
    few = "num_inference_steps=2: Trapezoidal takes 2 per step, and one more to finish: give at least 3"
    with pytest.raises(ValueError, match=few):
        scheduler.step(torch.zeros((1, 3, 4)), 0, x)
    unmasked = ours.TweedieScheduler()  # somebody forgot to say which token is the mask
    unmasked.set_timesteps(2)
    with pytest.raises(ValueError, match="token=4: the network has logits for 0 to 3; if this is the mask, name it"):
        unmasked.step(torch.zeros((1, 3, 4)), 0, x)
    with pytest.raises(ValueError, match="sampling_method='gredy': did you mean 'greedy'"):
        scheduler.step(torch.zeros((1, 3, 4)), 0, x, sampling_method="gredy")
    with pytest.raises(ValueError, match="mask_token_id=None: only masks can be added"):
        ours.TweedieScheduler().add_noise(x, 0)


def test_noise_leaves_as_many_tokens_as_are_left_then(ours: Any) -> None:
    """After 3 of 8 evaluations, by cosine, cos(pi/2 * 3/8) are masked: within 6 standard deviations of 40,000."""
    scheduler = ours.TweedieScheduler(mask_token_id=7, grid="cosine")
    scheduler.set_timesteps(8)
    noised = scheduler.add_noise(torch.zeros((400, 10, 10), dtype=torch.int64), scheduler.timesteps[2]) == 7
    share = float(np.cos(np.pi / 2 * 3 / 8))
    assert abs(float(noised.double().mean()) - share) < 6 * (share * (1 - share) / 40_000) ** 0.5


def test_the_configuration_of_another_scheduler_will_do(ours: Any) -> None:
    other = import_module("diffusers").BlockRefinementScheduler(block_length=4)
    mine = ours.MultistepScheduler.from_config(other.config, planner="confidence")
    assert (mine.config.block_length, mine.solver) == (4, tl.Multistep(planner=tl.Confidence()))


def test_laws_on_small_spaces_are_those_of_the_solver(ours: Any) -> None:
    """Against `exact.law`, which knows nothing of schedulers: 4,096 samples, a false alarm in 1e7; the law of as many steps
    of Tweedie would be seen."""
    p0 = dirichlet(1, (2, 2, 2), 0.3)
    model = tl.oracles.joint(p0, tl.Masked(2))
    scheduler = ours.ExponentialTrapezoidalScheduler(mask_token_id=2, seed=1)
    x = loop(scheduler, lambda x: said(model, x, 1.0), torch.full((4096, 3), 2), 4)
    counts = np.bincount((x * torch.tensor([4, 2, 1])).sum(1).numpy(), minlength=8)
    grid = tl.grids.uniform(1.0, 0.0, 2)
    law, other = (
        tl.exact.law(model, solver, grid).flatten().numpy() for solver in (tl.ExponentialTrapezoidal(), tl.Tweedie())
    )
    assert scipy.stats.chisquare(counts, 4096 * law).pvalue > FALSE_ALARM
    assert scipy.stats.chisquare(counts, 4096 * other).pvalue < FALSE_ALARM


def test_samples_do_not_depend_on_the_batch(ours: Any) -> None:
    model = tl.load("chain64")
    scheduler = ours.MultistepScheduler(mask_token_id=16)
    draw = lambda num: loop(scheduler, lambda x: said(model, x, 1.0), torch.full((num, 64), 16), 5)  # noqa: E731
    for small, large in itertools.pairwise([1, 2, 5]):
        assert torch.equal(draw(small), draw(large)[:small])
