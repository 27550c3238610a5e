"""BD3-LM: files as its code writes them, against its network written straight down, with and without kept keys."""

from __future__ import annotations

import json
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import thetaleap as tl
from tests.cli.test_cli import call
from tests.models.test_block_causal import parts, uncached
from tests.models.test_training_files import averages, node, omegaconf
from tests.models.test_transformer import SEDD, randomised, straight
from thetaleap.models.hf.bd3lm import bd3lm
from thetaleap.models.hf.block_causal import Kept
from thetaleap.models.network import Network

pytestmark = pytest.mark.filterwarnings("ignore:the first position is masked")
NOW = torch.tensor(1.0, dtype=torch.float64)
BLOCK, LENGTH, MASK = 4, 12, SEDD.tokens
CLOSE = 1e-11
"""Of logits up to 30: all is in float64."""


# --- files


def hub(folder: Path, file: str = "model.safetensors", **changes: Any) -> dict[str, Tensor]:
    """What ``save_pretrained`` of its code writes: the bounds of its noise beside the network, and a configuration."""
    weights = dict(randomised(SEDD).state_dict())
    held = {f"backbone.{name}": tensor for name, tensor in weights.items()}
    held |= {"sampling_eps_min": torch.tensor(1e-3), "sampling_eps_max": torch.tensor(0.999)}
    if file.endswith(".safetensors"):
        save_file(held, folder / file)
    else:
        torch.save(held, folder / file)
    code = "kuleshov-group/bd3lm-owt-block_size4--"
    about = {"AutoConfig": f"{code}configuration.BD3LMConfig", "AutoModelForMaskedLM": f"{code}modeling_bd3lm.BD3LM"}
    sizes = {"hidden_dim": SEDD.hidden, "n_blocks": SEDD.blocks, "n_heads": SEDD.heads, "cond_dim": SEDD.cond_dim}
    config = {"architectures": ["BD3LM"], "auto_map": about, "model_type": "bd3lm", "return_dict": False}
    config |= {"block_size": BLOCK, "cross_attn": True, "attn_backend": "flex", "adaln": True, "causal": False}
    config |= {"time_conditioning": False, "var_min": True, "sampling_eps_min": 1e-3, "sampling_eps_max": 0.999}
    config |= {"vocab_size": SEDD.channels, "model_length": LENGTH, "dropout": 0.1, **sizes, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_bd3lm.py").write_text("raise AssertionError('this was run')")
    return weights


def lightning(path: Path, prefix: str = "backbone.", **changes: Any) -> dict[str, Tensor]:
    """A checkpoint of its training code; gives the averages."""
    module, (ema, averaged) = randomised(SEDD), averages(SEDD)
    sizes = {"hidden_size": SEDD.hidden, "n_blocks": SEDD.blocks, "n_heads": SEDD.heads, "cond_dim": SEDD.cond_dim}
    algo = {"name": "bd3lm", "backbone": "dit", "parameterization": "subs", "time_conditioning": False, "T": 0}
    algo |= {"causal_attention": False, "ignore_bos": True, "cross_attn": True, "var_min": True, "sampler": "semi_ar"}
    config = {
        "block_size": BLOCK,
        "algo": algo,
        "model": {"name": "small", "length": LENGTH, **sizes},
        "noise": {"type": "loglinear"},
        "data": {"tokenizer_name_or_path": "gpt2"},
        "loader": {"eval_batch_size": "${div_up:${.eval_global_batch_size}, 8}"},
        **changes,
    }
    bounds = {"sampling_eps_min": torch.tensor(0.3), "sampling_eps_max": torch.tensor(0.8)}
    weights = {f"{prefix}{name}": tensor for name, tensor in module.state_dict().items()}
    place = "transformers.models.gpt2.tokenization_gpt2_fast"
    sys.modules[place] = ModuleType(place)
    try:
        kind = type("GPT2TokenizerFast", (), {"__module__": place})
        setattr(sys.modules[place], kind.__name__, kind)
        with omegaconf() as classes:
            file = {
                "epoch": 1,
                "pytorch-lightning_version": "2.5.0",
                "state_dict": {**weights, **bounds},
                "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"completed": 1}}}},
                "optimizer_states": [torch.optim.AdamW(module.parameters()).state_dict()],
                "hparams_name": "kwargs",
                "hyper_parameters": {"config": node(classes, config), "tokenizer": kind()},
                "sampler": {"random_state": None},
                "ema": ema,
                **bounds,
            }
            torch.save(file, path)
    finally:
        del sys.modules[place]
    return dict(averaged.state_dict())


def loaded(folder: Path, length: int = LENGTH) -> Network:
    hub(folder)
    return bd3lm(folder, length, torch.float64)


# --- what the network says


def blocks(length: int) -> np.ndarray:
    return np.arange(length) // BLOCK


def sampling(weights: dict[str, Tensor], x: Tensor) -> np.ndarray:
    """Logits while sampling: a position sees its own block and those before it."""
    number = blocks(x.shape[1])
    seen = (number[:, None] >= number[None, :]).astype(float)
    return straight(weights, x, SEDD.heads, torch.zeros(len(x)), seen=seen)[..., :MASK]


def training(weights: dict[str, Tensor], noisy: Tensor, clean: Tensor) -> np.ndarray:
    """Logits while training: behind the noisy sequence stands the clean one. A noisy position sees its own noisy block,
    and the clean ones before it; a clean one the clean ones up to its own."""
    length = noisy.shape[1]
    number, noised = np.tile(blocks(length), 2), np.arange(2 * length) < length
    own, other = number[:, None], number[None, :]
    here, there = noised[:, None], noised[None, :]
    seen = (here & there & (own == other)) | (here & ~there & (own > other)) | (~here & ~there & (own >= other))
    both = torch.cat([noisy, clean], 1)
    places = np.tile(np.arange(length), 2)
    out = straight(weights, both, SEDD.heads, torch.zeros(len(both)), places, seen.astype(float))
    return out[:, :length, :MASK]


def states() -> Tensor:
    """Sequences at all stages: nothing written, a block being written, all but one position."""
    x = torch.randint(0, MASK, (4, LENGTH), generator=torch.Generator().manual_seed(3))
    x[0] = x[1, 6:] = x[2, 8:] = x[3, 11] = MASK
    x[1, 4] = MASK
    return x


def present(x: Tensor) -> Tensor:
    """Flat numbers of the masked positions of the block that is written."""
    masked = x == MASK
    first = masked.int().argmax(1, keepdim=True) // BLOCK
    return torch.nonzero((masked & (torch.arange(x.shape[1]) // BLOCK == first)).flatten()).flatten()


LAYOUTS = ["model.safetensors", "pytorch_model.bin", "last.ckpt", "compiled.ckpt"]


@pytest.mark.parametrize("file", LAYOUTS)
def test_logits_are_those_of_the_paper(file: str, tmp_path: Path) -> None:
    """At all positions those of its sampler; at those that are written also those that it was trained to give."""
    if file.endswith(".ckpt"):
        weights = lightning(tmp_path / file, "backbone._orig_mod." if file.startswith("compiled") else "backbone.")
    else:
        weights = hub(tmp_path, file)
    for source in (tmp_path, tmp_path / file):
        model, x = tl.load(f"bd3lm:{source}", dtype="float64"), states()
        assert (model.block, model.length, model.time_free) == (BLOCK, LENGTH, True)
        assert model.process == tl.Masked(MASK)
        every = model(x, NOW).logits(torch.arange(x.numel())).numpy()
        theirs = sampling(weights, x).reshape(-1, MASK)
        np.testing.assert_allclose(every, theirs, rtol=0, atol=CLOSE)
    positions = present(x)
    mine = model(x, NOW).logits(positions).numpy()
    clean = torch.where(x == MASK, 7, x)  # nothing that is written sees what stands there
    trained = training(weights, x, clean).reshape(-1, MASK)[positions.numpy()]
    np.testing.assert_allclose(mine, trained, rtol=0, atol=CLOSE)


# --- keys and values

SOLVERS = {
    "coins": (tl.Tweedie(), 9),
    "trapezoidal": (tl.Trapezoidal(), 18),
    "multistep": (tl.Multistep(), 9),
    "surest first": (tl.SemiAutoregressive(), 6),
    "first hitting": (tl.FirstHitting(), None),
    "auto": ("auto", 9),
}


@pytest.mark.parametrize("name", list(SOLVERS))
def test_samples_are_those_without(name: str, tmp_path: Path) -> None:
    """Of sequences whose blocks end at different positions: they are padded on the left."""
    solver, nfe = SOLVERS[name]
    valid = torch.arange(LENGTH) >= torch.tensor([[0], [3], [5]])
    ready = loaded(tmp_path).padded(valid)
    template = torch.full((3, LENGTH), tl.FREE)
    template[~valid], template[0, :2] = 0, torch.tensor([5, 6])
    kept, plain = replace(ready, evaluate=replace(parts(ready), kept=Kept())), uncached(ready)
    draws = {"template": template, "seed": 2} | ({} if nfe is None else {"nfe": nfe})
    out = tl.sample(kept, solver, **draws)
    assert torch.equal(out.x, tl.sample(plain, solver, **draws).x)
    assert parts(kept).kept.positions < 0.75 * parts(plain).kept.positions


def test_logits_are_those_without(tmp_path: Path) -> None:
    """All along a run: one position after the other, drawn at random."""
    model, x, worst, steps = loaded(tmp_path), torch.full((3, LENGTH), MASK), 0.0, 0
    held: list[Any] = []
    made = torch.Generator().manual_seed(0)
    while bool((x == MASK).any()):
        held = [model(x, NOW)]
        mine, theirs = held[0].logits(present(x)), uncached(model)(x, NOW).logits(present(x))
        worst, steps = max(worst, float((mine - theirs).abs().max())), steps + 1
        x[:, steps - 1] = torch.randint(0, MASK, (3,), generator=made)
    assert steps == LENGTH
    assert worst <= CLOSE
    run = 3 * (BLOCK * BLOCK + (2 * BLOCK + 3 * BLOCK) * 2)
    assert parts(model).kept.positions == run, "of each block but the first: what is before it once, then it alone"


def test_padding_says_nothing(tmp_path: Path) -> None:
    model, x = loaded(tmp_path), states()[3:, 4:]
    short = bd3lm(tmp_path, LENGTH - 4, torch.float64)
    valid = (torch.arange(LENGTH) >= 4).unsqueeze(0)
    wanted = short(x, NOW).logits(torch.arange(LENGTH - 4))
    for filler in (0, 9):
        padded = torch.cat([torch.full((1, 4), filler), x], 1)
        found = model.padded(valid)(padded, NOW).logits(4 + torch.arange(LENGTH - 4))
        torch.testing.assert_close(found, wanted, rtol=0, atol=CLOSE)


# --- what files do not say, and what is refused


def pasted(error: pytest.ExceptionInfo[ValueError]) -> Any:
    """What the remedy of an error says to write."""
    remedy = re.search(r"tl\.load\((.*?)\), or", str(error.value))
    assert remedy
    return eval(f"tl.load({remedy[1]}, length=LENGTH)", {"tl": tl, "LENGTH": LENGTH})


def test_what_a_file_does_not_say_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(randomised(SEDD).state_dict(), path)
    with pytest.raises(ValueError, match=r"block_length=None: the file does not say how many positions") as error:
        tl.load(f"bd3lm:{path}", length=LENGTH)
    assert pasted(error).block == BLOCK
    with pytest.raises(ValueError, match=r"time_conditioning=None: the file does not say") as error:
        tl.load(f"bd3lm:{path}", length=LENGTH, block_length=3)
    lightning(tmp_path / "a.ckpt", block_size=None)
    with pytest.raises(ValueError, match=r"block_length=None") as error:
        tl.load(f"bd3lm:{tmp_path / 'a.ckpt'}")
    assert pasted(error).block == BLOCK
    lightning(tmp_path / "a.ckpt", block_size="${model.length}")
    assert tl.load(f"bd3lm:{tmp_path / 'a.ckpt'}").block == LENGTH
    assert tl.load(f"bd3lm:{tmp_path / 'a.ckpt'},block_length=6").block == 6


def test_the_command_line_asks_and_takes_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(randomised(SEDD).state_dict(), path)
    start = ("--length", LENGTH, "--nfe", 6, "--num", 2, "--template", "5 _ _ _ _ _ _ _ _ _ _ _")
    asked = call("sample", f"bd3lm:{path}", *start)
    assert asked.exit_code == 2
    assert "Traceback" not in asked.stderr
    options = re.search(r",block_length=4,time_conditioning=False", asked.stderr.replace("\n", ""))
    assert options, asked.stderr
    answered = call("sample", f"bd3lm:{path}{options[0]}", *start)
    assert answered.exit_code == 0, answered.output
    assert "is masked, which was never so" not in answered.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"causal": True}, r"causal=True: the network reads from left to right"),
        ({"time_conditioning": True}, r"time_conditioning=True: what finished blocks say would depend on the time"),
        ({"parameterization": "sedd"}, r"parameterization='sedd'.*subs"),
        ({"block_size": 0}, r"block_length=0: give a whole number of at least 1"),
        (
            {"data": {"tokenizer_name_or_path": "bert-base-uncased"}},
            r"tokenizer='bert-base-uncased': has its mask among",
        ),
        ({"n_blocks": 3}, r"the weights do not fit. missing: blocks.2"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    hub(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        tl.load(f"bd3lm:{tmp_path}")


def test_the_number_of_berts_tokens_is_known(tmp_path: Path) -> None:
    """Its mask is one of them, which no file says; this holds for MDLM's as well."""
    sizes = replace(SEDD, tokens=30521, hidden=6, blocks=1)
    torch.save(randomised(sizes).state_dict(), tmp_path / "weights.pth")
    for name in ("bd3lm", "mdlm"):
        with pytest.raises(ValueError, match=r"tokenizer=.*BERT.*has its mask among its tokens"):
            tl.load(f"{name}:{tmp_path}", time_conditioning=False, **({"block_length": 4} if name == "bd3lm" else {}))


def test_one_is_not_taken_for_the_other(tmp_path: Path) -> None:
    """A network that sees in blocks loads as one that sees all, and the other way round: each names the right loader."""
    hub(tmp_path)
    with pytest.raises(ValueError, match=rf"cross_attn=True: no block .* give bd3lm:{tmp_path}"):
        tl.load(f"mdlm:{tmp_path}")
    weights = hub(tmp_path, cross_attn=False)
    with pytest.raises(ValueError, match=rf"cross_attn=False: every position .* give mdlm:{tmp_path}"):
        tl.load(f"bd3lm:{tmp_path}")
    model, x = tl.load(f"mdlm:{tmp_path}", length=LENGTH, dtype="float64"), states()
    theirs = straight(weights, x, SEDD.heads, torch.zeros(len(x)))[..., :MASK].reshape(-1, MASK)
    np.testing.assert_allclose(model(x, NOW).logits(torch.arange(x.numel())).numpy(), theirs, rtol=0, atol=CLOSE)


def test_no_longer_than_in_training(tmp_path: Path) -> None:
    hub(tmp_path)
    with pytest.raises(ValueError, match=rf"length=13: the model was trained on {LENGTH} positions"):
        tl.load(f"bd3lm:{tmp_path}", length=13)


# --- the first position


@pytest.mark.filterwarnings("default:the first position is masked")
def test_a_masked_first_position_is_said_once(tmp_path: Path) -> None:
    model = loaded(tmp_path)
    template = torch.tensor([5] + [tl.FREE] * (LENGTH - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tl.sample(model, tl.Tweedie(), nfe=6, template=template)
    with pytest.warns(UserWarning, match=r"the first position is masked.*--prompt '<\|endoftext\|>'") as told:
        tl.sample(model, tl.Tweedie(), nfe=6)
    assert len(told) == 1
    lightning(tmp_path / "a.ckpt", algo={"time_conditioning": False, "ignore_bos": False})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tl.sample(tl.load(f"bd3lm:{tmp_path / 'a.ckpt'}"), tl.Tweedie(), nfe=6)


def test_text_begins_with_its_token(tmp_path: Path) -> None:
    """With GPT-2's tokens, by the command that the warning names."""
    sizes = replace(SEDD, tokens=50257, hidden=6, blocks=1)
    torch.save(randomised(sizes).state_dict(), tmp_path / "weights.pth")
    name = f"bd3lm:{tmp_path / 'weights.pth'},block_length=4,time_conditioning=False"
    out = tmp_path / "a.npy"
    drawn = call("sample", name, "--length", 8, "--nfe", 4, "--num", 2, "--prompt", "<|endoftext|>", "--out", out)
    assert drawn.exit_code == 0, drawn.output
    assert np.load(out)[:, 0].tolist() == [50256, 50256]
