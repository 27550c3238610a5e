"""Command lines as users get them wrong: each is answered by one line with what was typed and what to type instead."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_cli import failed
from thetaleap.core import storage

CASES = {
    # commands, arguments and options that are not there
    "smaple chain64": ("smaple: ", "did you mean sample?"),
    "chain64 --nfe 8": ("chain64: ", "thetaleap sample chain64"),
    "--verbose": ("--verbose: ", "thetaleap -h lists them"),
    "sample": ("MODEL is missing", "for example: thetaleap sample chain64"),
    "sample chain64 mnist --nfe 8": ("mnist: nothing more is expected", "for example: thetaleap sample"),
    "sample chain64 --nfee 8": ("--nfee: ", "did you mean --nfe?"),
    "sample chain64 -nfe 8": ("-nfe: ", "did you mean --nfe?"),
    "sample chain64 --nfe 8 --batch_size 4": ("--batch_size: ", "did you mean --batch-size?"),
    "sample chain64 --nfe": ("--nfe: its value is missing", "for example: thetaleap sample chain64"),
    "sample shakespeare --nfe 8 --prompt to be": ("be: nothing more", "put what has spaces in quotes"),
    "train long.txt": ("--out FOLDER is missing", "for example: thetaleap train input.txt --out runs/plays"),
    "solvers --all": ("--all: ", "thetaleap solvers -h lists them"),
    # models
    "sample chian64 --nfe 8": ("MODEL chian64: ", "did you mean 'chain64'? choose one of chain64, "),
    "sample Chain64 --nfe 8": ("MODEL Chain64: ", "did you mean 'chain64'?"),
    "sample trianed:empty --nfe 8": ("MODEL trianed:empty: ", "did you mean 'trained'?"),
    "sample trained:nowhere --nfe 8": ("MODEL trained:nowhere: ", "give one of thetaleap train"),
    "sample empty --nfe 8": ("MODEL empty: holds no weights", "in which thetaleap train has come to its end"),
    "sample llada:somewhere --nfe 8": ("--length is missing: ", "for example --length 256"),
    "sample chain64 --nfe 8 --length 32": ("--length 32: chain64 has no such option", "leave it out"),
    "sample mnist --nfe 8 --length 100": ("--length 100: these are images of 196", "leave it out"),
    "sample shakespeare --nfe 8 --device cuda:7": ("--device cuda:7: ", "give cpu"),
    "sample shakespeare --nfe 8 --device gpu": ("--device gpu: ", "give cpu"),
    "sample shakespeare --nfe 8 --dtype fp16": ("--dtype fp16: ", "choose one of float16, "),
    "sample chain64 --nfe 8 --vqgan x.pth": ("--vqgan x.pth: chain64 has no such option", "leave it out"),
    # solvers and budgets
    "sample chain64 --nfe eight": ("--nfe eight: ", "give a whole number"),
    "sample chain64 --nfe 8.5": ("--nfe 8.5: ", "give a whole number"),
    "sample chain64 --nfe -3": ("--nfe -3: ", "give a whole number of at least 1"),
    "sample chain64 --nfe=2 --solver trapezoidal": ("--nfe 2: ", "give at least 3"),
    "sample chain64 --nfe 8 --steps 4 --solver tweedie": ("--nfe 8 and --steps 4: ", "give one of them"),
    "sample chain64 --nfe 8 --solver trapezodial": ("--solver trapezodial: ", "did you mean 'trapezoidal'?"),
    "sample chain64 --nfe 8 --solver TauLeaping": ("--solver TauLeaping: ", "did you mean 'tau-leaping'?"),
    "sample chain64 --nfe 8 --solver rk2 --theta half": ("--theta half: ", "give a number"),
    "sample chain64 --nfe 8 --solver trapezoidal --theta 1": ("--theta 1: ", "must lie in (0, 1)"),
    "sample chain64 --nfe 8 --solver euler --theta 0.5": ("--theta 0.5: euler has no such option", "it has none"),
    "sample chain64 --nfe 8 --solver tau-leaping --align cyclic": ("--align cyclic: ", "it has --rule"),
    "sample chain64 --nfe 8 --solver first-hitting": ("--nfe 8: FirstHitting spends", "leave --nfe out"),
    "sample chain64 --nfe 8 --solver tweedie --planner threshold:2": (
        "--planner threshold:2: ",
        "its threshold must lie in (0, 1]",
    ),
    "sample chain64 --nfe 8 --solver wino --wide-in-thres 0": ("--wide-in-thres 0: ", "must lie in (0, 1]"),
    "sample chain64 --nfe 8 --solver tweedie --planner fixedcount": ("--planner fixedcount: ", "'fixed-count'?"),
    "sample chain64 --nfe 8 --solver tweedie --grid unifrom": ("--grid unifrom: ", "did you mean 'uniform'?"),
    "sample chain64 --nfe 8 --solver tweedie --delta 2": ("--delta 2: ", "give a time in [0, 1)"),
    "sample chain64 --solver multistep --tolerance 0": ("--tolerance 0: ", "must lie in (0, inf)"),
    "sample cube3-uniform --nfe 8 --solver parallel-decoding": (
        "--solver parallel-decoding on the process Uniform: ",
        "use tweedie or trapezoidal here",
    ),
    "sample cube3-uniform --nfe 8 --solver multistep --planner fixed-count": (
        "--planner fixed-count on the process Uniform: ",
        "leave it out",
    ),
    # what is given
    "sample shakespeare-char --nfe 8 --template 'ROMEO: ~~~'": (
        "--template 'ROMEO: ~~~': ",
        "not in the alphabet; use",
    ),
    "sample shakespeare-char --nfe 8 --prompt Zoë": ("--prompt 'Zoë': ", "not in the alphabet; use"),
    f"sample shakespeare-char --nfe 8 --prompt '{'to be ' * 70}'": (
        f"--prompt '{'to be ' * 70}': has 420",
        "shorten it",
    ),
    "sample shakespeare --nfe 8 --template a --prompt b": ("--template a and --prompt b: ", "give one of them"),
    "sample chain64 --nfe 8 --prompt 'set nfe=3'": ("--prompt 'set nfe=3': ", "give token numbers"),
    "sample chain64 --nfe 8 --template 'three _'": ("--template 'three _': ", "give token numbers with spaces between"),
    "sample chain64 --nfe 8 --template '16 _ _'": ("--template '16 _ _': 16 is no token", "0 to 15"),
    "sample chain64 --nfe 8 --template 3 --gap ''": ("--gap '': ", "give one character"),
    "sample chain64 --nfe 8 --prompts none.jsonl": ("--prompts none.jsonl: ", 'give {"template": text}'),
    "sample chain64 --nfe 8 --prompts broken.jsonl": ("--prompts broken.jsonl, line 1: ", 'give {"template": text}'),
    "sample chain64 --nfe 8 --forbid a": ("--forbid a: ", "give token numbers with spaces between"),
    "sample chain64 --nfe 8 --temperature -1": ("--temperature -1: ", "give a finite number of at least 0"),
    "sample chain64 --nfe 8 --top-p 2": ("--top-p 2: ", "must lie in (0, 1]"),
    "sample chain64 --nfe 8 --block 0": ("--block 0: ", "give a whole number of at least 1"),
    "sample chain64 --nfe 8 --approximate-reuse": ("--block is missing: ", "as in --block 32"),
    "sample chain64 --nfe 8 --approximate-dual": ("--block is missing: ", "as in --block 32"),
    "sample chain64 --nfe 8 --legacy": ("--legacy: is for sedd", "leave it out"),
    "sample chain64 --nfe 8 --labels 3": ("--labels 3: this model takes none", "leave it out"),
    "sample mnist --nfe 8 --label three": ("--label three: ", "as in 3 or 0,1,2"),
    "sample mnist --nfe 8 --labels 10": ("--labels 10: ", "0 to 9"),
    "sample mnist --nfe 8 --guidance 2": ("--guidance 2: ", "give --labels"),
    "sample mnist --nfe 8 --labels 3 --guidance -1": ("--guidance -1: ", "must lie in [0, inf)"),
    # how many, and where to
    "sample chain64 --nfe 8 --num 0": ("--num 0: ", "give a whole number of at least 1"),
    "sample chain64 --nfe 8 --seed -1": ("--seed -1: ", "give a whole number from 0 to 2^64 - 1"),
    "sample chain64 --nfe 8 --first -1": ("--first -1: ", "give a whole number of at least 0"),
    "sample chain64 --nfe 8 --batch-size 0": ("--batch-size 0: ", "give a whole number of at least 1"),
    "sample chain64 --nfe 8 --out samples.csv": (
        "--out samples.csv: ",
        "end with one of .parquet, .jsonl, .npy, .txt, .png",
    ),
    "sample chain64 --nfe 8 --out missing/x.npy": ("--out missing/x.npy: ", "make it first"),
    "sample chain64 --nfe 8 --out old.npy": ("--out old.npy: ", "--force to replace it"),
    "sample chain64 --nfe 8 --out x.txt": ("--out x.txt: this model has no text", "give a .parquet, .jsonl or .npy"),
    "sample chain64 --nfe 8 --out x.png": ("--out x.png: ", "use another ending"),
    # training
    "train none.txt --out run": ("DATA none.txt: there is no such file", "give text"),
    "train short.txt --out run": ("DATA short.txt: has 18 tokens", "give at least 2,560 tokens, or --length 1 at most"),
    "train long.txt --out run --length 1000": ("DATA long.txt: has 4,000 tokens", "or --length 400 at most"),
    "train latin.txt --out run": ("DATA latin.txt, line 2: this is no UTF-8 text", "convert it first"),
    "train x.npy --out run --length 5": ("DATA x.npy: a row has 3 tokens", "leave --length out"),
    "train long.txt --out old.npy": ("--out old.npy: 'old.npy' is a file", "give a folder"),
    "train long.txt --out run --length 16 --heads 3": ("--heads 3: ", "must divide the width, 256"),
    "train long.txt --out run --length 16 --process ring": ("--process ring: ", "choose one of masked, uniform"),
    "train long.txt --out run --length 16 --tokenizer bpe": ("--tokenizer bpe: ", "write bpe:1024"),
    "train long.txt --out run --length 16 --device cuda:7": ("--device cuda:7: ", "give cpu"),
    "train long.txt --out run --length 16 --every -1": ("--every -1: ", "must lie in [0, inf)"),
    "train sums --out run --length 10": ("DATA sums: a problem has up to 56 words", "leave --length out"),
    # evaluation, comparison, conversation, experiments
    "evaluate none.parquet": ("FILE none.parquet: there is no such file", "thetaleap sample --out"),
    "evaluate x.csv": ("FILE x.csv: ", "end with one of .parquet"),
    "evaluate x.npy": ("--model is missing: 'x.npy' does not say", "name it"),
    "evaluate x.npy --model chain64": ("FILE x.npy: its sequences have 3 positions", "name the model that made them"),
    "evaluate x.npy --model cube3 --prefix 3": ("--prefix 3: ", "leave at least one free"),
    "evaluate short.txt --judge plays --prefix 3": ("--prefix 3: ", "leave it out"),
    "compare chain64 --nfe 4,x": ("--nfe 4,x: ", "as in 4,8,16"),
    "compare chain64 --nfe 4 --solvers twedie": ("--solvers twedie: ", "did you mean 'tweedie'?"),
    "compare cube3 --out old.npy": ("--out old.npy: 'old.npy' is a file", "give a folder"),
    "chat chain64": ("MODEL chain64: ", "give KIND:SOURCE with one of llada, dream, llada2, sdar"),
    "chat llada:empty --length 0": ("--length 0: ", "give a whole number of at least 1"),
    "reproduce tyo": ("NAME tyo: ", "did you mean 'toy'?"),
    "reproduce toy --judge plays": ("--judge plays: toy takes no such option", "leave it out"),
    "reproduce toy --hours 1": ("--hours 1: only what is drawn in full", "give --full too"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wrong")
    (made / "short.txt").write_text("to be or not to be")
    (made / "long.txt").write_text("to be or not to be. " * 200)
    (made / "latin.txt").write_bytes(b"the\ncaf\xe9 " * 900)
    (made / "broken.jsonl").write_text("{nonsense\n")
    (made / "empty").mkdir()
    (made / "old.npy").write_bytes(b"old")
    np.save(made / "x.npy", np.zeros((4, 3), dtype=np.int64))
    return made


@pytest.mark.parametrize("command", CASES)
def test_wrong_commands(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    typed, remedy = CASES[command]
    said = failed(*shlex.split(command))  # one line on stderr, nothing on stdout, exit code 2
    assert said.startswith(typed), said
    assert remedy in said
    assert sorted(folder.rglob("*")) == before


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 50


def test_files_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:  # the superuser may read all, so the refusal is played
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.chdir(folder)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    remedy = "Permission denied; give another, or change what is there"
    assert failed("train", "long.txt", "--out", "run") == f"DATA long.txt: {remedy}"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **more: object) -> None:
        raise error

    monkeypatch.setattr("thetaleap.sampling.sample", fail)
    said = failed("sample", "cube3", "--solver", "euler", "--nfe", 2)
    assert said == "there is not enough memory; give a smaller --batch-size, --num or --length"


def test_whether_the_hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", address)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        assert storage.hub_reachable.__wrapped__()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert not storage.hub_reachable.__wrapped__()
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_ENDPOINT", "https://nowhere.invalid")
        monkeypatch.setenv("https_proxy", address)  # it is asked for what is behind it
        assert storage.hub_reachable.__wrapped__()
    assert not storage.hub_reachable.__wrapped__(), "nobody listens there any more"


def test_a_hub_that_does_not_answer_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'hub'")
    for module in ("models.hf.hub", "models.weights"):
        monkeypatch.setattr(f"thetaleap.{module}.hub_reachable", lambda: False)
    monkeypatch.setattr(
        "huggingface_hub.file_download.get_hf_file_metadata", lambda *args, **more: pytest.fail("asked")
    )
    for command, remedy in {
        "sample mlm:no-such/model --length 16 --nfe 8": "hf download no-such/model --local-dir FOLDER",
        "sample radd:no-such/model --nfe 8": "put a copy into a folder and give radd:FOLDER",
    }.items():
        said = failed(*command.split())
        assert said.startswith(f"MODEL {command.split()[1]}: ")
        assert remedy in said
        assert "local_files_only" not in said
