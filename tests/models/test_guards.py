"""Mistakes with networks are found before the first run, and named; networks that are right pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thetaleap as tl
from tests.cases import birth_death, uniform

LENGTH, STATES = 6, 5


def run(model: Any, **more: Any) -> tl.Samples:
    return tl.sample(model, tl.Tweedie(), nfe=3, num=4, **more)


def made(network: Any, process: Any = None, **more: Any) -> tl.models.Network:
    return tl.from_network(process or tl.Masked(STATES), length=LENGTH, network=network, **more)


class Net(nn.Module):
    """A network with a layer, or a function, that acts otherwise in training."""

    def __init__(self, layer: nn.Module | None = None, drop: float = 0.0, symbols: int = STATES + 1) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embedding, self.last = nn.Embedding(symbols, 16), nn.Linear(16, STATES)
        self.layer, self.drop = layer or nn.Identity(), drop

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = nn.functional.dropout(self.embedding(x), self.drop, self.training)
        return self.last(self.layer(hidden.mT).mT)

    def bound(self, x: Tensor, t: Tensor) -> Tensor:
        return self(x, t)


class Holder:
    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return self.net(x, t)


class Other:
    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def said(self, x: Tensor, t: Tensor) -> Tensor:
        return self.net(x, t)


GLOBAL = Net(nn.Dropout(0.1))
WAYS: dict[str, Callable[[Net], Callable[..., Tensor]]] = {
    "module": lambda net: net,
    "closure": lambda net: lambda x, t: net(x, t),
    "function in a closure": lambda net: (lambda inner: lambda x, t: inner(x, t))(lambda x, t: net(x, t)),
    "global": lambda net: lambda x, t: GLOBAL(x, t),
    "partial": lambda net: partial(lambda net, x, t: net(x, t), net),
    "method": lambda net: net.bound,
    "method of something else": lambda net: Other(net).said,
    "object": lambda net: Holder(net),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm1d(16)], ids=["dropout", "batch norm"])
def test_a_module_in_training_mode_is_found_before_it_acts(way, layer) -> None:
    net = GLOBAL if way == "global" else Net(layer)
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"network: its (Dropout|BatchNorm1d) runs in training mode.*call \.eval\(\) on the Net"
    ):
        run(made(WAYS[way](net)))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    net.eval()
    assert torch.equal(run(made(WAYS[way](net))).x, run(made(WAYS[way](net))).x)


def test_a_module_in_training_mode_that_does_not_run_is_no_mistake() -> None:
    both = nn.ModuleDict({"live": Net(nn.Dropout(0.1)).train(), "average": Net(nn.Dropout(0.1)).eval()})
    model = made(lambda x, t: both["average"](x, t))
    assert torch.equal(run(model).x, run(model).x)
    both["average"].train()
    with pytest.raises(ValueError, match="runs in training mode"):
        run(model)
    assert not any(part._forward_pre_hooks for part in both.modules()), "nothing is left behind"


def test_randomness_that_no_layer_tells_of_is_found_by_evaluating_twice() -> None:
    net = Net(drop=0.1)
    model = made(net)
    with pytest.raises(ValueError, match=r"network: says two things of the same input.*call \.eval\(\)"):
        run(model)
    net.eval()
    run(model)
    net.train()
    with pytest.raises(ValueError, match="says two things"):
        run(model)  # although it was looked through before
    trunk, head = net.embedding, lambda rows: net.last(nn.functional.dropout(rows, 0.1))
    with pytest.raises(ValueError, match="trunk and head: says two things"):
        run(tl.from_network(tl.Masked(STATES), length=LENGTH, trunk=trunk, head=head, time_free=True))


def test_training_mode_that_changes_nothing_is_no_mistake() -> None:
    net = Net(nn.Dropout(0.0)).train()
    assert torch.equal(run(made(net)).x, run(made(net.eval())).x)


def rows(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros((*x.shape, STATES), dtype=dtype)


class Timed(Net):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(self.embedding(x) + nn.functional.linear(t.view(-1, 1, 1), self.last.bias[:1].view(1, 1)))


PLAIN = nn.Sequential(nn.Embedding(STATES + 1, 4), nn.Linear(4, STATES))
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "probabilities": (lambda: made(lambda x, t: PLAIN(x).softmax(-1)), r"probabilities and no logits; give their log"),
    "no room for masks": (
        lambda: made(Net(symbols=STATES)),
        r"network=Net: fails .* int64 \(1, 6\), float64 \(1,\) \(IndexError.*must have states \+ 1 = 6 rows",
    ),
    "x alone": (lambda: made(PLAIN), r"network=Sequential: takes x alone, and so ignores time: say time_free=True"),
    "too many": (lambda: made(lambda x, t, y: x), r"network=<lambda>: must take network\(x, t\)"),
    "labels": (lambda: made(PLAIN, classes=3), r"network=Sequential: must take network\(x, t, label\)"),
    "padding": (lambda: made(Net(), attends=True), r"network=Net: must take network\(x, t, valid=\.\.\.\)"),
    "float64": (lambda: made(Timed()), r"network=Timed: fails.*the time is float64: let the network begin with"),
    "any error": (lambda: made(lambda x, t: x.nonsense), r"network=<lambda>: fails.*AttributeError.*call it yourself"),
    "shape": (lambda: made(lambda x, t: rows(x)[:, :, 1:]), r"network output=\(1, 6, 4\): must be logits of shape"),
    "dtype": (lambda: made(lambda x, t: rows(x).long()), "network output=torch.int64: must be floating-point logits"),
    "NaN": (lambda: made(lambda x, t: rows(x) / 0), "logits=NaN in the check before the run, sample 0, position 0"),
    "device": (lambda: made(lambda x, t: rows(x).to("meta")), "device='cpu': but logits come on meta; say where"),
    "time": (
        lambda: made(lambda x, t: rows(x) + t.view(-1, 1, 1) * torch.arange(STATES), time_free=True),
        "time_free=True: but network says something else at another time",
    ),
    "a raw module": (lambda: PLAIN, r"model=Sequential: is a network, and no model yet.*from_network\("),
    "a function": (lambda: rows, r"model=rows: is a network, and no model yet"),
    "a number": (lambda: 7, r"model=7: is no model; give the name of one, as in 'chain64'"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_with_their_remedy(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError), match=message) as found:
        run(make())
    assert "\n" not in str(found.value)


def test_a_network_that_takes_tokens_alone() -> None:
    alone = run(made(PLAIN, time_free=True))
    assert torch.equal(alone.x, run(made(lambda x, t: PLAIN(x), time_free=True)).x)
    split = tl.from_network(tl.Masked(STATES), length=LENGTH, trunk=PLAIN[0], head=PLAIN[1], time_free=True)
    assert torch.equal(alone.x, run(split).x)


# --- posteriors


def everywhere(model: Any, x: Tensor, t: Tensor) -> Tensor:
    return model(x, t).logits(torch.arange(x.numel())).view(*x.shape, -1)


def posterior(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Logits given all positions, their own included: those without it, and what its token says."""

    def network(x: Tensor, t: Tensor) -> Tensor:
        said = model.process.likelihood(x.flatten(), t.repeat_interleave(x.shape[1]).unsqueeze(1)).log()
        return everywhere(model, x, t) + said.view(*x.shape, -1)

    return network


