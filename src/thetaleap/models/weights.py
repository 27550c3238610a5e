"""Weights from files: found, read without running any code that they hold, measured, and fitted to a network."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..core.checks import require, require_choice
from ..core.storage import hub_reachable, package_folder
from .standins import plain, stand_ins

Weights = dict[str, Tensor]
Device = torch.device | str
Dtype = torch.dtype | None
"""None is float32."""
Module = TypeVar("Module", bound=nn.Module)

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""What the files of a published model are called."""

TRAINING = (".pth", ".pt", ".ckpt")
"""How the names of training files end."""

ENTRIES = ("model", "state_dict", "model_state_dict")
"""Under which names training files hold the weights."""

NETWORK = "backbone."
"""What the names of the network's weights begin with, where a file holds others besides."""


@dataclass(frozen=True)
class Checkpoint:
    """A file of weights, and the configuration that lies beside it; empty where there is none."""

    path: Path
    config: dict[str, Any]


def find(source: str | Path, kind: str) -> Checkpoint:
    """The files of the model `source`, which is a file of weights, a folder, or else a hub id such as ``org/name``.

    A folder holds ``config.json`` and ``model.safetensors``, ``pytorch_model.bin`` or one training file. Only for a
    hub id, and only if nothing on this machine has its name, is anything downloaded. `kind` is what users write
    before the source, as in ``radd:PATH``; errors say how to use it.
    """
    require(str(source).strip() != "", "source", str(source), "give a file, a folder or a hub id such as org/name")
    path = Path(source).expanduser()
    if path.is_dir():
        return Checkpoint(_weights_in(path), _read_config(path / CONFIG))
    if path.exists():
        return Checkpoint(path, _read_config(path.parent / CONFIG))
    hub_id = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(source)) and path.suffix.lower() not in READERS
    remedy = f"no such file or folder here; give {kind}:PATH with one that exists, or {kind}:ORG/NAME from the hub"
    require(bool(hub_id), "source", str(source), remedy)
    return _fetch(str(source), kind)


def package_file(package: str, path: str, remedy: str) -> Path:
    """A data file of an installed package, which is not imported."""
    file = package_folder(package, remedy) / path
    if not file.is_file():
        raise ImportError(f"{package}/{path} is not installed: {remedy}")
    return file


def _weights_in(folder: Path) -> Path:
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    others = sorted(path for path in folder.iterdir() if path.suffix.lower() in TRAINING)
    wanted = f"needs {' or '.join(WEIGHTS)} or one file {', '.join(f'*{ending}' for ending in TRAINING)}"
    require(len(others) > 0, "source", str(folder), f"no weights in this folder; it {wanted}")
    several = f"holds {', '.join(other.name for other in others)}; give the path of one of them"
    require(len(others) == 1, "source", str(folder), several)
    return others[0]


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"config={str(path)!r}: cannot be read as JSON ({error}); copy or download it again") from None
    require(isinstance(config, dict), "config", str(path), "must hold a JSON object, {...}")
    return config


def _fetch(repo: str, kind: str) -> Checkpoint:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise ImportError(f"source={repo!r}: downloads need more packages: pip install 'thetaleap[hub]'") from None

    def download(name: str) -> Path | None:
        """The file, or None where the repository surely has none of this name."""
        try:
            return Path(hf_hub_download(repo, name, local_files_only=not hub_reachable()))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            return None

    try:
        config, weights = download(CONFIG), download(WEIGHTS[0]) or download(WEIGHTS[1])
        reason, cause = "the repository has no such weights", None
    except Exception as error:  # the hub has many ways to fail, and all mean the same to the user
        config, weights, cause = None, None, error
        reason = _reason(error) if hub_reachable() else "it was not reached, and the cache does not have it"
    if weights is None:
        missing = f"no such file or folder here, and it could not be fetched from the hub ({reason})"
        remedy = f"Without network, or with HF_HUB_OFFLINE, put a copy into a folder and give {kind}:FOLDER"
        wanted = f"Wanted: {CONFIG} and {' or '.join(WEIGHTS)}"
        raise ValueError(f"source={repo!r}: {missing}. {wanted}. {remedy}") from cause
    return Checkpoint(weights, {} if config is None else _read_config(config))


