"""Masked diffusion language models: tiny random ones, written to a folder and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import thetaleap as tl
from tests import tiny_llm
from tests.tiny_llm import CHANNELS, EOS, EOT, MASK, WORDS
from thetaleap.models.hf.heads import Rounding
from thetaleap.models.hf.llm import dream, llada, resized, vocabulary_of
from thetaleap.models.network import Network, Split
from thetaleap.models.tokenizers import Tokenizer

hub = pytest.importorskip("transformers", reason="needs the extra 'hub'")

NOW = torch.tensor(1.0, dtype=torch.float64)
LENGTH = 9
NAMED = [n for n in range(len(WORDS)) if n != MASK]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a checkpoint that brings its own code, and keep copies of the code within the test's folder."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))

    def write(hears: str) -> Path:
        folder = tmp_path / hears
        folder.mkdir()
        tiny_llm.shipped(folder, hears)
        return folder

    return write


def rows(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x, NOW).logits(torch.arange(x.numel())).view(*x.shape, -1)


def some_x(length: int = LENGTH, num: int = 3, seed: int = 1) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    x = torch.tensor(NAMED)[torch.randint(0, len(NAMED), (num, length), generator=made)]
    return x.masked_fill(torch.rand((num, length), generator=made) < 0.5, CHANNELS)


def own_logits(model: Any, x: torch.Tensor) -> torch.Tensor:
    """What the written model says if every position may see every other, worked out anew."""
    ids = torch.where(x == CHANNELS, MASK, x)
    seen = torch.zeros((len(x), 1, x.shape[1], x.shape[1]), dtype=model.dtype)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=seen).logits


def part_of(model: Network, kind: str) -> Any:
    """The trunk or the head."""
    assert isinstance(model.evaluate, Split)
    return {"Trunk": model.evaluate.trunk, "Head": model.evaluate.head}[kind]


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Gemma2"])
def test_conditionals_are_the_model_s_own(kind: str, tmp_path: Path) -> None:
    written = tiny_llm.causal(tmp_path, kind)
    model, x = llada(tmp_path, length=LENGTH), some_x()
    assert (model.process.states, model.process.mask, model.length) == (CHANNELS, CHANNELS, LENGTH)
    assert (model.shape, model.time_free, model.attends) == ((LENGTH,), True, True)
    mine, theirs = rows(model, x), own_logits(written, x)
    torch.testing.assert_close(mine[..., NAMED], theirs[..., NAMED])
    unnamed = [n for n in range(CHANNELS) if n not in NAMED]
    assert bool(torch.isneginf(mine[..., unnamed]).all()), "the mask and what is no token are never drawn"
    # Gemma 2 bends its logits after the last layer, which thus cannot be taken out
    assert (part_of(model, "Head").layer is None) == (kind == "Gemma2")


def test_a_model_that_looks_both_ways_is_left_to_do_so(tmp_path: Path) -> None:
    written, x = tiny_llm.bidirectional(tmp_path), some_x()
    model = llada(tmp_path, length=LENGTH)
    with torch.no_grad():
        theirs = written(input_ids=torch.where(x == CHANNELS, MASK, x)).logits
    torch.testing.assert_close(rows(model, x)[..., NAMED], theirs[..., NAMED])
    assert part_of(model, "Trunk").plain
    assert model.attends


def test_dream_s_logits_are_about_the_next_position(tmp_path: Path) -> None:
    written = tiny_llm.causal(tmp_path, "Qwen2")
    x = some_x()
    mine, theirs = rows(dream(tmp_path, length=LENGTH), x), own_logits(written, x)
    torch.testing.assert_close(mine[:, 1:, NAMED], theirs[:, :-1, NAMED])
    torch.testing.assert_close(mine[:, 0, NAMED], theirs[:, 0, NAMED])


def check_padding(model: Network) -> None:
    """Sequences within padding, on the left, the right or both sides, are as they are alone."""
    starts, size = [4, 0, 2, 1], LENGTH - 4
    alone = some_x(size, len(starts))
    valid = torch.zeros((len(starts), LENGTH), dtype=torch.bool)
    x = some_x(num=len(starts), seed=2)
    for row, start in enumerate(starts):
        x[row, start : start + size], valid[row, start : start + size] = alone[row], True
    mine = rows(model.padded(valid), x)[valid].view(len(starts), size, -1)
    torch.testing.assert_close(mine, rows(resized(model, size), alone))
    other = torch.where(valid, x, some_x(num=len(starts), seed=3))
    torch.testing.assert_close(rows(model.padded(valid), other)[valid].view_as(mine), mine, rtol=0, atol=0)


@pytest.mark.parametrize("load", [llada, dream])
@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_padding_changes_nothing(kind: str, load: Any, tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path, kind)
    check_padding(load(tmp_path, length=LENGTH))


def test_padding_changes_nothing_in_a_model_that_looks_both_ways(tmp_path: Path) -> None:
    tiny_llm.bidirectional(tmp_path)
    check_padding(llada(tmp_path, length=LENGTH))


# --- code that comes with a checkpoint


@pytest.mark.parametrize("hears", ["bias", "flat"])
def test_masks_are_given_as_the_model_takes_them(hears: str, shipped: Any) -> None:
    model = dream(shipped(hears), length=LENGTH, trust_remote_code=True)
    assert part_of(model, "Trunk").form.mask == hears
    check_padding(model)


def test_a_model_deaf_to_masks_takes_no_padding(shipped: Any) -> None:
    model = llada(shipped("nothing"), length=LENGTH, trust_remote_code=True)
    assert not model.attends
    assert tl.sample(model, tl.Tweedie(), nfe=4, num=2).x.shape == (2, LENGTH)
    with pytest.raises(ValueError, match="does not take it"):
        model.padded(torch.ones((1, LENGTH), dtype=torch.bool))


def test_a_model_that_only_looks_left_is_refused(shipped: Any) -> None:
    with pytest.raises(ValueError, match="do not attend to their right"):
        llada(shipped("left"), length=LENGTH, trust_remote_code=True)


# --- rounding


def test_precision_is_that_of_the_coarsest_step() -> None:
    def run(middle: torch.dtype) -> float:
        with Rounding() as rounding:
            x = torch.ones(3, dtype=torch.float64)
            assert (x.to(middle) * 2).to(torch.float64).dtype == torch.float64
        return rounding.eps

    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert run(dtype) == torch.finfo(dtype).eps


def test_rounding_refuses_no_model(shipped: Any) -> None:
    """A float64 model with a step in float32 that rounds padded sequences otherwise, as processors may."""
    model = llada(shipped("coarse"), length=LENGTH, trust_remote_code=True)
    assert model.attends
    assert part_of(model, "Head").layer is not None


def test_rounding_is_no_sight(shipped: Any) -> None:
    """The first position of a causal model changes with the others by rounding alone, as with mixtures of experts."""
    with pytest.raises(ValueError, match="do not attend to their right"):
        llada(shipped("coarse left"), length=LENGTH, trust_remote_code=True)


def test_code_runs_with_the_flag_alone(shipped: Any, tmp_path: Path) -> None:
    folder = shipped("bias")
    ran = tmp_path / "ran"
    code = (folder / "modeling_shipped.py").read_text()
    (folder / "modeling_shipped.py").write_text(f"open({str(ran)!r}, 'w').close()\n{code}")
    with pytest.raises(ValueError, match=r"comes with code of its own.*trust_remote_code=True"):
        llada(folder, length=LENGTH)
    assert not ran.exists()
    llada(folder, length=LENGTH, trust_remote_code=True)
    assert ran.exists()


def test_code_that_never_ends_its_construction(shipped: Any) -> None:
    """LLaDA's own code leaves out the last line of its model's construction, which version 5 cannot do without."""
    folder = shipped("bias")
    code = (folder / "modeling_shipped.py").read_text()
    before = rows(llada(folder, length=LENGTH, trust_remote_code=True), some_x())
    (folder / "modeling_shipped.py").write_text(code.replace("self.post_init()", "pass"))
    torch.testing.assert_close(rows(llada(folder, length=LENGTH, trust_remote_code=True), some_x()), before)


# --- tokens


def test_tokens_have_the_tokenizer_s_numbers(tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path)
    words = vocabulary_of(llada(tmp_path, length=LENGTH))
    assert isinstance(words, Tokenizer)
    ids = words.encode("the late cat <|eot_id|>")
    assert ids == [WORDS.index(word) for word in ("the", "late", "cat", "<|eot_id|>")]
    assert words.decode(ids) == "the late cat <|eot_id|>"
    assert (words.mask, words.ends, words.pad, words.context) == (MASK, (EOT, EOS), 0, 64)
    assert words.until_end([8, EOS, 9, EOT]) == [8]
    assert words.chat([{"role": "user", "content": "the cat"}]) == words.encode(
        "<|user|> the cat <|eot_id|> <|assistant|>"
    )
    with pytest.raises(ValueError, match=r"holds the mask token '<\|mask\|>'"):
        words.encode("the <|mask|>")
    for wrong in (MASK, CHANNELS, -1):
        with pytest.raises(ValueError, match=rf"ids\[1\]={wrong}: .*decode no masks"):
            words.decode([8, wrong])


def test_the_mask_token_is_found(tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "mask_token_id": 20}))
    assert vocabulary_of(llada(tmp_path, length=LENGTH)).mask == 20, "the configuration goes first"
    (tmp_path / "config.json").write_text(json.dumps(config))
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**about, "mask_token": None}))
    with pytest.raises(ValueError, match=r"mask_token_id=126336: there are 28 tokens"):
        llada(tmp_path, length=LENGTH)


# --- running it


def test_an_answer_ends_with_its_turn(tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path)
    model = llada(tmp_path, length=16)
    words = vocabulary_of(model)
    template = torch.tensor([*words.encode("the cat sat"), *[tl.FREE] * 13])
    out = tl.sample(model, tl.Blocks(tl.Tweedie(), 4, stop=EOT), template=template, nfe=16, num=40)
    assert torch.equal(out.x[:, :3], template[:3].expand(40, 3))
    ended = [row.index(EOT, 3) for row in out.x.tolist() if EOT in row[3:]]
    assert len(ended) > 3
    assert not bool((out.x == MASK).any())
    for row in out.x.tolist():
        blocks = [row[3 + start : 7 + start] for start in range(0, 13, 4)]
        last = next((n for n, block in enumerate(blocks) if EOT in block), len(blocks))
        assert all(token == EOT for block in blocks[last + 1 :] for token in block)


def test_precision(tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path, dtype=torch.float32)
    x = some_x()
    plain = rows(llada(tmp_path, length=LENGTH), x)
    assert plain.dtype == torch.float32
    assert rows(llada(tmp_path, length=LENGTH, dtype=None), x).dtype == torch.float32
    half = llada(tmp_path, length=LENGTH, dtype=torch.bfloat16)
    assert half.attends
    assert part_of(half, "Head").layer is not None
    coarse = rows(half, x)
    assert coarse.dtype == torch.bfloat16
    off = (coarse - plain)[..., NAMED].abs().max()
    assert 0 < float(off) < 0.2 * float(plain[..., NAMED].abs().max())
    with pytest.raises(TypeError, match="dtype"):
        llada(tmp_path, length=LENGTH, dtype="half")  # pyright: ignore[reportArgumentType]


def test_by_name(tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path, "Qwen2")
    x = some_x()
    for kind, make in {"llada": llada, "dream": dream}.items():
        model = tl.load(f"{kind}:{tmp_path}", length=LENGTH, trust_remote_code=False)
        torch.testing.assert_close(rows(model, x), rows(make(tmp_path, length=LENGTH), x))
    with pytest.raises(ValueError, match=r"length=None: say how many positions"):
        tl.load(f"llada:{tmp_path}")


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_llm.causal(tmp_path)
    with pytest.raises(ValueError, match="length=65: the model takes 64 tokens at most"):
        llada(tmp_path, length=65)
    with pytest.raises(ValueError, match="x holds 22, the checkpoint's own mask token: give FREE"):
        tl.sample(llada(tmp_path, length=2), tl.Tweedie(), nfe=1, template=torch.tensor([MASK, tl.FREE]))
    with pytest.raises(TypeError, match="give one made by llada or dream"):
        vocabulary_of(tl.load("chain64"))
    monkeypatch.setattr("thetaleap.models.hf.llm.installed", lambda name: False)
    with pytest.raises(ImportError, match="device_map='auto': accelerate is not installed"):
        llada(tmp_path, length=LENGTH, device_map="auto")
    with pytest.raises(ValueError, match="no such folder, nor a hub id"):
        llada(tmp_path / "none" / "such", length=LENGTH)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"wanted the weights .*: put them into the folder"):
        llada(tmp_path, length=LENGTH)


def test_without_a_network_it_says_where_to_put_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        hub.AutoConfig, "from_pretrained", lambda *_, **__: (_ for _ in ()).throw(OSError("no network"))
    )
    with pytest.raises(ValueError, match=r"the hub was not reached; run `hf download .*and give dream:FOLDER"):
        dream("Dream-org/Dream-v0-Instruct-7B", length=8)


def test_models_without_logits_or_with_missing_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny_llm.causal(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = {name: weight for name, weight in weights.items() if "q_proj" not in name}
    save_file(lost, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks the weights model\.layers\.0\.self_attn\.q_proj\.weight"):
        llada(tmp_path, length=LENGTH)
    hub.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="ViTConfig is no language model"):
        llada(tmp_path, length=LENGTH)


def test_a_template_that_refuses(tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path)
    tiny_llm.tokenizer(tmp_path, "{{ raise_exception('no system, please') }}")
    words = vocabulary_of(llada(tmp_path, length=LENGTH))
    with pytest.raises(ValueError, match=r"the chat template refuses them .no system, please"):
        words.chat([{"role": "system", "content": "a"}])