@pytest.mark.parametrize("case", [uniform(2, (3, 3, 3)), birth_death(3, (3, 3, 3))], ids=lambda case: case.name)
def test_a_network_that_looks_at_its_own_position(case) -> None:
    model = case.model

    def own(network: Callable[..., Tensor], **more: Any) -> tl.models.Network:
        return tl.from_network(model.process, length=3, network=network, horizon=model.horizon, **more)

    with pytest.raises(ValueError, match=r"network: looks at the token of the very position.*say posterior=True"):
        run(own(posterior(model)))
    with pytest.raises(ValueError, match=r"posterior=True: but network leaves the position .* out already"):
        run(own(partial(everywhere, model), posterior=True))
    mended, plain = own(posterior(model), posterior=True), own(partial(everywhere, model))
    x, t = torch.tensor([[0, 1, 2], [2, 2, 0]]), torch.tensor([0.3, 1.0], dtype=torch.float64)
    torch.testing.assert_close(everywhere(mended, x, t), everywhere(plain, x, t), rtol=0, atol=1e-12)
    head = tl.from_network(
        model.process, length=3, horizon=model.horizon, trunk=posterior(model), head=lambda rows: rows, posterior=True
    )
    assert torch.equal(run(mended).x, run(plain).x)
    assert torch.equal(run(head).x, run(plain).x)
    with pytest.raises(ValueError, match="posterior=True: masks say nothing"):
        made(PLAIN, time_free=True, posterior=True)


# --- what it costs


@pytest.mark.parametrize(
    ("process", "time_free", "looks"),
    [(tl.Masked(STATES), False, 2), (tl.Masked(STATES), True, 3), (tl.Uniform(STATES), False, 6)],
    ids=["masked", "without time", "uniform"],
)
def test_looks_are_few_and_once_and_not_counted(process, time_free, looks) -> None:
    calls: list[int] = []

    def network(x: Tensor, t: Tensor) -> Tensor:
        calls.append(len(x))
        return rows(x)

    model = made(network, process, time_free=time_free)
    for times in (1, 2):
        out = run(tl.tempered(model, 0.5))
        assert sum(calls) == looks + times * int(out.spent.sum())
    assert int(out.nfe.max()) <= 3


@pytest.mark.parametrize("name", ["shakespeare", "shakespeare-uniform", "mnist", "sums"])
def test_models_of_the_package_pass_and_are_not_looked_through_again(name: str, monkeypatch) -> None:
    model = tl.load(name)
    replace(model, name="").inspect()
    monkeypatch.setattr("thetaleap.models.network.probe", None)
    model.inspect()
