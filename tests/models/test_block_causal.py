"""Models in which no block sees those behind it: loaded in their authors' form, and run with exact keys and values."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests import remote_blocks, tiny_llm
from tests.cli import test_chat
from tests.cli.test_cli import call
from tests.models.test_own_code import Trap, folder
from tests.remote_blocks import BLOCK
from tests.tiny_llm import CHANNELS, EOT, MASK, WORDS
from thetaleap.conditioning.prompts import prepare
from thetaleap.integrations.lm_eval import respondent
from thetaleap.models.hf.block_causal import InBlocks, Kept
from thetaleap.models.hf.llm import llada2, resized, sdar
from thetaleap.models.hf.prefix_reuse import approximate_prefix
from thetaleap.models.network import Network

pytest.importorskip("transformers", reason="needs the extra 'hub'")
__all__ = ["folder"]

NOW = torch.tensor(1.0, dtype=torch.float64)
LENGTH, NEW = 20, 12
PROMPTS = [[6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16], [6, 17], [19, 20, 9, 10]]
NAMED = [n for n in range(len(WORDS)) if n != MASK]
KINDS = pytest.mark.parametrize("kind", ["sdar", "llada2"])
TOLERANCE = {"sdar": 1e-12, "llada2": 1e-6}
"""Of logits up to 5, with and without what is kept. The experts of LLaDA2 are chosen, and its logits given, in float32."""
ANGLES = 1e-6
"""The same, of theirs and ours: their angles are in float32."""


def loaded(kind: str, folder: Path, length: int = LENGTH) -> Network:
    remote_blocks.write(folder, kind)
    return tl.load(f"{kind}:{folder}", length=length, trust_remote_code=True, block_length=BLOCK)


def parts(model: Network) -> InBlocks:
    assert isinstance(model.evaluate, InBlocks)
    return model.evaluate


def uncached(model: Network) -> Network:
    return replace(model, evaluate=replace(parts(model), keep=False, kept=Kept()))


def rows(model: Any, x: Tensor) -> Tensor:
    return model(x, NOW).logits(torch.arange(x.numel())).view(*x.shape, -1)[..., NAMED].double()


# --- what the network says


@KINDS
def test_logits_are_those_of_the_paper(kind: str, folder: Path) -> None:
    weights = remote_blocks.write(folder, kind)
    model = tl.load(f"{kind}:{folder}", length=11, trust_remote_code=True, block_length=BLOCK)
    assert (model.block, model.attends, parts(model).trunk.keeps) == (BLOCK, True, True)
    for ids in (
        [6, 7, 8, 9, 10, 11, MASK, MASK, 12, MASK, MASK],
        [MASK] * 11,
        [6, MASK, 8, MASK, 9, 10, 7, 6, 6, 9, 8],
    ):
        x = torch.tensor([ids]).masked_fill(torch.tensor([ids]) == MASK, CHANNELS)
        theirs = remote_blocks.straight(kind, weights, np.array(ids))[:, NAMED]
        np.testing.assert_allclose(rows(model, x)[0].numpy(), theirs, rtol=0, atol=ANGLES)
        masked = torch.nonzero(x[0] == CHANNELS).flatten()
        present = masked[masked // BLOCK == masked[0] // BLOCK]  # of the block that is written: a run behind the others
        mine = model(x, NOW).logits(present)[:, NAMED].numpy()
        np.testing.assert_allclose(mine, theirs[present.numpy()], rtol=0, atol=ANGLES)


def test_a_model_of_transformers_own(tmp_path: Path) -> None:
    """A causal one, told to see in blocks, as checkpoints that were trained further from one are."""
    tiny_llm.causal(tmp_path, "Qwen2")
    model = sdar(tmp_path, length=8)
    x = torch.full((1, 8), CHANNELS)
    x[:, :2] = torch.tensor([6, 7])
    plain = rows(model, x)
    for place in range(8):
        other = x.clone()
        other[:, place] = 9
        changed = (rows(model, other) - plain).abs().amax((0, 2)) > 1e-9
        assert changed.tolist() == [n // BLOCK >= place // BLOCK for n in range(8)], "block by block, and no other"


def test_how_long_blocks_are(folder: Path) -> None:
    for told, given, block in (({}, {}, 4), ({"block_size": 2}, {}, 2), ({"block_size": 2}, {"block_length": 3}, 3)):
        remote_blocks.write(folder, "sdar", **told)
        assert tl.load(f"sdar:{folder}", length=8, trust_remote_code=True, **given).block == block
    assert tl.load(f"sdar:{folder},block_length=5", length=8, trust_remote_code=True).block == 5
    remote_blocks.write(folder, "llada2")
    assert llada2(folder, length=8, trust_remote_code=True).block == 32
    remote_blocks.write(folder, "llada2", block_length=0)
    with pytest.raises(ValueError, match="block_length=0"):
        llada2(folder, length=8, trust_remote_code=True)
    with pytest.raises(ValueError, match="block_length=4: llada has no such option"):
        tl.load(f"llada:{folder}", length=8, block_length=4)


# --- keys and values


SOLVERS = {
    "one by one": (tl.Tweedie(tl.FixedCount()), 12),
    "coins": (tl.Tweedie(), 12),
    "trapezoidal": (tl.Trapezoidal(), 18),
    "multistep": (tl.Multistep(), 9),
    "surest first": (tl.Blocks(tl.SemiAutoregressive(), BLOCK, stop=EOT), 6),
    "corrected": (tl.Corrected(tl.Tweedie(), tl.Gibbs()), 16),
    "auto": ("auto", 12),
}


@pytest.mark.parametrize(("name", "kind"), list(zip(SOLVERS, ["sdar", "llada2"] * 4, strict=False)))
def test_samples_are_those_without(name: str, kind: str, folder: Path) -> None:
    """Prompts of four lengths, whose blocks end at different positions; and each as if it were alone."""
    model, (solver, nfe) = loaded(kind, folder), SOLVERS[name]
    ready, template = prepare(model, PROMPTS, NEW)
    kept, plain = replace(ready, evaluate=replace(parts(ready), kept=Kept())), uncached(ready)
    draws = {"template": template, "nfe": nfe, "seed": 4}
    out = tl.sample(tl.tempered(kept, 1.5), solver, batch_size=4, **draws)
    assert torch.equal(out.x, tl.sample(tl.tempered(plain, 1.5), solver, batch_size=4, **draws).x)
    assert int(out.nfe.max()) <= nfe
    assert parts(kept).kept.positions < 0.6 * parts(plain).kept.positions
    assert torch.equal(out.x, tl.sample(tl.tempered(kept, 1.5), solver, batch_size=3, **draws).x)
    one, row = prepare(model, PROMPTS[2:3], NEW)
    alone = tl.sample(tl.tempered(one, 1.5), solver, template=row, nfe=nfe, seed=4, first=2)
    assert torch.equal(alone.x[0], out.x[2])


@KINDS
def test_logits_are_those_without(kind: str, folder: Path) -> None:
    """All along a run, at the masked positions of the block that is written."""
    ready, template = prepare(loaded(kind, folder), PROMPTS, NEW)
    blocks, seen = ready.blocks(len(PROMPTS)), []

    def check(x: Tensor, said: Any) -> None:
        masked = x == CHANNELS
        some = masked.any(1)
        present = masked & (blocks == blocks.gather(1, masked.int().argmax(1, keepdim=True))) & some.unsqueeze(1)
        positions = torch.nonzero(present.flatten()).flatten()
        theirs = uncached(ready)(x, NOW).logits(positions)[:, NAMED]
        seen.append(float((said.logits(positions)[:, NAMED] - theirs).abs().max()))

    held: list[Any] = []
    x = torch.where(template == tl.FREE, CHANNELS, template)
    made = torch.Generator().manual_seed(0)
    while bool((x == CHANNELS).any()):
        held = [ready(x, NOW)]
        check(x, held[0])
        first = (x == CHANNELS).int().argmax(1)
        token = torch.tensor(NAMED)[torch.randint(0, len(NAMED), (len(x),), generator=made)]
        x = x.scatter(
            1,
            first.unsqueeze(1),
            torch.where((x == CHANNELS).any(1), token, x.gather(1, first[:, None])[:, 0])[:, None],
        )
    assert len(seen) == NEW
    assert max(seen) <= TOLERANCE[kind]


def test_nothing_is_kept_beyond_a_run(folder: Path) -> None:
    """In the second run: the type checker of the tests holds on to what it sees first."""
    model = loaded("sdar", folder)
    for one in (model, again := replace(model, evaluate=replace(parts(model), kept=Kept()))):
        tl.sample(one, tl.Trapezoidal(), nfe=20, num=2)
    gc.collect()
    assert parts(again).kept.positions > 0
    assert len(parts(again).kept.prefixes) == 0


def test_for_how_many_positions_the_network_is_run(folder: Path) -> None:
    """A prompt of 8, three blocks, one position at a time: all that is before a block once, then the block alone."""
    model = loaded("sdar", folder)
    template = torch.tensor([*PROMPTS[1], *[tl.FREE] * NEW])
    tl.sample(model, tl.Tweedie(tl.FixedCount()), template=template, nfe=NEW, num=2)
    assert parts(model).kept.positions == 2 * (8 + BLOCK + 3 * BLOCK + 2 * (2 * BLOCK + 3 * BLOCK))


def test_guidance(folder: Path) -> None:
    ready, template = prepare(loaded("sdar", folder), PROMPTS, NEW)
    guided, plain = (tl.guided(model, 1.5, template != tl.FREE) for model in (ready, uncached(ready)))
    draws = {"template": template, "nfe": 24, "seed": 1}
    assert torch.equal(tl.sample(guided, tl.Tweedie(), **draws).x, tl.sample(plain, tl.Tweedie(), **draws).x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path)
    ready, template = prepare(sdar(tmp_path, length=LENGTH, dtype=dtype), PROMPTS, NEW)
    x = torch.where(template == tl.FREE, CHANNELS, template)
    positions = torch.nonzero((x == CHANNELS).flatten()).flatten()[:1]
    mine, theirs = (model(x, NOW).logits(positions)[:, NAMED].double() for model in (ready, uncached(ready)))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=60 * torch.finfo(dtype).eps)
    assert bool((tl.sample(ready, tl.Tweedie(), template=template, nfe=12).x < CHANNELS).all())


def test_networks_that_keep_nothing_are_run_in_full(folder: Path) -> None:
    """One with relative places and a mask for each position, that takes no keys."""
    folder.mkdir()
    tiny_llm.shipped(folder, "bias")
    model = sdar(folder, length=8, trust_remote_code=True)
    assert (model.attends, parts(model).trunk.keeps) == (False, False)
    tl.sample(model, tl.Tweedie(tl.FixedCount()), nfe=8)
    assert parts(model).kept.positions == 8 * 8


def test_networks_that_cannot_be_told_are_refused(folder: Path) -> None:
    folder.mkdir()
    tiny_llm.shipped(folder, "flat")
    with pytest.raises(ValueError, match="source='ShippedModel': it cannot be told which positions see which others"):
        sdar(folder, length=8, trust_remote_code=True)


# --- blocks


def test_solvers_go_block_by_block(folder: Path) -> None:
    """The blocks are the model's, which count the prompt: none is begun before the one before it is complete."""
    ready, template = prepare(loaded("sdar", folder), PROMPTS, NEW)
    blocks = ready.blocks(len(PROMPTS))
    assert blocks[0].tolist() == [0] * 5 + [n // BLOCK for n in range(15)]
    states: list[Tensor] = []
    tl.sample(ready, tl.Tweedie(), template=template, nfe=24, on_step=lambda moment: states.append(moment.x.clone()))
    begun = 0
    for x in states:
        written = (x != CHANNELS) & (template == tl.FREE)
        for row in range(len(x)):
            last = int(blocks[row][written[row]].max()) if bool(written[row].any()) else -1
            assert bool((x[row][blocks[row] < last] != CHANNELS).all())
            begun = max(begun, last)
    assert begun == 4


def test_what_makes_no_sense_in_blocks(folder: Path) -> None:
    model = loaded("sdar", folder)
    with pytest.raises(
        ValueError, match=r"solver=.*this model writes block by block, 4 positions each; give the solver"
    ):
        tl.sample(model, tl.Blocks(tl.Tweedie(), 8), nfe=12)
    with pytest.raises(ValueError, match=r"solver=Tolerance.*block by block"):
        tl.sample(model, tl.Tweedie(), tolerance=0.1)
    with pytest.raises(ValueError, match=r"exact=True: its order crosses the blocks of this model; give FirstHitting"):
        tl.sample(model, exact=True)
    assert int(tl.sample(model, tl.FirstHitting()).nfe) == LENGTH
    with pytest.raises(ValueError, match="keeps keys and values of finished blocks as it is, exactly"):
        approximate_prefix(model, 4)
    ready, template = prepare(model, PROMPTS[:1], NEW)
    with pytest.raises(ValueError, match=r"steps=3: 4 blocks need at least one each"):
        tl.sample(ready, tl.Tweedie(), template=template, nfe=3)


# --- by every way in which people load them


@KINDS
def test_on_the_command_line_in_chat_and_in_the_harness(kind: str, folder: Path) -> None:
    remote_blocks.write(folder, kind, block_size=BLOCK)
    name = f"{kind}:{folder}"
    sampled = call("sample", name, "--trust-remote-code", "--length", 6, "--nfe", 4, "--num", 2, "--prompt", "the cat")
    assert sampled.exit_code == 0, sampled.output
    wrong = call("sample", name, "--trust-remote-code", "--length", 6, "--nfe", 4, "--solver", "tweedie", "--block", 3)
    assert wrong.exit_code == 2
    assert "4 positions each" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    said = test_chat.call(name, "--trust-remote-code", "--nfe", 4, "--length", 8, said="the cat\n")
    assert said.exit_code == 0, said.output
    for given in (name, str(folder)):  # the folder says what it is
        own = respondent(given, solver="tweedie", nfe=4, length=4, trust_remote_code=True)
        assert own.model.block == BLOCK
        assert len(own.generate([("the cat", {})])) == 1


def test_code_is_not_run_unless_it_is_said(folder: Path) -> None:
    remote_blocks.write(folder, "sdar", trust_remote_code=True)
    (folder / "modeling_sdar.py").write_text("raise AssertionError('this was run')")
    with pytest.raises(ValueError, match=r"comes with code of its own.*trust_remote_code=True"):
        sdar(folder, length=8)


def test_no_pickle_is_run(folder: Path, tmp_path: Path) -> None:
    remote_blocks.write(folder, "sdar")
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Trap(tmp_path / "trace")}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"holds \S*mkdir and not only tensors"):
        sdar(folder, length=8, trust_remote_code=True)
    assert not (tmp_path / "trace").exists()


