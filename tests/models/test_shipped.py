"""The models that come with the package: small, described, and good for something. Seeds are fixed."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
import torch

import thetaleap as tl
from thetaleap.core.noise import philox
from thetaleap.evaluation.judges.causal import judge
from thetaleap.evaluation.metrics import TextQuality
from thetaleap.evaluation.metrics.digits import digit_labels
from thetaleap.evaluation.metrics.divergence import kl
from thetaleap.models import BUILT_IN, SHIPPED
from thetaleap.training.sums import WORDS, encoded, problems, result_of

NAMES = ("shakespeare", "shakespeare-char", "shakespeare-uniform", "mnist", "sums")
MOST = 24 * 2**20


def test_they_are_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) < MOST


@pytest.mark.parametrize("name", NAMES)
def test_cards_say_what_they_are(name: str) -> None:
    card = json.loads((SHIPPED / name / "card.json").read_text(encoding="utf-8"))
    assert card["command"].startswith("thetaleap train ")
    assert f"--out {name} " in card["command"]
    assert len(card["data sha256"]) == 64
    assert 0 < card["held-out bound"]["bits per token"] < 8
    assert card["step"] == card["recipe"]["steps"]
    model = tl.load(name)
    assert model.process.states == card["sizes"]["tokens"]
    assert (model.process.mask is None) == (name == "shakespeare-uniform")
    assert name in BUILT_IN


@pytest.mark.data
def test_cards_name_the_data() -> None:
    from hashlib import sha256

    from tests.conftest import DATA

    for name, file in {"shakespeare": "shakespeare/input.txt", "mnist": "mnist/train-images-idx3-ubyte.gz"}.items():
        card = json.loads((SHIPPED / name / "card.json").read_text(encoding="utf-8"))
        assert card["data sha256"] == sha256((Path(DATA) / file).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["shakespeare", "shakespeare-char", "shakespeare-uniform"])
def test_text_is_like_the_plays(name: str) -> None:
    """Under the judge of plays, far likelier than letters at random by their frequencies, and about as varied."""
    model = tl.load(name)
    out = tl.sample(model, tl.Tweedie(), nfe=64, num=4, progress=False)
    texts = [model.tokenizer.decode(row) for row in out.x.tolist()]
    critic = judge("plays")
    scores = critic.score(texts)
    letters = out.x.flatten()
    mixed = letters[torch.from_numpy(philox(0, (0, 0, 0, 9), len(letters))).argsort()].view_as(out.x)
    shuffled = critic.score([model.tokenizer.decode(row) for row in mixed.tolist()])
    quality, chance = (TextQuality.of(each.rows, each.nats) for each in (scores, shuffled))
    assert quality.perplexity.value < chance.perplexity.value / 2
    assert quality.entropy.value > 3.8  # of the plays 4.6


def test_digits_are_what_was_asked_for() -> None:
    labels = torch.arange(10).repeat(4)
    model = tl.guided(tl.load("mnist"), weight=2.0, condition=labels)
    out = tl.sample(model, nfe=64, num=40, progress=False)
    right = int((digit_labels(out.x) == labels).sum())
    assert right >= 36  # of 500 it was 486


def test_sums_come_out() -> None:
    """Problems with numbers that were not trained on; the commonest result would be right once or twice."""
    model, asked = tl.load("sums"), problems(32, 7, held_out=True)
    rows = [encoded(one) for one in asked]
    template = torch.stack([torch.where(torch.arange(len(row)) < at, row, tl.FREE) for row, at in rows])
    out = tl.sample(model, tl.SemiAutoregressive("confidence"), nfe=16, template=template, progress=False)
    texts = [model.tokenizer.decode(row) for row in out.x.tolist()]
    right = sum(result_of(text.split("\n")[1]) == one.result for text, one in zip(texts, asked, strict=True))
    assert right >= 12
    assert model.process.states == len(WORDS)


def test_a_uniform_model_and_a_masked_one_agree_on_letters() -> None:
    """Both were trained on the same plays: their letters are about as frequent, some 2000 of them."""
    counts = []
    for name in ("shakespeare", "shakespeare-uniform"):
        text = "".join(tl.sample(tl.load(name), tl.Tweedie(), nfe=16, num=8, progress=False).text)
        counts.append(torch.tensor([text.count(letter) + 0.5 for letter in string.printable], dtype=torch.float64))
    first, second = (each / each.sum() for each in counts)
    assert kl(first, second) < 0.2  # nats; letters have 3.3
