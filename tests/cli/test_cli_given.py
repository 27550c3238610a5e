"""``thetaleap sample`` with templates, prompts, shaped conditionals and blocks."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

import thetaleap as tl
from tests.cli.test_cli import failed, ran
from thetaleap.conditioning.templates import read_prompt, read_template, read_templates

CHAIN = tl.load("chain64")


def spelled() -> tl.models.Network:
    """A model of six letters."""

    class Letters:
        def encode(self, text: str) -> list[int]:
            for letter in text:
                if letter not in "abcdef":
                    raise ValueError(f"text={letter!r}: not in the alphabet; use abcdef")
            return ["abcdef".index(letter) for letter in text]

        def decode(self, tokens: list[int]) -> str:
            return "".join("abcdef"[token] for token in tokens)

    flat = torch.zeros(1, 8, 6)
    return tl.from_network(
        tl.Masked(6), length=8, network=lambda x, t: flat.expand(len(x), -1, -1), tokenizer=Letters()
    )


def test_templates_from_text() -> None:
    assert read_template(spelled(), "ab__f").tolist() == [0, 1, -1, -1, 5, -1, -1, -1]
    assert read_template(spelled(), "ab??f", gap="?").tolist() == [0, 1, -1, -1, 5, -1, -1, -1]
    assert read_template(spelled(), "").tolist() == [-1] * 8
    assert read_prompt(spelled(), "fed").tolist() == [5, 4, 3, -1, -1, -1, -1, -1]
    assert read_template(CHAIN, "3 _ 15").tolist() == [3, -1, 15] + [-1] * 61


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abcdefabc", "has 9 tokens, 1 more than the model has positions"),
        ("ab_x", "not in the alphabet"),
    ],
)
def test_wrong_templates_from_text(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_template(spelled(), text)
    with pytest.raises(ValueError, match="'x' is no token: this model has no text"):
        read_template(CHAIN, "3 x")
    with pytest.raises(ValueError, match="gap='__': give one character"):
        read_template(CHAIN, "3 x", gap="__")


def test_prompts_from_a_file(tmp_path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "ab"}\n\n{"template": "a_c"}\n')
    rows = read_templates(spelled(), file)
    assert rows.tolist() == [[0, 1] + [-1] * 6, [0, -1, 2] + [-1] * 5]
    for line, message in [
        ("{", "line 1: this is no JSON"),
        ("3", r"line 1.*give \{\"template\": text\}"),
        ('{"prompt": 3}', "line 1"),
        ('{"prompt": "xyz"}', "line 1: prompt='xyz': text='x': not in the alphabet"),
        ("", "holds no lines"),
    ]:
        file.write_text(line)
        with pytest.raises(ValueError, match=message):
            read_templates(spelled(), file)
    with pytest.raises(ValueError, match="there is no such file"):
        read_templates(spelled(), tmp_path / "none.jsonl")


def test_given_tokens_are_kept_and_forbidden_ones_absent(tmp_path) -> None:
    out = tmp_path / "x.npy"
    asked = ["sample", "chain64", "--solver", "tweedie", "--nfe", 16, "--num", 20, "--out", out]
    said = ran(*asked, "--template", "3 _ _ 5", "--forbid", "1 2", "--temperature", 0.8, "--block", 16)
    x = np.load(out)
    assert set(x[:, 0]) == {3}
    assert set(x[:, 3]) == {5}
    assert not {1, 2} & set(x[:, [1, 2, *range(4, 64)]].flatten())
    assert "Blocks(solver=Tweedie(), length=16)" in said


def test_a_file_of_prompts(tmp_path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "x.jsonl"
    prompts.write_text('{"template": "3 _ 4"}\n{"prompt": "7"}\n')
    ran("sample", "chain64", "--solver", "tweedie", "--nfe", 4, "--prompts", prompts, "--num", 2, "--out", out)
    rows = [json.loads(line)["tokens"] for line in out.read_text().splitlines()]
    assert [row[0] for row in rows] == [3, 3, 7, 7]
    assert [row[2] for row in rows[:2]] == [4, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--template", "3", "--prompt", "4"], "--template 3 and --prompt 4"),
        (["--template", "16"], "16 is no token"),
        (["--template", "_ " * 65], "65 tokens, 1 more"),
        (["--forbid", " ".join(map(str, range(16)))], "no value is left"),
        (["--allow", "a"], "this model has no text"),
        (["--temperature", "-1"], "--temperature -1:"),
        (["--top-p", "0"], "--top-p 0:"),
        (["--block", "0"], "--block 0:"),
        (["--block", "1"], "64 blocks need|give at least 64"),
    ],
)
def test_wrong_options(options, message) -> None:
    said = failed("sample", "chain64", "--solver", "tweedie", "--nfe", 8, *options)
    assert re.search(message, said), said
