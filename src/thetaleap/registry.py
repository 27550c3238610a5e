"""One registry of solvers, planners, correctors and models: this package's, and those that others add by entry points.

A package that has ``[project.entry-points."thetaleap.solvers"] mine = "its.module:Mine"`` adds a solver called "mine";
``thetaleap.planners``, ``thetaleap.correctors`` and ``thetaleap.models`` do the same. Nothing is imported before it is used.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

HOME = "thetaleap"


@dataclass(frozen=True)
class Target:
    """Something in a module, which is imported when it is called: with `arguments`, and what else is given."""

    place: str
    """``module:attribute``."""
    arguments: tuple[Any, ...] = ()

    def load(self) -> Any:
        module, _, attributes = self.place.partition(":")
        found = import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
        return found

    def source(self) -> Any:
        """How it is written in a file of this package, which is not imported for that."""
        module, _, name = self.place.partition(":")
        path = Path(__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
        nodes = ast.parse(path.read_text(encoding="utf-8")).body
        return next(node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.load()(*self.arguments, *arguments, **options)


@dataclass(frozen=True)
class Entry:
    """A name, and what it stands for."""

    kind: str
    """A solver, planner, corrector or model."""
    name: str
    target: Target
    packages: tuple[str, ...] = ()
    """Those that add it; none for this package's own."""

    def load(self) -> Any:
        """What it stands for: a class or a function. Errors name the package that it comes from."""
        if not self.packages:
            return self.target.load()
        who = f"{self.kind} {self.name!r} of the package {' and of '.join(self.packages)}"
        if len(self.packages) > 1:
            raise ImportError(f"{who}: only one can have the name; uninstall the other")
        try:
            found = self.target.load()
        except Exception as error:  # whatever it is, it is theirs
            told = f"{type(error).__name__}: {error}"
            raise ImportError(
                f"{who}: {self.target.place} cannot be loaded ({told}); update or uninstall it"
            ) from error
        base = BASES.get(self.kind)
        fits = base is None or (isinstance(found, type) and is_dataclass(found) and issubclass(found, base.load()))
        if not fits or not callable(found):
            wanted = "function" if base is None else f"dataclass that derives from {self.kind.capitalize()}"
            raise ImportError(f"{who}: {self.target.place} is no {wanted}; update or uninstall it")
        return found

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.load()(*self.target.arguments, *arguments, **options)


BASES = {
    "solver": Target(f"{HOME}.control:Method"),
    "planner": Target(f"{HOME}.planners:Planner"),
    "corrector": Target(f"{HOME}.solvers:Corrector"),
}
"""What the classes of others must derive from."""


class Registry(Mapping[str, Entry]):
    """Entries by name, this package's first: no other can take their names."""

    def __init__(self, kind: str, own: Mapping[str, Target]) -> None:
        self.kind, self.own = kind, own

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """All of them."""
        found = {name: Entry(self.kind, name, target) for name, target in self.own.items()}
        for point in entry_points(group=f"{HOME}.{self.kind}s"):
            if point.name not in self.own:
                before = found[point.name].packages if point.name in found else ()
                packages = {*before, point.dist.name if point.dist is not None else point.value}
                found[point.name] = Entry(
                    self.kind, point.name, Target(f"{point.module}:{point.attr}"), tuple(sorted(packages))
                )
        return found

    @property
    def others(self) -> dict[str, Entry]:
        """Those that other packages add."""
        return {name: entry for name, entry in self.entries.items() if entry.packages}

    def loaded(self) -> dict[str, Any]:
        """What all names stand for, without those that cannot be loaded."""
        found: dict[str, Any] = {}
        for name, entry in self.entries.items():
            try:
                found[name] = entry.load()
            except ImportError:
                if not entry.packages:
                    raise
        return found

    def __getitem__(self, name: str) -> Entry:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _own(**places: str) -> dict[str, Target]:
    return {name.replace("_", "-"): Target(f"{HOME}.{place}") for name, place in places.items()}


