"""Chains of higher order, strips, trees, noisy models and fitted texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thetaleap as tl
from tests.models import test_oracles as shared
from tests.models.test_oracles import all_sequences, conditionals, tensor
from thetaleap.models.oracles import Oracle, chains

HALF = tensor([0.5, 0.5])
TREE = (-1, 0, 0, 1, 1, 2)


def rows(seed: int, *shape: int, concentration: float = 0.6) -> torch.Tensor:
    """Random probabilities over the last dimension."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.dirichlet([concentration] * shape[-1], size=shape[:-1]))


def law(seed: int, *shape: int) -> torch.Tensor:
    return rows(seed, 1, math.prod(shape)).view(shape)


def hidden(x: torch.Tensor, mask: int, seed: int, kept: float) -> torch.Tensor:
    """`x` with each position masked with probability 1 - kept."""
    gone = torch.from_numpy(np.random.default_rng(seed).random(x.shape) >= kept)
    return torch.where(gone, mask, x)


# --- small ones, by brute force

ORDER2 = tl.oracles.markov_chain(rows(0, 3, 3, 3), 5)
ORDER3 = tl.oracles.markov_chain(rows(1, 2, 2, 2, 2), 7, initial=law(2, 2, 2, 2))
# some of it impossible: never 1 after (0, 1), nor 0 after (1, 1), and never 1 at the start
BROKEN = tl.oracles.markov_chain(
    tensor([[[0.5, 0.5], [1.0, 0.0]], [[0.3, 0.7], [0.0, 1.0]]]), 5, initial=tensor([[0.4, 0.6], [0.0, 0.0]])
)
SHORT = tl.oracles.markov_chain(rows(3, 2, 2, 2, 2), 3)
ISING = tl.oracles.ising(3, 3, 0.5, field=0.3)
POTTS = tl.oracles.potts(3, 2, 3, -0.8)
BRANCHING = tl.oracles.tree(TREE, law(4, 3), rows(5, 6, 3, 3))
STAR = tl.oracles.tree([-1, 0, 0, 0, 0], law(6, 3), rows(7, 3, 3))


def chain_weight(model: tl.oracles.MarkovChain, x: tuple[int, ...]) -> float:
    k, weight = model.initial.ndim, float(model.initial[x[: model.initial.ndim]])
    for end in range(k, len(x)):
        weight *= float(model.transition[x[end - k : end + 1]])
    return weight


def neighbours(height: int, width: int) -> list[tuple[int, int]]:
    """Pairs of positions at distance one, by their places in the plane."""
    places = {(r, c): r * width + c for r in range(height) for c in range(width)}
    return [
        (places[a], places[b]) for a, b in itertools.combinations(places, 2) if abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1
    ]


def ising_weight(x: tuple[int, ...]) -> float:
    spin = [2 * v - 1 for v in x]
    return math.exp(0.5 * sum(spin[i] * spin[j] for i, j in neighbours(3, 3)) + 0.3 * sum(spin))


def potts_weight(x: tuple[int, ...]) -> float:
    return math.exp(-0.8 * sum(x[i] == x[j] for i, j in neighbours(2, 3)))


def tree_weight(model: tl.oracles.Tree, x: tuple[int, ...]) -> float:
    steps = [float(model.edges[n, x[model.parents[n]], x[n]]) for n in range(1, len(x))]
    return float(model.root[x[0]]) * math.prod(steps)


Weight = Callable[[tuple[int, ...]], float]
SMALL: dict[str, tuple[Oracle, Weight]] = {
    "order 2": (ORDER2, lambda x: chain_weight(ORDER2, x)),
    "order 3": (ORDER3, lambda x: chain_weight(ORDER3, x)),
    "impossible": (BROKEN, lambda x: chain_weight(BROKEN, x)),
    "as long as its order": (SHORT, lambda x: chain_weight(SHORT, x)),
    "Ising": (ISING, ising_weight),
    "Potts": (POTTS, potts_weight),
    "tree": (BRANCHING, lambda x: tree_weight(BRANCHING, x)),
    "star": (STAR, lambda x: tree_weight(STAR, x)),
}
MODELS = [pytest.param(model, id=name) for name, (model, _) in SMALL.items()]


@pytest.mark.parametrize(("model", "weight"), SMALL.values(), ids=SMALL)
def test_likelihood_is_the_normalised_product(model: Oracle, weight: Weight) -> None:
    x = all_sequences(model.process.states, model.length)
    weights = np.array([weight(tuple(row)) for row in x.tolist()])
    np.testing.assert_allclose(model.log_prob(x).exp(), weights / weights.sum(), rtol=1e-11)


@pytest.mark.parametrize("model", MODELS)
def test_conditionals_and_entropy_are_those_of_the_joint(model: Oracle) -> None:
    """For all partially masked sequences, those that cannot happen included."""
    shared.test_others_agree_with_their_joint(model)


