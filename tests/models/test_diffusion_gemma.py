"""DiffusionGemma with random weights: its posterior becomes leave-one-out conditionals, proved by exact laws."""

from __future__ import annotations

import importlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import thetaleap as tl
from tests import tiny_llm
from tests.cli.test_cli import call

hub = pytest.importorskip("transformers", reason="needs the extra 'hub'")
LENGTH, STATES, FEW = 2, len(tiny_llm.WORDS), 10
PROMPT = "the cat"


def write(folder: Path, states: int = STATES) -> Any:
    """A tiny checkpoint as ``save_pretrained`` writes it."""
    tiny_llm.tokenizer(folder, None)
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, **heads}
    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    experts = {"num_experts": 2, "top_k_experts": 1, "moe_intermediate_size": 8}
    wide = {"global_head_dim": 8, "num_global_key_value_heads": 1, "max_position_embeddings": 64}
    text = {"vocab_size": states, **sizes, **layers, **experts, **wide}
    vision = {"model_type": "gemma4_vision", **sizes, "num_hidden_layers": 1, "num_key_value_heads": 2}
    config = hub.DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=LENGTH)
    model = tiny_llm.randomised(hub.DiffusionGemmaForBlockDiffusion(config))
    model.lm_head.weight.data *= 2  # so that its law is far from that of noise
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("gemma")
    return folder, write(folder)


def posterior(model: Any, x: torch.Tensor, **told: Any) -> np.ndarray:
    """What the network itself says of the clean canvas, (b, d, S), behind the prompt."""
    ids = torch.tensor([[tiny_llm.WORDS.index(word) for word in PROMPT.split()]]).expand(len(x), -1)
    with torch.no_grad():
        logits = model(input_ids=ids, decoder_input_ids=x, **told).logits
    return torch.softmax(logits.double(), -1).numpy()


def rows(model: Any, x: torch.Tensor, t: float) -> np.ndarray:
    logits = model(x, torch.tensor(t, dtype=torch.float64)).logits(torch.arange(x.numel()))
    return torch.softmax(logits.double(), -1).view(*x.shape, -1).numpy()


def test_the_token_s_own_likelihood_is_divided_out(written: tuple[Path, Any]) -> None:
    folder, network = written
    model = tl.load(f"diffusion-gemma:{folder}", prompt=PROMPT)
    assert (model.length, model.process.states, model.process.mask, model.time_free) == (LENGTH, STATES, None, False)
    x = torch.tensor([[1, 9], [4, 4], [24, 0]])
    for t in (0.9, 0.5, 0.1):
        alpha = float(model.process.schedule.alpha(t))
        wanted = posterior(network, x)
        own = np.take_along_axis(wanted, x.numpy()[..., None], -1)
        np.put_along_axis(wanted, x.numpy()[..., None], own / (1 + STATES * alpha / (1 - alpha)), -1)
        np.testing.assert_allclose(rows(model, x, t), wanted / wanted.sum(-1, keepdims=True), rtol=1e-4, atol=1e-7)


def ancestral(model: Any, stops: list[float], states: int) -> np.ndarray:
    """The law of ancestral sampling, first-order, by its own description: draw the clean token at each position from the
    posterior, then the next token from ``q(x_s | x_t, x_0)``, for all positions at once; at the end the clean tokens."""
    grid = torch.tensor(list(itertools.product(range(states), repeat=LENGTH)))
    law, same = np.full(len(grid), 1.0 / len(grid)), np.eye(states)
    clean = posterior(model, grid)
    for now, then in itertools.pairwise([*stops, 1.0]):
        kept = now / then
        step = kept * same + (1 - kept) / states  # q(x_t | x_s)
        ahead = then * same + (1 - then) / states  # q(x_s | x_0), first index x_0
        joint = ahead[:, :, None] * step[None]  # x_0, x_s, x_t
        back = joint / joint.sum(1, keepdims=True)
        moves = np.einsum("nlz,zsx->nlxs", clean, back)
        moves = np.take_along_axis(moves, grid.numpy()[:, :, None, None], 2)[:, :, 0]  # where x_t is the present token
        law = np.einsum("n,ns,nr->sr", law, moves[:, 0], moves[:, 1]).flatten()
    return law


def test_tweedie_has_the_law_of_ancestral_sampling(tmp_path: Path) -> None:
    """On 100 canvases, in three steps; both laws are exact."""
    network = write(tmp_path, FEW)
    model = tl.load(f"diffusion-gemma:{tmp_path}", prompt=PROMPT)
    times = [1.0, 0.7, 0.3]
    mine = tl.exact.law(model, tl.Tweedie(), torch.tensor(times, dtype=torch.float64)).flatten().numpy()
    theirs = ancestral(network, [float(model.process.schedule.alpha(t)) for t in times], FEW)
    assert abs(theirs.sum() - 1) < 1e-6
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
    assert np.abs(mine - 1 / mine.size).sum() > 0.1, "the law is not the noise's"


