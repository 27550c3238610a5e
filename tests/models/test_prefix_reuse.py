"""Keys and values of a finished prefix, kept while a block is written."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests import tiny_llm
from tests.tiny_llm import CHANNELS, EOT, MASK, WORDS
from thetaleap.conditioning.prompts import prepare
from thetaleap.models.hf.llm import dream, llada
from thetaleap.models.hf.prefix_reuse import Kept, approximate_dual, approximate_prefix
from thetaleap.models.network import Network, Split
from thetaleap.sampling import Samples

hub = pytest.importorskip("transformers", reason="needs the extra 'hub'")

NOW = torch.tensor(1.0, dtype=torch.float64)
LENGTH, NEW, BLOCK = 20, 12, 4
PROMPTS = [[6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16], [6, 17], [19, 20, 9, 10]]
NAMED = [n for n in range(len(WORDS)) if n != MASK]
LOADS = pytest.mark.parametrize("load", [llada, dream])
REUSES = pytest.mark.parametrize("reuse", [approximate_prefix, approximate_dual])


@pytest.fixture(scope="module", params=["Llama", "Qwen2", "plain Llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that looks left unless told otherwise, and one that does not."""
    made = tmp_path_factory.mktemp("model")
    more: dict[str, Any] = {"is_causal": False} if request.param.startswith("plain") else {}
    tiny_llm.causal(made, request.param.split()[-1], **more)
    return made


@pytest.fixture
def llama(tmp_path: Path) -> Network:
    tiny_llm.causal(tmp_path)
    return llada(tmp_path, length=LENGTH)


def rows(conditionals: Any, x: Tensor) -> Tensor:
    return conditionals.logits(torch.arange(x.numel())).view(*x.shape, -1)


def filled(template: Tensor) -> Tensor:
    return torch.where(template == tl.FREE, CHANNELS, template)


def written(x: Tensor, positions: list[int], seed: int = 0) -> Tensor:
    """`x` with some words at `positions`."""
    made = torch.Generator().manual_seed(seed)
    return x.index_copy(
        1, torch.tensor(positions, dtype=torch.int64), torch.randint(6, 22, (len(x), len(positions)), generator=made)
    )


def parts_of(model: Network) -> Any:
    """The trunk and the head."""
    assert isinstance(model.evaluate, Split)
    return model.evaluate


def doubled(model: Network, before: Tensor, after: Tensor, valid: Tensor, start: int, stop: int) -> Tensor:
    """Rows of the positions from `start` to `stop` that look at each other in `after`, and at the others as they are in
    `before`.

    One run without a cache does it: `before` in full, and behind it a part of `after`, which does not see this part of
    `before`, and is not seen by it.
    """
    trunk, length, here = parts_of(model).trunk, before.shape[1], slice(start, stop)
    ids = torch.cat([before, after[:, here]], 1)
    every = torch.arange(ids.shape[1])
    old = every < length
    place = torch.cat([valid.cumsum(1) - 1, valid.cumsum(1)[:, here] - 1], 1).clamp(min=0)
    there = torch.cat([valid, valid[:, here]], 1)
    others = old & ((every < start) | (every >= stop))
    seen = (old[:, None] == old) | (~old[:, None] & others)
    mask = torch.zeros((len(ids), 1, len(old), len(old)), dtype=torch.float64)
    mask = mask.masked_fill(~(seen & there[:, None])[:, None], torch.finfo(torch.float64).min)
    with torch.no_grad():
        hidden = trunk.model(
            input_ids=ids.masked_fill(ids == CHANNELS, MASK), attention_mask=mask, position_ids=place
        ).logits
    return parts_of(model).head(hidden[:, length:].flatten(0, 1)).view(len(ids), stop - start, -1)


def padded(model: Network, sides: str) -> tuple[Network, Tensor]:
    """A model and sequences of which the last 12 positions are masked, with padding before or after each prompt."""
    if sides == "none":
        return model, filled(torch.tensor([p + [tl.FREE] * NEW for p in [PROMPTS[1], PROMPTS[1][::-1]]]))
    ready, template = prepare(model, PROMPTS, NEW)
    if sides == "left":
        return ready, filled(template)
    assert ready.valid is not None
    x, valid = template.clone(), ready.valid.clone()
    for row, prompt in enumerate(PROMPTS):
        x[row, : len(prompt)], x[row, len(prompt) : LENGTH - NEW] = torch.tensor(prompt), 0
        valid[row, : LENGTH - NEW] = torch.arange(LENGTH - NEW) < len(prompt)
    return model.padded(valid), filled(x)


