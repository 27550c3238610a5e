"""Prompts of different lengths, answered together and alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import thetaleap as tl
from tests import tiny_llm
from tests.tiny_llm import CHANNELS, MASK
from thetaleap.conditioning.prompts import prepare
from thetaleap.models.hf.llm import dream, llada
from thetaleap.models.network import Network

LENGTH, NEW, BATCH = 20, 8, 32
SOLVERS = [tl.Tweedie(), tl.SemiAutoregressive(), tl.Blocks(tl.Trapezoidal(), 4, stop=8), tl.FirstHitting()]


def some_prompts(seed: int = 3) -> list[list[int]]:
    """From none to as many tokens as there is room for."""
    made = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, LENGTH - NEW + 1, (BATCH,), generator=made).tolist()
    return [torch.randint(6, 22, (size,), generator=made).tolist() for size in sizes]


def budget(solver: Any) -> dict[str, Any]:
    return {} if solver.evaluations is None else {"nfe": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, Path]:
    pytest.importorskip("transformers", reason="needs the extra 'hub'")
    made = {dtype: tmp_path_factory.mktemp("model") for dtype in (torch.float64, torch.float32)}
    for dtype, folder in made.items():
        tiny_llm.causal(folder, "Qwen2", dtype)
    return made


def test_a_template_holds_the_prompts_on_the_right() -> None:
    seen: list[torch.Tensor] = []

    def network(x: torch.Tensor, t: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        seen.append(valid)
        return torch.zeros((*x.shape, 5))

    model = tl.from_network(tl.Masked(5), length=6, network=network, attends=True)
    ready, template = prepare(model, [[4, 3], [1, 2, 3, 4], []], 2)
    assert template.tolist() == [[0, 0, 4, 3, -1, -1], [1, 2, 3, 4, -1, -1], [0, 0, 0, 0, -1, -1]]
    model.inspect()
    seen.clear()
    out = tl.sample(ready, tl.Tweedie(), nfe=2, template=template)
    assert out.x[:, :4].tolist() == template[:, :4].tolist()
    there = torch.tensor([[False, False, True, True, True, True], [True] * 6, [False] * 4 + [True] * 2])
    assert torch.equal(seen[0], there)


def test_prompts_that_fill_the_model_need_no_padding() -> None:
    model = tl.from_network(tl.Masked(5), length=4, network=lambda x, t: torch.zeros((*x.shape, 5)))
    ready, template = prepare(model, [[1, 2], [3, 4]], 2)
    assert ready is model
    assert template.tolist() == [[1, 2, -1, -1], [3, 4, -1, -1]]
    with pytest.raises(ValueError, match=r"lengths of prompts=\[1, 2\]: this model does not leave padding out"):
        prepare(model, [[1, 2], [3]], 2)


@pytest.mark.parametrize(
    ("load", "solver", "every"),
    [(llada, SOLVERS[0], 1), *((llada, solver, 4) for solver in SOLVERS[1:]), (dream, SOLVERS[0], 4)],
    ids=lambda it: getattr(it, "__name__", str(it)),
)
def test_a_batch_is_the_same_as_each_alone(folders: Any, load: Any, solver: Any, every: int) -> None:
    model, given = load(folders[torch.float64], length=LENGTH), some_prompts()
    ready, template = prepare(model, given, NEW)
    whole = tl.sample(ready, solver, template=template, seed=4, batch_size=BATCH, **budget(solver))
    parts = tl.sample(ready, solver, template=template, seed=4, batch_size=5, **budget(solver))
    assert torch.equal(parts.x, whole.x)
    for n in range(0, BATCH, every):
        one, row = prepare(model, [given[n]], NEW)
        alone = tl.sample(one, solver, template=row, seed=4, first=n, **budget(solver))
        assert torch.equal(alone.x[0], whole.x[n])
        assert int(alone.nfe[0]) == int(whole.nfe[n])


def first_difference(model: Network, solver: Any, given: list[list[int]], n: int) -> torch.Tensor | None:
    """Sample n as it was in both ways before they parted; None if they did not."""

    def states(index: int | None) -> list[torch.Tensor]:
        some = given if index is None else [given[index]]
        ready, template = prepare(model, some, NEW)
        seen: list[torch.Tensor] = []
        row = n if index is None else 0
        tl.sample(
            ready,
            solver,
            nfe=8,
            template=template,
            seed=4,
            first=index or 0,
            batch_size=len(some),
            on_step=lambda moment: seen.append(moment.x[row].clone()),
        )
        return seen

    pairs = list(zip(states(None), states(n), strict=True))
    parted = next((at for at, (left, right) in enumerate(pairs) if not torch.equal(left, right)), None)
    return None if parted is None else pairs[parted - 1][0]


@pytest.mark.parametrize("solver", SOLVERS[:2], ids=str)
def test_in_single_precision_differences_come_from_rounding(folders: Any, solver: Any) -> None:
    """At a rounding of some 1e-6, one of 256 draws falls on the other side of a boundary once in thousands of runs."""
    model, given = llada(folders[torch.float32], length=LENGTH), some_prompts()
    ready, template = prepare(model, given, NEW)
    whole = tl.sample(ready, solver, nfe=8, template=template, seed=4, batch_size=BATCH).x
    differ = []
    now = torch.tensor(1.0, dtype=torch.float64)
    for n, prompt in enumerate(given):
        one, row = prepare(model, [prompt], NEW)
        alone = tl.sample(one, solver, nfe=8, template=row, seed=4, first=n).x[0]
        if not torch.equal(alone, whole[n]):
            differ.append(n)
        before = first_difference(model, solver, given, n) if n in differ else None
        x = torch.where(row == tl.FREE, CHANNELS, row) if before is None else before.unsqueeze(0)
        batch = torch.where(template == tl.FREE, CHANNELS, template)
        batch[n] = x[0]
        positions = torch.arange(LENGTH - NEW, LENGTH)
        mine, theirs = one(x, now).logits(positions), ready(batch, now).logits(n * LENGTH + positions)
        off = (mine.double().softmax(1) - theirs.double().softmax(1)).abs().max()
        assert float(off) < 2e-5, "the two ways say the same, up to rounding, of the state in which they part"
    assert len(differ) <= 1


@pytest.mark.parametrize("shape", [lambda m, s: tl.tempered(m, 0.7, top_p=0.9), lambda m, s: tl.guided(m, 1.5, s)])
def test_shaped_models_know_their_samples(folders: Any, shape: Any) -> None:
    model, given = llada(folders[torch.float64], length=LENGTH), some_prompts()[:6]
    ready, template = prepare(model, given, NEW)
    whole = tl.sample(shape(ready, template != tl.FREE), tl.Tweedie(), nfe=8, template=template, seed=2, batch_size=4)
    for n, prompt in enumerate(given):
        one, row = prepare(model, [prompt], NEW)
        alone = tl.sample(shape(one, row != tl.FREE), tl.Tweedie(), nfe=8, template=row, seed=2, first=n)
        assert torch.equal(alone.x[0], whole.x[n])


def test_errors(folders: Any) -> None:
    model = llada(folders[torch.float64], length=LENGTH)
    with pytest.raises(ValueError, match=r"prompts=\[\]: give at least one"):
        prepare(model, [], 3)
    with pytest.raises(ValueError, match=r"length of prompts\[1\]=18: with 3 new tokens this is more than the model's"):
        prepare(model, [[7], [7] * 18], 3)
    with pytest.raises(ValueError, match="new=0: give a whole number of at least 1"):
        prepare(model, [[7]], 0)
    for mask in (MASK, CHANNELS):
        with pytest.raises(ValueError, match=rf"prompts\[0\]\[1\]={mask}: this is the mask"):
            prepare(model, [[7, mask]], 3)
    with pytest.raises(ValueError, match=r"prompts\[0\]\[0\]=-1: no token; give tokens from 0 to 27"):
        prepare(model, [[-1]], 3)
    with pytest.raises(TypeError, match="model"):
        prepare(tl.tempered(model, 0.5), [[7]], 3)  # pyright: ignore[reportArgumentType]


# --- what `sample` needs for it


@pytest.mark.parametrize("solver", [tl.Tweedie(), tl.Multistep(), tl.Trapezoidal(), tl.Uniformization()], ids=str)
@pytest.mark.parametrize("name", ["cube3", "cube3-uniform"])
def test_a_run_may_begin_with_any_sample(name: str, solver: Any) -> None:
    model = tl.load(name)
    whole = tl.sample(model, solver, num=7, seed=1, **budget(solver))
    late = tl.sample(model, solver, num=3, seed=1, first=4, batch_size=2, **budget(solver))
    assert torch.equal(late.x, whole.x[4:])
    assert torch.equal(late.nfe, whole.nfe[4:])


def test_the_first_sample_has_a_number() -> None:
    for wrong in (-1, 1.0):
        with pytest.raises((TypeError, ValueError), match="first"):
            tl.sample(tl.load("cube3"), tl.Tweedie(), nfe=2, first=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"first=18446744073709551615: must be below 2\*\*63"):
        tl.sample(tl.load("cube3"), tl.Tweedie(), nfe=2, first=2**64 - 1)


def test_moments_count_within_the_run() -> None:
    seen: list[int] = []
    tl.sample(
        tl.load("cube3"), tl.Tweedie(), nfe=2, num=4, first=9, batch_size=2, on_step=lambda m: seen.append(m.first)
    )
    assert sorted(set(seen)) == [0, 2]


def test_blocks_need_evaluations_for_free_positions_alone() -> None:
    model = tl.load("chain64")
    template = torch.full((64,), 3)
    template[56:] = tl.FREE
    out = tl.sample(model, tl.Blocks(tl.Trapezoidal(), 4), nfe=6, template=template, num=5)
    assert int(out.nfe.max()) <= 6
    with pytest.raises(ValueError, match=r"nfe=5: .*give at least 6"):
        tl.sample(model, tl.Blocks(tl.Trapezoidal(), 4), nfe=5, template=template)
