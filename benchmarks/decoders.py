"""What the decoders of the field cost in truth: exact laws, oracles, text and sums, beside `auto` at equal evaluations.

`python -m benchmarks.decoders exact` prints exact KL and total variation from the truth, entropy lost, evaluations and
tokens per evaluation, on three small oracles; `oracles` the same by samples of `chain64` and `ising4x16`; `text` of
`shakespeare` (or `--model`), beside exact samples of it; `sums` the word problems that come out right. Every decoder may take as many
evaluations as there are positions, those that test or revise twice as many (`PUNT` also four times). Beside each is what
`recommend` names for as many evaluations as it took, rounded up.

Two rules, fixed before the first run, for a decoder to take a row of `recommend`. On small oracles: its KL is below that of
`auto` at as many evaluations on at least two of three, and nowhere twice above it. On text: its nll and its entropy are
nearer to those of exact samples than `auto`'s at as many evaluations, each by two standard errors, or one of them is and
the other is as near. After the first run the chain was replaced, since its entropy was 0.63 nats, and `PUNT` was added with
four evaluations per position; the samples of text were cut from 12 to 4 before any figure of text was seen.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import thetaleap as tl
from thetaleap.control import Method
from thetaleap.core.free import FREE
from thetaleap.evaluation.choice import written
from thetaleap.evaluation.metrics import kl, total_variation
from thetaleap.evaluation.metrics.accuracy import Accuracy
from thetaleap.evaluation.yardsticks import by_reference, by_truth, exact_sampling, true_law
from thetaleap.reproduction.sums import answer_of, questions
from thetaleap.training.sums import problems, result_of

NFE_DRAWS = 2000
BUDGETED: list[Method] = [
    tl.Tweedie(tl.FixedCount("even")),
    tl.Tweedie(tl.Confidence(schedule="even")),
    tl.Tweedie(tl.MarginConfidence("even")),
    tl.Tweedie(tl.EntropyConfidence("even")),
]
"""Those that take what they are given."""


def decoders(length: int) -> list[tuple[Method, int]]:
    """All of them, with the evaluations that each may take."""
    half = math.ceil(length / 2)
    caps: list[tuple[Method, int]] = [
        (tl.Tweedie(tl.Dilated()), length),
        (tl.Tweedie(tl.EntropyBounded(0.1)), length),
        *((tl.Tweedie(tl.Threshold(p)), length) for p in (0.9, 0.7)),
        (tl.Tweedie(tl.Factor(1.0)), length),
        (tl.Tweedie(tl.KLASS()), length),
        (tl.WINO(), 2 * length),
        (tl.JointThreshold(), 2 * length),
        (tl.PUNT(), 2 * length),
        (tl.PUNT(), 4 * length),
    ]
    return [*((one, length) for one in BUDGETED), *((one, half) for one in BUDGETED), *caps]


def named(solver: Method, nfe: int, length: int) -> str:
    """What it is called in a table."""
    if nfe == length and solver == tl.Tweedie(tl.FixedCount("even")):
        return "one position at a time"
    return f"`{written(solver).replace('Tweedie(planner=', 'Tweedie(')}`"


def row(*cells: object) -> None:
    print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)


def header(*cells: str) -> None:
    row(*cells)
    row(*["---"] * len(cells))


def small() -> dict[str, Any]:
    """Oracles of which exact laws are quick."""
    torch.manual_seed(0)
    law = torch.distributions.Dirichlet(torch.full((81,), 0.5, dtype=torch.float64)).sample()
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]], dtype=torch.float64)
    return {
        "joint, 4 positions of 3": tl.oracles.joint(law.view((3,) * 4), tl.Masked(3)),
        "chain, 5 positions of 3": tl.oracles.markov_chain(rows, 5),
        "Ising 2 x 3": tl.oracles.ising(2, 3, 0.44),
    }


def exact() -> None:
    for name, model in small().items():
        p0 = true_law(model)
        entropy = -float(torch.xlogy(p0, p0).sum())
        print(f"\n**{name}**, entropy {entropy:.2f} nats\n")
        header("decoder", "evaluations", "tokens per evaluation", "KL", "TV", "entropy lost", "KL of `auto`")
        for solver, nfe in decoders(model.length):
            times = tl.sampling.plan(model, solver, nfe=nfe)
            used = float(tl.sample(model, solver, nfe=nfe, num=NFE_DRAWS, progress=False).nfe.double().mean())
            law = tl.exact.law(model, solver, times)
            lost = entropy + float(torch.xlogy(law, law).sum())
            advice = tl.recommend(model, math.ceil(used - 1e-9))
            best = tl.exact.law(
                model, advice.solver, tl.sampling.plan(model, advice.solver, nfe=advice.nfe, grid=advice.grid)
            )
            figures = [
                "0" if abs(each) < 1e-12 else f"{each:.2g}"
                for each in (kl(p0, law), total_variation(p0, law), lost, kl(p0, best))
            ]
            row(named(solver, nfe, model.length), f"{used:.2f}", f"{model.length / used:.2f}", *figures)


Measure = Callable[[Method, Tensor, Tensor], dict[str, Any]]


def sampled(model: Any, measure: Measure, names: list[str], num: int, some: list[tuple[Method, int]]) -> None:
    """A row for each decoder, and beside its figures those of `auto`."""
    header("decoder", "evaluations", "tokens per evaluation", *names, *(f"{name} of `auto`" for name in names))
    known: dict[int, list[str]] = {}
    for solver, nfe in some:
        out = tl.sample(model, solver, nfe=nfe, num=num, progress=False)
        used = float(out.nfe.double().mean())
        budget = math.ceil(used - 1e-9)
        if budget >= model.length:  # then auto is exact
            known[budget] = ["one at a time"] * len(names)
        if budget not in known:
            advice = tl.recommend(model, budget)
            auto = tl.sample(model, advice.solver, nfe=budget, grid=advice.grid, num=num, progress=False)
            known[budget] = figures_of(measure(advice.solver, torch.zeros(0), auto.x), names)
        own = figures_of(measure(solver, torch.zeros(0), out.x), names)
        row(named(solver, nfe, model.length), f"{used:.1f}", f"{model.length / used:.2f}", *own, *known[budget])


def figures_of(found: dict[str, Any], names: list[str]) -> list[str]:
    return [f"{found[name].value:.3f} ± {found[name].error:.3f}" for name in names]


def oracles(num: int) -> None:
    for name in ("chain64", "ising4x16"):
        model = tl.load(name)
        yardstick = by_truth(model, num, seed=1)
        print(f"\n**{name}**, {num} samples\n")
        sampled(model, yardstick.measure, ["excess", "pair_kl", "entropy_gap"], num, decoders(model.length))


def text(num: int, name: str = "shakespeare") -> None:
    model = tl.load(name)
    reference = exact_sampling(model, 64).draw(model, num, seed=1)
    yardstick = by_reference(model, reference, "exact samples", seed=1)
    print(f"\n**{name}**, {num} samples of {model.length} tokens\n")
    few = model.length // 4
    some: list[tuple[Method, int]] = [*((one, few) for one in BUDGETED), (tl.SemiAutoregressive(), few)]
    caps: list[tuple[Method, int]] = [pair for pair in decoders(model.length) if pair[0] not in BUDGETED]
    some += dict.fromkeys((solver, min(cap, model.length)) for solver, cap in caps)
    some += [(tl.Blocks(tl.Tweedie(tl.Threshold(0.9)), 32), model.length), (BUDGETED[0], model.length)]
    sampled(model, yardstick.measure, ["nll", "entropy_gap", "ngrams"], num, some)


def sums(num: int) -> None:
    """In one block and in blocks of 8, at temperature 0 and 1."""
    model, asked = tl.load("sums"), problems(num, held_out=True)
    template = questions(asked, model.length)
    free = (template == FREE).sum(1)
    most = int(free.max())
    print(f"\n**sums**, {num} held-out problems\n")
    header("decoder", "temperature", "evaluations", "tokens per evaluation", "right", "95% interval")
    some = [pair for pair in decoders(most) if pair[1] != math.ceil(most / 2)]
    blocks: list[tuple[Method, int]] = [
        (tl.SemiAutoregressive(block_length=8), most),
        (tl.Blocks(tl.Tweedie(tl.Threshold(0.9)), 8), most + 8),
    ]
    for temperature in (1.0, 0.0):
        for solver, nfe in [*some, *blocks]:
            shaped = tl.tempered(model, temperature)
            out = tl.sample(shaped, solver, nfe=nfe, template=template, progress=False)
            texts = [answer_of(model, tokens, int(n)) for tokens, n in zip(out.x, free, strict=True)]
            right = Accuracy.of(sum(result_of(one) == p.result for one, p in zip(texts, asked, strict=True)), num)
            used = float(out.nfe.double().mean())
            each = float(free.double().mean()) / used
            interval = f"{right.low:.2f} to {right.high:.2f}"
            row(
                named(solver, nfe, most),
                f"{temperature:g}",
                f"{used:.1f}",
                f"{each:.2f}",
                f"{right.value:.2f}",
                interval,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("exact", "oracles", "text", "sums"), nargs="?", default="exact")
    parser.add_argument("--num", type=int, default=None)
    parser.add_argument("--model", default="shakespeare", help="of text")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.part == "exact":
        exact()
    else:
        {"oracles": oracles, "text": partial(text, name=given.model), "sums": sums}[given.part](
            given.num or {"oracles": 400, "text": 16, "sums": 100}[given.part]
        )


if __name__ == "__main__":
    main()
