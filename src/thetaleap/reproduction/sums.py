"""How many sums come out right, by solver and evaluations: the paper's GSM8K table on a model that anyone can run.

The model ``sums`` solves word problems of two or three steps. It is asked problems whose numbers it has never seen; the
question is given, and all positions behind it are free: the answer, and ends to fill up. As in the paper the
temperature is
0.5, theta is 1/2, steps are equal down to 1e-3, semi-autoregressive decoding is in a single block, and blocks are of 8.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from .. import __version__
from ..conditioning.wrappers import tempered
from ..core.checks import require, require_count
from ..core.free import FREE
from ..evaluation.metrics.accuracy import Accuracy
from ..models import load
from ..models.network import Network
from ..sampling import Samples, plan, sample
from ..solvers import (
    Blocks,
    ExponentialTrapezoidal,
    FirstHitting,
    Multistep,
    SemiAutoregressive,
    Solver,
    Trapezoidal,
    Tweedie,
)
from ..training.sums import END, LENGTH, WORDS, Problem, encoded, problems, result_of
from ._output import Report, bar, write_csv, write_json, write_png, write_text
from ._sums_page import claims_of, describe, draw, page

MODEL = "sums"
NUM = 100
BUDGETS = (2, 4, 8, 16, 32, 64)
BLOCK = 8
TEMPERATURE = 0.5
STOP = WORDS.index(END)

METHODS: dict[str, Solver] = {
    "Semi-AR (confidence)": SemiAutoregressive("confidence"),
    "Semi-AR (random)": SemiAutoregressive("random"),
    "theta-Trapezoidal": Trapezoidal(0.5),
    "theta-Trapezoidal in blocks": Blocks(Trapezoidal(0.5), BLOCK, STOP),
    "Tweedie": Tweedie(),
    "multistep": Multistep(),
    "multistep in blocks": Blocks(Multistep(), BLOCK, STOP),
    "exponential Trapezoidal": ExponentialTrapezoidal(0.5),
    "exponential Trapezoidal in blocks": Blocks(ExponentialTrapezoidal(0.5), BLOCK, STOP),
    "first-hitting": FirstHitting(),
}
"""The first four are the paper's. The last one is exact, and takes an evaluation for each free position."""


@dataclass(frozen=True)
class Row:
    """One method at one budget: a row of the CSV. Intervals are Wilson's at 95%."""

    method: str
    nfe: int | None
    """The budget; none for a method that takes what it needs."""
    steps: int
    num: int
    """Problems."""
    right: int
    accuracy: float
    """The result is right."""
    low: float
    high: float
    right_worked: int
    accuracy_worked: float
    """All of the answer is as it should be, every step of the calculation."""
    low_worked: float
    high_worked: float
    evaluations: float
    """What an answer took on average."""
    most_evaluations: int


