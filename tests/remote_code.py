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

from tests.tiny_llm import CHANNELS, MASK, tokenizer

WIDTH, HEADS, LAYERS, INNER, THETA, EPS = 16, 2, 2, 24, 500.0, 1e-5

DREAM = """
import math
import os
from typing import Optional, Union

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.generation.configuration_utils import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, rope_config_validation
from transformers.modeling_utils import PreTrainedModel


class DreamConfig(PretrainedConfig):
    model_type = "Dream"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, vocab_size=28, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                 num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.02, rms_norm_eps=1e-5,
                 use_cache=False, tie_word_embeddings=False, rope_theta=500.0, rope_scaling=None, mask_token_id=22,
                 pad_token_id=0, **kwargs):
        self.vocab_size, self.hidden_size, self.intermediate_size = vocab_size, hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.num_key_value_heads, self.max_position_embeddings = num_key_value_heads, max_position_embeddings
        self.initializer_range, self.rms_norm_eps, self.use_cache = initializer_range, rms_norm_eps, use_cache
        self.rope_theta, self.rope_scaling = rope_theta, rope_scaling
        if self.rope_scaling is not None and "type" in self.rope_scaling:
            self.rope_scaling["rope_type"] = self.rope_scaling["type"]
        rope_config_validation(self)
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
        self.mask_token_id, self.pad_token_id = mask_token_id, pad_token_id


class DreamGenerationConfig(GenerationConfig):
    def __init__(self, **kwargs):
        self.steps = kwargs.pop("steps", 512)
        self.mask_token_id = kwargs.pop("mask_token_id", None)
        super().__init__(**kwargs)


class DreamRMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class DreamRotaryEmbedding(nn.Module):
    def __init__(self, config, device=None):
        super().__init__()
        self.rope_type = "default"
        if config.rope_scaling is not None:
            self.rope_type = config.rope_scaling.get("rope_type", config.rope_scaling.get("type"))
        self.rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type]
        inv_freq, self.attention_scaling = self.rope_init_fn(config, device)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.original_inv_freq = self.inv_freq

    def forward(self, x, position_ids):
        angles = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)
        both = torch.cat([angles, angles], -1)
        return both.cos() * self.attention_scaling, both.sin() * self.attention_scaling


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class DreamAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.heads, self.size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.rope_theta = config.rope_theta
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(config.hidden_size, config.hidden_size, bias=True))
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.rotary_emb = DreamRotaryEmbedding(config)

    def forward(self, x, attention_mask, position_ids):
        b, d, _ = x.shape
        q, k, v = (one(x).view(b, d, self.heads, self.size).transpose(1, 2) for one in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = (part.unsqueeze(1) for part in self.rotary_emb(v, position_ids))
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            attention_mask = attention_mask.to(q.dtype)
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        return self.o_proj(out.transpose(1, 2).reshape(b, d, -1))


class DreamMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DreamDecoderLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.self_attn, self.mlp = DreamAttention(config, layer_idx), DreamMLP(config)
        self.input_layernorm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, attention_mask, position_ids):
        x = x + self.self_attn(self.input_layernorm(x), attention_mask, position_ids)
        return x + self.mlp(self.post_attention_layernorm(x))


class DreamPreTrainedModel(PreTrainedModel):
    config_class = DreamConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DreamDecoderLayer"]
    _skip_keys_device_placement = "past_key_values"
    _supports_sdpa = True
    _supports_cache_class = True

    def _init_weights(self, module):
        std = self.config.initializer_range
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=std)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=std)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Optional[Union[str, os.PathLike]], *model_args, config=None,
                        **kwargs):
        _model = super().from_pretrained(pretrained_model_name_or_path, *model_args, config=config, **kwargs)
        _model.generation_config = DreamGenerationConfig.from_pretrained(pretrained_model_name_or_path)
        return _model


class DreamBaseModel(DreamPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.padding_idx = config.pad_token_id
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, self.padding_idx)
        self.layers = nn.ModuleList([DreamDecoderLayer(config, n) for n in range(config.num_hidden_layers)])
        self._attn_implementation = config._attn_implementation
        self.norm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = DreamRotaryEmbedding(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        x = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        if isinstance(attention_mask, str) and attention_mask == "full":
            attention_mask = None
        for layer in self.layers:
            x = layer(x, attention_mask, position_ids)
        return BaseModelOutput(last_hidden_state=self.norm(x))


class DreamModel(DreamPreTrainedModel):
    _tied_weights_keys = ["lm_head.weight"]

    def __init__(self, config):
        super().__init__(config)
        self.model = DreamBaseModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, new_embeddings):
        self.lm_head = new_embeddings

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, use_cache=None, return_dict=None,
                num_logits_to_keep: int = 0, **loss_kwargs):
        return_dict = return_dict if return_dict is not None else self.config.use_return_dict
        outputs = self.model(input_ids, attention_mask, position_ids)
        logits = self.lm_head(outputs[0][:, -num_logits_to_keep:, :])
        return MaskedLMOutput(logits=logits) if return_dict else (logits,)
"""

