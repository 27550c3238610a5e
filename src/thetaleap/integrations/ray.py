"""Samples drawn by Ray: on all cores of this machine, or on a cluster.

`Engine` draws the parts of a job (``thetaleap sample --engine ray``), `dataset` is samples as a lazy
``ray.data.Dataset``, and `sample` is `thetaleap.sample` by many workers. Sample i is the same everywhere: it depends on
the seed and i alone. Workers are actors that hold the model; one that is lost is replaced, and what it was drawing is
drawn again.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import torch

from ..core.checks import require, require_count, require_number
from ..core.evaluation import Denoiser
from ..core.progress import progress_bar
from ..jobs import Draw, drawing
from ..sampling import Samples, joined

if TYPE_CHECKING:
    from ray.data import Dataset  # pyright: ignore[reportMissingImports]
else:
    Dataset = Any

MISSING = "Ray is not installed: pip install 'thetaleap[ray]'"
HERE = "127.0.0.1"
DEATHS = 3
"""Workers that may be lost for each that there are, one after the other, without a part being finished."""
STARTS = 3
"""Attempts to start a Ray."""
PATIENCE = 600.0
"""Seconds to wait for the first worker: a cluster may have to start a machine."""


@dataclass(frozen=True)
class Engine:
    """Workers on the Ray at `address`; without one on a Ray of this machine alone, which is started and stopped.

    `workers` are by default as many as there is room for. Each has its share of processors, which is as many threads as
    torch uses there, and of GPUs.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float = 0
    cpus_per_worker: int = 1

    def __post_init__(self) -> None:
        if self.workers is not None:
            require_count("workers", self.workers)
        require_number("gpus_per_worker", self.gpus_per_worker, 0, 2**16, closed="low")
        require_count("cpus_per_worker", self.cpus_per_worker)

    def parts(self, draw: Draw, missing: Iterator[int]) -> Generator[tuple[int, bytes], None, None]:
        """The bytes of parts of a job, as soon as they are there."""
        with self.running():
            yield from self._drawn(draw, missing, "part")

    def samples(self, draw: Draw, progress: bool | None = None) -> Samples:
        """All samples of a job."""
        found: dict[int, Samples] = {}
        with self.running(), progress_bar(progress, "samples", draw.num) as advance:
            for part, held in self._drawn(draw, iter(range(draw.parts)), "samples"):
                found[part] = held
                advance(len(draw.rows(part)))
        return replace(joined([found[part] for part in range(draw.parts)]), card=draw.card)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ray, for as long as this lasts; one that runs already is used and left alone."""
        if _ray(local=self.address is None).is_initialized():
            yield
            return
        self._start()
        try:
            yield
        finally:
            _ray().shutdown()

    def start(self) -> None:
        """Ray, unless it runs already, until `ray.shutdown()`."""
        if not _ray(local=self.address is None).is_initialized():
            self._start()

    def _start(self) -> None:
        ray = _ray(local=self.address is None)
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        if self.address is not None:
            try:
                _knock(self.address)
                ray.init(address=self.address, **quiet)
            except (OSError, ValueError, RuntimeError) as error:
                why = str(error).strip().split("\n")[0]
                remedy = "leave it out for this machine, or start one with ray start --head"
                raise ValueError(f"address={self.address!r}: no Ray answers there ({why}); {remedy}") from None
            return
        own = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        cores = own if self.workers is None else self.workers * self.cpus_per_worker
        for left in reversed(range(STARTS)):
            try:
                ray.init(address="local", num_cpus=max(cores, self.cpus_per_worker), include_dashboard=False, **quiet)
                break
            except Exception as error:  # it gives itself 30 seconds, which a busy machine may not have
                why = str(error).strip().split("\n")[0]
                require(left > 0, "engine", "ray", f"did not start ({why}); try again, with less beside it")
        here, gpus = ray.util.get_node_ip_address(), ray.cluster_resources().get("GPU", 0)
        try:
            remedy = (
                "ray was imported before, and would be open to the network; import thetaleap.integrations.ray first"
            )
            require(here == HERE, "address", here, f"{remedy}, or call ray.init yourself")
            enough = f"this machine has {gpus:g} GPUs; give at most as many, or the --address of a cluster"
            require(self.gpus_per_worker <= gpus, "gpus_per_worker", self.gpus_per_worker, enough)
        except ValueError:
            ray.shutdown()
            raise

    @property
    def size(self) -> int:
        """How many workers there are, on the Ray that runs."""
        if self.workers is not None:
            return self.workers
        there = _ray().cluster_resources()
        room = there.get("CPU", 0) / self.cpus_per_worker
        room = min(room, there.get("GPU", 0) / self.gpus_per_worker) if self.gpus_per_worker else room
        return max(1, int(room))

    def _drawn(self, draw: Draw, missing: Iterator[int], what: str) -> Generator[tuple[int, Any], None, None]:
        """What workers make of parts; in the order in which they are done."""
        ray, lost, size = _ray(), 0, min(self.size, draw.parts)
        from ray.exceptions import RayError, RayTaskError  # pyright: ignore[reportMissingImports]

        shared, kind = ray.put(draw), ray.remote(Worker)
        share = {"num_cpus": self.cpus_per_worker, "num_gpus": self.gpus_per_worker, "max_restarts": 0}
        begun: dict[Any, tuple[Any, int | None]] = {}
        """What is under way: by its future, the worker and the part; None is a worker that starts."""
        again: list[int] = []
        workers: list[Any] = []
        more, since = True, time.monotonic()

        def begin() -> None:
            workers.append(kind.options(**share).remote(shared, self.cpus_per_worker))
            begun[workers[-1].begin.remote()] = workers[-1], None

        try:
            for _ in range(size):
                begin()
            while more or again or any(part is not None for _, part in begun.values()):
                done, _ = ray.wait(list(begun), num_returns=1, timeout=10.0)
                if not done:
                    waiting = all(part is None for _, part in begun.values())
                    there = f"none could start within {PATIENCE:.0f} s; the cluster has {ray.cluster_resources()}"
                    late = waiting and time.monotonic() - since > PATIENCE
                    require(not late, "workers", size, f"{there}; ask for what it has")
                    continue
                worker, part = begun.pop(done[0])
                since = time.monotonic()
                try:
                    made = ray.get(done[0])
                except RayTaskError as error:
                    raise _cause(error) from None
                except RayError as error:  # the worker is gone: killed, out of memory, or with its machine
                    lost += 1
                    why = str(error).strip().split("\n")[0]
                    remedy = f"{lost} were lost without finishing a part ({why}); give fewer, or a smaller batch_size"
                    require(lost <= DEATHS * size, "workers", size, remedy)
                    again += [] if part is None else [part]
                    ray.kill(worker)
                    workers.remove(worker)
                    begin()
                    continue
                following = again.pop() if again else next(missing, None)
                more = more and following is not None
                if following is None:
                    workers.remove(worker)  # which ends it, and gives back what it had
                else:
                    begun[getattr(worker, what).remote(following)] = worker, following
                if part is not None:
                    lost = 0
                    yield part, made
        finally:
            for worker in workers:  # an error keeps them alive for as long as somebody looks at it
                ray.kill(worker)


class Worker:
    """An actor: it holds the model, and draws the parts that it is told."""

    def __init__(self, draw: Draw, threads: int) -> None:
        self.draw, self.threads = draw, threads
        self.model: Denoiser | None = None

    def ready(self) -> Denoiser:
        """The model, opened the first time. Not at once with the worker, as errors would then be lost with it."""
        if self.model is None:
            torch.set_num_threads(self.threads)
            model = self.draw.source.open()
            self.draw.check(model)
            self.model = model
        return self.model

    def begin(self) -> None:
        """Open the model."""
        self.ready()

    def part(self, part: int) -> bytes:
        return self.draw.part(self.ready(), part)

    def samples(self, part: int) -> Samples:
        return self.draw.samples(self.ready(), part)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Rows of a dataset: those of one part."""
        (part,) = batch["item"].tolist()
        drawn, rows = self.samples(part), self.draw.rows(part)
        made: dict[str, Any] = {"sample": self.draw.first + np.arange(rows.start, rows.stop)}
        made |= {"tokens": drawn.x.numpy().astype(np.int32), "nfe": drawn.nfe.numpy().astype(np.int32)}
        return made | ({} if drawn.source is None or drawn.source.tokenizer is None else {"text": drawn.text})


