"""The tokenizers of masked diffusion language models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.checks import require
from .hub import first_line


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A Hugging Face tokenizer: tokens have its own numbers. Nothing is put around a text."""

    tokenizer: Any
    states: int
    """Numbers from 0 to below this are tokens, as far as they are not forbidden; this one is a masked position."""
    mask: int
    """The number of the checkpoint's own mask token. No sample holds it, and no text may."""
    ends: tuple[int, ...]
    """Tokens that end a turn, the most fitting first."""
    context: int | None
    """The most positions that the model takes; None where it does not say."""

    @property
    def pad(self) -> int:
        """A token to stand where there is nothing."""
        known = (self.tokenizer.pad_token_id, *self.ends, 0 if self.mask else 1)
        return next(token for token in known if token is not None and token != self.mask)

    def encode(self, text: str) -> list[int]:
        return self._clean(self.tokenizer.encode(text, add_special_tokens=False), text)

    def decode(self, ids: Sequence[int]) -> str:
        for n, token in enumerate(ids):
            good = 0 <= token < self.states and token != self.mask
            require(good, f"ids[{n}]", token, f"the tokens are 0 to {self.states - 1}; decode no masks")
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    @property
    def chats(self) -> bool:
        """Whether there is a chat template."""
        return getattr(self.tokenizer, "chat_template", None) is not None

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation, messages with a `role` and a `content`, up to where the answer begins."""
        require(self.chats, "messages", len(messages), "this tokenizer has no chat template; encode a plain text")
        given = [dict(message) for message in messages]
        try:
            ids = self.tokenizer.apply_chat_template(
                given, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as error:  # templates are programs, and fail in their own ways
            raise ValueError(f"messages={given!r}: the chat template refuses them ({first_line(error)})") from None
        return self._clean(ids, given[-1]["content"] if given else "")

    def until_end(self, ids: Sequence[int]) -> list[int]:
        """What comes before the first token that ends a turn."""
        return list(ids)[: next((n for n, token in enumerate(ids) if token in self.ends), len(ids))]

    def _clean(self, ids: Sequence[int], text: str) -> list[int]:
        name = self.tokenizer.convert_ids_to_tokens(self.mask) if self.mask in ids else None
        require(name is None, "text", text, f"holds the mask token {name!r}; give FREE in a template where to write")
        return list(ids)
