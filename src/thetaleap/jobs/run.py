"""Jobs run: by this process, or by an engine that has many."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..core.checks import require_kind
from ..core.evaluation import Denoiser
from ..core.progress import progress_bar
from .draw import Draw, drawing
from .folder import Folder, Shard


@runtime_checkable
class Engine(Protocol):
    """What draws parts: it takes from those `missing` as it gets to them, and gives their bytes in any order."""

    def parts(self, draw: Draw, missing: Iterator[int]) -> Generator[tuple[int, bytes], None, None]: ...


@dataclass(frozen=True)
class Here:
    """This process; with the `model`, where it is open already."""

    model: Denoiser | None = None

    def parts(self, draw: Draw, missing: Iterator[int]) -> Generator[tuple[int, bytes], None, None]:
        model = draw.source.open() if self.model is None else self.model
        for part in missing:
            yield part, draw.part(model, part)


@dataclass(frozen=True)
class Outcome:
    """What came of a job in this process."""

    drawn: int
    """Parts that were drawn now."""
    there: int
    """Parts that are in the folder."""
    parts: int
    """All that there will be."""


def run(
    draw: Draw, out: Path, shard: Shard | None = None, engine: Engine | None = None, progress: bool | None = None
) -> Outcome:
    """Draw the parts that are not in the folder `out`, and write each as soon as it is there."""
    folder, shard, engine = Folder(out, draw.card, draw.parts), shard or Shard(), engine or Here()
    folder.check()
    mine, there, drawn = set(shard.parts(draw.parts)), folder.there(), 0
    if mine <= there:  # no engine needs to start
        folder.tidy()
        return Outcome(0, len(there), draw.parts)
    with progress_bar(progress, "samples", sum(len(draw.rows(part)) for part in mine)) as advance:
        advance(sum(len(draw.rows(part)) for part in mine & there))
        with closing(engine.parts(draw, folder.missing(shard))) as parts:
            for part, content in parts:
                folder.put(part, content)
                drawn += 1
                advance(len(draw.rows(part)))
    folder.tidy()
    return Outcome(drawn, len(folder.there()), draw.parts)


def write(
    out: str | Path,
    model: Denoiser | str,
    solver: Any = "auto",
    *,
    num: int,
    part_size: int | None = None,
    shard: str | None = None,
    engine: Engine | None = None,
    progress: bool | None = None,
    **how: Any,
) -> Outcome:
    """Draw `num` samples as `sample` does, into parts in the folder `out`: what is there already is not drawn again.

    The folder belongs to one job: other arguments, weights or another version are refused, and named. Several processes
    may run the same call.

    Args:
        out: the folder, which is made.
        model: as in `sample`; for engines with other machines best a name, which each of their processes loads itself.
        solver: as in `sample`.
        num: how many samples.
        part_size: samples of a part; by default a 64th of all, and at most 1000. An interruption costs the part that is
            being drawn.
        shard: ``"3/16"`` draws the third of sixteen shares of the parts.
        engine: what draws them; by default this process. `integrations.ray.Engine` is another.
        progress: show a progress bar; by default if standard error is a terminal.
        how: other arguments of `sample`: nfe, seed, first, template, batch_size, ....
    """
    require_kind("out", out, str | Path, "give the name of a folder")
    return run(drawing(model, solver, num=num, size=part_size, **how), Path(out), Shard.of(shard), engine, progress)
