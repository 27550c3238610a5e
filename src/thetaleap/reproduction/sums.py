"""How many sums come out right, by solver and evaluations: the paper's GSM8K table on a model that anyone can run.

The model ``sums`` solves word problems of two or three steps. It is asked problems whose numbers it has never seen; the
question is given, and all positions behind it are free: the answer, and ends to fill up. As in the paper the
temperature is 0.5, theta is 1/2, steps are equal down to 1e-3, semi-autoregressive decoding is in a single block, and
blocks are of 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ..conditioning.wrappers import tempered
from ..control import Method
from ..core.checks import require
from ..core.free import FREE
from ..evaluation.figures import listing, write_lines
from ..evaluation.metrics.accuracy import Accuracy
from ..models.network import Network
from ..sampling import plan, sample
from ..training.sums import END, LENGTH, WORDS, Problem, encoded, problems, result_of
from .methods import EXACT, SAFE, SEMI, TWEEDIE, fewest, pick
from .pages import Job, Panel, chart, experiment, model_of, publish
from .rules import Claim, Report, judge
from .study import Row, Study, compare, ranking, row

MODEL = "sums"
NUM = 100
BUDGETS = (2, 4, 8, 16, 32, 64)
BLOCK = 8
TEMPERATURE = 0.5
STOP = WORDS.index(END)
BLOCKWISE, MULTISTEP, EXPONENTIAL = "theta-Trapezoidal in blocks", "multistep", "exponential Trapezoidal"
SOLVERS: dict[str, Method] = pick(
    *(*reversed(SEMI), SAFE, BLOCKWISE, TWEEDIE, MULTISTEP, f"{MULTISTEP} in blocks", EXPONENTIAL),
    *(f"{EXPONENTIAL} in blocks", EXACT),
    size=BLOCK,
    stop=STOP,
)
"""The first four are the paper's. The last one is exact, and takes an evaluation for each free position."""
DRAWN = (EXACT, *SEMI, SAFE, BLOCKWISE, MULTISTEP, f"{MULTISTEP} in blocks")
COLUMNS = {"right, %": ("accuracy", 100.0, 1), "worked out, %": ("worked", 100.0, 1)}


@experiment()
def run(
    job: Job,
    model: str | Network = MODEL,
    budgets: Sequence[int] = BUDGETS,
    batch_size: int | None = None,
    temperature: float = TEMPERATURE,
) -> Report:
    """Measure, and write ``sums.md``, ``.png``, ``.csv``, ``.json`` and ``sums-answers.jsonl`` to the job's folder.

    `num` held-out problems are answered by ``sums``, or by another model of its words. The problems are the same for
    all seeds. Budgets that a method cannot do with are left out.
    """
    num = job.num or NUM
    require(min(budgets, default=0) > 0, "budgets", list(budgets), "give at least one, of at least 1")
    network, name = _model(model)
    shaped, asked = tempered(network, temperature), problems(num, held_out=True)
    template = questions(asked, network.length)
    free = (template == FREE).sum(1)
    most = int(free.max())
    todo = [(m, nfe) for m in SOLVERS for nfe in budgets_for(network, SOLVERS[m], sorted(set(budgets)), most)]
    manner: Row = {"template": template, "seed": job.seed, "batch_size": batch_size, "progress": False}
    rows, written = [], []
    with job.bar("evaluations", sum(nfe or most for _, nfe in todo)) as advance:
        for method, nfe in todo:
            solver = SOLVERS[method]
            drawn = sample(shaped, solver, nfe=nfe, **manner)
            texts = [answer_of(network, tokens, int(n)) for tokens, n in zip(drawn.x, free, strict=True)]
            pairs = list(zip(asked, texts, strict=True))
            told = {"model": name, "solver": repr(solver), "nfe": nfe}
            told |= {"steps": len(plan(shaped, solver, nfe=nfe, positions=most)) - 1}
            right = Accuracy.of(sum(result_of(text) == one.result for one, text in pairs), num)
            worked = Accuracy.of(sum(text == one.answer for one, text in pairs), num)
            rows.append(row(method, drawn.nfe.tolist(), **told, accuracy=right, worked=worked))
            keys = {"method": method, "nfe": nfe}
            written += [{**keys, "question": p.question, "result": p.result, "answer": text} for p, text in pairs]
            advance(nfe or most)
    settings = {"model": name, "num": num, "temperature": temperature, "block": BLOCK}
    settings |= {"free": float(free.double().mean())}
    study = Study.of("sums", rows)
    part = Panel(study, "accuracy", "right, % of problems (95% interval)", 100.0)
    told = {"columns": COLUMNS, "more": [write_lines(job.folder / "sums-answers.jsonl", written)], **facts(study)}
    figure = chart([part], DRAWN, f"{name}: {num} held-out word problems")
    return publish(job, "sums", study, settings, claims_of(study, settings), figure, **told)


