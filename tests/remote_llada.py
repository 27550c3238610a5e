"""Code in the form of LLaDA's, as it comes with a checkpoint."""

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
