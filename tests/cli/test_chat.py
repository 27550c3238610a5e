"""``thetaleap chat``, as its users meet it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

import thetaleap as tl
from tests import tiny_llm
from tests.tiny_llm import CHANNELS, EOT, WORDS
from thetaleap import cli
from thetaleap.cli.chat import Conversation, answer, converse, shown
from thetaleap.conditioning.answering import Manner
from thetaleap.models.hf.llm import llada, resized, vocabulary_of
from thetaleap.models.hf.prefix_reuse import Reuse
from thetaleap.models.network import Network

SPECIAL = [word for word in WORDS if word.startswith("<|")]
FEW = ("--length", 8, "--block", 4, "--nfe", 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="needs the extra 'hub'")
    made = tmp_path_factory.mktemp("model")
    tiny_llm.causal(made)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Network:
    return llada(folder, length=8)


def call(*args: Any, said: str = "") -> Result:
    plain = {"COLUMNS": "300", "FORCE_COLOR": None, "TERM": "dumb"}
    return CliRunner(env=plain).invoke(cli.app, ["chat", *map(str, args)], input=said, prog_name="thetaleap")


def answers(*args: Any, said: str) -> list[str]:
    result = call(*args, said=said)
    assert result.exit_code == 0, result.output
    assert result.stdout == "" or result.stdout.endswith("\n")
    return result.stdout.split("\n")[:-1]


def manner(**changes: Any) -> Manner:
    solver = tl.Blocks(tl.SemiAutoregressive(), 4, stop=EOT)
    return Manner(**{"solver": solver, "nfe": 8, "temperature": 0.9, **changes})


def silent(ids: Any, status: str) -> None:
    pass


@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_piped_lines_are_answered_in_plain_text(kind: str, folder: Path) -> None:
    said = "the cat sat\n\nit was hot\n"
    got = answers(f"{kind}:{folder}", *FEW, "--temperature", 0.9, said=said)
    assert len(got) == 2, "empty lines say nothing"
    assert all(set(line.split()) <= set(WORDS) - set(SPECIAL) for line in got)
    assert any(got)
    assert got == answers(f"{kind}:{folder}", *FEW, "--temperature", 0.9, said=said)
    assert got != answers(f"{kind}:{folder}", *FEW, "--temperature", 0.9, "--seed", 1, said=said)


def test_an_answer_is_a_sample_after_the_prompt(model: Network) -> None:
    words = vocabulary_of(model)
    prompt = words.chat([{"role": "user", "content": "the cat"}])
    template = torch.tensor([*prompt, *[tl.FREE] * 8])
    sized = llada(words.tokenizer.name_or_path, length=len(template))
    statuses: list[str] = []
    seen: list[list[int]] = []

    def show(ids: Any, status: str) -> None:
        seen.append(list(ids))
        statuses.append(status)

    got = answer(model, manner(), prompt, 8, show, seed=3, first=5)
    out = tl.sample(tl.tempered(sized, 0.9), manner().solver, nfe=8, template=template, seed=3, first=5)
    ids = words.until_end(out.x[0, -8:].tolist())
    assert got == words.tokenizer.decode(ids, skip_special_tokens=True).strip()
    assert seen[0] == [CHANNELS] * 8
    assert seen[-1] == ids
    assert re.fullmatch(r"\d+ evaluations, \d+ tokens, [\d.]+ tokens per second, Blocks\(.*\)", statuses[-1])
    assert statuses[-1].startswith(f"{int(out.nfe[0])} evaluation")


@pytest.mark.parametrize("dual", [False, True])
def test_approximate_reuse(dual: bool, model: Network, folder: Path, tmp_path: Path) -> None:
    reuse, option = Reuse(4, dual), "--approximate-dual" if dual else "--approximate-reuse"
    prompt = vocabulary_of(model).chat([{"role": "user", "content": "the cat"}])
    template = torch.tensor([*prompt, *[tl.FREE] * 8])
    statuses: list[str] = []
    got = answer(model, manner(reuse=reuse), prompt, 8, lambda ids, status: statuses.append(status), seed=3, first=5)
    reusing = reuse(resized(model, len(template)))
    out = tl.sample(tl.tempered(reusing, 0.9), manner().solver, nfe=8, template=template, seed=3, first=5)
    words = vocabulary_of(model)
    ids = words.until_end(out.x[0, -8:].tolist())
    assert got == words.tokenizer.decode(ids, skip_special_tokens=True).strip()
    assert reusing.runs.partial > 0
    assert statuses[-1].startswith(f"{int(out.nfe[0])} evaluations ({reusing.runs.partial} of them partial), ")
    said = answers(f"llada:{folder}", *FEW, "--temperature", 0.9, option, said="the cat\nthe dog\n")
    conversation = Conversation(model, manner(reuse=reuse), 8)
    assert said == [conversation.say(text, silent) for text in ("the cat", "the dog")]
    tiny_llm.bidirectional(tmp_path)
    result = call(f"llada:{tmp_path}", *FEW, option, said="the cat\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"MODEL llada:{tmp_path}: it takes no past_key_values" in result.stderr
    result = call(f"llada:{tmp_path}", *FEW, "--approximate-reuse", "--approximate-dual", said="the cat\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--approximate-dual: keeps more than --approximate-reuse; give one of the two" in result.stderr


def test_a_map_of_devices_is_passed_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thetaleap.models.hf.llm.installed", lambda name: False)
    result = call(f"llada:{folder}", *FEW, "--device-map", "auto", said="the cat\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--device-map auto: accelerate is not installed" in result.stderr


def test_what_was_said_is_remembered_until_reset(model: Network) -> None:
    conversation = Conversation(model, manner(), 8, system="it was hot")
    first = conversation.say("the cat", silent)
    words = vocabulary_of(model)
    begin = "<|system|> it was hot <|eot_id|>"
    assert conversation.prompt == words.encode(
        f"{begin} <|user|> the cat <|eot_id|> <|assistant|> {first} <|eot_id|> <|assistant|>"
    )
    converse(conversation, iter(["/reset"]), Console(file=io.StringIO()), patient=False)
    assert conversation.prompt == words.encode(f"{begin} <|assistant|>")
    assert conversation.turn == 1


def test_commands(folder: Path) -> None:
    result = call(f"llada:{folder}", *FEW, said="the cat\n/help\n/reset\n/rset\nthe cat\n/quit\nthe dog\n")
    assert result.exit_code == 0
    first, *help, last = result.stdout.splitlines()
    assert [line.split()[0] for line in help[:3]] == ["/help", "/reset", "/quit"]
    assert set(first.split()) | set(last.split()) <= set(WORDS) - set(SPECIAL)
    assert result.stderr == "/rset: there is no such command; /help lists them\n"
    assert answers(f"llada:{folder}", *FEW, said="/quit\n") == []


def test_answers_are_cut_at_the_end_token(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.tensor([[6, *map(WORDS.index, ["the", "cat", "<|eot_id|>", "dog", "<|eot_id|>", "a", "a", "a"])]])
    samples = tl.Samples(made, made[:, 0], made[:, 0], made[:, 0], {})
    monkeypatch.setattr(Manner, "draw", lambda *args, **more: samples)
    assert answer(model, manner(), [6], 8, silent) == "the cat"


def test_an_answer_that_is_stopped_is_not_the_end(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation, screen, say = Conversation(model, manner(), 8), io.StringIO(), Conversation.say
    console = Console(file=screen, force_terminal=True, width=200, _environ={"TERM": "xterm"})

    def press(self: Conversation, text: str, show: Any) -> str:
        if text == "stop":
            raise KeyboardInterrupt
        return say(self, text, show)

    monkeypatch.setattr(Conversation, "say", press)
    converse(conversation, iter(["stop", "the cat"]), console, patient=True)
    assert "stopped; Ctrl-C again ends" in screen.getvalue()
    assert len(conversation.said) == 2
    with pytest.raises(KeyboardInterrupt):
        converse(conversation, iter(["stop"]), console, patient=False)


def test_a_model_without_a_chat_template_continues_the_lines(tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path)
    tiny_llm.tokenizer(tmp_path, template=None)
    for path in tmp_path.glob("*.jinja"):
        path.unlink()
    plain = llada(tmp_path, length=8)
    conversation = Conversation(plain, manner(), 8, system="it was hot")
    reply = conversation.say("the cat", silent)
    assert conversation.prompt == vocabulary_of(plain).encode(f"it was hot\nthe cat\n{reply}\n")
    with pytest.raises(ValueError, match="no chat template"):
        vocabulary_of(plain).chat([])
    assert len(answers(f"llada:{tmp_path}", *FEW, said="the cat\n")) == 1


def test_a_terminal_shows_the_answer_as_it_is_written(model: Network) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, height=20, _environ={"TERM": "xterm"})
    conversation = Conversation(model, manner(), 8)
    converse(conversation, iter(["the cat"]), console, patient=True)
    last = screen.getvalue().split("\x1b[2K")[-1]
    assert conversation.said[-1]["content"] in last
    assert "tokens per second, Blocks(solver=Tweedie(planner=Confidence(" in last
    words = vocabulary_of(model)
    assert str(shown(words, [6, 8, CHANNELS, CHANNELS, 10])) == "the cat··sat"


def too_long() -> Iterator[str]:
    yield "the " * 70
    yield "the cat"


def test_a_turn_that_is_too_long(model: Network) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, _environ={"TERM": "xterm"})
    conversation = Conversation(model, manner(), 8)
    converse(conversation, too_long(), console, patient=True)
    assert "the model takes 64 tokens at most" in screen.getvalue()
    assert [message["role"] for message in conversation.said] == ["user", "assistant"]
    with pytest.raises(ValueError, match="--length 8 are 81 tokens together; the model takes 64 tokens at most"):
        converse(Conversation(model, manner(), 8), too_long(), Console(file=io.StringIO()), patient=False)


@pytest.mark.parametrize("solver", ["tweedie", "trapezoidal", "first-hitting", "auto", "parallel-decoding"])
def test_solvers(solver: str, folder: Path) -> None:
    spend = () if solver == "first-hitting" else ("--nfe", 8)
    options = ("--solver", solver, "--length", 8, "--block", 4, "--top-p", 0.9, *spend)
    (answer,) = answers(f"llada:{folder}", *options, said="the cat\n")
    assert set(answer.split()) <= set(WORDS) - set(SPECIAL)
    assert answers(f"llada:{folder}", *options, said="the cat\n") == [answer]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--solver", "twedie"), "--solver twedie: did you mean 'tweedie'?"),
        (("--solver", "uniformization", "--nfe", "4"), "--nfe 4: Blocks spends as many evaluations as it takes"),
        (("--nfe", "1"), "--nfe 1: Blocks takes 1 per step: give at least 4"),
        (("--length", "0"), "--length 0: give a whole number of at least 1"),
        (("--block", "0"), "--block 0: give a whole number of at least 1"),
        (("--temperature", "-1"), "--temperature -1: give a finite number of at least 0"),
        (("--top-p", "2"), "--top-p 2: must lie in (0, 1]"),
        (("--dtype", "float9"), "--dtype float9: did you mean 'float"),
        (("--length", "100"), "--length 100: the model takes 64 tokens at most"),
    ],
)
def test_errors_come_before_the_first_turn(options: tuple[str, ...], message: str, folder: Path) -> None:
    length = () if "--length" in options else ("--length", "16", "--block", "4")
    block = () if "--block" in options and "0" in options else length
    result = call(f"llada:{folder}", *block, *options, said="the cat\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_only_language_models_talk() -> None:
    result = call("chain64", said="the cat\n")
    assert result.exit_code == 2
    assert "MODEL chain64: to talk to, give KIND:SOURCE with one of llada, dream, llada2, sdar" in result.stderr


def test_hyper_parameters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("thetaleap.cli.chat.converse", lambda conversation, *rest, **more: seen.append(conversation))
    for options in (("--solver", "trapezoidal", "--theta", "0.3", "--nfe", "12"), ("--order", "random", "--nfe", "8")):
        assert call(f"llada:{folder}", "--length", 8, "--block", 4, *options).exit_code == 0
    assert seen[0].manner.solver == tl.Blocks(tl.Trapezoidal(0.3), 4, stop=EOT)
    assert seen[1].manner.solver == tl.Blocks(tl.SemiAutoregressive("random"), 4, stop=EOT)
    written = ("--solver", "Tweedie(planner=FixedCount())", "--nfe", "8")
    assert call(f"llada:{folder}", "--length", 8, "--block", 4, *written).exit_code == 0
    assert seen[2].manner.solver == tl.Blocks(tl.Tweedie(tl.FixedCount()), 4, stop=EOT)
    result = call(f"llada:{folder}", *FEW, "--theta", "0.3")
    assert result.exit_code == 2
    assert "--theta 0.3: semi-autoregressive has no such option; it has --order, --block-length" in result.stderr