def questions(asked: Sequence[Problem], length: int) -> Int64[Tensor, "num d"]:
    """Templates in which the questions are given."""
    rows = [encoded(one, length) for one in asked]
    tokens, sizes = torch.stack([row for row, _ in rows]), torch.tensor([size for _, size in rows])
    return torch.where(torch.arange(length) < sizes.unsqueeze(1), tokens, FREE)


def answer_of(model: Network, tokens: Int64[Tensor, " d"], free: int) -> str:
    """What is written in the last `free` positions, up to the first end."""
    said = tokens[len(tokens) - free :].tolist()
    return model.tokenizer.decode(said[: said.index(STOP)] if STOP in said else said)


def budgets_for(model: Network, solver: Method, budgets: Sequence[int], free: int) -> list[int | None]:
    """Those that are enough; None for a solver that takes what it needs."""
    if solver.evaluations is None:
        return [None]
    return [nfe for nfe in budgets if nfe >= fewest(model, solver, free)]


def _model(model: str | Network) -> tuple[Network, str]:
    """The network, and what to call it."""
    network, name = model_of(model)
    words = getattr(getattr(network, "tokenizer", None), "words", None)
    good = isinstance(network, Network) and words == WORDS and network.process.mask is not None
    require(good, "model", name, "give a masked model of word problems, such as sums")
    require(network.length >= LENGTH, "length", network.length, f"problems take {LENGTH} positions")
    return network, name


# --- what the paper says, and what is seen


def claims_of(study: Study, settings: Mapping[str, Any]) -> list[Claim]:
    """The paper's claims on GSM8K. They are about LLaDA, of which sums say nothing; what they show stands beside."""
    budgets, flat = sorted(study.column("nfe")), (SAFE, *reversed(SEMI))
    few = found(study, flat, [nfe for nfe in budgets if nfe < settings["free"]])
    blocks = found(study, (BLOCKWISE, *flat), budgets)
    return judge(study, "sums", few=few, many=found(study, flat, budgets[-1:]), blocks=blocks)


def found(study: Study, methods: Sequence[str], budgets: Sequence[int]) -> str:
    """Where the first of `methods` stands beside the others on sums, by the intervals."""
    words, parts = {-1: "below", 0: "level with", 1: "above"}, []
    for nfe in budgets:
        here = {one["method"]: one for one in study.where(nfe=nfe) if one["method"] in methods}
        own = here.pop(methods[0], None)
        if own is not None and here:
            signs = {name: words[compare("accuracy", own, one)] for name, one in here.items()}
            others = [f"{signs[name]} {name} ({100 * one['accuracy']:.1f}%)" for name, one in here.items()]
            parts.append(f"at {nfe} it has {100 * own['accuracy']:.1f}% right, {listing(others)}")
    if not parts:
        return f"On sums no budget of this run has room for {methods[0]} and the others"
    return f"On sums, {methods[0]}: {'; '.join(parts)}"


def facts(study: Study) -> dict[str, Any]:
    """Who has the most right at each budget, and who is not clearly below exact sampling from where on."""
    exact, near = next(iter(study.where(method=EXACT)), None), []
    for method in study.column("method"):
        if exact is None or not exact["accuracy_right"]:
            break
        own = [one for one in study.where(method=method) if one["nfe"]]
        far = max((one["nfe"] for one in own if compare("accuracy", one, exact) < 0), default=0)
        enough = [one["nfe"] for one in own if one["nfe"] > far]
        near += [(min(enough), method)] if enough else []
    told = [f"{method} from {nfe} on" for nfe, method in sorted(near)]
    return {"ranking": ranking(study, "accuracy", max), "exact": exact, "near": told}