# --- what a partial run says


@LOADS
@REUSES
@pytest.mark.parametrize("sides", ["none", "left", "right"])
def test_a_sequence_that_has_not_changed_is_as_in_a_full_run(folder: Path, load: Any, reuse: Any, sides: str) -> None:
    model, x = padded(load(folder, length=LENGTH), sides)
    reusing = reuse(model, BLOCK)
    truth = rows(model(x, NOW), x)
    first = reusing(x, NOW)
    torch.testing.assert_close(rows(first, x), truth, rtol=0, atol=0)
    torch.testing.assert_close(rows(reusing(x, NOW), x), truth, rtol=1e-10, atol=1e-10)
    assert (reusing.runs.full, reusing.runs.partial) == (len(x), len(x))


@LOADS
@REUSES
@pytest.mark.parametrize("sides", ["none", "left", "right"])
def test_within_a_block_the_rest_is_seen_as_it_was(folder: Path, load: Any, reuse: Any, sides: str) -> None:
    """The rest is what comes before the block, or that and what comes behind it."""
    model, x = padded(load(folder, length=LENGTH), sides)
    reusing, stop = reuse(model, BLOCK), LENGTH - NEW + BLOCK if reuse is approximate_dual else LENGTH
    first = reusing(x, NOW)
    after = written(x, [9, 11, 15])
    mine = rows(reusing(after, NOW), x)
    assert (reusing.runs.full, reusing.runs.partial) == (len(x), len(x))
    assert len(first.cells) == len(x)  # pyright: ignore[reportAttributeAccessIssue]
    valid = torch.ones_like(x, dtype=torch.bool) if model.valid is None else model.valid
    for row in range(len(x)):
        shift = load is dream
        last = int(torch.nonzero(valid[row, : LENGTH - NEW])[-1])
        start = last if shift else LENGTH - NEW
        one = slice(row, row + 1)
        truth = doubled(model, x[one], after[one], valid[one], start, stop)[0]
        free = [n for n in range(LENGTH - NEW, stop) if n not in (9, 11, 15)]
        # what is said about the first free position comes from the last one of the prompt, about others from their left
        source = [(last if n == LENGTH - NEW else n - 1) if shift else n for n in free]
        torch.testing.assert_close(mine[row, free], truth[[n - start for n in source]], rtol=1e-9, atol=1e-9)
    exact = rows(model(after, NOW), x)
    assert float((mine - exact)[:, 10][:, NAMED].abs().max()) > 1e-3, "else nothing was approximated"
    torch.testing.assert_close(mine[:, stop:], rows(first, x)[:, stop:], rtol=0, atol=0)


def test_which_sequences_are_served() -> None:
    m = CHANNELS
    kept = Kept(torch.tensor([6, 7, m, m, 8, m, m, m]), 2, 8, [], torch.zeros(2, 1), torch.zeros(0, 1))
    for x, block, served in [
        ([6, 7, m, m, 8, m, m, m], 1, True),
        ([6, 7, 9, m, 8, m, m, m], 2, True),
        ([6, 7, 9, m, 8, m, m, m], 1, False),  # the first block, of one position, is complete
        ([6, 7, m, 9, 8, 9, 9, 9], 1, True),
        ([6, 7, 9, 9, 8, m, m, m], 3, True),  # the given position does not count
        ([6, 7, 9, 9, 8, m, m, m], 2, False),
        ([6, 9, m, m, 8, m, m, m], 9, False),  # another prefix
        ([6, 7, m, m, 9, m, m, m], 9, False),  # another given position
        ([6, m, m, m, 8, m, m, m], 9, False),  # from before
        ([6, 7, 9, 9, 8, 9, 9, 9], 9, False),  # nothing left
    ]:
        assert kept.serves(torch.tensor(x), m, block) == served, (x, block)


# --- runs


SOLVERS = {
    "one by one": (tl.Tweedie(tl.FixedCount()), 12),
    "coins": (tl.Tweedie(), 12),
    "trapezoidal": (tl.Trapezoidal(), 18),
    "rk2": (tl.RK2(theta=0.5), 18),
    "multistep": (tl.Multistep(), 9),
    "surest first": (tl.SemiAutoregressive(), 6),
}


