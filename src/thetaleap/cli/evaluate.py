"""``thetaleap evaluate``: how good, and how varied, the samples in a file are."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from jaxtyping import Int64
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from ..checks import require, require_choice, require_count
from ..metrics.likelihood import pseudo_log_likelihood
from ..metrics.sequences import Measured, frequency_distance, mean, pairwise_distance, site_entropy
from ..models import ADAPTERS, BUILT_IN, load
from ..models.iglm import iglm
from ..models.masked_lm import Letters
from ..reading import read_samples

JUDGES = ("iglm",)
OPEN = "_"
"""In a template: a site that was for the sampler to write."""
ABOUT = {
    "pseudo_log_likelihood": "mean log p(token | all others) under the model, nats per site: higher is likelier",
    "pairwise_distance": "share of sites at which two samples differ: diversity",
    "site_entropy": "mean entropy of the tokens at a site, nats: diversity",
    "site_distance": "squared distance to the reference in the frequencies of tokens at sites; 0 for the same law",
    "neighbour_distance": "the same of pairs of tokens at neighbouring sites",
    "pair_distance": "the same of pairs of tokens at any two sites",
    "judge_nll": "mean -log p(token | those before) under the judge, nats per site: lower is likelier",
}


@dataclass(frozen=True)
class Evaluation:
    """Figures of one file of samples; `reference` holds those of the reference file."""

    model: str
    samples: int
    sites: int
    figures: dict[str, Measured]
    reference: dict[str, Measured] = field(default_factory=dict)
    judge: str | None = None

    def json(self) -> str:
        def number(value: float) -> float | str:
            return value if math.isfinite(value) else str(value)  # JSON has no word for "-inf"

        def plain(figures: dict[str, Measured]) -> dict[str, dict[str, float | str]]:
            each = {name: (figure.value, figure.error) for name, figure in figures.items()}
            return {name: {"value": number(value), "error": number(error)} for name, (value, error) in each.items()}

        about = {name: ABOUT[name] for name in self.figures}
        counts = {"model": self.model, "judge": self.judge, "samples": self.samples, "sites": self.sites}
        return json.dumps(
            {**counts, "figures": plain(self.figures), "reference": plain(self.reference), "about": about}
        )

    def text(self) -> str:
        """A line for each figure; those of the reference stand beside those of the samples."""
        wide = max(map(len, self.figures))
        head = f"{self.samples} samples, {self.sites} sites that count; figures with their standard errors"
        lines = [head, ""]
        for name, figure in self.figures.items():
            beside = f"  (reference {self.reference[name]})" if name in self.reference else ""
            lines.append(f"{name.ljust(wide)}  {figure}{beside}  {ABOUT[name]}")
        lines += ["", "Likelihoods rise when samples become too alike: read them together with the diversity."]
        return "\n".join(lines)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(evaluate)


def evaluate(
    file: Annotated[
        Path, typer.Argument(help="Samples: .parquet, .jsonl or .npy, as sample --out writes them.", metavar="FILE")
    ],
    model: Annotated[
        str, typer.Option(help="A masked model: [cyan]thetaleap models[/] lists them.", show_default=False)
    ],
    reference: Annotated[
        Path | None,
        typer.Option(help="Samples to compare with, for example of first-hitting.", metavar="FILE"),
    ] = None,
    template: Annotated[
        str | None, typer.Option(help=f"What was given, in letters, with {OPEN} at the sites that count.")
    ] = None,
    prefix: Annotated[int | None, typer.Option(help="How many first sites were given, and do not count.")] = None,
    judge: Annotated[
        str | None,
        typer.Option(help=f"A second model's opinion: {', '.join(JUDGES)} (human heavy chains; to be installed)."),
    ] = None,
    per_sample: Annotated[
        int, typer.Option(help="Sites of each sample to ask the model about: one evaluation each; 0 is all.")
    ] = 4,
    seed: Annotated[int, typer.Option(help="Of the choice of these sites.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure samples in a file: likelihood and diversity together, and the distance to reference samples.

    Example: [cyan]thetaleap evaluate x.parquet --model chain64 --reference exact.parquet[/]
    """
    if judge is not None:
        require_choice("judge", judge, JUDGES)
    require_count("per_sample", per_sample, least=0)
    x, _ = read_samples(file)
    other = None if reference is None else read_samples(reference, "reference")[0]
    try:
        result = measure(
            model, x, other, template=template, prefix=prefix, judge=judge, per_sample=per_sample, seed=seed
        )
    except ImportError as error:  # says what to install
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(result.json())
    else:
        Console().print(escape(result.text()), highlight=False, soft_wrap=True)


