"""Samples in a file, measured: how likely and how varied they are, and how far from a reference."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from ..conditioning.templates import GAP, read_prompt, read_template
from ..core.checks import require, require_count
from ..core.free import FREE
from ..files import READERS, Card, read_columns, tokens_of
from ..models import load
from ..models.hf.masked_lm import Letters
from ..models.tokenizers import Tokenizer
from ..registry import full_name, models
from .judges.causal import Critic
from .judges.iglm import iglm
from .metrics.likelihood import pseudo_log_likelihood
from .metrics.measured import Measured, mean
from .metrics.sequences import frequency_distance, pairwise_distance, position_entropy
from .metrics.text import SIZES, Rows, TextQuality, ngram_divergence

IGLM = "iglm"
PER_SAMPLE = 4
"""Positions of each sample that the model is asked about, unless it is said."""
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
        def plain(figures: dict[str, Measured]) -> dict[str, dict[str, float | str]]:
            # JSON has no word for "-inf"
            told = {name: asdict(one).items() for name, one in figures.items()}
            return {name: {key: n if math.isfinite(n) else str(n) for key, n in one} for name, one in told.items()}

        facts = {"model": self.model, "judge": self.judge, "samples": self.samples, self.unit: self.size}
        facts |= {"figures": plain(self.figures), "reference": plain(self.reference)}
        return json.dumps({**facts, "about": {name: ABOUT[name] for name in self.figures}})

    def text(self) -> str:
        """A line for each figure; those of the reference stand beside those of the samples."""
        wide = max(map(len, self.figures))
        size = f"{self.size} {'positions that count' if self.unit == 'positions' else f'tokens of {self.judge}'}"
        lines = [f"{self.samples} samples, {size}; figures with their standard errors", ""]
        for name, figure in self.figures.items():
            beside = f"  (reference {self.reference[name]})" if name in self.reference else ""
            lines.append(f"{name.ljust(wide)}  {figure}{beside}  {ABOUT[name]}")
        rise = "Likelihoods rise, and perplexity falls, when samples become too similar or repeat themselves"
        lines += ["", f"{rise}: read them together with the diversity."]
        return "\n".join(lines)


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
    return {f"kl_{n}": one.kl for n, one in found.items()} | {f"js_{n}": one.js for n, one in found.items()}


def read_texts(path: Path, model: str | None, argument: str = "file") -> tuple[list[str], str | None]:
    """Texts of samples, and the model that made them where that is known: its tokenizer reads tokens."""
    columns, card = read_columns(path, argument)
    if "text" in columns:
        require(len(columns["text"]) > 0, argument, str(path), "holds no text; give one sample on each line")
        return columns["text"], model or card.get("model")
    x, name = tokens_of(columns, path, argument), model_name(model, card, path)
    words = getattr(_load(name, x.shape[1]), "tokenizer", None)
    if not isinstance(words, Tokenizer):
        what = f"the tokens of {name} are no text, which the judge reads; leave the judge out"
        raise ValueError(f"{argument}={str(path)!r}: {what}")
    return [words.decode(row) for row in x.tolist()], name


def read_tokens(path: Path, model: str | None, argument: str = "file") -> tuple[Int64[Tensor, "num d"], str, Card]:
    """Tokens of samples, the model that made them, and the card: its tokenizer reads text."""
    columns, card = read_columns(path, argument)
    name = model_name(model, card, path)
    if "tokens" in columns:
        return tokens_of(columns, path, argument), name, card
    words = getattr(_load(name), "tokenizer", None)
    if not isinstance(words, Tokenizer):
        raise ValueError(f"{argument}={str(path)!r}: holds text, which {name} does not read; say which does by --model")
    rows = [words.encode(text) for text in columns["text"]]
    same = len({len(row) for row in rows}) == 1
    remedy = f"its lines have different lengths in tokens of {name}; give a .parquet, .jsonl or .npy file, or a --judge"
    require(same, argument, str(path), remedy)
    return torch.tensor(rows, dtype=torch.int64), name, card


def read_reference(path: Path, model: str | None) -> list[str]:
    """Texts of a file or folder of samples, or one of any other file."""
    suffix = path.suffix.lower()
    if path.is_dir():
        return read_texts(path, model, "reference")[0]
    if suffix in READERS and (suffix != ".txt" or (path.is_file() and read_columns(path, "reference")[1])):
        return read_texts(path, model, "reference")[0]
    try:
        return [path.read_text(encoding="utf-8")]
    except (OSError, ValueError) as error:
        raise ValueError(f"reference={str(path)!r}: cannot be read ({error}); give a file of UTF-8 text") from None


def model_name(model: str | None, card: Card, path: Path) -> str:
    name = model or card.get("model")
    if name is None:
        raise ValueError(f"model=None: {str(path)!r} does not say which made its samples; name it, or a judge of text")
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
    card: Card | None = None,
) -> Evaluation:
    """All figures of the samples `x` of the model called `name`; `per_sample` 0 asks about all positions.

    What was given, by `template`, `prefix` or the `card`, does not count. Models without masks say nothing of how
    likely single positions are, and that figure is left out.
    """
    length = x.shape[1]
    model = _load(name, length)
    remedy = f"its sequences have {length} positions, and {name} has {model.length}; name the model that made them"
    require(model.length == length, "file", length, remedy)
    if reference is not None:
        good = reference.shape[1] == length
        require(good, "reference", reference.shape[1], f"its sequences are not as long as the file's, {length}")
    positions = free_positions(model, x, template, prefix)
    if template is None and prefix is None and card is not None:
        positions = _written(model, card)
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
    figures = {"pairwise_distance": pairwise_distance(x, positions), "position_entropy": position_entropy(x, positions)}
    if model.process.mask is None:
        return figures
    likely = pseudo_log_likelihood(model, x, positions, some, seed)
    return {"pseudo_log_likelihood": Measured(likely.value, likely.error), **figures}


def _written(model: Any, card: Card) -> Int64[Tensor, " m"]:
    """The positions that were for the sampler, by what the card says was given to all samples."""
    row = torch.full((model.length,), FREE)
    if card.get("template") is not None:
        row = read_template(model, card["template"], card.get("gap", GAP))
    elif card.get("prompt") is not None:
        row = read_prompt(model, card["prompt"])
    return torch.nonzero(row == FREE).flatten()


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
        there = f"position {position} is {template[position]!r}, but sample {sample} has {held!r} there"
        raise ValueError(f"template={template!r}: {there}; give the template that the samples were made with")
    return torch.tensor([n for n, letter in enumerate(template) if letter == OPEN], dtype=torch.int64)


def _letters(model: Any, argument: str, value: str) -> Letters:
    """The model's letters, if its tokens are letters."""
    letters = getattr(model, "tokenizer", None)
    if not isinstance(letters, Letters):
        raise ValueError(f"{argument}={value!r}: the model's tokens are not letters; leave it out")
    return letters


def _load(name: str, length: int | None = None) -> Any:
    """The model, for sequences of this length where it can be of any."""
    name = full_name(name)
    entry = models(sourced=":" in name).get(name.partition(":")[0])
    open_ended = length is not None and entry is not None and "length" in (entry.options or ())
    return load(name, **({"length": length} if open_ended else {}))
