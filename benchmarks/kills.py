"""Kill -9 at random moments, and go on until done: is a sample lost or doubled, a file half written, a byte different?

``python -m benchmarks.kills`` draws 200 jobs with plain processes, ``--engine ray`` with Ray, of which the driver or a worker
is killed. A job is given the same command again until it is done. After every kill each part that can be seen must be
whole; at the end the folder must be that of a job that nobody disturbed, byte by byte, with nothing left over.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet  # noqa: F401  # here, and so not in every child

import thetaleap as tl
from thetaleap import jobs
from thetaleap.files import read_samples
from thetaleap.jobs import Draw, Here, Shard

MODEL, NUM, SIZE = "cube3", 60, 5
CARD = "--folder"


@dataclass
class Tally:
    """What happened in a campaign."""

    runs: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    starts: int = 0
    leftovers: int = 0
    """Half-written files that kills left behind, out of sight of readers; they are gone at the end."""
    faults: list[str] = field(default_factory=list)

    def killed(self, what: str) -> None:
        self.kills[what] = self.kills.get(what, 0) + 1

    def text(self) -> str:
        deaths = ", ".join(f"{count} of a {what}" for what, count in self.kills.items())
        head = f"{self.runs} jobs, {self.starts} starts, {sum(self.kills.values())} kills ({deaths or 'none'})"
        return f"{head}, {self.leftovers} half-written files left out of sight, {len(self.faults)} faults"


def drawn() -> Draw:
    """The job: parts of a few milliseconds."""
    return jobs.drawing(MODEL, tl.Tweedie(), nfe=4, num=NUM, size=SIZE, seed=3)


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def look(folder: Path, whole: dict[str, bytes], tally: Tally, done: bool) -> None:
    """Compare a folder with that of a job that nobody disturbed."""
    there = content(folder)
    wrong = [name for name, held in there.items() if not name.startswith(".") and held != whole.get(name)]
    tally.faults += [f"{folder.name}: {name} differs" for name in wrong]
    if not done:
        tally.leftovers += sum(name.startswith(".") for name in there)
        return
    tally.faults += [f"{folder.name}: {name} is missing" for name in whole if name not in there]
    tally.faults += [f"{folder.name}: {name} is left over" for name in there if name not in whole]
    count = len(read_samples(folder)[0])
    tally.faults += [] if count == NUM else [f"{folder.name}: {count} samples in place of {NUM}"]


def forked(draw: Draw, folder: Path, model: object) -> int:
    """A process that draws the job; its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        code = 1
        try:
            jobs.run(draw, folder, Shard(), Here(model), progress=False)  # pyright: ignore[reportArgumentType]
            code = 0
        finally:
            os._exit(code)
    return child


def plain(runs: int, seed: int, base: Path, say: Callable[[str], object] = print) -> Tally:
    """Plain processes, one or two into a folder at once, each killed at a random moment."""
    tally, chance, draw = Tally(), random.Random(seed), drawn()
    model = draw.source.open()
    whole, long = dict[str, bytes](), 0.0
    for run in range(runs):
        if run % 10 == 0:  # how long it takes undisturbed depends on what else the machine does
            start = time.monotonic()
            os.waitpid(forked(draw, base / f"whole-{run}", model), 0)
            whole, long = content(base / f"whole-{run}"), time.monotonic() - start
            names = [f"part-{n:06d}.parquet" for n in range(draw.parts)]
            assert sorted(whole) == ["_job.json", *names], "the undisturbed job is not whole"
        folder, done, killed = base / f"plain-{run}", False, 0
        while not done or not killed:
            if done:  # too quick for us
                shutil.rmtree(folder)
                done = False
            start, moment = time.monotonic(), chance.uniform(0, 1 + killed) * long
            children = [forked(draw, folder, model) for _ in range(chance.choice((1, 1, 2)))]
            tally.starts += len(children)
            while time.monotonic() - start < moment and any(
                psutil.Process(one).status() != "zombie" for one in children
            ):
                time.sleep(0.001)
            for child in children:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended == 0:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    tally.killed("plain process")
                    killed += 1
                elif status != 0:
                    tally.faults.append(f"{folder.name}: a process ended with {status}")
                done = done or (ended != 0 and status == 0)
            look(folder, whole, tally, False)
        # the one that ended may have done so before another one left something behind
        os.waitpid(forked(draw, folder, model), 0)
        look(folder, whole, tally, True)
        tally.runs += 1
        if (run + 1) % 20 == 0:
            say(tally.text())
    return tally


def workers_of(driver: psutil.Process) -> list[psutil.Process]:
    """Those that draw for it."""
    try:
        return [one for one in driver.children(recursive=True) if one.name().startswith("ray::Worker")]
    except psutil.NoSuchProcess:
        return []


def by_ray(runs: int, seed: int, base: Path, say: Callable[[str], object] = print) -> Tally:
    """Processes that start a Ray of their own: the driver or a worker is killed at a random moment."""
    tally, chance, draw = Tally(), random.Random(seed), drawn()
    jobs.run(draw, base / "whole", progress=False)
    whole, words = content(base / "whole"), [sys.executable, "-m", "benchmarks.kills", CARD]
    start = time.monotonic()
    subprocess.run([*words, str(base / "ray")], stderr=subprocess.DEVNULL, check=True)
    long = time.monotonic() - start  # nobody disturbs this one
    for run in range(runs):
        folder, done, killed = base / f"ray-{run}", False, 0
        while not done:
            driver = psutil.Popen([*words, str(folder)], stderr=subprocess.DEVNULL)
            tally.starts += 1
            start = time.monotonic()
            # a busy machine takes long to start a Ray; after two kills a job is left alone
            victim, until = chance.choice(("driver", "worker")), start + chance.uniform(0, 1 + killed) * long
            while driver.poll() is None:
                time.sleep(0.02)
                found = workers_of(driver)
                if killed >= 2 or time.monotonic() < until or (victim == "worker" and not found):
                    continue
                (driver if victim == "driver" else chance.choice(found)).kill()
                tally.killed(victim)
                killed += 1
                until = time.monotonic() + chance.uniform(0, 1) * long
            done = driver.wait() == 0
            look(folder, whole, tally, False)
        look(folder, whole, tally, True)
        tally.runs += 1
        say(tally.text())
    return tally


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--engine", choices=("plain", "ray"), default="plain")
    asked.add_argument("--runs", type=int, default=200)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument(CARD, help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.folder is not None:
        from thetaleap.integrations.ray import Engine

        jobs.run(drawn(), Path(given.folder), engine=Engine(workers=2), progress=False)
        return 0
    with tempfile.TemporaryDirectory() as base:
        tally = (plain if given.engine == "plain" else by_ray)(given.runs, given.seed, Path(base))
    print("\n".join([tally.text(), *tally.faults]))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
