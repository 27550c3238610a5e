"""Samples as files: what is written, what is refused, and that nothing half-written is ever left."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from thetaleap import Samples, files
from thetaleap.files import read_samples

CARD = {"model": "chain64", "solver": "Euler()", "seed": 3}


def samples(num: int = 3, length: int = 4, largest: int = 50257) -> Samples:
    x = torch.arange(num * length).view(num, length)
    x[-1, -1] = largest
    once = torch.arange(num) + 10
    return Samples(x, once, once, once, {})


def test_parquet(tmp_path: Path) -> None:
    path, given = tmp_path / "a.parquet", samples()
    files.write(path, given, CARD)
    table = pq.read_table(path)
    assert table.schema.field("tokens").type == pa.list_(pa.int32(), 4)
    assert table.schema.field("nfe").type == pa.int32()
    assert table["tokens"].to_pylist() == given.x.tolist()
    assert table["nfe"].to_pylist() == given.nfe.tolist()
    assert json.loads(table.schema.metadata[b"thetaleap"]) == CARD


def test_parquet_refuses_a_token_it_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        files.write(tmp_path / "a.parquet", samples(largest=2**31), CARD)
    assert list(tmp_path.iterdir()) == []


def test_jsonl(tmp_path: Path) -> None:
    path, given = tmp_path / "a.jsonl", samples()
    files.write(path, given, CARD)
    lines = path.read_text().splitlines()
    assert lines[1] == '{"tokens": [4, 5, 6, 7], "nfe": 11}'
    rows = [json.loads(line) for line in lines]
    assert [row["tokens"] for row in rows] == given.x.tolist()
    assert [row["nfe"] for row in rows] == given.nfe.tolist()


def test_npy(tmp_path: Path) -> None:
    path, given = tmp_path / "a.npy", samples()
    files.write(path, given, CARD)
    array = np.load(path)
    assert array.dtype == np.int64
    np.testing.assert_array_equal(array, given.x.numpy())


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.npy", "A.NPY", "two.dots.npy"])
def test_only_the_file_is_left(tmp_path: Path, name: str) -> None:
    files.check_target(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    files.write(tmp_path / name, samples(), CARD)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_new_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    files.write(tmp_path / "a.npy", samples(), CARD)
    assert (tmp_path / "a.npy").stat().st_mode == (tmp_path / "usual").stat().st_mode


def make_folder(path: Path) -> None:
    path.mkdir()


def nothing(path: Path) -> None:
    pass


def make_file_as_parent(path: Path) -> None:
    path.parent.touch()


@pytest.mark.parametrize(
    ("name", "prepare", "message"),
    [
        (
            "a.parqet",
            nothing,
            r"^ending of out='\.parqet': did you mean '\.parquet'\? choose one of \.parquet, \.jsonl",
        ),
        ("a.jsn", nothing, r"did you mean '\.jsonl'\?"),
        ("a", nothing, r"^ending of out='': choose one of \.parquet, \.jsonl, \.npy, \.txt, \.png$"),
        ("b/a.npy", nothing, r"the folder '.*b' does not exist; make it first$"),
        ("b/a.npy", make_file_as_parent, r"'.*b' is not a folder; write into one$"),
        ("a.npy", make_folder, r"^out='.*a\.npy': is a folder; give the name of a file$"),
        ("a.npy", Path.touch, r"^out='.*a\.npy': exists already; give another name, or --force to replace it$"),
        ("x" * 300 + ".npy", nothing, r"cannot be written \(File name too long\); choose another place$"),
    ],
)
def test_refused(tmp_path: Path, name: str, prepare: Callable[[Path], None], message: str) -> None:
    prepare(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        files.check_target(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the superuser may write anywhere, so the refusal is played
    def refuse(self: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(ValueError, match=r"cannot be written \(Permission denied\); choose another place$"):
        files.check_target(tmp_path / "a.npy")


def test_force_allows_a_file_but_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.npy").touch()
    files.check_target(tmp_path / "a.npy", force=True)
    (tmp_path / "b.npy").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        files.check_target(tmp_path / "b.npy", force=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("old", [None, b"old"])
def test_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], old: bytes | None
) -> None:
    """An interruption half-way leaves an older file as it was, and nothing else."""

    def half(file: Any, samples: Samples, card: files.Card) -> None:
        file.write(b"half")
        raise error

    path = tmp_path / "a.npy"
    if old is not None:
        path.write_bytes(old)
    monkeypatch.setitem(files.WRITERS, ".npy", half)
    with pytest.raises(error):
        files.write(path, samples(), CARD)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == ({} if old is None else {"a.npy": old})


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "a.npy", tmp_path / "there" / "b.npy"
    os.symlink(target, link)
    files.check_target(link)
    files.write(link, samples(), CARD)
    assert link.is_symlink()
    np.testing.assert_array_equal(np.load(target), samples().x.numpy())


# --- reading


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "npy"])
def test_what_was_written_is_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    files.write(path, samples(), CARD)
    read, card = read_samples(path)
    assert torch.equal(read, samples().x)
    assert card == CARD


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"1,2", r"ending of file='.csv': choose one of .parquet, .jsonl, .npy, .txt"),
        ("x.txt", b"to be\nor not", "x.txt': holds text and no tokens; give a .parquet, .jsonl or .npy file"),
        ("x.jsonl", b'{"tokens": [1, 2]}\n{"tokens": [1]}', r"x.jsonl': cannot be read \(.*; give a file written by"),
        ("x.jsonl", b'{"nfe": 1}', r"cannot be read \('tokens'\)"),
        ("x.jsonl", b"", r"holds float64 of shape \(0,\); give one row of whole numbers for each sample"),
        ("x.jsonl", b'{"tokens": [0.5]}', r"holds float64 of shape \(1, 1\)"),
        ("x.jsonl", b'{"tokens": [-1, 3]}', "holds tokens from -1 to 3; give tokens from 0 on"),
        ("x.parquet", b"nonsense", r"x.parquet': cannot be read"),
        ("x.npy", b"nonsense", r"x.npy': cannot be read"),
    ],
)
def test_files_that_are_not_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_samples(tmp_path / name)


def test_missing_files_and_objects(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"reference='.*x.npy': there is no such file; write one with thetaleap sample"
    ):
        read_samples(tmp_path / "x.npy", "reference")
    np.save(tmp_path / "evil.npy", np.array([[print]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"evil.npy': cannot be read \(Object arrays cannot be loaded"):
        read_samples(tmp_path / "evil.npy")


# --- text

TEXTS = ["to be,\nor not\r\n", "", "a \\n that stays \\ as it is", "caf\u00e9 \u2028 \x0b"]


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "txt"])
def test_text_comes_back_as_it_was(tmp_path: Path, ending: str) -> None:
    """Line breaks, backslashes and characters at which Python breaks lines included."""
    path = tmp_path / f"x.{ending}"
    files.write(path, samples(num=4), CARD, TEXTS, ["to"] * 4)
    columns, card = files.read_columns(path)
    assert columns["text"] == TEXTS
    assert columns.get("prompt", ["to"] * 4) == ["to"] * 4
    assert card == CARD
    if ending == "txt":
        lines = path.read_bytes().split(b"\n")
        assert len(lines) == 6, "the card, one line for each sample, and the last line break"
        assert lines[1] == rb"to be,\nor not\r\n"


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "npy", "txt"])
def test_samples_are_added_to_those_of_a_file(tmp_path: Path, ending: str) -> None:
    """The result is the file that all of them would have made at once."""
    whole, first, last = samples(num=4), samples(num=4), samples(num=4)
    first = Samples(first.x[:3], first.nfe[:3], first.spent[:3], first.rounds[:3], {})
    last = Samples(last.x[3:], last.nfe[3:], last.spent[3:], last.rounds[3:], {})
    paths = [tmp_path / f"{name}.{ending}" for name in ("whole", "parts")]
    files.write(paths[0], whole, CARD, TEXTS)
    files.write(paths[1], first, CARD, TEXTS[:3])
    files.write(paths[1], last, CARD, TEXTS[3:], before=files.read_columns(paths[1])[0])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_text_of_other_programs(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"to be \\n\r\n\nor not")
    assert files.read_columns(tmp_path / "x.txt") == ({"text": ["to be \\n", "or not"]}, {})
    (tmp_path / "x.jsonl").write_text('{"text": "to be", "more": 1}\n{"text": "or not"}')
    assert files.read_columns(tmp_path / "x.jsonl") == ({"text": ["to be", "or not"]}, {})


def test_arrays_of_other_programs(tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        np.save(file, np.zeros((2, 3), dtype=np.uint8))
        np.save(file, np.ones(2))
    with (tmp_path / "y.npy").open("wb") as file:
        np.save(file, np.zeros((2, 3), dtype=np.uint8))
        file.write(b"and more")
    for name in ("x.npy", "y.npy"):
        x, card = read_samples(tmp_path / name)
        assert (x.tolist(), card) == ([[0] * 3] * 2, {})
