"""The experiment on sums, on models of which it is known how often they are right."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import thetaleap as tl
from thetaleap.core.free import FREE
from thetaleap.evaluation.metrics.accuracy import Accuracy, wilson
from thetaleap.evaluation.metrics.resampled import resampled_mean
from thetaleap.models.tokenizers import Lexicon
from thetaleap.reproduction import Report, sums
from thetaleap.reproduction.methods import budgets_for
from thetaleap.reproduction.pages import describe
from thetaleap.reproduction.study import Row, Study
from thetaleap.reproduction.study import row as made
from thetaleap.reproduction.sums import (
    COLUMNS,
    SOLVERS,
    STOP,
    answer_of,
    claims_of,
    facts,
    questions,
    takeaway,
)
from thetaleap.training.sums import LENGTH, WORDS, encoded, problems, result_of

NUM, BUDGETS, WRONG, TEMPERATURE = 40, (2, 24), 0.4, 0.1
BREAK = WORDS.index("\n")


def knowing(wrong: float = 0.0, num: int = NUM, seed: int = 0) -> Any:
    """A model that knows the answers, but takes the last digit of the result for another with probability `wrong`."""
    rows: dict[tuple[int, ...], Tensor] = {}
    for one in problems(num, seed, held_out=True):
        tokens, asked = encoded(one)
        p = torch.nn.functional.one_hot(tokens, len(WORDS)).double()
        last = int((tokens == STOP).nonzero()[0]) - 1
        digit = int(WORDS[int(tokens[last])])
        p[last, tokens[last]], p[last, WORDS.index(str((digit + 1) % 10))] = 1 - wrong, wrong
        rows[tuple(tokens[:asked].tolist())] = p.log().clamp_min(-1e4)

    def network(x: Tensor, t: Tensor) -> Tensor:
        return torch.stack([rows[tuple(one[: one.index(BREAK) + 1])] for one in x.tolist()])

    return tl.from_network(
        tl.Masked(len(WORDS)), length=LENGTH, network=network, time_free=True, tokenizer=Lexicon(WORDS)
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("sums") / "made"
    given = {"model": knowing(WRONG), "budgets": BUDGETS, "temperature": TEMPERATURE}
    return sums.run(folder, num=NUM, seed=1, progress=False, **given), folder


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "sums.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_files_agree(ran: tuple[Report, Path]) -> None:
    report, folder = ran
    names = ["sums-answers.jsonl", "sums.csv", "sums.json", "sums.md", "sums.png"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert sorted(path.name for path in report.files) == names
    card, page = json.loads((folder / "sums.json").read_text()), (folder / "sums.md").read_text()
    answers = [json.loads(line) for line in (folder / "sums-answers.jsonl").read_text().splitlines()]
    for row, entry in zip(rows_of(folder), card["rows"], strict=True):
        assert {key: str(value if value is not None else "") for key, value in entry.items()} == row
        mine = [one for one in answers if (one["method"], str(one["nfe"] or "")) == (row["method"], row["nfe"])]
        right = sum(result_of(one["answer"]) == one["result"] for one in mine)
        assert (len(mine), right) == (NUM, int(row["accuracy_right"]))
        assert (float(row["accuracy_low"]), float(row["accuracy_high"])) == pytest.approx(wilson(right, NUM))
        assert f"| {row['method']} | {row['nfe'] or '-'} | {float(row['evaluations']):.1f} |" in page
        assert not row["nfe"] or int(row["most_evaluations"]) <= int(row["nfe"])
    assert report.claims[-1].verdict == "needs weights"
    assert "llada:FOLDER" in report.claims[-1].command
    assert all(claim["found"] in page for claim in card["claims"])


def test_which_budgets() -> None:
    """Up to 52 free positions are seven blocks of 8: one step each, or three evaluations."""
    free = int((questions(problems(NUM, held_out=True), LENGTH) == FREE).sum(1).max())
    model, fewest = knowing(), -(-free // 8)
    for name, least in {
        "Semi-AR (random)": 1,
        "theta-Trapezoidal (exact rule)": 3,
        "theta-Trapezoidal in blocks": 3 * fewest,
        "multistep in blocks": fewest,
        "exponential Trapezoidal in blocks": 2 * fewest,
    }.items():
        assert budgets_for(model, SOLVERS[name], list(range(1, 64)), free) == list(range(least, 64)), name
    assert budgets_for(model, SOLVERS["first-hitting"], [2], free) == [None]


def test_shares_are_the_model_s_own(ran: tuple[Report, Path]) -> None:
    """At temperature 1/n the right digit has (1-w)^n of w^n + (1-w)^n, whatever the solver, as positions are
    independent.

    Decoding by confidence is more often right: it draws an unsure digit again. Exact binomial tests of at most 30 rows
    at 1e-8 each: false alarm below 1e-6.
    """
    right, wrong = ((p ** (1 / TEMPERATURE)) for p in (1 - WRONG, WRONG))
    expected = right / (right + wrong)
    rows = rows_of(ran[1])
    assert min(int(row["accuracy_right"]) for row in rows) < NUM
    assert {row["method"] for row in rows} == set(SOLVERS)
    for row in rows:
        assert row["accuracy_right"] == row["worked_right"], "all else is known"
        side = "two-sided" if row["method"] != "Semi-AR (confidence)" else "less"
        assert stats.binomtest(int(row["accuracy_right"]), NUM, expected, side).pvalue > 1e-8, row


def test_a_model_that_knows_is_always_right(tmp_path: Path) -> None:
    sums.run(tmp_path, num=5, progress=False, model=knowing(num=5), budgets=(24,))
    assert {(row["accuracy_right"], row["worked_right"]) for row in rows_of(tmp_path)} == {("5", "5")}
    assert json.loads((tmp_path / "sums.json").read_text())["settings"]["temperature"] == 1


def test_the_same_again_in_other_batches(ran: tuple[Report, Path], tmp_path: Path) -> None:
    given = {"model": knowing(WRONG), "budgets": (2,), "temperature": TEMPERATURE, "batch_size": 17}
    sums.run(tmp_path, num=NUM, seed=1, progress=False, **given)
    mine = (tmp_path / "sums-answers.jsonl").read_text().splitlines()
    assert set(mine) < set((ran[1] / "sums-answers.jsonl").read_text().splitlines())


def test_answers_end_at_the_first_end() -> None:
    one = problems(1, held_out=True)[0]
    tokens, asked = encoded(one)
    model, free = knowing(num=1), LENGTH - asked
    assert answer_of(model, tokens, free) == one.answer
    tokens[-1] = WORDS.index("7")
    assert answer_of(model, tokens, free) == one.answer
    full = torch.where(tokens == STOP, WORDS.index("7"), tokens)
    assert answer_of(model, full, free).startswith(f"{one.answer} 7")
    template = questions([one], LENGTH)[0]
    assert (template == FREE).tolist() == [n >= asked for n in range(LENGTH)]
    assert torch.equal(template[:asked], tokens[:asked])


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model='cube3': give a masked model of word problems, such as sums"):
        sums.run(tmp_path, model="cube3")
    with pytest.raises(ValueError, match="budgets=0: give a whole number of at least 1"):
        sums.run(tmp_path, model=knowing(num=1), budgets=(0, 2))
    with pytest.raises(ValueError, match="num=0: "):
        sums.run(tmp_path, num=0)
    assert not list(tmp_path.iterdir())


# --- words


def row(method: str, nfe: int | None, right: int) -> Row:
    """The first problems are right: rows of one method differ from another's in as few problems as they can."""
    none, each = Accuracy.of(0, 100), (torch.arange(100) < right).double()
    share = {"accuracy": Accuracy.of(right, 100), "_accuracy": resampled_mean(each).again}
    return made(method, nfe=nfe, num=100, evaluations=float(nfe or 30), worked=none, **share)


