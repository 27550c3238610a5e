"""``thetaleap evaluate``: how good, and how varied, the samples in a file are."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from jaxtyping import Int64
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from ..core.checks import require, require_count
from ..evaluation.judges.causal import NAMES, PLAYS, SMOLLM2, Critic, judge
from ..evaluation.judges.iglm import iglm
from ..evaluation.metrics.likelihood import pseudo_log_likelihood
from ..evaluation.metrics.sequences import Measured, frequency_distance, mean, pairwise_distance, position_entropy
from ..evaluation.metrics.text import SIZES, Rows, TextQuality, ngram_divergence
from ..models import ADAPTERS, BUILT_IN, load
from ..models.hf.masked_lm import Letters
from ..models.tokenizers import Tokenizer
from ..reading import READERS, read_samples

IGLM = "iglm"
PER_SAMPLE = 4
OPEN = "_"
"""In a template: a position that was for the sampler to write."""
DIVERGENCES = (1, 2, 3)
"""Sizes of n-grams whose frequencies are compared."""
ABOUT = {
    "pseudo_log_likelihood": "mean log p(token | all others) under the model, nats per position: higher is likelier",
    "pairwise_distance": "share of positions at which two samples differ: diversity",
    "position_entropy": "mean entropy of the tokens at a position, nats: diversity",
    "position_distance": "squared distance to the reference in the frequencies of tokens at positions; 0 for the same law",
    "neighbour_distance": "the same of pairs of tokens at neighbouring positions",
    "pair_distance": "the same of pairs of tokens at any two positions",
    "judge_nll": "mean -log p(token | those before) under the judge, nats per position: lower is likelier",
    "perplexity": "exp of the mean -log p(token | those before) under the judge: lower is likelier",
    "unigram_entropy": "mean entropy of the tokens within a sample, bits: diversity",
    **{f"repetition_{n}": f"share of {n}-grams that stood earlier in their sample" for n in SIZES},
    **{f"distinct_{n}": f"different {n}-grams over all, in all samples together: diversity" for n in SIZES},
    **{f"kl_{n}": f"KL of {n}-gram frequencies from the reference's, smoothed, nats" for n in DIVERGENCES},
    **{f"js_{n}": f"Jensen-Shannon divergence of {n}-gram frequencies and the reference's, nats" for n in DIVERGENCES},
}
HELP = (
    f"Another model's opinion. Of text: {SMOLLM2} (offline; a package to install), {', '.join(NAMES)}, a hub id or a "
    f"folder; of Shakespeare's: {PLAYS} (inside); of human heavy chains: {IGLM} (a package to install)."
)
SAMPLES = (
    "Samples: .parquet, .jsonl or .npy, as sample --out writes them; for judges of text also .txt, one on each line, "
    'or .jsonl with {"text": ...}.'
)
REFERENCE = (
    "Samples to compare with, for example of first-hitting; for judges of text also any text file. In half of it or "
    "less, as long as the samples, the same is measured; distances are from the rest."
)


@dataclass(frozen=True)
class Evaluation:
    """Figures of one file of samples; `reference` holds those of the reference file."""

    model: str | None
    samples: int
    size: int
    """Positions that count, or the judge's tokens in all samples."""
    figures: dict[str, Measured]
    reference: dict[str, Measured] = field(default_factory=dict)
    judge: str | None = None
    unit: Literal["positions", "tokens"] = "positions"

    def json(self) -> str:
        def number(value: float) -> float | str:
            return value if math.isfinite(value) else str(value)  # JSON has no word for "-inf"

        def plain(figures: dict[str, Measured]) -> dict[str, dict[str, float | str]]:
            each = {name: (figure.value, figure.error) for name, figure in figures.items()}
            return {name: {"value": number(value), "error": number(error)} for name, (value, error) in each.items()}

        about = {name: ABOUT[name] for name in self.figures}
        counts = {"model": self.model, "judge": self.judge, "samples": self.samples, self.unit: self.size}
        return json.dumps(
            {**counts, "figures": plain(self.figures), "reference": plain(self.reference), "about": about}
        )

    def text(self) -> str:
        """A line for each figure; those of the reference stand beside those of the samples."""
        wide = max(map(len, self.figures))
        size = f"{self.size} {'positions that count' if self.unit == 'positions' else f'tokens of {self.judge}'}"
        head = f"{self.samples} samples, {size}; figures with their standard errors"
        lines = [head, ""]
        for name, figure in self.figures.items():
            beside = f"  (reference {self.reference[name]})" if name in self.reference else ""
            lines.append(f"{name.ljust(wide)}  {figure}{beside}  {ABOUT[name]}")
        rise = "Likelihoods rise, and perplexity falls, when samples become too alike or repeat themselves"
        lines += ["", f"{rise}: read them together with the diversity."]
        return "\n".join(lines)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(evaluate)


