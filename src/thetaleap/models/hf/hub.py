"""Checkpoints of Hugging Face, found and read with errors that name the remedy; and tokenizers of language models."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from ...core.checks import require
from ...core.storage import hub_reachable, installed

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
FAILURES = (AssertionError, AttributeError, IndexError, KeyError, NameError, RuntimeError, TypeError, ValueError)
"""What models and their files raise if something about them is not understood."""


def transformers() -> Any:
    """The package, imported when first needed."""
    if not installed("transformers"):
        raise ImportError("transformers is not installed: pip install 'thetaleap[hub]'")
    import transformers

    if not sys.stderr.isatty():  # bars that nobody sees move
        transformers.utils.logging.disable_progress_bar()
    return transformers


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or type(error).__name__).split("\n")[0]


def _refused_pickle(error: BaseException | None) -> pickle.UnpicklingError | None:
    """The error of torch about what is not a tensor, which transformers may have wrapped."""
    while error is not None and not isinstance(error, pickle.UnpicklingError):
        error = error.__cause__ or error.__context__
    return error


def some_of(names: Sequence[str]) -> str:
    """The first few names, and how many there are besides."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def filled(kind: Any, config: Any, weights: Mapping[str, Tensor]) -> Any:
    """A model of transformers' own with the given weights: all of its own, and no others."""
    with torch.random.fork_rng(devices=[]):  # it first fills itself with random numbers
        model = kind(config)
    model.load_state_dict(dict(weights), strict=True)
    return model


@dataclass(frozen=True)
class Source:
    """A folder written by ``save_pretrained``, or a hub id."""

    name: str
    local: bool
    give: str
    """What to give for a folder that was copied here, for errors."""
    unusable: Callable[[str, Exception], str]
    """The remedy for files that are there but cannot be used."""
    trusted: bool = False
    """Whether to run code that comes with the files."""
    argument: str = "source"
    """What errors call it."""

    @staticmethod
    def of(source: str | Path, *how: Any, **more: Any) -> Source:
        """`how` and `more` are the other fields, from `give` on."""
        folder = Path(source).expanduser()
        if folder.is_dir():
            return Source(str(folder), True, *how, **more)
        hub = isinstance(source, str) and HUB_ID.fullmatch(source) is not None
        remedy = "no such folder, nor a hub id such as 'bert-base-uncased'; give one of these"
        require(hub, more.get("argument", "source"), str(source), remedy)
        return Source(str(source), False, *how, **more)

    def read(self, loader: Any, what: str, **options: Any) -> Any:
        """``loader.from_pretrained``; errors call what is read `what`."""
        options |= {"local_files_only": self.local or not hub_reachable(), "trust_remote_code": self.trusted}
        if self.trusted:  # another process may have put its code where this one has looked before
            importlib.invalidate_caches()
        try:
            return loader.from_pretrained(self.name, **options)
        except (ImportError, OSError, pickle.UnpicklingError, SafetensorError, *FAILURES) as error:
            raise ValueError(f"{self.argument}={self.name!r}: {self._fault(what, error)}") from error

    def _fault(self, what: str, error: Exception) -> str:
        """What is wrong, and the remedy."""
        refused = _refused_pickle(error)
        if refused is not None:
            held = re.search(r"GLOBAL (\S+)", str(refused))
            fault = f"its weights hold {held[1] if held else 'something'} and not only tensors, or are damaged"
            return f"{fault}: nothing of it was run; give the same weights as model.safetensors"
        if isinstance(error, SafetensorError):
            return f"{what} cannot be read, cut short or damaged ({first_line(error)}): download or copy them again"
        if not isinstance(error, OSError):
            return self.unusable(what, error)
        fetch = f"`hf download {self.name} --local-dir FOLDER` where there is a network, and give {self.give}"
        elsewhere = f"no folder has this name, and the hub was not reached; run {fetch}"
        return f"wanted {what} ({first_line(error)}): {'put them into the folder' if self.local else elsewhere}"

    def read_model(self, loader: Any, what: str, remedy: str, unused: Sequence[str] = (), **options: Any) -> Any:
        """The model, one of transformers' own, of which no weights may be missing but those of `unused` parts."""
        model, report = self.read(loader, what, output_loading_info=True, **options)
        self.require_whole((key for key in report["missing_keys"] if not any(part in key for part in unused)), remedy)
        return model

    def require_whole(self, missing: Iterable[str], remedy: str) -> None:
        """Raise ``ValueError`` if there are `missing` weights."""
        names = sorted(missing)
        require(not names, self.argument, self.name, f"lacks the weights {some_of(names)}{remedy}")

    def fetched(self, pattern: str) -> Path:
        """A folder with the files of a repository of the hub that fit `pattern`, from the cache or downloaded."""
        from huggingface_hub import snapshot_download

        class Reader:
            """As `read` wants it."""

            @staticmethod
            def from_pretrained(name: str, local_files_only: bool, trust_remote_code: bool) -> Path:
                return Path(snapshot_download(name, allow_patterns=pattern, local_files_only=local_files_only))

        return self.read(Reader, "the weights")


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
