"""The autoregressive network: it sees no token ahead, it learns what there is to learn, and it goes on after a stop."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from thetaleap.core.noise import Stream
from thetaleap.training import autoregressive
from thetaleap.training.autoregressive import (
    Likeness,
    card_of,
    held_out,
    loss_of,
    make,
    reading,
    recipe_of,
    solved,
    start,
    train,
)
from thetaleap.training.data import Batch, read_corpus
from thetaleap.training.sums import LENGTH, Sums, encoded, problems
from thetaleap.training.sums import WORDS as VOCABULARY
from thetaleap.training.trainer import Recipe

SMALL = Recipe(length=8, hidden=16, blocks=1, heads=2, steps=150, batch=16, rate=0.01, warmup=5)
WORDS = "abababab\n" * 400


def test_no_position_sees_a_later_one() -> None:
    corpus = read_corpus(WORDS)
    model = start(SMALL, corpus).model.eval()
    torch.nn.init.normal_(model.output_layer.linear.weight)
    x = torch.randint(0, 3, (4, 8), generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[:, 5] = (other[:, 5] + 1) % 3
    with torch.no_grad():
        one, two = model(x), model(other)
    assert torch.equal(one[:, :5], two[:, :5])
    assert not torch.equal(one[:, 5:], two[:, 5:])


def test_the_loss_is_a_likelihood() -> None:
    """Of a network that says nothing: log S for each token that is asked for."""
    corpus = read_corpus(WORDS)
    model, x = start(SMALL, corpus).model, torch.zeros((2, 8), dtype=torch.int64)
    given = torch.arange(8).expand(2, 8) < 3
    nats, asked = loss_of(SMALL, model.sizes, model, Batch(x, None, given), Stream(0, 0, 2))
    assert nats.tolist() == pytest.approx([5 * math.log(3)] * 2)
    assert asked.tolist() == [5, 5]


def test_it_learns_and_goes_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text repeats itself every 9 characters, so that all but where it starts is known."""
    kept, unseen = read_corpus(WORDS).split()
    whole = train(kept, SMALL, tmp_path / "whole")
    nats, error = held_out(whole, unseen)
    assert math.log(9) / 8 / 4 < nats < 0.5, "a random guess has 1.1"
    assert error < 0.1
    monkeypatch.setattr(autoregressive, "EVERY", 0.0)
    usual, count = autoregressive.save, 0

    def stop(*given: object) -> object:
        nonlocal count
        count += 1
        made = usual(*given)  # pyright: ignore[reportArgumentType]
        if count == 40:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(autoregressive, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        train(kept, SMALL, tmp_path / "parts")
    again = train(kept, SMALL, tmp_path / "parts")
    for name, value in whole.averages.items():
        assert torch.equal(value, again.averages[name]), name


def test_the_card(tmp_path: Path) -> None:
    path, like = tmp_path / "words.txt", tmp_path / "like"
    path.write_text(WORDS)
    like.mkdir()
    sizes = {"tokens": 3}
    told = {"recipe": {"length": 8, "hidden": 16, "blocks": 1, "heads": 2, "steps": 900, "batch": 4}, "sizes": sizes}
    told |= {"shape": None, "tokenizer": {"name": "char"}, "held-out bound": {"bits per token": 1.0}}
    (like / "card.json").write_text(json.dumps(told))
    card = make(path, tmp_path / "out", Likeness(str(like), steps=3))
    assert card == json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["recipe"]["steps"] == 3
    assert card["held out"]["bits per character"] == pytest.approx(card["held out"]["bits per token"])
    assert card[f"held-out bound of {like}"] == {"bits per token": 1.0}
    with pytest.raises(ValueError, match="like='none': there is no card; give one of"):
        card_of("none")


@pytest.mark.parametrize("name", ["shakespeare", "mnist", "sums", "shakespeare-uniform"])
def test_recipes_of_the_models_inside(name: str) -> None:
    card = card_of(name)
    recipe = recipe_of(card, 0, "model")
    assert (recipe.steps, recipe.hidden) == (card["recipe"]["steps"], card["sizes"]["hidden"])
    assert recipe.process == "masked"
    if name != "sums":
        assert reading(card).keys() <= {"tokenizer", "levels", "side"}


def test_a_compiled_network_trains_as_a_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.compile` with the backend that compiles nothing, so that the bits are the same."""
    usual = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: usual(model, backend="eager"))
    corpus, few = read_corpus(WORDS), replace(SMALL, steps=3)
    plain, compiled = (
        train(corpus, few, tmp_path / "plain"),
        train(corpus, replace(few, compiled=True), tmp_path / "fast"),
    )
    assert plain.fast is None
    assert compiled.fast is not None
    for name, value in plain.averages.items():
        assert torch.equal(value, compiled.averages[name]), name


def test_bfloat16_is_for_training_alone(tmp_path: Path) -> None:
    """The loss is that of float32 but for rounding; what is held out is judged in float32."""
    card = card_of("shakespeare")
    assert recipe_of(card, 0, "model").precision == "float32"
    assert recipe_of(card, 0, "bfloat16").precision == "bfloat16"
    corpus, half = read_corpus(WORDS), replace(SMALL, steps=30, precision="bfloat16")
    run = train(corpus, half, tmp_path / "half")
    batch, noise = corpus.draw(16, 8, Stream(0, 0, 16)), Stream(0, 0, 16)
    with torch.no_grad():
        rounded, plain = (loss_of(one, run.model.sizes, run.model, batch, noise)[0] for one in (half, SMALL))
    assert 0 < float((rounded - plain).abs().max()) < 0.05 * float(plain.max())
    assert held_out(run, corpus) == held_out(replace(run, recipe=replace(half, precision="float32")), corpus)


@pytest.mark.parametrize("likeliest", [True, False])
def test_sums_are_solved_one_word_after_the_other(likeliest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that says a problem's next word, if all words before it are the problem's own, has all right; one that
    says nothing draws words at random, or the first of them."""
    known = torch.stack([encoded(one)[0] for one in problems(20, held_out=True)])
    asked: list[torch.Tensor] = []

    def knows(before: torch.Tensor, time: None, labels: None) -> torch.Tensor:
        asked.append(before)
        return 100.0 * F.one_hot(known, len(VOCABULARY)).float()

    def silent(before: torch.Tensor, time: None, labels: None) -> torch.Tensor:
        return torch.zeros((*before.shape, len(VOCABULARY)))

    run = start(replace(SMALL, length=LENGTH), Sums())
    monkeypatch.setattr(autoregressive, "averaged", lambda run: knows)
    assert solved(run, likeliest, 20).value == 1
    assert torch.equal(asked[-1], torch.cat([torch.full((20, 1), len(VOCABULARY)), known[:, :-1]], 1))
    monkeypatch.setattr(autoregressive, "averaged", lambda run: silent)
    assert solved(run, likeliest, 20).right <= 2