def evaluate(
    file: Annotated[Path, typer.Argument(help=SAMPLES, metavar="FILE")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The masked model that made them, or its like: [cyan]thetaleap models[/] lists them.",
            show_default="as the .parquet file says",
        ),
    ] = None,
    reference: Annotated[Path | None, typer.Option(help=REFERENCE, metavar="FILE")] = None,
    template: Annotated[
        str | None, typer.Option(help=f"What was given, in letters, with {OPEN} at the positions that count.")
    ] = None,
    prefix: Annotated[int | None, typer.Option(help="How many first positions were given, and do not count.")] = None,
    critic: Annotated[str | None, typer.Option("--judge", help=HELP)] = None,
    device: Annotated[str | None, typer.Option(help="Where a judge of text runs, as in cuda:0.")] = None,
    per_sample: Annotated[
        int | None,
        typer.Option(
            help="Positions of each sample to ask the model about: one evaluation each; 0 is all.", show_default="4"
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the choice of these positions.", show_default="0")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure samples in a file: likelihood and diversity together, and the distance to a reference.

    Without a judge of text, the likelihood is the model's own, of one position given all others.

    Example: [cyan]thetaleap evaluate x.parquet --model chain64 --reference exact.parquet[/]
    Example: [cyan]thetaleap evaluate x.parquet --judge smollm2 --reference input.txt[/]
    """
    try:
        if critic is None or critic == IGLM:
            require(device is None, "--device", device, "is for judges of text; leave it out")
            per_sample = PER_SAMPLE if per_sample is None else per_sample
            require_count("per_sample", per_sample, least=0)
            x, card = read_samples(file)
            other = None if reference is None else read_samples(reference, "reference")[0]
            name, given = _named(model, card, file), {"template": template, "prefix": prefix, "judge": critic}
            result = measure(name, x, other, **given, per_sample=per_sample, seed=seed or 0)
        else:
            others = {"template": template, "prefix": prefix, "per-sample": per_sample, "seed": seed}
            for flag, value in others.items():
                require(value is None, f"--{flag}", value, f"{critic} reads whole samples; leave it out")
            texts, name = read_texts(file, model)
            against = [] if reference is None else read_reference(reference, model or name)
            result = measure_text(
                judge(critic) if device is None else judge(critic, device=device), texts, against, name
            )
    except ImportError as error:  # says what to install
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(result.json())
    else:
        Console().print(escape(result.text()), highlight=False, soft_wrap=True)


# --- text


def measure_text(
    critic: Critic, texts: Sequence[str], reference: Sequence[str] = (), model: str | None = None
) -> Evaluation:
    """All figures of `texts` in the judge's tokens: perplexity with diversity, and distances to `reference`.

    Texts of the reference that are at least twice as long as the samples on average are cut into pieces of that length.
    Of all pieces some are set apart, as many as there are samples, and at most half: their figures stand beside those
    of the samples, and the distances of both are from the other pieces.
    """
    scores = critic.score(texts)
    quality = TextQuality.of(scores.rows, scores.nats)
    figures, beside = quality.figures(), {}
    if reference:
        long = math.ceil(quality.tokens / len(texts))
        pieces = [piece for text in reference for piece in _cut(critic.encode(text), long)]
        apart = min(len(texts), len(pieces) // 2)
        require(apart > 0, "reference", len(pieces), f"is no longer than a sample, {long} tokens; give more text")
        chosen = {k * len(pieces) // apart for k in range(apart)}
        own = [piece for n, piece in enumerate(pieces) if n in chosen]
        rest = [piece for n, piece in enumerate(pieces) if n not in chosen]
        beside = TextQuality.of(own, critic.nats(own)).figures() | _distances(own, rest)
        figures |= _distances(scores.rows, rest)
    return Evaluation(model, len(texts), quality.tokens, figures, beside, critic.name, "tokens")


def _cut(row: list[int], long: int) -> list[list[int]]:
    if len(row) < 2 * long:
        return [row] if row else []
    return [row[n : n + long] for n in range(0, len(row), long)]


def _distances(rows: Rows, reference: Rows) -> dict[str, Measured]:
    found = {n: ngram_divergence(rows, reference, n) for n in DIVERGENCES}
    kls = {f"kl_{n}": each.kl for n, each in found.items()}
    return kls | {f"js_{n}": each.js for n, each in found.items()}


def read_texts(path: Path, model: str | None, argument: str = "file") -> tuple[list[str], str | None]:
    """Texts of samples, and the model that made them where that is known: its tokenizer reads tokens."""
    if path.suffix.lower() not in READERS:
        texts = [line for line in _read(path, argument).splitlines() if line.strip()]
        require(len(texts) > 0, argument, str(path), "holds no text; give one sample on each line")
        return texts, model
    if path.suffix.lower() == ".jsonl" and path.is_file():
        texts = _spelt(_read(path, argument))
        if texts:
            return texts, model
    x, card = read_samples(path, argument)
    name = _named(model, card, path)
    words = getattr(_load(name, x.shape[1]), "tokenizer", None)
    if not isinstance(words, Tokenizer):
        raise ValueError(f"model={name!r}: its tokens are no text, which the judge reads; leave the judge out")
    return [words.decode(row) for row in x.tolist()], name


def read_reference(path: Path, model: str | None) -> list[str]:
    """Texts of a file of samples, or one of any other file."""
    if path.suffix.lower() in READERS:
        return read_texts(path, model, "reference")[0]
    return [_read(path, "reference")]


def _spelt(lines: str) -> list[str]:
    """The texts in JSON lines; none where a line has none."""
    try:
        rows = [json.loads(line) for line in lines.splitlines() if line.strip()]
    except ValueError:
        return []  # read_samples says what is wrong
    texts = [row["text"] for row in rows if isinstance(row, dict) and isinstance(row.get("text"), str)]
    return texts if len(texts) == len(rows) else []


def _read(path: Path, argument: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"{argument}={str(path)!r}: cannot be read ({error}); give a file of UTF-8 text") from None


def _named(model: str | None, card: dict[str, Any], path: Path) -> str:
    name = model or card.get("model")
    if name is None:
        raise ValueError(f"model=None: {str(path)!r} does not say which made its tokens; say it by --model")
    return name


# --- sequences of one length


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
    """All figures of the samples `x` of the model called `name`; `per_sample` 0 asks about all positions."""
    length = x.shape[1]
    model = _load(name, length)
    require(model.length == length, "file", length, f"its sequences are not as long as {name}'s, {model.length}")
    if reference is not None:
        good = reference.shape[1] == length
        require(good, "reference", reference.shape[1], f"its sequences are not as long as the file's, {length}")
    positions = free_positions(model, x, template, prefix)
    some = None if per_sample == 0 else min(per_sample, len(positions))
    figures = _figures(model, x, positions, some, seed)
    beside = {} if reference is None else _figures(model, reference, positions, some, seed)
    if reference is not None:
        figures["position_distance"] = frequency_distance(x, reference, "positions", positions)
        if bool((positions.diff() == 1).any()):
            figures["neighbour_distance"] = frequency_distance(x, reference, "neighbours", positions)
        if len(positions) > 1:
            figures["pair_distance"] = frequency_distance(x, reference, "pairs", positions)
    if judge is not None:
        letters = _letters(model, "judge", judge)
        critic = iglm()
        for rows, into in ((x, figures), (reference, beside)):
            if rows is not None:
                text = [letters.decode(row) for row in rows.tolist()]
                into["judge_nll"] = mean(-critic.log_likelihoods(text, positions))
    return Evaluation(name, len(x), len(positions), figures, beside, judge)


def _figures(model: Any, x: Tensor, positions: Tensor, some: int | None, seed: int) -> dict[str, Measured]:
    return {
        "pseudo_log_likelihood": pseudo_log_likelihood(model, x, positions, some, seed),
        "pairwise_distance": pairwise_distance(x, positions),
        "position_entropy": position_entropy(x, positions),
    }


def free_positions(
    model: Any, x: Int64[Tensor, "num d"], template: str | None, prefix: int | None
) -> Int64[Tensor, " m"]:
    """The positions that the sampler wrote. The others must be as the template says, in every sample."""
    length = x.shape[1]
    require(template is None or prefix is None, "(template, prefix)", (template, prefix), "give one of them")
    if prefix is not None:
        require_count("prefix", prefix, least=0)
        require(prefix < length, "prefix", prefix, f"sequences have {length} positions; leave at least one free")
        return torch.arange(prefix, length)
    if template is None:
        return torch.arange(length)
    letters = _letters(model, "template", template)
    require(len(template) == length, "template", template, f"has {len(template)} letters; the samples have {length}")
    given = torch.tensor([n for n, letter in enumerate(template) if letter != OPEN], dtype=torch.int64)
    require(len(given) < length, "template", template, f"leaves nothing free; write {OPEN} at the positions that count")
    tokens = torch.tensor(letters.encode("".join(template[n] for n in given.tolist())), dtype=torch.int64)
    off = torch.nonzero(x[:, given] != tokens)
    if len(off):
        sample, position = int(off[0, 0]), int(given[off[0, 1]])
        held = letters.decode([int(x[sample, position])])
        raise ValueError(
            f"template={template!r}: position {position} is {template[position]!r}, but sample {sample} has {held!r} there; give "
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
