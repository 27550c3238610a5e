"""Jobs: the arguments of `sample`, taken and refused as `sample` does before anything is drawn."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import thetaleap as tl
from tests.reproduction.test_text_experiment import letters
from thetaleap import files, jobs
from thetaleap.core.schedules import LogLinear
from thetaleap.jobs import Draw, Here, Shard
from thetaleap.jobs.folder import Folder

NUM = 6
UNIFORM: dict[str, Any] = {"model": "cube3-uniform", "solver": tl.Euler(), "num": NUM, "steps": 3}
SQUARE, CUBE = (tl.grids.alpha_power(LogLinear(), exponent) for exponent in (2.0, 3.0))


class Never(Here):
    """Draws nothing."""

    def parts(self, draw: Draw, missing: Any) -> Any:
        raise AssertionError


# --- the grid


def test_grids_that_have_one_name_are_other_jobs(tmp_path: Path) -> None:
    """All functions that `alpha_power` makes are called "grid": what they hold tells them apart."""
    jobs.write(tmp_path, **UNIFORM, grid=SQUARE)
    jobs.write(tmp_path, **UNIFORM, grid=tl.grids.alpha_power(LogLinear(), 2.0), engine=Never())
    with pytest.raises(ValueError, match=r"grid='grid sha256:.*': the samples in .* were made with 'grid sha256:"):
        jobs.write(tmp_path, **UNIFORM, grid=CUBE, engine=Never())


def test_any_function_is_a_grid(tmp_path: Path) -> None:
    made = [jobs.drawing(**UNIFORM, grid=partial(tl.grids.power, exponent=n)).card["grid"] for n in (2.0, 3.0)]
    assert made[0] != made[1]
    assert jobs.drawing(**UNIFORM, grid=tl.grids.cosine).card["grid"] == "cosine"
    times = {**UNIFORM, "steps": None, "grid": [12.0, 3.0, 0.5]}
    assert jobs.drawing(**times).card["grid"] == [12.0, 3.0, 0.5]


@pytest.mark.parametrize("option", [{"grid": tl.grids.cosine}, {"steps": 3}, {"tolerance": 0.1}, {"delta": 0.1}])
def test_auto_decides_what_it_decides_in_sample(option: dict[str, Any]) -> None:
    for call in (tl.sample, jobs.drawing):
        with pytest.raises(ValueError, match=rf"{next(iter(option))}=.*: solver='auto' decides it; leave it out"):
            call("cube3", num=NUM, nfe=None, **option)


# --- what is given


@pytest.mark.parametrize("rows", [2, NUM - 1, NUM + 1])
def test_a_template_with_other_rows_is_refused_at_once(rows: int) -> None:
    template = torch.tensor([[0, -1, -1]]).expand(rows, -1)
    for call in (tl.sample, jobs.drawing):
        with pytest.raises(ValueError, match=rf"template of shape \({rows}, 3\): .*; give \(3,\), one for all samples"):
            call("cube3", tl.Tweedie(), num=NUM, nfe=2, template=template)
    with pytest.raises(ValueError, match=r"template\[0, 0\]=3: this is the mask; give tokens from 0 to 2"):
        jobs.drawing("cube3", tl.Tweedie(), num=NUM, nfe=2, template=[3, -1, -1])


@pytest.mark.parametrize(
    "given",
    [
        {"template": [[0, 2] + [-1] * 22]},
        {"prompt": ["ab"]},
        {"prompt": ["a", "b", "", "cab", "d", "bad"]},
    ],
    ids=["one row", "one prompt", "prompts"],
)
def test_what_sample_takes_is_taken(given: dict[str, Any], tmp_path: Path) -> None:
    model, how = letters(), {"num": NUM, "nfe": 2, **given}
    jobs.write(tmp_path, model, tl.Tweedie(), part_size=2, **how)
    columns, _ = files.read_columns(tmp_path)
    assert torch.from_numpy(columns["tokens"].copy()).equal(tl.sample(model, tl.Tweedie(), **how).x.int())
    if "prompt" in given:
        assert columns["prompt"] == (given["prompt"] * NUM)[:NUM]


# --- shards, and others at work in the folder


@pytest.mark.usefixtures("unchecked")
def test_shards_are_checked_however_they_are_made() -> None:
    with pytest.raises(ValueError, match="shard='0/4': give which one of how many, as in 3/16"):
        Shard(0, 4)
    with pytest.raises(TypeError, match="shard=3: give which one of how many, as in 3/16"):
        jobs.write("x", "cube3", tl.Tweedie(), num=NUM, nfe=2, shard=3)  # pyright: ignore[reportArgumentType]


def test_a_folder_that_another_process_begins_meanwhile_is_no_stranger_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking for the card and looking for parts, another process of the same job writes both."""
    draw, listed = jobs.drawing("cube3", tl.Tweedie(), num=NUM, nfe=2, size=2), os.listdir

    def late(path: Path) -> list[str]:
        monkeypatch.setattr(os, "listdir", listed)
        jobs.run(draw, tmp_path, Shard.of("1/3"))
        return listed(path)

    own = Folder(tmp_path, draw.card, draw.parts)
    monkeypatch.setattr(os, "listdir", late)
    own.check()
    assert own.there() == {0}


def test_a_folder_that_another_process_tidies_meanwhile_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial of one process is what another, which has finished the job, takes for a leftover."""
    draw, write = jobs.drawing("cube3", tl.Tweedie(), num=NUM, nfe=2, size=2), Path.write_bytes
    own = Folder(tmp_path, draw.card, draw.parts)
    jobs.run(draw, tmp_path)

    def gone(path: Path, content: bytes) -> int:
        made = write(path, content)
        own.tidy()
        return made

    monkeypatch.setattr(Path, "write_bytes", gone)
    own.check()