SOLVERS = Registry(
    "solver",
    _own(
        euler="solvers.leaping:Euler",
        tau_leaping="solvers.leaping:TauLeaping",
        tweedie="solvers.tweedie:Tweedie",
        rk2="solvers.high_order:RK2",
        trapezoidal="solvers.high_order:Trapezoidal",
        exponential_trapezoidal="solvers.exponential:ExponentialTrapezoidal",
        multistep="solvers.multistep:Multistep",
        adams_bashforth="solvers.adams_bashforth:AdamsBashforth",
        uniformization="solvers.uniformization:Uniformization",
        first_hitting="solvers.first_hitting:FirstHitting",
        corrected="solvers.corrected:Corrected",
        remdm="solvers.remdm:ReMDM",
        psi="solvers.psi:Psi",
        wino="solvers.wino:WINO",
        joint_threshold="solvers.joint_threshold:JointThreshold",
        punt="solvers.punt:PUNT",
        parallel_decoding="control.decoding:ParallelDecoding",
        semi_autoregressive="control.decoding:SemiAutoregressive",
    ),
)

PLANNERS = Registry(
    "planner",
    _own(
        bernoulli="planners.bernoulli:Bernoulli",
        fixed_count="planners.ordered:FixedCount",
        low_discrepancy="planners.ordered:LowDiscrepancy",
        dilated="planners.ordered:Dilated",
        confidence="planners.confidence:Confidence",
        margin_confidence="planners.confidence:MarginConfidence",
        entropy_confidence="planners.confidence:EntropyConfidence",
        entropy_bounded="planners.entropy:EntropyBounded",
        threshold="planners.threshold:Threshold",
        factor="planners.threshold:Factor",
        klass="planners.klass:KLASS",
    ),
)

CORRECTORS = Registry(
    "corrector",
    _own(gibbs="solvers.correctors.gibbs:Gibbs", informed="solvers.correctors.informed:Informed"),
)


@dataclass(frozen=True)
class BuiltIn:
    """A model that `load` knows by name."""

    about: str
    make: Callable[..., Any]
    options: tuple[str, ...] = ()
    """What `make` takes by keyword, unless it is an `Entry`."""
    process: str = ""
    length: int | None = None
    states: int | None = None
    """These three where they are known before it is loaded."""
    example: int | None = None
    """A length, where one must be given."""


PLACE = ("length", "dtype", "device")
SPREAD = (*PLACE, "device_map", "trust_remote_code")
IN_BLOCKS = (*SPREAD, "block_length")
SEDD = (*PLACE, "graph", "noise", "sigma_min", "sigma_max")
SHIPPED = Path(__file__).parent / "data"
"""Where models lie that come with the package, in folders as ``thetaleap train`` writes them."""


def _made(place: str, *arguments: Any) -> Target:
    return Target(f"{HOME}.models.{place}", arguments)


BUILT_IN: dict[str, BuiltIn] = {
    name: BuiltIn(about, _made(f"examples:{name.replace('-', '_')}"), (), process, length, states)
    for name, (process, length, states, about) in {
        "toy15": (
            "Uniform",
            1,
            15,
            "the paper's toy: 1 position, 15 values, uniform process, law uniform on the simplex",
        ),
        "cube3": ("Masked", 3, 3, "3 positions of 3 values with a random joint law, masked"),
        "cube3-uniform": ("Uniform", 3, 3, "the same law under the uniform process"),
        "chain64": ("Masked", 64, 16, "Markov chain, 64 positions of 16 values, masked: local dependence"),
        "chain2-64": ("Masked", 64, 8, "Markov chain of order 2, 64 positions of 8 values, masked: pairs matter"),
        "ising4x16": ("Masked", 64, 2, "Ising model on a 4 x 16 grid near criticality, masked: two dimensions"),
        "tree31": ("Masked", 31, 6, "Markov tree, binary, 31 positions of 6 values, masked: dependence by descent"),
        "mixture32": ("Masked", 32, 6, "mixture of 4 products, 32 positions of 6 values, masked: global dependence"),
        "shuffle16": ("Masked", 16, 16, "random permutation of 16 values, masked: what is drawn together collides"),
        "latin4": ("Masked", 16, 4, "random Latin square of order 4, masked: a rule for every row and column"),
    }.items()
}
BUILT_IN |= {
    name: BuiltIn(f"{about}; a package to install", _made(f"proteins.antibodies:{maker}", *chain), PLACE)
    for name, (about, maker, *chain) in {
        "antiberty": ("AntiBERTy, a masked language model of antibodies", "antiberty"),
        "sapiens-vh": ("Sapiens, heavy chains of human antibodies", "sapiens", "vh"),
        "sapiens-vl": ("Sapiens, light chains of human antibodies", "sapiens", "vl"),
    }.items()
}
BUILT_IN |= {
    name: BuiltIn(about, _made("trained:trained", SHIPPED / name), PLACE, process, length, states)
    for name, (process, length, states, about) in {
        "shakespeare": (
            "Masked",
            128,
            1024,
            "Shakespeare's plays in byte pairs, masked: trained here, as are the next",
        ),
        "shakespeare-char": ("Masked", 256, 65, "the same plays in characters, masked"),
        "shakespeare-uniform": ("Uniform", 128, 1024, "the same plays in byte pairs, uniform process"),
        "mnist": ("Masked", 196, 8, "handwritten digits of 14 x 14 pixels in 8 greys, masked, class-conditional"),
        "sums": ("Masked", 56, 116, "word problems and their worked answers, masked"),
    }.items()
}

