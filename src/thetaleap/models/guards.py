"""Mistakes that people make with their own networks, found before the first run.

Without a check they show as an error inside the network, or as bad samples and no error at all.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from ..core.checks import takes
from ..core.evaluation import Denoiser, Evaluation
from ..core.free import FREE

Function = Callable[..., Any]

FEW = 4
"""Positions that are checked."""
DEEP, MANY = 4, 100
"""How far, and at how many things, to look for modules."""
SAME = 0.02
"""Logits that differ by less than this part of the largest are the same: a network may compute in half precision."""
PEEKS = 0.5
"""Share of what an ordinary posterior says of its own position from which a network is taken for one. The trained
network of the package with a uniform process, which only learned to leave its position out, has at most 0.15."""
WHERE = "the check before the run"


# --- how a network is called


def fitted(
    what: str, network: Function, inputs: tuple[str, ...], keywords: tuple[str, ...], time_free: bool
) -> Function:
    """`network`, which is to be called with `inputs`; one that takes tokens alone is told nothing else."""
    if takes(network, *inputs, **dict.fromkeys(keywords)) is not False:
        return network
    alone = takes(network, "x") is not False and len(inputs) == 2 and not keywords
    if alone and time_free:
        return Timeless(network)
    call = f"{what}({', '.join([*inputs, *(f'{name}=...' for name in keywords)])})"
    remedy = "takes x alone, and so ignores time: say time_free=True" if alone else f"must take {call}"
    raise TypeError(f"{what}={name_of(network)}: {remedy}")


class Timeless:
    """A network that takes tokens alone."""

    def __init__(self, network: Function) -> None:
        self.network = network
        self.__name__ = name_of(network)

    def __call__(self, x: Tensor, t: Tensor) -> Any:
        return self.network(x)


def name_of(function: Any) -> str:
    """What to call it in errors."""
    return getattr(function, "__name__", type(function).__name__)


def explained(what: str, function: Function, mask: int | None = None) -> Function:
    """`function`, whose errors say what it was called with, and what is likely to be wrong."""

    def call(*inputs: Tensor, **more: Tensor) -> Any:
        try:
            return function(*inputs, **more)
        except InTrainingMode:
            raise
        except Exception as error:  # whatever it is, it is the network's
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(_complaint(what, function, mask, error, inputs, more)) from error

    return call


def _complaint(
    what: str,
    function: Function,
    mask: int | None,
    error: Exception,
    inputs: tuple[Tensor, ...],
    more: dict[str, Tensor],
) -> str:
    line = str(error).strip().split("\n")[0]
    sizes = ", ".join(f"{str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}" for one in inputs)
    told = f"{what}={name_of(function)}: fails when it is called with {sizes} ({type(error).__name__}: {line})"
    outside = isinstance(error, IndexError) or "device-side assert" in line or "out of bounds" in line
    if outside and mask is not None and _runs(function, torch.zeros_like(inputs[0]), *inputs[1:], **more):
        return f"{told}; masks are the value {mask}, so its embedding must have states + 1 = {mask + 1} rows"
    if "device" in line and "same" in line:
        return f"{told}; move it, or say where it is with device="
    if "dtype" in line or "Double" in line:
        return f"{told}; the time is float64: let the network begin with t = t.float()"
    return f"{told}; call it yourself with these to see where"


def _runs(function: Function, *inputs: Tensor, **more: Tensor) -> bool:
    try:
        function(*inputs, **more)
    except Exception:  # it is being tried
        return False
    return True


# --- modules


def modules_in(thing: Any) -> list[nn.Module]:
    """Modules that a function is, is bound to, or uses by name."""
    found: list[nn.Module] = []
    seen: set[int] = set()
    now = [thing]
    for _ in range(DEEP):
        now = [one for one in now if id(one) not in seen and callable(one) and not isinstance(one, type)][:MANY]
        seen |= set(map(id, now))
        found += [one for one in now if isinstance(one, nn.Module)]
        now = [part for one in now if not isinstance(one, nn.Module) for part in _parts(one)]
    return found


def _parts(thing: Any) -> Iterator[Any]:
    if isinstance(thing, partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, MethodType):
        yield from (thing.__self__, thing.__func__, *getattr(thing.__self__, "__dict__", {}).values())
    elif isinstance(thing, FunctionType):
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from (thing.__globals__[name] for name in _globals(thing.__code__) if name in thing.__globals__)
    else:
        yield from getattr(thing, "__dict__", {}).values()


@lru_cache(maxsize=1024)
def _globals(code: CodeType) -> list[str]:
    """Global names that it uses; every run asks, and to find them takes as long as a step."""
    return sorted({step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"})


class InTrainingMode(ValueError):
    """A layer that acts otherwise in training was about to do so."""


def layers_in_training(function: Function) -> dict[nn.Module, str]:
    """Layers that a function may use and that are in training mode, with the name of the module that they are of."""
    return {part: name_of(whole) for whole in modules_in(function) for part in whole.modules() if part.training}


@contextmanager
def watched(what: str, layers: dict[nn.Module, str]) -> Iterator[None]:
    """Raise an error when one of `layers` is run that acts otherwise in training, before it does."""

    def stop(layer: nn.Module, inputs: Any) -> None:
        raise InTrainingMode(
            f"{what}: its {type(layer).__name__} runs in training mode, so that samples are not a function of the seed; "
            f"call .eval() on the {layers[layer]} first"
        )

    hooks = [layer.register_forward_pre_hook(stop) for layer in layers if _differs(layer)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _differs(layer: nn.Module) -> bool:
    """Whether it acts otherwise in training."""
    dropout = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
    return dropout or isinstance(layer, nn.modules.batchnorm._BatchNorm)


# --- what a network says


def probe(model: Denoiser, what: str, posterior: bool = False, given: Int64[Tensor, " d"] | None = None) -> None:
    """Evaluate `model` a few times, and raise an error if what it says cannot be meant."""
    process, mask = model.process, model.process.mask
    x, t = torch.arange(model.length) * 7 % process.states, _half_noised(model)
    if mask is not None:
        x, t = torch.full_like(x, mask), model.horizon
    free = torch.ones_like(x, dtype=torch.bool) if given is None else given == FREE
    x = x if given is None else torch.where(free, x, given)
    places = torch.nonzero(free).flatten()
    if not len(places):
        return
    some = places[torch.linspace(0, len(places) - 1, min(FEW, len(places))).long()]
    now = _row(model, x, t, some)
    if bool((now >= 0).all()) and bool(((now.sum(1) - 1).abs() < 1e-3).all()):
        raise ValueError(
            f"{what}: its rows are at least 0 and sum to 1, so these are probabilities and no logits; give their "
            "logarithm, as in lambda x, t: network(x, t).log()"
        )
    if not _same(now, _row(model, x, t, some)):
        raise ValueError(
            f"{what}: says two things of the same input, so that samples are not a function of the seed; call .eval() "
            "on its module, or take the randomness out"
        )
    if model.time_free and not _same(now, _row(model, x, t / 2, some)):
        raise ValueError(f"time_free=True: but {what} says something else at another time; leave it out")
    share = 0.0 if mask is not None else _own_share(model, x, t, some, now)
    if share > PEEKS:
        raise ValueError(
            f"{what}: looks at the token of the very position that it speaks of, so these are posteriors given all "
            "positions; say posterior=True, which takes that token out again"
        )
    if posterior and share < -PEEKS:
        raise ValueError(f"posterior=True: but {what} leaves the position that it speaks of out already; leave it out")


def _half_noised(model: Denoiser) -> float:
    """A time at which half of the tokens are untouched, or as early as there are times."""
    return min(model.horizon / 2, float(model.process.schedule.alpha_inverse(0.5)))


def _row(model: Denoiser, x: Tensor, t: float, some: Tensor) -> Float64[Tensor, "n S"]:
    """Logits of some positions of one sequence, which must be numbers on the model's device."""
    place, time = model.device, torch.tensor([t], dtype=torch.float64, device=model.device)
    with torch.no_grad():
        batch = x.unsqueeze(0).to(place)
        said = Evaluation(batch, time, model(batch, time), model.process.states, WHERE)
        logits = said.conditionals.logits(some.to(place))
        if logits.device.type != place.type:
            raise ValueError(f"device={str(place)!r}: but logits come on {logits.device}; say where the network is")
        said.probabilities(some.to(place))  # complains of what is no number
    return logits.double().cpu()


