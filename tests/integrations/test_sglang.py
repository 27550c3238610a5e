"""SGLang's decoding algorithm: on a stand-in for its base class, and on that of the release where its source is there.

The engine itself needs a GPU and is not run. Its model is a network of ours, which writes its logits into one buffer, as a
CUDA graph does.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests.cases import dirichlet
from tests.conftest import SGLANG
from tests.integrations.test_driven import said
from thetaleap.control import Method
from thetaleap.integrations import sglang
from thetaleap.integrations.driven import seed_of

ROOT = Path(__file__).parent.parent.parent
BLOCK, STATES, MASK = 3, 4, 2
"""The mask is a token in the middle of the vocabulary, and has a logit."""
P0 = dirichlet(4, (STATES,) * BLOCK, 0.4)
ORACLE = tl.constrained(tl.oracles.joint(P0, tl.Masked(STATES)), forbid=[MASK])


class StandIn:
    """The contract of ``DllmAlgorithm``: all that an algorithm gets, and what is done with what it gives."""

    def __init__(self, config: Any) -> None:
        self.block_size, self.mask_id, self.fdfo = config.block_size, config.mask_id, config.first_done_first_out_mode

    def _prompt_mask(self, batch: Any) -> Tensor:
        own = batch.input_ids.view(batch.batch_size, self.block_size) != self.mask_id
        return own if batch.dllm_prompt_mask is None else batch.dllm_prompt_mask

    def run(self, runner: Any, batch: Any, carried: list[Any] | None = None) -> Any:
        algorithm: Any = self
        written = self._prompt_mask(batch).sum(1).tolist()
        if self.fdfo:
            fresh = algorithm.init_step_state(batch)
            states = [
                new if old is None else old for new, old in zip(fresh, carried or [None] * len(fresh), strict=True)
            ]
            out = runner.forward(batch, pp_proxy_tensors=None)
            done = algorithm.step(batch, out.logits_output.full_logits, states)
            left = [None if ready else state for ready, state in zip(done, states, strict=True)]
            rows = batch.input_ids.view(batch.batch_size, -1).tolist()
            return out.logits_output, rows, [self.block_size * ready for ready in done], left, out.can_run_graph
        states = algorithm.init_step_state(batch)
        out = runner.forward(batch, pp_proxy_tensors=None)
        for _ in range(algorithm.max_steps(self.block_size)):
            if all(algorithm.step(batch, out.logits_output.full_logits, states)):
                break
            out = runner.forward(batch, pp_proxy_tensors=None)
        rows = batch.input_ids.view(batch.batch_size, -1)
        ends = [row[start:] for row, start in zip(rows, written, strict=True)]
        return out.logits_output, ends, None, None, out.can_run_graph


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(content)
    return made


def stand_in() -> dict[str, ModuleType]:
    names = ["sglang", "sglang.srt", "sglang.srt.dllm"]
    algorithm = module("sglang.srt.dllm.algorithm", algo_name_to_cls={})
    base = module("sglang.srt.dllm.algorithm.base", DllmAlgorithm=StandIn)
    return {made.__name__: made for made in (*map(module, names), algorithm, base)}


def released() -> dict[str, ModuleType]:
    """The release's own ``sglang.srt.dllm`` and ``sglang.srt.plugins``; what they import beside needs a GPU, and is blank."""
    folder = SGLANG / "sglang"
    packages = {"sglang": folder, "sglang.srt": folder / "srt"}
    blank = {"arg_groups.overrides": ["resolving_view"], "configs.model_config": ["ModelConfig"]}
    blank |= {"layers.logits_processor": ["LogitsProcessorOutput"], "server_args": ["ServerArgs"]}
    blank |= {"model_executor.forward_batch_info": ["ForwardBatch"], "model_executor.model_runner": ["ModelRunner"]}
    made = [module(name, __path__=[str(path)]) for name, path in packages.items()]
    made += [module(f"sglang.srt.{name}", **dict.fromkeys(names, object)) for name, names in blank.items()]
    made.append(module("sglang.srt.utils", is_npu=lambda: False))
    return {one.__name__: one for one in made}


@contextmanager
def imported(modules: dict[str, ModuleType]) -> Iterator[None]:
    """These in place of SGLang, and nothing left of them afterwards."""
    sys.modules.update(modules)
    sglang.register.cache_clear()
    yield
    sglang.register.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