LLADA_CONFIG = """
from dataclasses import dataclass
from typing import Optional

from transformers import AutoConfig, PretrainedConfig


@dataclass
class ModelConfig:
    d_model: int = 16
    n_heads: int = 2
    n_layers: int = 2
    mlp_hidden_size: Optional[int] = 24
    rope: bool = True
    rope_theta: float = 500.0
    rms_norm_eps: float = 1e-5
    weight_tying: bool = True
    max_sequence_length: int = 64
    vocab_size: int = 28
    embedding_size: Optional[int] = None
    include_bias: bool = False
    init_device: Optional[str] = None
    mask_token_id: Optional[int] = 22

    @property
    def effective_n_kv_heads(self):
        return self.n_heads


class LLaDAConfig(PretrainedConfig):
    model_type = "llada"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, use_cache: bool = False, **kwargs):
        model_config = ModelConfig()
        all_kwargs = model_config.__dict__
        all_kwargs.update(kwargs)
        all_kwargs.update({"use_cache": use_cache})
        all_kwargs.update({"architectures": all_kwargs.get("architectures", ["LLaDAModelLM"])})
        super().__init__(**all_kwargs)

    @property
    def num_attention_heads(self):
        return self.n_heads

    @property
    def num_hidden_layers(self):
        return self.n_layers

    @property
    def hidden_size(self):
        return self.d_model


AutoConfig.register("llada", LLaDAConfig, exist_ok=True)
"""