def read_weights(path: str | Path, buffers: Collection[str] = ()) -> Weights:
    """The tensors of a file by name, on the CPU; a first part of the name that all share, as ``backbone.``, is dropped.

    Of a training file ``{model, ema, ...}`` the averaged parameters are given, if it holds them: either by name, or as a
    list (``ema.shadow_params``) in the order of the parameters, that is, of `model` without the names in `buffers`.
    """
    return tensors_of(read_content(path), path, buffers)


def read_file(path: str | Path) -> Weights:
    """The tensors of a file that holds nothing else, by their names as they are."""
    content = read_content(path)
    require(_named(content), "weights", str(path), "holds something else than tensors by name; give a state_dict")
    return content


def read_content(path: str | Path) -> Any:
    """What a file holds, tensors on the CPU. Nothing of it is run: a file that wants to run code is refused."""
    path = Path(path)
    require(path.is_file(), "weights", str(path), "no such file; give the path of one")
    require_choice(f"ending of weights {str(path)!r}", path.suffix.lower(), READERS)
    with path.open("rb") as file:
        start = file.read(64)
    require(start != b"", "weights", str(path), "the file is empty; download or copy it again")
    pointer = start.startswith(b"version https://git-lfs")
    require(not pointer, "weights", str(path), "is but a Git LFS pointer to the weights; get them with `git lfs pull`")
    return READERS[path.suffix.lower()](path, start)


def _read_safetensors(path: Path, start: bytes) -> Any:
    try:
        return load_file(path)
    except SafetensorError as error:
        if len(start) < 9 or start[8:9] == b"{":
            raise ValueError(_damaged(path, error)) from None
        remedy = "if torch wrote it, let its name end in .pth, else download it again"
        begins = f"not a safetensors file, it begins with {start[:16]!r}"
        raise ValueError(f"weights={str(path)!r}: {begins}; {remedy}") from None


def _read_torch(path: Path, start: bytes) -> Any:
    archive = zipfile.is_zipfile(path)
    good = archive or start[:2] in (b"P", b"PK") or start[:1] == b"\x80"
    begins = f"not a file of torch.save, it begins with {start[:16]!r}"
    require(good, "weights", str(path), f"{begins}; give one that is, or a .safetensors file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about how the file was written, which its reader cannot change
            with stand_ins(path) if archive else nullcontext():
                return torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except Exception as error:  # a damaged file can fail anywhere
        wanted = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if wanted is None:
            raise ValueError(_damaged(path, error)) from None
        refused = f"holds {wanted[1]} and not only tensors; reading it would run code, so it is refused"
        remedy = "If you trust who made it, open it there and save its weights, {'state_dict': ..., 'ema': ...}, by torch.save"
        raise ValueError(f"weights={str(path)!r}: {refused}. {remedy}") from None


READERS = {".safetensors": _read_safetensors} | dict.fromkeys((".pth", ".pt", ".bin", ".ckpt"), _read_torch)


def _damaged(path: Path, error: Exception) -> str:
    return f"weights={str(path)!r}: cut short or damaged ({_reason(error)}); download or copy it again"


def _reason(error: Exception) -> str:
    """One line; of torch's advice to read the file unsafely, what is behind it."""
    inner = re.search(r"Unpickler error: *(.+)", str(error))
    lines = [inner[1]] if inner else str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def tensors_of(content: Any, path: str | Path, buffers: Collection[str]) -> Weights:
    """What `read_weights` gives, of the content of a file."""
    if _named(content):
        return _network(content)
    where = str(path)
    require(isinstance(content, dict), "weights", where, f"holds a {type(content).__name__}, not tensors by name")
    entry = next((name for name in ENTRIES if _named(content.get(name))), None)
    if entry is None:
        held = ", ".join(map(str, content)) or "nothing"
        remedy = f"no tensors by name under any of {', '.join(ENTRIES)}; it holds {held}; give a file of a state_dict"
        raise ValueError(f"weights={where!r}: {remedy}")
    current = _network(content[entry])
    averages = content.get("ema")
    if isinstance(averages, dict) and "shadow_params" in averages:
        averages = averages["shadow_params"]
    if _named(averages):
        return current | _unprefixed(averages)
    return _averaged(current, averages, where, buffers) if isinstance(averages, list | tuple) else current


def config_of(content: Any) -> dict[str, Any]:
    """The configuration that a training file of Lightning holds; empty where it holds none."""
    held = content.get("hyper_parameters") if isinstance(content, dict) else None
    config = plain(held.get("config")) if isinstance(held, dict) else None
    return config if isinstance(config, dict) else {}


def _averaged(current: Weights, averages: Collection[Any], where: str, buffers: Collection[str]) -> Weights:
    names = [name for name in current if name not in buffers]
    count = f"holds {len(averages)} averaged parameters, but {len(names)} parameters"
    require(len(averages) == len(names), "weights", where, f"{count}; give a file with the weights alone")
    for name, tensor in zip(names, averages, strict=True):
        same = isinstance(tensor, Tensor) and tensor.shape == current[name].shape
        got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        remedy = f"its average of {name} is {got}, not {tuple(current[name].shape)}; give a file with the weights alone"
        require(same, "weights", where, remedy)
    return current | dict(zip(names, averages, strict=True))


def _named(content: Any) -> bool:
    """Whether `content` is tensors by name."""
    some = isinstance(content, dict) and len(content) > 0
    return some and all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items())


