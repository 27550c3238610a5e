"""Markov chains fitted to texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import thetaleap as tl
from tests.models.test_more_oracles import hidden, log_pair_messages
from tests.models.test_oracles import conditionals
from thetaleap.models.oracles import Oracle


def counted(text: str, gram: str) -> int:
    """How often `gram` occurs, overlaps included."""
    return sum(text.startswith(gram, n) for n in range(len(text)))


TEXT = "abracadabra, ä cadabra\n" * 3


@pytest.mark.parametrize("order", [1, 2, 3])
def test_text_is_counted(order: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    model = tl.oracles.markov_text(tmp_path / "a.txt", order, length=9, smoothing=0.01)
    chain, size = model.model, len(set(TEXT))
    assert model.alphabet == "".join(sorted(set(TEXT)))
    for gram in ("abra", "cada", ", ä ", "a\nab", "bbbb", "äbra"):
        past, code = gram[:order], tuple(model.encode(gram[: order + 1]).tolist())
        seen = sum(counted(TEXT, past + c) for c in model.alphabet)
        expected = (counted(TEXT, gram[: order + 1]) + 0.01) / (seen + 0.01 * size)
        assert float(chain.transition[code]) == pytest.approx(expected, rel=1e-12)


def test_text_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    model = tl.oracles.markov_text(str(tmp_path / "a.txt"), length=20)
    assert isinstance(model, Oracle)
    assert model.shape == (20,)
    assert model.decode(torch.stack([model.encode("abra"), model.encode("cada")])) == ["abra", "cada"]
    drawn = model.draw(50, seed=1)
    assert all(set(text) <= set(TEXT) for text in model.decode(drawn))
    # common transitions are all but sure to be the text's own: an unseen one has a chance of some 1e-3
    pairs = {TEXT[n : n + 2] for n in range(len(TEXT))}
    assert sum(text[n : n + 2] in pairs for text in model.decode(drawn) for n in range(19)) > 0.97 * 50 * 19
    assert bool(torch.isfinite(model.log_prob(drawn)).all())
    x = hidden(drawn, len(model.alphabet), 0, 0.5)
    torch.testing.assert_close(conditionals(model, x, 0.5), conditionals(model.model, x, 0.5))
    assert tl.sample(model, tl.TauLeaping(), nfe=4, num=2).x.shape == (2, 20)


@pytest.mark.data
def test_shakespeare() -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "shakespeare" / "input.txt"
    text = path.read_text(encoding="utf-8")
    model = tl.oracles.markov_text(path, order=2, length=40)
    chain = model.model
    assert len(model.alphabet) == 65
    for gram in ("the", "and", "ing", "qu", "th", ":\n", " t", "u,", "QUE"):
        code = tuple(model.encode(gram).tolist())
        frequency = text.count(gram) / (len(text) - 1)
        pairs = float(chain.initial[code[:2]])
        # the chain is stationary, the text nearly so
        modelled = pairs if len(gram) == 2 else pairs * float(chain.transition[code])
        assert modelled == pytest.approx(frequency, rel=0.02)
        if len(gram) == 3:
            expected = (text.count(gram) + 1e-3) / (text.count(gram[:2]) + 65e-3)
            assert float(chain.transition[code]) == pytest.approx(expected, rel=1e-9)
    drawn = model.draw(20, seed=1)
    assert set("".join(model.decode(drawn))) <= set(model.alphabet)
    x = hidden(drawn[:2], 65, 0, 0.4)
    expected = log_pair_messages(chain.transition.numpy(), chain.initial.numpy(), x[0].tolist())
    gone = (x[0] == 65).numpy()
    np.testing.assert_allclose(conditionals(model, x, 0.5)[0].numpy()[gone], expected[gone], atol=1e-9)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, {}, r"path='.*a\.txt': cannot be read \(No such file"),
        (b"", {}, "holds 0 characters; order 2 takes 3"),
        (b"ab", {}, "holds 2 characters; order 2 takes 3"),
        (b"aaaa", {}, "holds nothing but 'a'"),
        (b"good \xff bad", {}, "byte 5 is not UTF-8; save"),
        (TEXT.encode(), {"order": 0}, "order=0"),
        (TEXT.encode(), {"order": 9}, r"order=9: \d+ transitions, at most 16777216; lower it"),
        (TEXT.encode(), {"length": 1}, "length=1: .* at least 2"),
        (TEXT.encode(), {"smoothing": 0.0}, "smoothing=0.0: give a positive number"),
    ],
)
def test_bad_texts(content: bytes | None, options: dict, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        tl.oracles.markov_text(tmp_path / "a.txt", **options)


def test_bad_characters_and_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    model = tl.oracles.markov_text(tmp_path / "a.txt", length=5)
    with pytest.raises(ValueError, match=r"letter='Q': not in the alphabet; use"):
        model.encode("abQ")
    with pytest.raises(ValueError, match="token 9: clean tokens are 0 to 8"):
        model.decode(torch.tensor([[0, 9]]))
    with pytest.raises(ValueError, match="cannot be read"):
        tl.oracles.markov_text(tmp_path)
