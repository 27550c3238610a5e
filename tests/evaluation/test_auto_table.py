"""The benchmark of `auto`: its rows are those of exact laws, it goes on where it was, and its table says who is ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import thetaleap as tl
from benchmarks import antibodies
from benchmarks.auto import AUTO, TWEEDIE, Row, cell, completion, read, run, table
from thetaleap.evaluation.metrics import kl
from thetaleap.models.oracles import Joint
from thetaleap.sampling import plan


def test_rows_are_kept_and_are_those_of_exact_laws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["cube3"], tmp_path, 10, 1, [2])
    before = (tmp_path / "auto.csv").read_text()
    run(["cube3"], tmp_path, 10, 1, [2, 3])
    assert (tmp_path / "auto.csv").read_text().startswith(before)
    assert capsys.readouterr().out.count("cube3 at 2") == 1
    rows, model = read(tmp_path), tl.load("cube3")
    assert isinstance(model, Joint)
    for budget in (2, 3):
        own = {row.contender: row for row in rows if row.budget == budget}
        for name, solver in ((AUTO, tl.recommend(model, budget).solver), (TWEEDIE, tl.Tweedie())):
            law = tl.exact.law(model, solver, plan(model, solver, nfe=budget))
            assert own[name].value == pytest.approx(kl(model.p0, law), rel=1e-9, abs=1e-12)
        assert own[TWEEDIE].behind == pytest.approx(own[AUTO].value - own[TWEEDIE].value, rel=1e-9)
        assert own[TWEEDIE].surely == -1
    first, _, *lines = table(rows).split("\n")
    assert first == "| model | 2 | 3 |"
    assert [line.split(" | ")[0] for line in lines] == ["| `cube3`, kl, 10"]


def test_candidates_walk_the_grid_that_is_named(tmp_path: Path) -> None:
    text = "Tweedie() on cosine"
    run(["cube3"], tmp_path, 10, 1, [2], [text])
    own, model = {row.contender: row for row in read(tmp_path)}, tl.load("cube3")
    assert isinstance(model, Joint)
    assert set(own) == {AUTO, TWEEDIE, text}
    law = tl.exact.law(model, tl.Tweedie(), plan(model, tl.Tweedie(), nfe=2, grid=tl.grids.cosine))
    assert own[text].value == pytest.approx(kl(model.p0, law), rel=1e-9)
    assert own[text].value != pytest.approx(own[TWEEDIE].value, rel=1e-3)


def test_the_table_says_who_is_ahead_and_by_how_much() -> None:
    auto = Row("m", 4, 1, 10, AUTO, "Multistep()", 4.0, "nll", 0.1, 0.01, 0.0, 0.0, 0)
    plain = replace(auto, contender=TWEEDIE, value=0.12, behind=-0.02, behind_error=0.015)
    assert cell([auto, plain]) == "+0.1000 ± 0.0100 / +0.1200 ± 0.0100"
    near = replace(auto, contender="near", value=0.08, behind=0.02, behind_error=0.015)
    ahead = replace(near, contender="ahead", behind_error=0.005)
    assert cell([auto, plain, near]) == cell([auto, plain])
    assert cell([auto, plain, near, ahead]).endswith("; perhaps behind ahead by 0.0200 ± 0.0050 in nll")
    assert cell([auto, replace(plain, surely=1)]).startswith("**")
    sure = replace(ahead, surely=1)
    assert cell([auto, plain, sure]).endswith("; surely behind ahead by 0.0200 ± 0.0050 in nll")


@pytest.mark.antibodies
def test_a_completion_is_the_chain_given_its_beginning() -> None:
    part, whole = completion("sapiens-vh"), antibodies.load("sapiens-vh")
    given, rest = antibodies.GIVEN, len(antibodies.FREE)
    x = torch.full((2, rest), whole.process.states)
    x[1, ::3] = torch.arange(len(x[1, ::3])) % whole.process.states
    chain = torch.cat([antibodies.template(whole)[:given].expand(2, -1), x], 1)
    now, every = torch.tensor([1.0, 0.5], dtype=torch.float64), torch.arange(2 * rest)
    expected = whole(chain, now).logits(torch.arange(chain.numel())).view(2, whole.length, -1)[:, given:]
    torch.testing.assert_close(part(x, now).logits(every).view(2, rest, -1).to(expected), expected)
    assert tl.recommend(part, 4).solver == tl.recommend(whole, 4).solver
