"""Checkpoints of the network that RADD, SEDD, MDLM and BD3-LM share: a file, what lies beside it, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.checks import require, require_choice, require_flag
from ...core.schedules import Geometric, LogLinear, Schedule
from ..transformer import BUFFERS, Sizes, Transformer
from ..weights import Device, Dtype, Shapes, built, config_of, find, read_content, tensors_of

Config = Mapping[str, Any]
MASK_WITHIN, BERT_TOKENS = ("bert-base-uncased", "text8"), 30522
"""Tokenizers with a mask of their own, which the code of MDLM and BD3-LM then takes; else it adds one behind them."""


@dataclass(frozen=True)
class Found:
    """A file of weights, what it holds, and all that is known about it."""

    name: str
    """As ``tl.load`` takes it."""
    path: Path
    content: Any
    config: dict[str, Any]

    @staticmethod
    def of(kind: str, source: str | Path, **given: Any) -> Found:
        """What is `given` goes before ``config.json``, and that before what the file says itself."""
        found = find(source, kind)
        content = read_content(found.path)
        said = config_of(content) | found.config | {key: one for key, one in given.items() if one is not None}
        return Found(f"{kind}:{source}", found.path, content, said)

    def typed(self, options: str) -> str:
        """How to say what is missing, in a program and on the command line."""
        arguments = ", ".join(
            f"{name}={value if value in ('True', 'False') or value[0].isdigit() else repr(value)}"
            for name, _, value in (option.partition("=") for option in options.split(","))
        )
        return f"tl.load({self.name!r}, {arguments}), or {self.name},{options} on the command line"

    def require_time_conditioning(self) -> bool:
        """Whether the network is told the noise level; asked for where nothing says it."""
        told = entry(self.config, "time_conditioning", default=None)
        remedy = (
            "the file does not say whether the network is told the noise level; give False, as of the published weights"
        )
        example = self.typed("time_conditioning=False")
        require(told is not None, "time_conditioning", None, f"{remedy}, or True: {example}")
        require_flag("time_conditioning", told)
        return told

    def transformer(self, dtype: Dtype, device: Device, masked: bool, conditioned: bool) -> Transformer:
        """The network."""
        what, tensors = f"weights={str(self.path)!r}", tensors_of(self.content, self.path, BUFFERS)
        shapes = Shapes(tensors, what, "give those of another model")
        words = entry(self.config.get("data", {}), "tokenizer_name_or_path", default="")
        within = words in MASK_WITHIN or (masked and shapes.width("vocab_embed.embedding", 0) == BERT_TOKENS)
        remedy = "has its mask among its tokens, and not behind them; give a model of GPT-2's tokens"
        require(not within, "tokenizer", words or "BERT's, by its size,", remedy)
        return built(
            lambda: Transformer(_sizes(self.config, shapes, masked, conditioned)), tensors, what, dtype, device
        )


def _sizes(config: Config, shapes: Shapes, masked: bool, conditioned: bool) -> Sizes:
    """Sizes as the configuration has them; what it leaves out is read off the weights."""

    def number(*names: str) -> int | None:
        return entry(config, *names, default=None)

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


def entry(config: Any, *names: str, default: Any) -> Any:
    """The first of `names` in `config`, or else among its entries for the model, or, as BD3-LM's code has them, for the
    algorithm; `config` may be the entry itself."""
    if not isinstance(config, Mapping):
        return config
    parts = (config.get(part) for part in ("model", "algo"))
    for section in (config, *(part for part in parts if isinstance(part, Mapping))):
        for name in names:
            if section.get(name) is not None:
                return section[name]
    return default


def schedule_of(config: Config) -> Schedule:
    """The schedule of the noise, log-linear where it is not said."""
    noise = config.get("noise", {})
    kind = entry(noise, "type", default="loglinear")
    require_choice("noise", kind, ("loglinear", "geometric"))
    section = noise if isinstance(noise, Mapping) else config
    if kind == "loglinear":
        return LogLinear(float(entry(section, "eps", default=LogLinear().eps)))
    ends = [entry(section, name, default=None) for name in ("sigma_min", "sigma_max")]
    require(None not in ends, "noise", noise, "geometric noise needs sigma_min and sigma_max")
    return Geometric(*map(float, ends))
