"""The model of lm-evaluation-harness: by itself, and, where that is installed, within the harness."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thetaleap as tl
from tests import number_llm, tiny_llm
from tests.conftest import DATA
from thetaleap.conditioning.answering import BUCKET, Manner, answers
from thetaleap.conditioning.prompts import prepare
from thetaleap.evaluation.metrics.accuracy import flexible_answer, same_answer, strict_answer
from thetaleap.evaluation.metrics.likelihood import answer_log_likelihood, is_greedy
from thetaleap.integrations import lm_eval
from thetaleap.integrations.lm_eval import Respondent, respondent, windows
from thetaleap.models.hf.llm import resized, vocabulary_of
from thetaleap.models.hf.prefix_reuse import Reuse, approximate_dual, approximate_prefix

pytest.importorskip("transformers", reason="needs the extra 'hub'")

ARGUMENTS: dict[str, Any] = {"solver": "trapezoidal", "theta": 0.4, "nfe": 9, "length": 8, "temperature": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("numbers")
    number_llm.write(made)
    return made


@pytest.fixture(scope="module")
def own(folder: Path) -> Respondent:
    return respondent(f"llada:{folder}", mc_num=4, batch_size="3", **ARGUMENTS)


# --- texts


def test_arguments_have_the_command_line_s_names(folder: Path, own: Respondent) -> None:
    assert own.manner == Manner(tl.Trapezoidal(0.4), nfe=9, grid=tl.grids.uniform, temperature=0.5)
    assert (own.length, own.batch_size, own.seed, own.mc_num, own.greedy) == (8, 3, 0, 4, True)
    source = f"dream:{folder}"
    other = respondent(source, solver="semi-autoregressive", order="random", nfe=4, block=2, top_k=3, dtype="float32")
    assert other.manner.solver == tl.Blocks(tl.SemiAutoregressive("random"), 2, stop=tiny_llm.EOT)
    assert other.manner.top_k == 3
    assert respondent(source, solver="tweedie", planner="low-discrepancy", steps=4, grid="cosine").manner.grid is (
        tl.grids.cosine
    )


def test_answers_end_where_they_should(own: Respondent) -> None:
    requests = [("18 and 3", {"until": until}) for until in ([], ["\n\n"], ["a"], "a", ["it", "3"], ["<|user|>", ""])]
    texts = own.generate(requests)
    prompts = [vocabulary_of(own.model).encode("18 and 3")] * len(requests)
    tokenizer = vocabulary_of(own.model).tokenizer
    drawn = answers(own.model, own.manner, prompts, 8, seed=own.seed)
    for text, answer, (_, given) in zip(texts, drawn, requests, strict=True):
        whole = tokenizer.decode(answer.tokens, skip_special_tokens=True)
        stops = [given["until"]] if isinstance(given["until"], str) else given["until"]
        assert whole.startswith(text)
        assert all(stop not in text for stop in stops if stop)
        ends = text == whole or any(whole[len(text) :].startswith(stop) for stop in stops if stop)
        assert ends or "<|user|>" in tokenizer.decode(answer.tokens)
    assert own._cut([6, 3, 8], ["<|user|>"]) == "####", "a special token ends an answer too"
    assert own._cut([6, 3, 8], []) == "#### 18", "else it is left out"


def test_the_batch_does_not_matter(folder: Path, own: Respondent) -> None:
    requests = [(f"{text} 18", {"until": ["."]}) for text in ("the", "", "a dog and a", "it was")]
    alone = respondent(f"llada:{folder}", batch_size=1, **ARGUMENTS)
    assert alone.generate(requests) == own.generate(requests)
    other = respondent(f"llada:{folder}", seed=1, **ARGUMENTS)
    assert other.generate(requests) != own.generate(requests)


@pytest.mark.parametrize("reuse", [approximate_prefix, approximate_dual])
def test_approximate_reuse(reuse: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = [(f"{text} 18", {}) for text in ("the", "a dog and a", "it was")]
    made: list[Any] = []
    call = Reuse.__call__

    def spy(self: Reuse, model: Any) -> Any:
        made.append(call(self, model))
        return made[-1]

    option = "approximate_dual" if reuse is approximate_dual else "approximate_reuse"
    given = {**ARGUMENTS, "nfe": 12, "block": 4, option: True}
    own = respondent(f"llada:{folder}", batch_size=3, **given)
    monkeypatch.setattr(Reuse, "__call__", spy)
    texts = own.generate(requests)
    assert sum(one.runs.partial for one in made) > 0
    assert texts == respondent(f"llada:{folder}", batch_size=1, **given).generate(requests)
    ready, template = prepare(*_prompts(own, requests))
    solver = tl.Blocks(tl.Trapezoidal(0.4), 4, stop=tiny_llm.EOT)
    out = tl.sample(tl.tempered(reuse(ready, 4), 0.5), solver, nfe=12, template=template, batch_size=3)
    words = vocabulary_of(own.model)
    for text, row in zip(texts, out.x[:, -8:].tolist(), strict=True):
        assert text == words.tokenizer.decode(words.until_end(row), skip_special_tokens=True)


def _prompts(own: Respondent, requests: list[Any]) -> tuple[Any, list[list[int]], int]:
    words = vocabulary_of(own.model)
    return resized(own.model, BUCKET + 8), [words.encode(context) for context, _ in requests], 8


def test_lengths_come_from_the_request_unless_given(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    some = respondent(f"llada:{folder}", solver="tweedie", nfe=2)
    seen: list[int] = []

    def spy(model: Any, manner: Manner, prompts: Any, new: int, **more: Any) -> Any:
        seen.append(new)
        return answers(model, manner, prompts, new, **more)

    requests: list[Any] = [("18", {"max_gen_toks": 3, "temperature": 0.0}), ("3", {"max_new_tokens": 5}), ("3", {})]
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(lm_eval, "answers", spy)
        assert len(some.generate(requests)) == 3
    assert seen == [3, 5, lm_eval.LENGTH]
    assert "not used, as --model_args says how to sample: temperature=0.0" in caplog.text
    with pytest.raises(ValueError, match="max_length=9: give max_gen_toks"):
        some.generate([("18", {"max_length": 9})])


# --- likelihoods


def test_likelihoods(own: Respondent) -> None:
    pairs = [own.pair("18 and ", "3 then"), own.pair("18", " 70000"), own.pair("", "3 540 .")]
    words = vocabulary_of(own.model)
    assert pairs == [
        (words.encode("18 and"), words.encode("3 then")),
        (words.encode("18"), words.encode("70000")),
        ([], words.encode("3 540 .")),
    ]
    for n, ((before, answer), found) in enumerate(zip(pairs, own.log_likelihoods(pairs), strict=True)):
        x = torch.tensor(before + answer)
        model, positions = resized(own.model, len(x)), torch.arange(len(x)) >= len(before)
        assert found[0] == pytest.approx(answer_log_likelihood(model, x, positions, draws=4, index=n), rel=1e-9)
        assert found[0] < 0
        assert found[1] == is_greedy(model, x, positions)
    # one that the model would write: its own choice for the only position
    before = words.encode("18 and")
    single = [(before, [token]) for token in range(len(tiny_llm.WORDS)) if token != tiny_llm.MASK]
    flags = [greedy for _, greedy in own.log_likelihoods(single)]
    values = [value for value, _ in own.log_likelihoods(single)]
    assert sum(flags) == 1
    assert flags.index(True) == values.index(max(values))
    assert sum(map(float, torch.tensor(values).exp())) == pytest.approx(1)
    assert own.log_likelihoods([(before, [])]) == [(0.0, True)]


def test_rolling(own: Respondent, tmp_path: Path) -> None:
    assert windows([1, 2, 3], None) == windows([1, 2, 3], 3) == [([], [1, 2, 3])]
    assert windows(list(range(10)), 4) == [([], [0, 1, 2, 3]), ([], [4, 5, 6, 7]), ([6, 7], [8, 9])]
    number_llm.write(tmp_path, max_position_embeddings=4)
    short = respondent(f"llada:{tmp_path}", mc_num=3, nfe=3)
    text = "18 3 540 20 64 260"
    tokens = vocabulary_of(short.model).encode(text)
    parts = short.log_likelihoods(windows(tokens, 4))
    assert short.rolling([text]) == [pytest.approx(sum(value for value, _ in parts), rel=1e-9)]
    values = own.rolling([text, "18", ""])
    assert values[0] < values[1] < values[2] == 0.0


# --- errors


def test_sources(folder: Path, tmp_path: Path) -> None:
    for kind in ("LLaDA", "Dream"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        assert lm_eval._source(str(tmp_path)) == f"{kind.lower()}:{tmp_path}"
    for name in (str(folder), "GSAI-ML/LLaDA-8B-Instruct", "chain64"):
        with pytest.raises(ValueError, match=f"say which kind of model it is, as in llada:{name} or dream:{name}"):
            lm_eval._source(name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"solver": "trapezoid"}, "solver='trapezoid': did you mean 'trapezoidal'"),
        ({"thetta": 0.5}, "model_args='thetta': did you mean 'theta'"),
        ({"order": "random"}, "--order='random': trapezoidal has no such option"),
        ({"block_length": 8}, "block_length=8: its blocks count the prompt; give block"),
        ({"batch_size": "auto"}, "batch_size='auto': give a whole number"),
        ({"nfe": None}, "--nfe and --steps are missing"),
        ({"mc_num": 0}, "mc_num=0"),
        ({"approximate_reuse": True}, "block=None: approximate_reuse is within blocks; give it"),
        ({"approximate_dual": True}, "block=None: approximate_dual is within blocks; give it"),
        ({"approximate_reuse": True, "approximate_dual": True, "block": 4}, "approximate_dual=True: keeps more than"),
        ({"dtype": "int8"}, "dtype='int8'"),
    ],
)
def test_wrong_arguments(folder: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        respondent(f"llada:{folder}", **{"nfe": 4, **given})


def test_without_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ImportError, match=r"lm_eval is not installed .*pip install 'thetaleap\[harness\]'"):
        lm_eval.register.__wrapped__()


def test_the_entry_point_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["lm_eval.models"][lm_eval.NAME].partition(":")
    monkeypatch.setattr(lm_eval, "register", lambda: "the model")
    assert getattr(import_module(module), name) == "the model"


# --- in the harness


TASK = """
task: small_gsm8k
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["Question:", "<|user|>"]
  do_sample: false
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    ignore_punctuation: false
    regexes_to_ignore: [",", "\\\\$", "(?s).*#### ", "\\\\.$"]