def test_a_package_that_its_code_wants_is_named(folder: Path) -> None:
    remote_blocks.write(folder, "sdar")
    code = folder / "modeling_sdar.py"
    code.write_text(f"import no_such_package\n{code.read_text()}")
    with pytest.raises(ValueError, match=r"source=.*cannot use .*no_such_package"):
        sdar(folder, length=8, trust_remote_code=True)


def test_likelihoods_in_the_harness_go_block_by_block(folder: Path) -> None:
    """With blocks of one position there is nothing to draw: the likelihood of a text is that of each token given those
    before it."""
    weights = remote_blocks.write(folder, "sdar", block_size=1)
    own = respondent(f"sdar:{folder}", solver="tweedie", nfe=4, trust_remote_code=True, mc_num=2)
    before, answer = [6, 8, 10], [12, 6, 14, 21]
    value, _ = own.log_likelihoods([(before, answer)])[0]
    total = 0.0
    for n, token in enumerate(answer):
        ids = np.array([*before, *answer[:n], MASK])
        logits = remote_blocks.straight("sdar", weights, ids, block=1)[-1, NAMED]
        total += logits[NAMED.index(token)] - np.log(np.exp(logits).sum())
    assert abs(value - total) < ANGLES


def test_resized(folder: Path) -> None:
    assert resized(loaded("sdar", folder), 30).block == BLOCK
