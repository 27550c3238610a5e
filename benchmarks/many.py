"""What Ray costs, whether it keeps its memory, and what it takes to evaluate many samples.

``python -m benchmarks.many overhead`` draws parts of `shakespeare` in this process, by one worker and by two, in turn, each with
one thread: seconds of a part, from the first to the last of a run. ``soak MINUTES`` draws for so long by two workers, and
compares the memory of the driver and of the workers early and late. ``evaluate NUM`` writes two folders of true samples of
`chain64`, of a tenth of NUM and then of NUM, and reports the seconds and the peak memory of ``thetaleap evaluate`` on one with
the other as reference, with one evaluation of each sample.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil
import torch

import thetaleap as tl
from thetaleap import files, jobs
from thetaleap.integrations.ray import Engine
from thetaleap.jobs import Draw, Here
from thetaleap.jobs.folder import Folder
from thetaleap.sampling import Samples

MODEL, NFE, SIZE, PARTS, ROUNDS = "shakespeare", 16, 16, 6, 3
EARLY = 0.2
"""The share of a soak after which memory counts."""


def seconds_of_a_part(engine: jobs.Engine, draw: Draw, parts: int) -> float:
    """From the first part to the last: a job has many more than it takes to start workers."""
    with tempfile.TemporaryDirectory() as place:
        folder, times = Folder(Path(place), draw.card, draw.parts), list[float]()
        for part, held in engine.parts(draw, iter(range(parts))):
            folder.put(part, held)
            times.append(time.perf_counter())
    return (times[-1] - times[0]) / (parts - 1)


def overhead() -> None:
    """Seconds of a part: here, by one worker, and by two, in turn."""
    torch.set_num_threads(1)
    draw = jobs.drawing(MODEL, tl.Multistep(), nfe=NFE, num=4 * PARTS * SIZE, size=SIZE, batch_size=SIZE)
    here, ratios = Here(draw.source.open()), {1: list[float](), 2: list[float]()}
    with Engine(workers=2).running():
        for _ in range(ROUNDS):
            alone = seconds_of_a_part(here, draw, PARTS)
            one = seconds_of_a_part(Engine(workers=1), draw, PARTS)
            two = seconds_of_a_part(Engine(workers=2), draw, 2 * PARTS)
            ratios[1].append(one / alone)
            ratios[2].append(one / two)
            print(f"a part takes {alone:.2f} s here, {one:.2f} s by a worker, {two:.2f} s by two", flush=True)
    print(f"one worker over this process {statistics.median(ratios[1]):.3f}x, rounds {rounded(ratios[1])}")
    print(f"two workers against one {statistics.median(ratios[2]):.2f}x, rounds {rounded(ratios[2])}")


def rounded(ratios: list[float]) -> str:
    return ", ".join(f"{ratio:.3f}" for ratio in ratios)


def memory() -> dict[str, float]:
    """MiB of the driver, and of its workers together."""
    driver = psutil.Process()
    workers = [one for one in driver.children(recursive=True) if one.name().startswith("ray::Worker")]
    held = {"driver": [driver], "workers": workers}
    return {name: sum(one.memory_info().rss for one in some) / 2**20 for name, some in held.items()}


def soak(minutes: float, model: str = "chain64") -> None:
    """Draw for so long, and look at the memory after each part."""
    draw = jobs.drawing(model, tl.Multistep(), nfe=16, num=10**9, size=200)
    start, seen = time.monotonic(), list[tuple[float, dict[str, float]]]()

    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place), draw.card, draw.parts)
        for part, held in Engine(workers=2).parts(draw, until(start + 60 * minutes)):
            folder.put(part, held)
            folder.file(part).unlink()
            seen.append((time.monotonic() - start, memory()))
    settled = [held for when, held in seen if when > EARLY * 60 * minutes]
    few = max(1, len(settled) // 5)
    for name in ("driver", "workers"):
        early, late = (statistics.median(one[name] for one in some) for some in (settled[:few], settled[-few:]))
        print(f"{name}: {early:.0f} MiB early, {late:.0f} MiB late, {late / early - 1:+.1%}")
    print(f"{len(seen)} parts of {draw.size} samples of {model} in {minutes:g} minutes")


def until(end: float) -> Iterator[int]:
    """Parts, up to a moment."""
    for part in count():
        if time.monotonic() > end:
            return
        yield part


def true_samples(place: Path, num: int, seed: int, model: str = "chain64") -> Path:
    """A folder as of a job, of samples that are drawn without one: that is faster."""
    oracle, draw = tl.load(model), jobs.drawing(model, tl.Tweedie(), nfe=8, num=num, seed=seed)
    folder = Folder(place, draw.card, draw.parts)
    folder.check()
    for part in range(draw.parts):
        rows = draw.rows(part)
        x = oracle.draw(len(rows), seed * draw.parts + part)
        once = torch.ones(len(rows), dtype=torch.int64)
        folder.put(part, files.parquet(Samples(x, once, once, once, {}), {**draw.card, "first": rows.start}))
    return place


def evaluate(num: int) -> None:
    """Seconds and memory of the command, by the number of samples."""
    for size in (num // 10, num):
        with tempfile.TemporaryDirectory() as place:
            samples, reference = (true_samples(Path(place, name), size, n) for n, name in enumerate(("x", "y")))
            command = [sys.executable, "-m", "thetaleap", "evaluate", samples, "--reference", reference]
            begin = time.perf_counter()
            process = subprocess.Popen([*command, "--per-sample", "1"])
            _, code, usage = os.wait4(process.pid, 0)
            taken = time.perf_counter() - begin
        cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**10
        print(f"{size:,} samples: {cpu:.0f} s of a core in {taken:.0f} s, {peak:.0f} MiB, exit code {code}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["overhead"]:
        overhead()
    elif sys.argv[1:2] == ["soak"]:
        soak(float((sys.argv[2:3] or ["120"])[0]))
    elif sys.argv[1:2] == ["evaluate"]:
        evaluate(int((sys.argv[2:3] or ["1000000"])[0]))
    else:
        print(__doc__)
