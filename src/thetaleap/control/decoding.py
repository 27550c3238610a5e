"""The decoders of the field, by the names that people know: `Tweedie` with a planner, in blocks where they say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.fields import knob
from ..planners import Confidence, FixedCount
from ..planners.confidence import RANDOMNESS
from ..solvers.tweedie import Tweedie
from .base import Method, Preset
from .blocks import Blocks

ORDER = "Which positions of a block are unmasked first: the surest (confidence) or any (random)"


@dataclass(frozen=True)
class ParallelDecoding(Preset):
    """Draw every masked position, keep the surest (MaskGIT, Chang et al. 2022).

    Confidence is ``log p + randomness * gumbel * (1 - progress)``; the number kept in step n of N is proportional to
    ``arccos(1 - n/(N-1))``, at least one while positions are left.
    """

    randomness: float = knob(4.5, RANDOMNESS, low=0, closed="low")
    evaluations = 1
    processes = "masked"
    when = "image tokens in very few steps, the surest first (MaskGIT)"

    @property
    def method(self) -> Tweedie:
        return Tweedie(Confidence(self.randomness, schedule="arccos"))


@dataclass(frozen=True)
class SemiAutoregressive(Preset):
    """Blocks from left to right; within a block a fixed number of positions per step (LLaDA, Nie et al. 2025).

    The steps are shared out evenly over the blocks, and the positions of a block over its steps, the first ones
    taking what is left over. `order` "confidence" draws all masked positions of the block and keeps the surest, by what
    the network says of the drawn token, whatever the temperature; "random" keeps a uniform subset. LLaDA calls this
    ``remasking`` "low_confidence" and "random". `block_length` counts free positions; None is one block, and the last
    block may be shorter.
    """

    order: Literal["confidence", "random"] = knob("confidence", ORDER, choices=("confidence", "random"))
    block_length: int | None = knob(None, "Positions per block, one block if not given", least=1)
    evaluations = 1
    processes = "masked"
    when = "text, block by block from left to right (LLaDA)"

    @property
    def method(self) -> Method:
        inner = Tweedie(
            Confidence(schedule="even", untempered=True) if self.order == "confidence" else FixedCount(schedule="even")
        )
        return inner if self.block_length is None else Blocks(inner, self.block_length)
