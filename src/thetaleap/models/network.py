"""Bring your own network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ..core.checks import require, require_count
from ..core.evaluation import Conditionals, Dense
from ..core.processes import Process

Inputs = Callable[..., Tensor]
"""``f(x, t)``, or ``f(x, t, label)``."""


@dataclass(frozen=True)
class Headed:
    """Conditionals whose head runs on the positions that are asked for."""

    hidden: Float[Tensor, "n h"]
    head: Callable[[Tensor], Tensor]

    def logits(self, positions: Int64[Tensor, " n"]) -> Float[Tensor, "n S"]:
        logits = self.head(self.hidden.index_select(0, positions))
        _require_float("head output", logits)
        return logits

    def duplicates(self) -> None:
        return None


@dataclass(frozen=True)
class Whole:
    """A function that gives logits at every position, as what a `Network` evaluates."""

    network: Inputs
    states: int

    def __call__(self, x: Int64[Tensor, "b d"], *inputs: Tensor, **more: Tensor) -> Dense:
        logits, shape = self.network(x, *inputs, **more), (*x.shape, self.states)
        good = isinstance(logits, Tensor) and tuple(logits.shape) == shape
        _require_shape("network output", logits, good, f"logits of shape (batch, length, states) = {shape}")
        _require_float("network output", logits)
        return Dense(logits)


@dataclass(frozen=True)
class Split:
    """A trunk and its head, as what a `Network` evaluates."""

    trunk: Inputs
    head: Callable[[Tensor], Tensor]

    def __call__(self, x: Int64[Tensor, "b d"], *inputs: Tensor, **more: Tensor) -> Headed:
        hidden = self.trunk(x, *inputs, **more)
        good = isinstance(hidden, Tensor) and hidden.ndim == 3 and hidden.shape[:2] == x.shape
        _require_shape("trunk output", hidden, good, f"hidden rows of shape (batch, length, h) = {(*x.shape, 'h')}")
        return Headed(hidden.flatten(0, 1), self.head)


@dataclass(frozen=True)
class Network:
    """A network as a denoiser: a function ``f(x, t) -> logits (b, d, S)``, or a trunk and a head."""

    process: Process
    length: int
    evaluate: Callable[..., Conditionals]
    horizon: float
    time_free: bool
    device: torch.device
    tokenizer: Any = None
    """What turns its tokens into text and back, with `encode` and `decode`; None where there is none."""
    shape: tuple[int, ...] | None = None
    """How the positions lie: (length,) on a line, (height, width) row by row in the plane, None where neither."""
    attends: bool = False
    """Whether the network takes ``valid=``, and attends to valid positions alone."""
    classes: int | None = None
    """How many labels the network takes; None if it takes none."""
    labels: Int64[Tensor, " b"] | None = None
    """Of the samples of a batch; without, the label is dropped."""
    pictures: Any = None
    """What makes images (b, 3, height, width), from 0 to 1, of tokens, with `decode`; None where there is none."""
    valid: Bool[Tensor, "num d"] | None = None
    """Positions that are there, of each sample of a run: `padded` says so."""

    def padded(self, valid: Bool[Tensor, "num d"]) -> Network:
        """The same for sequences of different lengths: the network does not attend to positions that are not `valid`.

        What the template holds there does not matter. The network must take ``valid=``, as with `from_network`'s
        ``attends=True``.
        """
        require(self.attends, "valid", tuple(valid.shape), "this network does not take it; make it with attends=True")
        require(
            valid.shape[1] == self.length, "valid shape", tuple(valid.shape), f"the model has {self.length} positions"
        )
        return replace(self, valid=valid)

    def of(self, samples: Int64[Tensor, " b"]) -> Network:
        """The model for a batch that consists of these samples of the run."""
        return self if self.valid is None else replace(self, valid=self.valid[samples.to(self.valid.device)])

    def labelled(self, labels: Int64[Tensor, " b"]) -> Network:
        """The same for a batch with these labels; ``classes`` stands for none."""
        return replace(self, labels=labels)

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        inputs = [x, t.to(x.device).expand(x.shape[0])]
        if self.classes is not None:
            none = torch.full((len(x),), self.classes, device=x.device)
            inputs.append(none if self.labels is None else self.labels.to(x.device))
        if not self.attends:
            return self.evaluate(*inputs)
        everywhere = torch.ones_like(x, dtype=torch.bool)
        return self.evaluate(*inputs, valid=everywhere if self.valid is None else self.valid.to(x.device))


def from_network(
    process: Process,
    *,
    length: int,
    network: Inputs | None = None,
    trunk: Inputs | None = None,
    head: Callable[[Tensor], Tensor] | None = None,
    horizon: float | None = None,
    time_free: bool = False,
    device: torch.device | str = "cpu",
    tokenizer: Any = None,
    shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    attends: bool = False,
    pictures: Any = None,
) -> Network:
    """Make a model of `network`, any function or module ``f(x, t) -> logits``; or of its `trunk` and `head`.

    Args:
        process: what the network was trained to reverse, e.g. ``Masked(states=50257)``.
        length: number of positions d.
        network: takes ``x``, int64 (b, d), with the value S where a position is masked, and ``t``, float64 (b,), and
            gives logits (b, d, S) of the clean token at each position *given all other positions*. For masked processes
            this is what masked models give; only the rows of masked positions are read. Networks that give score
            ratios are converted by ``process.from_score``. Logits must be probabilities' logarithms up to a
            constant per row: not probabilities.
        trunk: in place of `network`, all of it but the last layer: takes the same, and gives hidden rows (b, d, h).
        head: the last layer: takes some of these rows, (n, h), and gives their logits (n, S). It is run on the
            positions that jump alone, which with a large vocabulary saves most of the time and memory.
        horizon: the time of pure noise; by default the schedule's.
        time_free: say True if the network ignores t: it is then not run again for samples that have not changed.
        device: where the network wants its input.
        tokenizer: what turns tokens into text and back, with `encode` and `decode`, for people to read.
        classes: how many labels there are, if the network takes them: `network` or `trunk` is then called with a third
            input, int64 (b,), from 0 to ``classes - 1``, or ``classes`` where the label is dropped; see `guided`.
        attends: say True if the network takes a keyword ``valid``, booleans (b, d), and attends to such positions
            alone, so that sequences of different lengths can go together: see `Network.padded`.
        pictures: what makes images of tokens, with `decode`, such as a VQGAN.
        shape: how the positions lie, where that is known: (length,) on a line, (height, width) row by row in the plane.
    """
    require_count("length", length)
    if network is None:
        whole = callable(trunk) and callable(head)
        require(whole, "(network, trunk, head)", (network, trunk, head), "give a network, or both a trunk and a head")
    else:
        require(trunk is None and head is None, "(trunk, head)", (trunk, head), "give these or a network, not both")
        require(callable(network), "network", network, "give a function f(x, t) -> logits")
    horizon = process.schedule.horizon if horizon is None else float(horizon)
    require(0 < horizon < float("inf"), "horizon", horizon, "give a positive time")

    if shape is not None:
        positions = int(torch.tensor(shape).prod())
        require(positions == length, "shape", shape, f"has {positions} positions, but the length is {length}")
    if classes is not None:
        require_count("classes", classes)
    if network is None:
        assert trunk is not None
        assert head is not None
        evaluate = Split(trunk, head)
    else:
        evaluate = Whole(network, process.states)
    place = torch.device(device)
    return Network(
        process, length, evaluate, horizon, time_free, place, tokenizer, shape, attends, classes, pictures=pictures
    )


def _require_shape(what: str, output: Any, good: bool, wanted: str) -> None:
    if not good:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"{what}={got}: must be {wanted}")


def _require_float(what: str, output: Tensor) -> None:
    if not output.is_floating_point():
        raise TypeError(f"{what}={output.dtype}: must be floating-point logits")
