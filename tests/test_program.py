"""The program as it is installed: another process, without the type checker of the test run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import thetaleap as tl


def program(folder: Path, args: str) -> subprocess.CompletedProcess[str]:
    command, env = [Path(sys.executable).with_name("thetaleap"), *args.split()], {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_program(tmp_path: Path) -> None:
    done = program(tmp_path, "sample chain64 --solver tweedie --nfe 4 --num 2 --out a.npy")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].split() == ["file", "a.npy"]
    expected = tl.sample(tl.load("chain64"), tl.Tweedie(), nfe=4, num=2)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected.x.numpy())


def test_the_program_refuses(tmp_path: Path) -> None:
    # the type checker of the test run would be faster than the library to find this one
    done = program(tmp_path, "sample cube3 --solver rk2 --nfe 4 --rule exakt --out a.npy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --rule exakt: did you mean 'exact'? choose one of exact, reject\n"
    assert list(tmp_path.iterdir()) == []


def test_the_module_is_the_program() -> None:
    command = [sys.executable, "-m", "thetaleap", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "reproduce" in done.stdout


def test_a_pipe_that_ends_early(tmp_path: Path) -> None:
    """No traceback, nothing about it."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        command = [sys.executable, "-m", "thetaleap", "models"]
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_completion_and_lists_come_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['thetaleap', 'sample', 'x', '--so']; from thetaleap.__main__ import run\ntry: run()\n"
    )
    code += "finally: assert not {'torch', 'matplotlib'} & set(sys.modules)"
    asked = {"_THETALEAP_COMPLETE": "complete_bash", "COMP_WORDS": "thetaleap sample x --so", "COMP_CWORD": "3"}
    command, env = [sys.executable, "-c", code], {**os.environ, **asked}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["--solver"]
