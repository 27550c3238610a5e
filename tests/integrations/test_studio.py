"""The studio without its page: what tabs work out, and the Python they show for it."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch

import thetaleap as tl
from thetaleap.integrations.studio import paint, race, ranking, sureness, truth, views, watch
from thetaleap.integrations.studio.allowed import Allowed, loaded
from thetaleap.integrations.studio.calls import Call, spelled
from thetaleap.integrations.studio.race import Race
from thetaleap.integrations.studio.ranking import Ranking
from thetaleap.integrations.studio.truth import LAWS, Truth
from thetaleap.integrations.studio.watch import Film, Watch
from thetaleap.integrations.studio.work import Stopped, listen
from thetaleap.sampling import Moment

VISITOR = Allowed()


def nothing(_: Any) -> None:
    """Hears a report."""


def pasted(code: str) -> dict[str, Any]:
    """What a program leaves behind."""
    names: dict[str, Any] = {}
    exec(compile(code, "shown", "exec"), names)
    return names


def same_figures(shown: Any, again: Any) -> None:
    """The same figures, but for the order of sums, which depends on where tensors lie in memory."""
    values = [{key: one.value for key, one in row.figures.items()} for row in (shown, again)]
    assert values[0] == pytest.approx(values[1], rel=1e-9, abs=1e-12)


# --- the Python that is shown gives what is shown


@pytest.mark.parametrize(
    "settings",
    [
        Watch("chain64", nfe=6, seed=2**64 - 1),
        Watch("chain64", "Multistep(planner=LowDiscrepancy(), window=1)", nfe=5, num=3, seed=7),
        Watch("chain64", "exact", template="3 _ _ 5", forbid="7 8 9"),
        Watch("cube3", "first-hitting", num=2, colour="sure"),
        Watch("cube3-uniform", "multistep", nfe=6, num=2, temperature=0.7, colour="sure"),
        Watch("ising4x16", "remdm", nfe=9, num=2),
        Watch("sums", "tweedie", nfe=4, template="Mia has 3 ___.", temperature=0.0, colour="sure"),
        Watch("mnist", nfe=4, num=3, labels="4, 2", guidance=1.5),
    ],
    ids=lambda settings: f"{settings.model}-{settings.solver}",
)
def test_watch_is_what_its_python_does(settings: Watch) -> None:
    film, names = watch.run(settings, VISITOR, nothing), pasted(watch.code(settings, VISITOR))
    assert len(film.moments) == len(names["steps"])
    for shown, again in zip(film.moments, names["steps"], strict=True):
        torch.testing.assert_close(shown.x, again.x, rtol=0, atol=0)
        torch.testing.assert_close(shown.nfe, again.nfe, rtol=0, atol=0)
    assert torch.equal(names["samples"].x, film.moments[-1].x)
    assert (film.sure is None) == (settings.colour == "when")
    if film.sure is not None:
        torch.testing.assert_close(film.sure, names["sure"], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("settings", [Race("cube3", nfe=3, num=8), Race("chain64", "auto,Tweedie()", 4, 3, 12)])
def test_a_race_is_what_its_python_does(settings: Race) -> None:
    heard: list[Any] = []
    standing = race.run(settings, VISITOR, heard.append)
    names = pasted(race.code(settings, VISITOR, standing.num))
    assert list(standing.lanes) == list(names["samples"])
    for name, film in standing.lanes.items():
        assert torch.equal(film.moments[-1].x, names["samples"][name].x)
    assert standing.comparison is not None
    for shown, again in zip(standing.comparison.rows, names["comparison"].rows, strict=True):
        assert (shown.contender, shown.rank) == (again.contender, again.rank)
        same_figures(shown, again)
    measured = [one.num for one in heard if isinstance(one, race.Standing) and one.num]
    assert measured == ([8] if settings.model == "cube3" else [8, 12]), "exact laws are measured once"
    for name in standing.lanes:
        assert f"from {'exact laws' if settings.model == 'cube3' else '12 samples'}" in race.quality(standing, name)[0]
    assert len(measured) == len({id(one.comparison) for one in heard if isinstance(one, race.Standing) and one.num})


@pytest.mark.parametrize(
    "settings",
    [
        Truth(),
        Truth(1, 5, "1,2,3,4,5", "uniform", "euler,uniformization", 3),
        Truth(2, 2, "9,1,1,9", solvers="exact,rk2", nfe=4),
    ],
    ids=["odd", "one", "exact"],
)
def test_truth_is_what_its_python_does(settings: Truth) -> None:
    found, names = truth.run(settings, VISITOR, nothing), pasted(truth.code(settings, VISITOR))
    assert list(found.laws) == list(names["laws"])
    for name, law in found.laws.items():
        assert torch.equal(law, names["laws"][name])
    again = {(row.contender, row.budget): row for row in names["comparison"].rows}
    assert {(row.contender, row.budget) for row in found.curves} == set(again)
    for row in found.curves:
        same = again[row.contender, row.budget]
        assert row.reason == same.reason
        same_figures(row, same)


def test_compare_is_what_its_python_does() -> None:
    settings = Ranking("chain64", "auto,tweedie,rk2", "2,4", 20, 5)
    shown, names = ranking.run(settings, VISITOR, nothing), pasted(ranking.code(settings, VISITOR))
    for row, again in zip(shown.rows, names["comparison"].rows, strict=True):
        assert (row.contender, row.budget, row.rank) == (again.contender, again.budget, again.rank)
        assert (row.nfe, row.solver, row.reason) == (again.nfe, again.solver, again.reason)
        same_figures(row, again)
    header, cells = ranking.table(shown)
    assert [row[:3] for row in cells] == [[r.contender, str(r.budget), str(r.rank)] for r in shown.rows if not r.reason]
    assert "rk2 at 2" in ranking.notes(shown)[0]
    assert len(header) == len(cells[0])


# --- against what is known otherwise


def test_sureness_is_the_chain_rule() -> None:
    """One position at a time, the probabilities of tokens as they were written multiply to that of the sequence."""
    model, steps = tl.load("cube3"), list[Moment]()
    one = tl.Tweedie(tl.FixedCount("even"))
    samples = tl.sample(model, one, nfe=3, num=40, seed=3, on_step=steps.append, batch_size=40)
    sure = sureness(model, steps)
    written = torch.isfinite(sure).sum((0, 2))
    assert written.tolist() == [3] * 40
    torch.testing.assert_close(sure.log().nan_to_num(0.0).sum((0, 2)), model.log_prob(samples.x))


def test_sureness_of_labelled_samples_is_that_of_each_label() -> None:
    model, steps = tl.guided(tl.load("mnist"), 0.0, [1, 8]), list[Moment]()
    tl.sample(model, tl.Tweedie(), nfe=3, num=2, batch_size=2, on_step=steps.append)
    both = sureness(model, steps)
    for n, label in enumerate((1, 8)):
        alone = [Moment(m.step, m.t, 0, m.x[n : n + 1], m.nfe[:1], m.spent[:1], m.rounds[:1]) for m in steps]
        single = sureness(tl.guided(tl.load("mnist"), 0.0, label), alone)
        torch.testing.assert_close(both[:, n : n + 1], single, rtol=1e-4, atol=1e-6, equal_nan=True)


def test_two_that_agree_drawn_together_lose_their_information() -> None:
    settings = Truth(2, 2, "9,1,1,9", solvers="tweedie", nfe=1)
    found = truth.run(settings, VISITOR, nothing)
    torch.testing.assert_close(found.laws["tweedie"], torch.full((2, 2), 0.25, dtype=torch.float64))
    information = math.log(4) + 0.9 * math.log(0.45) + 0.1 * math.log(0.05)
    assert found.curves[0].figures["kl"].value == pytest.approx(information, abs=1e-12)
    assert found.curves[0].figures["tv"].value == pytest.approx(0.4, abs=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_laws_to_begin_with(name: str) -> None:
    settings = Truth(*LAWS[name])
    assert len(truth.table_of(settings)) == len(settings.sequences) == len(settings.numbers())
    assert float(settings.oracle().p0.sum()) == pytest.approx(1)


def test_a_table_gives_its_weights_in_order_however_it_is_sorted() -> None:
    settings = Truth(2, 2, "1,2,3,4")
    table = truth.table_of(settings)
    assert truth.rows_of(table[::-1], settings) == "1,2,3,4"
    assert truth.rows_of([["0 0", 0.5], *table[1:]], settings) == "0.5,2,3,4"
    with pytest.raises(ValueError, match="sequence='1 1'"):
        truth.rows_of(table[:-1], settings)


@pytest.mark.parametrize(
    ("model", "solver"), [("cube3-uniform", "multistep"), ("chain64", "remdm"), ("chain64", "auto")]
)
def test_when_a_token_was_written(model: str, solver: str) -> None:
    """The last step in which a position changed, counted one by one."""
    film = watch.run(Watch(model, solver, nfe=8, num=2), VISITOR, nothing)
    last = torch.zeros_like(film.moments[0].x)
    for n, moment in enumerate(film.moments):
        if n:
            last[moment.x != film.moments[n - 1].x] = n
        assert torch.equal(film.when(n), last)
    spent = [int(moment.nfe.max()) for moment in film.moments]
    for budget in range(9):
        step = film.after(budget)
        assert spent[step] <= budget
        assert step + 1 == len(spent) or spent[step + 1] > budget


# --- HTML


@pytest.mark.parametrize("name", ["shakespeare-char", "shakespeare", "sums"])
def test_pieces_of_text_are_the_text(name: str) -> None:
    words = loaded(Call.of("load", name)).tokenizer
    text = {"sums": "Mia has 3 apples."}.get(name, "First Citizen:\nBefore we proceed, hear me speak.\n")
    tokens = words.encode(text)
    assert "".join(paint.pieces(words, tokens, None)) == words.decode(tokens)
    assert list(paint.pieces(words, [tokens[0], -5, tokens[1]], -5))[1] == paint.MASK


class Tags:
    """Tokens that would be HTML."""

    def encode(self, text: str) -> list[int]:
        return [0] * len(text)

    def decode(self, ids: list[int]) -> str:
        return "<b>" * len(ids)


def test_tokens_are_text_and_never_html() -> None:
    model = tl.from_network(tl.Masked(2), length=3, network=lambda x, t: torch.zeros((*x.shape, 2)), tokenizer=Tags())
    steps: list[Moment] = []
    tl.sample(model, tl.Tweedie(), nfe=2, on_step=steps.append)
    made = paint.samples(Film(model, tuple(steps), torch.tensor([True, False, False])), len(steps) - 1)
    assert "<b>" not in made
    assert made.count("&lt;b&gt;") == 3
    assert 'class="tl-given" title="given"' in made
    for text in (paint.error("<i>"), paint.line("<i>"), paint.table(["<i>"], [["<i>"]], "<i>")):
        assert "<i>" not in text


def test_a_film_shows_masks_given_positions_and_colours() -> None:
    settings = Watch("chain64", "tweedie", nfe=8, template="3 _ 5")
    film = watch.run(settings, VISITOR, nothing)
    assert film.given.tolist() == [True, False, True, *[False] * 61]
    first, last = paint.samples(film, 0), paint.samples(film, len(film.moments) - 1)
    assert (first.count("tl-mask"), last.count("tl-mask")) == (62, 0)
    assert first.count('title="given">') == last.count('title="given">') == 2
    assert last.count("background:rgb(") == 62
    assert watch.status(film, 0, 8) == "step 0, 0 of at most 8 evaluations, 0 of 62 free positions written"


def test_pictures_are_what_was_drawn() -> None:
    film = watch.run(Watch("ising4x16", nfe=4, num=2), VISITOR, nothing)
    made = paint.samples(film, len(film.moments) - 1)
    assert made.count("<img") == 4
    assert "sample 1, 64 of 64 positions: picture" in made


def test_views_name_everybody() -> None:
    settings = Race("cube3", nfe=3, num=4)
    standing = race.run(settings, VISITOR, nothing)
    shown = views.lanes(standing, 3)
    assert all(f"<h3>{name}, " in shown for name in ("auto", "tweedie", "trapezoidal"))
    assert "rank 1" in shown
    assert race.quality(standing, "auto")[1].startswith("KL(p0 || law of the samples): ")
    assert race.quality(standing, "auto")[1].endswith(" nats")
    found = truth.run(Truth(), VISITOR, nothing)
    assert views.laws(Truth(), found).count('class="tl-bar"') == 8 * 3


# --- calls, and work in threads


def test_solvers_are_spelled_as_in_python() -> None:
    solver = tl.Corrected(tl.Multistep(planner=tl.LowDiscrepancy(schedule="even")), tl.Gibbs(k=2))
    assert eval(spelled(solver), {"tl": tl}) == solver


def test_work_is_heard_and_its_result_comes_last() -> None:
    def work(report: Any) -> str:
        report(1)
        report(2)
        return "end"

    assert [news for news in listen(work) if news is not None] == [1, 2, "end"]


def test_errors_of_work_are_raised_where_someone_listens() -> None:
    def work(report: Any) -> None:
        report(1)
        tl.load("nothing")

    news = listen(work)
    assert next(one for one in news if one is not None) == 1
    with pytest.raises(ValueError, match="model='nothing'"):
        list(news)


def test_work_stops_when_nobody_listens() -> None:
    stopped, go = threading.Event(), threading.Event()

    def work(report: Any) -> None:
        try:
            report(1)
            go.wait(30)
            report(2)
        except Stopped:
            stopped.set()

    news = listen(work, patience=0.01)
    assert next(one for one in news if one is not None) == 1
    assert next(news) is None, "whoever listens is not kept waiting"
    news.close()  # pyright: ignore[reportAttributeAccessIssue]
    go.set()
    assert stopped.wait(30)


def test_progress_of_compare_may_be_a_function() -> None:
    heard: list[tuple[float, str]] = []
    tl.compare("cube3", ["auto", "tweedie"], [2, 3], num=3, progress=lambda share, note: heard.append((share, note)))
    shares = [share for share, _ in heard]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert {note for _, note in heard} == {"auto", "tweedie"}

    def enough(share: float, note: str) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        tl.compare("cube3", ["auto"], [2], num=3, progress=enough)
