"""One page with every experiment: it holds all tables, figures and claims, and needs no other file."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pandas import read_csv

from thetaleap.evaluation.figures import write_csv
from thetaleap.reproduction import everything, toy, uniformization
from thetaleap.reproduction.everything import page_of
from thetaleap.reproduction.paper import data
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
    assert (tmp_path / "paper.md").read_text(encoding="utf-8") == page_of(tmp_path / "paper"), "from the tables alone"
    assert {file.name for file in (tmp_path / "paper").iterdir()} == {
        "claims.csv",
        "runs.csv",
        "toy.csv",
        "toy.png",
        "uniformization.csv",
        "uniformization.png",
    }
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


# --- the page in the documents

DOCS = Path(__file__).parents[2] / "docs"
CLAIM = {"paper": "A is below B", "short": "A below B", "found": "it is", "number": "-1.0 ± 0.1", "samples": 64}
OPEN = {"command": "thetaleap reproduce text", "evaluations": 3.6e6, "flops": 1e11}


def tables(folder: Path, verdicts: list[str], full: bool = True) -> Path:
    """Those of a run, with claims that have these verdicts."""
    folder.mkdir()
    claims = [{"experiment": "text", **CLAIM, "verdict": v, **(OPEN if v == "needs weights" else {})} for v in verdicts]
    write_csv(folder / "claims.csv", [{"command": None, "evaluations": None, "flops": None, **one} for one in claims])
    about = {"minutes": 3.0, "full": full, "seed": 0, "models": "m 123", "version": "0.1.0"}
    write_csv(folder / "runs.csv", [{"experiment": "text", **about}])
    row = {
        "nfe": 8,
        "ratio": 0.0625,
        "num": 64,
        "network": 4.0,
        "perplexity": 12.34,
        "perplexity_se": 0.5,
        "entropy": 4.0,
    }
    rows = [{"method": "tau-leaping", "kind": "paper", **row, "perplexity": 14.0}]
    rows += [{"method": "thetaleap auto", "kind": "ours", **row}]
    write_csv(folder / "text.csv", [*rows, {**row, "method": "first-hitting", "kind": "paper", "nfe": None}])
    return folder


def test_the_page_of_tables(tmp_path: Path) -> None:
    verdicts = ["agrees", "differs", "level", "undecided", "needs weights"]
    folder = tables(tmp_path / "paper", verdicts)
    assert "![" not in page_of(folder)
    (folder / "text.png").touch()
    page = page_of(folder)
    assert page.count("](paper/text.png)") == 1
    assert page.startswith("# The paper, claim by claim")
    for verdict in verdicts:
        assert f"**1 {verdict}**" in page
    assert "of 5 claims" in page
    assert "| text: A below B | **agrees** | -1.0 ± 0.1 | text: A below B | **differs** | -1.0 ± 0.1 |" in page
    assert "one look only" not in page
    assert "| *thetaleap auto* | 12.34 ± 0.50 | - |" in page
    assert "| first-hitting | - | 12.34 ± 0.50 |" in page
    line = "| text, perplexity | 8 | 0.062 | - | 12.34 ± 0.50 | 12.34 ± 0.50 | thetaleap auto |"
    assert line in page, "the paper's method has no row, our advice has one"
    # 3.6e6 evaluations, of which the network ran for half, of 1e11 operations at 0.4 * 312e12 a second
    assert "| `thetaleap reproduce text` | 3.6e+06 | 0.4 |" in page
    assert "one look only" in page_of(tables(tmp_path / "once", ["agrees"], full=False))


def test_the_page_in_the_documents_is_made_of_the_tables_beside_it() -> None:
    assert (DOCS / "paper.md").read_text(encoding="utf-8") == page_of(DOCS / "paper")
    claims = read_csv(DOCS / "paper" / "claims.csv")
    assert sum(claims["verdict"] == "needs weights") <= 10
    assert set(claims["verdict"]) <= set(VERDICTS)


def test_at_most_ten_claims_need_weights() -> None:
    """Whatever is run: the others have rules that may decide them here."""
    entries = [entry for some in data("claims").values() for entry in some]
    needy = [entry for entry in entries if "needs" in entry]
    assert len(needy) <= 10
    assert all(entry["command"].startswith("thetaleap reproduce ") and entry["evaluations"] for entry in needy)
    assert all("rule" in entry for entry in entries if "needs" not in entry)


def test_too_few_samples_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^num=39: give a whole number of at least 40"):
        everything.run(tmp_path / "all", experiments={}, num=39)
    assert not (tmp_path / "all").exists()


def test_distances_compare_at_the_same_number_of_samples(tmp_path: Path) -> None:
    """A method with fewer samples is not the best, however small its distance; it is marked instead."""
    folder = tables(tmp_path / "paper", ["agrees"])
    about = {"minutes": 3.0, "full": True, "seed": 0, "models": "m 123", "version": "0.1.0"}
    write_csv(folder / "runs.csv", [{"experiment": name, **about} for name in ("text", "images")])
    row = {"nfe": 8, "ratio": 0.03, "network": 4.0, "distance_se": 2.0, "accuracy": 0.5}
    told = [("theta-Trapezoidal (1/3)", "paper", 512, 20.0), ("thetaleap auto", "ours", 512, 30.0)]
    told += [("low discrepancy", "ours", 64, 10.0)]
    names = ("method", "kind", "num", "distance")
    write_csv(folder / "images.csv", [{**row, **dict(zip(names, one, strict=True))} for one in told])
    page = page_of(folder)
    assert "| images, distance | 8 | 0.03 | 20.0 ± 2.0 | 30.0 ± 2.0 | 20.0 ± 2.0 | theta-Trapezoidal (1/3) |" in page
    assert "| *low discrepancy* | 10.0 ± 2.0 (64) |" in page
    assert "| *thetaleap auto* | 30.0 ± 2.0 |" in page


def test_images_say_how_far_exact_samples_are_and_what_holds_without_guidance(tmp_path: Path) -> None:
    """So that nobody takes a solver for the better one because it undoes some of the guidance."""
    folder = tables(tmp_path / "paper", ["agrees"])
    about = {"minutes": 3.0, "full": True, "seed": 0, "models": "m 123", "version": "0.1.0"}
    write_csv(folder / "runs.csv", [{"experiment": name, **about} for name in ("text", "images", "theta")])
    guided = {"kind": "paper", "num": 64, "nfe": 8, "ratio": 1.0, "network": 4.0, "distance_se": 20.0, "bias": 15.0}
    write_csv(folder / "images.csv", [{**guided, "method": "first-hitting, several at once", "distance": 120.0}])
    assert "overdoes" not in page_of(folder), "theta was not run"
    plain = {"num": 64, "nfe": 8, "evaluations": 8.0, "distance_se": 2.0}
    told = [("thetaleap auto", None, 18.0), ("theta-Trapezoidal", 0.3, 25.0), ("theta-Trapezoidal", 0.5, 21.0)]
    rows = [{**plain, "method": method, "theta": theta, "distance": value} for method, theta, value in told]
    write_csv(folder / "theta.csv", [*rows, {**plain, "method": "theta-RK-2", "theta": 0.3, "distance": 1.0}])
    page = page_of(folder)
    assert "which is exact, they are 105 ± 20 from real" in page
    assert "Without guidance `auto` is at\n18.0 ± 2.0 in 8 evaluations; the paper's method" in page
    assert "turned out best, is at 21.0 ± 2.0." in page
    write_csv(folder / "images.csv", [{**guided, "method": "first-hitting, several at once", "distance": 90.0}])
    assert "overdoes" not in page_of(folder), "75 ± 20 is not surely further than 18"