@pytest.mark.parametrize("model", MODELS)
def test_draws_follow_the_law(model: Oracle) -> None:
    """Chi-square at 1e-9 on 1e5 draws; a law off by 2% in total variation would be caught, as would positions numbered
    by columns or a first k-gram drawn from the wrong law."""
    shared.test_true_samples_follow_the_law(model)


@settings(max_examples=25)
@given(order=st.integers(1, 3), states=st.integers(2, 3), extra=st.integers(0, 2), seed=st.integers(0, 10**6))
def test_chains_of_any_order_agree_with_their_joint(order: int, states: int, extra: int, seed: int) -> None:
    transition = rows(seed, *[states] * (order + 1))
    shared.test_others_agree_with_their_joint(tl.oracles.markov_chain(transition, order + extra))


@settings(max_examples=25)
@given(data=st.data(), length=st.integers(1, 6), states=st.integers(2, 3), seed=st.integers(0, 10**6))
def test_trees_of_any_form_agree_with_their_joint(data, length: int, states: int, seed: int) -> None:
    parents = [-1, *(data.draw(st.integers(0, position - 1)) for position in range(1, length))]
    shared.test_others_agree_with_their_joint(
        tl.oracles.tree(parents, law(seed, states), rows(seed, length, states, states))
    )


@settings(max_examples=25)
@given(
    shape=st.sampled_from([(1, 1), (1, 5), (5, 1), (2, 3), (3, 2), (2, 4)]),
    coupling=st.floats(-3, 3),
    field=st.floats(-2, 2),
)
def test_strips_of_any_form_agree_with_their_joint(shape: tuple[int, int], coupling: float, field: float) -> None:
    shared.test_others_agree_with_their_joint(tl.oracles.ising(*shape, coupling, field))


# --- long ones, by another way


def log_pair_messages(transition: np.ndarray, initial: np.ndarray, x: list[int]) -> np.ndarray:
    """Conditionals at masked positions of a chain of order 2, by logarithms of messages over pairs."""
    states, length = len(initial), len(x)
    with np.errstate(divide="ignore"):
        evidence = np.log([np.ones(states) if v == states else np.eye(states)[v] for v in x])
        table, start = np.log(transition), np.log(initial)
    forward, backward = np.empty((length, states, states)), np.zeros((length, states, states))
    forward[1] = start + evidence[0][:, None] + evidence[1]
    for n in range(2, length):  # forward[n][i, j]: x_{n-1} = i, x_n = j, and all that is seen up to n
        forward[n] = scipy.special.logsumexp(forward[n - 1][:, :, None] + table, axis=0) + evidence[n]
    for n in range(length - 2, 0, -1):
        backward[n] = scipy.special.logsumexp(table + (evidence[n + 1] + backward[n + 1]), axis=2)
    both = forward + backward
    logits = [scipy.special.logsumexp(both[1], axis=1), *(scipy.special.logsumexp(b, axis=0) for b in both[1:])]
    return scipy.special.softmax(np.array(logits), axis=1)


@settings(max_examples=4)
@given(seed=st.integers(0, 1000), kept=st.floats(0, 0.9))
def test_long_order_2_chain_does_not_underflow(seed: int, kept: float) -> None:
    """At length 1024, where what is seen can have a probability below exp(-3000)."""
    states, length = 4, 1024
    model = tl.oracles.markov_chain(rows(seed, states, states, states, concentration=0.2) * 0.999 + 0.001 / 4, length)
    anything = torch.from_numpy(np.random.default_rng(seed).integers(0, states, (1, length)))
    x = hidden(anything, states, seed, kept)
    expected = log_pair_messages(model.transition.numpy(), model.initial.numpy(), x[0].tolist())
    gone = (x[0] == states).numpy()
    np.testing.assert_allclose(conditionals(model, x, 0.5)[0].numpy()[gone], expected[gone], atol=1e-9)


def agree(one: Oracle, other: Oracle, x: torch.Tensor) -> None:
    """Two oracles of one law say the same about clean sequences `x` and about parts of them."""
    torch.testing.assert_close(one.log_prob(x), other.log_prob(x), rtol=1e-10, atol=1e-9)
    assert one.entropy() == pytest.approx(other.entropy(), rel=1e-10)
    for kept in (0.0, 0.3, 0.8):
        part = hidden(x, one.process.states, 5, kept)
        torch.testing.assert_close(conditionals(one, part, 0.5), conditionals(other, part, 0.5), atol=1e-9, rtol=0)


