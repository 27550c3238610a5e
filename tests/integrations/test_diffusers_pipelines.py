"""Schedulers in the pipelines of diffusers, with random weights: they draw what `sample` draws."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import thetaleap as tl
from tests import tiny_llm
from tests.cases import dirichlet
from tests.integrations.test_diffusers import ALL, FALSE_ALARM, SEED
from tests.integrations.test_driven import said
from tests.models.test_diffusion_gemma import write
from thetaleap.control import Method

pytestmark = [
    pytest.mark.diffusers,
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # of torch, when DiffusionGemmaPipeline runs
]


@pytest.fixture(scope="module")
def ours() -> Any:
    return import_module("thetaleap.integrations.diffusers")


# --- LLaDA2Pipeline


class Spoken(nn.Module):
    """A network as LLaDA2Pipeline calls it: of the tokens so far, with masks after them."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.asked = 0

    def forward(self, x: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
        self.asked += 1
        return SimpleNamespace(logits=self.network(x))


def llada(network: Any, scheduler: Any, tokenizer: Any = None) -> Any:
    pipe = import_module("diffusers").LLaDA2Pipeline(Spoken(network), scheduler, tokenizer)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@ALL
def test_llada2_writes_what_sample_writes(
    ours: Any, kind: str, config: dict[str, Any], solver: Method, tmp_path: Path
) -> None:
    """One block behind a prompt, by a transformer with random weights whose vocabulary holds the mask."""
    if "grid" in config:
        config = {key: value for key, value in config.items() if key != "grid"}
    hub = tiny_llm.bidirectional(tmp_path)
    mask, states = tiny_llm.MASK, tiny_llm.CHANNELS
    model = tl.from_network(
        tl.Masked(states), length=8, network=lambda x: hub(torch.where(x == states, mask, x)).logits, time_free=True
    )
    shaped = tl.tempered(tl.constrained(model, forbid=[mask]), 0.7, top_k=9)
    prompt = torch.tensor([[6, 8], [7, 9], [6, 9]])
    template = torch.nn.functional.pad(prompt, (0, 6), value=tl.FREE)
    drawn = tl.sample(shaped, solver, nfe=5, template=template, seed=SEED)
    pipe = llada(lambda x: hub(x).logits, getattr(ours, f"{kind}Scheduler")(seed=SEED, block_length=8, **config))
    how = {"temperature": 0.7, "top_k": 9, "mask_token_id": mask, "num_inference_steps": 5}
    out = pipe(input_ids=prompt, gen_length=6, output_type="seq", **how)
    assert torch.equal(out.sequences, drawn.x[:, 2:])
    assert pipe.model.asked <= 5


def test_llada2_in_blocks_has_the_law_of_the_model(ours: Any) -> None:
    """Two blocks of two positions, one position at a time, so that the law of the samples is the model's own. A false
    alarm in 1e7; with 4,096 samples, blocks that did not see each other, or shared their noise, would be far off."""
    p0 = dirichlet(8, (2, 2, 2, 2))
    oracle = tl.oracles.joint(p0, tl.Masked(2))

    def network(x: Tensor) -> Tensor:
        whole = torch.nn.functional.pad(x, (0, 4 - x.shape[1]), value=2)
        return said(oracle, whole, 1.0)[:, : x.shape[1]]

    pipe = llada(network, ours.TweedieScheduler(planner="fixed-count", block_length=2))
    nothing = torch.zeros((4096, 0), dtype=torch.int64)
    how = {"temperature": 1.0, "mask_token_id": 2, "num_inference_steps": 2, "eos_early_stop": False}
    x = pipe(input_ids=nothing, gen_length=4, output_type="seq", **how).sequences
    assert pipe.model.asked == 4
    counts = np.bincount((x * torch.tensor([8, 4, 2, 1])).sum(1).numpy(), minlength=16)
    law = p0.flatten().numpy()
    assert scipy.stats.chisquare(counts, 4096 * law).pvalue > FALSE_ALARM
    first = counts.reshape(4, 4).sum(1) / 4096
    apart = np.outer(first, counts.reshape(4, 4).sum(0) / 4096).flatten()
    assert (
        scipy.stats.chisquare(counts, 4096 * apart).pvalue < FALSE_ALARM
    )  # the test would see blocks that are strangers


def test_llada2_ends_with_the_end_of_the_text(ours: Any, tmp_path: Path) -> None:
    """Greedy, with a network that says "cat", then the end: nothing is written after the block that ends all texts."""
    tiny_llm.tokenizer(tmp_path)
    words = import_module("transformers").AutoTokenizer.from_pretrained(tmp_path)

    def network(x: Tensor) -> Tensor:
        logits = torch.zeros((*x.shape, tiny_llm.CHANNELS))
        place = torch.arange(x.shape[1])
        return logits.scatter(2, torch.where(place % 4 < 3, 8, tiny_llm.EOS).expand_as(x).unsqueeze(2), 9.0)

    pipe = llada(network, ours.TweedieScheduler(planner="confidence", block_length=4), words)
    out = pipe("the cat", use_chat_template=False, gen_length=14, num_inference_steps=4, temperature=0.0)
    assert out.texts == ["cat"]
    assert pipe.model.asked <= 4
    assert bool((out.sequences[:, 2:] == tiny_llm.MASK).all())


# --- DiffusionGemmaPipeline


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("gemma")
    model = write(folder)
    tiny_llm.tokenizer(folder)
    return folder, model, import_module("transformers").AutoTokenizer.from_pretrained(folder)


def gemma_pipe(gemma: Any, scheduler: Any) -> Any:
    pipe = import_module("diffusers").DiffusionGemmaPipeline(gemma[1], scheduler, gemma[2])
    pipe.set_progress_bar_config(disable=True)
    return pipe


UNIFORM = [
    ("Tweedie", {"grid": "alpha_power(2)"}, tl.Tweedie()),
    ("Multistep", {}, tl.Multistep()),
    ("ExponentialTrapezoidal", {}, tl.ExponentialTrapezoidal()),
    ("Trapezoidal", {}, tl.Trapezoidal()),
]


@pytest.mark.parametrize(("kind", "config", "solver"), UNIFORM, ids=[kind for kind, _, _ in UNIFORM])
def test_diffusion_gemma_writes_what_sample_writes(
    ours: Any, gemma: Any, kind: str, config: dict[str, Any], solver: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the canvas is the same to begin with, and the network is told nothing of its last answer."""
    model, start = tl.load(f"diffusion-gemma:{gemma[0]}", prompt="the cat"), []
    grid = tl.grids.alpha_power(model.process.schedule, 2.0) if config else None
    drawn = tl.sample(model, solver, nfe=6, num=3, seed=SEED, on_step=lambda moment: start.append(moment.x), grid=grid)
    forward = type(gemma[1]).forward
    monkeypatch.setattr(
        type(gemma[1]),
        "forward",
        lambda self, *args, self_conditioning_logits=None, **more: forward(self, *args, **more),
    )
    monkeypatch.setattr(torch, "randint", lambda *args, **more: start[0].clone())
    pipe = gemma_pipe(gemma, getattr(ours, f"{kind}Scheduler")(seed=SEED, **config))
    how = {"temperature": 1.0, "confidence_threshold": None, "eos_early_stop": False, "num_inference_steps": 6}
    out = pipe(["the cat"] * 3, gen_length=2, output_type="seq", **how)
    assert torch.equal(out.sequences, drawn.x)


@pytest.mark.parametrize("kind", [kind for kind, _, _ in UNIFORM])
def test_diffusion_gemma_runs_as_it_is(ours: Any, gemma: Any, kind: str) -> None:
    """With its own defaults, several canvases, self-conditioning, and samples that it freezes."""
    pipe, made = gemma_pipe(gemma, getattr(ours, f"{kind}Scheduler")()), torch.Generator()
    texts = [
        pipe(["the cat", "a dog"], gen_length=6, num_inference_steps=5, generator=made.manual_seed(1), **how).texts
        for how in ({}, {"confidence_threshold": 3.0}, {"confidence_threshold": 3.0}, {"temperature": 1.0})
    ]
    assert [len(two) for two in texts] == [2] * 4
    assert texts[1] == texts[2]


# --- AmusedPipeline


@pytest.fixture(scope="module")
def amused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Its parts with random weights: 4 x 4 tokens of 16 values, the mask being token 20."""
    ours, hub, folder = import_module("diffusers"), import_module("transformers"), tmp_path_factory.mktemp("amused")
    tiny_llm.tokenizer(folder)
    words = hub.AutoTokenizer.from_pretrained(folder, model_max_length=8)
    sides = {"block_out_channels": 8, "num_attention_heads": 1, "in_channels": 8, "codebook_size": 16}
    inner = {"hidden_size": 8, "intermediate_size": 16, "cond_embed_dim": 8, "encoder_hidden_size": 8}
    rest = {
        "vocab_size": 21,
        "num_hidden_layers": 1,
        "block_num_heads": 1,
        "sample_size": 4,
        "micro_cond_embed_dim": 40,
    }
    transformer = ours.UVit2DModel(**sides, **inner, **rest, micro_cond_encode_dim=8, downsample=False, upsample=False)
    latent = {
        "latent_channels": 8,
        "sample_size": 8,
        "num_vq_embeddings": 16,
        "norm_num_groups": 2,
        "layers_per_block": 1,
    }
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}
    vqvae = ours.VQModel(
        block_out_channels=(8, 8), **blocks, **latent, mid_block_add_attention=False, lookup_from_codebook=True
    )
    clip = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1}
    text = hub.CLIPTextConfig(vocab_size=28, projection_dim=8, eos_token_id=1, **clip)
    encoder = hub.CLIPTextModelWithProjection(text)
    parts = {"vqvae": vqvae, "text_encoder": encoder, "transformer": transformer}
    return {"tokenizer": words} | {name: tiny_llm.randomised(part) for name, part in parts.items()}


