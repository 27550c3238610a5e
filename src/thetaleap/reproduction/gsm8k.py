"""The paper's GSM8K table: how many answers of a masked language model are right, by solver and evaluations.

As in the paper, zero-shot prompts, answers of 256 tokens, temperature 0.5, theta = 1/2, equal steps down to 1e-3, and
semi-autoregressive decoding in a single block; besides, theta-Trapezoidal in blocks of 8 tokens. The paper's model is
LLaDA-8B-Instruct; here it is any that `load` knows as ``llada:`` or ``dream:``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..core.checks import require, require_choice, require_count
from ..evaluation.metrics.accuracy import MARK, Accuracy, flexible_answer, same_answer, strict_answer
from ..models import load
from ..models.hf.answering import Answer, Manner, answers
from ..models.hf.llm import resized, vocabulary_of
from ..models.network import Network
from ..sampling import plan
from ..solvers import Blocks, SemiAutoregressive, Solver, Trapezoidal
from ._gsm8k_page import PAPER, describe, draw, page
from ._output import Report, bar, write_csv, write_json, write_lines, write_png, write_text

BUDGETS = (64, 128, 256)
NEW = 256
BLOCK = 8
TEMPERATURE = 0.5
BATCH = 8
KINDS = ("llada", "dream")
DTYPES = ("auto", "float16", "bfloat16", "float32", "float64")

METHODS: dict[str, Callable[[int, int | None], Solver]] = {
    "Semi-AR (confidence)": lambda block, stop: SemiAutoregressive("confidence"),
    "Semi-AR (random)": lambda block, stop: SemiAutoregressive("random"),
    "theta-Trapezoidal": lambda block, stop: Trapezoidal(0.5),
    "theta-Trapezoidal, blocks": lambda block, stop: Blocks(Trapezoidal(0.5), block, stop),
}
"""By name, for a length of blocks and the token that ends an answer."""


@dataclass(frozen=True)
class Question:
    """A line of the file."""

    question: str
    answer: str


@dataclass(frozen=True)
class Row:
    """One method at one budget: a row of the CSV. Shares are of the questions, intervals Wilson's at 95%."""

    method: str
    nfe: int
    """The budget."""
    steps: int
    num: int
    """Questions."""
    right: int
    accuracy: float
    """The last number of the answer is right."""
    low: float
    high: float
    right_strict: int
    accuracy_strict: float
    """The number behind the first ``####`` is right."""
    low_strict: float
    high_strict: float
    evaluations: float
    """What an answer took on average, its finish included."""
    most_evaluations: int
    paper: float | None
    """What the paper reports for LLaDA-8B-Instruct; none where it has no such row."""


def run(
    folder: Path,
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    model: str | Network | None = None,
    data: Path | None = None,
    batch_size: int = BATCH,
    device: str = "cpu",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    budgets: Sequence[int] = BUDGETS,
    new: int = NEW,
    block: int = BLOCK,
) -> Report:
    """Measure, and write ``gsm8k.md``, ``.png``, ``.csv``, ``.json`` and ``gsm8k-answers.jsonl`` to `folder`.

    Args:
        folder: where to; it is made.
        num: how many questions, the first of the file; by default all.
        seed: of the answers.
        progress: show a bar; by default if standard error is a terminal.
        model: ``llada:SOURCE`` or ``dream:SOURCE``, or one made by `llada` or `dream`.
        data: GSM8K's ``test.jsonl``: a ``question`` and an ``answer`` on each line.
        batch_size: questions that are answered together.
        device: where the network runs, its dtype and trust_remote_code: see `llada`.
        dtype: see `llada`.
        trust_remote_code: see `llada`.
        budgets: evaluations.
        new: tokens of an answer.
        block: tokens of a block.
    """
    if num is not None:
        require_count("num", num)
    require_count("seed", seed, least=0)
    if data is None:
        raise ValueError("data=None: give GSM8K's test.jsonl, as in --data gsm8k/test.jsonl")
    require_count("new", new)
    require(len(budgets) > 0, "budgets", list(budgets), "give at least one")
    questions = read_questions(data, num)
    network, name = _model(model, device, dtype, trust_remote_code)
    prompts = [prompt_for(network, one.question) for one in questions]
    ends = vocabulary_of(network).ends
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    written: list[dict[str, Any]] = []
    kept = folder / "gsm8k-answers.jsonl"
    with bar(progress, "questions", len(METHODS) * len(budgets) * len(questions)) as advance:
        for method, make in METHODS.items():
            for nfe in sorted(set(budgets)):
                manner = within(network, make(block, ends[0] if ends else None), nfe, new)
                drawn = answers(network, manner, prompts, new, seed=seed, batch_size=batch_size, progress=False)
                texts = [vocabulary_of(network).tokenizer.decode(a.tokens, skip_special_tokens=True) for a in drawn]
                steps = len(plan(resized(network, new), manner.solver, nfe=manner.nfe, steps=manner.steps)) - 1
                rows.append(_row(method, nfe, steps, questions, texts, drawn, block))
                written += [
                    {"method": method, "nfe": nfe, "question": n, "evaluations": answer.nfe, "text": text}
                    for n, (answer, text) in enumerate(zip(drawn, texts, strict=True))
                ]
                write_lines(kept, written)  # after each, as the next may take hours
                advance(len(questions))
    settings = {
        "model": name,
        "questions": data.name,
        "num": len(questions),
        "seed": seed,
        "new": new,
        "block": block,
        "temperature": TEMPERATURE,
        "chat_template": vocabulary_of(network).chats,
        "solvers": {method: repr(make(block, ends[0] if ends else None)) for method, make in METHODS.items()},
    }
    card = {"experiment": "gsm8k", "version": __version__, "settings": settings, "rows": [asdict(r) for r in rows]}
    files = [
        write_text(folder / "gsm8k.md", page(rows, settings)),
        write_png(folder / "gsm8k.png", draw(rows, name)),
        write_csv(folder / "gsm8k.csv", [asdict(row) for row in rows]),
        write_json(folder / "gsm8k.json", {**card, "paper": PAPER}),
        kept,
    ]
    return Report(describe(rows, settings), files)


