"""Bring your own network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ..core.checks import as_device, finite, is_whole, require, require_count, require_flag, shown
from ..core.evaluation import Conditionals, Dense, Duplicates
from ..core.processes import Process, require_process
from ..core.times import at
from .guards import explained, fitted, layers_in_training, probe, watched

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


@dataclass(frozen=True, eq=False)
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

    def parts(self) -> dict[str, Callable[..., Tensor]]:
        """What was given, by name."""
        return {"network": self.network}


@dataclass(frozen=True, eq=False)
class Split:
    """A trunk and its head, as what a `Network` evaluates."""

    trunk: Inputs
    head: Callable[[Tensor], Tensor]

    def __call__(self, x: Int64[Tensor, "b d"], *inputs: Tensor, **more: Tensor) -> Headed:
        hidden = self.trunk(x, *inputs, **more)
        good = isinstance(hidden, Tensor) and hidden.ndim == 3 and hidden.shape[:2] == x.shape
        _require_shape("trunk output", hidden, good, f"hidden rows of shape (batch, length, h) = {(*x.shape, 'h')}")
        return Headed(hidden.flatten(0, 1), self.head)

    def parts(self) -> dict[str, Callable[..., Tensor]]:
        """What was given, by name."""
        return {"trunk": self.trunk, "head": self.head}


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """`inner`, logits given all positions, less what the token at a position says of itself: ``log P_t(v, token)``."""

    inner: Conditionals
    x: Int64[Tensor, "b d"]
    t: Float64[Tensor, "*b"]
    process: Process

    def logits(self, positions: Int64[Tensor, " n"]) -> Float64[Tensor, "n S"]:
        time = at(self.t, positions, self.x.shape[1])
        return self.inner.logits(positions).double() - self.process.likelihood(self.x.flatten()[positions], time).log()

    def duplicates(self) -> Duplicates | None:
        return self.inner.duplicates()


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
    posterior: bool = False
    """Whether `evaluate` gives logits given all positions, the one that they are about included."""
    block: int | None = None
    """Positions of a block, of networks in which no block sees those behind it; None where all see each other."""
    name: str = ""
    """By which `load` knows it; without, it is somebody's own and is looked through before its first run."""

    def inspect(self, given: Int64[Tensor, " d"] | None = None) -> None:
        """Raise an error if the network cannot be meant as it is. What it says at the start of a sample, of which a
        template may be `given`, is looked at before the first run, and again when some of it has gone to training mode."""
        if self.name or not isinstance(self.evaluate, Whole | Split):
            return
        parts = self.evaluate.parts()
        layers = {layer: whole for part in parts.values() for layer, whole in layers_in_training(part).items()}
        training = frozenset(map(id, layers))
        if _INSPECTED.get(self.evaluate) == training:
            return
        mask = self.process.mask
        careful = {name: explained(name, part, None if name == "head" else mask) for name, part in parts.items()}
        plain = replace(self, evaluate=replace(self.evaluate, **careful), labels=torch.zeros(1, dtype=torch.int64))
        plain = plain if self.valid is None else replace(plain, valid=self.valid[:1])
        what = " and ".join(parts)
        with watched(what, layers):
            probe(plain, what, self.posterior, given)
        _INSPECTED[self.evaluate] = training

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

    def blocks(self, batch: int) -> Int64[Tensor, "b d"]:
        """The number of the block that each position of each sample is in, padding left out."""
        assert self.block is not None
        there = torch.ones((batch, self.length), dtype=torch.bool) if self.valid is None else self.valid
        return numbered(there) // self.block

    def labelled(self, labels: Int64[Tensor, " b"]) -> Network:
        """The same for a batch with these labels; ``classes`` stands for none."""
        return replace(self, labels=labels)

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        inputs = [x, t.to(x.device).expand(x.shape[0])]
        if self.classes is not None:
            none = torch.full((len(x),), self.classes, device=x.device)
            inputs.append(none if self.labels is None else self.labels.to(x.device))
        more = {}
        if self.attends:
            everywhere = torch.ones_like(x, dtype=torch.bool)
            more["valid"] = everywhere if self.valid is None else self.valid.to(x.device)
        said = self.evaluate(*inputs, **more)
        return LeaveOneOut(said, x, inputs[1], self.process) if self.posterior else said


