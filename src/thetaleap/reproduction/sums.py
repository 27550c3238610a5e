"""How many sums come out right, by solver and evaluations: the paper's GSM8K table on a model that anyone can run.

The model ``sums`` solves word problems of two or three steps. It is asked problems whose numbers it has never seen; the
question is given, and all positions behind it are free: the answer, and ends to fill up. As in the paper theta is 1/2,
steps are equal down to 1e-3, semi-autoregressive decoding is in a single block, and blocks are of 8. The temperature is
1, and 0.5 in the paper. Budgets are by evaluations per free position, 1/64 to 1, as far as that is an evaluation at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ..conditioning.wrappers import tempered
from ..core.checks import require
from ..core.free import FREE
from ..evaluation.figures import listing, write_lines
from ..evaluation.metrics.accuracy import Accuracy
from ..evaluation.metrics.resampled import resampled_mean
from ..models.network import Network
from ..training.sums import END, LENGTH, WORDS, Problem, encoded, problems, result_of
from .looks import Cell, draw_by, fingerprint, until_decided
from .methods import (
    AUTO,
    CORRECTED,
    EXACT,
    SAFE,
    SEMI,
    TWEEDIE,
    Led,
    budgets_by_ratio,
    budgets_for,
    budgets_of,
    look,
    pick,
    steps_of,
)
from .pages import Job, Panel, chart, experiment, model_of, publish
from .rules import Claim, Report, judge
from .study import Row, Study, compare, ranking, row

MODEL = "sums"
NUM = 128
BLOCK = 8
TEMPERATURE = 0.5
"""The paper's, of LLaDA. At it the model here has nearly all right in one evaluation, and methods cannot differ."""
PLAIN = 1.0
"""At which they can: exact sampling has nine of ten right."""
STOP = WORDS.index(END)
BLOCKWISE, MULTISTEP, EXPONENTIAL = "theta-Trapezoidal in blocks", "multistep", "exponential Trapezoidal"
SOLVERS: dict[str, Led] = pick(
    *(*reversed(SEMI), SAFE, BLOCKWISE, TWEEDIE, MULTISTEP, f"{MULTISTEP} in blocks", EXPONENTIAL),
    *(f"{EXPONENTIAL} in blocks", CORRECTED, AUTO, EXACT),
    size=BLOCK,
    stop=STOP,
)
"""The first four are the paper's. The last one is exact, and takes an evaluation for each free position."""
DRAWN = (*SEMI, SAFE, BLOCKWISE, AUTO)
"""In the figure, beside exact sampling; the table has all."""
COLUMNS = {"right, %": ("accuracy", 100.0, 1), "worked out, %": ("worked", 100.0, 1)}


@experiment()
def run(
    job: Job,
    model: str | Network = MODEL,
    budgets: Sequence[int] | None = None,
    batch_size: int | None = None,
    temperature: float = PLAIN,
) -> Report:
    """Measure, and write ``sums.md``, ``.png``, ``.csv``, ``.json`` and ``sums-answers.jsonl`` to the job's folder.

    `num` held-out problems are answered by ``sums``, or by another model of its words. The problems are the same for
    all seeds. Budgets that a method cannot do with are left out.
    """
    network, name = _model(model)
    shaped, few = tempered(network, temperature), job.num or NUM
    first = questions(problems(few, held_out=True), network.length)
    free = (first == FREE).sum(1)
    usual, most = round(float(free.double().mean())), int(free.max())
    given = budgets_of(budgets, budgets_by_ratio(usual))
    cells = [Cell(m, n, few, n or usual) for m in SOLVERS for n in budgets_for(network, SOLVERS[m], given, most)]
    weights, written = fingerprint(network, first[0]), dict[Cell, list[Row]]()

    def measure(cell: Cell, num: int) -> Row:
        asked, solver = problems(num, held_out=True), SOLVERS[cell.method]
        template = questions(asked, network.length)
        key, manner = {"sums": weights, "temperature": temperature}, {"batch_size": batch_size, "template": template}
        drawn = draw_by(job, key, num, lambda first, count: shaped, solver, cell.nfe, **manner)
        lengths = (template == FREE).sum(1)
        texts = [answer_of(network, tokens, int(n)) for tokens, n in zip(drawn.x, lengths, strict=True)]
        pairs = list(zip(asked, texts, strict=True))
        right = torch.tensor([result_of(text) == one.result for one, text in pairs], dtype=torch.float64)
        worked = Accuracy.of(sum(text == one.answer for one, text in pairs), num)
        keys = {"method": cell.method, "nfe": cell.nfe}
        written[cell] = [{**keys, "question": p.question, "result": p.result, "answer": text} for p, text in pairs]
        entries = {"model": name, "solver": repr(solver), "nfe": cell.nfe, "kind": look(cell.method).kind}
        entries |= {"network": float(drawn.spent.double().mean())}
        entries |= {"ratio": None if cell.nfe is None else cell.nfe / usual}
        entries |= {"steps": steps_of(shaped, solver, cell.nfe, positions=int(lengths.max()))}
        share = {"accuracy": Accuracy.of(int(right.sum()), num), "_accuracy": resampled_mean(right).again}
        return row(cell.method, drawn.nfe.tolist(), **entries, **share, worked=worked)

    settings = {"model": name, "weights": weights, "num": few, "temperature": temperature, "block": BLOCK}
    settings |= {"free": float(free.double().mean())}
    study, claims = until_decided(
        job, "sums", cells, measure, lambda study: claims_of(study, settings), beside=(EXACT, AUTO)
    )
    answers = write_lines(job.folder / "sums-answers.jsonl", [one for some in written.values() for one in some])
    exact: Row = next(iter(study.where(method=EXACT)), {})
    level = (100 * exact["accuracy"], "exact sampling") if exact else None
    part = Panel(study, "accuracy", "right, % of problems (95% interval)", 100.0, level=level)
    told = {"columns": COLUMNS, "more": [answers], **facts(study)}
    return publish(job, "sums", study, settings, claims, chart([part], DRAWN, takeaway(study, name)), **told)


def takeaway(study: Study, name: str) -> str:
    """The fewest evaluations with which one of those in the figure is surely ahead of others."""
    drawn = Study([one for one in study.rows if one["method"] in DRAWN])
    for one in ranking(drawn, "accuracy", max):
        if one.behind:
            share = f"{one.best['method']} has {100 * one.best['accuracy']:.0f}% right"
            unit = "evaluation" if one.nfe == 1 else "evaluations"
            return f"{name}: with {one.nfe} {unit} {share}, surely more than {listing(one.behind)}"
    return f"{name}: right answers against evaluations"


def questions(asked: Sequence[Problem], length: int) -> Int64[Tensor, "num d"]:
    """Templates in which the questions are given."""
    rows = [encoded(one, length) for one in asked]
    tokens, sizes = torch.stack([row for row, _ in rows]), torch.tensor([size for _, size in rows])
    return torch.where(torch.arange(length) < sizes.unsqueeze(1), tokens, FREE)


def answer_of(model: Network, tokens: Int64[Tensor, " d"], free: int) -> str:
    """What is written in the last `free` positions, up to the first end."""
    said = tokens[len(tokens) - free :].tolist()
    return model.tokenizer.decode(said[: said.index(STOP)] if STOP in said else said)


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
    """The paper's claims on GSM8K. Verdicts are of this model of sums; the figures themselves are about LLaDA."""
    return judge(study, "sums", (), f"on {settings['model']}: ", few=settings["free"] - 1, many=settings["free"] - 1)


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
