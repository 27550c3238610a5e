"""Reverse intensities: known by a bound everywhere, and by rows where a position may jump."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from .evaluation import Duplicates, Evaluation, joint_duplicates
from .processes import Bound, Process
from .times import Times, at, column

Align = Literal["destination", "displacement", "cyclic"]


@runtime_checkable
class Intensity(Protocol):
    """Intensities of all jumps from a batch of states."""

    @property
    def tight(self) -> bool:
        """Whether `bound` is the total itself."""
        ...

    @property
    def at_once(self) -> int:
        """How many rows may be worked on together."""
        ...

    def bound(self) -> Bound:
        """At least the total intensity of each position; costs no conditionals; one entry where all have the same."""
        ...

    def rows(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        """Intensity of the jump to each value at `positions`; 0 for the present value; maybe negative elsewhere.

        Made for the caller, who may write to it."""
        ...

    def duplicates(self) -> Duplicates | None:
        """Which samples have the same rows, if that is known."""
        ...


@dataclass(frozen=True)
class Frozen:
    """The reverse intensity at one state and time, ``mu(v | x, t)``; 0 where a position is not `free`."""

    process: Process
    evaluation: Evaluation
    free: Bool[Tensor, "b d"] | None = None
    """None: all are."""

    @property
    def x(self) -> Tensor:
        return self.evaluation.x

    @property
    def tight(self) -> bool:
        return self.process.known_totals

    @property
    def at_once(self) -> int:
        return self.evaluation.at_once

    def bound(self) -> Bound:
        bound = self.process.intensity_bound(self.x, column(self.evaluation.t))
        return bound if self.free is None else bound * self.free

    def rows(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        time = at(self.evaluation.t, positions, self.x.shape[1])
        present, c = self.x.flatten().index_select(0, positions), self.evaluation.probabilities(positions)
        if self.process.mask is not None and self.process.known_totals:  # the conditional itself, times a rate
            return c.mul_(self.process.intensity(torch.ones_like(c[:, :1]), present, time))
        return self.process.intensity(c, present, time)

    def duplicates(self) -> Duplicates | None:
        return self.evaluation.duplicates()


def _number(part: float | Times) -> float | Times:
    return float(part) if isinstance(part, Tensor) and part.ndim == 0 else part


@dataclass(frozen=True)
class Combined:
    """``weight * later + (1 - weight) * earlier``, for jumps from state `x`. Negative entries are the user's to clip.

    Two intensities of different states are added by the value the jump goes to (`destination`), or by how far it
    goes (`displacement`, on ordered values; `cyclic`, on a circle).
    """

    x: Int64[Tensor, "b d"]
    earlier: Frozen
    later: Frozen
    weight: float | Times
    align: Align = "destination"
    where_earlier: bool = False
    """Only jumps with a positive earlier intensity."""
    scales: tuple[float | Float64[Tensor, " ..."], float | Float64[Tensor, " ..."]] = (1.0, 1.0)
    """Factors of the earlier and the later intensity, to bring both to one unit of time."""
    tight = False

    @property
    def at_once(self) -> int:
        few = 2 if self.later.process.mask is None else 1  # whose rows take more work
        return max(1, self.later.at_once // few)

    def _parts(self) -> tuple[float | Times, float | Times]:
        """What the earlier and the later intensity are multiplied by; numbers where that is the same for all."""
        weight, (old, new) = self.weight, self.scales
        return _number((1 - weight) * old), _number(weight * new)

    def bound(self) -> Bound:
        old, new = (column(part.clamp_min(0)) if isinstance(part, Tensor) else max(part, 0.0) for part in self._parts())
        later = self.later.bound() * new
        earlier = bool((old > 0).any()) if isinstance(old, Tensor) else old > 0
        return later + self.earlier.bound() * old if earlier else later

    def rows(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        old, new = (
            at(part, positions, self.x.shape[1]) if isinstance(part, Tensor) else part for part in self._parts()
        )
        earlier, later = self._aligned(self.earlier, positions), self._aligned(self.later, positions)
        rows = later.mul_(new)
        rows = rows.addcmul_(earlier, old) if isinstance(old, Tensor) else rows.add_(earlier, alpha=old)
        if self.where_earlier:
            rows.mul_(earlier > 0)
        if self.later.process.mask is not None:  # only masked positions jump, and none jumps to the mask
            return rows
        present, states = self.x.flatten()[positions].unsqueeze(1), rows.shape[1]
        return rows.masked_fill_(torch.arange(states, device=rows.device) == present, 0.0)

    def duplicates(self) -> Duplicates | None:
        several = any(isinstance(part, Tensor) for part in self._parts())
        return None if several else joint_duplicates(self.earlier, self.later)

    def _aligned(self, part: Frozen, positions: Tensor) -> Float64[Tensor, "n S"]:
        rows = part.rows(positions)
        if self.align == "destination":
            return rows
        states = rows.shape[1]
        shift = part.x.flatten()[positions] - self.x.flatten()[positions]
        source = torch.arange(states, device=rows.device) + shift.unsqueeze(1)
        aligned = rows.gather(1, source % states)
        return aligned if self.align == "cyclic" else aligned * ((source >= 0) & (source < states))
