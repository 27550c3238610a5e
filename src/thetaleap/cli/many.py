"""Samples in great numbers: options of ``thetaleap sample`` for a folder of parts, and what is said of it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.checks import require, require_choice, require_count
from ..jobs import Draw, Here, Outcome, Shard, run
from .base import print_lines
from .errors import retyped
from .options import option

RAY = "ray"
_many = partial(option, "Many samples: --out a folder")
_ray = partial(option, "Ray: --engine ray")

PART_SIZE = "Samples of a part, at least 1. What interrupts a run costs the parts that are being drawn."
SHARD = "Draw the third of 16 shares of the parts, as in 3/16: for job arrays, all into one folder."
ENGINE = "Who draws: this process, or ray, by many workers, of which lost ones are replaced."
ADDRESS = "Of a Ray that runs, as in auto or 10.0.0.1:6379."
PartSize = Annotated[int | None, _many(PART_SIZE, show="a 64th of --num, at most 1000")]
InShard = Annotated[str | None, _many(SHARD, show="all", metavar="N/M")]
EngineName = Annotated[str | None, option("Ray: --engine ray", ENGINE, show="this process", metavar="ray")]
Address = Annotated[str | None, _ray(ADDRESS, show="one of this machine alone, for this command", metavar="ADDRESS")]
Workers = Annotated[int | None, _ray("How many workers, at least 1.", show="as many as there is room for")]
GpusPerWorker = Annotated[float | None, _ray("GPUs of each.", show="0")]
CpusPerWorker = Annotated[int | None, _ray("Processors of each, and threads of torch.", show="1")]
ENGINE_OPTIONS = ("address", "workers", "gpus_per_worker", "cpus_per_worker")


def engine_of(engine: str | None, **options: Any) -> Any:
    """What draws, or None for this process; `options` are those of `integrations.ray.Engine`."""
    given = {name: value for name, value in options.items() if value is not None}
    if engine is None:
        for name, value in given.items():
            require(False, name, value, "is for --engine ray; give that too")
        return None
    require_choice("engine", engine, (RAY,))
    from ..integrations.ray import Engine

    return Engine(**given)


def check_many(folder: bool, part_size: int | None, shard: str | None, engine: Any, force: bool) -> None:
    """Raise ``ValueError`` where options are for a folder, or not for one."""
    if folder:
        require(not force, "force", True, "is for a file; give another folder, or remove this one")
    else:
        others = {"part_size": part_size, "shard": shard, "engine": None if engine is None else RAY}
        for name, value in others.items():
            require(value is None, name, value, "draws into a folder; give one, as in --out samples/")
    require_count("part_size", 1 if part_size is None else part_size)
    Shard.of(shard)


def draw_into(out: Path, draw: Draw, solver: str, model: Any, engine: Any, shard: str | None) -> None:
    """Draw, and say what was done, or how to go on."""
    start = time.perf_counter()
    try:
        outcome = run(draw, out, Shard.of(shard), Here(model) if engine is None else engine)
    except KeyboardInterrupt:
        there = len(list(out.glob("part-*.parquet"))) if out.is_dir() else 0
        typer.echo(f"interrupted: {there} of {draw.parts} parts are in {out}\nto go on: {retyped()}", err=True)
        raise typer.Exit(130) from None
    print_lines(_summary(out, draw, solver, outcome, time.perf_counter() - start, shard))


def _summary(out: Path, draw: Draw, solver: str, outcome: Outcome, seconds: float, shard: str | None) -> dict[str, str]:
    left = outcome.parts - outcome.there
    parts = f"{outcome.there} of {outcome.parts}, {outcome.drawn} of them drawn now"
    others = "; the others are for other shards" if left and shard else "; others are being drawn" if left else ""
    return {
        "model": str(draw.card["model"]),
        "solver": solver,
        "samples": f"{draw.num} in parts of {draw.size}",
        "parts": parts + others,
        "seconds": f"{seconds:.2f}",
        "folder": str(out),
    }
