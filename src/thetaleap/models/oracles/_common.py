"""What the oracles share: contract and base, true samples, rows on demand, messages without underflow, checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import finite, require, require_count, require_kind
from ...core.evaluation import Denoiser, Duplicates
from ...core.noise import CPU, Draw, Stream
from ...core.processes import Masked, Process, require_process
from ...core.wrapped import Wrapped

MOST_ENTRIES = 2**24
"""Numbers in the largest table an oracle is made of."""
AT_ONCE = 2**24
"""Numbers in the messages that are held at the same time, as far as whole samples allow."""


@runtime_checkable
class Oracle(Denoiser, Protocol):
    """A denoiser that knows the truth about itself."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """How the positions lie: (length,) on a line, (height, width) row by row in the plane, None where neither."""
        ...

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        """Exact log-likelihood of clean sequences."""
        ...

    def entropy(self) -> float:
        """Exact entropy of the data law, in nats."""
        ...

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        """True samples, drawn without any diffusion."""
        ...


@dataclass(frozen=True, eq=False)
class Law:
    """The base of oracles: a law of clean sequences under a forward process."""

    process: Process
    horizon: float
    length: int
    device = CPU

    @property
    def time_free(self) -> bool:
        return self.process.mask is not None

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None

    def tokens(self, x: Tensor) -> Tensor:
        """`x` checked to be clean sequences."""
        return tokens(x, self.length, self.process.states)


@dataclass(frozen=True, eq=False)
class AroundOracle(Wrapped):
    """A model whose truth is that of the oracle inside."""

    @property
    def _truth(self) -> Oracle:
        if not isinstance(self.model, Oracle):
            name = type(self.model).__name__
            raise ValueError(f"model={name}: knows no log_prob, entropy or draw; wrap an oracle")
        return self.model

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        return self._truth.log_prob(x)

    def entropy(self) -> float:
        return self._truth.entropy()

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        return self._truth.draw(num, seed)


def ancestral(num: int, seed: int, length: int, weights: Callable[[int, list[Tensor]], Tensor]) -> Tensor:
    """True samples, position by position: ``weights(position, columns before it)`` is the law of the next column."""
    require_count("num", num)
    noise, each = Stream(seed, 0, num), torch.arange(num)
    columns: list[Tensor] = []
    for position in range(length):
        law = weights(position, columns).expand(num, -1)
        columns.append(noise.at(position)(Draw.DRAW).choose(each, 1, law, stay=False))
    return torch.stack(columns, 1)


@dataclass(frozen=True)
class OnDemand:
    """Conditionals computed by a function of the positions asked for."""

    rows: Callable[[Tensor], Tensor]
    same: Duplicates | None = None

    def duplicates(self) -> Duplicates | None:
        return self.same

    def logits(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        weights = self.rows(positions)  # a row of zeros, whose surroundings the law cannot produce, becomes uniform
        return torch.where(weights.amax(1, keepdim=True) == 0, 0.0, weights.log())


def on_demand(solve: Callable[[Tensor], Tensor], x: Int64[Tensor, "b d"], states: int, entries: int) -> OnDemand:
    """Conditionals from ``solve(x) -> weights (b, d, S)``, run once on each sample that is asked about.

    A sample's messages hold `entries` numbers; as many samples go together as fit into `AT_ONCE`.
    """
    length, together = x.shape[1], max(1, AT_ONCE // entries)
    solved = torch.empty((*x.shape, states), dtype=torch.float64)
    known = torch.zeros(len(x), dtype=torch.bool)

    def rows(positions: Tensor) -> Tensor:
        row = positions // length
        for part in torch.unique(row[~known[row]]).split(together):
            if len(part):
                solved[part], known[part] = solve(x[part]), True
        return solved[row, positions % length]

    return OnDemand(rows)


def evidence(x: Int64[Tensor, "b d"], states: int) -> Float64[Tensor, "d b S"]:
    """Which clean values agree with what is seen at each position: one, or all of them at a masked position."""
    table = torch.cat([torch.eye(states, dtype=torch.float64), torch.ones((1, states), dtype=torch.float64)])
    return table[x.T]


def scaled(message: Tensor, *dims: int) -> Tensor:
    """`message` divided by its largest entry over `dims`, so that products of many never underflow; zeros stay."""
    top = message.amax(dims, keepdim=True)
    return message / torch.where(top > 0, top, 1.0)


def tokens(x: Tensor, length: int, states: int) -> Tensor:
    """`x` checked to be clean sequences."""
    require_kind("x", x, Tensor, f"give an int64 tensor of sequences, (batch, {length})")
    if x.ndim != 2 or x.shape[1] != length or x.dtype != torch.int64:
        raise ValueError(f"x={tuple(x.shape)} of {x.dtype}: give int64 sequences of shape (batch, {length})")
    if len(x) and (int(x.min()) < 0 or int(x.max()) >= states):
        worst = int(x.max()) if int(x.max()) >= states else int(x.min())
        raise ValueError(f"x holds the token {worst}: clean tokens are 0 to {states - 1}")
    return x


def checked_horizon(process: Process, horizon: float | None) -> float:
    """`horizon`, or by default the schedule's."""
    value = process.schedule.horizon if horizon is None else horizon
    require(finite(value) and value > 0, "horizon", value, "give a positive time")
    return float(value)


def masked(process: Process | None, states: int, what: str) -> Masked:
    """`process`, or by default a masked one, checked to be masked and to have as many `states` as `what`."""
    process = Masked(states) if process is None else process
    require_process(process)
    if not isinstance(process, Masked):
        name = type(process).__name__
        raise ValueError(f"process={name}: a {what} is exact under Masked only; use joint for short sequences")
    require(process.states == states, "process.states", process.states, f"the {what} has {states}")
    return process