def run(
    folder: Path,
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    model: str | Network = MODEL,
    budgets: Sequence[int] = BUDGETS,
    batch_size: int | None = None,
    temperature: float = TEMPERATURE,
) -> Report:
    """Measure, and write ``sums.md``, ``.png``, ``.csv``, ``.json`` and ``sums-answers.jsonl`` to `folder`.

    Args:
        folder: where to; it is made.
        num: how many problems, of those that are held out.
        seed: of the answers. The problems are the same for all seeds.
        progress: show a bar; by default if standard error is a terminal.
        model: ``sums``, or another one of its words.
        budgets: evaluations of an answer. Those that a method cannot do with are left out.
        batch_size: problems that are answered together.
        temperature: see `tempered`.
    """
    num = NUM if num is None else num
    require_count("num", num)
    require_count("seed", seed, least=0)
    require(min(budgets, default=0) > 0, "budgets", list(budgets), "give at least one, of at least 1")
    network, name = _model(model)
    shaped = tempered(network, temperature)
    asked = problems(num, held_out=True)
    template = questions(asked, network.length)
    free = (template == FREE).sum(1)
    todo = [(m, nfe) for m in METHODS for nfe in _budgets(network, METHODS[m], sorted(set(budgets)), int(free.max()))]
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    written: list[dict[str, Any]] = []
    with bar(progress, "evaluations", sum(nfe or int(free.max()) for _, nfe in todo)) as advance:
        for method, nfe in todo:
            solver = METHODS[method]
            steps = len(plan(shaped, solver, nfe=nfe, positions=int(free.max()))) - 1
            drawn = sample(shaped, solver, nfe=nfe, template=template, seed=seed, batch_size=batch_size, progress=False)
            texts = [answer_of(network, row, int(n)) for row, n in zip(drawn.x, free, strict=True)]
            rows.append(_row(method, nfe, steps, asked, texts, drawn))
            written += [
                {"method": method, "nfe": nfe, "question": one.question, "result": one.result, "answer": text}
                for one, text in zip(asked, texts, strict=True)
            ]
            advance(nfe or int(free.max()))
    settings = {
        "model": name,
        "num": num,
        "seed": seed,
        "temperature": temperature,
        "block": BLOCK,
        "free": float(free.double().mean()),
        "solvers": {method: repr(solver) for method, solver in METHODS.items()},
    }
    claims = claims_of(rows, settings)
    card = {"experiment": "sums", "version": __version__, "settings": settings, "rows": [asdict(r) for r in rows]}
    lines = "".join(json.dumps(entry) + "\n" for entry in written)
    files = [
        write_text(folder / "sums.md", page(rows, settings, claims)),
        write_png(folder / "sums.png", draw(rows, settings)),
        write_csv(folder / "sums.csv", [asdict(row) for row in rows]),
        write_json(folder / "sums.json", {**card, "claims": [asdict(claim) for claim in claims]}),
        write_text(folder / "sums-answers.jsonl", lines),
    ]
    return Report(describe(rows, settings, claims), files, claims)


def questions(asked: Sequence[Problem], length: int) -> Int64[Tensor, "num d"]:
    """Templates in which the questions are given."""
    rows = [encoded(one, length) for one in asked]
    tokens, sizes = torch.stack([row for row, _ in rows]), torch.tensor([size for _, size in rows])
    return torch.where(torch.arange(length) < sizes.unsqueeze(1), tokens, FREE)


def answer_of(model: Network, tokens: Int64[Tensor, " d"], free: int) -> str:
    """What is written in the last `free` positions, up to the first end."""
    said = tokens[len(tokens) - free :].tolist()
    return model.tokenizer.decode(said[: said.index(STOP)] if STOP in said else said)


def _budgets(model: Network, solver: Solver, budgets: Sequence[int], free: int) -> list[int | None]:
    """Those in which `solver` can fill so many positions: a step for each of its parts, and a finish where it needs
    one."""
    if solver.evaluations is None:
        return [None]
    least = solver.fewest(free) * (solver.evaluations + (not solver.reaches_data(model.process)))
    return [nfe for nfe in budgets if nfe >= least]


def _row(
    method: str, nfe: int | None, steps: int, asked: Sequence[Problem], texts: Sequence[str], drawn: Samples
) -> Row:
    result = [result_of(text) == one.result for text, one in zip(texts, asked, strict=True)]
    worked = [text == one.answer for text, one in zip(texts, asked, strict=True)]
    right, whole_answer = Accuracy.of(sum(result), len(asked)), Accuracy.of(sum(worked), len(asked))
    return Row(
        method,
        nfe,
        steps,
        len(asked),
        right.right,
        right.value,
        right.low,
        right.high,
        whole_answer.right,
        whole_answer.value,
        whole_answer.low,
        whole_answer.high,
        float(drawn.nfe.double().mean()),
        int(drawn.nfe.max()),
    )


def _model(model: str | Network) -> tuple[Network, str]:
    """The network, and what to call it."""
    network, name = (model, "given as an object") if isinstance(model, Network) else (load(model), model)
    words = getattr(getattr(network, "tokenizer", None), "words", None)
    good = isinstance(network, Network) and words == WORDS and network.process.mask is not None
    require(good, "model", name, "give a masked model of word problems, such as sums")
    require(network.length >= LENGTH, "length", network.length, f"problems take {LENGTH} positions")
    return network, name
