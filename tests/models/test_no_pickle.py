"""No model that is loaded by name runs what its files hold: every kind, every ending, as a file and in a folder."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thetaleap as tl
from tests.cli.test_cli import call
from thetaleap.registry import ADAPTERS

pytest.importorskip("transformers", reason="needs the extra 'hub'")
ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".npy", ".gguf", ".safetensors")
SAID: dict[str, dict[str, Any]] = {
    "sedd": {"graph": "absorb"},
    "mdlm": {"time_conditioning": False},
    "bd3lm": {"block_length": 4, "time_conditioning": False},
}
"""What a file might not say, so that it is opened."""


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def write(path: Path, trace: Path) -> None:
    """A file of this ending as its own writer writes it, as far as that takes objects; or else a plain pickle."""
    trap = Trap(trace)
    if path.suffix in (".pt", ".pth", ".ckpt", ".bin"):
        torch.save({"state_dict": {"vocab_embed.embedding": torch.ones(2, 2)}, "ema": trap}, path)
    elif path.suffix in (".npy", ".npz"):
        held = np.array([trap], dtype=object)
        np.save(path, held, allow_pickle=True) if path.suffix == ".npy" else np.savez(path, a=held)
    else:
        path.write_bytes(pickle.dumps(trap))


def test_the_trap_works(tmp_path: Path) -> None:
    """Whoever unpickles it falls into it: a test that sees no trace has seen something."""
    for n, ending in enumerate(ENDINGS):
        trace, path = tmp_path / f"trace{n}", tmp_path / f"evil{ending}"
        write(path, trace)
        if ending in (".npy", ".npz"):
            found = np.load(path, allow_pickle=True)
            found = found if ending == ".npy" else found["a"]
        elif ending in (".gguf", ".safetensors"):
            pickle.loads(path.read_bytes())
        else:
            torch.load(path, weights_only=False)
        assert trace.is_dir()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", list(ADAPTERS))
def test_no_pickle_is_run(kind: str, ending: str, tmp_path: Path) -> None:
    """By its own name, and as what a published folder calls its weights, beside a configuration that asks for trust."""
    trace, folder, path = tmp_path / "trace", tmp_path / "model", tmp_path / f"evil{ending}"
    folder.mkdir()
    write(path, trace)
    write(
        folder / {".bin": "pytorch_model.bin", ".safetensors": "model.safetensors"}.get(ending, f"model{ending}"), trace
    )
    told = {"model_type": "bert", "vocab_size": 9, "trust_remote_code": True}
    (folder / "config.json").write_text(json.dumps(told))
    length = {} if "length" not in ADAPTERS[kind].options else {"length": 4}
    for source in (path, folder):
        with pytest.raises((ValueError, ImportError)) as error:
            tl.load(f"{kind}:{source}", **length, **SAID.get(kind, {}))
        assert str(source) in str(error.value), "an error that names the file or its folder"
    assert not trace.exists()


@pytest.mark.parametrize("ending", ENDINGS)
def test_on_the_command_line(ending: str, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / f"evil{ending}"
    write(path, trace)
    for words in (
        ("sample", f"radd:{path}", "--nfe", 4),
        ("evaluate", path),
        ("sample", f"maskgit:{path}", "--nfe", 4),
    ):
        result = call(*words)
        assert result.exit_code == 2, result.output
        assert "Traceback" not in result.output
    assert not trace.exists()
