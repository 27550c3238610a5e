"""AntiBERTy and Sapiens."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import thetaleap as tl
from thetaleap.models.proteins import antibodies
from thetaleap.models.proteins.antibodies import AMINO_ACIDS, antiberty, read_weights, sapiens

# variable regions of trastuzumab, adalimumab and pembrolizumab
HEAVY = [
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
    "QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNFNEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYCARRDYRFDMGFDYWGQGTTVTVSS",
]
LIGHT = [
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    "DIQMTQSPSSLSASVGDRVTITCRASQGIRNYLAWYQQKPGKAPKLLIYAASTLQSGVPSRFSGSGSGTDFTLTISSLQPEDVATYYCQRYNRAPYTFGQGTKVEIK",
]
NOW = torch.tensor(1.0, dtype=torch.float64)
MODELS: dict[str, Callable[..., Any]] = {
    "antiberty": antiberty,
    "sapiens-vh": lru_cache(lambda length=None: sapiens("vh", length)),
    "sapiens-vl": lru_cache(lambda length=None: sapiens("vl", length)),
}


def accuracy(model: Any, sequence: str, every: int) -> float:
    """How often the likeliest residue is the true one, of positions masked one at a time."""
    truth, positions = torch.tensor(model.tokenizer.encode(sequence)), torch.arange(0, len(sequence), every)
    x = truth.repeat(len(positions), 1)
    x[torch.arange(len(positions)), positions] = len(AMINO_ACIDS)
    logits = model(x, NOW).logits(torch.arange(len(positions)) * len(sequence) + positions)
    return float((logits.argmax(1) == truth[positions]).double().mean())


@pytest.mark.antibodies
@pytest.mark.parametrize(
    ("name", "sequences", "every"), [("antiberty", HEAVY, 4), ("sapiens-vh", HEAVY, 1), ("sapiens-vl", LIGHT, 1)]
)
def test_masked_residues_are_known(name: str, sequences: list[str], every: int) -> None:
    """A wrong table, position or layer gives about 1/20; measured 0.76 to 0.94."""
    for sequence in sequences:
        assert accuracy(MODELS[name](len(sequence)), sequence, every) > 0.7


@pytest.mark.antibodies
@pytest.mark.parametrize(("name", "length"), [("antiberty", 120), ("sapiens-vh", 120), ("sapiens-vl", 107)])
def test_denoisers(name: str, length: int) -> None:
    model = MODELS[name]()
    assert (model.process, model.length, model.time_free) == (tl.Masked(20), length, True)
    assert model.tokenizer.decode(range(20)) == AMINO_ACIDS
    assert "antiberty" not in sys.modules
    assert "sapiens" not in sys.modules


@pytest.mark.antibodies
@pytest.mark.parametrize("make", [lambda: antiberty(30), lambda: sapiens("vh", 30), lambda: sapiens("vl", 30)])
def test_determinism(make: Callable[[], Any]) -> None:
    before = torch.get_rng_state()
    models = [make(), make()]
    assert torch.equal(torch.get_rng_state(), before)
    draws = [tl.sample(model, tl.Tweedie(), nfe=4, num=2, seed=7, progress=False).x for model in models]
    assert torch.equal(*draws)
    assert all(set(models[0].tokenizer.decode(row)) <= set(AMINO_ACIDS) for row in draws[0].tolist())


@pytest.mark.antibodies
def test_half_precision() -> None:
    full, half = sapiens("vh"), sapiens("vh", dtype=torch.bfloat16)
    x = torch.tensor([full.tokenizer.encode(HEAVY[0])])
    x[0, ::9] = 20
    c = [torch.softmax(model(x, NOW).logits(torch.arange(120)).double(), 1) for model in (full, half)]
    assert float((c[0] - c[1]).abs().max()) < 0.1


@pytest.mark.antibodies
def test_too_long() -> None:
    assert sapiens("vl", 126).length == 126
    with pytest.raises(ValueError, match=r"length=127: RobertaForMaskedLM .* it has 130 positions; shorten it"):
        sapiens("vl", 127)


def test_unknown_chain() -> None:
    with pytest.raises(ValueError, match="chain='heavy': choose one of vh, vl"):
        sapiens("heavy")


@pytest.mark.parametrize(
    ("make", "command"),
    [(antiberty, "pip install --no-deps antiberty==0.1.3"), (sapiens, "pip install --no-deps sapiens==1.0.3")],
)
def test_missing_package(make: Callable[[], Any], command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thetaleap.core.storage.find_spec", lambda name: None)
    monkeypatch.setattr(antibodies, "transformers", lambda: None)
    with pytest.raises(ImportError, match=f"is not installed: {command}"):
        make()


class Evil:
    """What unpickling would turn into a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_evil_files_are_refused(zipped: bool, tmp_path: Path) -> None:
    evil, trace = tmp_path / "evil.pt", tmp_path / "trace"
    saved = {"model": {"weight": torch.ones(2)}, "args": argparse.Namespace(a=1, b=Evil(trace))}
    torch.save(saved, evil, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"evil.pt': holds more than tensors and plain data, and is not loaded"):
        read_weights(evil)
    assert not trace.exists()
    torch.load(evil, weights_only=False)["args"].b.close()  # it was evil indeed
    assert trace.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_plain_files_are_read(zipped: bool, tmp_path: Path) -> None:
    saved = {"model": {"weight": torch.ones(2)}, "args": argparse.Namespace(layers=4, rate=[0.1])}
    torch.save(saved, tmp_path / "good.pt", _use_new_zipfile_serialization=zipped)
    read = read_weights(tmp_path / "good.pt")
    assert torch.equal(read["model"]["weight"], torch.ones(2))
    assert read["args"] == saved["args"]
