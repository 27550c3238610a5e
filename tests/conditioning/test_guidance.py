"""Guidance: two evaluations, with and without the condition, blended as the formula says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thetaleap as tl
from tests.cases import SOLVERS, allowed, informed, masked
from thetaleap.core.evaluation import Denoiser
from thetaleap.core.reverse import Reverse
from thetaleap.models import Network
from thetaleap.solvers import Solver

LENGTH, STATES, CLASSES = 4, 3, 5
INF = math.inf
PROCESSES = [tl.Masked(STATES), tl.Uniform(STATES)]
PAIRS = [
    (process, solver)
    for process in PROCESSES
    for solver in SOLVERS
    if allowed(solver, process) and not informed(solver)
]
KINDS = list({(type(process), type(solver)): (process, solver) for process, solver in PAIRS}.values())
"""One solver of each kind."""


class Labelled:
    """A small network that takes labels, and keeps count of the rows it was run on and of the times it saw."""

    def __init__(self, process=PROCESSES[0], *, time_free: bool = False, attends: bool = False) -> None:
        made = torch.Generator().manual_seed(1)
        self.embedding = torch.randn(LENGTH, STATES + 1, 8, generator=made, dtype=torch.float64)
        self.label = torch.randn(CLASSES + 1, 1, 8, generator=made, dtype=torch.float64)
        self.last = 2 * torch.randn(8, STATES, generator=made, dtype=torch.float64)
        self.process, self.time_free, self.attends = process, time_free, attends
        self.runs = 0

    def __call__(self, x: Tensor, t: Tensor, label: Tensor, valid: Tensor | None = None) -> Tensor:
        self.runs += len(x)
        seen = self.embedding[torch.arange(LENGTH), x]
        if valid is not None:
            seen = seen * valid.unsqueeze(2)
        others = seen.sum(1, keepdim=True) - seen
        late = 0 if self.time_free else t.view(-1, 1, 1)
        return torch.tanh(others / 2 + self.embedding[:, -1] + self.label[label] + late) @ self.last

    def model(self) -> Network:
        model = tl.from_network(
            self.process,
            length=LENGTH,
            network=self,
            horizon=None if self.process.mask is not None else 4.0,
            classes=CLASSES,
            time_free=self.time_free,
            attends=self.attends,
        )
        model.inspect()
        self.runs = 0  # the runs count, not the look before the first
        return model


def budget(solver: Solver, nfe: int = 8) -> dict[str, Any]:
    return {} if solver.evaluations is None else {"nfe": nfe}


def everywhere(model: Denoiser, x: Tensor, t: float) -> Tensor:
    """All rows as solvers see them."""
    evaluation = Reverse.begin(model, len(x)).evaluate(x, t)
    return evaluation.probabilities(torch.arange(x.numel())).view(*x.shape, -1)


def two_rows(told: list[float], blind: list[float]) -> Network:
    """One position, of which the network says the one with the label 0 and the other without."""
    rows = torch.tensor([told, blind], dtype=torch.float64)
    return tl.from_network(
        tl.Masked(len(told)), length=1, classes=1, network=lambda x, t, label: rows[label].unsqueeze(1)
    )


# --- closed forms


@settings(max_examples=20)
@given(st.data())
def test_labels_are_blended_as_the_formula_says(data) -> None:
    process = data.draw(st.sampled_from(PROCESSES))
    network = Labelled(process).model()
    num, w = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([0.0, 0.5, 1.0, 7.5]))
    labels = torch.tensor(data.draw(st.lists(st.integers(0, CLASSES - 1), min_size=num, max_size=num)))
    x = torch.tensor(data.draw(st.lists(st.integers(0, STATES - 1), min_size=4 * num, max_size=4 * num))).view(num, 4)
    t = data.draw(st.sampled_from([0.1, 0.8]))
    time = torch.tensor(t, dtype=torch.float64).expand(num)
    told = Labelled(process)(x, time, labels)
    blind = Labelled(process)(x, time, torch.full_like(labels, CLASSES))
    wanted = torch.softmax((1 + w) * told - w * blind, 2)
    torch.testing.assert_close(everywhere(tl.guided(network, w, labels), x, t), wanted, rtol=1e-12, atol=1e-14)
    everyone = tl.guided(network, w, int(labels[0]))
    torch.testing.assert_close(everywhere(everyone, x, t)[0], wanted[0], rtol=1e-12, atol=1e-14)


@settings(max_examples=20)
@given(st.data())
def test_positions_are_blended_as_the_formula_says(data) -> None:
    case = masked(1, (3, 3, 3))
    num, w = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([0.0, 0.5, 3.0]))
    x = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=3 * num, max_size=3 * num))).view(num, 3)
    rows = num if data.draw(st.booleans()) else 1
    cells = data.draw(st.lists(st.booleans(), min_size=3 * rows, max_size=3 * rows))
    positions = torch.tensor(cells).view(rows, 3)
    told, blind = (everywhere(case.model, y, 0.5).log() for y in (x, x.masked_fill(positions, 3)))
    wanted = torch.softmax((1 + w) * told - w * blind, 2)
    guided = tl.guided(case.model, w, positions if rows > 1 or num == 1 else positions[0])
    torch.testing.assert_close(everywhere(guided, x, 0.5), wanted, rtol=1e-10, atol=1e-13)


def test_what_the_condition_forbids_stays_forbidden_and_what_it_alone_allows_is_its_own_to_weigh() -> None:
    """Row by row, and whatever constants the network's logits carry."""
    told, blind = [0.5, 0.3, 0.2, 0.0], [0.25, 0.0, 0.25, 0.5]
    weights = [0.5 * (0.5 / 0.25) ** 2, 0.3, 0.2 * (0.2 / 0.25) ** 2, 0.0]
    wanted = [weight / sum(weights) for weight in weights]
    for up, down in ((0.0, 0.0), (5.0, -3.0), (-40.0, 0.0)):
        rows = [[math.log(p) + shift if p else -INF for p in row] for row, shift in ((told, up), (blind, down))]
        seen = everywhere(tl.guided(two_rows(*rows), 2.0, 0), torch.tensor([[4]]), 0.5)
        assert seen.flatten().tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("told", "blind", "message"),
    [
        ([-INF, -INF], [0.0, 0.0], "minus infinity for every value"),
        ([math.nan, 0.0], [0.0, 0.0], "NaN"),
        ([0.0, 0.0], [math.nan, 0.0], "NaN"),
        ([INF, 0.0], [0.0, 0.0], r"\+infinity"),
    ],
)
def test_bad_rows_are_not_mended(told, blind, message) -> None:
    with pytest.raises(ValueError, match=f"logits={message}"):
        tl.sample(tl.guided(two_rows(told, blind), 1.0, 0), tl.Tweedie(), nfe=2)


