"""Models: oracles, adapters, and those that come with the package, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..core.checks import require, require_choice
from ..core.evaluation import Denoiser
from ..core.noise import Use, philox
from ..core.processes import Masked, Uniform
from ..core.schedules import Constant
from . import oracles
from .network import Network, from_network


@dataclass(frozen=True)
class BuiltIn:
    """A model that `load` knows by name."""

    about: str
    make: Callable[..., Denoiser]
    options: tuple[str, ...] = ()
    """What `make` takes by keyword."""


def _simplex(seed: int, *shape: int) -> torch.Tensor:
    """Rows drawn uniformly from the simplex: normalised exponentials."""
    size = int(torch.tensor(shape).prod())
    e = -torch.log1p(-torch.from_numpy(philox(seed, (0, 0, 0, Use.SIMPLEX), size)).view(shape))
    return e / e.sum(-1, keepdim=True)


def _toy15() -> Denoiser:
    return oracles.joint(_simplex(0, 15), Uniform(15, Constant()), horizon=12.0)


def _cube3(masked: bool) -> Denoiser:
    p0 = _simplex(1, 27).view(3, 3, 3)
    return oracles.joint(p0, Masked(3) if masked else Uniform(3), None if masked else 6.0)


def _sharp(seed: int, *shape: int) -> torch.Tensor:
    """Rows with a weaker and a stronger pull to few successors, so that neighbours matter."""
    cubed = _simplex(seed, *shape) ** 3
    return cubed / cubed.sum(-1, keepdim=True)


def _chain64() -> Denoiser:
    return oracles.markov_chain(_sharp(2, 16, 16), length=64)


def _chain2_64() -> Denoiser:
    return oracles.markov_chain(_sharp(5, 8, 8, 8), length=64)


def _ising4x16() -> Denoiser:
    return oracles.ising(4, 16, coupling=0.44)  # where the whole plane would be critical


def _tree31() -> Denoiser:
    return oracles.tree([(position - 1) // 2 for position in range(31)], _simplex(6, 6), _sharp(7, 31, 6, 6))


def _mixture32() -> Denoiser:
    return oracles.mixture(_simplex(3, 4), _simplex(4, 4, 1, 6).expand(4, 32, 6))


BUILT_IN: dict[str, BuiltIn] = {
    "toy15": BuiltIn("the paper's toy: 1 position, 15 values, uniform process, law uniform on the simplex", _toy15),
    "cube3": BuiltIn("3 positions of 3 values with a random joint law, masked", lambda: _cube3(True)),
    "cube3-uniform": BuiltIn("the same law under the uniform process", lambda: _cube3(False)),
    "chain64": BuiltIn("Markov chain, 64 positions of 16 values, masked: local dependence", _chain64),
    "chain2-64": BuiltIn("Markov chain of order 2, 64 positions of 8 values, masked: pairs matter", _chain2_64),
    "ising4x16": BuiltIn("Ising model on a 4 x 16 grid near criticality, masked: two dimensions", _ising4x16),
    "tree31": BuiltIn("Markov tree, binary, 31 positions of 6 values, masked: dependence by descent", _tree31),
    "mixture32": BuiltIn("mixture of 4 products, 32 positions of 6 values, masked: global dependence", _mixture32),
}


PLACE = ("length", "dtype", "device")
SPREAD = (*PLACE, "device_map", "trust_remote_code")


def _published(kind: str) -> Callable[..., Denoiser]:
    def make(source: str, **options: Any) -> Denoiser:
        from .hf import published

        return getattr(published, kind)(source, **options)

    return make


def _mlm(source: str, **options: Any) -> Denoiser:
    from .hf.masked_lm import mlm

    require("length" in options, "length", None, f"say how many positions: load('mlm:{source}', length=120)")
    return mlm(source, **options)


def _llm(kind: str) -> Callable[..., Denoiser]:
    def make(source: str, **options: Any) -> Denoiser:
        from .hf import llm

        require("length" in options, "length", None, f"say how many positions: load('{kind}:{source}', length=256)")
        return getattr(llm, kind)(source, **options)

    return make


def _antiberty(**options: Any) -> Denoiser:
    from .proteins.antibodies import antiberty

    return antiberty(**options)


def _sapiens(chain: str) -> Callable[..., Denoiser]:
    def make(**options: Any) -> Denoiser:
        from .proteins.antibodies import sapiens

        return sapiens(chain, **options)

    return make


BUILT_IN |= {
    "antiberty": BuiltIn("AntiBERTy, a masked language model of antibodies; a package to install", _antiberty, PLACE),
    "sapiens-vh": BuiltIn("Sapiens, heavy chains of human antibodies; a package to install", _sapiens("vh"), PLACE),
    "sapiens-vl": BuiltIn("Sapiens, light chains of human antibodies; a package to install", _sapiens("vl"), PLACE),
}


def _trained(source: str | Path, **options: Any) -> Denoiser:
    from .trained import trained

    return trained(source, **options)


SHIPPED = Path(__file__).parent.parent / "data"
"""Where models lie that come with the package, in folders as ``thetaleap train`` writes them."""

BUILT_IN |= {
    name: BuiltIn(about, partial(_trained, SHIPPED / name), PLACE)
    for name, about in {
        "shakespeare": "characters of Shakespeare's plays, masked: trained here, as are the next three",
        "shakespeare-uniform": "the same plays, uniform process",
        "mnist": "handwritten digits of 14 x 14 pixels in 8 greys, masked, class-conditional",
        "sums": "word problems and their worked answers, masked",
    }.items()
}


def _maskgit(source: str, **options: Any) -> Denoiser:
    from .images.maskgit import maskgit

    return maskgit(source, **options)


ADAPTERS: dict[str, BuiltIn] = {
    "trained": BuiltIn("a folder that thetaleap train has written", _trained, PLACE),
    "radd": BuiltIn("text models of RADD (JingyangOu/radd-lambda-dce)", _published("radd"), PLACE),
    "sedd": BuiltIn("text models of SEDD, absorbing or uniform (louaaron/sedd-small)", _published("sedd"), PLACE),
    "mdlm": BuiltIn("text models of MDLM (kuleshov-group/mdlm-owt)", _published("mdlm"), PLACE),
    "mlm": BuiltIn("any masked language model of Hugging Face: BERT, RoBERTa, ESM", _mlm, (*PLACE, "allowed")),
    "maskgit": BuiltIn(
        "images of MaskGIT in PyTorch, by class of ImageNet", _maskgit, ("vqgan", "codes", "heads", "dtype", "device")
    ),
    "llada": BuiltIn("language models of LLaDA (GSAI-ML/LLaDA-8B-Instruct)", _llm("llada"), SPREAD),
    "dream": BuiltIn("language models of Dream (Dream-org/Dream-v0-Instruct-7B)", _llm("dream"), SPREAD),
}
"""Models from a file, a folder or a hub id, given behind a colon."""


def load(name: str, **options: Any) -> Any:
    """A model, a `Denoiser`: a built-in one by name, or ``KIND:SOURCE``, as in ``radd:folder`` or ``mlm:some/hub-id``.

    ``thetaleap models`` lists both. Nothing is downloaded unless the source is a hub id.

    Args:
        name: of the model.
        options: for models that come from elsewhere, ``length``, ``dtype`` and ``device``; for ``mlm:`` also
            ``allowed``, the tokens that may be written; for ``llada:`` and ``dream:`` also ``device_map`` and
            ``trust_remote_code``; for ``maskgit:``, see `models.maskgit`.
    """
    kind, colon, source = name.partition(":")
    if colon:
        require_choice("model", kind, ADAPTERS)
        require(source != "", "model", name, f"say where it is, as in {kind}:folder")
        entry, place = ADAPTERS[kind], (source,)
    else:
        require_choice("model", name, BUILT_IN)
        entry, place = BUILT_IN[name], ()
    for key, value in options.items():
        has = f"it takes {', '.join(entry.options)}" if entry.options else "it takes no options"
        require(key in entry.options, key, value, f"{kind} has no such option; {has}")
    return entry.make(*place, **options)


__all__ = ["ADAPTERS", "BUILT_IN", "BuiltIn", "Network", "from_network", "load", "oracles"]
