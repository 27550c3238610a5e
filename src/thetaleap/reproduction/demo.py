"""A short tour: what the models of the package write and draw, and every kind of solver beside the truth.

First samples: a text as it appears, ten digits, and a sum with its answer. Then three things are measured. On a Markov
chain of 64 masked positions, how surprising samples are to the true law, beside the law of their neighbouring pairs; on
the paper's 15 states, the exact law of every solver beside samples of it; on 27 sequences without masks, exact laws alone.
`auto`, what the library recommends, stands beside the paper's solvers in all three, and in the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..conditioning.wrappers import guided, tempered
from ..control import Method, SemiAutoregressive
from ..evaluation.choice import AUTO
from ..evaluation.figures import (
    budget_axis,
    direct_labels,
    panels,
    table,
    wrapped,
    write_csv,
    write_png,
)
from ..evaluation.metrics import frequencies, histogram, kl, noise_floor
from ..evaluation.metrics.digits import digit_labels
from ..evaluation.metrics.sequences import Measured, mean
from ..evaluation.recommend import recommend
from ..evaluation.threads import one_thread
from ..files import blocks, image_grid, pictures, write_pictures
from ..models import load
from ..models.network import Network
from ..models.oracles import Joint, MarkovChain
from ..planners import LowDiscrepancy
from ..sampling import Moment, plan, sample
from ..solvers import Multistep
from ..training.sums import Problem, problems, result_of
from .methods import EXACT, METHODS, MINE, PARALLEL, RK, SAFE, SEMI, TAU, TWEEDIE, pick
from .pages import WIDTH, Job, cells, experiment, flow, render
from .rules import Report
from .study import Row, Study, compare, ranking, row
from .sums import TEMPERATURE, answer_of, questions
from .toy import law_row

TEXT_BUDGET, DIGITS_BUDGET, SUMS_BUDGET = 32, 64, 32
GUIDANCE = 2.0
MASK = "·"
"""What a mask is shown as."""
SUMS = 8
NUM = 4000
TOY_FOLD = 25
"""The toy is small and its noise floor high: it gets this many times the samples."""
BUDGETS = (8, 32)
CURVE_BUDGETS = (4, 8, 16, 32)
TOLD = 8
"""The budget that the title of the figure speaks of, if it is among them."""
OTHERS = pick(TAU, TWEEDIE, RK, MINE, SAFE)
"""Beside `auto`: the paper's, as published, and the last of them with our rule."""
DECODERS = pick(PARALLEL, SEMI[1])
COLOURS = {AUTO: "#000000"} | {name: METHODS[name].colour for name in OTHERS} | {SAFE: "#56B4E9"}
LABELS = {AUTO: "auto, the default here", MINE: f"{MINE}, the paper's"}
CHAIN = {"excess": ("excess", 1.0, 4), "pair KL": ("pair_kl", 1.0, 4)}

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Advance = Callable[[float], None]


@experiment(least=2)
@one_thread()
def run(job: Job, budgets: Sequence[int] = BUDGETS, curve_budgets: Sequence[int] = CURVE_BUDGETS) -> Report:
    """Draw and measure, and write ``digits.png``, ``convergence.png`` and three tables as CSV to the job's folder."""
    num, seed = job.num or NUM, job.seed
    led, every = 1 + len(OTHERS), sorted({*budgets, *curve_budgets})
    work = 5 + len(every) * (led + len(DECODERS)) + led * (len(budgets) + len(curve_budgets))
    with job.bar("demo", work) as advance:
        text, (images, seen), solved = text_stages(seed, advance), digits(seed, advance), sums(seed, advance)
        chain = chain_study(every, num, seed, advance)
        toy = law_study("toy15", budgets, advance, num * TOY_FOLD, seed)
        curves = law_study("cube3-uniform", curve_budgets, advance)
    picture, figure = job.folder / "digits.png", job.folder / "convergence.png"
    note = {"model": "mnist", "guidance": GUIDANCE, "nfe": DIGITS_BUDGET, "seed": seed}
    write_pictures(picture, image_grid(images, columns=5), note)
    write_png(figure, draw(chain, curves, noise_floor(256, 63 * num)))
    studies = {"convergence": curves, "chain64": chain, "toy15": toy}
    files = [write_csv(job.folder / f"{name}.csv", one.written) for name, one in studies.items()]
    told = {"stages": [(nfe, _indented(text)) for nfe, text in text], "budgets": (TEXT_BUDGET, DIGITS_BUDGET)}
    told |= {"images": _indented(blocks(images, columns=5)), "seen": seen, "picture": picture, "figure": figure}
    told |= {"guidance": GUIDANCE, "mask": MASK, "length": len(text[-1][1]), "num": num, "toy": toy, "curves": curves}
    told |= {"toy_table": toy_table(toy), **sums_facts(solved)}
    told |= chain_facts(Study([one for one in chain.rows if one["nfe"] in (None, *budgets)]))
    return Report(flow(render("demo.j2", **told), WIDTH), [picture, figure, *files])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


