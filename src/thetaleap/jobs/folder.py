"""The folder of a job: parts of samples, each written whole or not at all, and ``_job.json``, which says what they are.

Any number of processes may write into one folder. None waits for another: a part is a function of the job alone, so
that one which two processes draw is the same bytes twice. No clock is read.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..core.checks import require, require_kind
from ..core.storage import replacing
from ..files import JOB, PART, Card

UNLINKED = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems without links say."""
WHICH = "give which one of how many, as in 3/16, from 1/16 to 16/16"


@dataclass(frozen=True)
class Shard:
    """Every `count`-th part, from part `number` - 1 on: what one process of several draws."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        require(1 <= self.number <= self.count, "shard", f"{self.number}/{self.count}", WHICH)

    @staticmethod
    def of(text: str | None) -> Shard:
        """``3/16`` is the third of sixteen; None is all."""
        if text is None:
            return Shard()
        require_kind("shard", text, str, WHICH)
        number, _, count = text.partition("/")
        require(number.isdecimal() and count.isdecimal(), "shard", text, WHICH)
        return Shard(int(number), int(count))

    def parts(self, every: int) -> range:
        """Its parts among so many."""
        return range(self.number - 1, every, self.count)


@dataclass(frozen=True)
class Folder:
    """Where the parts of one job are."""

    path: Path
    card: Card
    parts: int

    def check(self) -> None:
        """Make the folder, and raise ``ValueError`` unless parts of this job can be written to it.

        Drawing takes hours, so ask this first. The job takes possession of the folder with its first part, so that a
        command that turns out to be wrong leaves nothing behind that the next one must agree with.
        """
        trial = self.path / f".{_chance()}.part"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            trial.write_bytes(b"only an attempt tells")
            trial.unlink(missing_ok=True)  # a process that has finished the job may have tidied it away
        except OSError as error:
            with suppress(OSError):
                trial.unlink()
            self._fail(error, "choose another place, or make room")
        self._agree()

    def file(self, part: int) -> Path:
        return self.path / f"part-{part:06d}.parquet"

    def there(self) -> set[int]:
        """The parts that are finished."""
        found = (PART.fullmatch(name) for name in os.listdir(self.path))
        return {int(match[1]) for match in found if match} & set(range(self.parts))

    def missing(self, shard: Shard) -> Iterator[int]:
        """Parts of the shard that nobody has finished when they are asked for, in an order of chance: processes that
        share a shard then seldom draw the same."""
        left = sorted(set(shard.parts(self.parts)) - self.there())
        secrets.SystemRandom().shuffle(left)
        return (part for part in left if not self.file(part).exists())

    def put(self, part: int, content: bytes) -> None:
        """Write a part, unless it is there."""
        target = self.file(part)
        try:
            self._take()
            if not target.exists():
                with replacing(target) as fresh:
                    fresh.write_bytes(content)
        except OSError as error:
            if target.exists():  # another process wrote it, and tidied up
                return
            kept = f"{len(self.there()) if self.path.is_dir() else 0} of {self.parts} parts are kept"
            self._fail(error, f"{kept}; mend it and give the same command to go on")

    def tidy(self) -> None:
        """Once all parts are there, remove what killed processes left half written."""
        if len(self.there()) == self.parts:
            for leftover in self.path.glob(".*.part"):
                leftover.unlink(missing_ok=True)

    def _fail(self, error: OSError, remedy: str) -> NoReturn:
        raise ValueError(f"out={str(self.path)!r}: cannot be written ({error.strerror or error}); {remedy}") from None

    def _agree(self) -> bool:
        """Whether the folder is this job's; an error if it is another's."""
        held = self._held()
        if held is None:
            strange = next((name for name in sorted(os.listdir(self.path)) if PART.fullmatch(name)), None)
            if strange is None:
                return False
            held = self._held()  # whoever wrote a part since then has put the card there before
            require(held is not None, "out", str(self.path), f"holds {strange} and no {JOB}; give another folder")
        assert held is not None
        own = json.loads(json.dumps(self.card))
        for name in dict.fromkeys([*held, *own]):
            remedy = f"the samples in {str(self.path)!r} were made with {held.get(name)!r}; use that, or another folder"
            require(held.get(name) == own.get(name), name, own.get(name), remedy)
        return True

    def _held(self) -> Card | None:
        """What the folder says of itself, if it does."""
        try:
            return dict(json.loads((self.path / JOB).read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(
                f"out={str(self.path)!r}: its {JOB} cannot be read ({error}); give another folder, or remove it"
            ) from None

    def _take(self) -> None:
        """Put ``_job.json`` there, unless it is. Of several processes that do so at once, the first one's stays."""
        if self._agree():
            return
        content = json.dumps(self.card, indent=2, ensure_ascii=False) + "\n"
        fresh = self.path / f".{JOB}.{_chance()}.part"
        try:
            _write_new(fresh, content)
            with suppress(FileExistsError):
                try:
                    os.link(fresh, self.path / JOB)  # at once with its content, and never over another
                except OSError as error:
                    if error.errno not in UNLINKED:
                        raise
                    _write_new(self.path / JOB, content)
        finally:
            fresh.unlink(missing_ok=True)
        self._agree()


def _write_new(path: Path, content: str) -> None:
    """Write a file that must not be there yet."""
    with path.open("x", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _chance() -> str:
    return secrets.token_hex(4)
