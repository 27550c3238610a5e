"""Models trained by this library: weights in a safetensors file, with a card beside it that says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.checks import require, require_count
from ..core.processes import Masked, Uniform
from ..core.schedules import LogLinear
from .network import Network, from_network
from .tokenizers import GPT2, BytePairs, Bytes, Letters, Lexicon
from .transformer import Sizes, Transformer
from .weights import Device, Dtype, built, read_weights

WEIGHTS, CARD = "weights.safetensors", "card.json"


def trained(source: str | Path, length: int | None = None, dtype: Dtype = None, device: Device = "cpu") -> Network:
    """A model made by ``thetaleap train``.

    Args:
        source: its folder, with ``weights.safetensors`` and ``card.json``.
        length: number of positions; by default as trained.
        dtype: in which to compute; by default float32.
        device: where to compute.
    """
    if length is not None:
        require_count("length", length)
    folder = Path(source).expanduser()
    require(folder.is_dir(), "source", str(folder), "there is no such folder; give one of thetaleap train")
    for name in (WEIGHTS, CARD):
        remedy = f"holds no {name}; give a folder in which thetaleap train has come to its end, or KIND:FOLDER"
        require((folder / name).is_file(), "source", str(folder), remedy)
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        shape = card["shape"]
        sizes, positions = Sizes(**card["sizes"]), card["recipe"]["length"]
        process = (Masked if sizes.masked else Uniform)(sizes.tokens, LogLinear())
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"source={str(folder / CARD)!r}: is no card of thetaleap train ({error})") from None
    tensors, what = read_weights(folder / WEIGHTS), f"weights={str(folder / WEIGHTS)!r}"
    module = built(lambda: Transformer(sizes), tensors, what, dtype, device)
    same = length is None or length == positions
    require(same or shape is None, "length", length, f"these are images of {positions} positions; leave it out")
    return from_network(
        process,
        length=positions if length is None else length,
        trunk=module.at(process.schedule),
        head=module.head,
        time_free=module.sigma_map is None,
        device=device,
        tokenizer=_tokenizer(card["tokenizer"]),
        shape=tuple(shape) if shape else (positions if length is None else length,),
        classes=sizes.classes,
    )


def _tokenizer(kind: Any) -> Any:
    if kind is None:
        return None
    if "alphabet" in kind:
        return Letters(kind["alphabet"])
    if "words" in kind:
        return Lexicon(tuple(kind["words"]))
    if "pairs" in kind:
        return BytePairs(json.dumps(kind["pairs"]))
    return GPT2() if kind["name"] == "gpt2" else Bytes()
