"""Samples into a folder, from the command line."""

from __future__ import annotations

import json
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.test_cli import call, failed, ran
from tests.cli.test_interrupted import interrupted
from thetaleap import files
from thetaleap.evaluation import samples
from thetaleap.evaluation.metrics import counts, sequences
from thetaleap.evaluation.samples import ABOUT
from thetaleap.files import reading
from thetaleap.jobs import Draw

CUBE = ("sample", "cube3", "--solver", "tweedie", "--nfe", 3, "--seed", 2)
PROMPTS = '{"template": "2 _ 1"}\n{"prompt": "0"}\n{"prompt": "1 2"}\n'


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text(PROMPTS)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("cube3", "--solver", "tweedie", "--nfe", 3, "--num", 11),
        ("cube3", "--num", 11, "--first", 4),
        ("cube3", "--exact", "--num", 11, "--temperature", 0.5, "--forbid", "2"),
        ("cube3", "--solver", "tweedie", "--nfe", 2, "--prompts", "p.jsonl", "--num", 3, "--first", 2),
        ("cube3", "--solver", "tweedie", "--nfe", 2, "--template", "1 _ 2", "--num", 5),
        ("shakespeare-char", "--solver", "tweedie", "--nfe", 2, "--num", 5, "--prompt", "Romeo"),
        ("mnist", "--solver", "tweedie", "--nfe", 4, "--num", 5, "--labels", "3,1", "--guidance", 1),
    ],
)
def test_a_folder_holds_what_a_file_would(words: tuple[Any, ...], here: Path) -> None:
    ran("sample", *words, "--out", "one.parquet")
    said = ran("sample", *words, "--out", "many/", "--part-size", 2)
    (alone, card), (parts, job) = files.read_columns(Path("one.parquet")), files.read_columns(Path("many"))
    assert (alone["tokens"] == parts.pop("tokens")).all()
    assert {name: alone[name] for name in parts} == parts
    assert {name: job.get(name) for name in card if card[name] is not None and name != "first"} == {
        name: value for name, value in card.items() if value is not None and name != "first"
    }
    assert f"samples  {len(alone['nfe'])} in parts of 2\n" in said
    before = content(Path("many"))
    assert ", 0 of them drawn now\n" in ran("sample", *words, "--out", "many/", "--part-size", 2)
    assert content(Path("many")) == before


def test_shards_say_what_is_left(here: Path) -> None:
    job = (*CUBE, "--num", 10, "--part-size", 3, "--out", "x")
    said = ran(*job, "--shard", "2/3")
    assert "parts    1 of 4, 1 of them drawn now; the others are for other shards\n" in said
    assert "parts    3 of 4, 2 of them drawn now; the others are for other shards\n" in ran(*job, "--shard", "1/3")
    assert "parts    4 of 4, 1 of them drawn now\n" in ran(*job)
    ran(*CUBE, "--num", 10, "--part-size", 3, "--out", "y")
    assert content(Path("x")) == content(Path("y"))


