"""Answers to prompts, in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import thetaleap as tl
from tests import tiny_llm
from tests.tiny_llm import EOS, EOT, MASK
from thetaleap.conditioning.answering import Answer, Manner, answers
from thetaleap.conditioning.prompts import prepare
from thetaleap.models.hf.llm import llada, resized, vocabulary_of

pytest.importorskip("transformers", reason="needs the extra 'hub'")

TEXTS = ["the cat", "a dog ran under the mat and then it sat", "it was hot .", ""]
NEW = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llm.causal(folder)
    return llada(folder, length=1)


@pytest.fixture(scope="module")
def prompts(model: Any) -> list[list[int]]:
    return [vocabulary_of(model).encode(text) for text in TEXTS]


def test_batches_do_not_matter(model: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thetaleap.conditioning.answering.BUCKET", 5)
    manner = Manner(tl.Trapezoidal(), nfe=9, temperature=0.7)
    found = [answers(model, manner, prompts * 2, NEW, seed=3, batch_size=size) for size in (1, 3, 8)]
    assert found[0] == found[1] == found[2]
    assert len({tuple(answer.tokens) for answer in found[0]}) > 4
    assert answers(model, manner, prompts * 2, NEW, seed=4, batch_size=8) != found[0]
    for answer in found[0]:
        assert len(answer.tokens) <= NEW
        assert not {EOT, EOS, MASK} & set(answer.tokens)
        assert answer.nfe <= 9


def test_they_are_the_samples_of_these_prompts(model: Any, prompts: list[list[int]]) -> None:
    """In one group, an answer is what `sample` gives for a padded template."""
    length = 32 + NEW
    network, template = prepare(resized(model, length), prompts[:3], NEW)
    out = tl.sample(tl.tempered(network, 0.5, top_k=4), tl.Tweedie(), nfe=3, template=template, seed=8)
    words = vocabulary_of(model)
    expected = [
        Answer(words.until_end(row[32:]), int(nfe)) for row, nfe in zip(out.x.tolist(), out.nfe.tolist(), strict=True)
    ]
    manner = Manner(tl.Tweedie(), nfe=3, temperature=0.5, top_k=4)
    assert answers(model, manner, prompts[:3], NEW, seed=8, batch_size=2) == expected


def test_groups_use_other_numbers(model: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are numbered on from group to group, the shorter ones first."""
    monkeypatch.setattr("thetaleap.conditioning.answering.BUCKET", 1)
    seen: list[tuple[int, int, int]] = []

    def spy(network: Any, *args: Any, first: int, template: torch.Tensor, **more: Any) -> Any:
        seen.append((first, len(template), template.shape[1]))
        return tl.sample(network, *args, first=first, template=template, **more)

    monkeypatch.setattr("thetaleap.conditioning.answering.sample", spy)
    answers(model, Manner(tl.Tweedie(), nfe=2), [prompts[1], prompts[0], prompts[2], prompts[0]], NEW)
    assert [(first, num) for first, num, _ in seen] == [(0, 2), (2, 1), (3, 1)]
    widths = [width for _, _, width in seen]
    assert widths == [len(prompts[n]) + NEW for n in (0, 2, 1)]


def test_the_budget_is_for_the_answer(model: Any, prompts: list[list[int]]) -> None:
    """Blocks of the prompt would take all of it."""
    blocks = tl.Blocks(tl.Trapezoidal(), 3)
    assert all(answer.nfe <= 6 for answer in answers(model, Manner(blocks, nfe=6), prompts, NEW))
    with pytest.raises(ValueError, match=r"nfe=5: .*give at least 6"):
        answers(model, Manner(blocks, nfe=5), prompts, NEW)


def test_a_tolerance(model: Any, prompts: list[list[int]]) -> None:
    found = answers(model, Manner(tl.Multistep(), tolerance=0.5), prompts, NEW)
    assert all(1 <= answer.nfe <= NEW for answer in found)


def test_nothing_is_cut_off(model: Any, prompts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="tokens of the longest prompt and answer=70: the model takes 64"):
        answers(model, Manner(tl.Tweedie(), nfe=2), prompts, 60)
    assert len(answers(model, Manner(tl.Tweedie(), nfe=2), prompts, 54)) == 4, "the bucket is not longer than the model"


def test_a_model_that_takes_no_padding(
    tmp_path: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (tmp_path / "model").mkdir()
    tiny_llm.shipped(tmp_path / "model", "nothing")
    deaf = llada(tmp_path / "model", length=1, trust_remote_code=True)
    assert not deaf.attends
    assert len(answers(deaf, Manner(tl.Tweedie(), nfe=2), prompts, NEW, batch_size=2)) == 4