def _model(model: str | Network | None, device: str, dtype: str, trusted: bool) -> tuple[Network, str]:
    """The network, and what to call it."""
    if isinstance(model, Network):
        return model, "given as an object"
    kind, colon, _ = (model or "").partition(":")
    remedy = "give a masked language model, as in --model llada:FOLDER or dream:FOLDER"
    require(kind in KINDS and colon != "", "model", model, remedy)
    require_choice("dtype", dtype, DTYPES)
    place = {"device": device, "dtype": dtype if dtype == "auto" else getattr(torch, dtype)}
    return load(str(model), length=1, trust_remote_code=trusted, **place), str(model)


def read_questions(path: Path, num: int | None = None) -> list[Question]:
    """The first `num` questions of a file with a JSON object on each line, or all."""
    require(path.is_file(), "data", str(path), "there is no such file; give GSM8K's test.jsonl")
    questions: list[Question] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"data={path}, line {number}: this is no JSON ({error.msg})") from None
        fields = entry if isinstance(entry, dict) else {}
        question, answer = fields.get("question"), fields.get("answer")
        good = isinstance(question, str) and isinstance(answer, str) and MARK in answer
        wanted = f'give {{"question": text, "answer": text}}, the final answer behind {MARK!r}'
        require(good, "data", f"{path}, line {number}", wanted)
        questions.append(Question(str(question), str(answer)))
    require(len(questions) > 0, "data", str(path), "holds no questions")
    if num is None:
        return questions
    require(num <= len(questions), "num", num, f"there are {len(questions)} questions; give at most as many")
    return questions[:num]


def prompt_for(model: Network, question: str) -> list[int]:
    """Tokens of the question as lm-evaluation-harness puts it, without examples; in a chat, if the model has one."""
    words, text = vocabulary_of(model), f"Question: {question}\nAnswer:"
    return words.chat([{"role": "user", "content": text}]) if words.chats else words.encode(text)


def within(model: Network, solver: Solver, nfe: int, new: int) -> Manner:
    """How to spend `nfe` evaluations, finish included; one step for each block where that is all there could be.

    The paper's 64 evaluations in 32 blocks of 8 are one step each, and leave nothing for what masks the steps leave
    over. These go in one more evaluation a block, which is then beyond the budget; what was spent is reported.
    """
    process, cost = model.process, solver.evaluations
    assert cost is not None
    least = solver.fewest(new) * (cost + (not solver.reaches_data(process)))
    if nfe >= least:
        return Manner(solver, nfe=nfe, temperature=TEMPERATURE)
    return Manner(solver, steps=solver.fewest(new), temperature=TEMPERATURE)


def _row(
    method: str,
    nfe: int,
    steps: int,
    questions: Sequence[Question],
    texts: Sequence[str],
    drawn: Sequence[Answer],
    block: int,
) -> Row:
    solutions = [one.answer for one in questions]
    loose = [same_answer(flexible_answer(text), one) for text, one in zip(texts, solutions, strict=True)]
    exact = [same_answer(strict_answer(text), one) for text, one in zip(texts, solutions, strict=True)]
    last, behind = Accuracy.of(sum(loose), len(loose)), Accuracy.of(sum(exact), len(exact))
    published = PAPER[method].get(str(nfe)) if block == BLOCK or "blocks" not in method else None
    return Row(
        method,
        nfe,
        steps,
        len(questions),
        last.right,
        last.value,
        last.low,
        last.high,
        behind.right,
        behind.value,
        behind.low,
        behind.high,
        sum(answer.nfe for answer in drawn) / len(drawn),
        max(answer.nfe for answer in drawn),
        published,
    )
