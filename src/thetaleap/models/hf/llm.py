"""Masked diffusion language models of Hugging Face, LLaDA, Dream, LLaDA2 and SDAR, as masked denoisers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ...core.checks import require, require_count
from ...core.processes import Masked
from ...core.storage import installed
from ..network import Network, from_network
from . import block_causal
from .bidirectional import PROBE, Trunk, probe, some_tokens
from .heads import Head, take_layer
from .hub import FAILURES, Source, Vocabulary, first_line, transformers
from .own_code import own_model, quiet

TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>")
"""What the tokens are called that end a turn: LLaDA's 126348, Dream's 151645, and others'."""
UNTRUSTED = (
    "comes with code of its own, which is not run unless you say so: read it, and give trust_remote_code=True "
    "(--trust-remote-code)"
)
BLOCKS = ("block_length", "block_size")
"""What configurations call the positions of a block."""
CONTEXT = ("max_position_embeddings", "max_sequence_length")
"""What configurations call the most tokens that a model takes."""


@dataclass(frozen=True)
class Kind:
    """What sets a family of checkpoints apart."""

    name: str
    mask: int
    """The published number of the mask token, for checkpoints that do not say."""
    shifted: bool
    """Whether the logits at one position are about the next."""
    block: int | None = None
    """The published positions of a block, for checkpoints that do not say; None where every position sees every other."""


LLADA, DREAM = Kind("llada", 126336, shifted=False), Kind("dream", 151666, shifted=True)
LLADA2, SDAR = Kind("llada2", 156895, shifted=False, block=32), Kind("sdar", 151669, shifted=False, block=4)
KINDS = tuple(kind.name for kind in (LLADA, DREAM, LLADA2, SDAR))


# --- adapters


def llada(
    source: str | Path,
    *,
    length: int,
    dtype: torch.dtype | Literal["auto"] | None = "auto",
    device: torch.device | str = "cpu",
    device_map: Any = None,
    trust_remote_code: bool = False,
    block_length: int | None = None,
    kind: Kind = LLADA,
) -> Network:
    """LLaDA (Nie et al. 2025), or another masked diffusion language model in Hugging Face's format, as a denoiser.

    Tokens have the numbers of the model's own tokenizer, and the value S, the number of logits, is a masked
    position. The model's own mask token, and numbers that no token has, are never drawn. `tokenizer` is a `Vocabulary`.

    How the model is told to leave positions out is tried when it is loaded: padding, whatever it holds, must not change
    a sequence. A model that ignores time is not run again for samples that have not changed, and its last layer is
    computed at the positions that are asked for, if it can be parted from the rest.

    Args:
        source: a folder written by ``save_pretrained``, or a hub id such as ``GSAI-ML/LLaDA-8B-Instruct``.
        length: number of positions: prompt, padding and answer together. `resized` changes it later.
        dtype: the network's precision; None is that of the files, "auto" bfloat16 on a GPU and else that of the files.
        device: where the network runs.
        device_map: instead, how to spread it over several devices, as in ``"auto"``; this needs accelerate.
        trust_remote_code: say True to run the code that comes with the checkpoint, which published ones need.
        block_length: for models in blocks, see `llada2`.
        kind: the family of checkpoints.
    """
    require_count("length", length)
    if block_length is not None:
        require(kind.block is not None, "block_length", block_length, f"{kind.name} has no blocks; leave it out")
        require_count("block_length", block_length)
    place = torch.device(device)
    if dtype == "auto":
        dtype = None if place.type == "cpu" and device_map is None else torch.bfloat16
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype={dtype!r}: give one of torch's, as in torch.bfloat16, None or 'auto'")
    tokenizer, model = _files(kind, source, dtype, device_map, trust_remote_code)
    if device_map is None:
        model = model.to(place)
    else:
        place = model.get_input_embeddings().weight.device
    model = model.eval().requires_grad_(False)
    words = _vocabulary(kind, str(source), tokenizer, model, place)
    trunk = Trunk(model, words, kind.shifted)
    x = some_tokens(trunk, PROBE, 0, place)
    x = x.masked_fill(x == words.mask, words.states)
    if kind.block is None:
        trunk.settle(*probe(trunk, place))
        attends, blocks = trunk.form is not None, None
        layer = take_layer(model, lambda: trunk(x, torch.ones(1, dtype=torch.float64)))
    else:
        blocks = block_causal.probe(trunk, block_length or _block(model.config, kind.block), place)
        batch = block_causal.Batch.of(x, None, blocks.block)
        attends, layer = blocks.numbers, take_layer(model, lambda: block_causal.whole(blocks, batch))
    named = set(tokenizer.get_vocab().values()) - {words.mask}
    forbidden = torch.tensor([n for n in range(words.states) if n not in named])
    head = Head(layer, forbidden=forbidden).to(place)
    network = from_network(
        Masked(words.states),
        length=length,
        trunk=trunk,
        head=head,
        time_free=True,
        device=place,
        tokenizer=words,
        attends=attends,
    )
    if blocks is not None:
        network = replace(network, evaluate=block_causal.InBlocks(blocks, head), block=blocks.block)
    return resized(network, length)


