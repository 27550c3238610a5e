"""Oracles: conditionals, likelihood, entropy and samples against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thetaleap as tl
from tests.cases import CASES, Case, dirichlet
from thetaleap.models.oracles import Oracle


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def conditionals(model: tl.oracles.Oracle, x: torch.Tensor, t: float | torch.Tensor) -> torch.Tensor:
    """All rows of `model` at (x, t), as probabilities (b, d, S)."""
    time = torch.as_tensor(t, dtype=torch.float64)
    return torch.softmax(model(x, time).logits(torch.arange(x.numel())), 1).view(*x.shape, -1)


def all_sequences(states: int, length: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product(range(states), repeat=length)))


def chain(seed: int, states: int, length: int, **options) -> tl.oracles.MarkovChain:
    rng = np.random.default_rng(seed)
    transition = torch.from_numpy(rng.dirichlet([0.6] * states, size=states))
    return tl.oracles.markov_chain(transition, length, **options)


def blend(seed: int, components: int, length: int, states: int, process=None) -> tl.oracles.Mixture:
    rng = np.random.default_rng(seed)
    positions = torch.from_numpy(rng.dirichlet([0.6] * states, size=(components, length)))
    return tl.oracles.mixture(torch.from_numpy(rng.dirichlet([1.0] * components)), positions, process)


def table(model: Oracle) -> torch.Tensor:
    """The whole law of a small oracle, from its likelihood."""
    states, length = model.process.states, model.length
    return model.log_prob(all_sequences(states, length)).exp().view((states,) * length)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("u", [0.05, 0.4, 1.0])
def test_joint_conditionals_are_bayes_rule(case: Case, u: float) -> None:
    model, t = case.model, u * case.times[0]
    values = model.process.states + (model.process.mask is not None)
    x = all_sequences(values, model.length)
    expected = [[case.truth.c(tuple(row), position, t) for position in range(model.length)] for row in x.tolist()]
    np.testing.assert_allclose(conditionals(model, x, t), np.array(expected), atol=1e-12)
    # a time for each row takes another way through the code
    each = torch.full((len(x),), t, dtype=torch.float64)
    np.testing.assert_allclose(conditionals(model, x, each), np.array(expected), atol=1e-12)


SMALL = [chain(0, 3, 4), chain(1, 2, 6), blend(2, 3, 4, 3), blend(3, 2, 3, 4, tl.Uniform(4))]
SMALL_IDS = [f"{type(m).__name__}{m.process.states}^{m.length}" for m in SMALL]


@pytest.mark.parametrize("model", SMALL, ids=SMALL_IDS)
def test_others_agree_with_their_joint(model: Oracle) -> None:
    p0 = table(model)
    assert float(p0.sum()) == pytest.approx(1, abs=1e-12)
    same = tl.oracles.joint(p0, model.process, horizon=model.horizon)
    values = model.process.states + (model.process.mask is not None)
    x, t = all_sequences(values, model.length), 0.3
    torch.testing.assert_close(conditionals(model, x, t), conditionals(same, x, t), atol=1e-11, rtol=0)
    each = torch.linspace(0.1, 0.9, len(x), dtype=torch.float64)
    torch.testing.assert_close(conditionals(model, x, each), conditionals(same, x, each), atol=1e-11, rtol=0)
    assert model.entropy() == pytest.approx(float(-torch.xlogy(p0, p0).sum()), abs=1e-11)
    assert model.entropy() == pytest.approx(same.entropy(), abs=1e-11)


@pytest.mark.parametrize("model", [*SMALL, CASES[0].model], ids=[*SMALL_IDS, "Joint"])
def test_true_samples_follow_the_law(model: Oracle) -> None:
    """Chi-square at 1e-9 on 1e5 draws; a law off by 2% in total variation would be caught."""
    p0, x = table(model).flatten(), model.draw(100_000, seed=3)
    base = model.process.states ** torch.arange(model.length - 1, -1, -1)
    counts = torch.bincount((x * base).sum(1), minlength=len(p0))
    few = p0 * 100_000 < 5
    observed = np.append(counts[~few].numpy(), int(counts[few].sum()))
    expected = np.append((p0[~few] * 100_000).numpy(), float(p0[few].sum()) * 100_000)
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    assert scipy.stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-9
    assert torch.equal(model.draw(10, seed=3), x[:10])
    assert not torch.equal(model.draw(10, seed=4), x[:10])


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), kept=st.floats(0, 1))
def test_long_chain_by_forward_backward(seed: int, kept: float) -> None:
    """At length 1024, against messages passed along the whole chain."""
    states, length = 5, 1024
    model = chain(seed, states, length)
    rng = np.random.default_rng(seed)
    x = model.draw(1, seed).clone()
    x[0, torch.from_numpy(rng.random(length) > kept)] = states
    evidence = np.array([np.ones(states) if v == states else np.eye(states)[v] for v in x[0].tolist()])
    a, forward, backward = model.transition.numpy(), np.empty((length, states)), np.ones((length, states))
    forward[0] = model.initial.numpy()
    for n in range(1, length):
        message = (forward[n - 1] * evidence[n - 1]) @ a
        forward[n] = message / message.sum()
        m = length - 1 - n
        message = a @ (backward[m + 1] * evidence[m + 1])
        backward[m] = message / message.sum()
    expected = forward * backward
    expected /= expected.sum(1, keepdims=True)
    hidden = (x[0] == states).numpy()
    np.testing.assert_allclose(conditionals(model, x, 0.5)[0].numpy()[hidden], expected[hidden], atol=1e-9)


def test_long_entropies() -> None:
    """Chain: by the chain rule. Mixture of alike positions: by Monte Carlo, within six standard errors."""
    model = chain(0, 4, 1024)
    rate = float(-(model.initial @ torch.xlogy(model.transition, model.transition).sum(1)))
    first = float(-torch.xlogy(model.initial, model.initial).sum())
    assert model.entropy() == pytest.approx(first + 1023 * rate, rel=1e-10)
    mixed = tl.load("mixture32")
    log_p = mixed.log_prob(mixed.draw(20_000, seed=1))
    assert abs(-float(log_p.mean()) - mixed.entropy()) < 6 * float(log_p.std()) / math.sqrt(20_000)
    with pytest.raises(ValueError, match="no closed form"):
        blend(0, 3, 64, 5).entropy()


def test_a_chain_starts_where_it_is_told() -> None:
    sure = tl.oracles.markov_chain(tensor([[0.5, 0.5], [0.5, 0.5]]), 3, initial=tensor([0.0, 1.0]))
    assert sure.draw(20)[:, 0].tolist() == [1] * 20
    still = tl.oracles.markov_chain(tensor([[0.9, 0.1], [0.3, 0.7]]), 3)
    assert still.initial.tolist() == pytest.approx([0.75, 0.25])


def test_the_impossible_is_uniform() -> None:
    """Parallel draws can reach what the law cannot; an oracle then says that it has no idea."""
    equal = tl.oracles.joint(tensor([[[0.5, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.5]]]), tl.Masked(2))
    assert conditionals(equal, torch.tensor([[0, 1, 2]]), 0.5)[0, 2].tolist() == [0.5, 0.5]
    assert conditionals(equal, torch.tensor([[0, 2, 2]]), 0.5)[0, 2].tolist() == [1.0, 0.0]
    blocked = tl.oracles.markov_chain(tensor([[1.0, 0.0], [0.0, 1.0]]), 3, initial=tensor([0.5, 0.5]))
    assert conditionals(blocked, torch.tensor([[0, 2, 1]]), 0.5)[0, 1].tolist() == [0.5, 0.5]
    split = tl.oracles.mixture(tensor([0.5, 0.5]), tensor([[[1.0, 0.0]] * 3, [[0.0, 1.0]] * 3]))
    assert conditionals(split, torch.tensor([[0, 1, 2]]), 0.5)[0, 2].tolist() == [0.5, 0.5]
    assert conditionals(split, torch.tensor([[1, 2, 2]]), 0.5)[0, 2].tolist() == [0.0, 1.0]


HALF = tensor([0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: tl.oracles.joint(tensor([0.5, 0.6]), tl.Uniform(2)), ValueError, "sums to 1.1"),
        (lambda: tl.oracles.joint(tensor([1.5, -0.5]), tl.Uniform(2)), ValueError, "negative entry -0.5"),
        (lambda: tl.oracles.joint(tensor([math.nan, 1.0]), tl.Uniform(2)), ValueError, "NaN"),
        (lambda: tl.oracles.joint(torch.tensor([1, 0]), tl.Uniform(2)), TypeError, "floating-point"),
        (lambda: tl.oracles.joint(HALF, tl.Uniform(3)), ValueError, "S = 3"),
        (lambda: tl.oracles.joint(HALF, tl.Uniform(2), horizon=0.0), ValueError, "horizon=0.0"),
        (lambda: tl.oracles.joint(dirichlet(0, (2, 3)), tl.Uniform(2)), ValueError, "p0 shape"),
        (lambda: tl.oracles.markov_chain(tensor([[0.5, 0.5], [0.4, 0.5]]), 3), ValueError, "transition sums to 0.9"),
        (lambda: tl.oracles.markov_chain(dirichlet(0, (1, 3)), 3), ValueError, "transition shape"),
        (lambda: chain(0, 2, 0), ValueError, "length=0"),
        (lambda: chain(0, 2, 3, process=tl.Uniform(2)), ValueError, "joint"),
        (lambda: chain(0, 2, 3, process=tl.Masked(3)), ValueError, "process.states=3"),
        (lambda: chain(0, 2, 3, initial=tensor([1.0])), ValueError, "initial shape"),
        (lambda: tl.oracles.mixture(HALF, tensor([[[0.5, 0.5]]])), ValueError, "shapes"),
        (lambda: chain(0, 2, 3).log_prob(torch.tensor([[0, 1, 2]])), ValueError, "token 2"),
        (lambda: chain(0, 2, 3).log_prob(torch.tensor([[0, 1, -1]])), ValueError, "token -1"),
        (lambda: chain(0, 2, 3).log_prob(torch.tensor([[0, 1]])), ValueError, r"\(batch, 3\)"),
        (lambda: chain(0, 2, 3).draw(0), ValueError, "num=0"),
    ],
)
def test_bad_oracles(call, kind, message) -> None:
    with pytest.raises(kind, match=message):
        call()
