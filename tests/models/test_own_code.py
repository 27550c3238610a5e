"""LLaDA- and Dream-shaped checkpoints, with code of their authors' form, by every way in which people load them."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import thetaleap as tl
from tests import remote_code
from tests.cli import test_chat
from tests.cli.test_cli import call
from tests.tiny_llm import CHANNELS, MASK, WORDS
from thetaleap.integrations.lm_eval import respondent
from thetaleap.models.hf.hub import Source
from thetaleap.models.hf.own_code import plain_frequencies, weight_files

pytest.importorskip("transformers", reason="needs the extra 'hub'")

NOW = torch.tensor(1.0, dtype=torch.float64)
LENGTH = 7
KINDS = ("llada", "dream")
NAMED = [n for n in range(len(WORDS)) if n != MASK]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where to write a checkpoint; copies of its code are kept within the test's folder."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    return tmp_path / "model"


def some_x() -> torch.Tensor:
    made = torch.Generator().manual_seed(1)
    x = torch.tensor(NAMED)[torch.randint(0, len(NAMED), (3, LENGTH), generator=made)]
    return x.masked_fill(torch.rand(x.shape, generator=made) < 0.5, CHANNELS)


def check(kind: str, folder: Path, weights: dict[str, torch.Tensor]) -> Any:
    """The model says what the straight-line network says; Dream's is about the next position."""
    model, x = tl.load(f"{kind}:{folder}", length=LENGTH, trust_remote_code=True), some_x()
    mine = model(x, NOW).logits(torch.arange(x.numel())).view(*x.shape, -1)[..., NAMED].numpy()
    theirs = remote_code.straight(kind, weights, torch.where(x == CHANNELS, MASK, x))[..., NAMED]
    if kind == "dream":
        theirs = np.concatenate([theirs[:, :1], theirs[:, :-1]], 1)
    # their angles are in float32, which is 6e-8 of 7 positions
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    return model


@pytest.mark.parametrize("layout", ["whole", "parts", "bin"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_paper(kind: str, layout: str, folder: Path) -> None:
    model = check(kind, folder, remote_code.write(folder, kind, layout=layout))
    assert model.attends


@pytest.mark.parametrize("kind", KINDS)
def test_tied_weights(kind: str, folder: Path) -> None:
    check(kind, folder, remote_code.write(folder, kind, tied=True))


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_command_line_in_chat_and_in_the_harness(kind: str, folder: Path) -> None:
    remote_code.write(folder, kind)
    sampled = call("sample", f"{kind}:{folder}", "--trust-remote-code", "--length", 6, "--nfe", 2, "--num", 2)
    assert sampled.exit_code == 0, sampled.output
    said = test_chat.call(f"{kind}:{folder}", "--trust-remote-code", "--nfe", 2, "--length", 8, said="the cat\n")
    assert said.exit_code == 0, said.output
    own = respondent(f"{kind}:{folder}", solver="tweedie", nfe=2, length=4, trust_remote_code=True)
    assert len(own.generate([("the cat", {})])) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_code_is_not_run_unless_it_is_said(kind: str, folder: Path) -> None:
    remote_code.write(folder, kind)
    for module in folder.glob("*.py"):
        module.write_text("raise AssertionError('this was run')")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "trust_remote_code": True}))
    with pytest.raises(ValueError, match=r"comes with code of its own.*trust_remote_code=True"):
        tl.load(f"{kind}:{folder}", length=LENGTH)
    with pytest.raises(ValueError, match=r"this was run"):
        tl.load(f"{kind}:{folder}", length=LENGTH, trust_remote_code=True)


def test_precision(folder: Path) -> None:
    remote_code.write(folder, "dream")
    model = tl.load(f"dream:{folder}", length=LENGTH, trust_remote_code=True, dtype="float32")
    assert model(some_x(), NOW).logits(torch.arange(2)).dtype == torch.float32
    assert torch.get_default_dtype() == torch.float32


