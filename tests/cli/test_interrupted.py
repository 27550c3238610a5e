"""Ctrl-C at any moment: what is finished is kept, and the command that goes on is said. So do runs that are extended."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.test_cli import call, failed, ran
from thetaleap import sampling
from thetaleap.cli.sample import Kept
from thetaleap.core.progress import deferred
from thetaleap.evaluation import compare as comparison
from thetaleap.files import read_samples
from thetaleap.training import trainer
from thetaleap.training.data import read_corpus
from thetaleap.training.trainer import CHECKPOINT, Recipe, process_of


def interrupted(*args: Any) -> tuple[str, list[str]]:
    """What an interrupted command says, and the words of the command that goes on."""
    result = call(*args)
    assert result.exit_code == 130, result.exception
    said, go_on = result.stderr.splitlines()[-2:]
    assert said.startswith("interrupted: ")
    words = shlex.split(go_on.removeprefix("to go on: "))
    assert words[0] == "thetaleap"
    return said.removeprefix("interrupted: "), words[1:]


# --- sampling


def stop_in(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """Press Ctrl-C within the batch of this number, once."""
    pressed, note = [False], Kept.__call__

    def pressing(self: Kept, moment: sampling.Moment) -> None:
        note(self, moment)
        if len(self.batches) == batch + 1 and moment.step == 1 and not pressed[0]:
            pressed[0] = True
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Kept, "__call__", pressing)


PROMPTS = '{"template": "3 _ 4"}\n{"prompt": "7"}\n{"prompt": "1"}\n'


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "npy"])
@pytest.mark.parametrize("given", [("--num=7",), ("--prompts", "p.jsonl", "--num", "2"), ("--num", "5", "--first=2")])
def test_the_file_of_a_continued_run_is_that_of_one_that_was_not_stopped(
    ending: str, given: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text(PROMPTS)
    common = ("sample", "chain64", "--solver", "tweedie", "--nfe", 3, "--seed", 4, *given)
    ran(*common, "--out", f"whole.{ending}")
    stop_in(monkeypatch, 2)
    out = f"a b.{ending}"
    every, first = (6, 0) if "--prompts" in given else (7, 0) if len(given) == 1 else (5, 2)
    said, go_on = interrupted(*common, "--batch-size", 2, "--out", out, "--force")
    assert said == f"4 of {every} samples were finished, and are in {out}"
    assert "--force" not in go_on, "that would replace them"
    assert go_on[go_on.index("--first") + 1] == str(first + 4)
    ran(*go_on)
    assert Path(out).read_bytes() == Path(f"whole.{ending}").read_bytes()


def test_what_is_finished_is_shown_where_there_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_in(monkeypatch, 1)
    command = ("sample", "chain64", "--solver", "tweedie", "--nfe", 3, "--num", 4, "--batch-size", 1)
    result = call(*command)
    assert result.exit_code == 130
    assert result.stderr.startswith(
        "interrupted: 1 of 4 samples were finished, and are shown\nto go on: thetaleap sample"
    )
    assert len(result.stdout.splitlines()) == 2
    rest = ran(*shlex.split(result.stderr.splitlines()[1].removeprefix("to go on: thetaleap ")))
    assert rest.splitlines()[1].split()[0] == "1", "numbers go on"
    whole = ran(*command).splitlines()
    assert [line.split() for line in rest.splitlines()[1:4]] == [line.split() for line in whole[2:5]]


def test_pictures_go_on_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stop_in(monkeypatch, 1)
    command = "sample ising4x16 --solver tweedie --nfe 3 --num 3 --batch-size 1 --out x.png"
    said, go_on = interrupted(*command.split())
    assert said == "1 of 3 samples were finished, and are in x.png"
    assert go_on[-2:] == ["--out", "x-1.png"]
    assert Path("x.png").is_file()


def test_nothing_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_in(monkeypatch, 0)
    command = ("sample", "chain64", "--solver", "tweedie", "--nfe", 3, "--num", 4, "--out", tmp_path / "x.npy")
    said, go_on = interrupted(*command)
    assert said == "no sample was finished; with a smaller --batch-size some are sooner"
    assert go_on == list(map(str, command))
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_continued_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = "sample chain64 --solver tweedie --nfe 3 --out x.npy --num 2"
    ran(*common.split())
    before = Path("x.npy").read_bytes()
    for changed, message in {
        "--first 1": "--first 1: 'x.npy' ends with sample 1; give --first 2, another file, or --force to replace it",
        "--first 2 --seed 1": "--seed 1: the samples in 'x.npy' were made with 0; use that, or another file",
        "--first 2 --nfe 4": "--nfe 4: the samples in 'x.npy' were made with 3; use that, or another file",
    }.items():
        assert failed(*common.split(), *changed.split()) == message
    assert Path("x.npy").read_bytes() == before
    ran(*common.split(), "--first", 2)
    assert read_samples(Path("x.npy"))[0].shape == (4, 64)


# --- comparing


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_rows_that_were_finished_are_kept_and_the_reference_too(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn, draw = [0], comparison.sample

    def pressing(*args: Any, **named: Any) -> sampling.Samples:
        drawn[0] += 1
        if drawn[0] > 3 * rows:  # each is timed three times
            raise KeyboardInterrupt
        return draw(*args, **named)

    command = "compare cube3 --solvers auto,tweedie --nfe 2,3 --num 9 --reference model --out c"
    with monkeypatch.context() as pressed:
        pressed.setattr(comparison, "sample", pressing)
        said, go_on = interrupted(*command.split())
    assert said == f"{rows} of 4 rows were finished"
    assert Path("c/comparison.csv").exists() == (rows > 0)
    assert go_on == [*command.split()[:8], "--out", "c", "--reference", "c/reference.npy"]
    text = ran(*go_on)
    assert "9 samples that were given" in " ".join(text.split())


# --- training

TINY = "--length 12 --hidden 16 --blocks 1 --heads 2 --batch 4 --warmup 2"


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("who is there? nay, answer me. " * 40)
    return Path("text.txt")


def press_in(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Press Ctrl-C in the middle of a step, once."""
    pressed, loss = [False], trainer.loss_of

    def pressing(run: trainer.Run, *args: Any) -> Any:
        if run.step == step and not pressed[0]:
            pressed[0] = True
            os.kill(os.getpid(), signal.SIGINT)
        return loss(run, *args)

    monkeypatch.setattr(trainer, "loss_of", pressing)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.usefixtures("text")
