"""Calls of the library, run and written down from one record: what is shown is what was run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import thetaleap as tl

from ...control import Method
from ...evaluation.choice import written

IMPORT = "import thetaleap as tl"
PARSE = "from thetaleap.evaluation.choice import parse"
CONTENDERS = "from thetaleap.evaluation.contenders import contenders_of"
SURENESS = "from thetaleap.integrations.studio import sureness"
_CLASS = re.compile(r"\b([A-Z]\w*)(?=\()")


@dataclass(frozen=True)
class Call:
    """A public function of the library, and what it is called with behind its first arguments."""

    name: str
    args: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(name: str, *args: Any, **keywords: Any) -> Call:
        return Call(name, args, tuple(keywords.items()))

    def __call__(self, *first: Any, **more: Any) -> Any:
        return getattr(tl, self.name)(*first, *self.args, **dict(self.keywords), **more)

    def text(self, *first: str, **more: str) -> str:
        """The call as in Python, with these texts for what it is called with besides."""
        words = [*first, *map(spelled, self.args)]
        words += [f"{name}={spelled(value)}" for name, value in self.keywords]
        return f"tl.{self.name}({', '.join([*words, *(f'{name}={value}' for name, value in more.items())])})"


def spelled(value: Any) -> str:
    """A number, text, list or solver as in Python."""
    if not isinstance(value, Method):
        return repr(value)
    text = written(value)
    if all(name in tl.__all__ for name in _CLASS.findall(text)):
        return _CLASS.sub(r"tl.\1", text)
    return f"parse({text!r})"  # holds something of another package


def program(*lines: str) -> str:
    """Lines of Python with the imports that they need."""
    body = "\n".join(lines)
    needed = {"import torch": "torch.", CONTENDERS: "contenders_of(", PARSE: "parse(", SURENESS: "sureness("}
    imports = [line for line, use in needed.items() if use in body]
    return "\n".join([*sorted([IMPORT, *imports], key=lambda line: (line.startswith("from"), line)), "", body, ""])
