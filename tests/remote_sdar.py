"""Code in the form of SDAR's, as it comes with a checkpoint; and what LLaDA2's has in common with it."""

COMMON = """
import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import PreTrainedModel


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Rotary(nn.Module):
    def __init__(self, config, device=None):
        super().__init__()
        inv_freq, self.attention_scaling = ROPE_INIT_FUNCTIONS["default"](config, device)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x, position_ids):
        angles = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)
        both = torch.cat([angles, angles], -1)
        return both.cos(), both.sin()


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def turn(x, cos, sin):
    size = cos.shape[-1]
    part, rest = x[..., :size], x[..., size:]
    return torch.cat([part * cos[:, None] + rotate_half(part) * sin[:, None], rest], -1)


class MLP(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
"""

SDAR = (
    COMMON
    + """
try:
    from flash_attn import flash_attn_func
except ImportError:
    pass


class SDARConfig(PretrainedConfig):
    model_type = "sdar"

    def __init__(self, vocab_size=28, hidden_size=16, head_dim=8, num_attention_heads=2, num_key_value_heads=2,
                 num_hidden_layers=2, intermediate_size=24, rope_theta=500.0, rms_norm_eps=1e-6,
                 max_position_embeddings=64, mask_token_id=22, block_size=4, **kwargs):
        self.vocab_size, self.hidden_size, self.head_dim = vocab_size, hidden_size, head_dim
        self.num_attention_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads
        self.num_hidden_layers, self.intermediate_size = num_hidden_layers, intermediate_size
        self.rope_theta, self.rms_norm_eps, self.max_position_embeddings = rope_theta, rms_norm_eps, max_position_embeddings
        self.mask_token_id, self.block_size = mask_token_id, block_size
        super().__init__(**kwargs)


class SDARAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.heads, self.size, self.layer_idx = config.num_attention_heads, config.head_dim, layer_idx
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(config.hidden_size, self.heads * self.size, bias=False))
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)
        self.q_norm, self.k_norm = Norm(self.size, config.rms_norm_eps), Norm(self.size, config.rms_norm_eps)

    def forward(self, x, cos, sin, attention_mask, past_key_value, store_kv):
        b, d, _ = x.shape
        q, k, v = (one(x).view(b, d, self.heads, self.size) for one in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        if past_key_value is not None and store_kv:
            k, v = past_key_value.update(k, v, self.layer_idx)
        elif past_key_value is not None and len(past_key_value) > self.layer_idx:
            k = torch.cat([past_key_value[self.layer_idx][0], k], -2)
            v = torch.cat([past_key_value[self.layer_idx][1], v], -2)
        attention_mask = attention_mask.bool() if attention_mask is not None else None
        if torch.all(attention_mask):
            out = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=False).transpose(1, 2)
        else:
            out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, is_causal=False)
        return self.o_proj(out.transpose(1, 2).reshape(b, d, -1))


class SDARLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.self_attn, self.mlp = SDARAttention(config, layer_idx), MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, *more):
        x = x + self.self_attn(self.input_layernorm(x), *more)
        return x + self.mlp(self.post_attention_layernorm(x))


class SDARModel(PreTrainedModel):
    config_class = SDARConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([SDARLayer(config, n) for n in range(config.num_hidden_layers)])
        self.norm, self.rotary_emb = Norm(config.hidden_size, config.rms_norm_eps), Rotary(config)
        self.post_init()

    def forward(self, input_ids, attention_mask, position_ids, past_key_values, use_cache, store_kv=None):
        if not isinstance(past_key_values, (type(None), Cache)):
            raise ValueError("The `past_key_values` should be either a `Cache` object or `None`.")
        x = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        cos, sin = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, attention_mask, past_key_values, store_kv)
        return self.norm(x), past_key_values


class SDARForCausalLM(PreTrainedModel):
    config_class = SDARConfig
    _tied_weights_keys = ["lm_head.weight"]

    def __init__(self, config):
        super().__init__(config)
        self.model, self.lm_head = SDARModel(config), nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None, **kwargs):
        if attention_mask is None:  # as where it is not told to see in blocks
            attention_mask = torch.ones(input_ids.shape[1], input_ids.shape[1], dtype=torch.bool).tril()
        x, past = self.model(input_ids, attention_mask, position_ids, past_key_values, use_cache, **kwargs)
        return CausalLMOutputWithPast(logits=self.lm_head(x), past_key_values=past)
"""
)
