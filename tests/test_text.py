"""Text in Python: templates, prompts and forbidden characters in; text and files out; a model trained in one call."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import thetaleap as tl
from thetaleap.core.free import read_template
from thetaleap.files import read_samples
from thetaleap.models.tokenizers import Letters

ALPHABET = "ab_c "
TEXT = tl.from_network(
    tl.Masked(5),
    length=6,
    network=lambda x, t: torch.arange(5.0).expand(*x.shape, 5),
    time_free=True,
    tokenizer=Letters(ALPHABET),
)


def draw(**more) -> tl.Samples:
    return tl.sample(TEXT, tl.Tweedie(), nfe=6, seed=1, **more)


def test_templates_in_every_form_are_the_same() -> None:
    rows = [[0, 1, -1, -1, 3, -1], [-1, 2, -1, -1, -1, -1]]
    row = draw(template=torch.tensor(rows[0]), num=2)
    for form in (rows[0], tuple(rows[0]), np.array(rows[0], dtype=np.int32), torch.tensor(rows[0]).int(), "ab__c"):
        assert torch.equal(draw(template=form, num=2).x, row.x)
    assert [text[:2] + text[4] for text in row.text] == ["abc", "abc"]
    both = draw(template=torch.tensor(rows))
    for form in (rows, np.array(rows)):
        assert torch.equal(draw(template=form).x, both.x)
    several = draw(template=["ab__c", "_b"])
    assert several.x.shape == (2, 6)
    assert torch.equal(several.x[0], both.x[0]), "sample 0 of the seed with the same template"
    law = tl.exact.law("cube3", tl.Tweedie(), [1.0, 0.0], "0 _ 2")
    torch.testing.assert_close(law, tl.exact.law("cube3", tl.Tweedie(), [1.0, 0.0], [0, -1, 2]), rtol=0, atol=0)


def test_prompts_have_no_gaps() -> None:
    assert [text[:3] for text in draw(prompt="a_b", num=2).text] == ["a_b", "a_b"]
    assert [text[:2] for text in draw(prompt=["ab", "c_"]).text] == ["ab", "c_"]
    with pytest.raises(ValueError, match="gap='__': give one character"):
        read_template(TEXT, "a__", gap="__")


def test_forbidden_and_allowed_characters() -> None:
    for forbid in ("ab", ["a", "b"], [0, 1], np.array([0, 1])):
        out = tl.sample(tl.constrained(TEXT, forbid=forbid), tl.Tweedie(), nfe=3, num=20)
        assert not set("".join(out.text)) & set("ab")
    assert set("".join(tl.sample(tl.constrained(TEXT, allow="a "), nfe=3, num=20).text)) == set("a ")
    assert int(tl.sample(tl.constrained("cube3", forbid="0 2"), nfe=3, num=9).x.unique()) == 1


def test_samples_save_themselves(tmp_path: Path) -> None:
    out = draw(num=3, prompt="ab")
    for name in ("a.parquet", "a.jsonl", "a.npy"):
        out.save(tmp_path / name)
        assert torch.equal(read_samples(tmp_path / name)[0], out.x)
    card = json.loads(pq.read_schema(tmp_path / "a.parquet").metadata[b"thetaleap"])
    assert card == out.card
    told = {"solver": "Tweedie(planner=Bernoulli())", "nfe": 6, "seed": 1, "version": tl.__version__}
    assert card == {"model": "Network, 6 positions of 5 values, Masked", **told}
    with pytest.raises(ValueError, match=r"path='.*a\.npy': exists already; give another name, or force=True"):
        out.save(str(tmp_path / "a.npy"))
    draw(num=1).save(tmp_path / "a.npy", force=True)
    assert len(read_samples(tmp_path / "a.npy")[0]) == 1


def test_what_made_the_samples_is_said(tmp_path: Path) -> None:
    assert tl.sample("cube3", nfe=3).card["model"] == "cube3"
    digits = tl.sample(tl.tempered(tl.load("mnist"), 0.5), nfe=1, num=2)
    assert digits.card["model"] == "Tempered of mnist"
    digits.save(tmp_path / "digits.png")
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="model shape=None: there are no pictures of it"):
        draw().save(tmp_path / "text.png")
    again = pickle.loads(pickle.dumps(draw()))
    assert again.text == draw().text, "samples travel without their network"


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_numbers() -> None:
    half: Any = np.float32(0.5)
    plain = tl.sample("cube3", tl.Trapezoidal(0.5), nfe=9, num=4, seed=7, first=2, delta=0.5)
    own = {"nfe": np.int64(9), "num": np.int32(4), "seed": np.uint8(7), "first": np.int64(2), "delta": half}
    assert torch.equal(tl.sample("cube3", tl.Trapezoidal(half), **own).x, plain.x)


def test_training_in_one_call(tmp_path: Path) -> None:
    small = {"length": 8, "hidden": 16, "heads": 2, "blocks": 1, "batch": 4, "warmup": 1, "progress": False}
    text = "to be or not to be\n" * 30
    model = tl.train(text, tmp_path / "run", steps=3, **small)
    assert model.name == f"trained:{tmp_path / 'run'}"
    (tmp_path / "plays.txt").write_text(text)
    again = tl.train(tmp_path / "plays.txt", str(tmp_path / "again"), steps=3, **small)
    drawn = [tl.sample(one, tl.Tweedie(), nfe=4, num=3, prompt="to").text for one in (model, again)]
    assert drawn[0] == drawn[1]
    assert drawn[0] == tl.sample(tl.load(f"trained:{tmp_path / 'run'}"), tl.Tweedie(), nfe=4, num=3, prompt="to").text
    cards = [json.loads((tmp_path / name / "card.json").read_text()) for name in ("run", "again")]
    assert cards[0]["data sha256"] == cards[1]["data sha256"]
    assert [card["data"] for card in cards] == ["text", "plays.txt"]