filter_list:
  - name: strict-match
    filter:
      - function: regex
        regex_pattern: "#### (\\\\-?[0-9\\\\.\\\\,]+)"
      - function: take_first
  - name: flexible-extract
    filter:
      - function: regex
        group_select: -1
        regex_pattern: "(-?[$0-9.,]{{2,}})|(-?[0-9]+)"
      - function: take_first
"""
CHOICES = """
task: small_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: 0
doc_to_choice: ["18", "3 540"]
"""
ROLLING = """
task: small_rolling
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: bits_per_byte
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tasks on the first lines of GSM8K, four times, and no network."""
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hub" / "datasets"))
    lines = (DATA / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()[:7] * 4
    file, where = tmp_path / "questions.jsonl", tmp_path / "tasks"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    where.mkdir()
    for name, text in {"gsm8k": TASK, "choice": CHOICES, "rolling": ROLLING}.items():
        (where / f"{name}.yaml").write_text(text.format(file=file))
    return where


def evaluated(tasks: Path, folder: Path, *names: str, **more: Any) -> dict[str, Any]:
    lm_eval.register()
    harness, manager = import_module("lm_eval"), import_module("lm_eval.tasks").TaskManager
    asked = {name: more.pop(name) for name in ("apply_chat_template", "limit") if name in more}
    arguments = {"pretrained": f"llada:{folder}", **ARGUMENTS, "mc_num": 3, **more}
    return harness.simple_evaluate(
        model="thetaleap",
        model_args=",".join(f"{key}={value}" for key, value in arguments.items()),
        tasks=list(names),
        task_manager=manager(include_path=str(tasks)),
        bootstrap_iters=0,
        **asked,
    )


@pytest.mark.harness
@pytest.mark.data
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chat", [False, True])
def test_gsm8k_in_the_harness(tasks: Path, folder: Path, chat: bool) -> None:
    given = {"length": 16, "seed": 3, "apply_chat_template": chat}
    results = [evaluated(tasks, folder, "small_gsm8k", batch_size=size, **given) for size in (5, 28)]
    samples = [one["samples"]["small_gsm8k"] for one in results]
    texts = [[(s["doc_id"], s["filter"], s["resps"]) for s in some] for some in samples]
    assert texts[0] == texts[1], "the batch does not matter"
    found = {"strict-match": strict_answer, "flexible-extract": flexible_answer}
    right = dict.fromkeys(found, 0.0)
    for entry in samples[0]:
        ((text,),) = entry["resps"]
        mine = same_answer(found[entry["filter"]](text), entry["doc"]["answer"])
        assert entry["exact_match"] == mine, "our reading of an answer is the harness's own"
        right[entry["filter"]] += mine
        prompt = (
            entry["arguments"]["gen_args_0"]["arg_0"] if isinstance(entry["arguments"], dict) else entry["arguments"]
        )
        assert ("<|assistant|>" in str(prompt)) == chat
    for name, count in right.items():
        assert results[0]["results"]["small_gsm8k"][f"exact_match,{name}"] == pytest.approx(count / 28)
        assert 0 < count < 28, "else little is tested"
    assert "Trapezoidal(theta=0.4" in results[0]["config"]["thetaleap_solver"]


@pytest.mark.harness
@pytest.mark.data
@pytest.mark.filterwarnings("ignore")
def test_likelihoods_in_the_harness(tasks: Path, folder: Path) -> None:
    results = evaluated(tasks, folder, "small_choice", "small_rolling", batch_size=2, limit=4)
    own = respondent(f"llada:{folder}", mc_num=3, **ARGUMENTS)
    choices = results["samples"]["small_choice"]
    pairs = [own.pair(entry["doc"]["question"], f" {choice}") for entry in choices for choice in ("18", "3 540")]
    theirs = [tuple(answer[0]) for entry in choices for answer in entry["resps"]]
    for found, mine in zip(theirs, own.log_likelihoods(pairs), strict=True):
        assert float(found[0]) == pytest.approx(mine[0], rel=1e-9)
        assert str(found[1]) == str(mine[1])
    entries = results["samples"]["small_rolling"]
    mine = own.rolling([entry["doc"]["answer"] for entry in entries])
    sizes = [len(entry["doc"]["answer"].encode()) for entry in entries]
    expected = -sum(mine) / sum(sizes) / torch.tensor(2.0).log().item()
    assert results["results"]["small_rolling"]["bits_per_byte,none"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.harness
@pytest.mark.data
def test_the_harness_s_command_line(tasks: Path, folder: Path, tmp_path: Path) -> None:
    given = f"pretrained=llada:{folder},solver=trapezoidal,theta=0.5,nfe=16,length=12,block=4,temperature=0.5"
    command = [sys.executable, "-m", "thetaleap.integrations.lm_eval", "--model", "thetaleap", "--model_args", given]
    command += ["--tasks", "small_gsm8k", "--include_path", str(tasks), "--batch_size", "2", "--limit", "2"]
    command += ["--output_path", str(tmp_path / "out"), "--log_samples"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "|small_gsm8k|" in done.stdout
    assert "exact_match" in done.stdout
    (written,) = (tmp_path / "out").rglob("results_*.json")
    config = json.loads(written.read_text())["config"]
    assert config["model"] == "thetaleap"
    assert "Blocks(solver=Trapezoidal(theta=0.5" in config["thetaleap_solver"]


@pytest.mark.harness
def test_the_harness_keeps_its_own_models() -> None:
    lm_eval.register()
    registry = import_module("lm_eval.api.registry")
    assert registry.get_model("dummy").__name__ == "DummyLM"
    assert registry.get_model("thetaleap") is lm_eval.register()


@pytest.mark.harness
def test_too_long_for_the_model(tmp_path: Path) -> None:
    number_llm.write(tmp_path, max_position_embeddings=8)
    model = lm_eval.register()(pretrained=f"llada:{tmp_path}", nfe=4)
    request = SimpleNamespace(args=("18 18 18 18 18 18 18", " 3 3"))
    with pytest.raises(ValueError, match="tokens of the longest prompt and answer=9: the model takes 8"):
        model.loglikelihood([request])