def sentences(rows: list[Row]) -> str:
    """All that the page says of rows."""
    settings = {"num": 100, "model": "m", "free": 20.0, "temperature": 0.5, "block": 8}
    study = Study.of("sums", rows)
    return " ".join(describe("sums", study, COLUMNS, settings=settings, claims=[], **facts(study)).split())


def test_words_follow_the_numbers() -> None:
    semi, other, flat, blocks = list(SOLVERS)[:4]
    rows = [row(semi, 8, 30), row(other, 8, 60), row(flat, 8, 62), row(blocks, 32, 90), row(flat, 32, 80)]
    rows += [row(semi, 32, 40), row("multistep", 2, 0), row("first-hitting", None, 88)]
    assert sentences(rows).endswith(
        "- At 2 evaluations no method has a sum right. "
        f"- At 8 evaluations {flat} has the most right, 62 of 100; that is clearly above {semi}; not clearly above {other}. "
        f"- At 32 evaluations {blocks} has the most right, 90 of 100; that is clearly above {flat} and {semi}. "
        "- Exact sampling (first-hitting) has 88.0% right in 30.0 evaluations; not clearly below it: "
        f"{flat} from 32 on and {blocks} from 32 on."
    )
    tie = sentences([row(semi, 8, 30), row(other, 8, 30), row("first-hitting", None, 90)])
    assert f"- At 8 evaluations {semi} and {other} have the most right, 30 of 100. " in tie
    assert tie.endswith("- Exact sampling (first-hitting) has 90.0% right in 30.0 evaluations.")
    again = [row(semi, 4, 90), row(semi, 8, 20), row(semi, 16, 85), row(semi, 32, 99), row("first-hitting", None, 88)]
    assert sentences(again).endswith(f"not clearly below it: {semi} from 16 on."), "what is near by chance is not"


def test_the_title_is_sure() -> None:
    """Of methods in the figure, and only where one is ahead of another by more than chance."""
    semi, other, flat, _ = list(SOLVERS)[:4]
    level = [row(semi, 2, 60), row(other, 2, 62), row("multistep", 2, 10)]
    assert takeaway(Study.of("sums", level), "m") == "m: right answers against evaluations"
    ahead = [*level, row(semi, 8, 95), row(other, 8, 60), row(flat, 8, 93)]
    assert (
        takeaway(Study.of("sums", ahead), "m")
        == f"m: with 8 evaluations {semi} has 95% right, surely more than {other}"
    )


def test_verdicts_follow_the_numbers() -> None:
    semi, other, flat, blocks = list(SOLVERS)[:4]

    def verdicts(*rows: Row) -> list[str]:
        return [claim.verdict for claim in claims_of(Study.of("sums", rows), {"free": 20.0, "model": "m"})]

    few = [row(flat, 8, 80), row(semi, 8, 30), row(other, 8, 40)]
    many = [row(flat, 20, 50), row(semi, 20, 90), row(other, 20, 50), row(blocks, 20, 80)]
    assert verdicts(*few, *many) == ["agrees", "differs", "agrees", "needs weights"]
    behind = [row(flat, 8, 10), row(semi, 8, 90), row(other, 8, 40)]
    assert verdicts(*behind, row(flat, 20, 50), row(blocks, 20, 51))[::2] == ["differs", "differs"]
    assert verdicts(row(flat, 8, 50), row(semi, 8, 45), row(other, 8, 48)) == ["undecided"] * 3 + ["needs weights"]
