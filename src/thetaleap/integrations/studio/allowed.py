"""What the page may be asked to load: that is for whoever starts it to say, and not for its visitors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...core.checks import require, require_choice
from ...evaluation.choice import FILE, split
from ...models import TRUST
from ...registry import ADAPTERS, full_name, models
from .calls import Call

MOST_SOLVERS = 20
OPEN = "files are opened only if the studio was started with --allow-files"


@dataclass(frozen=True)
class Allowed:
    """By default models that come with the package, or with others that are installed, and nothing from files."""

    models: tuple[str, ...] = ()
    """More models to offer, by name, folder or ``KIND:SOURCE``."""
    files: bool = False
    """Whether visitors may name others: folders, files and ids of the hub."""
    trust_remote_code: bool = False
    """Whether to run the code that comes with such a model."""

    @property
    def names(self) -> list[str]:
        """Models to choose from."""
        return list(dict.fromkeys([*self.models, *models(sourced=False)]))

    def load(self, name: str) -> Call:
        """The call that loads a model; an error if it may not be loaded."""
        if not self.files:
            plain = name in self.models or not {":", "/"} & set(name)
            require(plain, "model", name, f"{OPEN}; choose another")
            require_choice("model", name, self.names)
        kind = full_name(name).partition(":")[0]
        takes = kind in ADAPTERS and TRUST in ADAPTERS[kind].options
        return Call.of("load", name, **({TRUST: True} if takes and self.trust_remote_code else {}))

    def solvers(self, text: str) -> list[str]:
        """Solvers with commas between, each by name or as in Python, or a file, if those may be read."""
        found = [part for part in split(text) if part]
        require(len(found) <= MOST_SOLVERS, "solvers", text, f"give at most {MOST_SOLVERS}")
        for part in found:
            require(self.files or not part.endswith(FILE), "solvers", part, f"{OPEN}; choose another")
        return list(dict.fromkeys(found))


@lru_cache(maxsize=4)
def loaded(call: Call) -> Any:
    """The model that a call loads: one for all visitors, as nothing changes it."""
    return call()
