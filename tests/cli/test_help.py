"""The tables of the command line, its help and its completion."""

from __future__ import annotations

import contextlib
import inspect
import re
from dataclasses import fields

import pytest

import thetaleap as tl
from tests.cli.test_cli import call, ran
from thetaleap.cli.base import COMMANDS, command_of
from thetaleap.cli.catalog import described
from thetaleap.cli.completion import outline
from thetaleap.cli.sample import sample
from thetaleap.control import Method, control_of
from thetaleap.core.processes import Masked, Uniform
from thetaleap.core.rate_matrix import RateMatrix
from thetaleap.models import ADAPTERS, BUILT_IN
from thetaleap.registry import SOLVERS


def test_models() -> None:
    head, *rows = ran("models").splitlines()
    assert re.split(" {2,}", head.strip()) == ["model", "process", "length", "states", "what it is"]
    there = {**BUILT_IN, **{f"{kind}:SOURCE": entry for kind, entry in ADAPTERS.items()}}
    for row, (name, entry) in zip(rows, there.items(), strict=True):
        if name in ADAPTERS or not entry.process:  # they come from elsewhere
            assert re.split(" {2,}", row.strip()) == [name, entry.about]
            continue
        model, process = tl.load(name), tl.load(name).process
        expected = [name, type(process).__name__, str(model.length), str(process.states), entry.about]
        assert re.split(" {2,}", row.strip()) == expected


def test_solvers() -> None:
    text = ran("solvers")
    for name, entry in SOLVERS.items():
        solver = entry.load()
        assert re.search(rf"^{name} .*  {re.escape(solver.when)} *$", text, re.M)
        assert re.search(rf"^ +{re.escape(described(entry).call)} *$", text, re.M)
    assert re.search(r"^trapezoidal +2  any ", text, re.M)
    assert re.search(r"^first-hitting +varies  Masked ", text, re.M)


@pytest.mark.parametrize("name", SOLVERS)
def test_processes_are_those_that_a_solver_accepts(name: str) -> None:
    solver, accepted = SOLVERS[name].load()(), []
    for process in (Masked(2), Uniform(2), RateMatrix.ring(3)):
        with contextlib.suppress(ValueError):
            control_of(solver).check(process, length=2)
            accepted.append(type(process).__name__)
    kinds = {"masked": ["Masked"], "without masks": ["Uniform", "RateMatrix"]}
    assert accepted == kinds.get(solver.processes, ["Masked", "Uniform", "RateMatrix"])


def test_every_solver_of_the_library_has_a_name() -> None:
    public = {value for value in (getattr(tl, name) for name in tl.__all__) if inspect.isclass(value)}
    solvers = {value for value in public if issubclass(value, Method)}
    named = {entry.load() for entry in SOLVERS.values()}
    assert named == solvers - {tl.Blocks}, "blocks are an option of all of them"
    for solver in named:  # and its hyper-parameters are options
        assert {field.name for field in fields(solver)} <= set(inspect.signature(sample).parameters)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("args", ["models", "solvers", "--help", "sample --help"])
def test_fits_the_terminal(args: str, width: int) -> None:
    text = ran(*args.split(), COLUMNS=str(width))
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    text = ran(command, "--help")
    assert f"Example: thetaleap {command}" in text
    assert command in ran("--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short_for_it_too_and_shows_flags_as_flags(command: str) -> None:
    text = ran(command, "-h")
    assert text == ran(command, "--help")
    options = [line.split() for line in text.splitlines() if re.match(r"│ +(\* +)?--", line)]
    assert options
    assert not [word for words in options for word in words[:5] if re.fullmatch(r"<\w+>", word)]
    assert "-h" in next(words for words in options if "--help" in words)


@pytest.mark.parametrize("command", COMMANDS)
def test_completion_knows_the_options(command: str) -> None:
    """Those of the command, though it is not imported."""
    real, light = command_of(command), outline(command)
    spelt = {(one.param_type_name, *one.opts, getattr(one, "is_flag", False)) for one in real.params}
    assert {(one.param_type_name, *one.opts, getattr(one, "is_flag", False)) for one in light.params} == spelt


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sam", ["sample"]),
        ("sample cha", ["chain64", "chain2-64"]),
        ("sample chain64 --solv", ["--solver"]),
        ("sample chain64 --solver a", ["auto", "adams-bashforth"]),
        ("chat llada:x --planner low", ["low-discrepancy"]),
        ("train x --comp", ["--compiled"]),
    ],
)
def test_completion(line: str, words: list[str]) -> None:
    asked = {"_THETALEAP_COMPLETE": "complete_bash", "COMP_WORDS": f"thetaleap {line}"}
    assert call(**asked, COMP_CWORD=str(len(line.split()))).stdout.split() == words


def test_help_says_whose_hyper_parameter_it_is() -> None:
    text = ran("sample", "--help")
    assert "For rk2, trapezoidal, exponential-trapezoidal. [default: 0.5]" in text
    assert "For tau-leaping, rk2, trapezoidal. [default: exact]" in text
    assert "For parallel-decoding. [default: 4.5]" in text


def test_version() -> None:
    assert ran("--version") == f"thetaleap {tl.__version__}\n"
