"""One page with every experiment: it holds all tables, figures and claims, and needs no other file."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from thetaleap.evaluation.figures import write_csv
from thetaleap.reproduction import everything, toy, uniformization
from thetaleap.reproduction.rules import VERDICTS, Claim, Report


class Checker(HTMLParser):
    """Every tag that is opened is closed."""

    alone = ("meta", "img", "!doctype")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.alone:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_of_two_experiments(tmp_path: Path) -> None:
    runs = {
        "toy": ("errors <and> steps", lambda folder, **how: toy.run(folder, steps=(4, 8), **how)),
        "uniformization": ("evaluations", lambda folder, **how: uniformization.run(folder, intervals=4, **how)),
    }
    report = everything.run(tmp_path, experiments=runs, num=300, seed=1, progress=False)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert "errors &lt;and&gt; steps" in text
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert [base64.b64decode(data)[:4] for data in pictures] == [b"\x89PNG"] * 2
    assert "http" not in text
    claims = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert len(claims) == len(report.claims) > 5
    assert {claim["verdict"] for claim in claims} <= set(VERDICTS)
    assert (tmp_path / "toy" / "toy.csv").is_file()
    assert "2 experiments" in report.text
    quadratic = next(claim for claim in report.claims if "quadratically" in claim.paper)
    slope = float(re.findall(r"theta-Trapezoidal (-\d\.\d\d)", quadratic.found)[0])
    assert (quadratic.verdict == "agrees") == (abs(slope + 2) <= 0.3)
    second = next(claim for claim in report.claims if "second-order" in claim.paper)
    slope = float(re.findall(r"theta-Trapezoidal (-\d\.\d\d)", second.found)[0])
    assert (second.verdict == "agrees") == (slope <= -1.8)


def test_long_tables_are_cut_and_numbers_shortened(tmp_path: Path) -> None:
    def run(folder: Path, **how: object) -> Report:
        folder.mkdir()
        rows = [{"name": f"<row {n}>", "value": 1 / 3} for n in range(100)]
        return Report("words & more", [write_csv(folder / "rows.csv", rows)], [Claim("a", "differs", "b")])

    def stop(folder: Path, **how: object) -> Report:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # what was done before is there
        everything.run(tmp_path, experiments={"one": ("about", run), "two": ("stopped", stop)})
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "&lt;row 59&gt;" in text
    assert "&lt;row 60&gt;" not in text
    assert "40 more rows" in text
    assert "0.33333<" in text
    assert 'class="differs"' in text


def test_too_few_samples_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^num=39: give a whole number of at least 40"):
        everything.run(tmp_path / "all", experiments={}, num=39)
    assert not (tmp_path / "all").exists()