def test_spread_over_devices(folder: Path) -> None:
    weights = remote_code.write(folder, "llada")
    whole = check("llada", folder, weights)
    spread = tl.load(f"llada:{folder}", length=LENGTH, trust_remote_code=True, dtype="float64", device_map={"": "cpu"})
    x = some_x()
    mine, theirs = (model(x, NOW).logits(torch.arange(x.numel())) for model in (spread, whole))
    torch.testing.assert_close(mine, theirs)


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, "mlm"])
def test_no_pickle_is_run(kind: str, trusted: bool, folder: Path, tmp_path: Path) -> None:
    """Neither with the code that comes with the weights, nor with transformers' own."""
    from transformers import BertConfig, BertForMaskedLM

    trace, shape = tmp_path / "trace", kind if trusted and kind != "mlm" else "dream"
    remote_code.write(folder, shape, layout="bin")
    if shape != kind or not trusted:
        sizes: Any = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        BertForMaskedLM(BertConfig(vocab_size=CHANNELS, **sizes)).save_pretrained(folder)
        (folder / "model.safetensors").unlink()
    torch.save({"wte.weight": Trap(trace)}, folder / "pytorch_model.bin")
    more = {} if kind == "mlm" else {"trust_remote_code": trusted}
    with pytest.raises(ValueError, match=r"hold\S* \S*mkdir and not only tensors") as error:
        tl.load(f"{kind}:{folder}", length=4, **more)
    assert "\n" not in str(error.value)
    assert not trace.exists()


def test_from_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that is a folder; of the two kinds of weights, the second is asked for if the first is not there."""
    remote_code.write(folder, "llada", layout="bin")
    asked: list[str] = []

    def download(name: str, allow_patterns: str, local_files_only: bool) -> str:
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    source = Source("org/name", False, "llada:FOLDER", lambda what, error: str(error), True)
    assert weight_files(source) == [folder / "pytorch_model.bin"]
    assert asked == ["*.safetensors*", "*.bin*"]


# --- what is missing


def test_missing_and_surplus_weights(folder: Path) -> None:
    remote_code.write(folder, "dream")
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "more.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.warns(UserWarning, match=r"its network has no place for more.weight"):
        tl.load(f"dream:{folder}", length=LENGTH, trust_remote_code=True)
    lost = {name: weight for name, weight in weights.items() if "o_proj" not in name and "lm_head" not in name}
    save_file(lost, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks the weights lm_head.weight, model.layers.0.self_attn.o_proj.weight, "):
        tl.load(f"dream:{folder}", length=LENGTH, trust_remote_code=True)
    save_file({**weights, "lm_head.weight": torch.zeros(3, 16)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"do not fit its network: size mismatch for lm_head.weight"):
        tl.load(f"dream:{folder}", length=LENGTH, trust_remote_code=True)
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        ValueError, match=r"no weights \(model.safetensors or pytorch_model.bin.*put them into the folder"
    ):
        tl.load(f"dream:{folder}", length=LENGTH, trust_remote_code=True)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": {"a": "../b.safetensors"}}', '{"weight_map": {"a": 3}}'])
def test_a_bad_index(index: str, folder: Path) -> None:
    remote_code.write(folder, "llada", layout="parts")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=r"does not say which file holds which weights"):
        tl.load(f"llada:{folder}", length=LENGTH, trust_remote_code=True)


def test_a_part_that_is_not_there(folder: Path) -> None:
    remote_code.write(folder, "llada", layout="parts")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lists model-00002-of-00002.safetensors, which is not there"):
        tl.load(f"llada:{folder}", length=LENGTH, trust_remote_code=True)


def test_code_that_fails_is_named(folder: Path) -> None:
    remote_code.write(folder, "dream")
    module = folder / "modeling_dream.py"
    module.write_text(module.read_text().replace("self.padding_idx = ", "self.padding_idx = config.none_such or "))
    fault = r"its own code fails with transformers \S+ \(AttributeError: .*none_such.*ask its authors"
    with pytest.raises(ValueError, match=fault):
        tl.load(f"dream:{folder}", length=LENGTH, trust_remote_code=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(ValueError, match=r"its weights are quantised"):
        tl.load(f"dream:{folder}", length=LENGTH, trust_remote_code=True)


def test_frequencies_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = LlamaConfig(hidden_size=24, num_attention_heads=2, rope_theta=700.0)  # pyright: ignore
    theirs: Any = LlamaRotaryEmbedding(config).inv_freq
    torch.testing.assert_close(plain_frequencies(config)[0], theirs)
