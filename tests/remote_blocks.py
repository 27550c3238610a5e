"""Tiny checkpoints with code of their own, in the form of SDAR's and LLaDA2's: networks that are told to see in blocks.

SDAR's is Qwen 3 with masks that it takes as booleans, a cache that is added to if ``store_kv`` says so, and
flash-attention where everything is visible. LLaDA2's has one layer for queries, keys and values, turns half of each head,
and has experts; it adds the mask to its scores, gives logits in float32, and imports what transformers 5 does not have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.remote_llada2 import LLADA2, LLADA2_CONFIG
from tests.remote_sdar import SDAR
from tests.tiny_llm import CHANNELS, MASK, tokenizer

WIDTH, HEADS, SIZE, LAYERS, INNER, THETA, EPS = 16, 2, 8, 2, 24, 500.0, 1e-6
EXPERTS, GROUPS, EACH, SCALE = 4, 2, 2, 2.5
BLOCK = 4

CODE = {
    "sdar": ("sdar", {"modeling_sdar": SDAR}, "modeling_sdar.SDARConfig", "modeling_sdar.SDARForCausalLM"),
    "llada2": (
        "llada2_moe",
        {"configuration_llada2_moe": LLADA2_CONFIG, "modeling_llada2_moe": LLADA2},
        "configuration_llada2_moe.LLaDA2MoeConfig",
        "modeling_llada2_moe.LLaDA2MoeModelLM",
    ),
}
"""What ``config.json`` calls them, their files, and where the configuration and the model are."""


def weights(kind: str) -> dict[str, Tensor]:
    """Random ones, by the names and in the shapes of the authors' code."""
    made = torch.Generator().manual_seed(7)

    def some(*shape: int) -> Tensor:
        return 0.5 * torch.randn(shape, generator=made, dtype=torch.float64)

    first = "embed_tokens" if kind == "sdar" else "word_embeddings"
    every = {f"model.{first}.weight": some(CHANNELS, WIDTH), "lm_head.weight": some(CHANNELS, WIDTH)}
    every["model.norm.weight"] = some(WIDTH)
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        every |= {f"{stem}.{name}_layernorm.weight": some(WIDTH) for name in ("input", "post_attention")}
        if kind == "sdar":
            every |= {f"{stem}.self_attn.{name}_proj.weight": some(WIDTH, WIDTH) for name in "qkvo"}
            every |= {f"{stem}.self_attn.{name}_norm.weight": some(SIZE) for name in "qk"}
        else:
            every[f"{stem}.attention.query_key_value.weight"] = some(3 * WIDTH, WIDTH)
            every |= {f"{stem}.attention.{name}_layernorm.weight": some(SIZE) for name in ("query", "key")}
            every |= {f"{stem}.attention.dense.weight": some(WIDTH, WIDTH), f"{stem}.attention.dense.bias": some(WIDTH)}
        parts = ["mlp"]
        if kind == "llada2" and layer > 0:
            parts = [f"mlp.experts.{n}" for n in range(EXPERTS)] + ["mlp.shared_experts"]
            every |= {f"{stem}.mlp.gate.weight": some(EXPERTS, WIDTH), f"{stem}.mlp.gate.expert_bias": some(EXPERTS)}
        for part in parts:
            every |= {f"{stem}.{part}.{name}_proj.weight": some(INNER, WIDTH) for name in ("gate", "up")}
            every[f"{stem}.{part}.down_proj.weight"] = some(WIDTH, INNER)
    return every


