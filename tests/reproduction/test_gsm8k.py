"""The GSM8K experiment, small: every part of it real but for the size of the model."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import typer.testing

import thetaleap as tl
from tests import number_llm
from tests.conftest import DATA
from thetaleap.cli import app
from thetaleap.evaluation.metrics.accuracy import Accuracy, flexible_answer, same_answer, strict_answer, wilson
from thetaleap.models.hf.llm import llada, vocabulary_of
from thetaleap.reproduction import EXPERIMENTS, Report, gsm8k
from thetaleap.reproduction.gsm8k import COLUMNS, PAPER, Question, facts, figures, prompt_for, read_questions, within
from thetaleap.reproduction.pages import describe
from thetaleap.reproduction.study import Row, Study
from thetaleap.reproduction.study import row as made

pytest.importorskip("transformers", reason="needs the extra 'hub'")

LINES = [("18 and 3 is what ?", "it is\n#### 18"), ("a 540 ?", "540 * 1 = 540\n#### 540")]
BUDGETS = (4, 8)
NEW, BLOCK = 4, 2
NAMES = ["gsm8k-answers.jsonl", "gsm8k.csv", "gsm8k.json", "gsm8k.md", "gsm8k.png"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("numbers")
    number_llm.write(made)
    entries = [json.dumps({"question": question, "answer": answer}) for question, answer in LINES]
    (made / "test.jsonl").write_text("\n".join(entries) + "\n\n")
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return llada(folder, length=1)


@pytest.fixture(scope="module")
def ran(folder: Path, model: Any) -> tuple[Report, Path]:
    out = folder / "made" / "here"
    given = {"model": model, "data": folder / "test.jsonl", "budgets": BUDGETS, "new": NEW, "block": BLOCK}
    return gsm8k.run(out, seed=2, progress=False, **given), out


def test_files_agree(ran: tuple[Report, Path]) -> None:
    report, out = ran
    assert sorted(path.name for path in out.iterdir()) == NAMES
    assert sorted(path.name for path in report.files) == NAMES
    with (out / "gsm8k.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    card = json.loads((out / "gsm8k.json").read_text())
    assert card["paper"] == PAPER
    assert card["settings"]["num"] == 2
    assert any(int(row["accuracy_right"]) for row in rows), "some are right, else little is tested"
    assert [(row["method"], int(row["nfe"])) for row in rows] == [(name, nfe) for name in PAPER for nfe in BUDGETS]
    written = [json.loads(line) for line in (out / "gsm8k-answers.jsonl").read_text().splitlines()]
    assert len(written) == len(rows) * 2
    for row, entry in zip(rows, card["rows"], strict=True):
        mine = [one for one in written if (one["method"], one["nfe"]) == (row["method"], int(row["nfe"]))]
        solutions = [LINES[one["question"]][1] for one in mine]
        for name, found in {"accuracy": flexible_answer, "strict": strict_answer}.items():
            right = sum(same_answer(found(one["text"]), s) for one, s in zip(mine, solutions, strict=True))
            assert int(row[f"{name}_right"]) == right == entry[f"{name}_right"]
            assert (float(row[f"{name}_low"]), float(row[f"{name}_high"])) == pytest.approx(wilson(right, 2))
        assert float(row["evaluations"]) == sum(one["evaluations"] for one in mine) / 2
        assert int(row["most_evaluations"]) == max(one["evaluations"] for one in mine)
        assert entry["paper"] is None, "the paper has no such budgets"
        over = row["method"].endswith("in blocks") and row["nfe"] == "4"
        assert (int(row["most_evaluations"]) > int(row["nfe"])) <= over
    assert (out / "gsm8k.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "gsm8k.md").read_text()
    assert all(f"| {name} | {nfe} |" in page for name in PAPER for nfe in BUDGETS)
    assert "not ours: it is what the paper reports" in " ".join(report.text.split())


def test_the_same_again_in_other_batches(ran: tuple[Report, Path], folder: Path, model: Any, tmp_path: Path) -> None:
    again = gsm8k.run(
        tmp_path,
        seed=2,
        progress=False,
        model=model,
        data=folder / "test.jsonl",
        budgets=BUDGETS[:1],
        new=NEW,
        block=BLOCK,
        batch_size=1,
    )
    assert again.files
    mine = (tmp_path / "gsm8k-answers.jsonl").read_text().splitlines()
    assert set(mine) < set((ran[1] / "gsm8k-answers.jsonl").read_text().splitlines())


def test_by_the_command_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the sizes of the test, all else as it is."""

    @wraps(gsm8k.run)
    def small(out: Path, **given: Any) -> Report:
        return gsm8k.run(out, budgets=(4,), new=2, block=2, **given)

    monkeypatch.setitem(EXPERIMENTS, "gsm8k", replace(EXPERIMENTS["gsm8k"], run=small))
    command = ["reproduce", "gsm8k", "--model", f"llada:{folder}", "--data", str(folder / "test.jsonl"), "--num", "1"]
    runner = typer.testing.CliRunner()
    result = runner.invoke(app, [*command, "--dtype", "float32", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert f"GSM8K, 1 questions of test.jsonl, model llada:{folder}" in " ".join(result.output.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES
    refused = runner.invoke(app, ["reproduce", "toy", "--model", "chain64"])
    assert refused.exit_code == 2
    assert "--model chain64: toy takes no such option; leave it out" in refused.output


# --- its parts


def test_the_paper_s_figures_stand_beside_its_budgets() -> None:
    question, method = [Question("?", "#### 7")], "theta-Trapezoidal in blocks"
    one = figures(method, 128, question, ["it is 7"], 8)
    assert (one["paper"], one["accuracy"].right, one["strict"].right) == (0.574, 1, 0)
    other = figures(method, 128, question, ["it is 8"], 4)
    assert (other["paper"], other["accuracy"].right) == (None, 0)


def test_budgets(model: Any) -> None:
    """Of the paper's, one leaves nothing for what masks the blocks' steps leave over."""
    whole, blocks = tl.Trapezoidal(0.5), tl.Blocks(tl.Trapezoidal(0.5), 8)
    assert within(model, whole, 64, 256).nfe == 64
    assert within(model, tl.SemiAutoregressive(), 64, 256).nfe == 64
    assert within(model, blocks, 128, 256).nfe == 128
    least = within(model, blocks, 64, 256)
    assert (least.nfe, least.steps, least.temperature) == (None, 32, 0.5)


def test_prompts(model: Any, folder: Path) -> None:
    words = vocabulary_of(model)
    assert words.decode(prompt_for(model, "18 and 3 ?")).startswith("<|user|>")
    plain = folder / "plain"
    plain.mkdir()
    number_llm.write(plain)
    (plain / "chat_template.jinja").unlink()
    bare = llada(plain, length=1)
    assert prompt_for(bare, "18 ?") == vocabulary_of(bare).encode("Question: 18 ?\nAnswer:")


@pytest.mark.data
def test_all_questions_are_read() -> None:
    questions = read_questions(DATA / "gsm8k" / "test.jsonl")
    assert len(questions) == 1319
    assert strict_answer(questions[0].answer) == "18"
    assert all(same_answer(strict_answer(one.answer), one.answer) for one in questions)
    assert read_questions(DATA / "gsm8k" / "test.jsonl", 2) == questions[:2]


def test_words_follow_the_numbers() -> None:
    def row(method: str, right: int, nfe: int = 64, most: int = 64) -> Row:
        shares = {"accuracy": Accuracy.of(right, 100), "strict": Accuracy.of(0, 100), "paper": PAPER[method]["64"]}
        return made(method, nfe=nfe, num=100, evaluations=60.0, most_evaluations=most, **shares)

    def said(rows: list[Row]) -> str:
        settings = {"num": 100, "questions": "a", "model": "b", "new": 8, "temperature": 0.5, "chat_template": True}
        study = Study.of("gsm8k", rows)
        return " ".join(describe("gsm8k", study, COLUMNS, settings=settings | {"block": 8}, **facts(study)).split())

    first, second, third, fourth = PAPER
    text = said([row(first, 10), row(second, 40), row(third, 45), row(fourth, 8, most=96)])
    assert (
        f"- At 64 evaluations {third} has the most right, 45 of 100; that is clearly above {first} and "
        f"{fourth}; not clearly above {second}."
    ) in text
    assert f"- More than the budget was spent by {fourth} at 64 (at most 96): " in text
    assert "45.0 (35.6 to 54.8)" in text
    tie = said([row(first, 40), row(second, 40), row(third, 8), row(fourth, 7)])
    assert f"{first} and {second} have the most right, 40 of 100; that is clearly above" in tie
    assert "More than the budget" not in tie
    assert "- At 64 evaluations no method has an answer right." in said([row(name, 0) for name in PAPER])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: this is no JSON"),
        ('{"question": "a"}', "line 1': give "),
        ('{"question": "a", "answer": "7"}', "the final answer behind '#### '"),
        ("", "holds no questions"),
    ],
)
def test_wrong_questions(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_questions(tmp_path / "a.jsonl")


def test_errors(folder: Path, tmp_path: Path) -> None:
    data = folder / "test.jsonl"
    with pytest.raises(ValueError, match=r"data=None: give GSM8K.s test\.jsonl, as in --data"):
        gsm8k.run(tmp_path)
    with pytest.raises(ValueError, match="model=None: give a masked language model, as in --model llada:FOLDER"):
        gsm8k.run(tmp_path, data=data)
    with pytest.raises(ValueError, match="num=3: there are 2 questions"):
        gsm8k.run(tmp_path, data=data, num=3)
    with pytest.raises(ValueError, match="budgets=0: give a whole number of at least 1"):
        gsm8k.run(tmp_path, data=data, budgets=(64, 0))
    with pytest.raises(ValueError, match="there is no such file"):
        gsm8k.run(tmp_path, data=folder / "none")
    assert not list(tmp_path.iterdir())
