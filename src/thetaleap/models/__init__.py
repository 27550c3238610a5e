"""Models: oracles, adapters, and those that come with the package, by name."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.checks import as_device, as_dtype, require, require_choice, require_kind
from ..registry import ADAPTERS, BUILT_IN, SHIPPED, BuiltIn, Entry, full_name, models
from . import oracles
from .network import Network, from_network


def load(name: str, **options: Any) -> Any:
    """A model, a `Denoiser`: a built-in one by name, or ``KIND:SOURCE``, as in ``radd:folder`` or ``mlm:some/hub-id``.
    The folder of a model of ``thetaleap train`` is enough. Options may stand behind the source, as on the command line:
    ``sedd:file.pth,graph=absorb``.

    ``thetaleap models`` lists both, with those of other packages. Nothing is downloaded unless the source is a hub id.

    Args:
        name: of the model.
        options: for models that come from elsewhere, ``length``, ``dtype`` and ``device``; for ``mlm:`` also
            ``allowed``, the tokens that may be written; for ``llada:``, ``dream:``, ``llada2:`` and ``sdar:`` also
            ``device_map`` and ``trust_remote_code``, and for the last two ``block_length``; for ``maskgit:``, see
            `models.maskgit`; for ``sedd:``, ``mdlm:`` and ``bd3lm:`` what the files may not say,
            see `models.hf.published` and `models.hf.bd3lm`.
    """
    require_kind("name", name, str, "give the name of a model, as in 'chain64', or KIND:SOURCE, as in 'trained:folder'")
    name = full_name(name)
    kind, colon, source = name.partition(":")
    known = models(sourced=colon != "")
    remedy = "there is no such folder; give one of thetaleap train, KIND:SOURCE, or a name that thetaleap models lists"
    require(colon != "" or "/" not in name, "model", name, remedy)
    require_choice("model", kind, known)
    source, written = _written(source)
    require(colon == "" or source != "", "model", name, f"say where it is, as in {kind}:folder")
    entry, place = known[kind], (source,) if colon else ()
    for key, value in written.items():
        require(key != TRUST, "model", name, f"what a name says may come from a file; give {TRUST}=True by itself")
        require(key not in options, key, options.get(key), f"is {value!r} in {name!r}; say it once")
    options = written | options
    if isinstance(entry.make, Entry):
        return _added(name, entry.make, place, options)
    for key, value in options.items():
        has = f"it takes {', '.join(entry.options)}" if entry.options else "leave it out"
        require(key in entry.options, key, value, f"{kind} has no such option; {has}")
    known = entry.example is None or "length" in options
    require(known, "length", None, f"say how many positions {kind} shall have, for example length={entry.example}")
    for key, convert in (("device", as_device), ("dtype", as_dtype)):
        if options.get(key) not in (None, "auto"):
            options[key] = convert(options[key])
    made = entry.make(*place, **options)
    return replace(made, name=name) if isinstance(made, Network) else made


TRUST = "trust_remote_code"
OPTION = re.compile(r",(\w+)=([^,]*)$")


def _written(source: str) -> tuple[str, dict[str, Any]]:
    """The source without the options behind it, and these: numbers, True, False, or text."""
    options: dict[str, Any] = {}
    while not Path(source).exists() and (found := OPTION.search(source)):
        try:
            value = ast.literal_eval(found[2].capitalize() if found[2] in ("true", "false") else found[2])
        except (SyntaxError, ValueError):
            value = found[2]
        source, options = source[: found.start()], {found[1]: value} | options
    return source, options


def _added(name: str, entry: Entry, place: tuple[str, ...], options: dict[str, Any]) -> Any:
    """A model of another package, if what it takes is what was given."""
    make = entry.load()
    takes = inspect.signature(make)
    try:
        takes.bind(*place, **options)
    except TypeError as error:
        raise ValueError(f"model={name!r}: of the package {entry.packages[0]}, takes {takes}: {error}") from None
    return make(*place, **options)


__all__ = ["ADAPTERS", "BUILT_IN", "SHIPPED", "BuiltIn", "Network", "from_network", "load", "oracles"]
