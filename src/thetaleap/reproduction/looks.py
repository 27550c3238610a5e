"""How many samples: drawn once, or, with ``--full``, until every claim is decided.

The rule is fixed beforehand. An experiment looks at its claims after n samples a row, 2n, 4n, ... up to 32n, which is the
cap. A claim is judged at each look until it is decided. Only rows that undecided claims compare are drawn further, so that
rows end with different numbers of samples. If all rows of a claim that agrees are drawn further for the sake of others, it
is judged again and may turn out to differ; that it differs stays.

Distances fall with the number of samples. So methods that stand beside each other in a figure are drawn together up to 8n,
as long as any claim is undecided, and the table has them as they are then: what is drawn beyond is for claims alone. The
same is done with what others are compared with.

A true claim gets six chances to be said to differ, where a single look gives it one. So the probability is at most six
times that of `rules` for each row that is compared: 0.81% in one direction and 1.6% in both. Looks at the same samples
depend on each other, which makes it 0.67% and 1.3% where the truth is on the edge, and next to nothing beyond it.

What was drawn is kept in files, and is not drawn again: a run that was stopped goes on where it was. One that is given
hours begins no look after them, whatever the looks before have shown: what is undecided then is said to be so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from .. import __version__
from ..core.evaluation import Denoiser
from ..core.free import FREE
from ..core.storage import replacing
from ..evaluation.recommend import recommend
from ..registry import AUTO
from ..sampling import Samples, joined
from .methods import Led, drawn_by
from .pages import Job
from .rules import Claim
from .study import Row, Study

LOOKS = 6
EVEN = 4
"""Of these looks, so many are at all methods of a figure."""
SAYS = 32
"""Positions by which a model is known, the last ones."""
AT_ONCE = 128
"""Samples that are drawn between two files."""


@dataclass(frozen=True)
class Cell:
    """A row to measure."""

    method: str
    nfe: int | None
    num: int
    """Samples at the first look."""
    work: float
    """Evaluations of one sample, at most."""
    theta: float | None = None
    judged: bool = True
    """Whether claims are about it; if not, it is measured at the first look alone."""


def until_decided(
    job: Job,
    name: str,
    cells: Sequence[Cell],
    measure: Callable[[Cell, int], Row],
    judge: Callable[[Study], Sequence[Claim]],
    beside: Collection[str] = (),
) -> tuple[Study, list[Claim]]:
    """The table, and the claims, each as it was when it was decided last; without ``full`` after one look.

    Args:
        job: of the experiment.
        name: of it.
        cells: the rows.
        measure: the row of a cell with so many samples, those of an earlier look among them.
        judge: the claims, in the same order each time.
        beside: methods that are drawn together in the first looks, as long as any claim is undecided.
    """
    rows: dict[Cell, Row] = {}
    table: dict[Cell, Row] = {}
    claims: list[Claim] = []
    wanted = list(cells)
    for look in range(1, 1 + (LOOKS if job.full else 1)):
        factor = 2 ** (look - 1)
        added = factor - factor // 2
        label = "evaluations" if look == 1 else f"evaluations, look {look} of {LOOKS}"
        with job.bar(label, sum(cell.num * cell.work * added for cell in wanted)) as advance:
            for cell in wanted:
                rows[cell] = measure(cell, factor * cell.num)
                advance(cell.num * cell.work * added)
        table |= {cell: rows[cell] for cell in wanted if look <= EVEN or cell.method not in beside}
        found = list(judge(Study.of(name, [rows[cell] for cell in cells])))
        claims = [_later(old, new, cells, wanted) for old, new in zip(claims or found, found, strict=True)]
        missing = {cell for claim in claims if claim.verdict == "undecided" for cell in _compared(claim, cells)}
        along = beside if missing and look < EVEN else ()
        wanted = [cell for cell in cells if cell in missing or (cell.judged and cell.method in along)]
        if not wanted or job.late:
            break
    return Study.of(name, [table[cell] for cell in cells]), claims


def _compared(claim: Claim, cells: Sequence[Cell]) -> set[Cell]:
    """Whose rows a claim compares; those without a budget are compared at all."""
    own = [cell for cell in cells if cell.judged and cell.method in claim.methods]
    return {cell for cell in own if not claim.budgets or cell.nfe is None or cell.nfe in claim.budgets}


def _later(old: Claim, new: Claim, cells: Sequence[Cell], drawn: Collection[Cell]) -> Claim:
    """Of a claim at two looks, the one that counts, if these cells were drawn in between."""
    again = old.verdict != "differs" and new.verdict != "undecided" and _compared(new, cells) <= set(drawn)
    return new if old.verdict == "undecided" or again else old


# --- what was drawn


COLUMNS = ("x", "nfe", "spent", "rounds")


def draw_by(
    job: Job,
    known: Mapping[str, Any],
    num: int,
    model: Callable[[int, int], Denoiser],
    solver: Led,
    nfe: int | None,
    *,
    template: Int64[Tensor, "num d"] | None = None,
    **manner: Any,
) -> Samples:
    """`num` samples by a method, see `draw` and `drawn_by`; ``model(from, how many)`` is the one for some of them.

    `known` is what they depend on beside the solver, its budget and the seed.
    """

    def make(first: int, count: int) -> Samples:
        given = None if template is None else template[first : first + count]
        how = {"first": first, "num": count, "seed": job.seed, "template": given, "progress": False}
        return drawn_by(model(first, count), solver, nfe, **how, **manner)

    advised = solver == AUTO and nfe is not None
    told = repr(recommend(model(0, 1), nfe).solver if advised else solver)  # advice changes; then it is drawn anew
    return draw(job, {**known, "solver": told, "nfe": nfe, "seed": job.seed}, num, make)


def draw(job: Job, told: Mapping[str, Any], num: int, make: Callable[[int, int], Samples]) -> Samples:
    """`num` samples: those in a file, if the job keeps files, and fresh ones, ``make(from, how many)``.

    `told` is all that the samples depend on, the model by its `fingerprint`: another is another file.
    """
    path = None if not job.full else job.folder / "draws" / f"{digest({**told, 'version': __version__})}.npz"
    have = _read(path) if path is not None and path.is_file() else None
    while have is None or len(have.x) < num:
        start = 0 if have is None else len(have.x)
        fresh = make(start, min(AT_ONCE if path else num, num - start))
        have = fresh if have is None else joined([have, fresh])
        if path is not None:
            _write(path, have)
    return replace(have, **{name: getattr(have, name)[:num] for name in COLUMNS})


def digest(told: Mapping[str, Any]) -> str:
    """A name for settings."""
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()[:24]


def fingerprint(model: Denoiser, given: Int64[Tensor, " d"] | None = None) -> str:
    """A name for a model by what it says of one noisy sequence, to five digits: other weights say something else.

    The sequence is a template, of which the free positions are noise; by default a third of the positions are given.

    `jobs.fingerprint` is a hash of the weights instead, the same on every device. It would not do here: samples are kept
    between runs, and must be drawn anew also where the code of a network has changed.
    """
    states, place = model.process.states, torch.arange(model.length)
    x = torch.where(place % 3 == 0, place % states, FREE) if given is None else given
    blank = states if model.process.mask is not None else 0
    noisy = torch.where(x == FREE, blank, x).unsqueeze(0).to(model.device)
    time = torch.tensor(model.horizon / 2, dtype=torch.float64, device=model.device)
    with torch.no_grad():
        said = model(noisy, time).logits(place[-SAYS:].to(model.device)).double()
    likely = (said - said.logsumexp(1, keepdim=True)).clamp_min(-50)
    return digest({"says": [f"{value:.5g}" for value in likely.mean(1).tolist()]})[:12]


def _read(path: Path) -> Samples:
    with np.load(path, allow_pickle=False) as arrays:
        x, nfe, spent, rounds = (torch.from_numpy(arrays[name].astype(np.int64)) for name in COLUMNS)
    return Samples(x, nfe, spent, rounds, {})


def _write(path: Path, drawn: Samples) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **{name: getattr(drawn, name).numpy().astype(np.int32) for name in COLUMNS})
