"""Published text models as denoisers: RADD, SEDD and MDLM.

The weights are a file, a folder with ``config.json`` and weights, or a hub id, the only case in which anything is
downloaded. Where there is no ``config.json``, sizes are read off the shapes of the weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ...core.checks import require, require_choice, require_flag
from ...core.processes import Masked, Uniform
from ...core.schedules import Geometric, LogLinear, Schedule
from ..network import Network, from_network
from ..tokenizers import GPT2, GPT2_TOKENS
from ..transformer import BUFFERS, Sizes, Transformer, total_noise
from ..weights import Device, Dtype, Shapes, built, config_of, find, read_content, tensors_of
from .raw_rates import Scores

Config = Mapping[str, Any]


def radd(source: str | Path, length: int = 1024, dtype: Dtype = None, device: Device = "cpu") -> Network:
    """A RADD model (Ou et al., 2024, arXiv:2406.03736): masked and time-free, its logits are the conditionals.

    Args:
        source: where the weights are: a file, a folder, or a hub id such as ``JingyangOu/radd-lambda-dce``.
        length: number of tokens of a sample.
        dtype: in which to compute; by default float32.
        device: where to compute.
    """
    found = _found("radd", source)
    module = _transformer(found, dtype, device, masked=True, conditioned=False)
    return _text(module, Masked(module.sizes.tokens, LogLinear()), length, device, time_free=True)


def mdlm(
    source: str | Path,
    length: int = 1024,
    dtype: Dtype = None,
    device: Device = "cpu",
    time_conditioning: bool | None = None,
) -> Network:
    """An MDLM model (Sahoo et al., 2024, arXiv:2406.07524): masked, its logits are the conditionals.

    The network has an input for the noise level. With `time_conditioning` that is the total noise; without, as for the
    published weights, it is always 0, and the model is time-free. It is asked for where neither ``config.json`` nor
    the file says it; a checkpoint of Lightning does. Other arguments as for `radd`, with a hub id such as
    ``kuleshov-group/mdlm-owt``.
    """
    found = _found("mdlm", source, time_conditioning=time_conditioning)
    told = found.config.get("time_conditioning")
    remedy = (
        "the file does not say whether the network is told the noise level; give False, as of the published weights"
    )
    require(
        told is not None, "time_conditioning", None, f"{remedy}, or True: {_typed(found, 'time_conditioning=False')}"
    )
    require_flag("time_conditioning", told)
    require_choice("parameterization", found.config.get("parameterization", "subs"), ("subs",))
    module = _transformer(found, dtype, device, masked=True, conditioned=True)
    return _text(module, Masked(module.sizes.tokens, _schedule(found.config)), length, device, time_free=not told)


def sedd(
    source: str | Path,
    length: int = 1024,
    dtype: Dtype = None,
    device: Device = "cpu",
    graph: str | None = None,
    noise: str | None = None,
    sigma_min: float | None = None,
    sigma_max: float | None = None,
) -> Network:
    """A SEDD model (Lou et al., 2024, arXiv:2310.16834), whose outputs are logarithms of score ratios.

    If the `graph` is ``absorb``, tokens are masked, and at masked positions ``score(v) = c(v) alpha / (1 - alpha)``: the
    outputs are logits of the conditional c up to a constant per row. (What ``scale_by_sigma`` adds is such a constant,
    too.) If it is ``uniform``, `conditionals_from_scores` converts the outputs, and the noise must be known.

    Either way ratios that are those of no law, as an imperfect network's may be, become those of one: solvers then draw
    from another reverse process than the raw ratios have. For a well-trained network the two are close; for a poor one
    they are not, and at the first evaluation where they are far apart there is a warning with the figure. The solver
    `RawRates` draws from the raw ratios, as published code does.

    Where ``config.json`` does not say them, `graph` and, for uniform models, `noise` ("loglinear" or "geometric", which
    goes from `sigma_min` to `sigma_max`) are asked for: training files do not hold them. Other arguments as for `radd`,
    with a hub id such as ``louaaron/sedd-small``.
    """
    given = {"type": noise, "sigma_min": sigma_min, "sigma_max": sigma_max}
    given = {name: value for name, value in given.items() if value is not None}
    found = _found("sedd", source, graph=graph, noise=given or None)
    kind = _entry(found.config.get("graph", {}), "type", default=None)
    remedy = "the file does not say whether tokens are masked or replaced; give 'absorb' or 'uniform'"
    require(kind is not None, "graph", None, f"{remedy}: {_typed(found, 'graph=absorb')}")
    require_choice("graph", kind, ("absorb", "uniform"))
    masked = kind == "absorb"
    remedy = "uniform models differ in it, and the file does not say it; give 'loglinear', or 'geometric' with its ends"
    example = f"{'' if graph is None else f'graph={graph},'}noise=geometric,sigma_min=1e-4,sigma_max=20"
    require(masked or "noise" in found.config, "noise", None, f"{remedy}: {_typed(found, example)}")
    scaled = bool(_entry(found.config, "scale_by_sigma", default=False))
    require(masked or not scaled, "scale_by_sigma", scaled, "says nothing for uniform models; set it to false")
    module = _transformer(found, dtype, device, masked, conditioned=True)
    process = (Masked if masked else Uniform)(module.sizes.tokens, _schedule(found.config))
    if masked:
        logits = partial(_masked_head, module, scaled, Watch("the logarithm of their sum is off by"))
    else:
        logits = partial(_uniform_head, module, Watch("they move the law of a noised token, in total variation, by"))
    head = Scores(logits, partial(_ratios, module, scaled))
    return _text(module, process, length, device, time_free=False, head=head)


FAR = 0.1
"""How far apart raw ratios and those of a law may be, on average over an evaluation, without a warning."""


class Watch:
    """Warns, once, if raw ratios are far from those of a law."""

    def __init__(self, what: str) -> None:
        self.what, self.told = what, False

    def __call__(self, distance: Tensor) -> None:
        mean = float(distance.mean()) if distance.numel() and not self.told else 0.0
        if mean > FAR:
            self.told = True
            more = "samples are of the law that they are scaled to, and not what code that takes them raw would draw"
            warnings.warn(
                f"the network's score ratios are those of no law: {self.what} {mean:.2f}; {more}", stacklevel=2
            )


def _score_trunk(module: Transformer, schedule: Schedule, x: Tensor, t: Tensor) -> Tensor:
    """Hidden rows and, in two more columns, what the heads need to know: the token and the noise there."""
    sigma = total_noise(schedule, t)
    hidden = module.trunk(x, sigma)
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))  # holds any token's number
    noise = sigma.to(hidden.dtype).view(-1, 1, 1).expand(*x.shape, 1)
    return torch.cat([hidden, x.unsqueeze(-1).to(hidden.dtype), noise], -1)


def _split(module: Transformer, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The network's outputs, the token and the total noise at each row."""
    hidden = rows[:, :-2].to(module.output_layer.linear.weight.dtype)
    return module.head(hidden), rows[:, -2].long(), rows[:, -1:].to(torch.float64)


