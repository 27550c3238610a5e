"""Ray: the same bytes from its workers, also if some are lost; open to this machine alone, and gone afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import thetaleap as tl
from tests.reproduction.test_text_experiment import letters, unigrams
from thetaleap import jobs
from thetaleap.core.evaluation import Denoiser
from thetaleap.integrations import ray as engines
from thetaleap.integrations.ray import Engine
from thetaleap.jobs import Draw
from thetaleap.jobs.draw import Given
from thetaleap.reproduction import text

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray has warnings of its own

NUM = 22
HOW: dict[str, Any] = {"nfe": 4, "seed": 5}


def drawn(**changes: Any) -> Draw:
    return jobs.drawing(**{"model": "cube3", "solver": tl.Tweedie(), "num": NUM, "size": 3, **HOW, **changes})


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def processes() -> list[psutil.Process]:
    """Those of the Ray that this process started."""
    names = ("ray::", "raylet", "gcs_server")
    return [one for one in psutil.Process().children(recursive=True) if one.name().startswith(names)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Two workers on a Ray that all tests share."""
    made = Engine(workers=2)
    with made.running():
        yield made
    assert processes() == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("jobs") / "whole"
    jobs.run(drawn(), folder)
    return content(folder)


def test_a_local_ray_listens_on_this_machine_alone(engine: Engine) -> None:
    found = [one for one in [*processes(), psutil.Process()] if one.status() != psutil.STATUS_ZOMBIE]
    listening = [link.laddr.ip for one in found for link in one.net_connections("inet") if link.status == "LISTEN"]
    assert len(listening) >= 3, "the store of Ray, the node, and the driver"
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_workers_draw_the_same_bytes(engine: Engine, whole: dict[str, bytes], tmp_path: Path) -> None:
    jobs.run(drawn(), tmp_path, jobs.Shard.of("2/3"))
    assert jobs.run(drawn(), tmp_path, engine=engine) == jobs.Outcome(5, 8, 8)
    assert content(tmp_path) == whole


def test_networks_too(engine: Engine, tmp_path: Path) -> None:
    """At a fixed batch size, on one kind of device, and with one thread each."""
    torch.set_num_threads(1)
    draw = drawn(model="shakespeare-char", num=6, size=2, nfe=3, batch_size=2)
    jobs.run(draw, tmp_path / "here")
    jobs.run(draw, tmp_path / "there", engine=engine)
    assert content(tmp_path / "here") == content(tmp_path / "there")


def test_lost_workers_are_replaced(engine: Engine, whole: dict[str, bytes], tmp_path: Path) -> None:
    """There is one, and so nobody else who could finish the job."""
    killed: list[int] = []

    class Deadly(Engine):
        def parts(self, draw: Draw, missing: Iterator[int]) -> Any:
            for part, held in super().parts(draw, missing):
                yield part, held
                workers = [one for one in processes() if one.name().startswith("ray::Worker")]
                for one in workers if len(killed) < 2 else []:
                    if one.pid not in killed:
                        os.kill(one.pid, signal.SIGKILL)
                        killed.append(one.pid)

    assert jobs.run(drawn(), tmp_path, engine=Deadly(workers=1)).there == 8
    assert len(killed) == 2
    assert content(tmp_path) == whole


