"""Ten things that users do, from a wheel in an environment of its own, in a folder that is not the repository."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import tiny_llm
from tests.tiny_llm import WORDS

REPOSITORY = Path(__file__).parents[1]
TEXT = "who is there? nay, answer me. stand, and unfold yourself. long live the king! " * 40
SIZES = "--length 12 --hidden 16 --blocks 1 --heads 2 --batch 8 --warmup 5"

DRIVER = """
import contextlib, io, json, shlex, sys
import thetaleap
from thetaleap.cli import app

done = []
for line, said in json.load(sys.stdin):
    out, err, sys.stdin = io.StringIO(), io.StringIO(), io.StringIO(said)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(shlex.split(line)[1:], prog_name="thetaleap")
            code = 0
        except SystemExit as end:
            code = end.code or 0
    done.append([code, out.getvalue(), err.getvalue()])
print(json.dumps([thetaleap.__file__, done]))
"""
"""Runs several commands, which import torch once."""


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class User:
    """Somebody with an environment, in a folder."""

    environment: Path
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FORCE_COLOR")}
        return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "TERM": "dumb"}

    def python(self, *args: str, given: str = "") -> str:
        command = [self.environment / "bin" / "python", *args]
        place = {"cwd": self.folder, "env": self.variables}
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=False, **place)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def types(self, *commands: str | tuple[str, str]) -> list[Said]:
        """What commands answer, one after another; a pair is a command and what is written to it."""
        lines = [(one, "") if isinstance(one, str) else one for one in commands]
        place, done = json.loads(self.python("-c", DRIVER, given=json.dumps(lines)).splitlines()[-1])
        assert Path(place).is_relative_to(self.environment), "the wheel's, not the repository's"
        return [Said(*each) for each in done]

    def interrupts(self, command: str, line: str, seconds: float) -> Said:
        """The program, which gets Ctrl-C so many seconds of work after it has printed `line` to standard error."""
        words = [str(self.environment / "bin" / "thetaleap"), *shlex.split(command)[1:]]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(words, cwd=self.folder, env=self.variables, **pipes) as program:
            assert program.stderr is not None
            while line not in (read := program.stderr.readline()):
                assert read, "it ended too soon"
            until = worked(program.pid) + seconds
            while worked(program.pid) < until and program.poll() is None:
                time.sleep(0.02)
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=300)
        return Said(program.returncode, out, err)


def worked(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    """An environment with the wheel, and nothing of the repository; heavy packages are those of the tests'."""
    place = tmp_path_factory.mktemp("user")
    environment, folder, pip = place / "environment", place / "work", [sys.executable, "-m", "pip", "--quiet"]
    offline = ["--no-build-isolation"] if find_spec("hatchling") else []
    quiet = {"check": True, "capture_output": True, "timeout": 300}
    subprocess.run([*pip, "wheel", "--no-deps", *offline, "-w", str(place), str(REPOSITORY)], **quiet)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], **quiet)
    wheel, python = next(place.glob("*.whl")), environment / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], **quiet)
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # comes after what is in the folder itself
    folder.mkdir()
    (folder / "text.txt").write_text(TEXT)
    return User(environment, folder)


