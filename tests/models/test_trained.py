"""``thetaleap train``, and models that come from it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import thetaleap as tl
from tests.cli.test_cli import ran
from tests.training.test_training import images, write_idx
from thetaleap.training.data import Corpus, read_corpus
from thetaleap.training.export import export
from thetaleap.training.trainer import Recipe, averaged, held_out, process_of, train

TINY = ["--steps", 3, "--hidden", 16, "--blocks", 1, "--heads", 2, "--batch", 4]


def text_file(folder: Path) -> Path:
    file = folder / "text.txt"
    file.write_text("who is there? nay, answer me. " * 40)
    return file


def test_train_then_sample(tmp_path: Path) -> None:
    file, out = text_file(tmp_path), tmp_path / "model"
    result = ran_with_errors("train", file, "--out", out, "--length", 12, *TINY)
    assert "bits per token" in result
    assert "bits per character" in result
    card = json.loads((out / "card.json").read_text())
    assert card["recipe"]["length"] == 12
    assert card["step"] == 3
    assert card["data"] == "text.txt"
    assert card["command"].startswith("thetaleap train text.txt --out model --")
    assert " --length 12" in card["command"]
    assert len(card["data sha256"]) == 64
    bound = card["held-out bound"]
    assert bound["bits per character"] == bound["bits per token"]
    model = tl.load(f"trained:{out}")
    assert (model.length, model.process.states, model.time_free) == (12, len(set(file.read_text())), True)
    said = ran("sample", f"trained:{out}", "--solver", "tweedie", "--nfe", 4, "--num", 2, "--prompt", "who is")
    assert said.count("who is") == 2
    assert tl.load(f"trained:{out}", length=20).length == 20


def ran_with_errors(*args: object) -> str:
    """What a command prints that also tells of its progress."""
    from tests.cli.test_cli import call

    result = call(*args)
    assert result.exit_code == 0, result.output
    assert "step 3 of 3" in result.stderr
    return result.stdout


def test_weights_in_the_file_are_the_averaged_ones(tmp_path: Path) -> None:
    corpus = images()
    recipe = Recipe(steps=4, length=12, hidden=16, blocks=1, heads=2, batch=4)
    run = train(corpus, recipe, tmp_path)
    bound = export(run, corpus, tmp_path, "stripes")["held-out bound"]
    nats, error = held_out(run, corpus, process_of(recipe, 3))
    assert bound == {"bits per token": nats / math.log(2), "standard error": error / math.log(2)}
    model, module = tl.load(f"trained:{tmp_path}"), averaged(run)
    assert model.shape == (3, 4)
    assert model.classes == 2
    x, t = torch.randint(0, 4, (3, 12)), torch.tensor(0.5, dtype=torch.float64)
    positions = torch.arange(36)
    torch.testing.assert_close(model(x, t).logits(positions), module(x).flatten(0, 1))
    labels = torch.tensor([0, 1, 2])
    torch.testing.assert_close(model.labelled(labels)(x, t).logits(positions), module(x, None, labels).flatten(0, 1))
    out = tl.sample(tl.guided(model, 1.0, condition=1), tl.Tweedie(), nfe=8, num=3)
    assert out.nfe.max() <= 8


def test_a_uniform_model_is_told_the_time(tmp_path: Path) -> None:
    corpus = Corpus(torch.arange(600) % 5, 5, "test")
    run = train(corpus, Recipe(process="uniform", steps=2, length=6, hidden=16, blocks=1, heads=2, batch=4), tmp_path)
    assert "bits per character" not in export(run, corpus, tmp_path, "a line")["held-out bound"]
    model = tl.load(f"trained:{tmp_path}")
    assert isinstance(model.process, tl.Uniform)
    assert not model.time_free
    assert tl.sample(model, tl.Multistep(), nfe=4, num=2).x.shape == (2, 6)


def test_bits_per_character_of_byte_pairs_by_muon(tmp_path: Path) -> None:
    file, out = text_file(tmp_path), tmp_path / "model"
    said = ran_with_errors(
        "train", file, "--out", out, "--tokenizer", "bpe:280", "--length", 12, "--optimizer", "muon", *TINY
    )
    card = json.loads((out / "card.json").read_text())
    assert card["recipe"]["optimizer"] == "muon"
    assert "--optimizer muon" in card["command"]
    tokens = read_corpus(file, "bpe:280").split()[1].tokens.tolist()
    text = tl.load(f"trained:{out}").tokenizer.decode(tokens)
    bound = card["held-out bound"]
    assert bound["bits per character"] == pytest.approx(bound["bits per token"] * len(tokens) / len(text))
    assert f"{bound['bits per character']:.3f} bits per character" in said


def test_images_from_the_command_line(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", np.random.default_rng(0).integers(0, 256, (30, 28, 28)))
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.arange(30) % 10)
    out = tmp_path / "digits"
    ran_with_errors("train", tmp_path / "train-images-idx3-ubyte.gz", "--out", out, "--side", 7, "--levels", 4, *TINY)
    model = tl.load(f"trained:{out}")
    assert (model.length, model.process.states, model.shape, model.classes) == (49, 4, (7, 7), 10)
    with pytest.raises(ValueError, match="these are images of 49 positions"):
        tl.load(f"trained:{out}", length=50)