# --- samples of the models that come with the package


def shipped(name: str) -> Network:
    """One of them; an error says so if it is not there."""
    try:
        return load(name)
    except ValueError as error:
        raise ValueError(f"model={name!r}: is not in this copy of thetaleap ({error}); install it anew") from None


def text_stages(seed: int, advance: Advance) -> list[tuple[int, str]]:
    """A text on its way: after how many evaluations it was what, with marks where nothing is yet."""
    model, seen = shipped("shakespeare"), dict[int, Tensor]()

    def watch(moment: Moment) -> None:
        seen[int(moment.nfe[0])] = moment.x[0].clone()

    sample(model, Multistep(planner=LowDiscrepancy()), nfe=TEXT_BUDGET, seed=seed, progress=False, on_step=watch)
    advance(1)
    shown = {min(seen, key=lambda nfe: abs(nfe - part * TEXT_BUDGET)) for part in (0.25, 0.5, 1.0)}
    letter = {model.process.mask: MASK} | {n: model.tokenizer.decode([n]) for n in range(model.process.states)}
    return [(nfe, "".join(letter[n] for n in seen[nfe].tolist())) for nfe in sorted(shown)]


def digits(seed: int, advance: Advance) -> tuple[Float[Tensor, "n 1 h w"], list[int]]:
    """A picture of each digit, in their order, and what the classifier takes it for."""
    model = shipped("mnist")
    told = guided(model, GUIDANCE, torch.arange(10))
    drawn = sample(told, nfe=DIGITS_BUDGET, num=10, seed=seed, progress=False)
    advance(1)
    return pictures(model, drawn.x), digit_labels(drawn.x).tolist()


def sums(seed: int, advance: Advance) -> list[tuple[Problem, str]]:
    """Problems that were not trained on, and what was answered."""
    model, asked = shipped("sums"), problems(SUMS, seed, held_out=True)
    template = questions(asked, model.length)
    solver, sharp = SemiAutoregressive("confidence"), tempered(model, TEMPERATURE)
    drawn = sample(sharp, solver, nfe=SUMS_BUDGET, template=template, seed=seed, progress=False)
    advance(1)
    free = (template < 0).sum(1).tolist()
    return [(one, answer_of(model, x, n)) for one, x, n in zip(asked, drawn.x, free, strict=True)]


def sums_facts(solved: list[tuple[Problem, str]]) -> dict[str, Any]:
    """The first sum that came out right, or the first one if none did."""
    good = [(one, answer) for one, answer in solved if result_of(answer) == one.result]
    one, answer = (good or solved)[0]
    told = _indented("\n\n".join(wrapped(part, 90) for part in (one.question, answer)))
    return {"sum": told, "good": len(good), "asked": len(solved), "result": one.result, "sums_budget": SUMS_BUDGET}


# --- the chain: excess cross-entropy and pairs


def chain_study(budgets: Sequence[int], num: int, seed: int, advance: Advance) -> Study:
    """True samples, exact ones, and every solver at every budget."""
    model = load("chain64")
    assert isinstance(model, MarkovChain)

    def measured(name: str, x: Tensor, spent: Sequence[int], **told: Any) -> Row:
        excess = mean((-model.log_prob(x) - model.entropy()) / model.length)
        advance(1)
        return row(name, spent, model="chain64", **told, excess=excess, pair_kl=pair_kl(model, x))

    def sampled(name: str, solver: Method, nfe: int | None) -> Row:
        drawn = sample(model, solver, nfe=nfe, num=num, seed=seed, progress=False)
        return measured(name, drawn.x, drawn.nfe.tolist(), solver=repr(solver), nfe=nfe)

    def led(nfe: int) -> dict[str, Method]:
        return {AUTO: recommend(model, nfe).solver, **OTHERS, **DECODERS}

    rows = [measured("true samples", model.draw(num, seed), [0] * num), sampled(EXACT, pick(EXACT)[EXACT], None)]
    rows += [sampled(name, solver, nfe) for nfe in budgets for name, solver in led(nfe).items()]
    return Study.of("demo", rows)


