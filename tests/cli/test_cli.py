"""The command line, as its users meet it: ``thetaleap sample``.

Tables and help are in test_help.py, ``reproduce`` and ``demo`` in test_reproduce.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import thetaleap as tl
from thetaleap import cli, files, sampling
from thetaleap.cli.preview import PREVIEW
from thetaleap.cli.sample import AS_NEEDED
from thetaleap.evaluation.choice import written
from thetaleap.registry import SOLVERS


def call(*args: Any, **env: str) -> Result:
    """Run a command in a wide terminal without colours."""
    plain = {"COLUMNS": "300", "FORCE_COLOR": None, "TERM": "dumb"}
    return CliRunner(env={**plain, **env}).invoke(cli.app, [str(arg) for arg in args], prog_name="thetaleap")


def ran(*args: Any, **env: str) -> str:
    """What a command that works prints, beside what ``auto`` is."""
    result = call(*args, **env)
    assert (result.exit_code, re.sub(r"^auto: .*\n", "", result.stderr)) == (0, ""), result.exception
    return result.stdout


def failed(*args: Any) -> str:
    """The one line by which a command refuses."""
    result = call(*args)
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert re.fullmatch(r"error: [^\n]+\n", result.stderr), result.stderr
    return result.stderr.removeprefix("error: ").rstrip("\n")


def budget(name: str) -> dict[str, Any]:
    return {} if name in AS_NEEDED else {"nfe": 9}


def options(given: dict[str, Any]) -> list[Any]:
    return [part for key, value in given.items() for part in ("--" + key.replace("_", "-"), value)]


# --- sample: what it draws is what the library draws


@pytest.mark.parametrize("model", ["cube3", "cube3-uniform"])
@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver(tmp_path: Path, name: str, model: str) -> None:
    solver, out = SOLVERS[name].load()(), tmp_path / "a.npy"
    args = ("sample", model, "--solver", name, *options(budget(name)), "--num", 5, "--seed", 3, "--out", out)
    if model == "cube3-uniform" and solver.processes == "masked":
        assert "needs a Masked process" in failed(*args)
        assert not out.exists()
        return
    if model == "cube3" and solver.processes == "without masks":
        assert "use ReMDM() here" in failed(*args)
        return
    ran(*args)
    expected = tl.sample(tl.load(model), solver, num=5, seed=3, **budget(name))
    np.testing.assert_array_equal(np.load(out), expected.x.numpy())


@pytest.mark.parametrize(
    ("args", "solver"),
    [
        (
            "--solver trapezoidal --theta 0.3 --rule reject --align displacement",
            tl.Trapezoidal(0.3, "reject", "displacement"),
        ),
        ("--solver rk2 --theta 1 --align cyclic", tl.RK2(1.0, align="cyclic")),
        ("--solver tau-leaping --rule reject", tl.TauLeaping("reject")),
        ("--solver parallel-decoding --randomness 0", tl.ParallelDecoding(0.0)),
        ("--solver semi-autoregressive --order random --block-length 2", tl.SemiAutoregressive("random", 2)),
    ],
)
def test_hyper_parameters(tmp_path: Path, args: str, solver: Any) -> None:
    out = tmp_path / "a.npy"
    text = ran("sample", "cube3", *args.split(), "--nfe", 9, "--num", 20, "--out", out)
    assert re.search(rf"^solver +{re.escape(written(solver))}$", text, re.M)
    np.testing.assert_array_equal(np.load(out), tl.sample(tl.load("cube3"), solver, nfe=9, num=20).x.numpy())


@pytest.mark.parametrize(
    "given",
    [
        {"steps": 3, "grid": "power", "delta": 0.01, "batch_size": 2, "num": 7},
        {"nfe": 8, "grid": "cosine", "seed": 2**64 - 1},
        {"nfe": 8, "grid": "logarithmic", "delta": 0.5},
        {"steps": 2},
    ],
)
def test_budget_and_grid(tmp_path: Path, given: dict[str, Any]) -> None:
    out = tmp_path / "a.npy"
    ran("sample", "cube3-uniform", "--solver", "trapezoidal", *options(given), "--out", out)
    grid = {"grid": getattr(tl.grids, given["grid"])} if "grid" in given else {}
    expected = tl.sample(tl.load("cube3-uniform"), tl.Trapezoidal(), **{"num": 16, **given, **grid})
    np.testing.assert_array_equal(np.load(out), expected.x.numpy())


def test_exact_samples_in_windows(tmp_path: Path) -> None:
    """As in Python; the card says how, and the summary in how many rounds."""
    out, ways = tmp_path / "x.jsonl", {"--exact": {"exact": True}, "--exact --window 4": {"exact": True, "window": 4}}
    for args, given in ways.items():
        text = ran("sample", "chain64", *args.split(), "--num", 2, "--out", out, "--force")
        columns, card = files.read_columns(out)
        expected = tl.sample("chain64", num=2, **given)
        assert columns["tokens"].tolist() == expected.x.tolist()
        assert (card["exact"], card["window"], card["solver"]) == (True, given.get("window", "auto"), SOLVER_OF_EXACT)
        assert re.search(rf"^rounds +{expected.rounds.double().mean():.1f} per sample", text, re.M)
        assert re.search(rf"^evaluated +{expected.spent.double().mean():.1f} per sample", text, re.M)
    again = ("sample", "chain64", "--exact", "--first", 2, "--num", 1, "--out", out)
    assert "--window 'auto' (the default): the samples in" in failed(*again)
    ran(*again, "--window", 4)
    args = ("sample", "chain64", "--solver", "multistep", "--nfe", 8, "--window", "3", "--num", 2)
    ran(*args, "--out", tmp_path / "a.npy")
    expected = tl.sample("chain64", tl.Multistep(), nfe=8, num=2, window=3)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected.x.numpy())


SOLVER_OF_EXACT = repr(tl.Tweedie(tl.LowDiscrepancy()))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--exact --nfe 4", "--nfe 4: --exact draws one position at a time; leave out one of the two"),
        ("--exact --solver tweedie", "--solver tweedie: --exact draws one position at a time"),
        ("--exact --theta 0.5", "--theta 0.5: --exact draws one position at a time"),
        ("--exact --block 8", "--block 8: --exact draws one position at a time"),
        ("--window 0", "--window 0: give a whole number, or auto"),
        ("--window many", "--window many: give a whole number, or auto"),
    ],
)
def test_wrong_windows(args: str, message: str) -> None:
    assert message in failed("sample", "chain64", *args.split())


def test_exact_needs_masks() -> None:
    assert "--exact: draws one position after the other, which is for masked models" in failed(
        "sample", "cube3-uniform", "--exact"
    )


@pytest.mark.parametrize(
    ("options", "nfe", "given"),
    [((), None, {}), (("--nfe", "5"), 5, {}), (("--template", "3 _ 4" + " 5" * 58), None, {"positions": 4})],
)
def test_auto_is_the_default(tmp_path: Path, options: tuple[str, ...], nfe: int | None, given: dict[str, Any]) -> None:
    """It says what it took in a line; --why says what was measured."""
    out, model = tmp_path / "x.jsonl", tl.load("chain64")
    advice = tl.recommend(model, nfe, **given)
    said = call("sample", "chain64", *options, "--num", 2, "--out", out)
    assert said.stderr == f"auto: {written(advice.solver)} at {advice.nfe} evaluations. {advice.reason}\n"
    columns, card = files.read_columns(out)
    assert (card["solver"], card["nfe"]) == (repr(advice.solver), advice.nfe)
    template = None if not given else torch.tensor([3, tl.FREE, 4, *[5] * 58, *[tl.FREE] * 3])
    assert columns["tokens"].tolist() == tl.sample(model, nfe=nfe, num=2, template=template).x.tolist()
    assert call("sample", "chain64", *options, "--why", "--num", 2).stderr.endswith(
        f"{advice.reason} {advice.evidence}\n"
    )


def test_each_format(tmp_path: Path) -> None:
    """All say how they were made, and what model made them."""
    expected = tl.sample(tl.load("shakespeare-char", length=9), tl.Tweedie(), nfe=2, num=3, seed=1, template=prompted())
    texts = [tl.load("shakespeare-char").tokenizer.decode(row) for row in expected.x.tolist()]
    common = ("--length", 9, "--solver", "tweedie", "--nfe", 2, "--num", 3, "--seed", 1, "--prompt", "To")
    who = {
        "model": "shakespeare-char",
        "solver": repr(tl.Tweedie()),
        "seed": 1,
        "version": tl.__version__,
        "prompt": "To",
    }
    walk = {"nfe": 2, "tolerance": None, "steps": None, "grid": "uniform", "delta": None}
    whole = {"nfe": expected.nfe.tolist(), "text": texts, "prompt": ["To"] * 3}
    held = {".parquet": whole, ".jsonl": whole, ".npy": {}, ".txt": {"text": texts}}
    assert held.keys() == files.WRITERS.keys()
    for ending, columns in held.items():
        path = tmp_path / f"a{ending}"
        ran("sample", "shakespeare-char", *common, "--out", path)
        found, card = files.read_columns(path)
        tokens = found.pop("tokens", None)
        assert tokens is None if ending == ".txt" else tokens.tolist() == expected.x.tolist()
        assert found == columns
        assert card == who | walk
        # whose model, and what was given, evaluate finds in the file
        figures = json.loads(ran("evaluate", path, "--per-sample", 1, "--json"))
        assert (figures["model"], figures["samples"], figures["positions"]) == ("shakespeare-char", 3, 7)
    assert np.load(tmp_path / "a.npy").tolist() == expected.x.tolist(), "numpy reads the tokens"
    assert len(list(tmp_path.iterdir())) == len(files.WRITERS)


def prompted() -> torch.Tensor:
    return torch.tensor([*tl.load("shakespeare-char").tokenizer.encode("To"), *[tl.FREE] * 7])


def test_summary(tmp_path: Path) -> None:
    args = ("sample", "cube3", "--solver", "uniformization", "--num", 4, "--out", tmp_path / "a.jsonl")
    text = ran(*args, COLUMNS="30")  # a narrow terminal must not break a path
    done = tl.sample(tl.load("cube3"), tl.Uniformization(), num=4)
    lines = dict(re.split(" {2,}", line) for line in text.splitlines())
    assert lines["model"] == "cube3"
    assert lines["solver"] == "Uniformization()"
    assert lines["samples"] == "4"
    mean, least, most = done.nfe.double().mean(), done.nfe.min(), done.nfe.max()
    assert lines["evaluations"] == f"{mean:.1f} per sample ({least} to {most})"
    assert lines["jumps per evaluation"] == f"{done.info['jumps per evaluation']:.4f}"
    assert re.fullmatch(r"\d+\.\d\d \(\d+\.\d samples per second\)", lines["seconds"])
    assert lines["file"] == str(tmp_path / "a.jsonl")


@pytest.mark.parametrize("width", [40, 120])
@pytest.mark.parametrize("num", [2, PREVIEW + 1])
def test_preview(width: int, num: int) -> None:
    """Nothing is cut: lines are broken, and it is said that there are more samples."""
    text = ran("sample", "chain64", "--solver", "tweedie", "--nfe", 4, "--num", num, COLUMNS=str(width))
    table, *rest = text.split("\nmodel ")
    head, *rows = table.splitlines()
    assert head.split() == ["sample", "nfe", "tokens"]
    assert max(map(len, rows)) <= width
    said = f"{PREVIEW} of {num} shown; --out FILE keeps all"
    assert (said in table) == (num > PREVIEW)
    samples = tl.sample(tl.load("chain64"), tl.Tweedie(), nfe=4, num=min(num, PREVIEW))
    both = zip(samples.nfe.tolist(), samples.x.tolist(), strict=True)
    words = [str(word) for n, (nfe, row) in enumerate(both) for word in (n, nfe, *row)]
    assert " ".join(rows).replace(said, "").split() == words
    assert rest[0].splitlines()[-1].split(maxsplit=1) == ["file", "none (keep them with --out samples.parquet)"]


def test_ten_digits() -> None:
    """All that were asked for are shown."""
    text = ran("sample", "mnist", "--solver", "tweedie", "--nfe", 1, "--num", 10, "--labels", "0,1,2", COLUMNS="80")
    pictures, _ = text.split("\nmodel ")
    assert "shown" not in pictures
    samples = tl.sample(
        tl.guided(tl.load("mnist"), 0.0, [n % 3 for n in range(10)]), tl.Tweedie(), nfe=1, num=10, progress=False
    )
    assert pictures.rstrip() == files.blocks(files.pictures(tl.load("mnist"), samples.x), columns=5).rstrip()


# --- sample: what it refuses


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.parqet", "did you mean '.parquet'? let it end with one of .parquet, .jsonl, .npy"),
        ("missing/a.npy", "does not exist; make it first"),
        ("folder.npy", "is a folder; give the name of a file"),
        ("old.npy", "exists already; give another name, or --force to replace it"),
        ("old.npy/a.npy", "is not a folder; write into one"),
        ("x" * 300 + ".npy", "cannot be written (File name too long); choose another place"),
    ],
)
def test_the_file_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "old.npy").write_bytes(b"old")
    monkeypatch.setattr(sampling, "sample", lambda *args, **kwargs: pytest.fail("sampling began"))
    assert message in failed("sample", "cube3", "--nfe", 4, "--out", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.npy", "old.npy"]
    assert (tmp_path / "old.npy").read_bytes() == b"old"


def test_force(tmp_path: Path) -> None:
    out = tmp_path / "old.npy"
    out.write_bytes(b"old")
    ran("sample", "cube3", "--nfe", 4, "--num", 2, "--solver", "tweedie", "--out", out, "--force")
    assert np.array_equal(np.load(out), tl.sample("cube3", tl.Tweedie(), nfe=4, num=2).x.numpy())


def interrupt(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["sampling", "writing"])
def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "sampling":
        monkeypatch.setattr(sampling, "sample", interrupt)
    else:
        monkeypatch.setitem(files.WRITERS, ".npy", interrupt)
    assert call("sample", "cube3", "--nfe", 4, "--out", tmp_path / "a.npy").exit_code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError])
def test_errors_of_others_keep_their_traceback(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise error("not the library's")

    monkeypatch.setattr(sampling, "sample", broken)
    result = call("sample", "cube3", "--solver", "euler", "--nfe", 4)
    assert (result.exit_code, result.stderr) == (1, "")
    assert type(result.exception) is error


def test_errors_are_red_in_a_terminal() -> None:
    result = call("sample", "cub3", "--nfe", 4, FORCE_COLOR="1", TERM="xterm", COLUMNS="50")
    assert result.stderr.startswith("\x1b[31merror: MODEL cub3: did you mean 'cube3'? ")
    plain = re.sub(r"\x1b\[\d+m", "", result.stderr).splitlines()
    assert max(map(len, plain)) <= 50
