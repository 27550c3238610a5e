"""RADD, SEDD and MDLM weights as denoisers."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

import thetaleap as tl
from tests.models.test_oracles import conditionals
from tests.models.test_transformer import RADD, SEDD, UNIFORM, randomised, straight, tokens
from thetaleap.core.evaluation import Denoiser
from thetaleap.core.processes import Masked, Uniform
from thetaleap.core.schedules import Geometric, LogLinear
from thetaleap.models.hf.published import Watch, conditionals_from_scores, mdlm, radd, sedd
from thetaleap.models.tokenizers import GPT2
from thetaleap.models.transformer import Sizes

pytestmark = pytest.mark.filterwarnings("ignore:the network's score ratios")  # its weights are random
LENGTH = 7
GEOMETRIC = {"type": "geometric", "sigma_min": 1e-3, "sigma_max": 10}


def nested(sizes: Sizes, **more: Any) -> dict[str, Any]:
    model = {"hidden_size": sizes.hidden, "n_blocks": sizes.blocks, "n_heads": sizes.heads, "cond_dim": sizes.cond_dim}
    return {"tokens": sizes.tokens, "model": model, **more}


def flat(sizes: Sizes, **more: Any) -> dict[str, Any]:
    numbers = {"hidden_dim": sizes.hidden, "n_blocks": sizes.blocks, "n_heads": sizes.heads, "cond_dim": sizes.cond_dim}
    return {"vocab_size": sizes.channels, "model_length": 1024, **numbers, **more}


def saved(folder: Path, sizes: Sizes, config: dict[str, Any] | None, prefix: str = "") -> dict[str, Tensor]:
    weights = dict(randomised(sizes).state_dict())
    save_file({prefix + name: tensor for name, tensor in weights.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return weights


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def all_logits(model: Denoiser, x: Tensor, t: float | Tensor) -> np.ndarray:
    evaluation = model(x, torch.as_tensor(t, dtype=torch.float64)).logits(torch.arange(x.numel()))
    return evaluation.detach().double().unflatten(0, x.shape).numpy()


@pytest.mark.parametrize("config", [nested(RADD, noise={"type": "loglinear"}), flat(RADD), None])
def test_radd(config: dict[str, Any] | None, tmp_path: Path) -> None:
    weights, x = saved(tmp_path, RADD, config), tokens(RADD)
    model = radd(str(tmp_path), LENGTH)
    assert isinstance(model, Denoiser)
    assert model.process == Masked(11, LogLinear())
    assert (model.length, model.horizon, model.time_free, model.tokenizer) == (LENGTH, 1.0, True, None)
    expected = straight(weights, x, RADD.heads)[..., :11]
    np.testing.assert_allclose(all_logits(model, x, 0.5), expected, atol=1e-5 * np.abs(expected).max())
    assert np.array_equal(all_logits(model, x, 0.5), all_logits(model, x, 0.9))


@pytest.mark.parametrize("config", [nested(SEDD), flat(SEDD), None])
@pytest.mark.parametrize("prefix", ["", "backbone."])
@pytest.mark.parametrize("told", [True, False])
def test_mdlm(config: dict[str, Any] | None, prefix: str, told: bool, tmp_path: Path) -> None:
    if config is not None:
        config = config | {"time_conditioning": told}
    weights, x = saved(tmp_path, SEDD, config, prefix), tokens(SEDD)
    model = mdlm(tmp_path / "model.safetensors", LENGTH, time_conditioning=told if config is None else None)
    assert model.process == Masked(11, LogLinear())
    assert model.time_free == (not told)
    t = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)
    sigma = -torch.log(1 - 0.999 * t) if told else 0 * t
    expected = straight(weights, x, SEDD.heads, sigma)[..., :11]
    np.testing.assert_allclose(all_logits(model, x, t), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("noise", [{"type": "loglinear"}, GEOMETRIC])
@pytest.mark.parametrize("scaled", [True, False])
def test_sedd_absorb(noise: dict[str, Any], scaled: bool, tmp_path: Path) -> None:
    config = nested(SEDD, graph={"type": "absorb"}, noise=noise)
    config["model"]["scale_by_sigma"] = scaled
    weights, x = saved(tmp_path, SEDD, config), tokens(SEDD)
    x[:, :3] = 11
    model = sedd(tmp_path, LENGTH)
    assert not model.time_free
    t = torch.tensor([0.1, 0.4, 1.0], dtype=torch.float64)
    process = model.process
    assert process == Masked(11, LogLinear() if noise["type"] == "loglinear" else Geometric(1e-3, 10.0))
    sigma = -torch.log(process.schedule.alpha(t))
    scores = straight(weights, x, SEDD.heads, sigma)
    if scaled:
        scores = scores - np.log(np.expm1(sigma.numpy()))[:, None, None] - math.log(12 - 1)
    scores = torch.from_numpy(scores[..., :11]).exp()
    c = torch.stack([process.from_score(rows, x[n], t[n]) for n, rows in enumerate(scores)])
    c = (c / c.sum(-1, keepdim=True)).numpy()
    rows = log_softmax(all_logits(model, x, t))
    np.testing.assert_allclose(rows[x == 11], np.log(c)[x == 11], atol=1e-4)


@pytest.mark.parametrize("scaled", [True, False])
def test_a_warning_where_scaling_moves_the_law(scaled: bool, tmp_path: Path) -> None:
    """Random networks: the figure is that of the ratios themselves, and it is said once."""
    config = nested(SEDD, graph={"type": "absorb"}) | {"scale_by_sigma": scaled}
    weights, x = saved(tmp_path, SEDD, config), torch.full((2, LENGTH), 11)
    model, t = sedd(tmp_path, LENGTH), torch.tensor([0.5, 0.5], dtype=torch.float64)
    sigma = -torch.log(model.process.schedule.alpha(t))
    scores = straight(weights, x, SEDD.heads, sigma)[..., :11]
    scores = scores - np.log(np.expm1(sigma.numpy()))[:, None, None] - math.log(12 - 1) if scaled else scores
    alpha = float(torch.exp(-sigma[0]))
    off = float(np.abs(np.log(np.exp(scores).sum(-1) * (1 - alpha) / alpha)).mean())
    assert off > 0.1
    with pytest.warns(UserWarning, match=rf"ratios are those of no law.*off by {off:.2f}"):
        all_logits(model, x, t)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        all_logits(model, x, t)


def test_no_warning_for_the_ratios_of_a_law() -> None:
    watch = Watch("it is")
    watch(torch.full((4,), 0.05))
    with pytest.warns(UserWarning, match="it is 0.20"):
        watch(torch.full((4,), 0.2))


def test_the_figure_of_uniform_models_is_a_total_variation(tmp_path: Path) -> None:
    weights, x = saved(tmp_path, UNIFORM, uniform_config()), tokens(UNIFORM)
    model, t = sedd(tmp_path, LENGTH, torch.float64), torch.tensor([0.9, 0.9, 0.9], dtype=torch.float64)
    alpha = model.process.schedule.alpha(t)
    scores = straight(weights, x, UNIFORM.heads, -torch.log(alpha))
    raw = torch.softmax(torch.from_numpy(scores).scatter(-1, x.unsqueeze(-1), 0.0), -1).numpy()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        c = np.exp(log_softmax(all_logits(model, x, t)))
    a = alpha.numpy()[:, None, None]
    moved = float(0.5 * np.abs(a * c + (1 - a) / 11 - raw).sum(-1).mean())
    assert (len(told) == 1) == (moved > 0.1)
    assert moved > 0.1, "else this tests nothing"
    assert f"by {moved:.2f}" in str(told[0].message)


def uniform_config() -> dict[str, Any]:
    return nested(UNIFORM, graph={"type": "uniform"}, noise=GEOMETRIC)


@pytest.mark.parametrize(("dtype", "off"), [(torch.float64, 1e-5), (torch.float32, 1e-3)])
def test_sedd_uniform(dtype: torch.dtype, off: float, tmp_path: Path) -> None:
    weights, x = saved(tmp_path, UNIFORM, uniform_config()), tokens(UNIFORM)
    model = sedd(tmp_path, LENGTH, dtype)
    process = model.process
    assert process == Uniform(11, Geometric(1e-3, 10.0))
    t = torch.tensor([0.1, 0.4, 0.7], dtype=torch.float64)
    scores = straight(weights, x, UNIFORM.heads, -torch.log(process.schedule.alpha(t)))
    scores = torch.from_numpy(scores).scatter(-1, x.unsqueeze(-1), 0.0).exp()
    c = torch.stack([process.from_score(rows, x[n], t[n]) for n, rows in enumerate(scores)]).clamp_min(0)
    c = c / c.sum(-1, keepdim=True)
    np.testing.assert_allclose(np.exp(log_softmax(all_logits(model, x, t))), c.numpy(), atol=off)


def joint(process: Masked | Uniform) -> Any:
    p0 = torch.rand((3, 3, 3), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return tl.oracles.joint(p0 / p0.sum(), process, None if process.mask else 6.0)


@given(st.floats(0.02, 3.0), st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_scores_of_an_oracle_come_back_as_its_conditionals(t: float, seed: int) -> None:
    model = joint(Uniform(3))
    x = torch.randint(0, 3, (4, 3), generator=torch.Generator().manual_seed(seed))
    c, present, time = conditionals(model, x, t).flatten(0, 1), x.flatten(), torch.tensor(t, dtype=torch.float64)
    outputs = model.process.score(c, present, time).log()
    outputs = outputs.scatter(1, present.unsqueeze(1), 7.0)  # which is not to be read
    alpha = model.process.schedule.alpha(time).expand(len(c), 1)
    back = torch.softmax(conditionals_from_scores(outputs, present, alpha), 1)
    torch.testing.assert_close(back, c, rtol=0, atol=1e-9)


@given(st.floats(0.01, 1.0), st.floats(-3, 3))
@settings(max_examples=30)
def test_masked_scores_are_logits(t: float, constant: float) -> None:
    model = joint(Masked(3))
    x = torch.tensor([[3, 3, 3], [3, 0, 3], [1, 3, 2]])
    c, time = conditionals(model, x, t).flatten(0, 1), torch.tensor(t, dtype=torch.float64)
    outputs = model.process.score(c, x.flatten(), time).log() + constant
    torch.testing.assert_close(torch.softmax(outputs, 1), c, rtol=0, atol=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=4, max_size=4), st.floats(0, 60), st.integers(0, 3))
def test_any_output_makes_a_conditional(outputs: list[float], sigma: float, present: int) -> None:
    """Even where all but nothing is left of alpha, or the ratios are those of no conditional."""
    alpha = torch.tensor([[math.exp(-sigma)]], dtype=torch.float64)
    logs = torch.tensor([outputs], dtype=torch.float64)
    c = torch.softmax(conditionals_from_scores(logs, torch.tensor([present]), alpha), 1)
    assert bool(torch.isfinite(c).all())
    # what was below 0, times twice alpha, bounds how far the law of the noised token is moved
    score = logs.scatter(1, torch.tensor([[present]]), 0.0).exp()
    p = score / score.sum()
    below = torch.clamp_min((1 - alpha) / 4 - p, 0).sum()
    assert float((alpha * c + (1 - alpha) / 4 - p).abs().sum()) <= 2 * float(below) + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_samples_end_to_end(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # some virtual machines announce AMX, with which oneDNN multiplies in bfloat16, but do not allow it
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    for load, sizes, config in (
        (radd, RADD, nested(RADD)),
        (mdlm, SEDD, flat(SEDD, time_conditioning=False)),
        (sedd, UNIFORM, uniform_config()),
    ):
        folder = tmp_path / load.__name__
        folder.mkdir()
        saved(folder, sizes, config)
        model = load(folder, LENGTH, dtype, "cpu")
        for solver in (tl.Trapezoidal(), tl.Tweedie()):
            x = tl.sample(model, solver, nfe=8, num=3).x
            assert x.shape == (3, LENGTH)
            assert int(x.max()) < 11


def test_weights_need_no_gradient(tmp_path: Path) -> None:
    saved(tmp_path, RADD, None)
    logits = radd(tmp_path, LENGTH)(tokens(RADD), torch.tensor(0.5, dtype=torch.float64)).logits(torch.arange(3))
    assert not logits.requires_grad


def test_training_file_gives_the_averages(tmp_path: Path) -> None:
    averaged = randomised(RADD, seed=5)
    ema = {"shadow_params": [parameter.detach() for parameter in averaged.parameters()]}
    file = {"model": randomised(RADD).state_dict(), "ema": ema, "optimizer": {}, "step": 4}
    torch.save(file, tmp_path / "checkpoint.pth")
    x = tokens(RADD)
    expected = straight(dict(averaged.state_dict()), x, RADD.heads)[..., :11]
    np.testing.assert_allclose(all_logits(radd(tmp_path, LENGTH), x, 0.5), expected, atol=1e-5 * np.abs(expected).max())


def test_gpt2_tokens_come_with_their_tokenizer(tmp_path: Path) -> None:
    saved(tmp_path, Sizes(tokens=50257, hidden=4, blocks=1, heads=1), None)
    model = radd(tmp_path, length=5)
    assert model.tokenizer == GPT2()
    assert isinstance(model.tokenizer.decode(tl.sample(model, tl.Tweedie(), nfe=2).x[0].tolist()), str)


def test_other_architectures(tmp_path: Path) -> None:
    saved(tmp_path, SEDD, None)
    with pytest.raises(ValueError, match=r"missing: blocks.0.norm1.bias, .*surplus: .*sigma_map.mlp.0.weight"):
        radd(tmp_path)
    saved(tmp_path, RADD, nested(replace(RADD, blocks=3, hidden=12, heads=3)))
    fault = r"missing: blocks.2.norm1.weight.*misshapen: vocab_embed.embedding \[12, 24\] instead of \[12, 12\]"
    with pytest.raises(ValueError, match=fault):
        radd(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"missing: sigma_map.mlp.0.weight"):
        sedd(tmp_path, graph="absorb")
    save_file({"wte.weight": torch.zeros(5, 4), "ln_f.weight": torch.zeros(4)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"no vocab_embed.embedding among the weights \(.*wte.weight"):
        radd(tmp_path)


def test_errors(tmp_path: Path) -> None:
    saved(tmp_path, UNIFORM, None)
    with pytest.raises(ValueError, match=r"graph='absorbing': did you mean 'absorb'"):
        sedd(tmp_path, graph="absorbing")
    with pytest.raises(ValueError, match=r"noise='geo'"):
        sedd(tmp_path, graph="uniform", noise="geo")
    with pytest.raises(ValueError, match=r"geometric noise needs sigma_min and sigma_max"):
        sedd(tmp_path, graph="uniform", noise="geometric")
    (tmp_path / "config.json").write_text(json.dumps({"graph": "uniform", "noise": GEOMETRIC, "scale_by_sigma": True}))
    with pytest.raises(ValueError, match=r"scale_by_sigma=True: says nothing for uniform models"):
        sedd(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"dtype=torch.int64: give a floating-point one"):
        sedd(tmp_path, dtype=torch.int64, graph="absorb")
    with pytest.raises(ValueError, match=r"none.*give mdlm:PATH"):
        mdlm(tmp_path / "none")