def test_training_goes_on_where_it_was_stopped(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is finished first; but for the first one, which may take long to compile."""
    assert call(*f"train text.txt --out whole --steps 6 {TINY}".split()).exit_code == 0
    press_in(monkeypatch, step)
    command = f"train text.txt --out parts --steps 6 {TINY}"
    said, go_on = interrupted(*command.split())
    kept = "what was trained, 4 steps, is kept in parts"
    assert said == ("nothing was trained yet" if step == 0 else kept)
    assert go_on == command.split(), "the same again"
    assert trainer.reached(Path("parts")) == (None if step == 0 else 4)
    assert call(*go_on).exit_code == 0
    for name in (CHECKPOINT, "weights.safetensors"):
        parts, whole = load_file(Path("parts", name)), load_file(Path("whole", name))
        assert parts.keys() == whole.keys()
        assert all(torch.equal(value, whole[key]) for key, value in parts.items())


def test_a_run_is_extended(text: Path) -> None:
    """From there on the rate is that of the longer run; the card says that it was extended."""
    for steps in (4, 9):
        result = call(*f"train text.txt --out run --steps {steps} {TINY}".split())
        assert result.exit_code == 0, result.output
        assert f"step {steps} of {steps}: " in result.stderr
        assert "nats" not in result.output
    card = json.loads(Path("run/card.json").read_text())
    assert (card["step"], card["earlier"]) == (9, [{"steps": 4, "until": 4}])
    sizes: dict[str, Any] = {"length": 12, "hidden": 16, "blocks": 1, "heads": 2, "batch": 4, "warmup": 2}
    corpus = read_corpus(text).split()[0]
    run = trainer.start(Recipe(steps=4, **sizes), corpus)
    process = process_of(run.recipe, corpus.states)
    for _ in range(4):
        trainer.advance(run, corpus, process)
    run.recipe = replace(run.recipe, steps=9)
    rates = []
    for _ in range(5):
        trainer.advance(run, corpus, process)
        rates.append(run.optimizers[0].param_groups[0]["lr"])
    assert rates == [run.recipe.rate_at(step) for step in range(4, 9)]
    assert rates[0] > Recipe(steps=4, **sizes).rate_at(3) / 2 > rates[-1] / 2
    saved = trainer.resume(trainer.start(run.recipe, corpus), Path("run"))
    for name, value in run.model.named_parameters():
        assert torch.equal(value, dict(saved.model.named_parameters())[name])
    message = "--steps 8: the run in this folder has taken 9; give more, or another folder"
    assert failed(*f"train text.txt --out run --steps 8 {TINY}".split()) == message


def test_a_second_interruption_does_not_wait() -> None:
    with deferred() as came:
        os.kill(os.getpid(), signal.SIGINT)
        assert came()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- before anything is under way

EARLY = """
import os, signal, sys

class Press:
    def find_spec(self, name, *rest):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press())
sys.argv = ["thetaleap", "sample", "chain64", "--nfe", "4"]
from thetaleap.__main__ import run
run()
"""


@pytest.mark.parametrize("name", ["typer", "torch"])
def test_imports_are_interrupted_without_a_traceback(name: str) -> None:
    command = [sys.executable, "-c", EARLY.format(name=name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_other_commands_say_that_they_were_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*args: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("thetaleap.cli.evaluate.read_tokens", press)
    result = call("evaluate", "x.npy")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")
