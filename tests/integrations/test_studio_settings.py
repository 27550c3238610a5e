"""The settings of the studio: read from forms and links, wrong ones named, and what visitors may ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

import thetaleap as tl
from tests.integrations.test_studio import VISITOR, nothing
from thetaleap.integrations.studio import race, ranking, truth, watch
from thetaleap.integrations.studio.allowed import Allowed
from thetaleap.integrations.studio.calls import Call
from thetaleap.integrations.studio.race import Race
from thetaleap.integrations.studio.ranking import Ranking
from thetaleap.integrations.studio.settings import query, read
from thetaleap.integrations.studio.truth import Truth
from thetaleap.integrations.studio.watch import Watch


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "watch",
            Watch(
                "sums",
                "Multistep(window=2)",
                7,
                2,
                2**64 - 1,
                "a & b=_?\n#ü",
                "x",
                "1,2",
                0.1,
                0.30000000000000004,
                "sure",
            ),
        ),
        ("race", Race("chain64", "auto,Multistep(window=2, weight=0.5)", 3, 4, 5)),
        ("truth", Truth(1, 3, "0.1, 1e-3,2", "uniform", "euler", 9)),
        ("compare", Ranking("cube3", "", "1, 2", 0, 9)),
    ],
    ids=["watch", "race", "truth", "compare"],
)
def test_a_link_holds_all_settings(name: str, settings: Any) -> None:
    pairs = dict(parse_qsl(query(name, settings).removeprefix("?"), keep_blank_values=True))
    assert pairs.pop("tab") == name
    assert read(type(settings), pairs) == settings


def test_what_a_form_gives_is_read() -> None:
    given = {"solvers": ["auto", "Multistep(window=2, weight=0.5)"], "nfe": 8.0, "seed": "12", "num": 5}
    assert read(Race, given) == Race("chain64", "auto,Multistep(window=2, weight=0.5)", 8, 12, 5)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Watch, {"nfe": 2.5}, "nfe='2.5': give a whole number"),
        (Watch, {"nfe": None}, "nfe='': give a whole number"),
        (Watch, {"nfe": 0}, "nfe=0: give a whole number of at least 1"),
        (Watch, {"nfe": 10**6}, "nfe=1000000: give at most 512"),
        (Watch, {"num": 11}, "num=11: give at most 10"),
        (Watch, {"seed": "one"}, "seed='one': give a whole number"),
        (Race, {"seed": -1}, "seed=-1: give a whole number of at least 0"),
        (Watch, {"temperature": "warm"}, "temperature='warm': give a number"),
        (Watch, {"temperature": "nan"}, "temperature=nan: must lie in"),
        (Watch, {"colour": "red"}, "colour='red': choose one of when, sure"),
        (Watch, {"sead": "1"}, "setting='sead': did you mean 'seed'?"),
        (Watch, {"template": "x" * 5000}, "template='xxxxxxxxxxxxxxxxxxxx': give at most 4000 characters"),
        (Race, {"num": 2}, "num=2: give a whole number of at least 3"),
        (Truth, {"positions": 6, "values": 2}, "(positions, values)=(6, 2): 729 sequences, masks included"),
        (Truth, {"positions": 10**9}, "positions=1000000000: the table would be too large"),
        (Truth, {"process": "uniform", "positions": 3, "values": 4}, "(positions, values)=(3, 4): 64 sequences: exact"),
        (Ranking, {"num": 1}, "num=1: give 0, or at least 3"),
    ],
)
def test_wrong_settings_are_named(kind: type, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read(kind, given)


@pytest.mark.parametrize(
    ("work", "settings", "message"),
    [
        (watch, Watch("chain65"), "model='chain65': did you mean 'chain64'?"),
        (watch, Watch("chain64", "twedie"), "solver='twedie': did you mean 'tweedie'?"),
        (watch, Watch("chain64", "__import__('os')"), "solver=\"__import__('os')\""),
        (watch, Watch("chain64", template="3 x"), "template='3 x'"),
        (watch, Watch("chain64", template="99"), "template[0, 0]=99: this is no token"),
        (watch, Watch("chain64", labels="1"), "labels='1': this model has no classes"),
        (watch, Watch("mnist", labels="x"), "labels='x': give whole numbers"),
        (watch, Watch("mnist", guidance=1.0), "guidance=1.0: needs labels"),
        (watch, Watch("chain64", seed=2**64), "seed=18446744073709551616"),
        (watch, Watch("chain64", seed=-1), "seed=-1"),
        (race, Race("chain64", "auto"), "solvers='auto': choose two, three or four"),
        (race, Race("chain64", "auto,exact"), "solvers='exact': spends as many evaluations as it needs"),
        (race, Race("chain64", "auto,rk2", nfe=1), "nfe=1: RK2 takes 2 per step"),
        (truth, Truth(weights="1,2"), "weights='1,2': give 8, one for each"),
        (truth, Truth(weights="1,2,3,x,5,6,7,8"), "weights='1,2,3,x,5,6,7,8': give numbers"),
        (truth, Truth(weights="1,2,3,-4,5,6,7,8"), "weights='1,2,3,-4,5,6,7,8': give numbers of at least 0"),
        (truth, Truth(weights="0,0,0,0,0,0,0,0"), "weights='0,0,0,0,0,0,0,0': give at least one above 0"),
        (truth, Truth(solvers=""), "solvers='': choose one to 4"),
        (ranking, Ranking(budgets="4,x"), "budgets='4,x': give whole numbers"),
        (ranking, Ranking(budgets="9999"), "budgets=9999: give at most 512"),
        (ranking, Ranking(solvers="auto,nobody"), "solvers='nobody': "),
    ],
)
def test_wrong_work_is_a_line(work: Any, settings: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        work.run(settings, VISITOR, nothing)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


# --- what visitors may ask for


@pytest.mark.parametrize(
    "name", ["trained:/etc", "mlm:bert-base-uncased", "/etc", "../x", "trained:", "x:y,trust_remote_code=True"]
)
def test_visitors_open_no_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for work, settings in ((watch, Watch(name)), (race, Race(name)), (ranking, Ranking(name))):
        with pytest.raises(ValueError, match="files are opened only if the studio was started with --allow-files"):
            work.code(settings, VISITOR)
        with pytest.raises(ValueError, match="files are opened only"):
            work.run(settings, VISITOR, nothing)


def test_a_folder_s_name_is_no_way_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plays").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="model='plays': choose one of"):
        VISITOR.load("plays")


def test_solvers_from_files_need_permission_too(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text(json.dumps({"solver": "Tweedie()", "grid": "uniform", "nfe": 4, "model": "chain64"}))
    settings = Ranking("cube3", f"auto,{path}", "3", 3)
    with pytest.raises(ValueError, match="files are opened only"):
        ranking.run(settings, VISITOR, nothing)
    assert len(ranking.run(settings, Allowed(files=True), nothing).rows) == 2


def test_whoever_starts_it_may_offer_models() -> None:
    mine = f"trained:{tl.registry.SHIPPED / 'sums'}"
    allowed = Allowed((mine,))
    assert allowed.names[0] == mine
    assert allowed.load(mine) == Call.of("load", mine)
    with pytest.raises(ValueError, match="files are opened only"):
        allowed.load(f"trained:{tl.registry.SHIPPED / 'mnist'}")
    assert Allowed(files=True).load("trained:x") == Call.of("load", "trained:x")


def test_code_of_others_runs_only_if_it_was_allowed_at_the_start() -> None:
    assert "trust_remote_code" not in Allowed(files=True).load("llada:x").text()
    assert (
        Allowed(files=True, trust_remote_code=True).load("llada:x").text()
        == "tl.load('llada:x', trust_remote_code=True)"
    )
    assert "trust_remote_code" not in Allowed(files=True, trust_remote_code=True).load("trained:x").text()
