"""Masked language models of Hugging Face, such as BERT, RoBERTa and ESM, as masked diffusion models."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import linear

from ...core.checks import require, require_count
from ...core.processes import Masked
from ..network import Network, from_network

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
UNUSED = ("pooler", "contact_head")
"""Parts that checkpoints may lack: they do not enter into the logits."""


@dataclass(frozen=True)
class Letters:
    """Text whose tokens are single characters: token n is ``alphabet[n]``."""

    alphabet: str

    def encode(self, text: str) -> list[int]:
        for n, letter in enumerate(text):
            require(letter in self.alphabet, f"text[{n}]", letter, f"not in the alphabet; use {self.alphabet!r}")
        return [self.alphabet.index(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        _require_clean(ids, len(self.alphabet))
        return "".join(self.alphabet[n] for n in ids)


@dataclass(frozen=True, eq=False)
class Words:
    """A Hugging Face tokenizer of which some tokens are in use: token n is its token ``ids[n]``."""

    tokenizer: Any
    ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        place = {token: n for n, token in enumerate(self.ids)}
        found = self.tokenizer.encode(text, add_special_tokens=False)
        for token in found:
            name = self.tokenizer.convert_ids_to_tokens(token)
            require(token in place, "text", text, f"holds the token {name!r}, which is not allowed; write it otherwise")
        return [place[token] for token in found]

    def decode(self, ids: Sequence[int]) -> str:
        _require_clean(ids, len(self.ids))
        return self.tokenizer.decode([self.ids[n] for n in ids])


def _require_clean(ids: Sequence[int], states: int) -> None:
    for n, token in enumerate(ids):
        require(0 <= token < states, f"ids[{n}]", token, f"the tokens are 0 to {states - 1}; decode no masks")


@dataclass(frozen=True)
class Frame:
    """How a sequence is written for the network: ``before + tokens + after``, where token n is ``ids[n]``."""

    ids: tuple[int, ...]
    mask: int
    before: tuple[int, ...]
    after: tuple[int, ...]


class Trunk(nn.Module):
    """What `model` gives as logits, at the positions of the sequence: hidden rows, once its last layer was taken
    out."""

    def __init__(self, model: Any, frame: Frame) -> None:
        super().__init__()
        self.model = model
        self.table = nn.Buffer(torch.tensor([*frame.ids, frame.mask]))
        self.before = nn.Buffer(torch.tensor(frame.before, dtype=torch.int64))
        self.after = nn.Buffer(torch.tensor(frame.after, dtype=torch.int64))

    def forward(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, " b"]) -> Float[Tensor, "b d h"]:
        before, after = (part.expand(len(x), -1) for part in (self.before, self.after))
        ids = torch.cat([before, self.table[x], after], 1)
        with torch.no_grad():
            output = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return output[:, before.shape[1] : before.shape[1] + x.shape[1]]


class Head(nn.Module):
    """A last layer for some of its outputs, `ids`; or the choice of these alone, where `weight` is None."""

    def __init__(self, ids: Int64[Tensor, " S"], weight: Tensor | None = None, bias: Tensor | None = None) -> None:
        super().__init__()
        self.ids = nn.Buffer(ids)
        self.weight = None if weight is None else nn.Parameter(weight[ids], requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias[ids], requires_grad=False)

    def forward(self, rows: Float[Tensor, "n h"]) -> Float[Tensor, "n S"]:
        return rows[:, self.ids] if self.weight is None else linear(rows, self.weight, self.bias)


def mlm(
    source: str | Path,
    *,
    length: int,
    allowed: Sequence[str] | Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Network:
    """A Hugging Face masked language model as a masked diffusion model: it says what each masked position may hold.

    Its tokens are the allowed ones, numbered 0 to S-1 in the order of `allowed`; `tokenizer` turns them into text and
    back. Special tokens stand around the sequence, where the model's own tokenizer puts them, and are never drawn.
    The last layer is computed at the positions that are asked for, for the allowed tokens alone. (Where a model's last
    layer cannot be parted from it, which is found out by comparison with the model's own logits, it is run whole.)

    Such models have been trained with some 15% of the tokens masked, so they know little about sequences that are
    masked nearly everywhere, and their conditionals need not be those of any one law.

    Args:
        source: a folder written by ``save_pretrained``; or a hub id such as ``bert-base-uncased``, for which the
            files are taken from the Hugging Face cache or downloaded. Code that comes with a model is never run.
        length: number of positions, special tokens not counted.
        allowed: the tokens that may be drawn, as strings or as ids of the model's vocabulary; a string is a list
            of letters, e.g. ``"ACDEFGHIKLMNPQRSTVWY"`` for proteins. By default all tokens but the special ones.
        dtype: the network's precision, e.g. ``torch.bfloat16``; by default that of the files.
        device: where the network runs.
    """
    require_count("length", length)
    auto = transformers()
    name, local = _place(source)
    tokenizer = _read(auto.AutoTokenizer, name, local, "the tokenizer (tokenizer.json, or vocab.txt and the like)")
    options = {} if dtype is None else {"dtype": dtype}
    weights = "config.json and the weights (model.safetensors or pytorch_model.bin)"
    model, report = _read(auto.AutoModelForMaskedLM, name, local, weights, output_loading_info=True, **options)
    missing = sorted(key for key in report["missing_keys"] if not any(part in key for part in UNUSED))
    require(not missing, "source", name, f"lacks the weights {_some(missing)}: give a checkpoint for masked tokens")

    ids = _allowed(tokenizer, allowed, model.get_input_embeddings().weight.shape[0])
    require(tokenizer.mask_token_id is not None, "source", name, "its tokenizer has no mask token; give one that has")
    frame = Frame(ids, tokenizer.mask_token_id, *_around(tokenizer, name))
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    text = Letters("".join(tokens)) if all(len(token) == 1 for token in tokens) else Words(tokenizer, ids)
    return adapt(model, frame, length=length, tokenizer=text, device=device)


def adapt(model: Any, frame: Frame, *, length: int, tokenizer: Any, device: torch.device | str) -> Network:
    """A Hugging Face model for masked tokens, on the CPU, as a denoiser; its last layer is taken out of `model`."""
    require_count("length", length)
    trunk = Trunk(model, frame).eval().requires_grad_(False)
    head = _take_head(trunk, length)
    return from_network(
        Masked(len(frame.ids)),
        length=length,
        trunk=trunk.to(device),
        head=head.to(device),
        time_free=True,
        device=device,
        tokenizer=tokenizer,
        shape=(length,),
    )


def _take_head(trunk: Trunk, length: int) -> Head:
    """Take the last layer out of the model: the trunk then gives what went into it.

    Where both together do not give the model's own logits, the model is left whole, and the head only chooses.
    """
    model, ids = trunk.model, trunk.table[:-1]
    x = torch.arange(length) % len(ids)
    x[::2] = len(ids)  # masks
    logits = _own_logits(trunk, x.unsqueeze(0))
    values, known, name = logits.shape[1], int(ids.max()) + 1, type(model).__name__
    require(known <= values, "source", name, f"gives {values} logits for a vocabulary of {known}; choose another model")
    layer, choice = model.get_output_embeddings(), Head(ids)
    names = [name for name, part in model.named_modules() if part is layer]
    if not names or not isinstance(layer, nn.Linear) or layer.out_features != values:
        return choice
    parent = model.get_submodule(names[0].rpartition(".")[0])
    apart = getattr(parent, "bias", None) if layer.bias is None else None  # ESM adds its bias after the layer
    head = Head(ids, layer.weight, layer.bias if apart is None else apart)
    model.set_submodule(names[0], nn.Identity())
    if apart is not None:
        parent.bias = nn.Parameter(apart.new_zeros(()), requires_grad=False)
    try:
        off = (head(_own_logits(trunk, x.unsqueeze(0))) - choice(logits)).abs().max()
    except (RuntimeError, ValueError):  # the model wants more of its last layer than its output
        off = torch.tensor(torch.inf)
    if float(off) <= torch.finfo(logits.dtype).eps ** 0.5 * max(1.0, float(logits.abs().max())):
        return head
    model.set_submodule(names[0], layer)
    if apart is not None:
        parent.bias = apart
    return choice


def _own_logits(trunk: Trunk, x: Int64[Tensor, "1 d"]) -> Float[Tensor, "d h"]:
    """What the model gives, or an error that says why it gives nothing."""
    name, config = type(trunk.model).__name__, trunk.model.config
    require(not getattr(config, "is_encoder_decoder", False), "source", name, "give a model that has no decoder")
    try:
        return trunk(x, torch.ones(1, dtype=torch.float64))[0]
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        tokens, most = x.shape[1] + len(trunk.before) + len(trunk.after), getattr(config, "max_position_embeddings", 0)
        remedy = f"it has {most} positions; shorten it" if tokens > most - 2 else "choose another kind of model"
        raise ValueError(f"length={x.shape[1]}: {name} fails on {tokens} tokens ({_line(error)}); {remedy}") from None


def transformers() -> Any:
    """The package, imported when first needed."""
    if find_spec("transformers") is None:
        raise ImportError("transformers is not installed: pip install 'thetaleap[hub]'")
    import transformers

    return transformers


def _place(source: str | Path) -> tuple[str, bool]:
    """What to give to ``from_pretrained``, and whether it is a folder on this machine."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return str(folder), True
    hub = isinstance(source, str) and HUB_ID.fullmatch(source) is not None
    require(hub, "source", str(source), "no such folder, nor a hub id such as 'bert-base-uncased'; give one of these")
    return str(source), False


def _read(loader: Any, name: str, local: bool, files: str, **options: Any) -> Any:
    try:
        return loader.from_pretrained(name, local_files_only=local, trust_remote_code=False, **options)
    except OSError as error:
        elsewhere = (
            f"no folder has this name, and the hub was not reached; run `hf download {name} --local-dir FOLDER` where "
            "there is a network, bring the folder here, and give its path"
        )
        remedy = "put them into the folder" if local else elsewhere
        raise ValueError(f"source={name!r}: wanted {files} ({_line(error)}): {remedy}") from None
    except ValueError as error:
        raise ValueError(
            f"source={name!r}: cannot use {files} ({_line(error)}): give a masked language model that transformers "
            "itself knows; code that comes with a model is never run"
        ) from None


def _special(tokenizer: Any) -> set[int]:
    marked = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return marked | set(tokenizer.all_special_ids)


def _around(tokenizer: Any, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that go before and after a sequence: what the tokenizer makes of an empty text."""
    empty = tuple(tokenizer.encode(""))
    good = len(empty) <= 2 and set(empty) <= _special(tokenizer)
    require(
        good, "source", name, f"its tokenizer frames texts by {empty}; at most one token on each side is understood"
    )
    ends = {tokenizer.sep_token_id, tokenizer.eos_token_id}
    cut = len(empty) - 1 if empty and (len(empty) == 2 or empty[0] in ends) else len(empty)
    return empty[:cut], empty[cut:]


def _allowed(tokenizer: Any, allowed: Sequence[str] | Sequence[int] | None, known: int) -> tuple[int, ...]:
    """The ids of the allowed tokens, none of which is special; `known` is how many the network has."""
    vocabulary, special = tokenizer.get_vocab(), _special(tokenizer)
    if allowed is None:
        return tuple(sorted({n for n in vocabulary.values() if n not in special and n < known}))
    there, ids = set(vocabulary.values()), []
    for n, token in enumerate(allowed):
        if isinstance(token, str) and token not in vocabulary:
            near = difflib.get_close_matches(token, vocabulary, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"allowed[{n}]={token!r}: {hint}give tokens of the model's own vocabulary")
        number = vocabulary[token] if isinstance(token, str) else token
        good = number in there and number < known
        require(good, f"allowed[{n}]", token, f"not in the vocabulary; give ids from 0 to {known - 1}")
        require(number not in special, f"allowed[{n}]", token, "special tokens stay around the sequence; leave it out")
        require(number not in ids, f"allowed[{n}]", token, "is there twice; leave one out")
        ids.append(number)
    require(len(ids) > 1, "allowed", list(allowed), "give at least two tokens")
    return tuple(ids)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _line(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or type(error).__name__).split("\n")[0]
