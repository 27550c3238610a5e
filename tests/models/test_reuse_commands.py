"""Keys and values of a finished prefix, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import thetaleap as tl
from tests import tiny_llm
from tests.tiny_llm import WORDS
from thetaleap import cli
from thetaleap.files import read_samples
from thetaleap.models.hf.llm import llada, resized
from thetaleap.models.hf.prefix_reuse import approximate_dual, approximate_prefix

hub = pytest.importorskip("transformers", reason="needs the extra 'hub'")


def call(*args: Any) -> Result:
    plain = {"COLUMNS": "300", "FORCE_COLOR": None, "TERM": "dumb"}
    return CliRunner(env=plain).invoke(cli.app, ["sample", *map(str, args)], prog_name="thetaleap")


@pytest.mark.parametrize(
    ("option", "reuse"),
    [("approximate_reuse", approximate_prefix), ("approximate_dual", approximate_dual)],
    ids=["prefix", "dual"],
)
def test_sample(option: str, reuse: Any, tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path)
    given = (
        f"llada:{tmp_path}",
        "--solver",
        "tweedie",
        "--nfe",
        16,
        "--length",
        19,
        "--prompt",
        "the cat sat",
        "--num",
        2,
    )
    out = tmp_path / "x.parquet"
    result = call(*given, "--block", 4, f"--{option.replace('_', '-')}", "--out", out)
    assert result.exit_code == 0, result.output
    template = torch.tensor([*[WORDS.index(word) for word in ("the", "cat", "sat")], *[tl.FREE] * 16])
    reusing = reuse(resized(llada(tmp_path, length=20), 19), 4)
    mine = tl.sample(reusing, tl.Blocks(tl.Tweedie(), 4), template=template, nfe=16, num=2)
    x, card = read_samples(out)
    assert torch.equal(x, mine.x)
    assert [name for name in card if name.startswith("approximate")] == [option]
    full, partial = reusing.runs.full, reusing.runs.partial
    assert (
        f"approximate  {partial} of {partial + full} runs of the network were on part of the positions" in result.stdout
    )
    plain = call(*given, "--block", 4)
    assert plain.exit_code == 0, plain.output
    assert "approximate" not in plain.stdout


def test_the_command_line_says_what_is_missing(tmp_path: Path) -> None:
    tiny_llm.causal(tmp_path)
    result = call(f"llada:{tmp_path}", "--solver", "tweedie", "--nfe", 4, "--length", 9, "--approximate-reuse")
    assert result.exit_code == 2
    assert "--block is missing: --approximate-reuse is within blocks; give it" in result.stderr
    result = call("chain64", "--solver", "tweedie", "--nfe", 4, "--block", 32, "--approximate-reuse")
    assert result.exit_code == 2
    assert "--approximate-reuse: is for llada and dream; leave it out" in result.stderr
    result = call(f"llada:{tmp_path}", "--nfe", 4, "--block", 4, "--approximate-reuse", "--approximate-dual")
    assert result.exit_code == 2
    assert "--approximate-dual: keeps more than --approximate-reuse; give one of the two" in result.stderr
    result = call("chain64", "--nfe", 4, "--device-map", "auto")
    assert result.exit_code == 2
    assert "--device-map auto: chain64 has no such option" in result.stderr