# --- counting


@pytest.mark.parametrize(("process", "solver"), PAIRS, ids=str)
def test_a_weight_of_zero_is_the_model_under_the_condition(process, solver: Solver) -> None:
    network = Labelled(process, time_free=process.mask is not None)
    always = tl.from_network(
        process,
        length=LENGTH,
        network=lambda x, t: network(x, t, torch.full((len(x),), 2)),
        horizon=network.model().horizon,
        time_free=network.time_free,
    )
    plain = tl.sample(always, solver, num=3, **budget(solver))
    zero = tl.sample(tl.guided(network.model(), 0, 2), solver, num=3, **budget(solver))
    assert torch.equal(plain.x, zero.x)
    assert torch.equal(plain.nfe, zero.nfe)
    assert torch.equal(plain.spent, zero.spent)
    if process.mask is not None:
        unlabelled = tl.sample(network.model(), solver, num=3, **budget(solver))
        positions = tl.guided(network.model(), 0.0, torch.tensor([True, False, True, False]))
        out = tl.sample(positions, solver, num=3, **budget(solver))
        assert torch.equal(out.x, unlabelled.x)
        assert torch.equal(out.nfe, unlabelled.nfe)


@pytest.mark.parametrize(("process", "solver"), KINDS, ids=str)
def test_guidance_counts_two_evaluations_and_keeps_to_the_budget(process, solver: Solver) -> None:
    """Odd budgets leave one over; what the network was run on is what `spent` says."""
    for nfe in (8, 9):
        network = Labelled(process, time_free=process.mask is not None)
        out = tl.sample(tl.guided(network.model(), 1.5, [0, 3]), solver, num=2, seed=2, **budget(solver, nfe))
        assert int(out.spent.sum()) == network.runs
        assert bool((out.nfe % 2 == 0).all())
        if solver.evaluations is None:
            break
        assert int(out.nfe.max()) <= 8
        if process.mask is None:
            finish = 0 if solver.reaches_data(process) else 1
            assert out.nfe.tolist() == [2 * ((4 - finish) // solver.evaluations * solver.evaluations + finish)] * 2


def test_budgets_that_are_too_small_say_what_they_need() -> None:
    model = tl.guided(Labelled().model(), 1.0, 0)
    with pytest.raises(ValueError, match=r"nfe=1: Tweedie takes 1 per step, each counting 2 with guidance.*at least 2"):
        tl.sample(model, tl.Tweedie(), nfe=1)
    with pytest.raises(ValueError, match=r"nfe=5: Trapezoidal takes 2 per step, and one more.*give at least 6"):
        tl.sample(model, tl.Trapezoidal(), nfe=5)
    twice = tl.guided(model, 1.0, torch.tensor([True, False, False, False]))
    with pytest.raises(ValueError, match=r"nfe=7: Blocks takes 1 per step, each counting 4 with guidance: .* least 8"):
        tl.sample(twice, tl.Blocks(tl.Tweedie(), 2), nfe=7)


def test_guidance_of_a_guided_model_counts_four() -> None:
    network = Labelled(time_free=True)
    positions = torch.tensor([True, False, False, False])
    model = tl.guided(tl.tempered(tl.guided(network.model(), 1.0, [1, 2]), 0.7), 0.5, positions)
    out = tl.sample(model, tl.Tweedie(tl.FixedCount()), nfe=9, num=2, template=torch.tensor([0, -1, -1, -1]))
    assert out.nfe.tolist() == [8, 8]
    assert network.runs == 16
    x = torch.tensor([[0, 3, 3, 1], [0, 3, 2, 3]])
    told, blind = (
        everywhere(tl.tempered(tl.guided(network.model(), 1.0, [1, 2]), 0.7), y, 0.5).log()
        for y in (x, x.masked_fill(positions, 3))
    )
    wanted = torch.softmax(1.5 * told - 0.5 * blind, 2)
    torch.testing.assert_close(everywhere(model, x, 0.5), wanted, rtol=1e-10, atol=1e-13)


# --- weights that change, samples that differ


def test_a_weight_may_be_a_function_of_time() -> None:
    network, x = Labelled(), torch.tensor([[3, 0, 3, 1], [3, 3, 3, 3]])
    model = tl.guided(network.model(), lambda t: 4 * (1 - t), 2)
    for t in (0.25, 0.75):
        fixed = tl.guided(network.model(), 4 * (1 - t), 2)
        torch.testing.assert_close(everywhere(model, x, t), everywhere(fixed, x, t))
    for solver in (tl.FirstHitting(), tl.Uniformization()):  # a time for each sample
        together = tl.sample(model, solver, num=5).x
        alone = [tl.sample(model, solver, num=1, first=n).x for n in range(5)]
        assert torch.equal(together, torch.cat(alone))
        assert bool((together < 3).all())
    constant = tl.guided(network.model(), lambda t: torch.full_like(t, 1.5), 2)
    for solver in (tl.Multistep(), tl.FirstHitting()):
        same = tl.sample(tl.guided(network.model(), 1.5, 2), solver, num=5, **budget(solver))
        assert torch.equal(tl.sample(constant, solver, num=5, **budget(solver)).x, same.x)


def test_a_changing_weight_is_not_forgotten_by_a_network_without_time() -> None:
    """Nothing is remembered from a time at which the weight was another one."""
    network = Labelled(time_free=True)
    model = tl.guided(network.model(), lambda t: 50.0 * (t < 0.5), 2)
    assert not model.time_free
    grid = torch.tensor([1.0, 1 - 1e-9, 0.4, 0.0], dtype=torch.float64)  # nothing goes in the first step
    out = tl.sample(model, tl.Tweedie(), grid=grid, num=200, seed=4)
    timed = tl.from_network(
        network.process,
        length=LENGTH,
        classes=CLASSES,
        network=lambda x, t, label: network(x, t, label),
    )
    wanted = tl.sample(tl.guided(timed, lambda t: 50.0 * (t < 0.5), 2), tl.Tweedie(), grid=grid, num=200, seed=4)
    assert torch.equal(out.x, wanted.x)
    assert torch.equal(out.spent, out.nfe)


@pytest.mark.parametrize(
    "weight", [lambda t: -t, lambda t: t / 0, lambda t: torch.ones(3)], ids=["negative", "infinite", "too many"]
)
def test_functions_that_give_no_weights(weight) -> None:
    with pytest.raises(ValueError, match=r"weight=.*must give finite numbers of at least 0"):
        tl.sample(tl.guided(Labelled().model(), weight, 0), tl.Tweedie(), nfe=2, num=2)


@pytest.mark.parametrize(("process", "solver"), KINDS, ids=str)
def test_labels_go_with_their_samples_whatever_the_batch(process, solver: Solver) -> None:
    labels = [0, 4, 2]
    model = tl.tempered(tl.guided(Labelled(process).model(), 2.0, labels), 0.8)
    whole = tl.sample(model, solver, num=3, seed=6, **budget(solver, 6))
    parts = tl.sample(model, solver, num=3, seed=6, batch_size=1, **budget(solver, 6))
    assert torch.equal(whole.x, parts.x)
    assert torch.equal(whole.nfe, parts.nfe)
    single = tl.guided(Labelled(process).model(), 2.0, 4)
    alone = tl.sample(tl.tempered(single, 0.8), solver, num=2, seed=6, **budget(solver, 6))
    assert torch.equal(whole.x[1], alone.x[1])


@pytest.mark.parametrize("solver", [tl.Tweedie(), tl.Multistep(), tl.Trapezoidal(), tl.FirstHitting()], ids=str)
def test_prompts_go_with_their_samples_whatever_the_batch(solver: Solver) -> None:
    case = masked(1, (3, 3, 3))
    template = torch.tensor([[0, -1, -1], [-1, -1, 2], [-1, -1, -1], [1, 2, -1], [0, 1, 2]])
    model = tl.guided(case.model, 1.5, template != tl.FREE)
    whole = tl.sample(model, solver, template=template, steps=3)
    single = tl.sample(model, solver, template=template, batch_size=1, steps=3)
    assert torch.equal(whole.x, single.x)
    assert torch.equal(whole.nfe, single.nfe)
    assert torch.equal(whole.x[template != tl.FREE], template[template != tl.FREE])
    free = tl.sample(case.model, solver, num=3, steps=3)
    assert torch.equal(whole.x[2], free.x[2]), "without a prompt both evaluations are the same"


def test_labels_and_sequences_of_different_lengths() -> None:
    """Each sample keeps its own label and its own valid positions, in both halves of the evaluation."""
    network = Labelled(attends=True)
    valid = torch.tensor([[True] * 4, [True, True, False, False], [True, True, True, False]])
    template = torch.where(valid, -1, 0)
    labels = [0, 1, 2]
    model = tl.guided(network.model().padded(valid), 2.0, labels)
    whole = tl.sample(model, tl.Tweedie(), nfe=6, template=template, seed=3)
    for n in range(3):
        alone = tl.guided(network.model().padded(valid[n].expand(3, -1)), 2.0, labels[n])
        out = tl.sample(alone, tl.Tweedie(), nfe=6, template=template[n].expand(3, -1).contiguous(), seed=3)
        assert torch.equal(out.x[n], whole.x[n])
    zero = tl.guided(network.model().padded(valid), 0.0, labels)
    parts, together = (tl.sample(zero, tl.Tweedie(), nfe=6, template=template, batch_size=n, seed=3) for n in (2, 3))
    assert torch.equal(parts.x, together.x)
    for n in range(3):
        alone = tl.guided(network.model().padded(valid[n].expand(3, -1)), 0.0, labels[n])
        out = tl.sample(alone, tl.Tweedie(), nfe=6, template=template[n].expand(3, -1).contiguous(), seed=3)
        assert torch.equal(out.x[n], parts.x[n])


# --- laws


@pytest.mark.parametrize(
    "solver", [tl.Tweedie(), tl.Multistep(), tl.FirstHitting(), tl.Trapezoidal(), tl.Tweedie(tl.Confidence())], ids=str
)
def test_the_exact_law_is_that_of_conditionals_blended_by_hand(solver: Solver) -> None:
    case, template = masked(1, (3, 3, 3)), torch.tensor([2, -1, -1])

    def blended(x: Tensor, t: Tensor) -> Tensor:
        told, blind = (everywhere(case.model, y, 0.5).log() for y in (x, x.clone().index_fill(1, torch.tensor(0), 3)))
        return 2.5 * told - 1.5 * blind

    by_hand = tl.from_network(case.model.process, length=3, network=blended, time_free=True)
    model = tl.guided(case.model, 1.5, template != tl.FREE)
    grid = torch.tensor([1.0, 0.5, 0.01], dtype=torch.float64)
    law = tl.exact.law(model, solver, grid, template)
    torch.testing.assert_close(law, tl.exact.law(by_hand, solver, grid, template), rtol=0, atol=1e-12)
    plain = tl.exact.law(case.model, solver, grid, template)
    assert float((law - plain).abs().sum()) > 0.1, "guidance makes a difference here"


# --- errors


@pytest.mark.parametrize(
    ("weight", "condition", "message"),
    [
        (-1.0, 0, "weight=-1.0: give a finite number of at least 0"),
        (INF, 0, "weight=inf"),
        (1.0, 5, r"condition=5: labels are whole numbers, 0 to 4"),
        (1.0, [0, -1], r"condition=\[0, -1\]: labels are"),
        (1.0, [], r"condition=\[\]: labels are"),
        (1.0, torch.tensor([0.5]), r"condition=\[0.5\]: labels are whole numbers"),
        (1.0, torch.tensor([[0, 1]]), r"condition=\[\[0, 1\]\]: labels are"),
        (
            1.0,
            torch.tensor([True, False]),
            r"condition shape=\(2,\): the model has 4 positions; give \(4,\) or \(num, 4\)",
        ),
        (1.0, torch.tensor(True), r"condition shape=\(\)"),
    ],
)
def test_wrong_guidance(weight, condition, message) -> None:
    with pytest.raises(ValueError, match=message):
        tl.guided(Labelled().model(), weight, condition)


def test_guidance_where_it_cannot_be() -> None:
    with pytest.raises(ValueError, match="only a masked model can do without given positions"):
        tl.guided(Labelled(PROCESSES[1]).model(), 1.0, torch.tensor([True] * 4))
    with pytest.raises(TypeError, match=r"condition=1 for Joint: labels are for networks that take them"):
        tl.guided(masked(1, (3, 3)).model, 1.0, 1)
    with pytest.raises(TypeError, match="guide the network first, and shape the result"):
        tl.guided(tl.tempered(Labelled().model(), 0.5), 1.0, 1)
    with pytest.raises(ValueError, match=r"condition of samples=2: there is a sample 4; give one for each, or for all"):
        tl.sample(tl.guided(Labelled().model(), 1.0, [0, 1]), tl.Tweedie(), nfe=4, num=5)
