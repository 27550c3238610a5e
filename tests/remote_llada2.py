"""Code in the form of LLaDA2's, as it comes with a checkpoint."""

from tests.remote_sdar import COMMON

LLADA2_CONFIG = """
from transformers import PretrainedConfig


class LLaDA2MoeConfig(PretrainedConfig):
    model_type = "llada2_moe"

    def __init__(self, vocab_size=28, hidden_size=16, head_dim=8, num_attention_heads=2, num_hidden_layers=2,
                 intermediate_size=24, rope_theta=500.0, partial_rotary_factor=0.5, rms_norm_eps=1e-6, num_experts=4,
                 num_experts_per_tok=2, n_group=2, topk_group=1, routed_scaling_factor=2.5, first_k_dense_replace=1,
                 max_position_embeddings=64, use_cache=True, pad_token_id=0, **kwargs):
        self.vocab_size, self.hidden_size, self.head_dim = vocab_size, hidden_size, head_dim
        self.num_attention_heads, self.num_hidden_layers = num_attention_heads, num_hidden_layers
        self.intermediate_size, self.rope_theta = intermediate_size, rope_theta
        self.partial_rotary_factor, self.rms_norm_eps = partial_rotary_factor, rms_norm_eps
        self.num_experts, self.num_experts_per_tok, self.n_group = num_experts, num_experts_per_tok, n_group
        self.topk_group, self.routed_scaling_factor = topk_group, routed_scaling_factor
        self.first_k_dense_replace, self.max_position_embeddings = first_k_dense_replace, max_position_embeddings
        self.use_cache = use_cache
        super().__init__(pad_token_id=pad_token_id, **kwargs)
"""

LLADA2 = (
    COMMON
    + """
from transformers.modeling_attn_mask_utils import _prepare_4d_causal_attention_mask_for_sdpa
from transformers.utils.import_utils import is_torch_fx_available
from .configuration_llada2_moe import LLaDA2MoeConfig

if is_torch_fx_available():
    import torch.fx


class LLaDA2MoeGate(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty((config.num_experts, config.hidden_size)))
        self.register_buffer("expert_bias", torch.zeros(config.num_experts))

    def forward(self, x):
        c = self.config
        scores = torch.sigmoid(nn.functional.linear(x.type(torch.float32), self.weight.type(torch.float32)))
        routing = scores + self.expert_bias
        groups = routing.view(len(x), c.n_group, -1)
        best = torch.topk(groups.topk(2, dim=-1)[0].sum(dim=-1), k=c.topk_group, dim=-1)[1]
        allowed = torch.zeros(len(x), c.n_group).scatter_(1, best, 1)
        allowed = allowed.unsqueeze(-1).expand_as(groups).reshape(len(x), -1).bool()
        which = torch.topk(routing.masked_fill(~allowed, float("-inf")), k=c.num_experts_per_tok, dim=-1)[1]
        scores = torch.gather(scores, 1, which)
        return which, scores / (scores.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor


class LLaDA2MoeSparseMoeBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.experts = nn.ModuleList([MLP(config.hidden_size, config.intermediate_size) for _ in range(config.num_experts)])
        self.gate, self.shared_experts = LLaDA2MoeGate(config), MLP(config.hidden_size, config.intermediate_size)

    def forward(self, x):
        flat = x.view(-1, x.shape[-1])
        which, weight = self.gate(flat)
        out = torch.zeros_like(flat)
        for n, expert in enumerate(self.experts):
            rows, slot = torch.nonzero(which == n, as_tuple=True)
            out.index_add_(0, rows, (expert(flat[rows]).type(weight.dtype) * weight[rows, slot, None]).type(out.dtype))
        return out.view_as(x) + self.shared_experts(x)


class LLaDA2MoeAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.heads, self.size, self.layer_idx = config.num_attention_heads, config.head_dim, layer_idx
        self.query_key_value = nn.Linear(config.hidden_size, 3 * self.heads * self.size, bias=False)
        self.query_layernorm = Norm(self.size, config.rms_norm_eps)
        self.key_layernorm = Norm(self.size, config.rms_norm_eps)
        self.dense = nn.Linear(self.heads * self.size, config.hidden_size, bias=True)

    def forward(self, x, cos, sin, attention_mask, past_key_value):
        b, d, _ = x.shape
        q, k, v = self.query_key_value(x).view(b, d, -1, self.size).transpose(1, 2).split([self.heads] * 3, dim=1)
        q, k = turn(self.query_layernorm(q), cos, sin), turn(self.key_layernorm(k), cos, sin)
        if past_key_value is not None:
            k, v = past_key_value.update(k, v, self.layer_idx, {"sin": sin, "cos": cos})
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        return self.dense(out.transpose(1, 2).reshape(b, d, -1))


class LLaDA2MoeDecoderLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.attention = LLaDA2MoeAttention(config, layer_idx)
        dense = layer_idx < config.first_k_dense_replace
        self.mlp = MLP(config.hidden_size, config.intermediate_size) if dense else LLaDA2MoeSparseMoeBlock(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, *more):
        x = x + self.attention(self.input_layernorm(x), *more)
        return x + self.mlp(self.post_attention_layernorm(x))


class LLaDA2MoeModel(PreTrainedModel):
    config_class = LLaDA2MoeConfig

    def __init__(self, config):
        super().__init__(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList([LLaDA2MoeDecoderLayer(config, n) for n in range(config.num_hidden_layers)])
        self.norm, self.rotary_emb = Norm(config.hidden_size, config.rms_norm_eps), Rotary(config)
        self.post_init()

    def forward(self, input_ids, attention_mask, position_ids, past_key_values, use_cache):
        use_cache = use_cache if use_cache is not None else self.config.use_cache
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        x = self.word_embeddings(input_ids)
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        if position_ids is None:
            position_ids = torch.arange(past, past + x.shape[1], device=x.device).unsqueeze(0)
        attention_mask = _prepare_4d_causal_attention_mask_for_sdpa(attention_mask, tuple(input_ids.shape), x, past)
        cos, sin = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, attention_mask, past_key_values)
        return self.norm(x), past_key_values


class LLaDA2MoeModelLM(PreTrainedModel):
    config_class = LLaDA2MoeConfig
    _tied_weights_keys = ["lm_head.weight"]

    def __init__(self, config):
        super().__init__(config)
        self.model, self.lm_head = LLaDA2MoeModel(config), nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.word_embeddings

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None, **kwargs):
        x, past = self.model(input_ids, attention_mask, position_ids, past_key_values, use_cache)
        return CausalLMOutputWithPast(logits=self.lm_head(x).float(), past_key_values=past)
"""
)
