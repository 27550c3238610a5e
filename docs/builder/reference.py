"""The pages of the API reference, as Markdown: what mkdocstrings reads from docstrings, and tables made from the registry."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any, Literal, get_args, get_origin

from thetaleap.cli.catalog import from_class
from thetaleap.core.fields import Parameter, parameters
from thetaleap.evaluation.choice import written
from thetaleap.registry import CORRECTORS, PLANNERS, SOLVERS, Registry

LISTED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "sampling": (
        "Sampling",
        "Load a model or wrap your own network, condition it, and sample.",
        (
            *("sample", "Samples", "Moment", "FREE", "load", "from_network", "tempered", "constrained", "guided"),
            *("Blocks", "conditioning.prompts.prepare", "models.hf.prefix_reuse.approximate_prefix"),
        ),
    ),
    "processes": (
        "Processes, schedules and grids",
        "The forward process of a position, its noise schedule, and the times a run walks.",
        ("Masked", "Uniform", "RateMatrix", "LogLinear", "Geometric", "Cosine", "Constant", "control.grids"),
    ),
    "oracles": (
        "Exact laws and oracles",
        "The law of a solver's samples, computed; and models whose truth is known.",
        ("exact", "models.oracles"),
    ),
    "evaluation": (
        "Comparing and measuring",
        "Which solver is best for a model, and how far samples are from the truth.",
        (
            *(
                "compare",
                "Contender",
                "default_contenders",
                "evaluation.compare.Comparison",
                "recommend",
                "Recommendation",
            ),
            *("evaluation.metrics.divergence", "evaluation.metrics.text", "evaluation.metrics.sequences"),
            *("evaluation.metrics.likelihood", "evaluation.metrics.images", "files"),
        ),
    ),
    "training": (
        "Training",
        "Train a small model, or take the losses alone.",
        ("train", "training.losses"),
    ),
    "extending": (
        "To extend",
        "What new solvers, planners, correctors and models are written against.",
        (
            *(
                "core.evaluation.Denoiser",
                "core.evaluation.Conditionals",
                "core.evaluation.Evaluation",
                "core.reverse.Reverse",
            ),
            *("solvers.base.Solver", "solvers.base.Step", "planners.base.Planner", "planners.counting.Counting"),
            *("solvers.correctors.base.Corrector", "core.noise.Noise", "core.noise.Draw", "core.jumps"),
            *("core.fields.knob", "core.fields.Knob", "registry.Registry"),
        ),
    ),
}
"""Page: title, what it is for, and names below ``thetaleap``."""

REGISTERED: dict[str, tuple[Registry, str]] = {
    "solvers": (SOLVERS, "How a sample gets from noise to data. `solver=` of [`sample`][thetaleap.sample]."),
    "planners": (PLANNERS, "Which masked positions are unmasked together, and how many. `planner=` of a solver."),
    "correctors": (
        CORRECTORS,
        "What redraws positions between steps. `corrector=` of [`Corrected`][thetaleap.Corrected].",
    ),
}


def pages() -> dict[str, str]:
    """All pages by path."""
    made = {f"reference/{name}.md": _listed(*page) for name, page in LISTED.items()}
    return made | {f"reference/{name}.md": _registered(name, *page) for name, page in REGISTERED.items()}


def _listed(title: str, about: str, names: tuple[str, ...]) -> str:
    return "\n\n".join([f"# {title}", about, *(f"::: thetaleap.{name}" for name in names)]) + "\n"


def _registered(name: str, registry: Registry, about: str) -> str:
    return "\n\n".join([f"# {name.capitalize()}", about, *(section(one, registry) for one in registry.own)]) + "\n"


def section(name: str, registry: Registry) -> str:
    """What there is to know of one class of the registry."""
    made = registry[name].load()
    said = from_class(made)
    facts = [f"On the command line: `--{registry.kind} {name}`."]
    if registry.kind == "corrector":
        facts = [f"On the command line: `--solver corrected --corrector {name}`."]
    if registry.kind == "solver":
        facts += [f"Evaluations per step: {said.cost}.", f"Processes: {said.works_for}.", f"Use it: {said.when}."]
    options = "    options: {members: false, show_signature: false, separate_signature: false}"
    return "\n\n".join([f"::: thetaleap.{made.__name__}\n{options}", " ".join(facts), parameter_table(made)])


def parameter_table(made: type) -> str:
    """Every hyper-parameter of a class: type, range, default and effect."""
    rows = [f"| {' | '.join(cells(one))} |" for one in parameters(made).values()]
    if not rows:
        return "No parameters."
    return "\n".join(["| parameter | type | range | default | effect |", "| --- | --- | --- | --- | --- |", *rows])


def cells(one: Parameter) -> tuple[str, str, str, str, str]:
    """The cells of a row of the table."""
    optional = one.default is None
    kind = type_of(one.hint) + (" or None" if optional else "")
    limits = one.knob.range or one.knob.written
    default = "required" if one.default is MISSING else f"`{_default(one.default)}`"
    return f"`{one.name}`", kind, limits, default, one.knob.help


def type_of(hint: Any) -> str:
    """A type as readers write it."""
    if get_origin(hint) is Literal:
        return "str"
    if get_origin(hint) is tuple:
        return f"tuple[{', '.join(type_of(one) for one in get_args(hint))}]"
    return hint.__name__


def _default(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool | int | float | str | tuple) else written(value)
