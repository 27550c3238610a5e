"""The decoders of the field: exact laws against a second computation, budgets, blocks, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thetaleap as tl
from tests import reference, reference_decoders
from tests.cases import MASKED, REVISING, Case, dirichlet, masked
from tests.reference import Truth
from thetaleap.control import Method
from thetaleap.planners.counting import Agenda, dilation

CASES = [*MASKED, masked(8, (2, 2, 2, 2))]
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
N = 5


def steps(count: int) -> torch.Tensor:
    """To a time above 0, so that what is masked then is left to the finish."""
    return tl.grids.uniform(1.0, 0.1, count)


def close(law: torch.Tensor, truth: np.ndarray) -> None:
    assert float(law.sum()) == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(law.numpy(), truth, atol=1e-12)


ADAPTIVE: list[tuple[Method, Callable[[Truth, int], np.ndarray]]] = [
    *(
        (tl.Tweedie(tl.Threshold(p)), lambda truth, n, p=p: reference_decoders.run(truth, n, reference_decoders.threshold(p)))
        for p in (0.3, 0.6, 1.0)
    ),
    *(
        (tl.Tweedie(tl.Factor(f)), lambda truth, n, f=f: reference_decoders.run(truth, n, reference_decoders.factor(f)))
        for f in (0.7, 1.2, 2.0)
    ),
    *(
        (
            tl.Tweedie(tl.KLASS(p, kl, history)),
            lambda truth, n, p=p, kl=kl, history=history: reference_decoders.run(
                truth, n, reference_decoders.klass(p, kl, history), (None, ())
            ),
        )
        for p, kl, history in ((0.5, 0.1, 1), (0.3, 0.5, 1), (0.8, 10.0, 1))
    ),
    *(
        (tl.WINO(wide, out), lambda truth, n, wide=wide, out=out: reference_decoders.run(truth, n, reference_decoders.wino(wide, out), 30))
        for wide, out in ((0.4, 0.7), (0.2, 0.9), (0.6, 0.5))
    ),
    *(
        (
            tl.JointThreshold(p, e),
            lambda truth, n, p=p, e=e: reference_decoders.run(
                truth, n, reference_decoders.joint_threshold(p, e), False, goes_on=True
            ),
        )
        for p, e in ((0.5, 0.6), (0.3, 0.0), (0.9, 0.9))
    ),
    *((tl.PUNT(e), lambda truth, n, e=e: reference_decoders.punt(truth, n, e)) for e in (0.003, 0.03, 1.0)),
]  # fmt: skip


@EACH
@pytest.mark.parametrize("which", range(len(ADAPTIVE)), ids=lambda n: repr(ADAPTIVE[n][0]))
@pytest.mark.parametrize("count", [2, N])
def test_laws(case: Case, which: int, count: int) -> None:
    solver, law = ADAPTIVE[which]
    close(tl.exact.law(case.model, solver, steps(count)), law(case.truth, count))


def test_a_longer_history() -> None:
    case = masked(8, (2, 2, 2, 2))
    law = tl.exact.law(case.model, tl.Tweedie(tl.KLASS(0.3, 0.3, 2)), steps(N))
    close(law, reference_decoders.run(case.truth, N, reference_decoders.klass(0.3, 0.3, 2), (None, ())))
    one = tl.exact.law(case.model, tl.Tweedie(tl.KLASS(0.3, 0.3, 1)), steps(N))
    assert float((law - one).abs().max()) > 1e-3, "the history matters here"


@EACH
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_thresholds_are_for_what_the_network_said(case: Case, temperature: float) -> None:
    model = tl.tempered(case.model, temperature)
    law = tl.exact.law(model, tl.Tweedie(tl.Threshold(0.6)), steps(case.model.length))
    decoder = reference_decoders.threshold(0.6, temperature)
    expected = reference_decoders.run(case.truth, case.model.length, decoder)
    close(law, expected)


def dream_counts(room: int, moves: int) -> list[int]:
    """As Dream's code has it, in single precision."""
    times, counts = torch.linspace(1, 1e-3, moves + 1), []
    for n in range(moves):
        left = torch.tensor(float(room - sum(counts)))
        counts.append(int(left * (1 - times[n + 1] / times[n])) if n < moves - 1 else int(left))
    return counts


@EACH
@pytest.mark.parametrize("schedule", ["even", "dream"])
def test_margin_and_entropy(case: Case, schedule: Any) -> None:
    room = case.model.length
    counts = dream_counts(room, 3) if schedule == "dream" else [math.ceil((room - n) / 3) for n in range(3)]
    grid = tl.grids.uniform(1.0, 0.0, 3)
    margin = reference_decoders.certain(lambda c: np.sort(c)[-1] - np.sort(c)[-2], counts)
    close(tl.exact.law(case.model, tl.Tweedie(tl.MarginConfidence(schedule)), grid), margin(case.truth))
    entropy = reference_decoders.certain(lambda c: float((c * np.log(c)).sum()), counts)
    close(tl.exact.law(case.model, tl.Tweedie(tl.EntropyConfidence(schedule)), grid), entropy(case.truth))


