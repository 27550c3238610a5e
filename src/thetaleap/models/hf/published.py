"""Published text models as denoisers: RADD, SEDD and MDLM.

The weights are a file, a folder with ``config.json`` and weights, or a hub id, the only case in which anything is
downloaded. Where there is no ``config.json``, sizes are read off the shapes of the weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ...core.checks import require, require_choice
from ...core.processes import Masked, Uniform
from ...core.schedules import LogLinear, Schedule
from ..network import Network, from_network
from ..tokenizers import GPT2, GPT2_TOKENS
from ..transformer import Transformer, total_noise
from ..weights import Device, Dtype
from .checkpoint import Found, entry, schedule_of
from .raw_rates import Scores


def radd(source: str | Path, length: int = 1024, dtype: Dtype = None, device: Device = "cpu") -> Network:
    """A RADD model (Ou et al., 2024, arXiv:2406.03736): masked and time-free, its logits are the conditionals.

    Args:
        source: where the weights are: a file, a folder, or a hub id such as ``JingyangOu/radd-lambda-dce``.
        length: number of tokens of a sample.
        dtype: in which to compute; by default float32.
        device: where to compute.
    """
    found = Found.of("radd", source)
    module = found.transformer(dtype, device, masked=True, conditioned=False)
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
    found = Found.of("mdlm", source, time_conditioning=time_conditioning)
    told = found.require_time_conditioning()
    require_choice("parameterization", entry(found.config, "parameterization", default="subs"), ("subs",))
    blocks = entry(found.config, "cross_attn", default=False)
    remedy = f"no block of the network sees those behind it, as in BD3-LM; give bd3lm{found.name[len('mdlm') :]}"
    require(blocks is not True, "cross_attn", True, remedy)
    module = found.transformer(dtype, device, masked=True, conditioned=True)
    return _text(module, Masked(module.sizes.tokens, schedule_of(found.config)), length, device, time_free=not told)


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
    found = Found.of("sedd", source, graph=graph, noise=given or None)
    kind = entry(found.config.get("graph", {}), "type", default=None)
    remedy = "the file does not say whether tokens are masked or replaced; give 'absorb' or 'uniform'"
    require(kind is not None, "graph", None, f"{remedy}: {found.typed('graph=absorb')}")
    require_choice("graph", kind, ("absorb", "uniform"))
    masked = kind == "absorb"
    remedy = "uniform models differ in it, and the file does not say it; give 'loglinear', or 'geometric' with its ends"
    example = f"{'' if graph is None else f'graph={graph},'}noise=geometric,sigma_min=1e-4,sigma_max=20"
    require(masked or "noise" in found.config, "noise", None, f"{remedy}: {found.typed(example)}")
    scaled = bool(entry(found.config, "scale_by_sigma", default=False))
    require(masked or not scaled, "scale_by_sigma", scaled, "says nothing for uniform models; set it to false")
    module = found.transformer(dtype, device, masked, conditioned=True)
    process = (Masked if masked else Uniform)(module.sizes.tokens, schedule_of(found.config))
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