def amused_pipe(parts: dict[str, Any], scheduler: Any, kind: str = "") -> Any:
    pipe = getattr(import_module("diffusers"), f"Amused{kind}Pipeline")(**parts, scheduler=scheduler)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@ALL
def test_amused_draws_what_sample_draws(
    ours: Any, amused: dict[str, Any], kind: str, config: dict[str, Any], solver: Method
) -> None:
    scheduler = getattr(ours, f"{kind}Scheduler")(mask_token_id=20, seed=SEED, **config)
    pipe, told = amused_pipe(amused, scheduler), {}
    how: dict[str, Any] = {"height": 8, "width": 8, "num_inference_steps": 7, "guidance_scale": 0.0}
    keep = amused["transformer"].register_forward_hook(lambda _, args, more, out: told.update(more), with_kwargs=True)
    tokens = pipe(["the cat"] * 3, output_type="latent", **how).images
    keep.remove()

    def network(x: Tensor) -> Tensor:
        same = {name: part[:1].expand(len(x), *part.shape[1:]) for name, part in told.items() if part is not None}
        return amused["transformer"](torch.where(x == 16, 20, x).view(-1, 4, 4), **same).flatten(2).transpose(1, 2)

    model = tl.from_network(tl.Masked(16), length=16, network=network, time_free=True)
    grid = tl.grids.cosine if "grid" in config else None
    assert torch.equal(tokens.flatten(1), tl.sample(model, solver, nfe=7, num=3, seed=SEED, grid=grid).x)
    assert pipe("the cat", **how).images[0].size == (8, 8)