@pytest.mark.parametrize(
    ("name", "load", "reuse"),
    [(name, load, approximate_prefix) for name, load in zip(SOLVERS, [llada, dream] * 3, strict=True)]
    + [("surest first", llada, approximate_dual), ("trapezoidal", dream, approximate_dual)],
)
def test_a_sample_does_not_depend_on_its_batch_or_on_earlier_runs(
    name: str, load: Any, reuse: Any, tmp_path: Path
) -> None:
    tiny_llm.causal(tmp_path, "Qwen2")
    model, (inner, nfe) = load(tmp_path, length=LENGTH), SOLVERS[name]
    solver = tl.Blocks(inner, BLOCK, stop=EOT)

    def draw(reusing: Any, template: Tensor, **more: Any) -> Samples:
        return tl.sample(tl.tempered(reusing, 1.5), solver, template=template, nfe=nfe, seed=4, **more)

    ready, template = prepare(model, PROMPTS, NEW)
    reusing = reuse(ready, BLOCK)
    out = draw(reusing, template, batch_size=4)
    counts = (reusing.runs.full, reusing.runs.partial)
    assert min(counts) > 0
    assert sum(counts) == int(out.spent.sum())
    assert torch.equal(draw(reusing, template, batch_size=3).x, out.x)
    for row in (0, 2):
        one, mine = prepare(model, PROMPTS[row : row + 1], NEW)
        alone = draw(reuse(one, BLOCK), mine, first=row)
        assert torch.equal(alone.x[0], out.x[row])
        assert int(alone.spent[0]) == int(out.spent[row])


@REUSES
def test_nothing_is_kept_beyond_a_run(reuse: Any, llama: Network) -> None:
    """In the second run: the type checker of the tests holds on to what it sees first."""
    ready, template = prepare(llama, PROMPTS, NEW)
    for reusing in (reuse(ready, BLOCK), again := reuse(ready, BLOCK)):
        tl.sample(reusing, tl.Blocks(tl.Trapezoidal(), BLOCK), template=template, nfe=18)
    gc.collect()
    assert again.runs.partial > 0
    assert len(again.runs.cells) == 0


def test_one_full_run_for_each_block(llama: Network) -> None:
    ready, template = prepare(llama, PROMPTS, NEW)
    for block, blocks in ((4, 3), (5, 3), (12, 1)):
        reusing = approximate_prefix(ready, block)
        out = tl.sample(reusing, tl.Blocks(tl.Tweedie(tl.FixedCount()), block), template=template, nfe=12)
        assert reusing.runs.full == blocks * len(PROMPTS)
        assert reusing.runs.partial == int(out.nfe.sum()) - reusing.runs.full, "partial ones count as any"


def test_given_positions_within_blocks_do_not_count(llama: Network) -> None:
    template = torch.tensor([6, 7, tl.FREE, tl.FREE, 8, 9, tl.FREE, tl.FREE, *[10] * 4, *[tl.FREE] * 8])
    reusing = approximate_prefix(llama, 4)
    tl.sample(reusing, tl.Blocks(tl.Tweedie(tl.FixedCount()), 4), template=template, nfe=12, num=2)
    assert (reusing.runs.full, reusing.runs.partial) == (2 * 3, 2 * 9)


