"""Samples in a file or folder, measured: how likely and how varied they are, and how far from a reference.

Samples of a folder are gone through again and again, and never all in memory: a few numbers of each are kept.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from ..conditioning.templates import GAP, read_prompt, read_template
from ..core.batches import Batches, Seen
from ..core.checks import require, require_count
from ..core.free import FREE
from ..core.progress import Told, progress_bar
from ..files import Card
from ..models.hf.masked_lm import Letters
from .judges.causal import Critic
from .judges.iglm import ROWS, iglm
from .metrics.likelihood import pseudo_log_likelihood
from .metrics.measured import Measured, mean
from .metrics.sequences import (
    Frequencies,
    Sequences,
    affordable,
    frequency_distance,
    pairwise_distance,
    position_entropy,
)
from .metrics.text import SIZES, Rows, Tally, TextQuality, ngram_divergence
from .reading import Texts, load_model

IGLM = "iglm"
PER_SAMPLE = 4
"""Positions of each sample that the model is asked about, unless it is said."""
OPEN = "_"
"""In a template: a position that was for the sampler to write."""
DIVERGENCES = (1, 2, 3)
"""Sizes of n-grams whose frequencies are compared."""
TEXTS = 256
"""That are judged together."""
GRAMS = 2**22
"""Tokens of the first samples, in which different n-grams are counted."""
CHECKED = 1024
"""Samples that are held against a template at a time."""
LOOKS = 16
"""An evaluation takes about as long as so many looks at a sample; less for oracles, and more for networks."""
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
    first: dict[str, int] = field(default_factory=dict)
    """Figures that are of so many first samples, as all would take too much memory; of the "reference", pieces of text."""

    def json(self) -> str:
        def plain(figures: dict[str, Measured]) -> dict[str, dict[str, float | str]]:
            # JSON has no word for "-inf"
            told = {name: asdict(one).items() for name, one in figures.items()}
            return {name: {key: n if math.isfinite(n) else str(n) for key, n in one} for name, one in told.items()}

        facts = {"model": self.model, "judge": self.judge, "samples": self.samples, self.unit: self.size}
        facts |= {"figures": plain(self.figures), "reference": plain(self.reference)}
        facts |= {"first": self.first} if self.first else {}
        return json.dumps({**facts, "about": {name: ABOUT[name] for name in self.figures}})

    def text(self) -> str:
        """A line for each figure; those of the reference stand beside those of the samples."""
        wide = max(map(len, self.figures))
        size = f"{self.size} {'positions that count' if self.unit == 'positions' else f'tokens of {self.judge}'}"
        lines = [f"{self.samples} samples, {size}; figures with their standard errors", ""]
        for name, figure in self.figures.items():
            beside = f"  (reference {self.reference[name]})" if name in self.reference else ""
            some = f"; of the first {self.first[name]} samples" if name in self.first else ""
            lines.append(f"{name.ljust(wide)}  {figure}{beside}  {ABOUT[name]}{some}")
        rise = "Likelihoods rise, and perplexity falls, when samples become too similar or repeat themselves"
        lines += ["", f"{rise}: read them together with the diversity."]
        if "reference" in self.first:
            lines.append(f"The reference is long: its first {self.first['reference']} pieces were taken.")
        return "\n".join(lines)


# --- text


def measure_text(
    critic: Critic,
    texts: Sequence[str] | Texts,
    reference: Sequence[str] | Texts = (),
    model: str | None = None,
    progress: bool | Told | None = None,
) -> Evaluation:
    """All figures of `texts` in the judge's tokens: perplexity with diversity, and distances to `reference`.

    Texts of the reference that are at least twice as long as the samples on average are cut into pieces of that length.
    Of all pieces some are set apart, as many as there are samples, and at most half: their figures stand beside those
    of the samples, and the distances of both are from the other pieces.

    There may be any number of texts: some are judged at a time, and a few numbers of each are kept. Different n-grams
    are counted in the first samples, up to `GRAMS` tokens, and the reference is read up to twice as many. The bar of
    `progress` is shown by default if standard error is a terminal.
    """
    require(len(texts) > 0, "texts", 0, "give at least one sample")
    with progress_bar(progress, "evaluating", len(texts) * (2 if len(reference) else 1)) as advance:
        tally, rows = _judged(critic, (critic.encode(text) for text in texts), len(texts), advance)
        quality, beside = TextQuality.made(tally, rows), {}
        figures, counted = quality.figures(), [f"distinct_{n}" for n in SIZES]
        first: dict[str, int] = {}
        if len(reference):
            long = math.ceil(quality.tokens / len(texts))
            pieces, whole = _pieces(critic, reference, long)
            first |= {} if whole else {"reference": len(pieces)}
            apart = min(len(texts), len(pieces) // 2)
            require(apart > 0, "reference", len(pieces), f"is no longer than a sample, {long} tokens; give more text")
            chosen = {k * len(pieces) // apart for k in range(apart)}
            own = [piece for n, piece in enumerate(pieces) if n in chosen]
            rest = [piece for n, piece in enumerate(pieces) if n not in chosen]
            beside = TextQuality.made(_judged(critic, own, apart, advance)[0], own).figures() | _divergences(own, rest)
            far = _divergences(rows, rest)
            figures, counted = figures | far, [*counted, *far]
            advance(len(texts) - apart)
    first |= {name: len(rows) for name in counted} if len(rows) < len(texts) else {}
    return Evaluation(model, len(texts), quality.tokens, figures, beside, critic.name, "tokens", first)


def _judged(
    critic: Critic, rows: Iterable[Sequence[int]], num: int, advance: Seen
) -> tuple[Tally, list[Sequence[int]]]:
    """The numbers of each of so many samples; and the first samples, as many as have `GRAMS` tokens together."""
    tally, kept, tokens, start, stream = Tally.room(num), list[Sequence[int]](), 0, 0, iter(rows)
    while some := list(islice(stream, TEXTS)):
        tally.put(start, some, critic.nats(some))
        for row in some:
            tokens += len(row)
            if tokens <= GRAMS or not kept:
                kept.append(array("i", row))
        start += len(some)
        advance(len(some))
    return tally, kept


def _pieces(critic: Critic, reference: Iterable[str], long: int) -> tuple[list[Sequence[int]], bool]:
    """The reference in pieces, up to twice `GRAMS` tokens; and whether that is all of it."""
    found, tokens = list[Sequence[int]](), 0
    for text in reference:
        for piece in _cut(critic.encode(text), long):
            tokens += len(piece)
            if tokens > 2 * GRAMS and len(found) > 1:
                return found, False
            found.append(array("i", piece))
    return found, True


def _cut(row: list[int], long: int) -> list[list[int]]:
    if len(row) < 2 * long:
        return [row] if row else []
    return [row[n : n + long] for n in range(0, len(row), long)]


def _divergences(rows: Rows, reference: Rows) -> dict[str, Measured]:
    found = {n: ngram_divergence(rows, reference, n) for n in DIVERGENCES}
    return {f"kl_{n}": one.kl for n, one in found.items()} | {f"js_{n}": one.js for n, one in found.items()}


# --- sequences of one length


def measure(
    name: str,
    x: Sequences,
    reference: Sequences | None = None,
    *,
    template: str | None = None,
    prefix: int | None = None,
    judge: str | None = None,
    per_sample: int = 4,
    seed: int = 0,
    card: Card | None = None,
    progress: bool | Told | None = None,
) -> Evaluation:
    """All figures of the samples `x` of the model called `name`; `per_sample` 0 asks about all positions.

    What was given, by `template`, `prefix` or the `card`, does not count. Models without masks say nothing of how
    likely single positions are, and that figure is left out. There may be any number of samples: figures whose memory or
    time would grow without bounds are of the first ones, and `Evaluation.first` says of how many. The bar of `progress`
    is shown by default if standard error is a terminal.
    """
    own, others = Batches.of(x), [] if reference is None else [Batches.of(reference)]
    length = own.length
    model = load_model(name, length)
    remedy = f"its sequences have {length} positions, and {name} has {model.length}; name the model that made them"
    require(model.length == length, "file", length, remedy)
    for one in others:
        require(one.length == length, "reference", one.length, f"its sequences are not as long as the file's, {length}")
    positions = free_positions(model, own, template, prefix)
    if template is None and prefix is None and card is not None:
        positions = _written(model, card)
    asked = len(positions) if per_sample == 0 else min(per_sample, len(positions))
    letters = None if judge is None else _letters(model, "judge", judge)
    each = _of_one_set(model, positions, asked, seed) + ([] if letters is None else [_opinion(letters, positions)])
    alone, aside = [(one, [own]) for one in each], [(one, others) for one in each if others]
    between = [(one, [own, *others]) for one in _distances(positions) if others]
    found, first = _found([*alone, *between, *aside], positions, progress)
    cut = len(found) - len(aside)
    return Evaluation(name, len(own), len(positions), dict(found[:cut]), dict(found[cut:]), judge, "positions", first)


@dataclass(frozen=True)
class _Figure:
    """How a figure is found of one set of samples, or of two."""

    name: str
    find: Callable[..., Measured]
    of: Frequencies | None = None
    """What it counts, if it does."""
    passes: int = 2
    """How often it goes through the samples."""
    cost: float = 1
    """Of one sample in one pass; that of a look at it is 1."""

    def work(self, sets: Sequence[Batches]) -> float:
        return self.passes * self.cost * sum(map(len, sets))


def _of_one_set(model: Any, positions: Int64[Tensor, " m"], asked: int, seed: int) -> list[_Figure]:
    """Likelihood, where there are masks, by `asked` positions of each sample; and diversity."""

    def likelihood(x: Batches) -> Measured:
        found = pseudo_log_likelihood(model, x, positions, asked if asked < len(positions) else None, seed)
        return Measured(found.value, found.error)

    likely = _Figure("pseudo_log_likelihood", likelihood, None, 1, asked * LOOKS)
    pairwise = _Figure("pairwise_distance", partial(pairwise_distance, positions=positions), "positions")
    entropy = _Figure("position_entropy", partial(position_entropy, positions=positions), "positions")
    return [pairwise, entropy] if model.process.mask is None else [likely, pairwise, entropy]


def _distances(positions: Int64[Tensor, " m"]) -> list[_Figure]:
    """Between two sets: those that so many positions have."""
    wanted: dict[str, Frequencies] = {"position_distance": "positions"}
    wanted |= {"neighbour_distance": "neighbours"} if bool((positions.diff() == 1).any()) else {}
    wanted |= {"pair_distance": "pairs"} if len(positions) > 1 else {}
    return [
        _Figure(name, partial(frequency_distance, of=of, positions=positions), of, 3) for name, of in wanted.items()
    ]


def _opinion(letters: Letters, positions: Int64[Tensor, " m"]) -> _Figure:
    """What IgLM thinks."""
    critic = iglm()

    def find(x: Batches) -> Measured:
        some = ([letters.decode(row) for row in rows.tolist()] for rows in x.split(ROWS))
        return mean(-torch.cat([critic.log_likelihoods(text, positions) for text in some]))

    return _Figure("judge_nll", find, None, 1, LOOKS)


def _found(
    plan: Sequence[tuple[_Figure, Sequence[Batches]]], positions: Int64[Tensor, " m"], progress: bool | Told | None
) -> tuple[list[tuple[str, Measured]], dict[str, int]]:
    """The figures by name, each of its sets; and of how many first samples those are that are not of all."""
    found, first = list[tuple[str, Measured]](), dict[str, int]()
    with progress_bar(progress, "evaluating", sum(figure.work(sets) for figure, sets in plan)) as advance:
        for figure, sets in plan:
            most = None if figure.of is None else affordable(sets, figure.of, positions)
            first |= {} if most is None else {figure.name: most}
            with _shown(figure, sets, advance) as seen:
                found.append((figure.name, figure.find(*(part[:most].watched(seen) for part in sets))))
    return found, first


@contextmanager
def _shown(figure: _Figure, sets: Sequence[Batches], advance: Callable[..., None]) -> Iterator[Seen]:
    """Shows how far a figure is, by the samples that were gone through; at the end, that it is done."""
    left = figure.work(sets)

    def seen(count: int) -> None:
        nonlocal left
        done = min(left, count * figure.cost)
        left -= done
        advance(done, note=figure.name)

    yield seen
    advance(left, note=figure.name)


def _written(model: Any, card: Card) -> Int64[Tensor, " m"]:
    """The positions that were for the sampler, by what the card says was given to all samples."""
    row = torch.full((model.length,), FREE)
    if card.get("template") is not None:
        row = read_template(model, card["template"], card.get("gap", GAP))
    elif card.get("prompt") is not None:
        row = read_prompt(model, card["prompt"])
    return torch.nonzero(row == FREE).flatten()


def free_positions(model: Any, x: Sequences, template: str | None, prefix: int | None) -> Int64[Tensor, " m"]:
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
    for n, rows in enumerate(Batches.of(x).split(CHECKED)):
        for sample, place in torch.nonzero(rows[:, given] != tokens)[:1].tolist():
            position = int(given[place])
            held = letters.decode([int(rows[sample, position])])
            which = f"sample {n * CHECKED + sample} has {held!r} there"
            there = f"position {position} is {template[position]!r}, but {which}"
            raise ValueError(f"template={template!r}: {there}; give the template that the samples were made with")
    return torch.tensor([n for n, letter in enumerate(template) if letter == OPEN], dtype=torch.int64)


def _letters(model: Any, argument: str, value: str) -> Letters:
    """The model's letters, if its tokens are letters."""
    letters = getattr(model, "tokenizer", None)
    if not isinstance(letters, Letters):
        raise ValueError(f"{argument}={value!r}: the model's tokens are not letters; leave it out")
    return letters
