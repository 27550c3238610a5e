"""What training files hold beside tensors: objects of packages that are not imported, read as inert stand-ins.

A checkpoint of Lightning holds its configuration as objects of OmegaConf, and perhaps a tokenizer, beside the weights
and their averages. Tensors are read by torch's own reader of weights, which builds no object that it does not know. Here
it is told that each such class is a `StandIn`, which keeps what it is given and does nothing. Classes of packages that no
training file is known to hold stay refused.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

PACKAGES = (
    *("omegaconf", "lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning"),
    *("transformers", "tokenizers", "typing", "collections", "pathlib", "argparse"),
)
TYPES = frozenset(
    f"builtins.{name}" for name in ("dict", "list", "tuple", "set", "int", "str", "float", "bool", "object")
)


class StandIn(dict[Any, Any]):
    """An object of a class that is not imported: its items, and its state."""

    state: Any = None

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        self.state = state


def stand_ins(path: Path) -> AbstractContextManager[None]:
    """While it is entered, torch reads classes of known packages that the file names as stand-ins."""
    made = []
    for name in get_unsafe_globals_in_checkpoint(str(path)):
        module, _, attribute = name.rpartition(".")
        if module.partition(".")[0] in PACKAGES or name in TYPES:
            made.append(type(attribute, (StandIn,), {"__module__": module}))
    return safe_globals(made)


def plain(value: Any) -> Any:
    """A configuration of OmegaConf as dictionaries, lists, numbers and text; references such as ``${a.b}`` stay text."""
    if not isinstance(value, StandIn):
        return value
    state = value.state if isinstance(value.state, dict) else {}
    held = state.get("_content", state.get("_val"))
    if isinstance(held, dict):
        return {key: plain(one) for key, one in held.items()}
    return [plain(one) for one in held] if isinstance(held, list) else held
