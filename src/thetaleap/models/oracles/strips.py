"""Ising and Potts models on strips, by transfer matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import finite, require, require_count
from ...core.evaluation import Conditionals
from ...core.noise import Draw, Stream, inverse_cdf
from ...core.processes import Masked, Process
from ._common import AT_ONCE, Law, checked_horizon, evidence, masked, on_demand, scaled

MOST_COLUMNS = 4096
BLOCK = 64
"""The largest matrix that the rows of a column go through together."""
MOST_SPREAD = 600.0
"""exp(-MOST_SPREAD) is still a number."""

Message = Float64[Tensor, "b N"]


@dataclass(frozen=True, eq=False)
class Transfer:
    """The weights of one column, (N,) with ``N = S^height``, row 0 being the highest digit; and of neighbouring
    columns, a Kronecker product of one (S, S) matrix for each row, multiplied out for blocks of rows."""

    column: Float64[Tensor, " N"]
    blocks: tuple[Tensor, ...]

    def across(self, message: Message) -> Message:
        """``sum_c message[c] prod_r exp(bond[c_r, c'_r])``, block by block; each turn moves the last to the front."""
        batch = len(message)
        for block in reversed(self.blocks):
            message = (message.view(batch, -1, len(block)) @ block).transpose(1, 2).reshape(batch, -1)
        return message


def transfer(bond: Float64[Tensor, "S S"], position: Float64[Tensor, " S"], height: int) -> tuple[Transfer, Tensor]:
    """The weights of a strip, scaled to at most one, and the logarithms of the two scales (column, neighbours)."""
    states, top = len(bond), bond.max()
    column = position
    for _ in range(height - 1):  # a row more: bond to the row above, and its own weight
        column = (column.view(-1, states, 1) + bond + position).flatten()
    rows = max(1, int(math.log(BLOCK, states)))
    sizes = [min(rows, height - first) for first in range(0, height, rows)]
    blocks = tuple(reduce(torch.kron, [(bond - top).exp()] * size) for size in sizes)
    return Transfer((column - column.max()).exp(), blocks), torch.stack([column.max(), height * top])


@dataclass(frozen=True, eq=False)
class Strip(Law):
    """``P(x) ∝ exp(sum_neighbours bond[x_i, x_j] + sum_i position[x_i])`` on a grid with free boundaries.

    `bond` is symmetric. Positions are numbered row by row. An evaluation passes messages from column to column, at a
    cost of O(width height S^(height+1)) for each sample asked about.
    """

    process: Masked
    bond: Float64[Tensor, "S S"]
    position: Float64[Tensor, " S"]
    height: int
    width: int
    weights: Transfer = field(repr=False)
    log_z: float

    @property
    def shape(self) -> tuple[int, int]:
        return (self.height, self.width)

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        states = self.process.states
        return on_demand(self._weights, x, states, self.width * states**self.height)

    def _weights(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, "b d S"]:
        """``P(x_l = v, what is seen elsewhere)`` up to a factor.

        A column's law comes from the messages of both sides, which do not know the column; then the rest of the
        column is summed out.
        """
        seen = evidence(x, self.process.states).unflatten(0, self.shape)
        right = self._from_the_right(seen)
        left, result = torch.ones_like(right[0]), torch.empty_like(seen)
        for c in range(self.width):
            column = left * self.weights.column
            _leave_one_out(scaled(column * right.pop(), 1), seen[:, c], result[:, c])
            left = self.weights.across(scaled(column * _product(seen[:, c]), 1))
        return result.flatten(0, 1).movedim(0, 1)

    def _from_the_right(self, seen: Float64[Tensor, "h w b S"]) -> list[Message]:
        """Each column's message from all later ones, the last column's first."""
        messages = [torch.ones((seen.shape[2], len(self.weights.column)), dtype=torch.float64)]
        for c in range(self.width - 1, 0, -1):
            column = messages[-1] * self.weights.column * _product(seen[:, c])
            messages.append(self.weights.across(scaled(column, 1)))
        return messages

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        grid = self.tokens(x).unflatten(1, self.shape)
        vertical = self.bond[grid[:, :-1], grid[:, 1:]].sum((1, 2))
        horizontal = self.bond[grid[:, :, :-1], grid[:, :, 1:]].sum((1, 2))
        return vertical + horizontal + self.position[grid].sum((1, 2)) - self.log_z

    def entropy(self) -> float:
        """``log Z(1) - Z'(1)/Z(1)``, where Z(a) is the sum of all weights to the power a."""
        with torch.enable_grad():
            power = torch.ones((), dtype=torch.float64, requires_grad=True)
            log_z = _log_z(power * self.bond, power * self.position, *self.shape)
            (slope,) = torch.autograd.grad(log_z, power)
        return float(log_z.detach() - slope)

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        """Column by column: ``P(c' | c) ∝ column[c'] prod_r exp(bond[c_r, c'_r]) message[c']``."""
        require_count("num", num)
        noise, states = Stream(seed, 0, num), self.process.states
        nothing = evidence(torch.full((1, self.length), self.process.mask), states)
        right = self._from_the_right(nothing.unflatten(0, self.shape))
        columns = [torch.full((self.height, num), states)]  # before the first: a value without any pull
        for c in range(self.width):
            u, law = noise.at(c)(Draw.DRAW).uniform(num), self.weights.column * right.pop()[0]
            columns.append(self._next_column(columns[-1], law, u))
        return torch.stack(columns[1:], 2).movedim(0, 1).flatten(1)

    def _next_column(
        self, previous: Int64[Tensor, "h num"], law: Float64[Tensor, " N"], u: Float64[Tensor, " num"]
    ) -> Int64[Tensor, "h num"]:
        states, rows = self.process.states, max(1, AT_ONCE // (4 * len(law)))
        pull = torch.cat([(self.bond - self.bond.max()).exp(), torch.ones((1, states), dtype=torch.float64)])
        parts = zip(previous.split(rows, 1), u.split(rows), strict=True)
        code = torch.cat([inverse_cdf(law * _product(pull[some]), answers, stay=False) for some, answers in parts])
        return code // states ** torch.arange(self.height - 1, -1, -1).unsqueeze(1) % states


def _product(rows: Float64[Tensor, "h b S"]) -> Message:
    """``prod_r rows[r][c_r]`` for every column c."""
    result = rows[0]
    for row in rows[1:]:
        result = (result.unsqueeze(2) * row.unsqueeze(1)).flatten(1)
    return result


def _leave_one_out(column: Message, seen: Float64[Tensor, "h b S"], result: Float64[Tensor, "h b S"]) -> None:
    """For each row, sum a column's weights over all other rows as far as they agree with what is seen there.

    Rows above are summed out once and for all, so that all of it costs as much as a few passes over the column.
    """
    height, batch, states = seen.shape
    below = column
    for r in range(height):
        rest = below
        for other in reversed(seen[r + 1 :].unbind()):
            rest = (rest.view(batch, -1, states) * other.unsqueeze(1)).sum(2)
        result[r] = rest
        below = (below.view(batch, states, -1) * seen[r].unsqueeze(2)).sum(1)


def _log_z(bond: Tensor, position: Tensor, height: int, width: int) -> Tensor:
    """The logarithm of the sum of the weights of all configurations."""
    weights, scales = transfer(bond, position, height)
    message, total = weights.column.unsqueeze(0), width * scales[0] + (width - 1) * scales[1]
    for _ in range(width - 1):
        top = message.max()
        message, total = weights.across(message / top) * weights.column, total + top.log()
    return total + message.sum().log()


def _strip(
    bond: Tensor, position: Tensor, height: int, width: int, process: Process | None, horizon: float | None
) -> Strip:
    states = len(position)
    require_count("height", height)
    require_count("width", width)
    size = f"{states}**{height} different columns, at most {MOST_COLUMNS}; let the height be the shorter side"
    require(states**height <= MOST_COLUMNS, "height", height, size)
    process = masked(process, states, "strip")
    weights, _ = transfer(bond, position, height)
    # a column's own weights, and what its two neighbours can say about it
    spread = float(-weights.column.log().min() + 2 * height * (bond.max() - bond.min()))
    remedy = f"at most {MOST_SPREAD:g}, or they underflow; lower the coupling, the field or the height"
    require(spread <= MOST_SPREAD, "spread of a column's log-weights", spread, remedy)
    log_z = float(_log_z(bond, position, height, width))
    until = checked_horizon(process, horizon)
    return Strip(process, until, height * width, bond, position, height, width, weights, log_z)


def ising(
    height: int,
    width: int,
    coupling: float,
    field: float = 0.0,
    process: Process | None = None,
    horizon: float | None = None,
) -> Strip:
    """A masked Ising model: ``P ∝ exp(coupling sum_neighbours s_i s_j + field sum_i s_i)``, free boundaries.

    The values 0 and 1 stand for the spins -1 and +1; position = row * width + column. ``2**height`` may be at most 4096,
    `width` is free.
    """
    require(finite(coupling), "coupling", coupling, "give a finite number")
    require(finite(field), "field", field, "give a finite number")
    spin = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    return _strip(float(coupling) * spin.outer(spin), float(field) * spin, height, width, process, horizon)


def potts(
    states: int, height: int, width: int, coupling: float, process: Process | None = None, horizon: float | None = None
) -> Strip:
    """A masked Potts model: ``P ∝ exp(coupling * (number of neighbours that are equal))``, free boundaries.

    Position = row * width + column. ``states**height`` may be at most 4096, `width` is free.
    """
    require_count("states", states, least=2)
    require(finite(coupling), "coupling", coupling, "give a finite number")
    bond = float(coupling) * torch.eye(states, dtype=torch.float64)
    return _strip(bond, torch.zeros(states, dtype=torch.float64), height, width, process, horizon)