def test_so_are_those_that_ray_ends_for_want_of_memory(
    engine: Engine, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its monitor of memory has an error of its own, which is not that of a dead actor."""
    import ray  # pyright: ignore[reportMissingImports]
    from ray.exceptions import OutOfMemoryError  # pyright: ignore[reportMissingImports]

    get, ended = ray.get, list[Any]()

    def once(future: Any) -> Any:
        if ended:
            return get(future)
        ended.append(future)
        raise OutOfMemoryError("Task was killed due to the node running low on memory.")

    monkeypatch.setattr(ray, "get", once)
    assert jobs.run(drawn(), tmp_path, engine=engine).there == 8
    assert content(tmp_path) == whole


class Broken:
    """A model that cannot be opened where workers are."""

    def __init__(self, deadly: bool) -> None:
        self.deadly = deadly

    def open(self) -> Denoiser:
        if self.deadly:
            os._exit(1)
        raise ValueError("model='nothing': there is no such model")

    def shaped(self, model: Denoiser, numbers: range) -> Denoiser:
        return model


def test_what_goes_wrong_in_a_worker_is_said_here(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model='nothing': there is no such model") as kept:
        jobs.run(Draw(Broken(False), {}, 4, size=1), tmp_path, engine=engine)
    assert kept.tb is not None, "though somebody holds on to the error, its workers give back their processors"
    with pytest.raises(ValueError, match=r"workers=1: 4 were lost without finishing a part .*; give fewer"):
        jobs.run(Draw(Broken(True), {}, 4, size=1), tmp_path, engine=Engine(workers=1))
    other = Draw(Given("cube3"), {}, 4, size=1, about={"weights": "sha256:0"})
    with pytest.raises(ValueError, match=r"weights='sha256:.*': a worker has these, and the job is of 'sha256:0'"):
        jobs.run(other, tmp_path, engine=engine)
    assert content(tmp_path) == {}


def test_sample_is_that_of_the_library(engine: Engine) -> None:
    guided = tl.guided(tl.load("mnist"), 1.0, torch.arange(6) % 10)
    cases: list[tuple[Any, int, dict[str, Any]]] = [("cube3", NUM, HOW), (guided, 6, {"nfe": 4})]
    for model, num, how in cases:
        there = engines.sample(model, tl.Tweedie(), num=num, engine=engine, part_size=4, **how)
        here = tl.sample(model, tl.Tweedie(), num=num, **how)
        assert there.x.equal(here.x)
        assert there.nfe.equal(here.nfe)
        assert there.rounds.equal(here.rounds)


def test_experiments_draw_through_it(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `reproduce text --engine ray` does, with two methods of many: the same table, whoever drew it."""
    monkeypatch.setattr(text, "USED", (text.TAU, text.AUTO))
    given: dict[str, Any] = {"model": letters(), "judge": unigrams(), "budgets": (4,), "num": 4, "progress": False}
    text.run(tmp_path / "here", **given)
    text.run(tmp_path / "there", sampler=partial(engines.sample, engine=engine, part_size=2), **given)
    for name in ("text.csv", "text-samples.jsonl"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_a_dataset_goes_on_in_ray_data(engine: Engine) -> None:
    made = engines.dataset("shakespeare-char", tl.Tweedie(), num=6, part_size=2, engine=engine, nfe=2)
    rows = made.map(lambda row: {"sample": row["sample"], "long": len(row["text"]), "tokens": row["tokens"]})
    found = sorted(rows.take_all(), key=lambda row: row["sample"])
    here = tl.sample("shakespeare-char", tl.Tweedie(), num=6, nfe=2)
    assert [row["sample"] for row in found] == list(range(6))
    assert [row["tokens"].tolist() for row in found] == here.x.tolist()
    assert [row["long"] for row in found] == [len(text) for text in here.text]


def test_the_example_of_the_page_runs(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "many-machines.md").read_text()
    (code,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "example", "exec"), {})
    texts = tl.sample("shakespeare-char", tl.Tweedie(), nfe=4, num=64, batch_size=8).text
    assert capsys.readouterr().out.split()[-1] == str(sum(":" in text for text in texts))


def test_the_command_starts_and_stops_its_own_ray(whole: dict[str, bytes], tmp_path: Path) -> None:
    """A driver that is killed takes its Ray with it; the same command then finishes the job."""
    words = ["sample", "cube3", "--solver", "tweedie", "--nfe", "4", "--seed", "5", "--num", "400", "--part-size", "2"]
    words = [sys.executable, "-m", "thetaleap", *words, "--engine", "ray", "--workers", "2", "--out"]
    driver = psutil.Popen([*words, str(tmp_path / "x")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while driver.poll() is None and not list(tmp_path.glob("x/part-*.parquet")):
        time.sleep(0.05)
    family = driver.children(recursive=True)
    driver.kill()
    driver.communicate()
    gone, alive = psutil.wait_procs(family, timeout=120)
    assert (len(gone) > 2, alive) == (True, [])
    again = subprocess.run([*words, str(tmp_path / "x")], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    assert "parts    200 of 200" in again.stdout
    tl_jobs = [*words[:-5], "--out", str(tmp_path / "y")]
    subprocess.run(tl_jobs, capture_output=True, check=True)
    assert content(tmp_path / "x") == content(tmp_path / "y")


def test_no_ray_at_an_address_is_named() -> None:
    words = ["sample", "cube3", "--nfe", "4", "--engine", "ray", "--address", "127.0.0.1:1", "--out", "x"]
    made = subprocess.run([sys.executable, "-m", "thetaleap", *words], capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert "error: --address 127.0.0.1:1: no Ray answers there" in made.stderr
    assert "Traceback" not in made.stderr