def dream(source: str | Path, **options: Any) -> Network:
    """Dream (Ye et al. 2025), with the options of `llada`: a model whose logits at one position are about the next, as
    in ``Dream-org/Dream-v0-Instruct-7B``. The logits about the first position are its own."""
    return llada(source, kind=DREAM, **options)


def llada2(source: str | Path, **options: Any) -> Network:
    """LLaDA2 (``inclusionAI/LLaDA2.0-mini``), with the options of `llada`: a model that writes block by block, and in
    which no block sees those behind it.

    `sample` puts a solver into its blocks, which count the prompt. What is kept of finished blocks is exact, so that the
    network is run on one block at a time. `block_length` is what the model was trained with: by default what its
    ``config.json`` says, or else the published number, 32.
    """
    return llada(source, kind=LLADA2, **options)


def sdar(source: str | Path, **options: Any) -> Network:
    """SDAR (``JetLM/SDAR-1.7B-Chat``), with the options of `llada2`; the published `block_length` is 4."""
    return llada(source, kind=SDAR, **options)


def resized(model: Network, length: int) -> Network:
    """A model of this module for sequences of another length."""
    words = vocabulary_of(model)
    require_count("length", length)
    most = words.context
    require(most is None or length <= most, "length", length, f"the model takes {most} tokens at most; shorten it")
    return replace(model, length=length, shape=(length,), valid=None)


def vocabulary_of(model: Any) -> Vocabulary:
    """The tokenizer of a model of this module."""
    words = getattr(model, "tokenizer", None)
    if not isinstance(words, Vocabulary):
        raise TypeError(f"model={type(model).__name__}: give one made by llada or dream")
    return words


def _block(config: Any, published: int) -> int:
    """Positions of a block, as the checkpoint says."""
    told = [(name, size) for name in BLOCKS if (size := getattr(config, name, None)) is not None]
    name, size = told[0] if told else ("block_length", published)
    require_count(name, size)
    return size


def _files(kind: Kind, source: str | Path, dtype: torch.dtype | None, device_map: Any, trusted: bool) -> Any:
    """The tokenizer and the model."""
    auto = transformers()

    def unusable(what: str, error: Exception) -> str:
        if not trusted and "trust_remote_code" in str(error):
            return UNTRUSTED
        return f"cannot use {what} with transformers {auto.__version__} ({first_line(error)}): replace them"

    found = Source.of(source, f"{kind.name}:FOLDER", unusable, trusted)
    if device_map is not None and not installed("accelerate"):
        raise ImportError(f"device_map={device_map!r}: accelerate is not installed: pip install accelerate")
    with quiet():
        config = found.read(auto.AutoConfig, "config.json")
        tokenizer = found.read(auto.AutoTokenizer, "the tokenizer (tokenizer.json and tokenizer_config.json)")
    loader = _class_for(auto, config, found.name)
    if type(config).__module__.startswith("transformers_modules."):  # where transformers puts code that came with files
        require(trusted, "source", found.name, UNTRUSTED)
        return tokenizer, own_model(found, config, loader, dtype, device_map)
    options: dict[str, Any] = {"dtype": dtype or "auto"} | ({} if device_map is None else {"device_map": device_map})
    what, remedy = "the weights (model.safetensors)", "; give a complete checkpoint"
    return tokenizer, found.read_model(getattr(auto, loader), what, remedy, **options)


def _class_for(auto: Any, config: Any, name: str) -> str:
    """Which of transformers' loaders gives a model with logits."""
    if type(config) in auto.MODEL_FOR_MASKED_LM_MAPPING:
        return "AutoModelForMaskedLM"
    if type(config) in auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        return "AutoModelForCausalLM"
    own = getattr(config, "auto_map", None) or {}
    names = ("AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM")
    found = next((loader for loader in names if loader in own), "")
    require(found != "", "source", name, f"{type(config).__name__} is no language model; give one that has logits")
    return found


def _vocabulary(kind: Kind, name: str, tokenizer: Any, model: Any, device: torch.device) -> Vocabulary:
    with torch.no_grad(), quiet():
        try:
            states = model(input_ids=torch.zeros((1, 2), dtype=torch.int64, device=device)).logits.shape[-1]
        except FAILURES as error:
            made = type(model).__name__
            raise ValueError(f"source={name!r}: {made} gives no logits ({first_line(error)})") from error
    known = (getattr(model.config, "mask_token_id", None), tokenizer.mask_token_id, kind.mask)
    mask = next(token for token in known if token is not None)
    remedy = "give a checkpoint with a mask token, or write mask_token_id into its config.json"
    require(0 <= mask < states, "mask_token_id", mask, f"there are {states} tokens; {remedy}")
    vocabulary = tokenizer.get_vocab()
    most = max(vocabulary.values())
    require(most < states, "source", name, f"its tokenizer has the token {most}, but the model {states}; match them")
    ends = [vocabulary[end] for end in TURN_ENDS if end in vocabulary]
    if tokenizer.eos_token_id is not None:
        ends.append(tokenizer.eos_token_id)
    sizes = [size for key in CONTEXT if (size := getattr(model.config, key, None)) is not None]
    return Vocabulary(tokenizer, states, mask, tuple(dict.fromkeys(ends)), min(sizes, default=None))