def pair_kl(model: MarkovChain, x: Tensor) -> Measured:
    """KL of the frequencies of neighbouring pairs in `x` from their true law, with its standard error.

    The frequencies f are means over the samples, so that to first order the error of ``sum f log(f/p)`` is that of
    the mean of ``log(f/p)`` over the pairs of one sample. (This direction is finite where a rare pair never occurs.)
    """
    truth = model.starts[:-1].mean(0).unsqueeze(1) * model.transition
    pairs = torch.stack([x[:, :-1].flatten(), x[:, 1:].flatten()], 1)
    seen = frequencies(histogram(pairs, model.process.states))
    log_ratio = (seen / truth).log()[x[:, :-1], x[:, 1:]]
    return Measured(kl(seen, truth), mean(log_ratio.mean(1)).error)


def chain_facts(study: Study) -> dict[str, Any]:
    """Who is nearest at each budget, who is exact, and who buys likelihood with diversity."""
    size = Study([{**one, "excess": abs(one["excess"])} for one in study.rows])
    exact, zero = study.where(method=EXACT)[0], {"excess": 0.0, "theta": None}
    return {
        "chain": table(*cells(study, CHAIN)),
        "leaders": list(zip(ranking(study, "pair_kl"), ranking(size, "excess"), strict=True)),
        "exact": exact,
        "off": compare("excess", exact, zero) != 0,
        "duplicates": [one for one in study.rows if compare("excess", one, zero) < 0],
    }


# --- the toy and exact curves


def law_study(name: str, budgets: Sequence[int], advance: Advance, num: int | None = None, seed: int = 0) -> Study:
    """Every solver at every budget, all on the grid that `auto` takes: exact laws and, with `num`, samples."""
    model = load(name)
    assert isinstance(model, Joint)
    rows = []
    for budget in budgets:
        advice = recommend(model, budget)
        for method, solver in {AUTO: advice.solver, **OTHERS}.items():
            times = plan(model, solver, nfe=budget, grid=advice.grid)
            rows.append({**law_row(model, name, method, solver, times, num, seed), "nfe": budget})
            advance(1)
    return Study.of("demo", rows)


def toy_table(toy: Study) -> str:
    header = ["solver", "budget", "exact KL", "sampled KL", "from", "to"]
    figures = ("kl_exact", "kl_mc", "kl_mc_low", "kl_mc_high")
    lines = [[one["method"], str(one["nfe"]), *(f"{one[name]:.1e}" for name in figures)] for one in toy.rows]
    return table(header, lines)


# --- the figure


def draw(chain: Study, curves: Study, floor: float) -> Figure:
    """`auto` beside the others at equal evaluations: pairs of the chain, and exact laws without masks."""
    figure, ((left, right),) = panels(12, 4.8, 1, 2)
    parts = ((left, chain, "pair_kl"), (right, curves, "kl_exact"))
    for panel, study, name in parts:
        ends = {}
        for method in (*reversed(OTHERS), AUTO):
            own = study.where(method=method)
            x, y = [one["nfe"] for one in own], [one[name] for one in own]
            bars = [one.get(f"{name}_se") or 0.0 for one in own]
            wide = 2.4 if method == AUTO else 1.3
            panel.errorbar(x, y, bars, color=COLOURS[method], marker="o", markersize=2.5 * wide, linewidth=wide)
            ends[LABELS.get(method, method)] = x[-1], y[-1]
        budget_axis(panel, sorted(study.column("nfe")), "evaluations per sample")
        panel.set_yscale("log")
        direct_labels(panel, ends, {LABELS.get(method, method): colour for method, colour in COLOURS.items()})
    left.axhline(floor, color="0.35", linestyle=(0, (1, 3)), linewidth=1.2)
    left.annotate("true samples", (min(chain.column("nfe")), floor), (0, -10), textcoords="offset points", fontsize=8)
    left.set_title("masked: chain64, KL of neighbouring pairs, nats", fontsize=10, loc="left")
    right.set_title("uniform: cube3-uniform, exact KL of the whole law, nats", fontsize=10, loc="left")
    figure.suptitle(f"{takeaway(chain, curves)}\n", fontsize=12, fontweight="bold", x=0.01, ha="left")
    return figure


def takeaway(chain: Study, curves: Study) -> str:
    """How much nearer to the truth `auto` is than the paper's method."""
    budgets = {*chain.column("nfe")} & {*curves.column("nfe")}
    nfe = TOLD if TOLD in budgets else min(budgets)

    def nearer(study: Study, name: str) -> str:
        mine, paper = (study.where(method=method, nfe=nfe)[0][name] for method in (AUTO, MINE))
        return f"{paper / mine:.0f}" if paper > 9.5 * mine else f"{paper / mine:.1f}"

    with_masks, without = nearer(chain, "pair_kl"), nearer(curves, "kl_exact")
    return (
        f"At {nfe} evaluations auto's error is {with_masks} times below the paper's with masks, {without} times without"
    )
