"""What tells one model from another: a hash of its numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import unwrap
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ASIDE = ("name", "tokenizer", "pictures")
"""Fields that change no sample: what a model is called, and what is made of its tokens."""


def fingerprint(thing: Any) -> str:
    """SHA-256 of all tensors and plain values that a model, or any other `thing`, is made of: fields, modules, and what functions hold on to.

    The same on every device, as tensors are taken to the CPU; another one in another precision. Of float64 tensors the
    digits of float32 count: oracles compute such tables, and the last bit depends on where in memory they happen to be.
    Of a module only its weights and saved buffers count, not its code or what else it was told.

    `reproduction.looks` knows a model by its answers instead, which change with its code, as kept samples must. Here
    that would not do: answers round differently on every device, and workers must agree to the last digit.
    """
    digest = hashlib.sha256()
    for piece in _pieces(thing, set()):
        digest.update(piece)
    return f"sha256:{digest.hexdigest()}"


def _pieces(thing: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(thing, Tensor):
        yield f"{thing.dtype}{tuple(thing.shape)}".encode()
        flat = thing.detach().cpu().contiguous().reshape(-1)
        yield (flat.float() if flat.dtype == torch.float64 else flat).view(torch.uint8).numpy()
    elif isinstance(thing, np.ndarray):
        yield f"{thing.dtype}{thing.shape}".encode()
        yield np.ascontiguousarray(thing).reshape(-1).view(np.uint8)
    elif thing is None or isinstance(thing, bool | int | float | str | torch.dtype):
        yield repr(thing).encode()
    elif id(thing) not in seen and not isinstance(thing, torch.device):
        kind = thing if isinstance(thing, type | FunctionType) else type(thing)
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
        for part in _parts(thing):
            yield from _pieces(part, seen | {id(thing)})


def _parts(thing: Any) -> list[Any]:
    if isinstance(thing, nn.Module):
        return [part for item in thing.state_dict().items() for part in item]
    if isinstance(thing, Mapping):
        return [part for item in thing.items() for part in item]
    if isinstance(thing, list | tuple):
        return list(thing)
    if isinstance(thing, partial):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, FunctionType):
        return [cell.cell_contents for cell in unwrap(thing).__closure__ or ()]
    if is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, one.name) for one in fields(thing) if one.name not in ASIDE]
    return []