def _cause(error: Any) -> Exception:
    """What went wrong in a worker, as it was raised there."""
    return error.cause if isinstance(error.cause, Exception) else error


def _knock(address: str) -> None:
    """Raise ``OSError`` if nobody is there: Ray itself would try for minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname is not None and place.port is not None:
        socket.create_connection((place.hostname, place.port), timeout=5).close()


def _ray(local: bool = False) -> Any:
    """The package, told before it is first imported to report nothing and, if it is to be `local`, to listen here alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if local:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # its switch for loopback, on any system
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(MISSING) from None
    return ray


def sample(
    model: Denoiser | str,
    solver: Any = "auto",
    *,
    num: int,
    engine: Engine | None = None,
    part_size: int | None = None,
    progress: bool | None = None,
    **how: Any,
) -> Samples:
    """As `thetaleap.sample`, drawn by the workers of an `Engine`; without ``Samples.info``.

    Args:
        model: as in `thetaleap.sample`; best a name, which each worker loads itself. What is given is sent to them.
        solver: as in `thetaleap.sample`.
        num: how many samples.
        engine: the workers; by default all cores of this machine.
        part_size: samples that a worker draws at a time; by default the batch size, so that networks round as in one
            process, or without one a 64th of all, and at most 1000.
        progress: show a progress bar; by default if standard error is a terminal.
        how: other arguments of `thetaleap.sample`.
    """
    size = how.get("batch_size") if part_size is None else part_size
    return (engine or Engine()).samples(drawing(model, solver, num=num, size=size, **how), progress)


def dataset(
    model: Denoiser | str,
    solver: Any = "auto",
    *,
    num: int,
    engine: Engine | None = None,
    part_size: int | None = None,
    **how: Any,
) -> Dataset:
    """Samples as a lazy ``ray.data.Dataset``: rows of ``sample`` (its number), ``tokens``, ``nfe`` and, of models that have
    some, ``text``, in any order. Nothing is drawn before something asks for it.

    Ray is started on this machine alone, unless it runs already; ``ray.shutdown()`` stops it. Arguments are those of
    `sample`.
    """
    draw, engine = drawing(model, solver, num=num, size=part_size, **how), engine or Engine()
    engine.start()
    from ray.data import ActorPoolStrategy, from_items  # pyright: ignore[reportMissingImports]

    parts = from_items(list(range(draw.parts)), override_num_blocks=draw.parts)
    return parts.map_batches(
        Worker,  # pyright: ignore[reportArgumentType]
        fn_constructor_args=[draw, engine.cpus_per_worker],
        batch_size=1,
        compute=ActorPoolStrategy(size=min(engine.size, draw.parts)),
        num_cpus=engine.cpus_per_worker,
        num_gpus=engine.gpus_per_worker,
    )
