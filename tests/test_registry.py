"""Solvers, planners and models by name: this package's own, and those of a package that a test makes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import thetaleap as tl
from thetaleap.cli.catalog import advice_markdown, from_class, from_source, markdown
from thetaleap.control import Method
from thetaleap.core.fields import knob_of
from thetaleap.evaluation.choice import parse
from thetaleap.registry import ADAPTERS, BUILT_IN, CORRECTORS, MODELS, PLANNERS, SOLVERS

ROOT = Path(__file__).parent.parent
OWN = [name for name, entry in SOLVERS.items() if not entry.packages]


# --- this package's own


@pytest.mark.parametrize("name", OWN)
def test_a_solver_s_source_says_what_its_class_does(name: str) -> None:
    assert from_source(SOLVERS[name]) == from_class(SOLVERS[name].load())
    assert parse(from_source(SOLVERS[name]).call) == SOLVERS[name].load()()
    assert from_source(SOLVERS[name]).when


@pytest.mark.parametrize("made", [one for parts in (SOLVERS, PLANNERS, CORRECTORS) for one in parts.loaded().values()])
def test_every_hyper_parameter_says_what_it_is(made: type) -> None:
    for field in fields(made):
        about = knob_of(field)
        assert about.help
        assert not about.help.endswith(".")
        if about.kind is None and field.name != "shape":
            assert about.range, field.name


@pytest.mark.parametrize("name", [name for name, model in BUILT_IN.items() if model.process])
def test_models_are_as_the_registry_says(name: str) -> None:
    model, said = tl.load(name), BUILT_IN[name]
    assert (said.process, said.length, said.states) == (
        type(model.process).__name__,
        model.length,
        model.process.states,
    )


def test_targets_exist() -> None:
    assert set(MODELS) >= {*BUILT_IN, *ADAPTERS}
    for registry in (SOLVERS, PLANNERS, CORRECTORS, MODELS):
        for name in registry.own:
            assert callable(registry[name].load())
    assert all(issubclass(made, Method) for made in SOLVERS.loaded().values())


def test_the_guide_has_the_tables_of_the_registry() -> None:
    """To mend it: python -c "from thetaleap.cli.catalog import markdown; print(markdown())"; advice_markdown likewise."""
    guide = (ROOT / "docs" / "solvers.md").read_text()
    assert markdown() in guide
    assert advice_markdown() in guide


# --- of another package

MODULE = '''
"""A package that adds a solver, a planner and a model."""
from dataclasses import dataclass

import thetaleap as tl
from thetaleap.core.fields import knob
from thetaleap.core.jumps import leap
from thetaleap.core.noise import Draw
from thetaleap.planners import FixedCount, Planner
from thetaleap.solvers import Solver, Step


@dataclass(frozen=True)
class Bold(Solver):
    """Tau-leaping under another name."""

    boldness: int = knob(2, "How bold it is", least=1)
    theta: str = "high"
    evaluations = 1
    when = "to be bold"

    def step(self, reverse, x, t, s, noise, memory):
        return Step(leap(x, reverse.intensity(x, t), t - s, noise(Draw.LEAP), "exact")[0])


@dataclass(frozen=True)
class Seeded(Bold):
    seed: "int" = 0
    mood: "Mood" = None


@dataclass(frozen=True)
class Demanding(Bold):
    boldness: int = knob(help="How bold it is", least=1)


@dataclass(frozen=True)
class Evenly(Planner):
    most: int = 1

    def begin(self, reverse, x, stops, noise):
        return FixedCount("even").begin(reverse, x, stops, noise)

    def left(self, reverse, s, plan):
        return FixedCount("even").left(reverse, s, plan)

    def move(self, reverse, x, prediction, t, s, noise, plan):
        return FixedCount("even").move(reverse, x, prediction, t, s, noise, plan)


def tiny(*, length: int = 64):
    return tl.load("chain64")


def kept(source: str, length: int):
    return tl.load(source)
'''
POINTS = """
[thetaleap.solvers]
bold = added:Bold
seeded = added:Seeded
demanding = added:Demanding
broken = added:Absent
not-a-solver = added:tiny
twice = added:Bold
tweedie = added:Bold