ADAPTERS: dict[str, BuiltIn] = {
    kind: BuiltIn(about, _made(f"{module}:{kind.replace('-', '_')}"), options, example=example)
    for kind, (about, module, options, example) in {
        "trained": ("a folder that thetaleap train has written", "trained", PLACE, None),
        "radd": ("text models of RADD (JingyangOu/radd-lambda-dce)", "hf.published", PLACE, None),
        "sedd": ("text models of SEDD, absorbing or uniform (louaaron/sedd-small)", "hf.published", SEDD, None),
        "mdlm": ("text models of MDLM (kuleshov-group/mdlm-owt)", "hf.published", (*PLACE, "time_conditioning"), None),
        "bd3lm": (
            "text models of BD3-LM, in blocks (kuleshov-group/bd3lm-owt-block_size4)",
            *("hf.bd3lm", (*PLACE, "block_length", "time_conditioning"), None),
        ),
        "mlm": (
            "any masked language model of Hugging Face: BERT, RoBERTa, ESM",
            *("hf.masked_lm", (*PLACE, "allowed"), 120),
        ),
        "dplm": ("proteins of DPLM (airkingbd/dplm_650m)", "hf.masked_lm", PLACE, 120),
        "maskgit": (
            "images of MaskGIT and Halton-MaskGIT in PyTorch, by class of ImageNet",
            *("images.maskgit", ("vqgan", "codes", "heads", "dtype", "device"), None),
        ),
        "llada": ("language models of LLaDA (GSAI-ML/LLaDA-8B-Instruct)", "hf.llm", SPREAD, 256),
        "dream": ("language models of Dream (Dream-org/Dream-v0-Instruct-7B)", "hf.llm", SPREAD, 256),
        "llada2": ("language models of LLaDA2, in blocks (inclusionAI/LLaDA2.0-mini)", "hf.llm", IN_BLOCKS, 256),
        "sdar": ("language models of SDAR, in blocks (JetLM/SDAR-1.7B-Chat)", "hf.llm", IN_BLOCKS, 256),
        "diffusion-gemma": (
            "DiffusionGemma, text in blocks by uniform diffusion (google/diffusiongemma-26B-A4B-it)",
            *("hf.diffusion_gemma", (*PLACE, "prompt", "self_conditioning"), None),
        ),
    }.items()
}
"""Models from a file, a folder or a hub id, given behind a colon."""

MODELS = Registry("model", {name: one.make for name, one in {**BUILT_IN, **ADAPTERS}.items()})  # pyright: ignore[reportArgumentType]


def models(sourced: bool) -> dict[str, BuiltIn]:
    """All models by name, or, with a source behind a colon, by kind; those of other packages may be either."""
    added = {
        name: BuiltIn(f"of the package {' and of '.join(entry.packages)}", entry)
        for name, entry in MODELS.others.items()
    }
    return {**(ADAPTERS if sourced else BUILT_IN), **added}


AUTO = "auto"
"""Not a solver: the one that `RECOMMEND` names for the model and the budget."""
WRITTEN = ("window",)
"""Hyper-parameters that are no options, since `sample` has one of that name: ``--solver 'Multistep(window=2)'``."""
RECOMMEND, LOAD = Target(f"{HOME}.evaluation.recommend:recommend"), Target(f"{HOME}.models:load")


def full_name(model: str) -> str:
    """`model`, or ``trained:FOLDER`` where it is just a folder."""
    plain = ":" not in model and model not in models(sourced=False)
    return f"trained:{model}" if plain and Path(model).is_dir() else model