@pytest.fixture(params=[stand_in, pytest.param(released, marks=pytest.mark.sglang)], ids=lambda made: made.__name__)
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The algorithm as SGLang has it after its plug-ins are loaded."""
    with imported(request.param()):
        sglang.register()
        yield import_module("sglang.srt.dllm.algorithm").algo_name_to_cls["ThetaLeap"]


def made(engine: Any, fdfo: bool = False, **settings: Any) -> Any:
    sizes = {"block_size": BLOCK, "mask_id": MASK, "first_done_first_out_mode": fdfo}
    return engine(SimpleNamespace(algorithm="ThetaLeap", algorithm_config=settings, **sizes))


class Runner:
    """A model whose logits are always in the same memory."""

    def __init__(self) -> None:
        self.buffer, self.seen = torch.zeros((64 * BLOCK, STATES)), []

    def forward(self, batch: Any, pp_proxy_tensors: Any) -> Any:
        x = batch.input_ids.view(-1, BLOCK)
        self.seen.append(x.clone())
        logits = said(ORACLE, torch.where(x == MASK, STATES, x).long(), 1.0)
        logits[..., MASK] = 9.0  # whatever a network says of its mask
        out = self.buffer[: x.numel()].copy_(logits.flatten(0, 1))
        return SimpleNamespace(logits_output=SimpleNamespace(full_logits=out), can_run_graph=False)


def batch(requests: dict[str, tuple[int, list[int]]], prompt_mask: Tensor | None = None) -> Any:
    """Requests by id, each with where its block begins and what is in it."""
    tokens = torch.tensor([row for _, row in requests.values()]).flatten()
    positions = torch.tensor([list(range(start, start + BLOCK)) for start, _ in requests.values()]).flatten()
    told = {"rids": list(requests), "batch_size": len(requests), "dllm_prompt_mask": prompt_mask}
    return SimpleNamespace(input_ids=tokens, positions=positions.int(), **told)


def drawn(solver: Method, nfe: int, rid: str, start: int, row: list[int], seed: int = 0, **how: Any) -> list[int]:
    """What `sample` draws for this block."""
    template = torch.tensor([tl.FREE if token == MASK else token for token in row])
    shaped = tl.tempered(network(), **how)
    return tl.sample(shaped, solver, nfe=nfe, template=template, seed=seed_of(seed, rid, start)).x[0].tolist()


def network() -> Any:
    """The model of `Runner` as one of ours, in its precision."""

    def logits(x: Tensor) -> Tensor:
        return said(ORACLE, x, 1.0).float()

    return tl.from_network(tl.Masked(STATES), length=BLOCK, network=logits, time_free=True)


KINDS: list[tuple[dict[str, Any], Method]] = [
    ({}, tl.Tweedie()),
    ({"planner": "confidence", "nfe": 2}, tl.Tweedie(tl.Confidence())),
    ({"solver": "multistep", "nfe": 2}, tl.Multistep()),
    ({"solver": "exponential-trapezoidal", "theta": 0.4, "nfe": 4}, tl.ExponentialTrapezoidal(0.4)),
    ({"solver": "trapezoidal", "nfe": 5}, tl.Trapezoidal()),
    ({"solver": "Tweedie(planner=Threshold(0.5))", "nfe": 3}, tl.Tweedie(tl.Threshold(0.5))),
    ({"solver": "wino", "nfe": 6}, tl.WINO()),
]
ALL = pytest.mark.parametrize(("settings", "solver"), KINDS, ids=[str(settings) for settings, _ in KINDS])
REQUESTS = {"a": (0, [1, MASK, MASK]), "b": (3, [MASK] * 3), "c": (6, [MASK] * 3), "d": (3, [0, 1, 3])}


@ALL
def test_blocks_are_what_sample_draws(engine: Any, settings: dict[str, Any], solver: Method) -> None:
    algorithm, runner, served = made(engine, **settings), Runner(), batch(REQUESTS)
    _, tokens, *_ = algorithm.run(runner, served)
    nfe = settings.get("nfe", BLOCK)
    wanted = [drawn(solver, nfe, rid, start, row) for rid, (start, row) in REQUESTS.items()]
    assert served.input_ids.view(-1, BLOCK).tolist() == wanted
    prompts = [sum(token != MASK for token in row) for _, row in REQUESTS.values()]
    assert [row.tolist() for row in tokens] == [row[start:] for row, start in zip(wanted, prompts, strict=True)]
    # the keys and values that are kept are those of the final tokens
    assert torch.equal(runner.seen[-1].flatten(), served.input_ids)
    assert len(runner.seen) <= algorithm.max_steps(BLOCK) == nfe + 1


@ALL
def test_an_answer_does_not_depend_on_what_else_is_served(
    engine: Any, settings: dict[str, Any], solver: Method
) -> None:
    """First done, first out: requests come and go between evaluations, in any order, and carry their states along."""
    algorithm, runner = made(engine, fdfo=True, **settings), Runner()
    waiting = dict(REQUESTS)
    states: dict[str, Any] = {}
    finished: dict[str, list[int]] = {}
    for turn in range(40):
        there = [rid for n, rid in enumerate(waiting) if n <= turn // 2]
        there = there[::-1] if turn % 2 else there
        if not there:
            break
        served = batch({rid: waiting[rid] for rid in there})
        _, rows, accepted, left, _ = algorithm.run(runner, served, [states.get(rid) for rid in there])
        for rid, row, length, state in zip(there, rows, accepted, left, strict=True):
            states[rid] = state
            waiting[rid] = (waiting[rid][0], row)
            if length == BLOCK:
                assert row in runner.seen[-1].tolist()
                finished[rid] = waiting.pop(rid)[1]
    nfe = settings.get("nfe", BLOCK)
    assert finished == {rid: drawn(solver, nfe, rid, start, row) for rid, (start, row) in REQUESTS.items()}


def test_ids_places_and_seeds_make_answers_differ(engine: Any) -> None:
    whole = {f"{n}": (0, [MASK] * 3) for n in range(40)}

    def answers(requests: dict[str, Any], **settings: Any) -> list[list[int]]:
        served = batch(requests)
        made(engine, **settings).run(Runner(), served)
        return served.input_ids.view(-1, BLOCK).tolist()

    first = answers(whole)
    assert first == answers(whole)
    assert len({tuple(row) for row in first}) > 3
    assert first != answers({rid: (3, row) for rid, (_, row) in whole.items()})
    assert first != answers(whole, seed=1)
    assert answers(whole, seed=1)[7] == drawn(tl.Tweedie(), BLOCK, "7", 0, [MASK] * 3, seed=1)
    sharp = answers(whole, temperature=0.5, top_k=2)
    assert sharp[3] == drawn(tl.Tweedie(), BLOCK, "3", 0, [MASK] * 3, temperature=0.5, top_k=2)


def test_a_mask_token_in_a_prompt_is_kept(engine: Any) -> None:
    served = batch({"a": (0, [MASK, MASK, MASK])}, prompt_mask=torch.tensor([[True, False, False]]))
    made(engine).run(Runner(), served)
    x = served.input_ids.tolist()
    assert x[0] == MASK
    assert MASK not in x[1:]


def test_wrong_settings_are_named_before_the_first_request(engine: Any) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"temprature": 1}, "dllm-algorithm-config='temprature': did you mean 'temperature'"),
        ({"solver": "twedie"}, "solver='twedie': did you mean 'tweedie'"),
        ({"solver": "auto"}, "solver='auto': name one"),
        ({"solver": "uniformization"}, "solver='uniformization': spends as it likes; name one with a budget"),
        ({"solver": "trapezoidal", "nfe": 2}, "nfe=2: Trapezoidal takes 2 per step, and one more to finish"),
        ({"nfe": 0}, "nfe=0"),
        ({"seed": -1}, "seed=-1"),
        ({"grid": "cosin"}, "grid='cosin': did you mean 'cosine'"),
        ({"theta": 0.4}, "theta=0.4: tweedie has no such option"),
        ({"temperature": -1}, "temperature=-1"),
        ({"top_p": 2}, "top_p=2"),
    ]
    for settings, told in wrong:
        with pytest.raises((ValueError, TypeError), match=told):
            made(engine, **settings)
    assert made(engine, block_size=BLOCK).block_size == BLOCK


def test_the_package_announces_it() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["sglang.srt.plugins"]
    point = EntryPoint("thetaleap", told["thetaleap"], "sglang.srt.plugins")
    assert point.load() is sglang.register


@pytest.mark.sglang
def test_the_release_s_own_loader_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with imported(released()):
        plugins = import_module("sglang.srt.plugins")
        point = EntryPoint("thetaleap", "thetaleap.integrations.sglang:register", plugins.GENERAL_PLUGINS_GROUP)
        found = SimpleNamespace(name=point.name, value=point.value, load=point.load, dist=None)
        monkeypatch.setattr(plugins, "entry_points", lambda group: [found] if group == point.group else [])
        plugins.load_plugins()
        algorithms = import_module("sglang.srt.dllm.algorithm")
        assert algorithms.get_algorithm_cls("ThetaLeap") is sglang.register()
        assert "LowConfidence" in algorithms.algo_name_to_cls


def test_without_sglang_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    sglang.register.cache_clear()
    with pytest.raises(ImportError, match=r"sglang is not installed, or too old .*: pip install 'sglang>=0.5.23'"):
        sglang.register()