def measure(
    name: str,
    x: Int64[Tensor, "num d"],
    reference: Int64[Tensor, "others length"] | None = None,
    *,
    template: str | None = None,
    prefix: int | None = None,
    judge: str | None = None,
    per_sample: int = 4,
    seed: int = 0,
) -> Evaluation:
    """All figures of the samples `x` of the model called `name`; `per_sample` 0 asks about all sites."""
    length = x.shape[1]
    model = _load(name, length)
    require(model.length == length, "file", length, f"its sequences are not as long as {name}'s, {model.length}")
    if reference is not None:
        good = reference.shape[1] == length
        require(good, "reference", reference.shape[1], f"its sequences are not as long as the file's, {length}")
    sites = free_sites(model, x, template, prefix)
    some = None if per_sample == 0 else min(per_sample, len(sites))
    figures = _figures(model, x, sites, some, seed)
    beside = {} if reference is None else _figures(model, reference, sites, some, seed)
    if reference is not None:
        figures["site_distance"] = frequency_distance(x, reference, "sites", sites)
        if bool((sites.diff() == 1).any()):
            figures["neighbour_distance"] = frequency_distance(x, reference, "neighbours", sites)
        if len(sites) > 1:
            figures["pair_distance"] = frequency_distance(x, reference, "pairs", sites)
    if judge is not None:
        letters = _letters(model, "judge", judge)
        critic = iglm()
        for rows, into in ((x, figures), (reference, beside)):
            if rows is not None:
                text = [letters.decode(row) for row in rows.tolist()]
                into["judge_nll"] = mean(-critic.log_likelihoods(text, sites))
    return Evaluation(name, len(x), len(sites), figures, beside, judge)


def _figures(model: Any, x: Tensor, sites: Tensor, some: int | None, seed: int) -> dict[str, Measured]:
    return {
        "pseudo_log_likelihood": pseudo_log_likelihood(model, x, sites, some, seed),
        "pairwise_distance": pairwise_distance(x, sites),
        "site_entropy": site_entropy(x, sites),
    }


def free_sites(model: Any, x: Int64[Tensor, "num d"], template: str | None, prefix: int | None) -> Int64[Tensor, " m"]:
    """The sites that the sampler wrote. The others must be as the template says, in every sample."""
    length = x.shape[1]
    require(template is None or prefix is None, "(template, prefix)", (template, prefix), "give one of them")
    if prefix is not None:
        require_count("prefix", prefix, least=0)
        require(prefix < length, "prefix", prefix, f"sequences have {length} sites; leave at least one free")
        return torch.arange(prefix, length)
    if template is None:
        return torch.arange(length)
    letters = _letters(model, "template", template)
    require(len(template) == length, "template", template, f"has {len(template)} letters; the samples have {length}")
    given = torch.tensor([n for n, letter in enumerate(template) if letter != OPEN], dtype=torch.int64)
    require(len(given) < length, "template", template, f"leaves nothing free; write {OPEN} at the sites that count")
    tokens = torch.tensor(letters.encode("".join(template[n] for n in given.tolist())), dtype=torch.int64)
    off = torch.nonzero(x[:, given] != tokens)
    if len(off):
        sample, site = int(off[0, 0]), int(given[off[0, 1]])
        held = letters.decode([int(x[sample, site])])
        raise ValueError(
            f"template={template!r}: site {site} is {template[site]!r}, but sample {sample} has {held!r} there; give "
            "the template that the samples were made with"
        )
    open_ = torch.ones(length, dtype=torch.bool)
    open_[given] = False
    return torch.nonzero(open_).flatten()


def _letters(model: Any, argument: str, value: str) -> Letters:
    """The model's letters, if its tokens are letters."""
    letters = getattr(model, "tokenizer", None)
    if not isinstance(letters, Letters):
        raise ValueError(f"{argument}={value!r}: the model's tokens are not letters; leave it out")
    return letters


def _load(name: str, length: int) -> Any:
    """The model, for sequences of this length where it can be of any."""
    kind = name.partition(":")[0]
    entry = (ADAPTERS if ":" in name else BUILT_IN).get(kind)
    return load(name, **({"length": length} if entry is not None and "length" in entry.options else {}))