def write(folder: Path, kind: str, **more: Any) -> dict[str, Tensor]:
    """A checkpoint in `folder`; `more` goes into its ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(folder)
    name, files, config, model = CODE[kind]
    for file, code in files.items():
        (folder / f"{file}.py").write_text(code)
    auto = {"AutoConfig": config, "AutoModel": model, "AutoModelForCausalLM": model}
    told = {"model_type": name, "auto_map": auto, "mask_token_id": MASK, "dtype": "float64"}
    (folder / "config.json").write_text(json.dumps({**told, **more}))
    every = weights(kind)
    save_file(every, folder / "model.safetensors", metadata={"format": "pt"})
    return every


def straight(kind: str, every: dict[str, Tensor], ids: np.ndarray, block: int = BLOCK) -> np.ndarray:
    """Logits (d, S) of one sequence from the papers' description, in float64; position i sees j if j's block is not
    behind its own."""
    w = {name: tensor.numpy() for name, tensor in every.items()}
    place = np.arange(len(ids))
    turned_size = SIZE if kind == "sdar" else SIZE // 2

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        return w[f"{name}.weight"] * x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)

    def turned(x: np.ndarray) -> np.ndarray:
        """The first part of each head, in pairs (k, k + half), turned by position * theta^(-2k/size)."""
        half = turned_size // 2
        frequencies = (THETA ** (-np.arange(0, turned_size, 2, dtype=np.float32) / turned_size)).astype(np.float64)
        z = (x[..., :half] + 1j * x[..., half:turned_size]) * np.exp(1j * place[:, None] * frequencies)[:, None]
        return np.concatenate([z.real, z.imag, x[..., turned_size:]], -1)

    def mlp(x: np.ndarray, name: str) -> np.ndarray:
        gated = x @ w[f"{name}.gate_proj.weight"].T
        return gated / (1 + np.exp(-gated)) * (x @ w[f"{name}.up_proj.weight"].T) @ w[f"{name}.down_proj.weight"].T

    def experts(x: np.ndarray, name: str) -> np.ndarray:
        out = mlp(x, f"{name}.shared_experts")
        for n, row in enumerate(x):
            score = 1 / (1 + np.exp(-w[f"{name}.gate.weight"] @ row))
            biased = score + w[f"{name}.gate.expert_bias"]
            group = biased.reshape(GROUPS, -1).sum(1).argmax()  # the two best of each are all of it
            size = EXPERTS // GROUPS
            chosen = np.arange(group * size, group * size + size)[:EACH]
            for expert in chosen:
                share = SCALE * score[expert] / score[chosen].sum()
                out[n] += share * mlp(row, f"{name}.experts.{expert}")
        return out

    x = w[f"model.{'embed_tokens' if kind == 'sdar' else 'word_embeddings'}.weight"][ids]
    seen = place[None] // block <= place[:, None] // block
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        h = normed(x, f"{stem}.input_layernorm")
        if kind == "sdar":
            q, k, v = (h @ w[f"{stem}.self_attn.{name}_proj.weight"].T for name in "qkv")
            norms = [f"{stem}.self_attn.{name}_norm" for name in "qk"]
        else:
            q, k, v = np.split(h @ w[f"{stem}.attention.query_key_value.weight"].T, 3, 1)
            norms = [f"{stem}.attention.{name}_layernorm" for name in ("query", "key")]
        q, k, v = (one.reshape(len(ids), HEADS, SIZE) for one in (q, k, v))
        scores = np.einsum("qhs,khs->hqk", turned(normed(q, norms[0])), turned(normed(k, norms[1]))) / np.sqrt(SIZE)
        scores = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        mixed = np.einsum("hqk,khs->qhs", scores / scores.sum(-1, keepdims=True), v).reshape(len(ids), -1)
        if kind == "sdar":
            x = x + mixed @ w[f"{stem}.self_attn.o_proj.weight"].T
        else:
            x = x + mixed @ w[f"{stem}.attention.dense.weight"].T + w[f"{stem}.attention.dense.bias"]
        h = normed(x, f"{stem}.post_attention_layernorm")
        x = x + (experts(h, f"{stem}.mlp") if kind == "llada2" and layer > 0 else mlp(h, f"{stem}.mlp"))
    return normed(x, "model.norm") @ w["lm_head.weight"].T