@pytest.mark.parametrize("kind", ["Img2Img", "Inpaint"])
def test_amused_keeps_what_is_given(ours: Any, amused: dict[str, Any], kind: str) -> None:
    image = import_module("PIL.Image").fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    mask = import_module("PIL.Image").fromarray(np.repeat([[0] * 8, [255] * 8], 4, 0).astype(np.uint8))
    scheduler, starts = ours.MultistepScheduler(mask_token_id=20), []
    step = scheduler.step
    scheduler.step = lambda *args, **more: starts.append(more["sample"].clone()) or step(*args, **more)
    pipe = amused_pipe(amused, scheduler, kind)
    more = {"mask_image": mask} if kind == "Inpaint" else {}
    how: dict[str, Any] = {"strength": 0.5, "num_inference_steps": 8, "guidance_scale": 0.0, "output_type": "latent"}
    out = pipe("the cat", image, **more, **how).images
    assert len(starts) == 4
    given = starts[0] != 20
    assert 0 < int(given.sum()) < 16
    assert torch.equal(out[given], starts[0][given])
    assert int(out.max()) < 16


def test_a_pipeline_is_read_as_it_was_written(ours: Any, amused: dict[str, Any], tmp_path: Path) -> None:
    scheduler = ours.ExponentialTrapezoidalScheduler(theta=0.4, planner="fixed-count", mask_token_id=20, seed=2)
    pipe = amused_pipe(amused, scheduler)
    pipe.save_pretrained(tmp_path)
    again = import_module("diffusers").AmusedPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    assert type(again.scheduler) is type(scheduler)
    assert again.scheduler.solver == scheduler.solver
    how: dict[str, Any] = {"height": 8, "width": 8, "num_inference_steps": 4, "output_type": "latent"}
    assert torch.equal(pipe("the cat", **how).images, again("the cat", **how).images)
