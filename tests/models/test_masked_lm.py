"""Masked language models of Hugging Face: tiny random ones, written to a folder and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import thetaleap as tl
from thetaleap.models.hf import masked_lm
from thetaleap.models.hf.masked_lm import Frame, Letters, Words, adapt, mlm
from thetaleap.models.tokenizers import Tokenizer

hub = pytest.importorskip("transformers", reason="needs the extra 'hub'")

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
NOW = torch.tensor(1.0, dtype=torch.float64)


def randomised(model: Any) -> Any:
    """`model` with all its weights random, the biases too, which would start at 0."""
    generator = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
    return model.eval()


def bert(folder: Path) -> Any:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat", "##s", "."]
    tokenizer = hub.BertTokenizer(vocab={word: n for n, word in enumerate(words)})
    tokenizer.save_pretrained(folder)
    model = randomised(hub.BertForMaskedLM(hub.BertConfig(vocab_size=16, max_position_embeddings=20, **SIZES)))
    model.save_pretrained(folder)
    return model


def roberta(folder: Path) -> Any:
    words = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "Ġ", "ab", "Ġab", "<mask>"]
    tokenizer = hub.RobertaTokenizer(vocab={word: n for n, word in enumerate(words)}, merges=[("a", "b"), ("Ġ", "ab")])
    tokenizer.save_pretrained(folder)
    model = randomised(
        hub.RobertaForMaskedLM(hub.RobertaConfig(vocab_size=10, max_position_embeddings=22, pad_token_id=1, **SIZES))
    )
    model.save_pretrained(folder)
    return model


def esm(folder: Path) -> Any:
    words = ["<cls>", "<pad>", "<eos>", "<unk>", *AMINO_ACIDS, "X", "<null_1>", "<mask>"]
    (folder / "words").write_text("\n".join(words), encoding="utf-8")
    hub.EsmTokenizer(str(folder / "words")).save_pretrained(folder)
    config = hub.EsmConfig(
        vocab_size=len(words),
        mask_token_id=len(words) - 1,
        pad_token_id=1,
        position_embedding_type="rotary",
        token_dropout=True,
        max_position_embeddings=22,
        **SIZES,
    )
    model = randomised(hub.EsmForMaskedLM(config))
    model.save_pretrained(folder)
    return model


KINDS: dict[str, Callable[[Path], Any]] = {"bert": bert, "roberta": roberta, "esm": esm}
# special tokens before and after, the mask, and all others
FRAMES = {
    "bert": Frame(tuple(range(5, 13)), 4, (2,), (3,)),
    "roberta": Frame(tuple(range(4, 9)), 9, (0,), (2,)),
    "esm": Frame(tuple(range(4, 26)), 26, (0,), (2,)),
}


def written(x: torch.Tensor, frame: Frame) -> torch.Tensor:
    """`x` as the network should see it, put together anew."""
    table = {**dict(enumerate(frame.ids)), len(frame.ids): frame.mask}
    return torch.tensor([[*frame.before, *(table[n] for n in row), *frame.after] for row in x.tolist()])


def rows(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x, NOW).logits(torch.arange(x.numel())).view(*x.shape, -1)


def some_x(states: int, length: int = 9) -> torch.Tensor:
    return torch.randint(0, states + 1, (3, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_models_own(kind: str, tmp_path: Path) -> None:
    own, frame = KINDS[kind](tmp_path), FRAMES[kind]
    model = mlm(str(tmp_path), length=9)
    assert (model.process, model.length, model.time_free) == (tl.Masked(len(frame.ids)), 9, True)
    x = some_x(len(frame.ids))
    ids = written(x, frame)
    with torch.no_grad():
        expected = own(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, 1:-1, list(frame.ids)]
    torch.testing.assert_close(rows(model, x), expected, rtol=1e-5, atol=1e-5)
    seen: Any = model(x, NOW)
    assert seen.hidden.shape == (27, 16)  # what goes into the last layer, not what comes out
    assert not seen.logits(torch.arange(2)).requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_stay(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KINDS[kind](tmp_path)
    model, given = mlm(tmp_path, length=7), []
    forward = masked_lm.Trunk.forward

    def watch(trunk: Any, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        hook = trunk.model.register_forward_pre_hook(
            lambda _, __, named: given.append(named["input_ids"]), with_kwargs=True
        )
        try:
            return forward(trunk, x, t)
        finally:
            hook.remove()

    monkeypatch.setattr(masked_lm.Trunk, "forward", watch)
    tl.sample(model, tl.Tweedie(), nfe=4, num=3, progress=False)
    frame = FRAMES[kind]
    for ids in given:
        assert ids.shape[1] == 9
        assert set(ids[:, 0].tolist()) == set(frame.before)
        assert set(ids[:, -1].tolist()) == set(frame.after)
        assert set(ids[:, 1:-1].flatten().tolist()) <= {*frame.ids, frame.mask}


@pytest.mark.parametrize("by_name", [True, False])
def test_allowed_tokens(by_name: bool, tmp_path: Path) -> None:
    own = esm(tmp_path)
    order = "YWAC"
    ids = [4 + AMINO_ACIDS.index(letter) for letter in order]
    model = mlm(tmp_path, length=9, allowed=order if by_name else ids)
    x = some_x(4)
    network_input = written(x, Frame(tuple(ids), 26, (0,), (2,)))
    with torch.no_grad():
        expected = own(input_ids=network_input, attention_mask=torch.ones_like(network_input)).logits[:, 1:-1, ids]
    torch.testing.assert_close(rows(model, x), expected, rtol=1e-5, atol=1e-5)
    assert model.tokenizer == Letters(order)
    assert model.tokenizer.decode([1, 2, 0]) == "WAY"
    assert model.tokenizer.encode("WAY") == [1, 2, 0]


def test_dplm(tmp_path: Path) -> None:
    """As DPLM's code saves it: a class of its own by name, no head for contacts, and torch's own format."""
    own = esm(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    weights = {name: tensor for name, tensor in own.state_dict().items() if "contact_head" not in name}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["EsmForDPLM"]}))
    model, ids = tl.load(f"dplm:{tmp_path}", length=9), [4 + AMINO_ACIDS.index(a) for a in "ACDEFGHIKLMNPQRSTVWY"]
    assert model.tokenizer == Letters("ACDEFGHIKLMNPQRSTVWY")
    x = some_x(20)
    network_input = written(x, Frame(tuple(ids), 26, (0,), (2,)))
    with torch.no_grad():
        expected = own(input_ids=network_input, attention_mask=torch.ones_like(network_input)).logits[:, 1:-1]
    torch.testing.assert_close(rows(model, x), expected[..., ids], rtol=1e-5, atol=1e-5)
    out = tl.sample(model, tl.Tweedie(), nfe=3, num=2, template="MK___LV__")
    assert all(text.startswith("MK") and text[5:7] == "LV" for text in out.text)


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (["the", "cot"], r"allowed\[1\]='cot': did you mean 'cat'\? give tokens"),
        (["the", "[SEP]"], r"allowed\[1\]='\[SEP\]': special tokens stay around"),
        (["the", "cat", "the"], r"allowed\[2\]='the': is there twice"),
        ([5, 99], r"allowed\[1\]=99: not in the vocabulary; give ids from 0 to 15"),
        ([5, 14], r"allowed\[1\]=14: not in the vocabulary"),
        (["the"], r"allowed=\['the'\]: give at least two"),
        ([], r"allowed=\[\]: give at least two"),
    ],
)
def test_bad_tokens(allowed: list[Any], message: str, tmp_path: Path) -> None:
    bert(tmp_path)
    with pytest.raises(ValueError, match=message):
        mlm(tmp_path, length=5, allowed=allowed)


@pytest.mark.parametrize(("kind", "text"), [("bert", "the cats sat on a mat."), ("roberta", "ab ab"), ("esm", "W A Y")])
def test_samples_are_texts(kind: str, text: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    model = mlm(tmp_path, length=9)
    assert isinstance(model.tokenizer, Tokenizer)
    assert isinstance(model.tokenizer, Words)
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    runs = [tl.sample(model, tl.Trapezoidal(), nfe=8, num=4, seed=3, progress=False).x for _ in range(2)]
    assert torch.equal(*runs)
    for row in runs[0].tolist():
        shown = model.tokenizer.decode(row)
        assert shown
        assert not any(special in shown for special in ("[MASK]", "[CLS]", "[SEP]", "<mask>", "<s>", "<cls>", "<eos>"))


def test_texts_of_other_tokens_are_refused(tmp_path: Path) -> None:
    bert(tmp_path)
    model = mlm(tmp_path, length=5, allowed=["the", "cat", "##s"])
    with pytest.raises(ValueError, match=r"text='the mat': holds the token 'mat', which is not allowed"):
        model.tokenizer.encode("the mat")
    with pytest.raises(ValueError, match=r"ids\[1\]=3: the tokens are 0 to 2; decode no masks"):
        model.tokenizer.decode([0, 3])
    with pytest.raises(ValueError, match=r"letter='x': not in the alphabet; use 'ab'"):
        Letters("ab").encode("ax")
    with pytest.raises(ValueError, match=r"ids\[0\]=-1: the tokens are 0 to 1"):
        Letters("ab").decode([-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    full, half = mlm(tmp_path, length=9), mlm(tmp_path, length=9, dtype=dtype)
    x = some_x(full.process.states)
    assert rows(half, x).dtype == dtype
    assert half(x, NOW).hidden.shape == (27, 16)  # pyright: ignore[reportAttributeAccessIssue]
    near = 20 * torch.finfo(dtype).eps * float(rows(full, x).abs().max())
    torch.testing.assert_close(rows(half, x).float(), rows(full, x), rtol=0, atol=near)
    assert tl.sample(half, tl.Tweedie(), nfe=3, num=2, progress=False).x.max() < full.process.states


def test_models_whose_last_layer_stays() -> None:
    """MobileBERT builds its last weight from two, so that it cannot be taken out: the model is run whole."""
    config = hub.MobileBertConfig(vocab_size=30, embedding_size=8, max_position_embeddings=20, **SIZES)
    own = randomised(hub.MobileBertForMaskedLM(config))
    frame = Frame((7, 5, 9), 4, (2,), (3,))
    x = some_x(3)
    ids = written(x, frame)
    with torch.no_grad():
        expected = own(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, 1:-1, [7, 5, 9]]
    model = adapt(own, frame, length=9, tokenizer=None, device="cpu")
    torch.testing.assert_close(rows(model, x), expected, rtol=1e-5, atol=1e-5)


def test_too_long(tmp_path: Path) -> None:
    bert(tmp_path)
    assert mlm(tmp_path, length=18).length == 18
    with pytest.raises(
        ValueError, match=r"length=19: BertForMaskedLM fails on 21 tokens .*it has 20 positions; shorten"
    ):
        mlm(tmp_path, length=19)


def test_models_with_a_decoder_are_refused() -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    own = hub.BartForConditionalGeneration(hub.BartConfig(vocab_size=30, d_model=16, **sizes))
    with pytest.raises(ValueError, match="source='BartForConditionalGeneration': give a model that has no decoder"):
        adapt(own, Frame((7, 5), 4, (2,), (3,)), length=9, tokenizer=None, device="cpu")


def test_checkpoints_without_a_head_are_refused(tmp_path: Path) -> None:
    own = bert(tmp_path)
    own.bert.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks the weights cls.predictions.bias, .* and 3 more: give a checkpoint"):
        mlm(tmp_path, length=5)


def test_other_models_are_refused(tmp_path: Path) -> None:
    bert(tmp_path)
    hub.GPT2Config(vocab_size=13, n_embd=16, n_layer=1, n_head=2).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"cannot use config.json and the weights .* give a masked language model"):
        mlm(tmp_path, length=5)


def test_missing_folders_and_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"source='.*nowhere': no such folder, nor a hub id"):
        mlm(tmp_path / "nowhere", length=5)
    with pytest.raises(ValueError, match=r"source='\./nowhere': no such folder, nor a hub id"):
        mlm("./nowhere", length=5)
    bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"wanted config.json and the weights \(model.safetensors .* into the folder"):
        mlm(tmp_path, length=5)


def test_hub_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 does at the start
    with pytest.raises(
        ValueError, match=r"source='nobody/nothing': wanted the tokenizer \(tokenizer.json, .*hf download"
    ):
        mlm("nobody/nothing", length=5)


def test_transformers_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thetaleap.models.hf.hub.installed", lambda name: False)
    with pytest.raises(ImportError, match=r"transformers is not installed: pip install 'thetaleap\[hub\]'"):
        mlm("bert-base-uncased", length=5)
