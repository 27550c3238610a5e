"""Weights are found, read and fitted; what cannot be is refused with words that help."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.models.test_transformer import RADD, randomised
from thetaleap.models.transformer import BUFFERS, Transformer
from thetaleap.models.weights import Checkpoint, find, fit, read_weights

Tensors = dict[str, Tensor]


@pytest.fixture
def tensors() -> Tensors:
    return dict(randomised(RADD).state_dict())


def assert_same(one: Tensors, other: Tensors) -> None:
    assert sorted(one) == sorted(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


class Evil:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_safetensors(tensors: Tensors, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "a.safetensors")
    assert_same(read_weights(tmp_path / "a.safetensors"), tensors)
    assert_same(read_weights(str(tmp_path / "a.safetensors")), tensors)


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("ending", [".pth", ".pt", ".bin", ".ckpt"])
def test_torch_file(ending: str, archive: bool, tensors: Tensors, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    torch.save(tensors, path, _use_new_zipfile_serialization=archive)
    assert_same(read_weights(path), tensors)


@pytest.mark.parametrize("entry", ["model", "state_dict", "model_state_dict"])
def test_training_file_without_averages(entry: str, tensors: Tensors, tmp_path: Path) -> None:
    torch.save({entry: tensors, "step": 3, "ema": None}, tmp_path / "a.pth")
    assert_same(read_weights(tmp_path / "a.pth"), tensors)


@pytest.mark.parametrize("form", ["shadow_params", "list", "names"])
def test_training_file_with_averages(form: str, tensors: Tensors, tmp_path: Path) -> None:
    module = randomised(RADD)
    averaged = randomised(RADD, seed=5)
    shadow = [parameter.detach() for parameter in averaged.parameters() if parameter.requires_grad]
    ema: Any = {"decay": 0.999, "num_updates": 7, "shadow_params": shadow}
    ema = {"shadow_params": ema, "list": shadow, "names": dict(averaged.named_parameters())}[form]
    optimizer = torch.optim.AdamW(module.parameters())
    file = {"model": tensors, "ema": ema, "optimizer": optimizer.state_dict(), "step": 12}
    torch.save(file, tmp_path / "checkpoint.pth")
    assert_same(read_weights(tmp_path / "checkpoint.pth", BUFFERS), dict(averaged.state_dict()))


def test_averages_that_are_others(tensors: Tensors, tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    shadow = [tensor for name, tensor in tensors.items() if name not in BUFFERS]
    torch.save({"model": tensors, "ema": shadow[1:]}, path)
    count = f"holds {len(shadow) - 1} averaged parameters, but {len(shadow)} parameters"
    with pytest.raises(ValueError, match=rf"a\.pth.*{count}"):
        read_weights(path, BUFFERS)
    torch.save({"model": tensors, "ema": shadow[::-1]}, path)
    with pytest.raises(ValueError, match=r"a\.pth.*its average of vocab_embed.embedding is \(12,\), not \(12, 24\)"):
        read_weights(path, BUFFERS)


@given(st.lists(st.sampled_from(["backbone", "module", "_orig_mod", "model"]), max_size=3))
@settings(max_examples=10)
def test_shared_prefix_is_dropped(parts: list[str]) -> None:
    prefix = "".join(f"{part}." for part in parts)
    tensors = dict(randomised(RADD).state_dict())
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        save_file({prefix + name: tensor for name, tensor in tensors.items()}, path)
        assert_same(read_weights(path), tensors)


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("deep", [True, False])
def test_code_is_refused_and_not_run(archive: bool, deep: bool, tensors: Tensors, tmp_path: Path) -> None:
    path, trace = tmp_path / "evil.pth", tmp_path / "trace"
    evil: Any = {"model": tensors, "ema": Evil(trace)} if deep else Evil(trace)
    torch.save(evil, path, _use_new_zipfile_serialization=archive)
    with pytest.raises(ValueError, match=r"evil\.pth': holds \S+mkdir.*would run code.*refused.*torch\.save"):
        read_weights(path)
    assert not trace.exists()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_bare_pickle_is_refused_and_not_run(protocol: int, tmp_path: Path) -> None:
    path, trace = tmp_path / "evil.bin", tmp_path / "trace"
    path.write_bytes(pickle.dumps(Evil(trace), protocol))
    with pytest.raises(ValueError, match=r"evil\.bin"):
        read_weights(path)
    assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists()


@given(st.floats(0, 1, exclude_max=True), st.sampled_from(["a.safetensors", "a.pth", "old.pth"]))
@settings(max_examples=40)
def test_cut_short(share: float, name: str) -> None:
    tensors = dict(randomised(RADD).state_dict())
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        if name == "a.safetensors":
            save_file(tensors, path)
        else:
            torch.save(tensors, path, _use_new_zipfile_serialization=name == "a.pth")
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match=rf"{name}.*(cut short or damaged|empty|holds torch\.)") as error:
            read_weights(path)
    # cut within the name of a type, an old file seems to hold an unknown one
    assert "download or copy it again" in str(error.value) or name == "old.pth"
    assert "torch.load" not in str(error.value)
    assert "trust the source" not in str(error.value)


def test_other_files(tensors: Tensors, tmp_path: Path) -> None:
    page, pointer = b"<!DOCTYPE html><html>", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    for name in ("a.safetensors", "a.pth"):
        path = tmp_path / name
        path.write_bytes(page * 10)
        with pytest.raises(ValueError, match=rf"{name}': not a .*begins with b'<!DOCTYPE html>"):
            read_weights(path)
        path.write_bytes(pointer)
        with pytest.raises(ValueError, match=rf"{name}': is but a Git LFS pointer.*git lfs pull"):
            read_weights(path)
    torch.save(tensors, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"b\.safetensors': not a safetensors file.*if torch wrote it.*\.pth"):
        read_weights(tmp_path / "b.safetensors")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match=r"ending of weights .*a\.txt'='\.txt'"):
        read_weights(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"none\.pth': no such file"):
        read_weights(tmp_path / "none.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"list\.pth': holds a list, not tensors by name"):
        read_weights(tmp_path / "list.pth")
    torch.save({"step": 3, "optimizer": {}}, tmp_path / "step.pth")
    with pytest.raises(ValueError, match=r"step\.pth': no tensors by name .*it holds step, optimizer"):
        read_weights(tmp_path / "step.pth")


def test_fit_copies_and_converts(tensors: Tensors) -> None:
    module = Transformer(RADD).double()
    fit(module, tensors, "it")
    assert_same({name: tensor.float() for name, tensor in module.state_dict().items()}, tensors)
    tensors["vocab_embed.embedding"].zero_()
    assert bool(module.vocab_embed["embedding"].any())


def test_fit_lists_all_that_is_wrong() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    tensors = {
        "0.weight": torch.zeros(2, 3),
        "0.bias": torch.zeros(3),
        "1.weight": torch.zeros(4, 3, dtype=torch.int8),
        "2.weight": torch.zeros(1),
        "more": torch.zeros(1),
    }
    with pytest.raises(ValueError, match=r"weights='a': the weights do not fit") as error:
        fit(module, tensors, "weights='a'")
    assert "missing: 1.bias; surplus: 2.weight, more; misshapen: 0.weight [2, 3] instead of [3, 2], " in str(
        error.value
    )
    assert "1.weight [4, 3] of torch.int8 instead of [4, 3]. Give" in str(error.value)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "checkpoint.pth"])
def test_find_here(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert find(tmp_path, "radd") == find(str(tmp_path / name), "radd") == Checkpoint(tmp_path / name, {})
    (tmp_path / "config.json").write_text(json.dumps({"tokens": 5}))
    assert find(tmp_path, "radd") == find(str(tmp_path / name), "radd") == Checkpoint(tmp_path / name, {"tokens": 5})


def test_find_prefers_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "model.safetensors").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    assert find("org/name", "radd").path == Path("org/name/model.safetensors")


def test_find_errors(tmp_path: Path) -> None:
    for source in (tmp_path / "none", "./none", "none", "models/none.safetensors", "a/b/c", "~/none"):
        with pytest.raises(ValueError, match=r"none|a/b/c.*no such file or folder here; give radd:PATH"):
            find(source, "radd")
    with pytest.raises(ValueError, match="source='': give a file"):
        find("", "radd")
    with pytest.raises(ValueError, match=r"no weights in this folder.*model.safetensors or pytorch_model.bin or one"):
        find(tmp_path, "radd")
    for name in ("a.pth", "b.pth"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=r"holds a.pth, b.pth; give the path of one"):
        find(tmp_path, "radd")
    for text, fault in (("{", "cannot be read as JSON"), ("[1]", "must hold a JSON object")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=rf"config\.json': {fault}"):
            find(tmp_path / "a.pth", "radd")


def test_hub_id_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants as constants  # reads the environment once

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"source='louaaron/sedd-small': .*could not be fetched from the hub") as error:
        find("louaaron/sedd-small", "sedd")
    assert "Wanted: config.json and model.safetensors or pytorch_model.bin" in str(error.value)
    assert "HF_HUB_OFFLINE" in str(error.value)
    assert "sedd:FOLDER" in str(error.value)


def test_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that is a folder: repositories may lack the configuration, and have one kind of weights or the other."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    asked = []

    def download(repo: str, name: str, local_files_only: bool) -> str:
        assert not local_files_only
        asked.append((repo, name))
        if not (tmp_path / name).exists():
            raise EntryNotFoundError("404")
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr("thetaleap.models.weights.hub_reachable", lambda: True)
    with pytest.raises(ValueError, match=r"the repository has no such weights.*Wanted: config\.json"):
        find("org/name", "radd")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert find("org/name", "radd") == Checkpoint(tmp_path / "pytorch_model.bin", {})
    (tmp_path / "model.safetensors").write_bytes(b"x")
    (tmp_path / "config.json").write_text('{"tokens": 5}')
    asked.clear()
    assert find("org/name", "radd") == Checkpoint(tmp_path / "model.safetensors", {"tokens": 5})
    assert asked == [("org/name", "config.json"), ("org/name", "model.safetensors")]