def test_chains_in_disguise() -> None:
    """A chain of order 1 is one of order 2 that forgets, a tree without branches, and (if symmetric) a row of spins."""
    plain, length = rows(0, 4, 4), 300
    chain = tl.oracles.markov_chain(plain, length, initial=law(1, 4))
    pairs = tl.oracles.markov_chain(plain.expand(4, 4, 4), length, initial=chain.initial.unsqueeze(1) * plain)
    line = tl.oracles.tree([position - 1 for position in range(length)], chain.initial, plain)
    x = chain.draw(3)
    agree(pairs, chain, x)
    agree(line, chain, x)
    torch.testing.assert_close(pairs.starts, chain.starts)
    same = 1 / (1 + math.exp(-2 * 0.7))
    symmetric = tl.oracles.markov_chain(tensor([[same, 1 - same], [1 - same, same]]), 1024)
    agree(tl.oracles.ising(1, 1024, 0.7), symmetric, all_sequences(2, 2).repeat(1, 512))


@pytest.mark.parametrize(("height", "width", "states"), [(12, 3, 2), (5, 2, 4), (7, 2, 3)])
def test_strips_can_be_turned(height: int, width: int, states: int) -> None:
    """Up to 4096 columns at once, against the same grid on its side; two states are an Ising model."""
    upright, lying = (tl.oracles.potts(states, *shape, 0.9) for shape in ((height, width), (width, height)))
    x = upright.draw(20, seed=1)
    turn = torch.arange(height * width).view(height, width).T.flatten()
    torch.testing.assert_close(upright.log_prob(x), lying.log_prob(x[:, turn]))
    assert upright.entropy() == pytest.approx(lying.entropy(), abs=1e-9)
    x = hidden(x, states, 2, 0.5)
    torch.testing.assert_close(conditionals(upright, x, 0.5)[:, turn], conditionals(lying, x[:, turn], 0.5))
    if states == 2:
        spins = tl.oracles.ising(height, width, 0.45)
        torch.testing.assert_close(conditionals(upright, x, 0.5), conditionals(spins, x, 0.5))


def test_a_root_of_many_children_does_not_underflow() -> None:
    """1001 leaves speak for 0 and 999 for 1, each at odds of 9: as a product below 9**-999, but in sum odds of 9**2."""
    model = tl.oracles.tree([-1] + [0] * 2000, HALF, tensor([[0.9, 0.1], [0.1, 0.9]]))
    x = torch.tensor([[2] + [0, 1] * 999 + [0, 0]] * 3)
    x[1, 2], x[2, 1998] = 2, 2  # an early and a late one for 1, which then follow the root
    seen, root = conditionals(model, x, 0.5), 9**3 / (1 + 9**3)
    assert seen[:, 0, 0].tolist() == pytest.approx([9**2 / (1 + 9**2), root, root], rel=1e-9)
    assert float(seen[1, 2, 0]) == pytest.approx(0.9 * root + 0.1 * (1 - root), rel=1e-9)
    assert float(seen[2, 1998, 0]) == pytest.approx(0.9 * root + 0.1 * (1 - root), rel=1e-9)