[thetaleap.planners]
evenly = added:Evenly

[thetaleap.models]
tiny = added:tiny
kept = added:kept
chain64 = added:absent
"""
RUN = """
import json, sys
from typer.testing import CliRunner
import thetaleap as tl
from thetaleap.cli import app

said = {}
for line in sys.stdin.read().splitlines():
    done = CliRunner(env={"COLUMNS": "300", "TERM": "dumb"}).invoke(app, line.split(), prog_name="thetaleap")
    said[line] = (done.exit_code, done.stdout, done.stderr, repr(done.exception))
for name, options in (("tiny", {}), ("kept:cube3", {"length": 3}), ("tiny", {"size": 3}), ("kept", {}), ("tinyy", {})):
    try:
        said[f"load {name} {options}"] = (0, str(tl.load(name, **options).length), "", "")
    except ValueError as error:
        said[f"load {name} {options}"] = (2, "", str(error), "")
json.dump(said, sys.stdout)
"""
DRAW = "sample cube3 --nfe 4 --num 2 --solver"
COMMANDS = [
    *("solvers", "models", "sample --help", f"{DRAW} bold --boldness 3", f"{DRAW} bold --theta low"),
    *(f"{DRAW} bold --boldness 0", f"{DRAW} broken", f"{DRAW} not-a-solver", f"{DRAW} twice", f"{DRAW} seeded"),
    *(f"{DRAW} trapezoidal --boldness 3", f"{DRAW} demanding", f"{DRAW} demanding --boldness 4"),
    *(f"{DRAW} tweedie --planner evenly:2", f"{DRAW} tweedie --planner evenly:x", f"{DRAW} trapezoidal --theta high"),
    *("compare cube3 --nfe 4 --num 20 --solvers bold,evenly,tweedie", "compare cube3 --nfe 4 --solvers broken"),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each command says where two such packages are installed, in one process."""
    where = tmp_path_factory.mktemp("packages")
    (where / "added.py").write_text(MODULE)
    for name, points in {"added": POINTS, "rival": "[thetaleap.solvers]\ntwice = added:Seeded\n"}.items():
        info = where / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
    paths = os.pathsep.join([str(where), str(Path(tl.__file__).parents[1])])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(
        command, input="\n".join(COMMANDS), env=env, cwd=where, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def good(said: dict[str, list[Any]], command: str) -> str:
    code, out, _, _ = said[command]
    assert code == 0, said[command]
    return out


def bad(said: dict[str, list[Any]], command: str) -> str:
    code, out, error, _ = said[command]
    assert (code, out) == (2, ""), said[command]
    return error.removeprefix("error: ").rstrip("\n")


def test_an_added_solver_is_listed(said: dict[str, list[Any]]) -> None:
    text = good(said, "solvers")
    assert re.search(r"^bold +1  any +to be bold *$", text, re.M)
    assert "Bold(boldness=2, theta='high')" in text
    assert "Demanding(boldness, theta='high')" in text
    assert "solver 'broken' of the package added-package: added:Absent cannot be loaded (AttributeError: " in text
    assert "Tweedie(planner=Bernoulli())" in text, "no other package can take the name"


def test_an_added_solver_is_sampled_with_its_options(said: dict[str, list[Any]]) -> None:
    assert "Bold(boldness=3)" in good(said, f"{DRAW} bold --boldness 3")
    assert "Bold(theta='low')" in good(said, f"{DRAW} bold --theta low")
    assert bad(said, f"{DRAW} bold --boldness 0") == "--boldness 0: give a whole number of at least 1"
    help = good(said, "sample --help")
    assert "How bold it is, at least 1. For bold, seeded, demanding. [default: 2]" in help
    assert (
        "in (0, 1), for rk2 in (0, 1]. For rk2, trapezoidal, exponential-trapezoidal, bold, seeded, demanding." in help
    )
    assert "[default: 0.5 or high]" in help
    assert "--boldness 3: trapezoidal has no such option; it has --theta, --rule, --align" in bad(
        said, f"{DRAW} trapezoidal --boldness 3"
    )
    # a name that others have with another type is read by each for itself
    assert bad(said, f"{DRAW} trapezoidal --theta high") == "--theta high: give a number"


def test_an_added_solver_may_ask_for_an_option(said: dict[str, list[Any]]) -> None:
    assert bad(said, f"{DRAW} demanding") == "--boldness is missing: demanding needs it; give it"
    assert "Demanding(boldness=4)" in good(said, f"{DRAW} demanding --boldness 4")


def test_an_added_solver_is_compared(said: dict[str, list[Any]]) -> None:
    text = good(said, "compare cube3 --nfe 4 --num 20 --solvers bold,evenly,tweedie")
    assert all(name in text for name in ("bold", "evenly", "tweedie"))
    assert "of the package added-package" in bad(said, "compare cube3 --nfe 4 --solvers broken")


def test_an_added_planner_takes_its_first_hyper_parameter(said: dict[str, list[Any]]) -> None:
    assert "Tweedie(planner=Evenly(most=2))" in good(said, f"{DRAW} tweedie --planner evenly:2")
    assert bad(said, f"{DRAW} tweedie --planner evenly:x") == "--planner evenly:x: give a whole number"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "solver 'broken' of the package added-package: added:Absent cannot be loaded (AttributeError: "),
        (
            "not-a-solver",
            "of the package added-package: added:tiny is no dataclass that derives from Solver; update or",
        ),
        ("twice", "'twice' of the package added-package and of rival-package: only one can have the name; uninstall"),
        ("seeded", "--solver seeded: its seed of the package added-package is an option already"),
    ],
)
def test_what_others_did_wrong_is_said_when_it_is_used(said: dict[str, list[Any]], name: str, message: str) -> None:
    assert message in bad(said, f"{DRAW} {name}")