def test_ctrl_c_says_the_same_command(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, drawn = Draw.part, []

    def pressing(self: Draw, model: Any, part: int) -> bytes:
        drawn.append(part)
        if len(drawn) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(self, model, part)

    ran(*CUBE, "--num", 10, "--part-size", 2, "--out", "whole")
    monkeypatch.setattr(Draw, "part", pressing)
    said, go_on = interrupted(*CUBE, "--num", 10, "--part-size", 2, "--out", "a b")
    assert said == "2 of 5 parts are in a b"
    assert go_on == [*map(str, CUBE), "--num", "10", "--part-size", "2", "--out", "a b"]
    ran(*go_on)
    assert len(drawn) == 2 + 1 + 3
    assert content(Path("a b")) == content(Path("whole"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seed", 3), "--seed 3: the samples in 'x' were made with 2; use that, or another folder"),
        (("--nfe", 4), "--nfe 4: the samples in 'x' were made with 3; use that, or another folder"),
        (("--num", 5), "--num 5: the samples in 'x' were made with 4; use that, or another folder"),
        (("--part-size", 3), "--part-size 3: the samples in 'x' were made with 1; use that, or another folder"),
        (
            ("--temperature", 0.5),
            "--temperature 0.5: the samples in 'x' were made with None; use that, or another folder",
        ),
        (("--force",), "--force: is for a file; give another folder, or remove this one"),
        (("--shard", "5/4"), "--shard 5/4: give which one of how many, as in 3/16, from 1/16 to 16/16"),
        (("--part-size", 0), "--part-size 0: give a whole number of at least 1"),
        (("--workers", 2), "--workers 2: is for --engine ray; give that too"),
        (("--address", "auto"), "--address auto: is for --engine ray; give that too"),
        (("--engine", "dask"), "--engine dask: choose one of ray"),
        (("--engine", "ray", "--workers", 0), "--workers 0: give a whole number of at least 1"),
        (("--out", "x.parquet", "--shard", "1/2"), "--shard 1/2: draws into a folder; give one, as in --out samples/"),
        (("--out", "p.jsonl/x"), "--out p.jsonl/x: 'p.jsonl' is a file; give a folder"),
    ],
)
def test_what_is_wrong_is_named(words: tuple[Any, ...], said: str, here: Path) -> None:
    ran(*CUBE, "--num", 4, "--out", "x")
    before = content(Path("x"))
    assert failed(*CUBE, "--num", 4, "--out", "x", *words) == said
    assert content(Path("x")) == before


def test_experiments_that_draw_no_samples_take_no_engine(here: Path) -> None:
    said = failed("reproduce", "toy", "--engine", "ray", "--workers", 2)
    assert said == "--engine ray: toy takes no such option; leave it out"
    assert failed("reproduce", "text", "--workers", 2) == "--workers 2: is for --engine ray; give that too"


def test_evaluate_and_compare_read_folders(here: Path) -> None:
    for seed in (1, 2):
        common = ("sample", "cube3", "--solver", "first-hitting", "--num", 40, "--seed", seed)
        ran(*common, "--out", f"s{seed}.parquet")
        ran(*common, "--out", f"s{seed}", "--part-size", 7)
    alone = json.loads(ran("evaluate", "s1.parquet", "--reference", "s2.parquet", "--json"))
    assert json.loads(ran("evaluate", "s1", "--reference", "s2", "--json")) == alone
    words = ("compare", "cube3", "--solvers", "tweedie,euler", "--nfe", "2", "--num", 40)
    ran(*words, "--reference", "s1.parquet", "--out", "a")
    ran(*words, "--reference", "s1", "--out", "b")
    figures = [json.loads(Path(name, "comparison.json").read_text()) for name in "ab"]
    rows = [[{k: v for k, v in row.items() if "seconds" not in k} for row in one["rows"]] for one in figures]
    assert rows[0] == rows[1]
    Path("s1", "part-000002.parquet").unlink()
    result = call("evaluate", "s1", "--json")
    assert (result.exit_code, result.stderr) == (0, "s1 has 5 of 6 parts; figures are of these\n")
    assert json.loads(result.stdout)["samples"] == 33


def little_memory(patch: pytest.MonkeyPatch) -> None:
    """For no table, for 5 samples of 256 tokens, 4 in pairs, and for n-grams of 3."""
    for module in (counts, sequences):
        patch.setattr(module, "DENSE", 0)
    patch.setattr(sequences, "FEW", 4)
    patch.setattr(sequences, "SPARSE", 5 * 256)
    patch.setattr(samples, "GRAMS", 3 * 256)
    patch.setattr(samples, "TEXTS", 2)


def test_a_folder_has_the_figures_of_its_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model and by a judge of text; also where some are of the first samples, which is said."""
    for seed in (1, 2):
        common = ("sample", "shakespeare-char", "--solver", "tweedie", "--nfe", 1, "--num", 7, "--seed", seed)
        ran(*common, "--out", f"s{seed}.parquet")
        ran(*common, "--out", f"s{seed}", "--part-size", 3)
    names = ("pairwise_distance", "position_entropy", "position_distance", "neighbour_distance", "pair_distance")
    counted = [f"{name}_{n}" for name, most in (("distinct", 4), ("kl", 3), ("js", 3)) for n in range(1, 1 + most)]
    wanted = {
        ("--per-sample", 2): dict(zip(names, (5, 5, 5, 5, 4), strict=True)),
        ("--judge", "plays"): {"reference": 6, **dict.fromkeys(counted, 3)},
    }
    for words, first in wanted.items():
        whole = json.loads(ran("evaluate", "s1.parquet", *words, "--reference", "s2.parquet", "--json"))
        assert json.loads(ran("evaluate", "s1", *words, "--reference", "s2", "--json")) == whole
        assert "first" not in whole
        with monkeypatch.context() as patch:
            little_memory(patch)
            some = json.loads(ran("evaluate", "s1.parquet", *words, "--reference", "s2.parquet", "--json"))
            assert json.loads(ran("evaluate", "s1", *words, "--reference", "s2", "--json")) == some
            text = ran("evaluate", "s1", *words, "--reference", "s2")
        assert some["first"] == first
        for name, figure in some["figures"].items():
            assert (figure == whole["figures"][name]) == (name not in first), name
            said = f"; of the first {first[name]} samples\n" if name in first else "\n"
            assert f"{ABOUT[name]}{said}" in text
        assert ("The reference is long: its first 6 pieces were taken." in text) == ("reference" in first)


def test_few_parts_are_in_memory_at_a_time(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30 parts, whatever is measured, tokens or text."""
    alive = most = 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def counted(held: Any) -> Any:
        nonlocal alive, most
        weakref.finalize(held, gone)
        alive += 1
        most = max(most, alive)
        return held

    class Texts(list[str]):
        """As a list has no weak references."""

    tokens_of, read_parquet = reading.tokens_of, reading._read_parquet

    def some_tokens(*arguments: Any) -> Any:
        return torch.from_numpy(counted(tokens_of(*arguments).numpy().copy()))

    def some_columns(*arguments: Any) -> Any:
        columns, card = read_parquet(*arguments)
        return columns | ({"text": counted(Texts(columns["text"]))} if "text" in columns else {}), card

    ran("sample", "cube3", "--num", 1200, "--part-size", 40, "--out", "tokens")
    ran("sample", "shakespeare-char", "--solver", "tweedie", "--nfe", 1, "--num", 30, "--part-size", 1, "--out", "text")
    monkeypatch.setattr(reading, "tokens_of", some_tokens)
    monkeypatch.setattr(reading, "_read_parquet", some_columns)
    monkeypatch.setattr(counts, "AT_ONCE", 60)
    monkeypatch.setattr(samples, "TEXTS", 2)
    for words in (("tokens", "--reference", "tokens"), ("text", "--judge", "plays", "--reference", "text")):
        most = 0
        ran("evaluate", *words)
        assert 1 < most <= 5, words
    most = 0
    ran("compare", "cube3", "--solvers", "tweedie", "--nfe", "2", "--num", 20, "--reference", "tokens", "--out", "out")
    assert 0 < most <= 5


def test_a_part_of_other_samples_is_named(here: Path) -> None:
    ran(*CUBE, "--num", 6, "--part-size", 2, "--out", "x")
    part = Path("x", "part-000001.parquet")
    columns, card = reading._read_parquet(part)
    with part.open("wb") as file:
        files._write_parquet(file, {**columns, "tokens": columns["tokens"][:, :2]}, card)
    said = "FILE x: cannot be read (the samples of part-000001.parquet have another length); give a file written by"
    assert failed("evaluate", "x").startswith(said)


def test_texts_of_a_folder_are_judged(here: Path) -> None:
    common = ("sample", "shakespeare-char", "--solver", "tweedie", "--nfe", 2, "--num", 5)
    ran(*common, "--out", "a.parquet")
    ran(*common, "--out", "a", "--part-size", 2)
    alone = json.loads(ran("evaluate", "a.parquet", "--judge", "plays", "--json"))
    assert json.loads(ran("evaluate", "a", "--judge", "plays", "--reference", "a", "--json"))["samples"] == 5
    assert json.loads(ran("evaluate", "a", "--judge", "plays", "--json")) == alone
