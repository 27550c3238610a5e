"""Tiny checkpoints with code of their own, in the form of LLaDA's and Dream's: what theirs asks of transformers, this does.

Dream's class has its own ``from_pretrained``, which sets what it gets; a rotary layer that looks its function up in
transformers and keeps its frequencies in a buffer that no file holds; and a list of tied weights. LLaDA's configuration
is made of a dataclass; its model never calls ``post_init``, names a device for each layer, keeps its angles in a plain
dictionary, and ties weights by a method without arguments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.remote_dream import DREAM
from tests.remote_llada import LLADA, LLADA_CONFIG
from tests.tiny_llm import CHANNELS, MASK, tokenizer

WIDTH, HEADS, LAYERS, INNER, THETA, EPS = 16, 2, 2, 24, 500.0, 1e-5

PARTS = {
    "dream": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "llada": ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"),
}
"""What both call the layers of a block, in the same order."""


def names(kind: str, layer: int) -> list[str]:
    """Of the norms and the layers of a block."""
    if kind == "llada":
        stem = f"model.transformer.blocks.{layer}"
        return [f"{stem}.{name}" for name in ("attn_norm", "ff_norm", *PARTS[kind])]
    stem, inner = f"model.layers.{layer}", ["self_attn"] * 4 + ["mlp"] * 3
    parts = [f"{stem}.{part}.{name}" for part, name in zip(inner, PARTS[kind], strict=True)]
    return [f"{stem}.input_layernorm", f"{stem}.post_attention_layernorm", *parts]


ENDS = {
    "dream": ("model.embed_tokens", "model.norm", "lm_head"),
    "llada": ("model.transformer.wte", "model.transformer.ln_f", "model.transformer.ff_out"),
}


def weights(kind: str, tied: bool = False) -> dict[str, Tensor]:
    """Random ones, by the names and in the shapes of the authors' code."""
    made = torch.Generator().manual_seed(3)

    def some(*shape: int) -> Tensor:
        return 0.5 * torch.randn(shape, generator=made, dtype=torch.float64)

    embedding, norm, head = ENDS[kind]
    every = {f"{embedding}.weight": some(CHANNELS, WIDTH), f"{norm}.weight": some(WIDTH)}
    every |= {} if tied else {f"{head}.weight": some(CHANNELS, WIDTH)}
    for layer in range(LAYERS):
        shapes = [(WIDTH,)] * 2 + [(WIDTH, WIDTH)] * 4 + [(INNER, WIDTH)] * 2 + [(WIDTH, INNER)]
        for n, (name, shape) in enumerate(zip(names(kind, layer), shapes, strict=True)):
            every[f"{name}.weight"] = some(*shape)
            if kind == "dream" and 2 <= n < 5:
                every[f"{name}.bias"] = some(WIDTH)
    return every


def write(folder: Path, kind: str, tied: bool = False, layout: str = "whole") -> dict[str, Tensor]:
    """A checkpoint in `folder`, its weights whole, in two files with an index ("parts"), or as torch saves them ("bin")."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(folder)
    own = {"mask_token_id": MASK, "dtype": "float64", "torch_dtype": "float64"}
    if kind == "dream":
        (folder / "modeling_dream.py").write_text(DREAM)
        auto = {"AutoConfig": "modeling_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"}
        own |= {"model_type": "Dream", "tie_word_embeddings": tied, "architectures": ["DreamModel"]}
        (folder / "generation_config.json").write_text(json.dumps({"steps": 8, "mask_token_id": MASK}))
    else:
        (folder / "configuration_llada.py").write_text(LLADA_CONFIG)
        (folder / "modeling_llada.py").write_text(LLADA)
        model = "modeling_llada.LLaDAModelLM"
        auto = {"AutoConfig": "configuration_llada.LLaDAConfig", "AutoModelForCausalLM": model, "AutoModel": model}
        own |= {"model_type": "llada", "weight_tying": tied, "architectures": ["LLaDAModelLM"]}
    (folder / "config.json").write_text(json.dumps({**own, "auto_map": auto}))
    every = weights(kind, tied)
    if layout == "bin":
        torch.save(every, folder / "pytorch_model.bin")
    elif layout == "whole":
        save_file(every, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        where = {name: f"model-{1 + n % 2:05}-of-00002.safetensors" for n, name in enumerate(every)}
        for file in set(where.values()):
            save_file({name: every[name] for name in every if where[name] == file}, folder / file)
        index: dict[str, Any] = {"metadata": {}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return every


def straight(kind: str, every: dict[str, Tensor], ids: Tensor) -> np.ndarray:
    """Logits from the papers' description, in float64: a Llama whose every position attends to every other."""
    w = {name: tensor.double().numpy() for name, tensor in every.items()}
    embedding, norm, head = ENDS[kind]
    size = WIDTH // HEADS

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        return w[f"{name}.weight"] * x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def turned(x: np.ndarray) -> np.ndarray:
        """Pairs (k, k + size/2) of each head, turned by position * theta^(-2k/size)."""
        frequencies = (THETA ** (-np.arange(0, size, 2, dtype=np.float32) / size)).astype(np.float64)
        z = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * np.exp(
            1j * np.arange(x.shape[1])[:, None] * frequencies
        )[None, :, None]
        return np.concatenate([z.real, z.imag], -1)

    x = w[f"{embedding}.weight"][ids.numpy()]
    for layer in range(LAYERS):
        norm1, norm2, q, k, v, o, gate, up, down = names(kind, layer)
        h = normed(x, norm1)
        queries, keys, values = (linear(h, name).reshape(*h.shape[:2], HEADS, size) for name in (q, k, v))
        scores = np.einsum("bqhk,bphk->bhqp", turned(queries), turned(keys)) / np.sqrt(size)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("bhqp,bphk->bqhk", scores / scores.sum(-1, keepdims=True), values)
        x = x + linear(mixed.reshape(h.shape), o)
        h = normed(x, norm2)
        gated = linear(h, gate)
        x = x + linear(gated / (1 + np.exp(-gated)) * linear(h, up), down)
    return linear(normed(x, norm), head if f"{head}.weight" in w else embedding)
