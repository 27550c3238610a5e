"""Files as the authors' training code writes them: averages, objects beside the weights, and what they do not say."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import thetaleap as tl
from tests.cli.test_cli import call
from tests.models.test_published import LENGTH, all_logits, log_softmax
from tests.models.test_transformer import SEDD, UNIFORM, randomised, straight, tokens
from thetaleap.models.weights import READERS, config_of, read_content, read_weights

pytestmark = pytest.mark.filterwarnings("ignore:the network's score ratios")  # its weights are random
TIMES = torch.tensor([0.1, 0.4, 0.9], dtype=torch.float64)


def averages(sizes: Any) -> tuple[dict[str, Any], Any]:
    """What the exponential moving average of SEDD's and MDLM's code saves, and the network that it stands for."""
    averaged = randomised(sizes, seed=5)
    shadow = [parameter.detach() for parameter in averaged.parameters()]
    return {"decay": 0.9999, "num_updates": 7, "shadow_params": shadow}, averaged


def training_file(path: Path, sizes: Any) -> Any:
    """A file of SEDD's training code; gives the averaged network."""
    module, (ema, averaged) = randomised(sizes), averages(sizes)
    optimizer = torch.optim.AdamW(module.parameters())
    torch.save({"optimizer": optimizer.state_dict(), "model": module.state_dict(), "ema": ema, "step": 9}, path)
    return averaged


# --- Lightning


@contextmanager
def omegaconf() -> Iterator[dict[str, type]]:
    """Classes by the names of OmegaConf's, which can be imported within, and not afterwards."""
    places = {"DictConfig": "omegaconf.dictconfig", "AnyNode": "omegaconf.nodes", "ContainerMetadata": "omegaconf.base"}
    made = {name: type(name, (), {"__module__": module}) for name, module in places.items()}
    modules = {"omegaconf": ModuleType("omegaconf")} | {module: ModuleType(module) for module in places.values()}
    for name, module in places.items():
        setattr(modules[module], name, made[name])
    sys.modules.update(modules)
    try:
        yield made
    finally:
        for module in modules:
            del sys.modules[module]


def node(classes: dict[str, type], value: Any, parent: Any = None) -> Any:
    """A value as OmegaConf keeps it: in objects that know their parent, beside what is known of their types."""
    kind = "DictConfig" if isinstance(value, dict) else "AnyNode"
    made, about = classes[kind](), classes["ContainerMetadata"]()
    about.__dict__ |= {"ref_type": Any, "object_type": dict, "resolver_cache": defaultdict(dict)}
    made.__dict__ |= {"_metadata": about, "_parent": parent, "_flags_cache": None}
    if kind == "AnyNode":
        made.__dict__["_val"] = value
    else:
        made.__dict__["_content"] = {key: node(classes, one, made) for key, one in value.items()}
    return made


def lightning_file(path: Path, told: bool, **more: Any) -> Any:
    """A checkpoint of MDLM's training code; gives the averaged network."""
    module, (ema, averaged) = randomised(SEDD), averages(SEDD)
    sizes = {"hidden_size": SEDD.hidden, "n_blocks": SEDD.blocks, "n_heads": SEDD.heads, "cond_dim": SEDD.cond_dim}
    config = {"parameterization": "subs", "time_conditioning": told, "noise": {"type": "loglinear"}, "model": sizes}
    weights = {f"backbone.{name}": tensor for name, tensor in module.state_dict().items()}
    with omegaconf() as classes:
        file = {
            "epoch": 1,
            "pytorch-lightning_version": "2.2.1",
            "state_dict": {**weights, "noise.sigma_max": torch.tensor(3.0)},
            "optimizer_states": [torch.optim.AdamW(module.parameters()).state_dict()],
            "hyper_parameters": {"config": node(classes, config | more)},
            "ema": ema,
        }
        torch.save(file, path)
    return averaged


@pytest.mark.parametrize("told", [True, False])
def test_a_checkpoint_of_lightning(told: bool, tmp_path: Path) -> None:
    """The averages are read, and whether the network is told the noise level; OmegaConf is not even there."""
    path = tmp_path / "last.ckpt"
    averaged = lightning_file(path, told)
    assert "omegaconf" not in sys.modules
    for source in (path, tmp_path):
        model, x = tl.load(f"mdlm:{source}", length=LENGTH), tokens(SEDD)
        assert model.time_free == (not told)
        sigma = -torch.log(1 - 0.999 * TIMES) if told else 0 * TIMES
        expected = straight(dict(averaged.state_dict()), x, SEDD.heads, sigma)[..., :11]
        np.testing.assert_allclose(all_logits(model, x, TIMES), expected, atol=1e-5 * np.abs(expected).max())


def test_what_stands_in_does_nothing(tmp_path: Path) -> None:
    lightning_file(tmp_path / "a.ckpt", told=True, text="${noise.type}", none=None)
    content = read_content(tmp_path / "a.ckpt")
    config = config_of(content)
    assert config["time_conditioning"] is True
    assert (config["text"], config["none"], config["model"]["n_heads"]) == ("${noise.type}", None, SEDD.heads)
    held = content["hyper_parameters"]["config"]
    assert type(held).__module__ == "omegaconf.dictconfig", "a class by that name, and nothing else of it"
    assert not [name for name in vars(type(held)) if not name.startswith("__")]


def test_another_parameterization_is_refused(tmp_path: Path) -> None:
    lightning_file(tmp_path / "a.ckpt", told=False, parameterization="d3pm")
    with pytest.raises(ValueError, match=r"parameterization='d3pm'.*subs"):
        tl.load(f"mdlm:{tmp_path / 'a.ckpt'}")


# --- what a file does not say