def _same(one: Tensor, two: Tensor) -> bool:
    if not torch.equal(one.isfinite(), two.isfinite()):
        return False
    one, two = (rows.where(rows.isfinite(), 0.0) for rows in (one, two))
    return float((one - two).abs().max()) <= SAME * float(one.abs().max())


def _own_share(model: Denoiser, x: Tensor, t: float, some: Tensor, now: Tensor) -> float:
    """What a token changes in its own row, as a share of what it changes in the posterior given all positions.

    There the row is multiplied by the likelihood of the token, ``P_t(v, token)``. With token a the log-odds of a
    against b, less those with token b, grow by ``log P(a, a) P(b, b) / (P(b, a) P(a, b))``.
    """
    shares, time = [], torch.tensor(t, dtype=torch.float64)
    for n, position in enumerate(some.tolist()):
        a, other = int(x[position]), x.clone()
        b = other[position] = (a + 1) % model.process.states
        then = _row(model, other, t, some[n : n + 1])[0]
        kept = model.process.likelihood(torch.tensor([a, int(b)]), time).log()
        grown = (now[n, a] - now[n, b]) - (then[a] - then[b])
        shares.append(float(grown / (kept[0, a] - kept[0, b] - kept[1, a] + kept[1, b])))
    found = [share for share in shares if abs(share) < float("inf")]
    return sum(found) / len(found) if found else 0.0