def test_before_the_first_block_there_may_be_nothing_to_keep(llama: Network) -> None:
    solver = tl.Blocks(tl.Tweedie(tl.FixedCount()), LENGTH)
    reusing = approximate_prefix(llama, LENGTH)
    out = tl.sample(reusing, solver, nfe=LENGTH, num=3)
    assert torch.equal(out.x, tl.sample(llama, solver, nfe=LENGTH, num=3).x)
    assert (reusing.runs.full, reusing.runs.partial) == (3 * LENGTH, 0)
    half = approximate_prefix(llama, LENGTH // 2)
    tl.sample(half, tl.Blocks(tl.Tweedie(tl.FixedCount()), LENGTH // 2), nfe=LENGTH, num=3)
    assert (half.runs.full, half.runs.partial) == (3 * (LENGTH // 2 + 1), 3 * (LENGTH // 2 - 1))


def test_guidance_keeps_both_halves_apart(llama: Network) -> None:
    x = written(torch.full((2, LENGTH), CHANNELS), [0, 1, 2, 3, 4])
    condition = (torch.arange(LENGTH) > 2) & (torch.arange(LENGTH) < 5)
    guided = tl.guided(approximate_prefix(llama, BLOCK), 1.5, condition)
    told, blind = (approximate_prefix(llama, BLOCK) for _ in range(2))
    held: list[Any] = []
    for positions in ([], [6], [5, 6]):
        now = written(x, positions)
        hidden = now.masked_fill(condition, CHANNELS)
        held += [guided(now, NOW), told(now, NOW), blind(hidden, NOW)]
        mine, with_it, without = (rows(one, x)[:, 8:, NAMED].log_softmax(-1) for one in held[-3:])
        truth = (with_it + 1.5 * (with_it - without)).log_softmax(-1)
        torch.testing.assert_close(mine, truth, rtol=1e-9, atol=1e-9)
    assert (told.runs.full, told.runs.partial, blind.runs.full, blind.runs.partial) == (2, 4, 2, 4)
    assert (guided.model.runs.full, guided.model.runs.partial) == (4, 8)  # pyright: ignore[reportAttributeAccessIssue]


# --- networks that cannot


def test_networks_that_take_no_keys_are_refused(tmp_path: Path) -> None:
    tiny_llm.bidirectional(tmp_path)
    with pytest.raises(ValueError, match="model='ModernBertForMaskedLM': it takes no past_key_values, so that no keys"):
        approximate_prefix(llada(tmp_path, length=LENGTH), BLOCK)
    with pytest.raises(ValueError, match="model='ModernBertForMaskedLM': it takes no past_key_values, so that no keys"):
        approximate_dual(llada(tmp_path, length=LENGTH), BLOCK)
    with pytest.raises(TypeError, match="model=MarkovChain: give one made by llada or dream"):
        approximate_prefix(tl.load("chain64"), BLOCK)


def deaf(own: Any, past_key_values: Any = None, use_cache: bool = False, **inputs: Any) -> Any:
    """Gives nothing back."""
    return own(use_cache=False, **inputs)


def forgetful(own: Any, past_key_values: Any = None, use_cache: bool = False, **inputs: Any) -> Any:
    """Adds what it is shown, and does not look at what was there."""
    if past_key_values is None or past_key_values.get_seq_length() == 0:
        return own(past_key_values=past_key_values, use_cache=use_cache, **inputs)
    shown = inputs["input_ids"].shape[1]
    mask = inputs.pop("attention_mask")[..., -shown:]
    return own(use_cache=False, attention_mask=mask, **inputs)


def one_way(own: Any, past_key_values: Any = None, use_cache: bool = False, **inputs: Any) -> Any:
    """Looks to the left once it is to give its keys."""
    if use_cache and past_key_values is not None:
        mask = inputs["attention_mask"]
        left = torch.ones(mask.shape[-2:], dtype=torch.bool).tril(mask.shape[-1] - mask.shape[-2])
        inputs["attention_mask"] = mask.masked_fill(~left, torch.finfo(mask.dtype).min)
    return own(past_key_values=past_key_values, use_cache=use_cache, **inputs)


def strict(own: Any, past_key_values: Any = None, use_cache: bool = False, **inputs: Any) -> Any:
    """Takes what LLaDA's own code does."""
    assert past_key_values is None, "no cache for this model"
    return own(use_cache=False, **inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (deaf, "it gives no past_key_values back"),
        (forgetful, "it says something else if run in two parts"),
        (one_way, "it says something else if run in two parts"),
        (strict, r"it does not take what it gave as past_key_values \(.*no cache for this model"),
    ],
)
def test_networks_that_do_not_keep_their_word_are_refused(change: Any, message: str, llama: Network) -> None:
    own = parts_of(llama).trunk.model
    forward = own.forward
    own.forward = lambda **inputs: change(forward, **inputs)
    with pytest.raises(ValueError, match=f"model='LlamaForCausalLM': {message}.*leave approximate reuse out"):
        approximate_prefix(llama, BLOCK)
    own.forward = forward
    with pytest.raises(ValueError, match="block=0"):
        approximate_prefix(llama, 0)
    with pytest.raises(TypeError, match="model=Tempered: give one made by llada or dream, and shape what comes back"):
        approximate_prefix(tl.tempered(llama, 0.5), BLOCK)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path)
    ready, template = prepare(llada(tmp_path, length=LENGTH, dtype=dtype), PROMPTS, NEW)
    reusing = approximate_prefix(ready, BLOCK)
    out = tl.sample(reusing, tl.Blocks(tl.Tweedie(), BLOCK), template=template, nfe=12)
    assert reusing.runs.partial > 0
    assert bool((out.x < CHANNELS).all())
