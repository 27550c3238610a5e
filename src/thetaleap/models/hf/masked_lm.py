"""Masked language models of Hugging Face, such as BERT, RoBERTa and ESM, as masked diffusion models."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from ...core.checks import require, require_count
from ...core.processes import Masked
from ..network import Network, from_network
from ..tokenizers import Letters, Words
from .heads import Head, take_layer
from .hub import FAILURES, Source, first_line, transformers

UNUSED = ("pooler", "contact_head")
"""Parts that checkpoints may lack: they do not enter into the logits."""


@dataclass(frozen=True)
class Frame:
    """How a sequence is written for the network: ``before + tokens + after``, where token n is ``ids[n]``."""

    ids: tuple[int, ...]
    mask: int
    before: tuple[int, ...]
    after: tuple[int, ...]


class Trunk(nn.Module):
    """What `model` gives as logits at the positions of the sequence; hidden rows, once its last layer was taken out."""

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
    auto, found = transformers(), Source.of(source, "its path", _unusable)
    tokenizer = found.read(auto.AutoTokenizer, "the tokenizer (tokenizer.json, or vocab.txt and the like)")
    model = found.read_model(
        auto.AutoModelForMaskedLM,
        "config.json and the weights (model.safetensors or pytorch_model.bin)",
        ": give a checkpoint for masked tokens",
        UNUSED,
        **({} if dtype is None else {"dtype": dtype}),
    )
    name = found.name
    ids = _allowed(tokenizer, allowed, model.get_input_embeddings().weight.shape[0])
    require(tokenizer.mask_token_id is not None, "source", name, "its tokenizer has no mask token; give one that has")
    frame = Frame(ids, tokenizer.mask_token_id, *_around(tokenizer, name))
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    text = Letters("".join(tokens)) if all(len(token) == 1 for token in tokens) else Words(tokenizer, ids)
    return adapt(model, frame, length=length, tokenizer=text, device=device)


AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"


def dplm(
    source: str | Path, *, length: int, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Network:
    """DPLM (Wang et al. 2024, arXiv:2402.18567): an ESM-2 network trained as a masked diffusion model of proteins.

    It is `mlm` with the 20 amino acids, as DPLM's own sampler draws no others. Unlike masked language models, DPLM was
    trained with any share of the residues masked. Embeddings are scaled by the share of masks, as ESM-2's are
    (``token_dropout``). Arguments as of `mlm`, with a hub id such as ``airkingbd/dplm_650m``.
    """
    return mlm(source, length=length, allowed=AMINO_ACIDS, dtype=dtype, device=device)


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
    """The head of the allowed tokens: the model's last layer, which is taken out of it, or a choice of its logits."""
    ids = trunk.table[:-1]
    x = torch.arange(length) % len(ids)
    x[::2] = len(ids)  # masks
    logits = _own_logits(trunk, x.unsqueeze(0))
    values, known, name = logits.shape[1], int(ids.max()) + 1, type(trunk.model).__name__
    require(known <= values, "source", name, f"gives {values} logits for a vocabulary of {known}; choose another model")
    return Head(take_layer(trunk.model, lambda: _own_logits(trunk, x.unsqueeze(0))), kept=ids)


def _own_logits(trunk: Trunk, x: Int64[Tensor, "1 d"]) -> Float[Tensor, "d h"]:
    """What the model gives, or an error that says why it gives nothing."""
    name, config = type(trunk.model).__name__, trunk.model.config
    require(not getattr(config, "is_encoder_decoder", False), "source", name, "give a model that has no decoder")
    try:
        return trunk(x, torch.ones(1, dtype=torch.float64))[0]
    except FAILURES as error:
        tokens, most = x.shape[1] + len(trunk.before) + len(trunk.after), getattr(config, "max_position_embeddings", 0)
        remedy = f"it has {most} positions; shorten it" if tokens > most - 2 else "choose another kind of model"
        failed = f"{name} fails on {tokens} tokens ({first_line(error)})"
        raise ValueError(f"length={x.shape[1]}: {failed}; {remedy}") from None


def _unusable(files: str, error: Exception) -> str:
    remedy = "give a masked language model that transformers itself knows; code that comes with a model is never run"
    return f"cannot use {files} ({first_line(error)}): {remedy}"


def _special(tokenizer: Any) -> set[int]:
    marked = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return marked | set(tokenizer.all_special_ids)


def _around(tokenizer: Any, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that go before and after a sequence: what the tokenizer makes of an empty text."""
    empty = tuple(tokenizer.encode(""))
    good, remedy = len(empty) <= 2 and set(empty) <= _special(tokenizer), "at most one token on each side is understood"
    require(good, "source", name, f"its tokenizer frames texts by {empty}; {remedy}")
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