def test_a_uniform_training_file_is_not_taken_for_an_absorbing_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_1.pth"
    averaged = training_file(path, UNIFORM)
    with pytest.raises(ValueError, match=r"graph=None: the file does not say whether tokens are masked") as error:
        tl.load(f"sedd:{path}", length=LENGTH)
    assert str(path) in str(error.value)
    with pytest.raises(
        ValueError, match=r"noise=None: uniform models differ in it, and the file does not say"
    ) as error:
        tl.load(f"sedd:{path}", length=LENGTH, graph="uniform")
    remedy = re.search(r"tl\.load\((.*)\), or", str(error.value))
    assert remedy
    model = eval(f"tl.load({remedy[1]}, length=LENGTH)", {"tl": tl, "LENGTH": LENGTH})  # what the error says, pasted
    assert model.process == tl.Uniform(11, tl.Geometric(1e-4, 20.0))
    x, alpha = tokens(UNIFORM), model.process.schedule.alpha(TIMES)
    scores = straight(dict(averaged.state_dict()), x, UNIFORM.heads, -torch.log(alpha))
    ratios = torch.from_numpy(scores).scatter(-1, x.unsqueeze(-1), 0.0).exp()
    c = torch.stack([model.process.from_score(rows, x[n], TIMES[n]) for n, rows in enumerate(ratios)]).clamp_min(0)
    c = c / c.sum(-1, keepdim=True)
    np.testing.assert_allclose(np.exp(log_softmax(all_logits(model, x, TIMES))), c.numpy(), atol=1e-3)


def test_an_absorbing_training_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_1.pth"
    averaged, x = training_file(path, SEDD), tokens(SEDD)
    model = tl.load(f"sedd:{path},graph=absorb", length=LENGTH)
    expected = straight(dict(averaged.state_dict()), x, SEDD.heads, -torch.log(1 - 0.999 * TIMES))[..., :11]
    np.testing.assert_allclose(log_softmax(all_logits(model, x, TIMES)), log_softmax(expected), atol=1e-4)


@pytest.mark.parametrize(("kind", "sizes"), [("sedd", SEDD), ("mdlm", SEDD), ("sedd", UNIFORM)])
def test_the_command_line_asks_and_takes_the_answer(kind: str, sizes: Any, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_1.pth"
    training_file(path, sizes)
    name = f"{kind}:{path}" if sizes is SEDD else f"{kind}:{path},graph=uniform"
    few = ("--length", 4, "--nfe", 2, "--num", 1)
    asked = call("sample", name, *few)
    assert asked.exit_code == 2
    remedy = re.search(r"or (\S+) on the command line", asked.stderr)
    assert remedy, asked.stderr
    done = call("sample", remedy[1], *few)
    assert done.exit_code == 0, done.output


def test_options_in_a_name(tmp_path: Path) -> None:
    path = tmp_path / "odd,graph=name.pth"
    training_file(path, SEDD)
    assert tl.load(f"sedd:{path}", length=LENGTH, graph="absorb").length == LENGTH, "a file may be called so"
    with pytest.raises(ValueError, match=r"graph='uniform': is 'absorb' in .*say it once"):
        tl.load(f"sedd:{path},graph=absorb", graph="uniform")
    with pytest.raises(ValueError, match=r"graf='absorb': sedd has no such option; it takes .*graph"):
        tl.load(f"sedd:{path},graf=absorb")
    with pytest.raises(
        ValueError, match=r"what a name says may come from a file; give trust_remote_code=True by itself"
    ):
        tl.load(f"llada:{tmp_path},trust_remote_code=True", length=4)
    with pytest.raises(TypeError, match=r"time_conditioning='maybe'"):
        tl.load(f"mdlm:{path},time_conditioning=maybe")


# --- nothing that a file holds is run


class Trap:
    """Unpickling this calls `function`, which makes a folder."""

    def __init__(self, function: Any, path: Path) -> None:
        self.function, self.path = function, path

    def __reduce__(self) -> Any:
        return self.function, (f"import os; os.mkdir({str(self.path)!r})" if self.function is exec else str(self.path),)


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("ending", sorted(set(READERS) - {".safetensors"}))
@pytest.mark.parametrize("function", [os.mkdir, exec, Path.mkdir], ids=["os", "builtins", "pathlib"])
def test_no_pickle_is_run(function: Any, ending: str, archive: bool, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / f"evil{ending}"
    trap = Trap(function, trace)
    torch.save({"state_dict": {"a": torch.ones(2)}, "more": trap}, path, _use_new_zipfile_serialization=archive)
    try:
        read_weights(path)  # what names a package of training files stands in for it, and does nothing
    except ValueError as error:
        assert re.search(r"holds \S+ and not only tensors|cut short or damaged", str(error))  # noqa: PT017
    assert not trace.exists()


@pytest.mark.parametrize("ending", [".npy", ".npz", ".gguf", ".pkl"])
def test_other_files_are_not_read_as_weights(ending: str, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / f"evil{ending}"
    path.write_bytes(pickle.dumps(Trap(os.mkdir, trace)))
    with pytest.raises(ValueError, match=rf"ending of weights .*evil\{ending}'='\{ending}'"):
        tl.load(f"radd:{path}")
    assert not trace.exists()


@pytest.mark.parametrize("ending", [".npy", ".npz"])
def test_arrays_of_objects_are_not_read_as_samples(ending: str, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / f"evil{ending}"
    held = np.array([Trap(os.mkdir, trace)], dtype=object)
    np.save(path, held, allow_pickle=True) if ending == ".npy" else np.savez(path, x=held)
    result = call("evaluate", path)
    assert result.exit_code == 2, result.output
    assert not trace.exists()