def _ratios(module: Transformer, scaled: bool, rows: Tensor) -> Float64[Tensor, "n S"]:
    """The network's score ratios, as they are; that of the present token is 1."""
    logs, present, sigma = _split(module, rows)
    logs = logs.double()
    if scaled:
        logs = logs - torch.log(torch.expm1(sigma)) - math.log(module.sizes.channels - 1)
    own = torch.arange(module.sizes.tokens, device=rows.device) == present.unsqueeze(1)
    return torch.exp(logs.masked_fill(own, 0.0))


def _masked_head(module: Transformer, scaled: bool, watch: Watch, rows: Tensor) -> Tensor:
    """Logits at masked positions, where the ratios should add up to ``alpha / (1 - alpha) = 1 / (e^sigma - 1)``."""
    logits, present, sigma = _split(module, rows)
    total = torch.logsumexp(logits.double(), 1, keepdim=True)
    total = total - math.log(module.sizes.channels - 1) if scaled else total + torch.log(torch.expm1(sigma))
    watch(total[present == module.sizes.tokens].abs())
    return logits


def _uniform_head(module: Transformer, watch: Watch, rows: Tensor) -> Tensor:
    scores, present, sigma = _split(module, rows)
    alpha = torch.exp(-sigma)
    law = torch.softmax(scores.double().scatter(1, present.unsqueeze(1), 0.0), 1)
    watch(torch.clamp_min((1 - alpha) / module.sizes.tokens - law, 0).sum(1))
    return conditionals_from_scores(scores, present, alpha)


