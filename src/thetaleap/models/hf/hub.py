"""Checkpoints of Hugging Face: found and read, with errors that name the remedy."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.checks import require
from ...core.storage import hub_reachable, installed

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
FAILURES = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
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


def filled(kind: Any, config: Any, weights: Mapping[str, Tensor]) -> Any:
    """A model of transformers' own with the given weights: all of its own, and no others."""
    with torch.random.fork_rng(devices=[]):  # it first fills itself with random numbers
        model = kind(config)
    model.load_state_dict(dict(weights), strict=True)
    return model


def some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


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

    @staticmethod
    def of(source: str | Path, give: str, unusable: Callable[[str, Exception], str], trusted: bool = False) -> Source:
        folder = Path(source).expanduser()
        if folder.is_dir():
            return Source(str(folder), True, give, unusable, trusted)
        hub = isinstance(source, str) and HUB_ID.fullmatch(source) is not None
        remedy = "no such folder, nor a hub id such as 'bert-base-uncased'; give one of these"
        require(hub, "source", str(source), remedy)
        return Source(str(source), False, give, unusable, trusted)

    def read(self, loader: Any, what: str, **options: Any) -> Any:
        """``loader.from_pretrained``; errors call what is read `what`."""
        try:
            here = self.local or not hub_reachable()
            return loader.from_pretrained(self.name, local_files_only=here, trust_remote_code=self.trusted, **options)
        except OSError as error:
            elsewhere = (
                "no folder has this name, and the hub was not reached; run "
                f"`hf download {self.name} --local-dir FOLDER` where there is a network, bring the folder here, and "
                f"give {self.give}"
            )
            remedy = "put them into the folder" if self.local else elsewhere
            raise ValueError(f"source={self.name!r}: wanted {what} ({first_line(error)}): {remedy}") from None
        except FAILURES as error:
            raise ValueError(f"source={self.name!r}: {self.unusable(what, error)}") from error

    def read_model(self, loader: Any, what: str, remedy: str, unused: Sequence[str] = (), **options: Any) -> Any:
        """The model, of which no weights may be missing but those of `unused` parts."""
        model, report = self.read(loader, what, output_loading_info=True, **options)
        missing = sorted(key for key in report["missing_keys"] if not any(part in key for part in unused))
        require(not missing, "source", self.name, f"lacks the weights {some(missing)}{remedy}")
        return model