@pytest.mark.parametrize(("room", "moves"), [(8, 8), (64, 64), (64, 10), (256, 128), (5, 12), (7, 1)])
def test_dream_s_counts(room: int, moves: int) -> None:
    agenda = Agenda.of(torch.linspace(1, 0, moves + 1).double().unsqueeze(0), torch.tensor([room]), "dream")
    assert agenda.left.diff(dim=1).neg()[0].tolist() == dream_counts(room, moves)


def test_dilated_groups() -> None:
    """By hand: every fourth, halfway between, and the rest; six positions have two steps, three and one."""
    assert dilation(8).tolist() == [0, 2, 1, 2, 0, 2, 1, 2]
    assert dilation(6).tolist() == [0, 1, 1, 0, 1, 1]
    assert dilation(1).tolist() == [0]
    apart = dilation(64)
    assert [int((apart == n).sum()) for n in range(6)] == [2, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_dilated_law(count: int) -> None:
    case = masked(8, (2, 2, 2, 2, 2))
    groups = [[0, 2, 4], [1, 3]] if count > 1 else [[0, 1, 2, 3, 4]]
    law = tl.exact.law(case.model, tl.Tweedie(tl.Dilated()), tl.grids.uniform(1.0, 0.0, count))
    close(law, reference.decode(case.truth, [(group, len(group), None) for group in groups]))
    assert tl.sample(case.model, tl.Tweedie(tl.Dilated()), nfe=count, num=3).nfe.tolist() == [min(count, 2)] * 3
    even = tl.exact.law(case.model, tl.Tweedie(tl.Dilated("even")), tl.grids.uniform(1.0, 0.0, 5))
    np.testing.assert_allclose(even.numpy(), case.p0.numpy(), atol=1e-12)


# --- budgets, templates, blocks

CHAIN = tl.oracles.markov_chain(torch.tensor([[0.95, 0.03, 0.02], [0.02, 0.05, 0.93], [0.1, 0.8, 0.1]]).double(), 12)
DECODERS: list[Any] = [
    tl.Tweedie(tl.Threshold(0.7)),
    tl.Tweedie(tl.Factor(1.0)),
    tl.Tweedie(tl.KLASS(0.6, 0.05, 2)),
    tl.Tweedie(tl.Dilated()),
    tl.Tweedie(tl.MarginConfidence("dream")),
    tl.Tweedie(tl.EntropyConfidence("even")),
    tl.WINO(0.5, 0.8),
    tl.JointThreshold(0.6, 0.7),
    tl.PUNT(0.02),
]
ALL = pytest.mark.parametrize("solver", DECODERS, ids=repr)


@ALL
@pytest.mark.parametrize("nfe", [2, 5, 12, 40])
def test_budgets_are_caps(solver: Any, nfe: int) -> None:
    out = tl.sample(CHAIN, solver, nfe=nfe, num=30, seed=nfe)
    assert int(out.nfe.max()) <= nfe
    assert int(out.x.max()) < 3
    if nfe == 40 and not isinstance(solver, tl.PUNT | tl.WINO | tl.JointThreshold):
        assert int(out.nfe.max()) <= 12, "each evaluation unmasks a position, at least"


@pytest.mark.parametrize("planner", [tl.Threshold(0.7), tl.Factor(), tl.KLASS(0.6, 0.05)], ids=repr)
def test_evaluations_are_as_many_as_it_takes(planner: Any) -> None:
    out = tl.sample(CHAIN, tl.Tweedie(planner), nfe=12, num=200)
    assert int(out.nfe.min()) < int(out.nfe.max()), "samples differ"
    assert 2 < float(out.nfe.double().mean()) < 12


@ALL
def test_given_positions_stay(solver: Any) -> None:
    template = torch.full((12,), tl.FREE)
    template[[0, 4, 5, 11]] = torch.tensor([1, 2, 0, 1])
    for method in (solver, tl.Blocks(solver, 3)):
        out = tl.sample(CHAIN, method, nfe=9, num=50, template=template)
        assert bool((out.x[:, [0, 4, 5, 11]] == template[[0, 4, 5, 11]]).all())
        assert int(out.x.max()) < 3
        assert int(out.nfe.max()) <= 9


@ALL
def test_blocks_are_finished_one_after_the_other(solver: Any) -> None:
    seen: list[torch.Tensor] = []
    out = tl.sample(CHAIN, tl.Blocks(solver, 4), nfe=12, num=40, on_step=lambda moment: seen.append(moment.x))
    assert int(out.nfe.max()) <= 12
    for x in seen:
        masked_blocks = (x == 3).view(-1, 3, 4).any(2).long()
        assert bool((masked_blocks.diff(dim=1) >= 0).all())
    parts = tl.sample(CHAIN, tl.Blocks(solver, 4), nfe=12, num=40, batch_size=7)
    assert torch.equal(parts.x, out.x)
    assert torch.equal(parts.nfe, out.nfe)


def test_blocks_of_one_are_exact() -> None:
    """One position at a time, from left to right: whatever the decoder, the model's own law."""
    case = masked(8, (2, 2, 2, 2))
    for planner in (tl.Threshold(0.9), tl.Factor(), tl.Dilated()):
        law = tl.exact.law(case.model, tl.Blocks(tl.Tweedie(planner), 1), steps(4))
        np.testing.assert_allclose(law.numpy(), case.p0.numpy(), atol=1e-12)


def test_what_is_independent_is_unmasked_at_once() -> None:
    """PUNT on independent positions: one evaluation and log2(16) tests. On pairs of equal bits one of each pair stays,
    and the law is the model's."""
    weights = torch.from_numpy(np.random.default_rng(0).dirichlet([1.0] * 3, size=(1, 16)))
    flat = tl.oracles.mixture(torch.ones(1, dtype=torch.float64), weights)
    assert tl.sample(flat, tl.PUNT(), nfe=40, num=5).nfe.tolist() == [5] * 5
    bits = torch.cartesian_prod(*[torch.arange(2)] * 6)
    equal = (bits[:, ::2] == bits[:, 1::2]).all(1).double().view((2,) * 6) / 8
    law = tl.exact.law(tl.oracles.joint(equal, tl.Masked(2)), tl.PUNT(), steps(8))
    np.testing.assert_allclose(law.numpy(), equal.numpy(), atol=1e-12)


def test_wino_revokes_and_joint_threshold_edits() -> None:
    """Tokens that disagree are taken back, which no planner can: 16 positions that are alike, 0.9 of them. Drafts of all at
    once have 0.6 of one token; the truth 0.9; both of these end with hardly any that disagree: beyond the truth."""
    alike = tl.oracles.mixture(
        torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 0.1], [0.1, 0.9]]).double().unsqueeze(1).expand(2, 16, 2)
    )
    solvers = (tl.Tweedie(tl.Threshold(0.45)), tl.WINO(0.45, 0.8), tl.JointThreshold(0.45, 0.6))
    ones = (tl.sample(alike, solver, nfe=24, num=400).x.double().mean(1) for solver in solvers)
    drafts, revoked, edited = (float((each - 0.5).abs().mean()) + 0.5 for each in ones)
    assert drafts < 0.65
    assert min(revoked, edited) > 0.98


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda p=p: tl.Threshold(p), "threshold=.*must lie in \\(0, 1\\]") for p in (0.0, 1.1, -1.0, math.nan)),
        (lambda: tl.Factor(0.0), "factor=0.0: must lie in"),
        (lambda: tl.KLASS(threshold=2.0), "threshold=2.0: must lie in"),
        (lambda: tl.KLASS(kl_threshold=0.0), "kl_threshold=0.0: must lie in"),
        (lambda: tl.KLASS(kl_history_length=0), "kl_history_length=0: give a whole number"),
        (lambda: tl.sample("cube3", tl.Tweedie(tl.KLASS(kl_history_length=3)), nfe=3), "kl_history_length=3: 3 positions"),
        (lambda: tl.WINO(0.0, 0.9), "wide_in_thres=0.0: must lie in"),
        (lambda: tl.WINO(0.6, 1.5), "narrow_out_thres=1.5: must lie in"),
        (lambda: tl.JointThreshold(0.0), "threshold=0.0: must lie in"),
        (lambda: tl.JointThreshold(0.5, -0.1), "edit_threshold=-0.1: must lie in"),
        (lambda: tl.PUNT(0.0), "epsilon=0.0: must lie in"),
        (lambda: tl.Dilated("arccos"), "schedule='arccos': choose one of"),  # pyright: ignore[reportArgumentType]
        (lambda: tl.sample("cube3", tl.Blocks(tl.Tweedie(tl.Threshold()), 1), nfe=5), "nfe=5: .*give at least 6"),
        *((lambda s=s: tl.sample("cube3-uniform", s, nfe=4), "needs a Masked process; use") for s in REVISING),
        (lambda: tl.sample("cube3-uniform", tl.Tweedie(tl.Threshold()), nfe=4), "planners say which masks are unmasked"),
    ],
)  # fmt: skip
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_klass_compares_evaluations() -> None:
    with pytest.raises(TypeError, match="KLASS compares evaluations as they are; use Tweedie"):
        tl.sample("chain64", tl.Multistep(weight=0.5, planner=tl.KLASS()), nfe=4)


def test_truth_is_not_what_they_draw() -> None:
    """Drawing again what was not sure enough favours likely tokens: the law is not the model's, even one at a time."""
    p0 = dirichlet(3, (3, 3, 3))
    model = tl.oracles.joint(p0, tl.Masked(3))
    law = tl.exact.law(model, tl.Tweedie(tl.Threshold(1.0)), steps(3))
    assert float((law - p0).abs().sum()) / 2 > 0.05
    assert float(-(law * law.log()).sum()) < float(-(p0 * p0.log()).sum()) - 0.1
