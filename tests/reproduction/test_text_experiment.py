"""The experiments on text, on models whose samples are known: letters that do not depend on each other."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thetaleap as tl
from thetaleap.evaluation.judges.ngram import NGram, fit
from thetaleap.evaluation.metrics.digits import digit_distance
from thetaleap.evaluation.metrics.sequences import Measured
from thetaleap.models.hf.masked_lm import Letters
from thetaleap.reproduction import paper, positivity, text, theta
from thetaleap.reproduction.methods import budgets_by_ratio, budgets_of
from thetaleap.reproduction.pages import describe
from thetaleap.reproduction.positivity import HALVES, Watched
from thetaleap.reproduction.rules import Claim, Report
from thetaleap.reproduction.study import Row, Study, compare
from thetaleap.reproduction.study import row as made
from thetaleap.reproduction.text import COLUMNS, LEGACY, USED, claims_of, critic_of, facts

LAW = (0.5, 0.3, 0.15, 0.05)
LENGTH, NUM, BUDGETS = 24, 40, (4, 9)
ALARM = 8
"""Standard errors, estimated from 40 samples, beyond which by chance is less than 1e-8 (Student's t)."""
SUREST = ("parallel decoding", "Semi-AR (confidence)")
"""These keep what is likely, and draw the rest again."""


def letters(process: Any = None, length: int = LENGTH) -> Any:
    """A model that finds each letter as likely as LAW says, whatever the others are."""

    def network(x: Tensor, t: Tensor) -> Tensor:
        return torch.tensor(LAW).log().expand(*x.shape, 4)

    process = process or tl.Masked(4)
    return tl.from_network(process, length=length, network=network, time_free=True, tokenizer=Letters("abcd"))


def unigrams() -> NGram:
    """A judge that knows how often letters are, and not well."""
    return fit(torch.tensor([0] * 30 + [1] * 30 + [2] * 25 + [3] * 15), "abcd", [1])


def likely() -> float:
    """The perplexity of LAW under that judge."""
    nats = unigrams().nats([[0], [1], [2], [3]])
    return math.exp(float((nats * torch.tensor(LAW, dtype=torch.float64)).sum()))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("text") / "made"
    given: dict[str, Any] = {"model": letters(), "judge": unigrams(), "budgets": BUDGETS, "legacy": True}
    return text.run(folder, num=NUM, seed=1, progress=False, **given), folder


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_files_agree(ran: tuple[Report, Path]) -> None:
    report, folder = ran
    names = ["text-samples.jsonl", "text.csv", "text.json", "text.md", "text.png"]
    assert sorted(path.name for path in report.files) == names == sorted(path.name for path in folder.iterdir())
    rows, card = rows_of(folder, "text"), json.loads((folder / "text.json").read_text())
    any_budget = ("first-hitting", "exact in few rounds")
    wanted = [(m, n) for m in USED + LEGACY for n in ([""] if m in any_budget else [str(n) for n in BUDGETS])]
    assert [(row["method"], row["nfe"]) for row in rows] == wanted
    page = (folder / "text.md").read_text()
    for row, entry in zip(rows, card["rows"], strict=True):
        assert {key: str(value if value is not None else "") for key, value in entry.items()} == row
        assert f"| {row['method']} | {row['nfe'] or '-'} | {float(row['evaluations']):.1f} |" in page
    for table in paper.TEXT.values():
        assert f"{table.about}." in page
        assert f"| tau-leaping | {' | '.join(f'{v:g}' for v in table.values['tau-leaping'].values())} |" in page
    assert "None of this was measured here" in page
    assert "In the paper's main text theta-RK-2 has 36.33 at 1024 evaluations, not 33.971." in page
    assert card["paper"]["unigram entropy"]["values"]["FHS"]["16"] == 7.843
    assert [claim["verdict"] for claim in card["claims"]] == [claim.verdict for claim in report.claims]
    samples = [json.loads(line) for line in (folder / "text-samples.jsonl").read_text().splitlines()]
    assert len(samples) == 2 * len(rows)
    assert all(len(one["text"]) == LENGTH and set(one["text"]) <= set("abcd") for one in samples)
    assert (folder / "text.png").read_bytes().startswith(b"\x89PNG")


def test_figures_are_those_of_the_law(ran: tuple[Report, Path]) -> None:
    """Of methods that draw letters as the model says; false alarm below 1e-6 for all rows."""
    for row in rows_of(ran[1], "text"):
        value, error = float(row["perplexity"]), float(row["perplexity_se"])
        assert float(row["bits"]) == pytest.approx(math.log2(value))
        assert float(row["bits_se"]) == pytest.approx(math.log2(1 + error / value), rel=0.05)
        assert row["ratio"] == (str(int(row["nfe"]) / LENGTH) if row["nfe"] else "")
        if row["kind"] != "legacy" and row["method"] not in SUREST:
            assert abs(value - likely()) < ALARM * error
        budget = int(row["nfe"]) if row["nfe"] else LENGTH
        assert int(row["most_evaluations"]) <= budget
        assert 1 < float(row["entropy"]) < 2
    exact = rows_of(ran[1], "text")[0]
    assert (float(exact["evaluations"]), exact["paper_gpt2"], exact["paper_entropy"]) == (LENGTH, "109.406", "7.717")


def test_what_is_said(ran: tuple[Report, Path]) -> None:
    report, said = ran[0], " ".join(ran[0].text.split())
    assert "Text of the model given, 40 samples of 24 tokens in each row" in said
    assert "thetaleap auto" in said
    assert "Of our methods the nearest to exact sampling" in said
    assert "Semi-AR is in blocks of 6." in said, "four blocks, as the smallest budget has four steps"
    verdict = {claim.paper: claim.verdict for claim in report.claims}
    assert verdict["Euler and Tweedie tau-leaping perform similarly"] == "agrees"
    figures = [claim for claim in report.claims if claim.paper.startswith("the figures themselves")]
    assert [claim.verdict for claim in figures] == ["needs weights"] * 3
    assert all("needs RADD's weights and the judge" in claim.found for claim in figures)
    assert all(claim.command.startswith("thetaleap reproduce text --model radd:FOLDER") for claim in figures)
    trapezoidal = next(claim for claim in report.claims if "than Euler" in claim.paper)
    assert trapezoidal.verdict == "level", "all draw the same law"
    assert "indistinguishable from Euler at 4 and 9" in trapezoidal.found


def test_without_masks(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": letters(tl.Uniform(4)), "judge": unigrams(), "num": 4, "progress": False}
    report = text.run(tmp_path, budgets=(4,), **given)
    known = {row["method"] for row in rows_of(tmp_path, "text")}
    assert {"theta-Trapezoidal", "thetaleap auto", "Tweedie tau-leaping"} < known
    assert not {"first-hitting", "parallel decoding", "low discrepancy"} & known
    assert "Not for this model, which has no masks: first-hitting" in " ".join(report.text.split())
    with pytest.raises(ValueError, match="legacy=True: is for masked models"):
        text.run(tmp_path, legacy=True, **given)


# --- its words, from rows


def row(method: str, nfe: int | None, value: float, entropy: float = 7.0, error: float = 1.0, **more: Any) -> Row:
    """Perplexity with its error, and bits per token as these give it."""
    figures = {"perplexity": Measured(value, error), "bits": Measured(math.log2(value), error / value / math.log(2))}
    figures |= {"entropy": Measured(entropy, 0.01), "repetition": Measured(0.0, 0.0)}
    told = {"kind": "paper", "ratio": None, "paper_gpt2": None, "paper_llama": None, "paper_entropy": None, "num": 10}
    return made(method, nfe=nfe, evaluations=float(nfe or 1024), **told | figures | more)


def found(rows: list[Row], words: str, **settings: Any) -> Claim:
    told = {"model": "m", "judge": "j", "length": 24, **settings}
    [claim] = [claim for claim in claims_of(Study.of("text", rows), told) if words in claim.paper]
    return claim


def test_verdicts_follow_the_numbers() -> None:
    own, other = "theta-Trapezoidal", "tau-leaping"
    words = "lower perplexity than tau-leaping"
    clear = [row(own, 16, 50), row(own, 32, 40), row(other, 16, 60), row(other, 32, 41)]
    assert found(clear, words).verdict == "agrees"
    assert found(clear, words).found.startswith(
        "on m under j: theta-Trapezoidal is below tau-leaping at 16 and indistinguishable from tau-leaping at 32 in bits "
        "per token (at 32: theta-Trapezoidal 5.322 ± 0.036, entropy 7.00; tau-leaping 5.358 ± 0.035, entropy 7.00); over all budgets"
    )
    assert found([*clear, row(own, 64, 50), row(other, 64, 30)], words).verdict == "differs"
    assert found([row(own, 16, 50), row(other, 16, 51)], words).verdict == "undecided"
    assert found([row(own, 16, 50)], words).found == "this run has not both; they are for masked models"
    assert found([row("Euler", 16, 9), row("Tweedie tau-leaping", 16, 20)], "perform similarly").verdict == "differs"
    # the paper's table: theta-RK-2 is above tau-leaping
    order = [row("theta-RK-2", 16, 60), row(other, 16, 50)]
    assert found(order, "by its own table theta-RK-2 is above tau-leaping in perplexity, at 7 of 7").verdict == "agrees"


def test_budgets_together_and_margins() -> None:
    def level(method: str, bits: float) -> list[Row]:
        return [row(method, nfe, 50, bits=Measured(bits, 0.06)) for nfe in (16, 32, 64, 128)]

    # four budgets with an error of 0.085 each have one of 0.042 together
    words, euler = "lower perplexity than Euler", level("Euler", 5.0)
    assert found([*level("theta-Trapezoidal", 4.8), *euler], words).verdict == "agrees"
    assert found([*level("theta-Trapezoidal", 5.2), *euler], words).verdict == "differs"
    unsure = found([*level("theta-Trapezoidal", 4.9), *euler], words)
    assert unsure.verdict == "undecided"
    assert unsure.found.endswith(
        "; over all budgets -0.100 ± 0.042 bits per token; what is below 0.05 does not matter; more samples may tell"
    )
    assert unsure.number == "-0.100 ± 0.042 bits per token"
    # the paper has 52.4 against 86.3: 0.72 bits
    both, words = [*euler, *level("Tweedie tau-leaping", 5.1)], "tau-leaping beats Euler and Tweedie"
    assert found([*level("tau-leaping", 4.3), *both], words).verdict == "agrees"
    level_with = found([*level("tau-leaping", 5.0), *both], words)
    assert level_with.verdict == "differs"
    assert level_with.found.endswith("over all budgets -0.050 ± 0.037 bits per token, where the paper has -0.72")


def test_exact_sampling_and_entropy() -> None:
    exact = row("first-hitting", None, 110, 7.7)
    low, same = row("theta-Trapezoidal", 1024, 30, 6.4), row("theta-Trapezoidal", 1024, 110, 7.7)
    for words in ("than exact sampling (FHS)", "is then below that of exact sampling"):
        assert found([exact, low], words).verdict == "agrees"
        assert found([exact, same], words).verdict == "differs"
        assert found([low], words).verdict == "undecided"
    unsure = row("theta-Trapezoidal", 1024, 90, 7.0, error=30.0, entropy_se=0.3)
    for words in ("than exact sampling (FHS)", "is then below that of exact sampling"):
        assert found([exact, unsure], words).verdict == "undecided", "both 0 and the margin are possible"
    said = sentences([exact, row("Euler", 16, 150, 7.9), low])
    assert "- At 16 evaluations Euler has the lowest perplexity, 150.0 ± 1.0 (entropy 7.900 ± 0.010)." in said
    assert "- In both indistinguishable from it: none." in said
    assert "- Lower in entropy than exact sampling: theta-Trapezoidal at 1024." in said
    assert "- In both indistinguishable from it: theta-Trapezoidal at 1024." in sentences([exact, same])
    assert compare("entropy", exact, low) == 1


def sentences(rows: list[Row]) -> str:
    """All that the page says of rows."""
    settings = {
        "model": "m",
        "judge": "j",
        "length": 24,
        "num": {"a": 10},
        "block": 2,
        "reference": None,
        "left out": [],
    }
    study = Study.of("text", rows)
    told = facts(study, settings) | {"claims": [], "settings": settings}
    return " ".join(describe("text", study, COLUMNS, **told).split())


def test_the_paper_s_own_model() -> None:
    told = {"model": "radd:folder", "judge": "gpt2-large", "length": 1024}
    near = [row("Euler", 128, 90, paper_gpt2=86.276), row("tau-leaping", 128, 50, error=0.5, paper_gpt2=52.366)]
    met = found(near, "GPT-2 large (the full table", **told)
    assert (met.verdict, met.found) == ("agrees", "ours are 0.95 to 1.04 times the paper's, over 2 rows")
    far = [row("Euler", 128, 190, paper_gpt2=86.276)]
    assert found(far, "GPT-2 large (the full table", **told).verdict == "differs"
    unsure = [row("Euler", 128, 90, error=4.0, paper_gpt2=86.276)]
    assert found(unsure, "GPT-2 large (the full table", **told).verdict == "undecided"
    assert found(near, "LLaMA 3 8B", **told).verdict == "needs weights"
    assert found(near, "unigram entropy", **told | {"judge": "llama-3-8b"}).verdict == "undecided"
    both = [row("Euler", 128, 90, 7.4, paper_entropy=7.446, paper_llama=91.051)]
    assert found(both, "unigram entropy", **told | {"judge": "llama-3-8b"}).verdict == "agrees"


def test_judges_and_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert critic_of("shakespeare-uniform", None).name == "plays"
    assert critic_of("radd:folder", "plays").name == "plays"
    monkeypatch.setattr(text, "installed", lambda *names: False)
    with pytest.raises(ValueError, match=r"judge=None: say who judges the text of radd:folder: smollm2 \(a package"):
        critic_of("radd:folder", None)
    assert budgets_by_ratio(128) == [2, 4, 8, 16, 32, 64, 128]
    assert budgets_by_ratio(1024) == list(paper.NFES), "the paper's own"
    assert budgets_of(None, budgets_by_ratio(8)) == [1, 2, 4, 8]
    assert budgets_of([9, 4, 4], [2]) == [4, 9]
    for wrong, message in (([], r"budgets=\[\]: give at least one"), ([4, 0], "budgets=0: give a whole number")):
        with pytest.raises(ValueError, match=message):
            budgets_of(wrong, [2])


def test_more_samples_where_methods_differ(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": letters(length=32), "judge": unigrams(), "budgets": (16, 32)}
    text.run(tmp_path, progress=False, **given)
    counts = {(row["nfe"], row["num"]) for row in rows_of(tmp_path, "text")}
    assert counts == {("", "32"), ("16", "64"), ("32", "32")}
    assert "32 to 64 samples of 32 tokens" in (tmp_path / "text.md").read_text()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num=1: give a whole number of at least 2"):
        text.run(tmp_path, num=1, model=letters())
    mute = tl.from_network(tl.Masked(4), length=8, network=letters(length=8).evaluate, time_free=True)
    with pytest.raises(ValueError, match="its tokens are no text"):
        text.texts_of(mute, torch.zeros((1, 8), dtype=torch.int64))
    with pytest.raises(ValueError, match="model='none': "):
        text.run(tmp_path, model="none")


# --- positive intensities


def test_positive_shares(tmp_path: Path) -> None:
    """In one step from t = 1, theta-RK-2 has negative intensities where stage one has unmasked a position."""
    report = positivity.run(tmp_path, num=200, seed=3, progress=False, model=letters(length=64), budgets=(3, 8))
    rows = {(one["method"], one["nfe"]): one for one in rows_of(tmp_path, "positivity")}
    goes = 0.333 * math.exp(-0.333)
    # of the 12800 positions 1 - e^-0.999 are looked at: a false alarm is beyond six standard errors
    unusual = 600 * math.sqrt(goes * (1 - goes) / (12_800 * (1 - math.exp(-0.999))))
    assert float(rows["theta-RK-2 (1/3)", "3"]["positive"]) == pytest.approx(100 * (1 - goes), abs=unusual)
    for method in (*HALVES, "theta-Trapezoidal (1/3)"):
        assert float(rows[method, "3"]["positive"]) == 100
    assert len(rows) == 8
    for value in (0.2, 0.5):
        one, two = (
            tl.sample(letters(), solver, nfe=9, num=4).x for solver in (Watched(value), tl.RK2(value, "reject"))
        )
        assert torch.equal(one, two), "watching changes nothing"
    assert sorted(path.name for path in report.files) == sorted(
        f"positivity.{end}" for end in ("csv", "json", "md", "png")
    )
    assert [claim.verdict for claim in report.claims] == [
        "undecided",
        "undecided",
        "differs",
        "needs weights",
    ]
    assert "The paper: nearly all extrapolated intensities" in " ".join(report.text.split())


def test_positive_claims() -> None:
    def verdicts(*values: float, model: str = "m") -> list[str]:
        rows = [
            made(
                method,
                nfe=nfe,
                positive=Measured(value, 0.1 if value < 100 else 0.0),
                **positivity._published(method, nfe),
            )
            for (method, nfe), value in zip([(m, n) for m in HALVES for n in (32, 1024)], values, strict=True)
        ]
        return [claim.verdict for claim in positivity.claims_of(Study.of("p", rows), {"model": model})]

    assert verdicts(100, 100, 96, 99)[:3] == ["agrees", "agrees", "differs"]
    assert verdicts(100, 98, 94, 94)[:3] == ["differs", "undecided", "agrees"]
    assert verdicts(90, 99, 99, 96)[:3] == ["agrees", "differs", "agrees"]
    assert verdicts(99.9, 100, 95.1, 96)[0] == "undecided", "95 is within three standard errors"
    assert verdicts(100, 100, 96, 99)[3] == "needs weights"
    assert verdicts(100, 100, 96, 99, model="radd:folder")[3] == "agrees", "95.67 ± 4.8 and 99.43 ± 0.9"
    assert verdicts(100, 100, 96, 90, model="radd:folder")[3] == "differs"


# --- theta


def test_theta_on_text(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": letters(), "judge": unigrams(), "thetas": (0.3, 0.8, 1.0), "budgets": (5,)}
    report = theta.run(tmp_path, num=4 * NUM, seed=4, progress=False, **given)
    rows = rows_of(tmp_path, "theta")
    assert [(one["method"], one["theta"]) for one in rows] == [
        *(("theta-RK-2", value) for value in ("0.3", "0.8", "1.0")),
        *(("theta-Trapezoidal", value) for value in ("0.3", "0.8")),
        ("thetaleap auto", ""),
    ]
    for one in rows:
        assert abs(float(one["perplexity"]) - likely()) < ALARM * float(one["perplexity_se"])
        assert 1 < float(one["entropy"]) < 2
    assert [claim.verdict for claim in report.claims] == ["agrees", "agrees", "level"], "all draw the same law"
    assert sorted(path.name for path in report.files) == ["theta.csv", "theta.json", "theta.md", "theta.png"]
    assert json.loads((tmp_path / "theta.json").read_text())["settings"]["thetas"] == [0.3, 0.8, 1.0]
    with pytest.raises(ValueError, match=r"theta=1\.2: must lie in \(0, 1\]"):
        theta.run(tmp_path, thetas=(0.5, 1.2))


def test_theta_on_images(tmp_path: Path) -> None:
    """A model that knows the image of each class: whatever theta, samples are those."""
    shown = torch.randint(0, 8, (10, 196), generator=torch.Generator().manual_seed(0))
    known = torch.where(torch.nn.functional.one_hot(shown, 8) == 1, 0.0, -1e4)

    def network(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        return known[labels]

    model = tl.from_network(tl.Masked(8), length=196, network=network, time_free=True, shape=(14, 14), classes=10)
    report = theta.run(tmp_path, num=47, progress=False, model=model, thetas=(0.4, 0.7), budgets=(4,))
    wanted = digit_distance(shown[torch.arange(47) % 10])
    for one in rows_of(tmp_path, "theta"):
        assert float(one["distance"]) == pytest.approx(wanted.value)
        assert "entropy" not in one
        assert float(one["bias"]) == pytest.approx(0, abs=1e-6 * wanted.value), (
            "nothing is left to chance within a class"
        )
        assert float(one["distance_se"]) == pytest.approx(0, abs=1e-6 * wanted.value)
    assert "on images" in report.claims[0].paper
    other = tl.from_network(tl.Masked(3), length=4, network=lambda x, t: x, shape=(2, 2))
    with pytest.raises(ValueError, match=r"model=\(2, 2\): give one of 10 digits, 14 x 14 pixels in 8 greys$"):
        theta.run(tmp_path, num=47, model=other)
    with pytest.raises(ValueError, match="num=20: give a whole number of at least 40"):
        theta.run(tmp_path, num=20, model=model)


def test_theta_claims() -> None:
    def at(value: float, theta_: float, method: str = "theta-RK-2", nfe: int = 16) -> Row:
        return made(method, model="digits", theta=theta_, nfe=nfe, num=120, distance=Measured(value, 1.0), bias=2.0)

    def claims(rows: list[Row]) -> list[Claim]:
        return theta.claims_of(Study.of("theta", rows), {"digits": "distance"})

    def verdicts(rows: list[Row]) -> list[str]:
        return [claim.verdict for claim in claims(rows)]

    flat = [at(50, 0.3, "theta-Trapezoidal"), at(51, 0.9, "theta-Trapezoidal")]
    assert verdicts([at(50, 0.2), at(60, 0.8), *flat]) == ["agrees", "agrees", "agrees"]
    assert verdicts([at(65, 0.2), at(50, 0.8), *flat]) == ["differs", "agrees", "differs"]
    assert verdicts([at(58, 0.2), at(50, 0.8), *flat])[0] == "undecided", "8 ± 1.4, where 7.5 would matter"
    steep = [at(70, 0.3, "theta-Trapezoidal"), at(50, 0.9, "theta-Trapezoidal")]
    assert verdicts([at(50, 0.5), at(50, 0.8), *steep]) == ["undecided", "differs", "undecided"]
    within, _, extrapolated = claims([at(65, 0.2), at(50, 0.8), *flat])
    assert within.found == (
        "digits: the best within is above the best of all at 16 in distance (at 16: theta-RK-2 (0.2) 65.0 ± 1.0; "
        "theta-RK-2 (0.8) 50.0 ± 1.0); the difference is +15.0 ± 1.4; what is below 7.5 does not matter"
    )
    assert extrapolated.found.startswith("digits: the best below 1/2 is above the best above at 16 in distance")
