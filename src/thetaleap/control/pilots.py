"""Planned counts, for masked processes: how many positions to unmask in each step, from a few hundred pilot sequences.

With exact conditionals, a step that unmasks the positions j, ..., k - 1 of an order together, knowing those before j,
adds ``cost(j, k) = sum_{m=j}^{k-1} (h[j, m] - h[m, m])`` nats to the KL divergence of the paths, where
``h[j, m] = E H(x_{o_m} | x_{o_1}, ..., x_{o_j})``. Pilots measure h, the cheapest path from 0 to d with as many edges
as evaluations gives the counts, and a grid of times tells them to a counting planner.

What is minimised is the divergence of the paths, which bounds that of the samples: the plan is good, not optimal.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ..core.checks import is_whole, require, require_count, require_kind
from ..core.evaluation import Denoiser, as_model
from ..core.noise import Stream
from ..core.reverse import Reverse
from ..core.storage import replacing
from ..core.wrapped import inspected
from ..planners import FixedCount, LowDiscrepancy, expected_counts
from ..solvers.exponential import ExponentialTrapezoidal
from ..solvers.multistep import Multistep
from ..solvers.tweedie import Tweedie
from .base import Method, Walk, control_of
from .loop import run

Ordered = FixedCount | LowDiscrepancy
"""Planners whose order does not depend on what the model says."""

ALL_MEASURED = 128
"""The longest sequences of which h is measured at every j."""
MEASURED = 64
"""About as many values of j are measured of longer ones."""
SAME_MODEL = 1e-4
"""Nats by which the entropies of one model may differ between machines."""
BATCH_BYTES = 128 * 2**20


def counted(model: Denoiser, counts: Sequence[int]) -> Float64[Tensor, " times"]:
    """The grid along which a counting planner unmasks ``counts[0]`` positions, then ``counts[1]``, and so on.

    Left masked of d positions at time s are ``d (1 - alpha_s)/(1 - alpha_T)``; the times solve this for s.
    """
    model = as_model(model)
    process, length = model.process, model.length
    require(
        process.mask is not None, "model.process", process, "counts are of positions to unmask; use a Masked process"
    )
    given = tuple(counts) if isinstance(counts, Sequence | np.ndarray) else ()
    whole = len(given) > 0 and all(is_whole(k) and k > 0 for k in given)
    require(whole, "counts", counts, "give whole numbers of at least 1")
    require(sum(given) == length, "counts", given, f"sum to {sum(given)}, but the model has {length} positions")
    clean = float(process.schedule.alpha(0.0))
    remedy = "some positions are masked even at time 0; use a schedule with alpha(0) = 1, such as LogLinear"
    require(clean == 1, "schedule.alpha(0)", clean, remedy)
    left = length - torch.tensor((0, *given), dtype=torch.float64).cumsum(0)
    noised = 1 - process.schedule.alpha(model.horizon)
    times = process.schedule.alpha_inverse(1 - noised * left / length)
    times[0], times[-1] = model.horizon, 0.0
    found = expected_counts(process, length, times)
    remedy = f"the schedule rounds them to {tuple(found.tolist())}; use LogLinear, or a shorter horizon"
    require(tuple(found.tolist()) == given and bool((times.diff() < 0).all()), "counts", given, remedy)
    return times


@dataclass(frozen=True, eq=False)
class EntropyTable:
    """What pilots say about a model: ``h[j, m] = E H(x_{o_m} | x_{o_1}, ..., x_{o_j})`` for j <= m, in nats.

    h[j, m] is the mean entropy of position m of the order when the j positions before number j are known, all
    counted from 0; below the diagonal, where the position is known itself, it is 0.
    """

    h: Float64[Tensor, "d d"]
    states: int
    order: str
    """The planner whose order it is, as text."""
    pilots: int
    seed: int
    fingerprint: Float64[Tensor, "2 d"]
    """Entropies of all positions in two fixed states, which tell models apart."""

    @property
    def length(self) -> int:
        return len(self.h)

    def save(self, path: str | Path) -> None:
        """Write the table to `path` as a NumPy archive, whole or not at all."""
        about = {"states": self.states, "order": self.order, "pilots": self.pilots, "seed": self.seed}
        with replacing(Path(path)) as part, part.open("wb") as file:
            text, h, fingerprint = np.array(json.dumps(about)), self.h.numpy(), self.fingerprint.numpy()
            np.savez_compressed(file, about=text, h=h, fingerprint=fingerprint)

    @classmethod
    def load(cls, path: str | Path) -> EntropyTable:
        """The table that `save` wrote to `path`."""
        try:
            with np.load(path, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                h, fingerprint = torch.from_numpy(file["h"]), torch.from_numpy(file["fingerprint"])
            fields = {name: about[name] for name in ("states", "order", "pilots", "seed")}
        except (KeyError, ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise ValueError(f"path={str(path)!r}: not a file that EntropyTable.save wrote ({error})") from None
        square = h.ndim == 2 and h.shape[0] == h.shape[1] and fingerprint.shape == (2, len(h))
        sound = square and bool(torch.isfinite(h).all()) and h.dtype == fingerprint.dtype == torch.float64
        require(sound, "path", str(path), "its table is damaged; measure it again with pilot_entropies")
        return cls(h=h, fingerprint=fingerprint, **fields)

    def check(self, model: Denoiser, planner: Ordered) -> None:
        """Raise ``ValueError`` unless this was measured on `model` in the order of `planner`."""
        mine, yours = (self.length, self.states), (model.length, model.process.states)
        again = "measure one with pilot_entropies(model, planner)"
        require(mine == yours, "table (length, states)", mine, f"the model has {yours}; {again}")
        require(self.order == repr(planner), "table.order", self.order, f"the solver goes by {planner!r}; {again}")
        off = float((self.fingerprint - _fingerprint(model)).abs().max())
        remedy = f"its entropies are {off:.2g} nats off this model's, so that it is of another model; {again}"
        require(off <= SAME_MODEL, "table.fingerprint", f"of {self.length} positions", remedy)


def pilot_entropies(
    model: Denoiser,
    planner: Ordered | None = None,
    pilots: int = 300,
    seed: int = 0,
    *,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EntropyTable:
    """Measure ``h[j, m]`` on `pilots` sequences drawn one position at a time, in the order of `planner`.

    Costs as many evaluations per pilot as there are positions. Of sequences longer than 128 the entropies of all masked
    positions are worked out at about 64 values of j only, which lie closer towards both ends; between them h is linear
    in j. For `LowDiscrepancy` the diagonal ``h[m, m]`` comes from the draws themselves and is measured everywhere; for
    `FixedCount` h depends on j alone, and is the mean over all masked positions.

    Args:
        model: a masked model.
        planner: `FixedCount`, the default: an order chosen uniformly; or `LowDiscrepancy`.
        pilots: how many sequences.
        seed: pilot i is a function of (seed, i) alone.
        batch_size: pilots drawn together; by default as many as keep working memory near 128 MiB.
        progress: called after every evaluation of a batch, with how many position draws are done, and of how many.
    """
    model = inspected(model)
    planner = FixedCount() if planner is None else planner
    length, states = model.length, model.process.states
    _require_ordered(planner)
    planner.check(length)
    require_count("pilots", pilots)
    times = counted(model, (1,) * length)
    if batch_size is None:
        batch_size = max(1, BATCH_BYTES // (32 * length * states))
    require_count("batch_size", batch_size)
    measured, total = _measured(length), torch.zeros((length, length), dtype=torch.float64)
    with torch.no_grad():
        for first in range(0, pilots, batch_size):
            count = min(batch_size, pilots - first)
            for j, entropies in _walk(model, planner, times, measured, seed, first, count):
                # a running sum adds one pilot after the other: the same whatever the batch
                ahead = slice(j, j + entropies.shape[1])
                total[j, ahead] = torch.cat([total[j : j + 1, ahead], entropies.cpu()]).cumsum(0)[-1]
                if progress is not None:
                    progress(first * length + count * (j + 1), pilots * length)
        fingerprint = _fingerprint(model)
    filled = _filled if isinstance(planner, LowDiscrepancy) else _levelled
    return EntropyTable(filled(total / pilots, measured), states, repr(planner), pilots, seed, fingerprint)


def plan_counts(table: EntropyTable, nfe: int) -> tuple[int, ...]:
    """The cheapest counts in `nfe` steps: the shortest path from 0 to d with `nfe` edges of length
    ``cost(j, k) = sum_{m=j}^{k-1} (h[j, m] - h[m, m])``, by dynamic programming in O(nfe d^2)."""
    _require_nfe(nfe, table.length)
    cost, came = _costs(table.h), []
    best = torch.full((table.length + 1,), math.inf, dtype=torch.float64)
    best[0] = 0
    for _ in range(nfe):
        best, j = (best.unsqueeze(1) + cost).min(0)
        came.append(j.tolist())
    path = [table.length]
    for step in reversed(came):
        path.append(step[path[-1]])
    return tuple(k - j for j, k in pairwise(reversed(path)))


def planned(
    model: Denoiser,
    solver: Method,
    nfe: int,
    pilots: int = 300,
    seed: int = 0,
    table: EntropyTable | None = None,
) -> Float64[Tensor, " times"]:
    """The grid along which `solver` spends exactly `nfe` evaluations on the counts that `plan_counts` finds.

    `solver` is `Tweedie` or `Multistep` with the planner `FixedCount` or `LowDiscrepancy`. The plan costs
    ``pilots * length`` evaluations; with a `table` from `pilot_entropies` two, and `pilots` and `seed` do not matter.
    """
    model = inspected(model)
    planner = _planner_of(solver)
    control_of(solver).check(model.process, model.length)
    _require_nfe(nfe, model.length)
    if table is None:
        table = pilot_entropies(model, planner, pilots, seed)
    else:
        require_kind("table", table, EntropyTable, "give what pilot_entropies gives")
        table.check(model, planner)
    return counted(model, plan_counts(table, nfe))


def _planner_of(solver: Method) -> Ordered:
    """The planner of `solver`, if its steps are one evaluation each and its order is its own."""
    use = "use Tweedie(planner=FixedCount()), Tweedie(planner=LowDiscrepancy()) or Multistep()"
    two = "it unmasks in two stages per step, and counts are planned for one; "
    known = isinstance(solver, Tweedie | Multistep)
    remedy = two if isinstance(solver, ExponentialTrapezoidal) else "its steps cannot be planned; "
    require(known, "solver", type(solver).__name__, remedy + use)
    assert isinstance(solver, Tweedie | Multistep)
    planner = FixedCount() if solver.planner is None else solver.planner
    require(isinstance(planner, Ordered), "solver.planner", planner, f"its steps cannot be planned; {use}")
    assert isinstance(planner, Ordered)
    return planner


def _require_ordered(planner: Ordered) -> None:
    good = isinstance(planner, Ordered)
    require(good, "planner", planner, "pilots need an order fixed beforehand; use FixedCount() or LowDiscrepancy()")


def _require_nfe(nfe: int, length: int) -> None:
    require_count("nfe", nfe)
    require(
        nfe <= length, "nfe", nfe, f"every step unmasks at least one of the {length} positions; give at most {length}"
    )


def _measured(length: int) -> list[int]:
    """Where to measure: every j, or about `MEASURED` of them, ``length (1 - cos(pi u))/2`` for equally spaced u.

    Closer towards both ends: dependence that all positions share shows at the first positions known, and dependence
    such as parity at the last.
    """
    if length <= ALL_MEASURED:
        return list(range(length))
    spread = (int(length * (1 - math.cos(math.pi * n / MEASURED)) / 2) for n in range(MEASURED))
    return sorted({*spread, length - 1})


def _walk(
    model: Denoiser, planner: Ordered, times: Tensor, measured: list[int], seed: int, first: int, count: int
) -> Iterator[tuple[int, Float64[Tensor, "b left"]]]:
    """Draw a batch of pilots position by position; for every j, the entropies of the positions j, j + 1, ... of the
    order where j is `measured`, and of position j alone where it is not."""
    control = Walk(Multistep(weight=0.0, planner=planner))  # Tweedie, with a memory of the last evaluation
    each, wanted = torch.arange(count, device=model.device).unsqueeze(1), set(measured)
    for state in run(model, control, times, Stream(seed, first, count, model.device), first=first):
        j = state.stage - 1
        if not 0 <= j < model.length:  # the noise, and the finish
            continue
        history, (_, order) = state.memory
        ahead = torch.argsort(order.key, 1, descending=True)[:, j : None if j in wanted else j + 1]
        rows = (each * model.length + ahead).flatten()
        yield j, _entropy(history.past[0].probabilities(rows).view(*ahead.shape, -1))


def _entropy(p: Float64[Tensor, "*n S"]) -> Float64[Tensor, "*n"]:
    """``-sum p log p``."""
    return -torch.xlogy(p, p).sum(-1)


def _filled(h: Float64[Tensor, "d d"], measured: list[int]) -> Float64[Tensor, "d d"]:
    """`h` with the rows between those `measured` filled in, linearly in j.

    Between rows a < j < b, position m >= b goes from h[a, m] to h[b, m]; a position m < b is known by b, and goes from
    h[a, m] to h[m, m], which is measured for every m.
    """
    h, length, positions = h.clone(), len(h), torch.arange(len(h))
    for a, b in pairwise([*measured, length]):
        end = positions.clamp(max=b)
        target = torch.where(positions < b, h.diagonal(), h[min(b, length - 1)])
        slope = (target - h[a]) / (end - a).clamp_min(1)
        for j in range(a + 1, b):
            h[j, j + 1 :] = (h[a] + (j - a) * slope)[j + 1 :]
    return h


def _levelled(h: Float64[Tensor, "d d"], measured: list[int]) -> Float64[Tensor, "d d"]:
    """The table of an order chosen uniformly, where all positions ahead have one law: h[j, m] is the same for every m
    >= j.

    So it is the mean of row j over m, far less noisy than a position alone; linear in j between those `measured`.
    """
    mean = h.sum(1) / torch.arange(len(h), 0, -1)
    level = np.interp(np.arange(len(h)), measured, mean[measured].numpy())
    return torch.from_numpy(level).unsqueeze(1).expand_as(h).triu()


def _costs(h: Float64[Tensor, "d d"]) -> Float64[Tensor, "d1 d1"]:
    """``cost[j, k]`` for j < k; infinite where k <= j, for a step unmasks at least one position."""
    length = len(h)
    cost = torch.full((length + 1, length + 1), math.inf, dtype=torch.float64)
    cost[:-1, 1:] = torch.triu(h - h.diagonal()).cumsum(1)
    return cost.masked_fill(torch.ones_like(cost, dtype=torch.bool).tril(), math.inf)


def _fingerprint(model: Denoiser) -> Float64[Tensor, "2 d"]:
    """Entropies of all positions when every position is masked, and when every other one is known.

    The second tells models apart whose positions all have the same law, such as Ising models of different couplings.
    """
    process, length = model.process, model.length
    noise = Stream(0, 0, 2, model.device)
    x = process.prior(2, length, noise).to(model.device)
    x[1, ::2] = torch.arange((length + 1) // 2, device=model.device) % process.states
    half = process.schedule.alpha_inverse((1 + process.schedule.alpha(model.horizon)) / 2)
    found = torch.zeros((2, length), dtype=torch.float64)
    reverse = replace(Reverse.begin(model, 1), where="the fingerprint")
    for row, t in enumerate((model.horizon, float(half))):
        positions = torch.nonzero(process.active(x[row : row + 1])[0]).flatten()
        with torch.no_grad():
            found[row, positions.cpu()] = _entropy(reverse.evaluate(x[row : row + 1], t).probabilities(positions)).cpu()
    return found
