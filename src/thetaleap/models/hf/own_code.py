"""Checkpoints that bring their own code, which is run: a network of their class, with the weights of their files.

``from_pretrained`` of transformers asks more of such a class in every version. LLaDA's never calls ``post_init``, which
version 5 cannot do without; Dream's wants a rotary function that version 5 no longer has, and keeps its frequencies where
version 5 would leave them unset; LLaDA2's imports what is gone. Here the class is called by itself: buffers are what its constructor makes of them, and
parameters are those of the files. This is the same with transformers 4.57 and 5.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ...core.checks import require
from ..weights import WEIGHTS, Weights, read_file
from .hub import Source, first_line, some_of, transformers

BAD_INDEX = "does not say which file holds which weights; download it again"


def own_model(source: Source, config: Any, loader: str, dtype: torch.dtype | None, device_map: Any) -> Any:
    """The model of the class that `config` names for the auto class `loader`; `dtype` None is that of the files."""
    auto = transformers()
    quantised = getattr(config, "quantization_config", None) is not None
    require(not quantised, source.argument, source.name, "its weights are quantised; give a checkpoint that is not")
    with _older(auto):
        made = _class(source, config.auto_map[loader])
    if isinstance(getattr(made, "_tied_weights_keys", None), list):  # version 5 wants more; `_shared` ties them
        made._tied_weights_keys = None
    if getattr(config, "use_cache", None) is None:  # version 5 takes it away
        config.use_cache = False
    dtype = dtype or getattr(config, "dtype", None)
    files = [read_file(path) for path in weight_files(source)]
    with quiet(), _older(auto), _built(dtype):
        try:
            model = made(config)
        except Exception as error:  # whatever it is, it is theirs
            told = f"{type(error).__name__}: {first_line(error)}"
            remedy = "this package runs it as it is; ask its authors which versions it runs with"
            where = f"{source.argument}={source.name!r}: its own code fails with transformers {auto.__version__}"
            raise ValueError(f"{where} ({told}); {remedy}") from error
    _fill(source, model, {name: tensor for file in files for name, tensor in file.items()}, dtype)
    return model.eval() if device_map is None else _spread(model, device_map)


def _class(source: Source, reference: str) -> Any:
    """What `config.json` calls ``module.Class``, from the files beside it."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    class Reader:
        """As `Source.read` wants it."""

        @staticmethod
        def from_pretrained(name: str, local_files_only: bool, trust_remote_code: bool) -> Any:
            assert trust_remote_code
            return get_class_from_dynamic_module(reference, name, local_files_only=local_files_only)

    return source.read(Reader, f"the code {reference}")


# --- what its code needs


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings about how the code is written, which who runs it cannot change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextmanager
def _older(auto: Any) -> Iterator[None]:
    """With what transformers had before version 5: the function of plain rotary frequencies among its others, which
    Dream, LLaDA2 and SDAR look up; and a question about torch.fx, which LLaDA2 asks."""
    rotary, questions = auto.modeling_rope_utils.ROPE_INIT_FUNCTIONS, vars(auto.utils.import_utils)
    missing = {"default": (rotary, plain_frequencies), "is_torch_fx_available": (questions, lambda: False)}
    missing = {name: (place, one) for name, (place, one) in missing.items() if name not in place}
    for name, (place, one) in missing.items():
        place[name] = one
    try:
        yield
    finally:
        for name, (place, _) in missing.items():
            del place[name]


def plain_frequencies(config: Any, device: Any = None, seq_len: Any = None, **_: Any) -> tuple[Tensor, float]:
    """``theta^(-2k/size)`` for k from 0 on (Su et al. 2021, arXiv:2104.09864), and 1, by which attention is scaled."""
    told = getattr(config, "rope_parameters", None) or {}
    theta, share = (
        told.get(name, getattr(config, name, default))
        for name, default in (("rope_theta", 10_000.0), ("partial_rotary_factor", 1.0))
    )
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size = int(head * share)
    return theta ** (-torch.arange(0, size, 2, dtype=torch.int64).to(device=device, dtype=torch.float) / size), 1.0


@contextmanager
def _built(dtype: torch.dtype | None) -> Iterator[None]:
    """What is built has no memory for its parameters, which come from files; its buffers are computed."""

    def empty(module: nn.Module, name: str, parameter: Any) -> Any:
        if parameter is None or parameter.is_meta:  # one that is there already may be shared
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=False)

    before, hook = torch.get_default_dtype(), register_module_parameter_registration_hook(empty)
    try:
        torch.set_default_dtype(dtype or before)
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(before)
        hook.remove()


# --- its weights


def weight_files(source: Source) -> list[Path]:
    """The files of a folder, or of a repository of the hub: one, or those that an index lists."""
    for name in WEIGHTS:
        folder = Path(source.name) if source.local else source.fetched(f"*{Path(name).suffix}*")
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            return _listed(source, index)
    remedy = f"no weights ({' or '.join(WEIGHTS)}, or their parts with an index): put them into the folder"
    raise ValueError(f"{source.argument}={source.name!r}: {remedy}")


def _listed(source: Source, index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        raise ValueError(f"index={str(index)!r}: {BAD_INDEX}") from None
    for name in names:
        require(isinstance(name, str) and Path(name).name == name, "index", str(index), BAD_INDEX)
        there = (index.parent / name).is_file()
        require(there, source.argument, source.name, f"{index.name} lists {name}, which is not there; add it")
    return [index.parent / name for name in names]


def _fill(source: Source, model: Any, weights: Weights, dtype: torch.dtype | None) -> None:
    """Put `weights` in the places of the model's parameters and buffers; several names may stand for one parameter."""
    if dtype is not None:
        weights = {name: one.to(dtype) if one.is_floating_point() else one for name, one in weights.items()}
    weights = _shared(model, weights)
    places = model.state_dict().keys()
    surplus = [name for name in weights if name not in places and "rotary_emb.inv_freq" not in name]
    if surplus:
        told = f"its network has no place for {some_of(surplus)}"
        warnings.warn(f"{source.argument}={source.name!r}: {told}", stacklevel=2)
    try:
        missing = model.load_state_dict(weights, strict=False, assign=True).missing_keys
    except RuntimeError as error:
        wrong = [line.strip() for line in str(error).splitlines()[1:]]
        fault = f"the weights do not fit its network: {wrong[0] if wrong else first_line(error)}"
        raise ValueError(f"{source.argument}={source.name!r}: {fault}; give a complete checkpoint") from None
    source.require_whole(missing, "; give a complete checkpoint")
    model.requires_grad_(False)


def _shared(model: Any, weights: Mapping[str, Tensor]) -> Weights:
    """`weights`, with those of parameters that are the same as another, by their code or by their configuration."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    groups = list(names.values())
    if getattr(model.config, "tie_word_embeddings", False):
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        tied = [names[id(end.weight)] for end in ends if end is not None]
        groups.append([name for group in tied for name in group])
    more = dict(weights)
    for group in groups:
        held = [name for name in group if name in more]
        more |= dict.fromkeys(group, more[held[0]]) if held and len(held) < len(group) else {}
    return more


def _spread(model: Any, device_map: Any) -> Any:
    """The model on several devices, by accelerate."""
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    if isinstance(device_map, str):
        whole = list(model._no_split_modules or [])
        room = get_balanced_memory(model, no_split_module_classes=whole)
        device_map = infer_auto_device_map(model, max_memory=room, no_split_module_classes=whole)
    return dispatch_model(model.eval(), device_map)
