"""Public calls with right and wrong arguments mixed: they work, or say which argument is wrong."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import thetaleap as tl
from thetaleap.models.tokenizers import Letters

CUBE, MOVING = tl.load("cube3"), tl.load("cube3-uniform")
HALVES = torch.tensor([0.5, 0.5])
SPELLED = tl.from_network(
    tl.Masked(3),
    length=3,
    network=lambda x, t: torch.zeros((*x.shape, 3)),
    tokenizer=Letters("abc"),
)
LABELLED = tl.from_network(
    tl.Masked(3), length=3, classes=2, network=lambda x, t, label: torch.zeros((*x.shape, 3)), time_free=True
)
JUNK: list[Any] = [
    *(None, True, -1, 0, 1, 2.5, -0.5, math.nan, math.inf, 2**70, -(2**70), 1j, "", "x", "0 _ 1", b"x"),
    *(
        [],
        [1.0, 0.0],
        [0, 1, 2],
        [[0, 1], [2]],
        ["a", "b"],
        [None],
        {},
        {"a": 1},
        (),
        (1, 3),
        (3, "x"),
        {1, 2},
        range(3),
    ),
    *(object(), int, tl.Tweedie, tl.Masked, len, lambda: 0, lambda *given, **more: None, nn.Linear(2, 2)),
    *(torch.tensor([]), torch.zeros(3), torch.zeros(2, 2), torch.ones(3, dtype=torch.bool), torch.tensor(1.0)),
    *(torch.full((3,), math.nan), torch.tensor([0, 1, 9]), np.zeros((2, 3)), np.array([0, -1, 2]), np.int64(3)),
    *(np.array(["a"]), np.float32(0.5), tl.Masked(3), tl.LogLinear(), tl.Tweedie(), tl.FixedCount(), CUBE, "cube3"),
]


def logits(x: Tensor, t: Tensor) -> Tensor:
    return torch.zeros((*x.shape, 3))


MODELS = [CUBE, MOVING, SPELLED, "cube3"]
SOLVERS = [tl.Tweedie(), tl.Trapezoidal(), tl.Multistep(), tl.Tweedie(tl.FixedCount()), tl.Blocks(tl.Tweedie(), 2)]
PLANNERS = [tl.Bernoulli(), tl.FixedCount(), tl.LowDiscrepancy()]
SCHEDULES = [tl.LogLinear(), tl.Cosine(), tl.Geometric(), tl.Constant()]
PROCESSES = [tl.Masked(3), tl.Uniform(3)]
BITS = [tl.Masked(2), tl.Uniform(2)]
CHANCE, NUMBER = [0.1, 0.5], [0.5, 2.0]
GRIDS = [tl.grids.uniform(1.0, 0.1, 2), [1.0, 0.5, 0.1]]
SPAN: dict[str, list[Any]] = {"start": [1.0, 6], "end": [0.1, 0.5], "steps": [1, 4]}

GOOD: dict[Callable[..., Any], dict[str, list[Any]]] = {
    tl.sample: {
        **{"model": MODELS, "solver": SOLVERS, "nfe": [6, None], "tolerance": [None], "steps": [None], "num": [1, 2]},
        **{"grid": [None, tl.grids.power], "template": [None, [0, -1, -1], "0 _ _"], "prompt": [None], "seed": [0, 7]},
        **{"first": [0, 3], "delta": [None, 0.1], "batch_size": [None, 1], "memory": [2**20], "progress": [False]},
        **{"on_step": [None, lambda moment: None], "window": [None, 2, "auto"], "exact": [False]},
    },
    tl.exact.law: {"model": [CUBE, MOVING], "solver": SOLVERS[:2], "grid": GRIDS, "template": [None, [0, -1, 1]]},
    tl.exact.reverse_law: {"model": [tl.oracles.joint(HALVES, tl.Masked(2))], "grid": GRIDS},
    tl.load: {"name": ["cube3", "toy15", "sums"], "length": [], "device": [], "dtype": []},
    tl.from_network: {
        **{"process": PROCESSES, "length": [3], "network": [logits, None], "trunk": [None], "head": [None]},
        **{"horizon": [None, 1.0], "time_free": [False, True], "device": ["cpu"], "tokenizer": [None], "shape": [None]},
        **{"classes": [None], "attends": [False], "pictures": [None], "posterior": [False]},
    },
    tl.tempered: {"model": MODELS, "temperature": [0, 1.0], "top_k": [None, 2], "top_p": [None, 0.5]},
    tl.constrained: {
        "model": MODELS,
        "allow": [None, [0, 1]],
        "forbid": [None, [2], torch.tensor([True, False, True])],
    },
    tl.guided: {
        "model": [CUBE, LABELLED],
        "weight": [0, 1.5],
        "condition": [1, [0, 1], torch.ones(3, dtype=torch.bool)],
    },
    tl.recommend: {"model": MODELS, "nfe": [4, 8], "geometry": [None, "line", (1, 3)], "positions": [None, 2]},
    tl.compare: {
        **{"model": [CUBE, "cube3"], "budgets": [[2], (2, 3)], "num": [3], "seed": [0], "progress": [False, None]},
        **{"contenders": [["auto"], [tl.Tweedie(), "euler"], {"mine": tl.Tweedie()}], "reference": [None, "model", 5]},
    },
    tl.default_contenders: {"model": [CUBE, "cube3"], "every": [None, True, False]},
    tl.grids.uniform: SPAN,
    tl.grids.power: {**SPAN, "exponent": NUMBER},
    tl.grids.cosine: SPAN,
    tl.grids.logarithmic: SPAN,
    tl.grids.alpha_power: {"schedule": SCHEDULES, "exponent": NUMBER},
    tl.grids.adaptive: {"model": [MOVING], "tolerance": [0.5], "delta": [0.0], "pilots": [None, 4], "seed": [0]},
    tl.grids.counted: {"model": [CUBE], "counts": [[1, 2], [1, 1, 1]]},
    tl.grids.planned: {
        **{"model": [CUBE], "solver": [tl.Multistep()], "nfe": [2], "pilots": [4], "seed": [0], "table": [None]},
    },
    tl.grids.check: {"grid": GRIDS, "horizon": [1.0]},
    tl.oracles.joint: {"p0": [HALVES, HALVES.outer(HALVES)], "process": BITS, "horizon": [None, 2.0]},
    tl.oracles.markov_chain: {
        **{"transition": [HALVES.expand(2, 2)], "length": [3], "initial": [None, HALVES], "process": [None, BITS[0]]},
        **{"horizon": [None]},
    },
    tl.oracles.mixture: {
        **{"weights": [HALVES], "positions": [HALVES.expand(2, 3, 2)], "process": [None, *BITS], "horizon": [None]},
    },
    tl.oracles.ising: {
        **{"height": [2], "width": [2], "coupling": [0.4], "field": [0.0], "process": [None], "horizon": [None]},
    },
    tl.oracles.potts: {
        **{"states": [3], "height": [2], "width": [2], "coupling": [0.4], "process": [None], "horizon": [None]},
    },
    tl.oracles.tree: {
        **{"parents": [[-1, 0, 0]], "root": [HALVES], "edges": [HALVES.expand(2, 2)], "process": [None]},
        **{"horizon": [None]},
    },
    tl.oracles.noisy: {"model": [CUBE], "scale": [0.3], "seed": [1]},
    tl.oracles.markov_text: {
        **{"path": [__file__], "order": [1], "length": [4], "smoothing": [1e-3], "process": [None], "horizon": [None]},
    },
    tl.Masked: {"states": [3], "schedule": SCHEDULES},
    tl.Uniform: {"states": [3], "schedule": SCHEDULES},
    tl.RateMatrix: {"rates": [torch.tensor([[-1.0, 1.0], [2.0, -2.0]])], "schedule": SCHEDULES},
    tl.LogLinear: {"eps": CHANCE},
    tl.Cosine: {"eps": CHANCE},
    tl.Geometric: {"low": CHANCE, "high": [2.0]},
    tl.Constant: {"rate": NUMBER},
    tl.TauLeaping: {"rule": ["exact", "reject"]},
    tl.Tweedie: {"planner": PLANNERS},
    tl.RK2: {"theta": CHANCE, "rule": ["exact"], "align": ["destination"]},
    tl.Trapezoidal: {"theta": CHANCE, "rule": ["exact"], "align": ["destination"]},
    tl.ExponentialTrapezoidal: {"theta": CHANCE, "extrapolation": ["linear", "logit"], "planner": PLANNERS},
    tl.Multistep: {
        **{"weight": [None, 0.5], "window": [1], "extrapolation": [None], "floor": [0.1], "planner": [None, *PLANNERS]},
    },
    tl.FixedCount: {"schedule": ["process", "even", "cosine"]},
    tl.LowDiscrepancy: {"shape": [None, (1, 3)], "schedule": ["process", "even", "cosine"], "sequence": ["shifted"]},
    tl.Dilated: {"schedule": ["groups", "even"]},
    tl.Confidence: {"randomness": [0.0, 1.0], "schedule": ["process", "arccos"], "untempered": [False, True]},
    tl.MarginConfidence: {"schedule": ["even", "dream"], "untempered": [False]},
    tl.EntropyConfidence: {"schedule": ["even", "dream"], "untempered": [False]},
    tl.Threshold: {"threshold": [0.9, 1]},
    tl.Factor: {"factor": NUMBER},
    tl.KLASS: {"threshold": CHANCE, "kl_threshold": [0.01], "kl_history_length": [2]},
    tl.WINO: {"wide_in_thres": [0.6], "narrow_out_thres": [0.9]},
    tl.JointThreshold: {"threshold": [0.7], "edit_threshold": [0.0, 0.5]},
    tl.PUNT: {"epsilon": [0.01]},
    tl.Gibbs: {"k": [1, 2], "planner": [tl.FixedCount(), tl.LowDiscrepancy()]},
    tl.Informed: {"k": [1], "by": ["margin", "confidence"]},
    tl.Corrected: {"predictor": SOLVERS[:4], "corrector": [tl.Gibbs(), tl.Informed()], "every": [1], "sweeps": [0, 1]},
    tl.ReMDM: {"schedule": ["cap", "loop"], "eta": [None, 0.5], "t_on": [0.55], "t_off": [0.05], "alpha_on": [0.9]},
    tl.Psi: {"schedule": ["constant", "rescale"], "eta": CHANCE},
    tl.EntropyBounded: {"gamma": [0.1]},
    tl.ParallelDecoding: {"randomness": [4.5]},
    tl.SemiAutoregressive: {"order": ["confidence", "random"], "block_length": [None, 2]},
    tl.Blocks: {"solver": SOLVERS[:4], "length": [2], "stop": [None, 1]},
    tl.train: {  # of which nothing comes: there is too little to train on
        **{"data": ["a\nb"], "out": ["nowhere"], "tokenizer": ["bytes", None], "device": ["cpu"], "steps": [1]},
    },
}
"""What each call takes, by name, with some values that are right."""
OPEN = {
    tl.load: {"device", "dtype", "length"},
    tl.train: {"levels", "side", "every", "about", "store", "progress", "steps"},
}
"""Arguments behind ``**`` that are tried, or that are left as they are."""


def test_every_public_call_is_tried_with_all_its_arguments() -> None:
    classes = {"Contender", "Moment", "Recommendation", "Samples"}  # which are given, not made
    bare = {"AdamsBashforth", "Bernoulli", "Euler", "FirstHitting", "Uniformization"}  # which take nothing
    modules = {name for name in tl.__all__ if inspect.ismodule(getattr(tl, name))}
    names = {call.__name__ for call in GOOD} | classes | bare | modules | {"FREE"}
    assert set(tl.__all__) <= names
    for call, values in GOOD.items():
        named = {one.name for one in inspect.signature(call).parameters.values() if one.kind is not one.VAR_KEYWORD}
        assert named - OPEN.get(call, set()) == set(values) - OPEN.get(call, set()), call


def wrong_or_right(good: list[Any]) -> st.SearchStrategy[Any]:
    """Mostly what is right, so that the other arguments are reached."""
    junk = st.sampled_from(JUNK)
    return st.one_of(*[st.sampled_from(good)] * 3, junk) if good else junk


def complaint(call: Callable[..., Any], chosen: dict[str, Any]) -> str | None:
    """What is said against a call; None if it works. A network is run as well, and no other error passes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = call(**chosen)
            if isinstance(made, tl.models.Network) and made.length == 3:
                tl.sample(made, tl.Tweedie(), nfe=1)
    except (ValueError, TypeError, ImportError) as error:
        return str(error)
    return None


@pytest.mark.usefixtures("unchecked")
@settings(max_examples=500, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_calls_work_or_name_what_is_wrong(data) -> None:
    call = data.draw(st.sampled_from(list(GOOD)))
    chosen = {
        name: data.draw(wrong_or_right(good), name)
        for name, good in GOOD[call].items()
        if good or data.draw(st.booleans())
    }
    said = complaint(call, chosen)
    assert said is None or ("\n" not in said and any(name in said for name in (*chosen, "planner", "model"))), said
