"""Published text models as denoisers: RADD, SEDD and MDLM.

The weights are a file, a folder with ``config.json`` and weights, or a hub id, the only case in which anything is
downloaded. Where there is no ``config.json``, sizes are read off the shapes of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    outputs are logits of the conditional c up to a constant per row, which makes no difference. (What
    ``scale_by_sigma`` adds is such a constant, too.) Ratios which do not add up to alpha / (1 - alpha), as those of an
    imperfect network, are thereby scaled to do so.

    If it is ``uniform``, `conditionals_from_scores` converts the outputs, and the noise must be known.

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
    return _text(module, process, length, device, time_free=False)


def _score_trunk(module: Transformer, schedule: Schedule, x: Tensor, t: Tensor) -> Tensor:
    """Hidden rows and, in two more columns, what `_score_head` needs to know: the token and the noise there."""
    sigma = total_noise(schedule, t)
    hidden = module.trunk(x, sigma)
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))  # holds any token's number
    noise = sigma.to(hidden.dtype).view(-1, 1, 1).expand(*x.shape, 1)
    return torch.cat([hidden, x.unsqueeze(-1).to(hidden.dtype), noise], -1)


def _score_head(module: Transformer, rows: Tensor) -> Tensor:
    hidden, present, sigma = rows[:, :-2], rows[:, -2].long(), rows[:, -1:].to(torch.float64)
    scores = module.head(hidden.to(module.output_layer.linear.weight.dtype))
    return conditionals_from_scores(scores, present, torch.exp(-sigma))


def conditionals_from_scores(
    log_scores: Float[Tensor, "n S"], present: Int64[Tensor, " n"], alpha: Float64[Tensor, "n 1"]
) -> Float64[Tensor, "n S"]:
    """Logits of the leave-one-out conditional of the uniform process, from the logarithms of score ratios.

    Ratios are proportional to ``p_t(v | others) = alpha c(v) + (1 - alpha)/S``, and so c is proportional to
    ``score - (1 - alpha) mean(score)``. The ratio of the `present` token is 1, whatever the network says.

    The ratios of an imperfect network may be those of no conditional: some c(v) then come out below 0. They are set
    to 0, and the others scaled so that they sum to 1. If m was below 0, this moves c by 2 m and p_t by 2 m alpha, in
    total: where alpha is small, c may be moved far, but the score hardly.
    """
    logs = log_scores.to(torch.float64).scatter(1, present.unsqueeze(1), 0.0)
    score = torch.exp(logs - logs.amax(1, keepdim=True))
    mean = torch.minimum(score.mean(1, keepdim=True), score.amax(1, keepdim=True))  # rounding: no mean beyond all
    return torch.log(torch.clamp_min(score - mean + alpha * mean, 0))


def _text(module: Transformer, process: Masked | Uniform, length: int, device: Device, time_free: bool) -> Network:
    schedule = process.schedule
    scores = isinstance(process, Uniform)
    return from_network(
        process,
        length=length,
        trunk=partial(_score_trunk, module, schedule) if scores else module.at(None if time_free else schedule),
        head=partial(_score_head, module) if scores else module.head,
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