def test_the_first_example(user: User) -> None:
    """What the README shows first, from a wheel that tells type checkers of its types."""
    first = re.search(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert first is not None
    assert len(user.python("-c", first[1]).strip()) > 100, "a text of Shakespeare's kind"
    place = Path(user.python("-c", "import thetaleap; print(thetaleap.__file__)").strip()).parent
    assert place.is_relative_to(user.environment)
    assert (place / "py.typed").exists()


OWN = """
import torch
import thetaleap as tl

network = torch.nn.Sequential(torch.nn.Embedding(11, 16), torch.nn.Linear(16, 10))
model = tl.from_network(tl.Masked(states=10), length=8, network=lambda x, t: network(x), time_free=True)
out = tl.sample(model, tl.Tweedie(), nfe=4, num=3)
print(tuple(out.x.shape), int(out.x.max()) < 10, out.nfe.tolist())
"""


def test_own_network(user: User) -> None:
    assert user.python("-c", OWN) == "(3, 8) True [4, 4, 4]\n"


def test_own_text(user: User) -> None:
    """Trained, sampled, compared, completed, measured; and what goes wrong on the way."""
    trained, shown, filled, compared, written, measured, steered, device, template, folder = user.types(
        f"thetaleap train text.txt --out runs/own --steps 20 {SIZES}",
        "thetaleap sample runs/own --num 3",
        "thetaleap sample runs/own --solver tweedie --nfe 4 --num 2 --template 'who __ there'",
        "thetaleap compare runs/own --nfe 2 --solvers tweedie,multistep --num 20",
        "thetaleap sample runs/own --nfe 4 --num 8 --out own.jsonl",
        "thetaleap evaluate own.jsonl",
        "thetaleap sample mnist --nfe 2 --solver tweedie --num 3 --labels 7 --guidance 1 --out sevens.png",
        "thetaleap sample runs/own --device cuda:9",
        "thetaleap sample runs/own --template 'who ~~ there'",
        "thetaleap sample runs/owm",
    )
    assert trained.code == 0
    assert "step 20 of 20: " in trained.err
    assert trained.out.splitlines()[-1].split(maxsplit=1) == ["sample", "thetaleap sample runs/own"]
    assert shown.code == 0
    assert shown.err.startswith("auto: ")
    assert len(shown.out.split("\nmodel ")[0].splitlines()) == 4, "three samples below a head"
    assert [line.split(maxsplit=2)[2] for line in filled.out.splitlines()[1:3]] == filled_in(filled.out)
    assert compared.code == 0
    assert all(name in compared.out for name in ("tweedie", "multistep", "wrote runs/compare-runs-own/"))
    assert written.out.splitlines()[-1].split() == ["file", "own.jsonl"]
    rows = [json.loads(line) for line in (user.folder / "own.jsonl").read_text().splitlines()]
    assert all(len(row["text"]) == 12 and set(row["text"]) <= set(TEXT) for row in rows)
    assert measured.code == 0
    assert measured.out.startswith("8 samples, 12 positions that count")
    assert "pseudo_log_likelihood" in measured.out
    assert steered.code == 0
    assert (user.folder / "sevens.png").read_bytes().startswith(b"\x89PNG")
    assert (device.code, device.out) == (2, "")
    assert device.err == "error: --device cuda:9: there is none here; give cpu\n"
    assert (template.code, template.out) == (2, "")
    assert template.err.startswith("error: --template 'who ~~ there': letter='~': not in the alphabet; use ")
    assert (folder.code, folder.out) == (2, "")
    assert folder.err.startswith("error: MODEL runs/owm: there is no such folder; give one of thetaleap train")


def filled_in(text: str) -> list[str]:
    """The samples that are shown, each with what was given."""
    found = [line.split(maxsplit=2)[2] for line in text.splitlines() if line[:30].split()[:1] in (["0"], ["1"])]
    assert all(one.startswith("who ") and one[6:12] == " there" for one in found)
    return found


def test_chat(user: User) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'hub'")
    tiny_llm.causal(user.folder / "tiny")
    talk = "thetaleap chat llada:tiny --length 8 --block 4 --nfe 8 --temperature 0.9"
    (said,) = user.types((talk, "/help\nthe cat sat\n/foo\nit was hot\n/quit\nthe dog\n"))
    assert said.code == 0
    assert said.err.endswith("/foo: there is no such command; /help lists them\n")
    head, *answers = said.out.split("where there is none, it ends.\n")
    assert "/reset  forget what was said" in head
    lines = answers[0].splitlines()
    assert len(lines) == 2
    ordinary = {word for word in WORDS if not word.startswith("<")}
    assert all(set(line.split()) <= ordinary for line in lines), "answers end where the model ends them"


def test_interrupted_sampling(user: User) -> None:
    command = "thetaleap sample sums --nfe 4 --num 2000 --batch-size 1 --out many.npy"
    said = user.interrupts(command, "auto: ", 2.5)
    assert said.code == 130, said.err
    went, go_on = said.err.splitlines()
    done = int(went.split()[1])
    assert went == f"interrupted: {done} of 2000 samples were finished, and are in many.npy"
    assert go_on == f"to go on: {command.replace(' --num 2000', '')} --first {done} --num {2000 - done}"
    few = f"thetaleap sample sums --nfe 4 --num {done} --out few.npy"
    more = go_on.removeprefix("to go on: ").replace(f"--num {2000 - done}", "--num 2").replace(" --batch-size 1", "")
    again, added = user.types(few, more)
    assert (again.code, added.code) == (0, 0), added.err
    tokens = "import numpy as np; a, b = np.load('few.npy'), np.load('many.npy'); print(len(b) - len(a), (a == b[:-2]).all())"
    assert user.python("-c", tokens) == "2 True\n"


def test_interrupted_training(user: User) -> None:
    command = f"thetaleap train text.txt --out runs/long --steps 400 {SIZES}"
    said = user.interrupts(command, "step 100 of 400", 0.0)
    assert said.code == 130, said.err
    went, go_on = said.err.splitlines()[-2:]
    steps = int(went.split()[4])
    assert 100 <= steps < 400
    assert went == f"interrupted: what was trained, {steps} steps, is kept in runs/long"
    assert go_on == f"to go on: {command}"
    done, shown = user.types(command, "thetaleap sample runs/long --num 1")
    assert done.code == 0
    assert "step 400 of 400" in done.err
    assert "step 100 of" not in done.err, "it did not begin anew"
    assert shown.code == 0