@pytest.mark.parametrize("most", [1024, 0], ids=["equations", "rounds"])
def test_stationary_by_default(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step leaves the law of pairs as it is, for periodic chains too."""
    monkeypatch.setattr(chains, "MOST_EQUATIONS", most)
    model = tl.oracles.markov_chain(rows(3, 4, 4, 4), 8)
    moved = torch.einsum("xy,xyz->yz", model.initial, model.transition)
    torch.testing.assert_close(moved, model.initial, atol=1e-12, rtol=0)
    away_and_back = tensor([[0.0, 0.3, 0.7], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    periodic = tl.oracles.markov_chain(away_and_back.expand(3, 3, 3), 4)
    assert periodic.starts.flatten().tolist() == pytest.approx([0.5, 0.15, 0.35] * 4)


def test_slow_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one that hardly moves still has its stationary law; of a large one we hear that it is not known."""
    slow = tensor([[1 - 1e-5, 1e-5], [3e-5, 1 - 3e-5]]).expand(2, 2, 2)
    assert tl.oracles.markov_chain(slow, 4).starts[0].tolist() == pytest.approx([0.75, 0.25])
    monkeypatch.setattr(chains, "MOST_EQUATIONS", 0)
    monkeypatch.setattr(chains, "MOST_ROUNDS", 50)
    with pytest.raises(ValueError, match=r"not come to rest after 50 steps .* give initial"):
        tl.oracles.markov_chain(slow, 4)


def test_only_samples_asked_about_are_worked_out_and_once() -> None:
    """What is asked for, in any order and in parts, is the same; asking for nothing is fine."""
    for model in (ORDER2, ISING, BRANCHING):
        x = hidden(model.draw(40), model.process.states, 1, 0.5)
        whole = conditionals(model, x, 0.5).flatten(0, 1)
        seen = model(x, torch.tensor(0.5, dtype=torch.float64))
        some = torch.tensor([7 * model.length + 1, 3 * model.length, 7 * model.length])
        for positions in (some, some[:0], torch.arange(x.numel())):
            torch.testing.assert_close(torch.softmax(seen.logits(positions), 1), whole[positions])
        assert seen.duplicates() is None


# --- all of them


def test_shapes() -> None:
    assert {name: tl.load(name).shape for name, entry in tl.models.BUILT_IN.items() if not entry.options} == {
        "toy15": None,
        "cube3": None,
        "cube3-uniform": None,
        "chain64": (64,),
        "chain2-64": (64,),
        "ising4x16": (4, 16),
        "tree31": None,
        "mixture32": None,
        "shuffle16": None,
        "latin4": (4, 4),
    }


@pytest.mark.parametrize("name", ["chain2-64", "ising4x16", "tree31"])
def test_exact_solver_finds_the_entropy_of_built_in_models(name: str) -> None:
    """First hitting has no error of its own, so the mean of -log P is the entropy, within six standard errors: a
    false alarm in 1e8 runs. Conditionals that cost 3 nats a sample, of 25 to 53, would be caught."""
    model = tl.load(name)
    assert isinstance(model, Oracle)
    log_p = model.log_prob(tl.sample(model, tl.FirstHitting(), num=400).x)
    assert abs(-float(log_p.mean()) - model.entropy()) < 6 * float(log_p.std()) / 20


# --- errors

EVEN = tensor([[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tl.oracles.markov_chain(rows(0, 2, 3, 3), 4), r"transition shape=\(2, 3, 3\): give \(S, S\)"),
        (lambda: tl.oracles.markov_chain(HALF, 4), r"transition shape=\(2,\)"),
        (lambda: tl.oracles.markov_chain(rows(0, 2, 2, 2), 1), "length=1: .* at least 2"),
        (lambda: tl.oracles.markov_chain(rows(0, 2, 2, 2), 4, initial=HALF), r"initial shape=\(2,\): give \(2, 2\)"),
        (lambda: tl.oracles.ising(0, 3, 0.5), "height=0"),
        (lambda: tl.oracles.ising(3, 0, 0.5), "width=0"),
        (lambda: tl.oracles.ising(13, 3, 0.5), r"height=13: 2\*\*13 .*shorter side"),
        (lambda: tl.oracles.potts(17, 3, 3, 0.5), r"height=3: 17\*\*3"),
        (lambda: tl.oracles.potts(1, 3, 3, 0.5), "states=1"),
        (lambda: tl.oracles.ising(3, 3, math.nan), "coupling=nan: give a finite number"),
        (lambda: tl.oracles.ising(3, 3, 0.5, math.inf), "field=inf: give a finite number"),
        (lambda: tl.oracles.ising(3, 3, 100.0), "log-weights=1600.*: at most 600, .* lower the coupling"),
        (lambda: tl.oracles.ising(3, 3, 0.5, process=tl.Uniform(2)), "process=Uniform: .*use joint"),
        (lambda: tl.oracles.potts(3, 2, 3, 0.5, process=tl.Masked(2)), "process.states=2: the strip has 3"),
        (lambda: tl.oracles.ising(2, 2, 0.5, horizon=-1.0), "horizon=-1.0"),
        (lambda: tl.oracles.tree([], HALF, EVEN), "begin with -1"),
        (lambda: tl.oracles.tree([0, 0], HALF, EVEN), r"parents=\(0,\): .*begin with -1"),
        (lambda: tl.oracles.tree([-1, 0, 2], HALF, EVEN), r"parents\[2\]=2: give a position before it, 0 to 1"),
        (lambda: tl.oracles.tree([-1, 0, -1], HALF, EVEN), r"parents\[2\]=-1"),
        (lambda: tl.oracles.tree([-1, 0], EVEN / 2, EVEN), r"root shape=\(2, 2\): give \(S,\)"),
        (lambda: tl.oracles.tree([-1, 0], HALF, rows(0, 3, 2, 2)), r"edges shape=\(3, 2, 2\): .*\(2, 2, 2\)"),
        (lambda: tl.oracles.tree([-1, 0], HALF, 2 * EVEN), "edges sums to 2"),
        (lambda: tl.oracles.tree([-1, 0], HALF, EVEN, tl.Uniform(2)), "a tree is exact under Masked only"),
        (lambda: ISING.draw(0), "num=0"),
        (lambda: BRANCHING.draw(0), "num=0"),
        (lambda: ISING.log_prob(torch.tensor([[0, 1, 2]])), r"\(batch, 9\)"),
        (lambda: BRANCHING.log_prob(torch.full((1, 6), 3)), "token 3"),
    ],
)
def test_bad_arguments(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
