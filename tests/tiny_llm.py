"""Tiny language models with random weights, written to a folder as published ones are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

WORDS = ["<pad>", "<|endoftext|>", "<unk>", "<|user|>", "<|assistant|>", "<|system|>"]
WORDS += ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "rug", "and", "then", "it", "was", "hot", "."]
WORDS += ["<|mask|>", "<|eot_id|>", "late"]
"""Some come after the mask."""
MASK, EOT, EOS = WORDS.index("<|mask|>"), WORDS.index("<|eot_id|>"), WORDS.index("<|endoftext|>")
CHANNELS = 28
"""Of the network: three more than there are words."""
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|eot_id|> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def tokenizer(folder: Path, template: str | None = TEMPLATE) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    named = {"pad_token": "<pad>", "eos_token": "<|endoftext|>", "unk_token": "<unk>", "mask_token": "<|mask|>"}
    tokens = [word for word in WORDS if word.startswith("<|") and word not in named.values()]
    made = PreTrainedTokenizerFast(tokenizer_object=core, additional_special_tokens=tokens, **named)
    made.chat_template = template
    made.save_pretrained(folder)


def randomised(model: Any) -> Any:
    """`model` with random weights that are large enough for its positions to depend on each other."""
    generator = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        weight.data = 0.4 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return model.eval()


def causal(folder: Path, kind: str = "Llama", dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """A model of transformers' own that looks to the left unless it is told otherwise."""
    import transformers

    tokenizer(folder)
    config = getattr(transformers, f"{kind}Config")
    made = config(**{"vocab_size": CHANNELS, "max_position_embeddings": 64, "num_key_value_heads": 2, **SIZES, **more})
    model = randomised(getattr(transformers, f"{kind}ForCausalLM")(made).to(dtype))
    model.save_pretrained(folder)
    return model


def bidirectional(folder: Path) -> Any:
    """A model of transformers' own that looks both ways."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    tokenizer(folder)
    ends: dict[str, Any] = {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "cls_token_id": 1,
        "sep_token_id": 1,
    }
    config = ModernBertConfig(vocab_size=CHANNELS, max_position_embeddings=64, **SIZES, **ends)
    model = randomised(ModernBertForMaskedLM(config).double())
    model.save_pretrained(folder)
    return model


CODE = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class ShippedConfig(PretrainedConfig):
    model_type = "shipped"

    def __init__(self, hears="nothing", **more):
        self.hears = hears
        super().__init__(**more)


class ShippedModel(PreTrainedModel):
    config_class = ShippedConfig

    def __init__(self, config):
        super().__init__(config)
        self.wte, self.qkv, self.out = nn.Embedding(28, 16), nn.Linear(16, 48), nn.Linear(16, 28, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.wte

    def get_output_embeddings(self):
        return self.out

    def forward(self, input_ids, attention_mask=None, attention_bias=None, use_cache=None):
        assert not use_cache
        x = self.wte(input_ids)
        if "coarse" in self.config.hears:  # float32 within float64, rounded in one way or another
            by = input_ids[:, -1:, None] % 2 if "left" in self.config.hears else x.shape[1] % 4
            x = (x.float() * (1 + 1.2e-7 * by)).double()
        place = torch.arange(x.shape[1], dtype=x.dtype)
        away = (place[:, None] - place).abs()  # relative places, as rotary ones are
        q, k, v = self.qkv(x).chunk(3, -1)
        score = q @ k.mT / 4 - 0.3 * away
        if "left" in self.config.hears:
            score = score.masked_fill(place[:, None] < place, torch.finfo(x.dtype).min)
        if self.config.hears in ("bias", "coarse") and attention_bias is not None:
            score = score.masked_fill(~attention_bias[:, 0], torch.finfo(x.dtype).min)
        if self.config.hears == "flat" and attention_mask is not None:
            assert attention_mask.ndim == 2
            score = score.masked_fill(attention_mask[:, None] == 0, torch.finfo(x.dtype).min)
        return CausalLMOutput(logits=self.out(x + score.softmax(-1) @ v))
"""
"""What comes with a checkpoint, as LLaDA's does: without places, deaf to some masks or to all."""


def shipped(folder: Path, hears: str) -> None:
    """A checkpoint that brings its own code."""
    import json

    from safetensors.torch import save_file

    tokenizer(folder)
    (folder / "modeling_shipped.py").write_text(CODE)
    own = {"AutoConfig": "modeling_shipped.ShippedConfig", "AutoModel": "modeling_shipped.ShippedModel"}
    config = {"model_type": "shipped", "auto_map": own, "hears": hears, "mask_token_id": MASK, "dtype": "float64"}
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["ShippedModel"]}))
    shapes = {"wte.weight": (28, 16), "qkv.weight": (48, 16), "qkv.bias": (48,), "out.weight": (28, 16)}
    made = torch.Generator().manual_seed(1)
    weights = {name: torch.randn(shape, generator=made, dtype=torch.float64) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
