"""The paper's GSM8K table: how many answers of a masked language model are right, by solver and evaluations.

As in the paper, zero-shot prompts, answers of 256 tokens, temperature 0.5, theta = 1/2, equal steps down to 1e-3, and
semi-autoregressive decoding in a single block; besides, theta-Trapezoidal in blocks of 8 tokens. The paper's model is
LLaDA-8B-Instruct; here it is any that `load` knows as ``llada:`` or ``dream:``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from ..conditioning.answering import Manner, answers
from ..control import Method, control_of
from ..core.checks import require, require_count
from ..evaluation.figures import write_lines
from ..evaluation.metrics.accuracy import MARK, Accuracy, flexible_answer, same_answer, strict_answer
from ..evaluation.metrics.resampled import resampled_mean
from ..models.hf.llm import KINDS, resized, vocabulary_of
from ..models.network import Network
from ..sampling import plan
from .methods import SAFE, SEMI, budgets_of, fewest, pick
from .pages import Job, Panel, chart, experiment, model_of, publish
from .rules import Report
from .study import Study, ranking, row
from .sums import BLOCK, BLOCKWISE, TEMPERATURE

BUDGETS = (64, 128, 256)
NEW = 256
PAPER: dict[str, dict[str, float]] = {
    SEMI[1]: {"64": 0.336, "128": 0.320, "256": 0.391},
    SEMI[0]: {"64": 0.338, "128": 0.343, "256": 0.403},
    SAFE: {"64": 0.351, "128": 0.384, "256": 0.397},
    BLOCKWISE: {"64": 0.504, "128": 0.574, "256": 0.625},
}
"""The paper's own figures for LLaDA-8B-Instruct (its appendix, blocks of 8), by method and evaluations. Not measured
here. It does not say how many questions they are of, nor which number of an answer counts."""
COLUMNS = {
    "last number right, %": ("accuracy", 100.0, 1),
    "#### right, %": ("strict", 100.0, 1),
    "paper, %": ("paper", 100.0, 1),
}


@dataclass(frozen=True)
class Question:
    """A line of the file."""

    question: str
    answer: str


@experiment()
def run(
    job: Job,
    model: str | Network | None = None,
    data: Path | None = None,
    batch_size: int = 8,
    device: str = "cpu",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    budgets: Sequence[int] | None = None,
    new: int = NEW,
    block: int = BLOCK,
) -> Report:
    """Measure, and write ``gsm8k.md``, ``.png``, ``.csv``, ``.json`` and ``gsm8k-answers.jsonl`` to the job's folder.

    The model is ``llada:SOURCE`` or ``dream:SOURCE``, or one made by `llada` or `dream`, where `device`, `dtype` and
    `trust_remote_code` are explained; `data` is GSM8K's ``test.jsonl``, a ``question`` and an ``answer`` on each line, of
    which the first `num` count. Answers have `new` tokens, in blocks of `block`.
    """
    if data is None:
        raise ValueError("data=None: give GSM8K's test.jsonl, as in --data gsm8k/test.jsonl")
    require_count("new", new)
    wanted = budgets_of(budgets, BUDGETS)
    questions = read_questions(data, job.num)
    kind, colon, _ = model.partition(":") if isinstance(model, str) else (model, "", "")
    good = isinstance(model, Network) or (kind in KINDS and colon != "")
    require(good, "model", model, "give a masked language model, as in --model llada:FOLDER or dream:FOLDER")
    place = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
    network, name = model_of(model or "", length=1, **place)
    words, prompts = vocabulary_of(network), [prompt_for(network, one.question) for one in questions]
    solvers = pick(*PAPER, size=block, stop=words.ends[0] if words.ends else None)
    todo = list(product(solvers, wanted))
    rows, written, kept = [], [], job.folder / "gsm8k-answers.jsonl"
    with job.bar("questions", len(todo) * len(questions)) as advance:
        for method, nfe in todo:
            manner = within(network, solvers[method], nfe, new)
            drawn = answers(network, manner, prompts, new, seed=job.seed, batch_size=batch_size, progress=False)
            texts = [words.tokenizer.decode(a.tokens, skip_special_tokens=True) for a in drawn]
            steps = len(plan(resized(network, new), manner.solver, nfe=manner.nfe, steps=manner.steps)) - 1
            told = {"model": name, "solver": repr(manner.solver), "nfe": nfe, "steps": steps}
            right = figures(method, nfe, questions, texts, block)
            rows.append(row(method, [answer.nfe for answer in drawn], **told, **right))
            for n, (answer, text) in enumerate(zip(drawn, texts, strict=True)):
                said = {"question": n, "evaluations": answer.nfe, "text": text}
                written.append({"method": method, "nfe": nfe, **said})
            write_lines(kept, written)  # after each, as the next may take hours
            advance(len(questions))
    settings = {"model": name, "questions": data.name, "num": len(questions), "new": new, "block": block}
    settings |= {"temperature": TEMPERATURE, "chat_template": words.chats}
    study = Study.of("gsm8k", rows)
    part = Panel(study, "accuracy", "last number right, % of questions (95% interval)", 100.0, published="paper")
    figure = chart([part], list(PAPER), f"GSM8K, {len(questions)} questions, {name}")
    told = {"columns": COLUMNS, "more": [kept], "card": {"paper": PAPER}, **facts(study)}
    return publish(job, "gsm8k", study, settings, [], figure, **told)


def figures(method: str, nfe: int, questions: Sequence[Question], texts: Sequence[str], block: int) -> dict[str, Any]:
    """Shares of right answers, and the paper's, which are for its own blocks."""
    pairs = [(text, one.answer) for text, one in zip(texts, questions, strict=True)]
    right = {
        read: torch.tensor([same_answer(read(text), solution) for text, solution in pairs], dtype=torch.float64)
        for read in (flexible_answer, strict_answer)
    }
    loose, exact = (Accuracy.of(int(each.sum()), len(pairs)) for each in right.values())
    known = PAPER[method].get(str(nfe)) if block == BLOCK or method != BLOCKWISE else None
    paired = resampled_mean(right[flexible_answer]).again
    return {"accuracy": loose, "_accuracy": paired, "strict": exact, "paper": known}


def facts(study: Study) -> dict[str, Any]:
    """Who has the most right at each budget, and who spent more."""
    over = [one for one in study.rows if one["most_evaluations"] > one["nfe"]]
    names = [f"{one['method']} at {one['nfe']} (at most {one['most_evaluations']})" for one in over]
    return {"ranking": ranking(study, "accuracy", max), "over": names}


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


def within(model: Network, solver: Method, nfe: int, new: int) -> Manner:
    """How to spend `nfe` evaluations, finish included; one step for each block where that is all there could be.

    The paper's 64 evaluations in 32 blocks of 8 are one step each, and leave nothing for what masks the steps leave
    over. These are unmasked in one more evaluation a block, which is then beyond the budget; what was spent is reported.
    """
    if nfe >= fewest(model, solver, new):
        return Manner(solver, nfe=nfe, temperature=TEMPERATURE)
    return Manner(solver, steps=control_of(solver).fewest(new), temperature=TEMPERATURE)