def conditionals_from_scores(
    log_scores: Float[Tensor, "n S"], present: Int64[Tensor, " n"], alpha: Float64[Tensor, "n 1"]
) -> Float64[Tensor, "n S"]:
    """Logits of the leave-one-out conditional of the uniform process, from the logarithms of score ratios.

    Ratios are proportional to ``p_t(v | others) = alpha c(v) + (1 - alpha)/S``, and so c is proportional to
    ``score - (1 - alpha) mean(score)``. The ratio of the `present` token is 1, whatever the network says.

    The ratios of an imperfect network may be those of no conditional: some c(v) then come out below 0. They are set
    to 0, and the others scaled so that they sum to 1. If m was below 0, this moves c by m and p_t by m alpha, in total
    variation. Near the noise, where alpha is small, p_t is moved little, and c may be moved far; near the data both are.
    How far the law of samples goes depends on all steps: for a poor network it may be moved as far as it can be.
    """
    logs = log_scores.to(torch.float64).scatter(1, present.unsqueeze(1), 0.0)
    score = torch.exp(logs - logs.amax(1, keepdim=True))
    mean = torch.minimum(score.mean(1, keepdim=True), score.amax(1, keepdim=True))  # rounding: no mean beyond all
    return torch.log(torch.clamp_min(score - mean + alpha * mean, 0))


def _text(
    module: Transformer,
    process: Masked | Uniform,
    length: int,
    device: Device,
    time_free: bool,
    head: Callable[[Tensor], Tensor] | None = None,
) -> Network:
    """With a `head` of its own, it is given the rows of `_score_trunk`."""
    schedule = process.schedule
    plain = module.at(None if time_free else schedule)
    return from_network(
        process,
        length=length,
        trunk=plain if head is None else partial(_score_trunk, module, schedule),
        head=head or module.head,
        time_free=time_free,
        device=device,
        tokenizer=GPT2() if process.states == GPT2_TOKENS else None,
        shape=(length,),
    )


@dataclass(frozen=True)
class Found:
    """A file of weights, what it holds, and all that is known about it."""

    name: str
    """As ``tl.load`` takes it."""
    path: Path
    content: Any
    config: dict[str, Any]


def _found(kind: str, source: str | Path, **given: Any) -> Found:
    """What is `given` goes before ``config.json``, and that before what the file says itself."""
    found = find(source, kind)
    content = read_content(found.path)
    config = config_of(content) | found.config
    return Found(
        f"{kind}:{source}", found.path, content, config | {key: one for key, one in given.items() if one is not None}
    )


def _typed(found: Found, options: str) -> str:
    """How to say it, in a program and on the command line."""
    arguments = ", ".join(
        f"{name}={value if value in ('True', 'False') or value[0].isdigit() else repr(value)}"
        for name, _, value in (option.partition("=") for option in options.split(","))
    )
    return f"tl.load({found.name!r}, {arguments}), or {found.name},{options} on the command line"


def _transformer(found: Found, dtype: Dtype, device: Device, masked: bool, conditioned: bool) -> Transformer:
    what, tensors = f"weights={str(found.path)!r}", tensors_of(found.content, found.path, BUFFERS)
    shapes = Shapes(tensors, what, "give those of another model")
    return built(lambda: Transformer(_sizes(found.config, shapes, masked, conditioned)), tensors, what, dtype, device)


def _sizes(config: Config, shapes: Shapes, masked: bool, conditioned: bool) -> Sizes:
    """Sizes as the configuration has them; what it leaves out is read off the weights."""

    def number(*names: str) -> int | None:
        return _entry(config, *names, default=None)

    table = "vocab_embed.embedding"
    channels = number("vocab_size") or shapes.width(table, 0)
    hidden = number("hidden_size", "hidden_dim") or shapes.width(table, 1)
    return Sizes(
        tokens=number("tokens") or channels - masked,
        hidden=hidden,
        blocks=number("n_blocks") or shapes.count(r"blocks\.(\d+)\."),
        heads=number("n_heads") or hidden // (2 * shapes.width("rotary_emb.inv_freq", 0)),
        cond_dim=(number("cond_dim") or shapes.width("sigma_map.mlp.2.weight", 0, 128)) if conditioned else None,
        masked=masked,
    )


def _entry(config: Any, *names: str, default: Any) -> Any:
    """The first of `names` in `config`, or else among its entries for the model; `config` may be the entry itself."""
    if not isinstance(config, Mapping):
        return config
    model = config.get("model")
    for section in (config, model if isinstance(model, Mapping) else {}):
        for name in names:
            if section.get(name) is not None:
                return section[name]
    return default


def _schedule(config: Config) -> Schedule:
    noise = config.get("noise", {})
    kind = _entry(noise, "type", default="loglinear")
    require_choice("noise", kind, ("loglinear", "geometric"))
    section = noise if isinstance(noise, Mapping) else config
    if kind == "loglinear":
        return LogLinear(float(_entry(section, "eps", default=LogLinear().eps)))
    ends = [_entry(section, name, default=None) for name in ("sigma_min", "sigma_max")]
    require(None not in ends, "noise", noise, "geometric noise needs sigma_min and sigma_max")
    return Geometric(*map(float, ends))