def _network(tensors: Weights) -> Weights:
    """Those of the network, where there are others besides."""
    return _unprefixed({name: tensor for name, tensor in tensors.items() if name.startswith(NETWORK)} or tensors)


def _unprefixed(tensors: Weights) -> Weights:
    while len(tensors) > 1 and len({name.partition(".")[0] for name in tensors}) == 1:
        tensors = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}
    return dict(tensors)


@dataclass(frozen=True)
class Shapes:
    """The sizes of a network, as the shapes of its weights tell them."""

    tensors: Weights
    what: str
    """What errors call the weights, e.g. ``weights='model.pth'``."""
    remedy: str
    """What errors ask for where a tensor is missing."""

    def width(self, name: str, axis: int, default: int | None = None) -> int:
        """One size of the tensor `name`; `default` if there is no such tensor, or without one an error."""
        if name in self.tensors and self.tensors[name].ndim > axis:
            return self.tensors[name].shape[axis]
        if default is None:
            few = ", ".join(list(self.tensors)[:4])
            raise ValueError(f"{self.what}: no {name} among the weights ({few}, ...); {self.remedy}")
        return default

    def numbers(self, pattern: str) -> set[tuple[str, ...]]:
        """The groups of `pattern` in the names that begin with it."""
        return {found.groups() for found in map(re.compile(pattern).match, self.tensors) if found}

    def count(self, pattern: str) -> int:
        """One more than the largest number that `pattern` finds in the names; at least 1."""
        return 1 + max((int(number) for number, *_ in self.numbers(pattern)), default=0)


def built(make: Callable[[], Module], tensors: Mapping[str, Tensor], what: str, dtype: Dtype, device: Device) -> Module:
    """The network of `make` with the given weights, ready to evaluate; `dtype` is float32 by default."""
    dtype = torch.float32 if dtype is None else dtype
    require(dtype.is_floating_point, "dtype", dtype, "give a floating-point one, such as torch.bfloat16")
    with torch.device("meta"):
        module = make()
    module = module.to(dtype).to_empty(device=device)
    fit(module, tensors, what)
    return module.eval().requires_grad_(False)


def fit(module: nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
    """Copy `tensors`, which errors call `what`, into `module`; one error lists all missing, surplus and misshapen."""
    expected = module.state_dict()
    wrong = {
        "missing": [name for name in expected if name not in tensors],
        "surplus": [name for name in tensors if name not in expected],
        "misshapen": [
            f"{name} {_about(tensors[name])} instead of {_about(own)}"
            for name, own in expected.items()
            if name in tensors and _about(tensors[name]) != _about(own)
        ],
    }
    if any(wrong.values()):
        lists = "; ".join(f"{fault}: {', '.join(names)}" for fault, names in wrong.items() if names)
        raise ValueError(f"{what}: the weights do not fit. {lists}. Give weights of this architecture and these sizes")
    module.load_state_dict(dict(tensors))


def _about(tensor: Tensor) -> str:
    return f"{list(tensor.shape)}" if tensor.is_floating_point() else f"{list(tensor.shape)} of {tensor.dtype}"