class Processor:
    """What the pipeline of diffusers asks for a prompt: the same one for all of so many samples."""

    eos_token_id = None

    def __init__(self, count: int) -> None:
        self.count = count

    def apply_chat_template(self, messages: Any, **told: Any) -> dict[str, torch.Tensor]:
        ids = torch.tensor([[tiny_llm.WORDS.index(word) for word in PROMPT.split()]])
        return {"input_ids": ids.expand(self.count, -1)}


def surprise(drawn: np.ndarray, law: np.ndarray) -> float:
    """The probability of so large a chi-square; canvases that are expected less than 5 times count as one."""
    expected = law / law.sum() * drawn.sum()
    kind = np.where(expected < 5, 0, 1 + np.arange(len(law)))
    seen, wanted = (np.bincount(np.unique(kind, return_inverse=True)[1], part) for part in (drawn, expected))
    return float(stats.chisquare(seen, wanted).pvalue)


@pytest.mark.diffusers
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about how diffusers is imported
def test_tweedie_has_the_law_of_the_pipeline_of_diffusers(tmp_path: Path) -> None:
    """20,000 samples of its pipeline with its first-order scheduler in three steps, against the exact law.

    It tells each step what the last one predicted, which a function of the canvas cannot know, so that the weights of
    this are 0 here. It fails by chance once in 10^6 times. A law in which the likelihood of the token is not divided out
    is found out.
    """
    diffusers: Any = importlib.import_module("diffusers")
    network = write(tmp_path, FEW)
    network.model.decoder.self_conditioning.down_proj.weight.data.zero_()
    network.save_pretrained(tmp_path)
    model = tl.load(f"diffusion-gemma:{tmp_path}", prompt=PROMPT)
    times = torch.tensor([1.0, 2 / 3, 1 / 3], dtype=torch.float64)
    mine = tl.exact.law(model, tl.Tweedie(), times).flatten().numpy()
    pipe = diffusers.DiffusionGemmaPipeline(network, diffusers.DiscreteDDIMScheduler(), Processor(4000))
    pipe.set_progress_bar_config(disable=True)
    drawn, made = np.zeros(FEW**LENGTH), torch.Generator().manual_seed(0)
    how: dict[str, Any] = {"gen_length": LENGTH, "num_inference_steps": 3, "temperature": 1.0, "output_type": "seq"}
    for _ in range(5):
        x = pipe(prompt=PROMPT, confidence_threshold=None, eos_early_stop=False, generator=made, **how).sequences
        drawn += np.bincount((x[:, 0] * FEW + x[:, 1]).numpy(), minlength=len(drawn))
    assert drawn.sum() == 20_000
    assert surprise(drawn, mine) > 1e-6
    wrong = tl.exact.law(replace(model, posterior=False), tl.Tweedie(), times).flatten().numpy()
    assert surprise(drawn, wrong) < 1e-12


def test_self_conditioning_is_what_the_network_said_itself(written: tuple[Path, Any]) -> None:
    folder, network = written
    plain, told = (
        tl.load(f"diffusion-gemma:{folder}", prompt=PROMPT, self_conditioning=flag) for flag in (False, True)
    )
    x = torch.tensor([[1, 9], [4, 4]])
    first = torch.from_numpy(posterior(network, x)).log().float()
    wanted = posterior(network, x, self_conditioning_logits=first)
    own = np.take_along_axis(wanted, x.numpy()[..., None], -1)
    alpha = float(told.process.schedule.alpha(0.5))
    np.put_along_axis(wanted, x.numpy()[..., None], own / (1 + STATES * alpha / (1 - alpha)), -1)
    np.testing.assert_allclose(rows(told, x, 0.5), wanted / wanted.sum(-1, keepdims=True), rtol=1e-3, atol=1e-6)
    assert np.abs(rows(told, x, 0.5) - rows(plain, x, 0.5)).max() > 1e-3


def test_samples(written: tuple[Path, Any]) -> None:
    folder, _ = written
    model = tl.load(f"diffusion-gemma:{folder}", length=5)
    out = tl.sample(model, tl.Multistep(), nfe=4, num=3)
    assert out.x.shape == (3, 5)
    assert torch.equal(out.x, tl.sample(model, tl.Multistep(), nfe=4, num=3, batch_size=2).x)
    assert isinstance(out.text[0], str)
    done = call("sample", f"diffusion-gemma:{folder},prompt=the cat", "--nfe", 2, "--num", 1)
    assert done.exit_code == 0, done.output


def test_errors(written: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = written
    with pytest.raises(ValueError, match="length=0"):
        tl.load(f"diffusion-gemma:{folder}", length=0)
    monkeypatch.setattr("thetaleap.models.hf.diffusion_gemma.CLASS", "NoneSuch")
    with pytest.raises(ImportError, match=r"does not have it: pip install 'transformers>=5.22'"):
        tl.load(f"diffusion-gemma:{folder}")
