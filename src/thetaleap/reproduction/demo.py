"""A short tour: what the models of the package write and draw, and every kind of solver beside the truth.

First samples: a text as it appears, ten digits, and a sum with its answer. Then three things are measured. On a Markov
chain of 64 masked positions, how surprising samples are to the true law, beside the law of their neighbouring pairs; on
the paper's 15 states, the exact law of every solver beside samples of it; on 27 sequences, masked and uniform, exact
laws alone, against evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..conditioning.wrappers import guided, tempered
from ..control import Method, SemiAutoregressive, grids
from ..core.checks import require_count
from ..core.progress import progress_bar
from ..evaluation.figures import page as paged
from ..evaluation.figures import table, write_csv, write_png
from ..evaluation.metrics import frequencies, histogram, kl
from ..evaluation.metrics.digits import digit_labels
from ..evaluation.metrics.sequences import Measured, mean
from ..evaluation.threads import one_thread
from ..files import blocks, mosaic, pictures, write_pictures
from ..models import load
from ..models.network import Network
from ..models.oracles import Joint, MarkovChain
from ..planners import LowDiscrepancy
from ..sampling import Moment, plan, sample
from ..solvers import Multistep
from ..training.sums import Problem, problems, result_of
from .methods import EULER, EXACT, PARALLEL, SAFE, SEMI, TWEEDIE, pick
from .pages import WIDTH, Panel, cells, chart, flow, render
from .rules import Report
from .study import UNUSUAL, Row, Study, compare, ranking, row
from .sums import TEMPERATURE, answer_of, questions
from .toy import law_row

TEXT_BUDGET, DIGITS_BUDGET, SUMS_BUDGET = 32, 64, 32
GUIDANCE = 2.0
GONE = "·"
"""What a mask is shown as."""
SUMS = 8
NUM = 4000
TOY_FOLD = 25
"""The toy is small and its noise floor high: it gets this many times the samples."""
BUDGETS = (8, 32)
CURVE_BUDGETS = (4, 8, 16, 32, 64)
CURVED = {"cube3": "masked (cube3), equal steps", "cube3-uniform": "uniform (cube3-uniform), quadratic grid"}
SOLVERS = pick("tau-leaping (exact rule)", EULER, TWEEDIE, "theta-RK-2 (exact rule)", SAFE)
DECODERS = pick(PARALLEL, SEMI[1])
CHAIN = {"excess": ("excess", 1.0, 4), "pair KL": ("pair_kl", 1.0, 4)}

Advance = Callable[[float], None]


@one_thread()
def run(
    folder: Path,
    seed: int = 0,
    progress: bool | None = None,
    num: int = NUM,
    budgets: Sequence[int] = BUDGETS,
    curve_budgets: Sequence[int] = CURVE_BUDGETS,
) -> Report:
    """Draw and measure, and write ``digits.png``, ``convergence.png`` and three tables as CSV to `folder`."""
    require_count("num", num, least=2)
    require_count("seed", seed, least=0)
    folder.mkdir(parents=True, exist_ok=True)
    work = 5 + len(budgets) * (2 * len(SOLVERS) + len(DECODERS)) + len(CURVED) * len(SOLVERS) * len(curve_budgets)
    with progress_bar(progress, "demo", work) as advance:
        text, (images, seen), solved = text_stages(seed, advance), digits(seed, advance), sums(seed, advance)
        chain = chain_study(budgets, num, seed, advance)
        toy = toy_study(budgets, num, seed, advance)
        curves = curve_study(curve_budgets, advance)
    picture = folder / "digits.png"
    note = {"model": "mnist", "guidance": GUIDANCE, "nfe": DIGITS_BUDGET, "seed": seed}
    write_pictures(picture, mosaic(images, columns=5), note)
    own = {model: curves.of_model(model) for model in CURVED}
    parts = [
        Panel(own[name], "kl_exact", "KL(p0 || law), nats", title=title, log=True) for name, title in CURVED.items()
    ]
    studies = {"convergence": curves, "chain64": chain, "toy15": toy}
    files = [write_png(folder / "convergence.png", chart(parts, list(SOLVERS), "Exact error at equal evaluations"))]
    files += [write_csv(folder / f"{name}.csv", one.written.to_dict("records")) for name, one in studies.items()]  # pyright: ignore[reportArgumentType]
    told = {"stages": [(nfe, _indented(text)) for nfe, text in text], "budgets": (TEXT_BUDGET, DIGITS_BUDGET)}
    told |= {"images": _indented(blocks(images, columns=5)), "seen": seen, "picture": picture}
    told |= {"guidance": GUIDANCE, "gone": GONE, "length": len(text[-1][1]), "num": num, "figure": files[0]}
    shown = flow(
        render("demo.j2", **told, **sums_facts(solved), **chain_facts(chain), toy=toy, curves=own, **_tables(toy)),
        WIDTH,
    )
    return Report(shown, [picture, *files])


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
    shown = [min(seen, key=lambda nfe: abs(nfe - part * TEXT_BUDGET)) for part in (0.25, 0.5, 1.0)]
    return [(nfe, _written(model, seen[nfe])) for nfe in sorted(set(shown))]


def _written(model: Network, tokens: Int64[Tensor, " d"]) -> str:
    return "".join(GONE if n == model.process.mask else model.tokenizer.decode([n]) for n in tokens.tolist())


def digits(seed: int, advance: Advance) -> tuple[Float[Tensor, "n 1 h w"], list[int]]:
    """A picture of each digit, in their order, and what the classifier takes it for."""
    model = shipped("mnist")
    told = guided(model, GUIDANCE, torch.arange(10))
    drawn = sample(told, Multistep(), nfe=DIGITS_BUDGET, num=10, seed=seed, progress=False)
    advance(1)
    return pictures(model, drawn.x), digit_labels(drawn.x).tolist()


Sums = list[tuple[Problem, str]]
"""Problems that were not trained on, and what was answered."""


def sums(seed: int, advance: Advance) -> Sums:
    """A few of them."""
    model, asked = shipped("sums"), problems(SUMS, seed, held_out=True)
    template = questions(asked, model.length)
    solver, sharp = SemiAutoregressive("confidence"), tempered(model, TEMPERATURE)
    drawn = sample(sharp, solver, nfe=SUMS_BUDGET, template=template, seed=seed, progress=False)
    advance(1)
    free = (template < 0).sum(1).tolist()
    return [(one, answer_of(model, x, n)) for one, x, n in zip(asked, drawn.x, free, strict=True)]


def sums_facts(solved: Sums) -> dict[str, Any]:
    """The first sum that came out right, or the first one if none did."""
    good = [(one, answer) for one, answer in solved if result_of(answer) == one.result]
    one, answer = (good or solved)[0]
    told = _indented(paged([one.question, answer], 90))
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

    rows = [measured("true samples", model.draw(num, seed), [0] * num), sampled(EXACT, pick(EXACT)[EXACT], None)]
    rows += [sampled(name, solver, nfe) for nfe in budgets for name, solver in (SOLVERS | DECODERS).items()]
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
    size = Study(study.frame.assign(excess=study.frame["excess"].abs()))
    exact, zero = study.where(method=EXACT)[0], {"excess": 0.0, "theta": None}
    return {
        "chain": table(*cells(study, CHAIN)),
        "leaders": list(zip(ranking(study, "pair_kl"), ranking(size, "excess"), strict=True)),
        "exact": exact,
        "off": compare("excess", exact, zero) != 0,
        "duplicates": [one for one in study.rows if compare("excess", one, zero) < 0],
    }


# --- the toy and exact curves


def toy_study(budgets: Sequence[int], num: int, seed: int, advance: Advance) -> Study:
    """Every solver at every budget, on a quadratic grid."""
    return _laws("toy15", budgets, grids.power, advance, num * TOY_FOLD, seed)


def _laws(
    name: str, budgets: Sequence[int], grid: Any, advance: Advance, num: int | None = None, seed: int = 0
) -> Study:
    model = load(name)
    assert isinstance(model, Joint)
    rows = []
    for budget in budgets:
        for method, solver in SOLVERS.items():
            times = plan(model, solver, nfe=budget, grid=grid)
            rows.append({**law_row(model, name, method, solver, times, num, seed), "nfe": budget})
            advance(1)
    return Study.of("demo", rows)


def _tables(toy: Study) -> dict[str, Any]:
    header, figures = (
        ["solver", "budget", "exact KL", "sampled KL", "from", "to"],
        ("kl_exact", "kl_mc", "kl_mc_low", "kl_mc_high"),
    )
    lines = [[one["method"], str(one["nfe"]), *(f"{one[name]:.1e}" for name in figures)] for one in toy.rows]
    return {"toy_table": table(header, lines), "UNUSUAL": UNUSUAL}


def curve_study(budgets: Sequence[int], advance: Advance) -> Study:
    """Exact laws of every solver on both models, at all budgets."""
    made = [
        _laws(name, budgets, grid, advance) for name, grid in (("cube3", grids.uniform), ("cube3-uniform", grids.power))
    ]
    return Study.of("demo", [one for study in made for one in study.rows])