def test_added_models(said: dict[str, list[Any]]) -> None:
    lines = good(said, "models").splitlines()
    assert [line.rstrip().split(maxsplit=1) for line in lines[-2:]] == [
        ["tiny", "of the package added-package"],
        ["kept", "of the package added-package"],
    ]
    assert good(said, "load tiny {}") == "64"
    assert good(said, "load kept:cube3 {'length': 3}") == "3"
    assert bad(said, "load tiny {'size': 3}").startswith(
        "model='tiny': of the package added-package, takes (*, length: int = 64): got an unexpected keyword"
    )
    assert bad(said, "load kept {}").startswith(
        "model='kept': of the package added-package, takes (source: str, length"
    )
    assert bad(said, "load tinyy {}").startswith("model='tinyy': did you mean 'tiny'?")


# --- start-up


@pytest.mark.parametrize("command", ["--help", "--version", "solvers", "models"])
def test_help_and_lists_do_without_torch(command: str) -> None:
    code = (
        "import sys; from thetaleap.cli import app\n"
        f"try: app([{command!r}])\n"
        "except SystemExit as end: assert not end.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert len(done.stdout) > 10
    assert not {"torch", "matplotlib", "numpy", "transformers", "jaxtyping"} & set(done.stderr.split())


def test_the_library_is_imported_when_it_is_used() -> None:
    code = (
        "import sys, thetaleap as tl; before = set(sys.modules); tl.sample; tl.load; tl.Tweedie; tl.exact\n"
        "print(*before); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    before, after = (set(line.split()) for line in done.stdout.splitlines())
    assert "torch" not in before
    assert {"torch", "thetaleap.sampling"} <= after
    late = ("transformers", "matplotlib", "typer", "thetaleap.cli", "thetaleap.training", "thetaleap.reproduction")
    assert not after & set(late)


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'thetaleap' has no attribute 'smaple'"):
        tl.smaple  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert set(tl.__all__) <= set(dir(tl))