def numbered(valid: Bool[Tensor, "b d"]) -> Int64[Tensor, "b d"]:
    """Valid positions numbered from 0 on; padding has the number of the one before it, or 0."""
    return (valid.cumsum(1) - 1).clamp(min=0)


_INSPECTED: WeakKeyDictionary[Whole | Split, frozenset[int]] = WeakKeyDictionary()
"""What has been looked through, and which layers of it were in training mode then."""


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
    posterior: bool = False,
) -> Network:
    """Make a model of `network`, any function or module ``f(x, t) -> logits``; or of its `trunk` and `head`.

    Args:
        process: what the network was trained to reverse, e.g. ``Masked(states=50257)``.
        length: number of positions d.
        network: takes ``x``, int64 (b, d), with the value S where a position is masked, and ``t``, float64 (b,), and
            gives logits (b, d, S) of the clean token at each position *given all other positions*. For masked processes
            this is what masked models give; only the rows of masked positions are read. Networks that give score
            ratios are converted by ``process.from_score``. Logits must be probabilities' logarithms up to a
            constant per row: not probabilities. A network that ignores time may take ``x`` alone.
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
        posterior: say True if, without masks, the logits are given *all* positions, the one that they are about
            included, as of networks trained to guess the clean sequence. The likelihood of its token is divided out.
        shape: how the positions lie, where that is known: (length,) on a line, (height, width) row by row in the plane.
    """
    require_process(process)
    require_count("length", length)
    for name, flag in (("time_free", time_free), ("attends", attends), ("posterior", posterior)):
        require_flag(name, flag)
    if network is None:
        whole = callable(trunk) and callable(head)
        require(whole, "(network, trunk, head)", (network, trunk, head), "give a network, or both a trunk and a head")
    else:
        require(trunk is None and head is None, "(trunk, head)", (trunk, head), "give these or a network, not both")
        require(callable(network), "network", network, "give a function f(x, t) -> logits")
    horizon = process.schedule.horizon if horizon is None else horizon
    require(finite(horizon) and horizon > 0, "horizon", horizon, "give a positive time")
    require(process.mask is None or not posterior, "posterior", posterior, "masks say nothing; leave it out")
    if shape is not None:
        positions = _product(shape)
        require(positions == length, "shape", shape, f"has {positions} positions, but the length is {length}")
    if classes is not None:
        require_count("classes", classes)
    for method in ("encode", "decode") if tokenizer is not None else ():
        has = callable(getattr(tokenizer, method, None))
        require(has, "tokenizer", tokenizer, f"has no {method}; give an object with encode and decode")
    inputs, more = ("x", "t", "label") if classes is not None else ("x", "t"), ("valid",) if attends else ()
    if network is None:
        assert trunk is not None
        assert head is not None
        evaluate = Split(fitted("trunk", trunk, inputs, more, time_free), head)
    else:
        evaluate = Whole(fitted("network", network, inputs, more, time_free), process.states)
    return Network(
        process,
        length,
        evaluate,
        float(horizon),
        time_free,
        as_device(device),
        tokenizer,
        shape,
        attends,
        classes,
        pictures=pictures,
        posterior=posterior,
    )


def _product(shape: tuple[int, ...]) -> int:
    if not isinstance(shape, tuple | list) or not all(is_whole(side) for side in shape):
        raise TypeError(f"shape={shown(shape)}: give (length,) or (height, width)")
    return math.prod(shape)


def _require_shape(what: str, output: Any, good: bool, wanted: str) -> None:
    if not good:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"{what}={got}: must be {wanted}")


def _require_float(what: str, output: Tensor) -> None:
    if not output.is_floating_point():
        raise TypeError(f"{what}={output.dtype}: must be floating-point logits")