LLADA = '''
from collections.abc import MutableMapping
from dataclasses import fields
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_llada import LLaDAConfig, ModelConfig


class BufferCache(dict, MutableMapping[str, torch.Tensor]):
    """Buffers that nobody moves."""


class RMSLayerNorm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.eps = config.rms_norm_eps
        self.weight = nn.Parameter(torch.ones(config.d_model, device=config.init_device))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class RotaryEmbedding(nn.Module):
    def __init__(self, config, cache):
        super().__init__()
        self.config = config
        self.__cache = cache
        self.get_rotary_embedding(config.max_sequence_length, torch.device("cpu"))

    def get_rotary_embedding(self, seq_len, device):
        if (pos_sin := self.__cache.get("rope_pos_sin")) is not None and pos_sin.shape[-2] >= seq_len:
            return pos_sin[:, :, :seq_len, :], self.__cache["rope_pos_cos"][:, :, :seq_len, :]
        dim = self.config.d_model // self.config.n_heads
        inv_freq = 1.0 / (self.config.rope_theta ** (torch.arange(0, dim, 2, device=device, dtype=torch.float) / dim))
        freqs = torch.einsum("i , j -> i j", torch.arange(seq_len, device=device, dtype=torch.float), inv_freq)
        positions = torch.cat((freqs, freqs), dim=-1)
        self.__cache["rope_pos_sin"] = positions.sin()[None, None, :, :]
        self.__cache["rope_pos_cos"] = positions.cos()[None, None, :, :]
        return self.__cache["rope_pos_sin"], self.__cache["rope_pos_cos"]

    def forward(self, q, k):
        sin, cos = (part.type_as(q) for part in self.get_rotary_embedding(q.shape[-2], q.device))

        def turn(x):
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat((-second, first), -1) * sin

        return turn(q), turn(k)


class LLaDALlamaBlock(nn.Module):
    def __init__(self, layer_id, config, cache):
        super().__init__()
        self.config, width, place = config, config.d_model, {"bias": False, "device": config.init_device}
        self.attn_norm, self.ff_norm = RMSLayerNorm(config), RMSLayerNorm(config)
        self.q_proj, self.k_proj = nn.Linear(width, width, **place), nn.Linear(width, width, **place)
        self.v_proj, self.attn_out = nn.Linear(width, width, **place), nn.Linear(width, width, **place)
        self.ff_proj = nn.Linear(width, config.mlp_hidden_size, **place)
        self.up_proj = nn.Linear(width, config.mlp_hidden_size, **place)
        self.ff_out = nn.Linear(config.mlp_hidden_size, width, **place)
        self.rotary_emb = RotaryEmbedding(config, cache)

    def forward(self, x, attention_bias):
        b, d, width = x.shape
        normed = self.attn_norm(x)
        q, k, v = (one(normed).view(b, d, self.config.n_heads, -1).transpose(1, 2) for one in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.rotary_emb(q, k)
        x = x + self.attn_out(F.scaled_dot_product_attention(q, k, v, attn_mask=attention_bias, is_causal=False).transpose(1, 2).reshape(b, d, width))
        normed = self.ff_norm(x)
        return x + self.ff_out(F.silu(self.ff_proj(normed)) * self.up_proj(normed))


class LLaDAOutput(NamedTuple):
    logits: torch.FloatTensor


class LLaDAModel(nn.Module):
    def __init__(self, config: ModelConfig, init_params: bool = True):
        super().__init__()
        self.config = config
        self.__cache = BufferCache()
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.embedding_size or config.vocab_size, config.d_model, device=config.init_device),
                emb_drop=nn.Dropout(0.0),
                ln_f=RMSLayerNorm(config),
            )
        )
        self.transformer.update({"blocks": nn.ModuleList([LLaDALlamaBlock(n, config, self.__cache) for n in range(config.n_layers)])})
        if not config.weight_tying:
            size = config.embedding_size or config.vocab_size
            self.transformer.update({"ff_out": nn.Linear(config.d_model, size, bias=config.include_bias, device=config.init_device)})

    def forward(self, input_ids, attention_mask=None, attention_bias=None):
        x = self.transformer.emb_drop(self.transformer.wte(input_ids))
        if attention_mask is not None and 0.0 in attention_mask:
            attention_mask = attention_mask.to(dtype=torch.float).view(len(x), -1)[:, None, None, :]
        for block in self.transformer.blocks:
            x = block(x, attention_bias)
        x = self.transformer.ln_f(x)
        if self.config.weight_tying:
            return LLaDAOutput(F.linear(x, self.transformer.wte.weight, None))
        return LLaDAOutput(self.transformer.ff_out(x))


def create_model_config_from_pretrained_config(config: LLaDAConfig):
    return ModelConfig(**{field.name: getattr(config, field.name) for field in fields(ModelConfig)})


class LLaDAModelLM(PreTrainedModel):
    config_class = LLaDAConfig
    base_model_prefix = "model"
    _no_split_modules = ["LLaDABlock", "LLaDASequentialBlock", "LLaDALlamaBlock"]

    def __init__(self, config: LLaDAConfig, model: Optional[LLaDAModel] = None, init_params: bool = False):
        super().__init__(config)
        if not model:
            model_config = create_model_config_from_pretrained_config(config)
            model_config.init_device = "cpu"
            self.model = LLaDAModel(model_config, init_params=init_params)
        else:
            self.model = model

    def forward(self, input_ids=None, inputs_embeds=None, attention_mask=None, attention_bias=None, past_key_values=None,
                labels=None, use_cache=None, output_attentions=None, output_hidden_states=None, return_dict=None,
                cache_position=None):
        if use_cache is None:
            use_cache = self.config.use_cache
        return_dict = return_dict if return_dict is not None else self.config.use_return_dict
        assert past_key_values is None and not use_cache
        logits = self.model.forward(input_ids, attention_mask, attention_bias).logits
        return CausalLMOutputWithPast(logits=logits) if return_dict else (logits,)

    def can_generate(self) -> bool:
        return True

    def get_input_embeddings(self):
        return self.model.transformer.wte

    def get_output_embeddings(self):
        return self.model.transformer.wte if self.config.weight_tying else self.model.transformer.ff_out

    def tie_weights(self):
        if self.config.weight_tying:
            self.model.transformer.ff_out = self.model.transformer.wte


AutoModel.register(LLaDAConfig, LLaDAModelLM, exist_ok=True)
'''

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
