"""What every sample of a job is: enough to draw any part of it, in this process or on another machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from .. import __version__, files, sampling
from ..core.checks import require, require_count
from ..core.evaluation import Conditionals, Denoiser, as_model, of_samples
from ..core.free import FREE, Template, check_template
from ..core.wrapped import Wrapped
from ..registry import AUTO, RECOMMEND, full_name
from ..sampling import Samples
from .fingerprint import fingerprint

MOST, FEWEST = 1000, 64
"""By default the samples of a part, at most, and the parts of a job, at least."""
DECIDED = "solver='auto' decides it; leave it out, or name a solver"


@runtime_checkable
class Source(Protocol):
    """Where a model comes from. It is sent to other machines, and so holds a name rather than a network, if it can."""

    def open(self) -> Denoiser:
        """The model, which is then kept for all parts."""
        ...

    def shaped(self, model: Denoiser, numbers: range) -> Denoiser:
        """The same for the samples of a part, of these numbers: with their labels, for example."""
        ...


@dataclass(frozen=True)
class Given:
    """A model that is there already, or the name of one; what it has for each sample is numbered from `first` on."""

    model: Denoiser | str
    first: int = 0

    def open(self) -> Denoiser:
        return as_model(self.model)

    def shaped(self, model: Denoiser, numbers: range) -> Denoiser:
        return Later(model, numbers.start - self.first)


@dataclass(frozen=True, eq=False)
class Later(Wrapped):
    """A model whose run begins with sample number `start` of a longer one."""

    start: int = 0

    def of(self, samples: Int64[Tensor, " b"]) -> Later:
        return replace(self, model=of_samples(self.model, samples + self.start))

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        return self.model(x, t)


@dataclass(frozen=True, eq=False)
class Draw:
    """The samples of a job, in parts of a fixed number; the bytes of a part depend on nothing else than this."""

    source: Source
    how: dict[str, Any]
    """Arguments of `sample`: the solver, its budget, the seed."""
    num: int
    first: int = 0
    size: int = MOST
    """Samples of a part; the last one may have fewer."""
    template: Int64[Tensor, " d"] | Int64[Tensor, "num d"] | None = None
    prompts: Sequence[str] | None = None
    """What was given to each sample, as text."""
    about: files.Card = field(default_factory=dict)
    """How samples are made, as far as JSON can say it."""

    @property
    def card(self) -> files.Card:
        """What two commands must have in common to be one job."""
        return {**self.about, "first": self.first, "num": self.num, "part_size": self.size, "version": __version__}

    @property
    def parts(self) -> int:
        return -(-self.num // self.size)

    def rows(self, part: int) -> range:
        """The samples of a part, counted from the first of the job."""
        return range(part * self.size, min(self.num, (part + 1) * self.size))

    def samples(self, model: Denoiser, part: int) -> Samples:
        """Those of a part, by the model that `source` opened."""
        rows = self.rows(part)
        numbers = range(self.first + rows.start, self.first + rows.stop)
        given = self.template
        if given is not None and given.ndim == 2:
            given = given[rows.start : rows.stop]
        how = {"template": given, "first": numbers.start, "num": len(rows), "progress": False}
        return sampling.sample(self.source.shaped(model, numbers), **self.how, **how)

    def part(self, model: Denoiser, part: int) -> bytes:
        """A part as a Parquet file."""
        rows, drawn, words = self.rows(part), self.samples(model, part), getattr(model, "tokenizer", None)
        text = None if words is None else [words.decode(row) for row in drawn.x.tolist()]
        prompts = None if self.prompts is None else self.prompts[rows.start : rows.stop]
        return files.parquet(drawn, {**self.card, "first": self.first + rows.start}, text, prompts)

    def check(self, model: Denoiser) -> None:
        """Raise ``ValueError`` unless a worker has the job's version of this library and of the weights."""
        there = {"version": __version__, "weights": fingerprint(model)}
        for name, value in there.items():
            wanted = self.card.get(name, value)
            require(value == wanted, name, value, f"a worker has these, and the job is of {wanted!r}; give it the same")


def part_size_of(num: int, size: int | None = None) -> int:
    """Samples of a part: `size`, or as many as make 64 parts, and at most 1000."""
    if size is not None:
        require_count("part_size", size)
        return size
    return max(1, min(MOST, -(-num // FEWEST)))


def drawing(
    model: Denoiser | str,
    solver: Any = AUTO,
    *,
    num: int,
    first: int = 0,
    template: Template | None = None,
    prompt: str | Sequence[str] | None = None,
    seed: int = 0,
    size: int | None = None,
    **how: Any,
) -> Draw:
    """What `sample` draws for these arguments, in parts of `size`, with a card that says it."""
    for name in ("progress", "on_step"):
        require(name not in how, name, how.get(name), "is for one process; leave it out")
    require_count("num", num)
    require_count("first", first, least=0)
    opened = as_model(model)
    table = sampling.given_rows(opened, template, prompt)
    if table is not None:
        table = check_template(table, num, opened)
        table = table[0] if len(table) == 1 else table
    if solver == AUTO and not how.get("exact"):
        for option in ("tolerance", "steps", "grid", "delta"):
            require(how.get(option) is None, option, how.get(option), DECIDED)
        advice = RECOMMEND(opened, how.get("nfe"), positions=_free(table))
        solver, how = advice.solver, {**how, "nfe": advice.nfe, "grid": advice.grid}
    name = full_name(model) if isinstance(model, str) else type(model).__name__
    told = {key: value for key, value in how.items() if key != "grid" and value is not None}
    told |= {"grid": _told(how["grid"])} if how.get("grid") is not None else {}
    told |= {"template": table.tolist() if table.ndim == 1 else fingerprint(table)} if table is not None else {}
    about = {"model": name, "weights": fingerprint(opened), "solver": repr(solver), **told, "seed": seed}
    about |= {"device": opened.device.type}
    how = settled(opened, {"solver": solver, "seed": seed, **how}, table)
    texts = [prompt] if isinstance(prompt, str) else prompt  # one for all, or for each
    prompts = None if texts is None else [*texts] * (num // len(texts))
    return Draw(Given(model, first), how, num, first, part_size_of(num, size), table, prompts, about)


def settled(model: Denoiser, how: dict[str, Any], table: Tensor | None) -> dict[str, Any]:
    """`how`, with the times that all samples walk: which positions are free may differ from part to part."""
    if table is None or table.ndim == 1 or how.get("exact") or how.get("tolerance") is not None:
        return how
    walk = {name: how.get(name) for name in ("nfe", "steps", "grid", "delta")}
    times = sampling.plan(model, how["solver"], **walk, positions=_free(table))
    return {**how, **dict.fromkeys(walk), "grid": times}


def _free(table: Tensor | None) -> int | None:
    """The most positions that a sample may write."""
    return None if table is None else max(1, int((table == FREE).sum(-1).max()))


def _told(grid: Any) -> Any:
    """A grid in a card: its times, the name of a function, or also what that holds, where a name is not all of it."""
    if not callable(grid):
        return torch.as_tensor(grid).tolist()
    name = getattr(grid, "__name__", type(grid).__name__)
    return name if getattr(grid, "__qualname__", "") == name else f"{name} {fingerprint(grid)}"
