"""Jobs: the samples of one run in parts, whoever draws them, in whatever order, and whatever comes between."""

from __future__ import annotations

import errno
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import thetaleap as tl
from benchmarks.kills import Tally, look, plain
from thetaleap import files, jobs
from thetaleap.jobs import Draw, Here, Shard
from thetaleap.jobs.fingerprint import fingerprint
from thetaleap.jobs.folder import Folder
from thetaleap.models.guards import modules_in

NUM = 22
HOW: dict[str, Any] = {"nfe": 4, "seed": 5}


def drawn(**changes: Any) -> Draw:
    """A job of five parts."""
    return jobs.drawing(**{"model": "cube3", "solver": tl.Tweedie(), "num": NUM, "size": 5, **HOW, **changes})


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The folder of a job that nothing disturbed."""
    folder = tmp_path_factory.mktemp("jobs") / "whole"
    assert jobs.run(drawn(), folder) == jobs.Outcome(5, 5, 5)
    return content(folder)


# --- what is in a part


def digits(num: int) -> Any:
    return tl.guided(tl.load("mnist"), 1.0, torch.arange(num) % 10)


TEMPLATES = torch.tensor([[0, -1, -1], [-1, -1, 2], [1, 0, -1]]).repeat(8, 1)[:NUM]


@pytest.mark.parametrize(
    ("model", "num", "how"),
    [
        ("cube3", NUM, {"solver": tl.Tweedie(), "nfe": 3}),
        ("cube3", NUM, {"solver": tl.Tweedie(), "nfe": 3, "first": 40}),
        ("cube3", NUM, {"solver": tl.Tweedie(), "nfe": 3, "window": 2, "batch_size": 2}),
        ("cube3", NUM, {"exact": True}),
        ("cube3", NUM, {"nfe": 2}),
        ("cube3", NUM, {"solver": tl.Tweedie(tl.FixedCount()), "tolerance": 0.1}),
        ("cube3-uniform", NUM, {"solver": tl.Euler(), "steps": 3}),
        ("cube3", NUM, {"solver": tl.FirstHitting(), "template": TEMPLATES}),
        ("cube3", NUM, {"solver": tl.Tweedie(), "nfe": 2, "template": TEMPLATES}),
        ("shakespeare-char", 6, {"solver": tl.Tweedie(), "nfe": 2, "prompt": "Romeo"}),
        ("mnist", 6, {"solver": tl.Tweedie(), "nfe": 4}),
    ],
)
def test_parts_together_are_what_sample_draws(model: str, num: int, how: dict[str, Any], tmp_path: Path) -> None:
    made = digits(num) if model == "mnist" else model
    jobs.write(tmp_path, made, num=num, part_size=4, **how)
    columns, card = files.read_columns(tmp_path)
    alone = tl.sample(made, num=num, **how)
    assert torch.from_numpy(columns["tokens"].copy()).equal(alone.x.int())
    assert columns["nfe"] == alone.nfe.tolist()
    assert card["num"] == num
    if "prompt" in how:
        assert columns["text"] == alone.text
        assert columns["prompt"] == [how["prompt"]] * num


def test_a_part_is_a_file_of_samples_that_says_which(whole: dict[str, bytes], tmp_path: Path) -> None:
    assert sorted(whole) == ["_job.json", *(f"part-{n:06d}.parquet" for n in range(5))]
    (tmp_path / "x.parquet").write_bytes(whole["part-000004.parquet"])
    x, card = files.read_samples(tmp_path / "x.parquet")
    assert (len(x), card["first"], card["seed"], card["model"]) == (2, 20, 5, "cube3")
    job = json.loads(whole["_job.json"])
    assert {**card, "first": 0} == job
    assert job["solver"] == "Tweedie(planner=Bernoulli())"
    assert job["weights"] == fingerprint(tl.load("cube3"))


def test_the_size_of_parts_is_by_default_a_64th_and_at_most_1000() -> None:
    assert [jobs.part_size_of(num) for num in (1, 63, 64, 65, 1024, 64_000, 10**6)] == [1, 1, 1, 2, 16, 1000, 1000]
    with pytest.raises(ValueError, match="part_size=0: give a whole number of at least 1"):
        jobs.part_size_of(3, 0)


# --- whoever draws them


@pytest.mark.parametrize("order", [("1/3", "2/3", "3/3"), ("3/3", "1/3", "2/3"), ("2/9", None), (None, "1/2")])
def test_shards_and_repetitions_make_the_same_bytes(
    order: tuple[str | None, ...], whole: dict[str, bytes], tmp_path: Path
) -> None:
    for shard in order:
        jobs.run(drawn(), tmp_path, Shard.of(shard))
    assert content(tmp_path) == whole


@pytest.mark.parametrize("every", [1, 5, 16, 17])
@pytest.mark.parametrize("count", [1, 2, 3, 16, 40])
def test_shards_share_the_parts_out(every: int, count: int) -> None:
    shares = [Shard.of(f"{number}/{count}").parts(every) for number in range(1, count + 1)]
    assert sorted(part for share in shares for part in share) == list(range(every))


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3", "1/3/5", ""])
def test_other_shards_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="as in 3/16"):
        Shard.of(text)


def test_what_is_there_is_not_drawn_again(whole: dict[str, bytes], tmp_path: Path) -> None:
    jobs.run(drawn(), tmp_path)
    (tmp_path / "part-000002.parquet").unlink()
    asked: list[int] = []

    class Noted(Here):
        def parts(self, draw: Draw, missing: Any) -> Any:
            for part, held in super().parts(draw, missing):
                asked.append(part)
                yield part, held

    assert jobs.run(drawn(), tmp_path, engine=Noted()) == jobs.Outcome(1, 5, 5)
    assert asked == [2]
    assert content(tmp_path) == whole


def test_a_part_that_another_process_finishes_meanwhile_is_left_out(tmp_path: Path, whole: dict[str, bytes]) -> None:
    folder = Folder(tmp_path, drawn().card, 5)
    missing = folder.missing(Shard())
    one = next(missing)
    for name, held in whole.items():
        if name != f"part-{one:06d}.parquet":
            (tmp_path / name).write_bytes(held)
    assert list(missing) == []


def test_bytes_do_not_depend_on_the_clock(
    whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    jobs.run(drawn(), tmp_path)
    assert content(tmp_path) == whole


# --- other jobs


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 6}, "seed=6: the samples in .* were made with 5; use that, or another folder"),
        ({"nfe": 3}, "nfe=3: the samples in .* were made with 4"),
        ({"num": 23}, "num=23: the samples in .* were made with 22"),
        ({"first": 22}, "first=22: the samples in .* were made with 0"),
        ({"size": 6}, "part_size=6: the samples in .* were made with 5"),
        ({"solver": tl.Trapezoidal()}, r"solver=\"Trapezoidal.*\": the samples in .* were made with 'Tweedie"),
        ({"model": "toy15", "solver": tl.Euler()}, "model='toy15': the samples in .* were made with 'cube3'"),
        ({"batch_size": 3}, "batch_size=3: the samples in .* were made with None"),
        ({"template": [0, -1, -1]}, r"template=\[0, -1, -1\]: the samples in .* were made with None"),
    ],
)
def test_another_job_is_refused_by_what_differs(
    changes: dict[str, Any], said: str, whole: dict[str, bytes], tmp_path: Path
) -> None:
    jobs.run(drawn(), tmp_path)
    with pytest.raises(ValueError, match=said):
        jobs.run(drawn(**changes), tmp_path)
    assert content(tmp_path) == whole


def test_other_weights_and_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(p: float) -> Any:
        return tl.oracles.markov_chain(torch.tensor([[p, 1 - p], [0.5, 0.5]], dtype=torch.float64), 4)

    jobs.run(drawn(model=chain(0.25)), tmp_path)
    jobs.run(drawn(model=chain(0.25)), tmp_path)
    with pytest.raises(ValueError, match=r"weights='sha256:.*': the samples in .* were made with 'sha256:"):
        jobs.run(drawn(model=chain(0.26)), tmp_path)
    monkeypatch.setattr("thetaleap.jobs.draw.__version__", "99.0")
    with pytest.raises(ValueError, match=r"version='99.0': the samples in .* were made with "):
        jobs.run(drawn(model=chain(0.25)), tmp_path)


@pytest.mark.parametrize("links", [True, False])
def test_of_two_jobs_at_once_the_first_part_decides(
    links: bool, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", none)
    own, other = (Folder(tmp_path, drawn(seed=seed).card, 5) for seed in (5, 6))
    own.check()
    other.check()
    own.put(1, whole["part-000001.parquet"])
    with pytest.raises(ValueError, match="seed=6: the samples in"):
        other.put(1, b"other")
    with pytest.raises(ValueError, match="seed=6: the samples in"):
        other.put(2, b"other")
    assert content(tmp_path) == {name: whole[name] for name in ("_job.json", "part-000001.parquet")}


def test_of_two_jobs_that_take_the_folder_in_the_same_moment_one_does(
    whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other, link = Folder(tmp_path, drawn().card, 5), Folder(tmp_path, drawn(seed=6).card, 5), os.link

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        own.put(0, whole["part-000000.parquet"])  # between its look and its link
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(ValueError, match="seed=6: the samples in"):
        other.put(0, b"other")
    assert content(tmp_path) == {name: whole[name] for name in ("_job.json", "part-000000.parquet")}


def test_a_wrong_call_leaves_nothing_to_agree_with(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nfe=0"):
        jobs.run(drawn(nfe=0), tmp_path)
    assert content(tmp_path) == {}
    jobs.run(drawn(), tmp_path)


def test_a_folder_of_parts_of_unknown_origin_is_left_alone(whole: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "part-000003.parquet").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"holds part-000003.parquet and no _job.json; give another folder"):
        jobs.run(drawn(), tmp_path)
    (tmp_path / "_job.json").write_bytes(whole["_job.json"][:20])
    with pytest.raises(ValueError, match=r"its _job.json cannot be read \(.*; give another folder, or remove it"):
        jobs.run(drawn(), tmp_path)
    assert (tmp_path / "part-000003.parquet").read_bytes() == b"mine"


# --- nothing lost


def test_a_full_disk_is_named_and_loses_nothing(whole: dict[str, bytes], tmp_path: Path) -> None:
    """The system refuses to let files grow: what is written of a part is taken back, and the job goes on later."""
    jobs.run(drawn(), tmp_path, Shard.of("1/2"))
    kept, limits = content(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"cannot be written \(File too large\); 3 of 5 parts are kept; mend it"):
            jobs.run(drawn(), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert content(tmp_path) == kept
    jobs.run(drawn(), tmp_path)
    assert content(tmp_path) == whole


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("where", ["write_bytes", "replace"])
def test_whatever_the_disk_says_is_named(
    code: int, where: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.run(drawn(), tmp_path, Shard.of("1/2"))
    kept, real = content(tmp_path), Path.write_bytes

    def broken(path: Path, given: Any) -> Any:
        if "part-" not in path.name:
            return real(path, given)
        if where == "write_bytes":
            real(path, given[:10])
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(Path, where, broken)
        with pytest.raises(ValueError, match=rf"cannot be written \({os.strerror(code)}\); 3 of 5 parts are kept"):
            jobs.run(drawn(), tmp_path)
    assert content(tmp_path) == kept
    jobs.run(drawn(), tmp_path)
    assert content(tmp_path) == whole


@pytest.mark.parametrize("place", [lambda tmp: Path("/proc/samples"), lambda tmp: tmp / "file" / "samples"])
def test_a_folder_that_cannot_be_is_named_before_anything_is_drawn(
    place: Callable[[Path], Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")

    class Never(Here):
        def parts(self, draw: Draw, missing: Any) -> Any:
            raise AssertionError

    with pytest.raises(ValueError, match=r"out='.*samples': cannot be written \(.*\); choose another place"):
        jobs.run(drawn(), place(tmp_path), engine=Never())


def test_what_a_killed_process_left_is_no_part_and_goes_at_the_end(whole: dict[str, bytes], tmp_path: Path) -> None:
    jobs.run(drawn(), tmp_path, Shard.of("1/2"))
    half = tmp_path / ".part-000001.parquet.0badc0de.part"
    half.write_bytes(whole["part-000001.parquet"][:50])
    assert len(files.read_samples(tmp_path)[0]) == 12, "parts 0, 2 and 4"
    jobs.run(drawn(), tmp_path, Shard.of("2/4"))
    assert half.exists(), "while parts are missing, somebody may be writing it"
    jobs.run(drawn(), tmp_path)
    assert content(tmp_path) == whole


def test_nothing_is_lost_by_kill_9(tmp_path: Path) -> None:
    """A small one of the campaign in benchmarks, which has 200."""
    tally = plain(6, seed=1, base=tmp_path)
    assert (tally.runs, tally.faults) == (6, [])
    assert tally.kills["plain process"] >= 6


def test_the_campaign_sees_what_is_wrong(whole: dict[str, bytes], tmp_path: Path) -> None:
    jobs.run(drawn(), tmp_path)
    (tmp_path / "part-000001.parquet").write_bytes(whole["part-000000.parquet"])
    (tmp_path / "part-000002.parquet").unlink()
    (tmp_path / ".half.part").touch()
    tally = Tally()
    look(tmp_path, whole, tally, done=False)
    assert [fault.partition(": ")[2] for fault in tally.faults] == ["part-000001.parquet differs"]
    look(tmp_path, whole, tally, done=True)
    assert {fault.partition(": ")[2] for fault in tally.faults} > {
        "part-000002.parquet is missing",
        ".half.part is left over",
    }


# --- reading


def test_parts_of_another_job_are_not_read(whole: dict[str, bytes], tmp_path: Path) -> None:
    jobs.run(drawn(seed=6), tmp_path)
    (tmp_path / "part-000001.parquet").write_bytes(whole["part-000001.parquet"])
    with pytest.raises(ValueError, match=r"cannot be read \(part-000001.parquet is of another job\)"):
        files.read_samples(tmp_path)


def test_folders_without_samples_are_refused(whole: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder without _job.json; give one of samples"):
        files.read_samples(tmp_path)
    (tmp_path / "_job.json").write_bytes(whole["_job.json"])
    with pytest.raises(ValueError, match=r"cannot be read \(no part is finished yet\)"):
        files.read_samples(tmp_path)
    assert files.unfinished(tmp_path) == f"{tmp_path} has 0 of 5 parts; figures are of these"


# --- fingerprints


def test_a_fingerprint_is_of_all_numbers_and_of_nothing_else() -> None:
    model = tl.load("mnist")
    seen = fingerprint(model)
    assert fingerprint(tl.load("mnist")) == seen
    changed = tl.load("mnist")
    weight = next(modules_in(changed.evaluate)[0].parameters())
    with torch.no_grad():
        weight.view(torch.int32).flatten()[0] ^= 1  # the last bit of one weight
    others = [changed, tl.tempered(model, 0.5), tl.tempered(model, 0.6), tl.constrained(model, allow=[0, 1])]
    others += [digits(2), digits(3), tl.guided(model, 2.0, [0, 1]), tl.load("shakespeare")]
    assert len({seen, *map(fingerprint, others)}) == 1 + len(others)


def test_a_worker_with_another_version_or_other_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = drawn()
    draw.check(tl.load("cube3"))
    with pytest.raises(ValueError, match=r"weights='sha256:.*': a worker has these, and the job is of 'sha256:"):
        draw.check(tl.load("toy15"))
