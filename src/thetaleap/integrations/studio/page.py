"""The page: forms, results and what happens on a click. What is shown is worked out elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import gradio as gr  # pyright: ignore[reportMissingImports]
from gradio.themes import Default  # pyright: ignore[reportMissingImports]

from ...core.checks import finite, require_choice
from ...core.fields import Parameter, parameters
from ...evaluation.choice import AUTO, split
from ...evaluation.contenders import EXACT
from ...registry import SOLVERS
from . import paint, race, ranking, truth, views, watch
from .allowed import Allowed
from .settings import query, read
from .tabs import Tab, Turns, Update, in_compare, in_race, in_truth, in_watch, in_words, progress
from .work import listen

THEME = Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]).set(
    block_info_text_color="*neutral_600",
    block_info_text_color_dark="*neutral_300",
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_dark="*primary_700",
    button_primary_background_fill_hover_dark="*primary_800",
)
"""With fonts that are there, so that nothing is fetched, and with helps and buttons that can be read well."""
TITLE = "thetaleap studio"
ABOUT = "Watch, race and measure solvers of discrete diffusion models. Every result has a link and the Python that makes it."
CHANGED = "The settings have changed: press Run."
AGAIN = "The result is of these settings."
LINKS = """(...links) => {
  const now = new URL(window.location), theme = now.searchParams.get("__theme");
  const shown = links.length > 1 ? now.searchParams.get("tab") || "watch" : null;
  const whole = links.map((link) => {
    const url = new URL(link || "", now);
    if (theme) url.searchParams.set("__theme", theme);
    if (!shown || url.searchParams.get("tab") === shown) history.replaceState(null, "", url);
    return url.href;
  });
  if (!shown) return whole[0];
  const tabs = [...document.querySelectorAll("button[role=tab]")];
  tabs.find((one) => one.innerText.trim().toLowerCase() === shown)?.click();
  return whole;
}"""
"""Makes links whole, and puts one into the address bar: of several that of the tab which was asked for, which is opened."""
AT_ONCE = 4
"""Runs at the same time; others wait."""
KEPT = 3600
"""Seconds that a run which nobody looks at is kept."""
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "preprocess": False}
"""Values come as they are: what is wrong with them is said here, in a line."""
WORK: dict[str, Any] = {**QUIET, "concurrency_id": "work", "concurrency_limit": AT_ONCE, "trigger_mode": "multiple"}
LIVE: dict[str, Any] = {**QUIET, "concurrency_limit": None, "trigger_mode": "always_last"}

LABELS = {
    "nfe": "Evaluations",
    "num": "Samples",
    "colour": "Colour of tokens",
    "budgets": "Evaluations",
    "labels": "Labels",
}
CHOICES = {watch.WHEN: "when it was written", watch.SURE: "how sure the model was"}
GROUPS = (
    *(("model",), ("solver",), ("solvers",), ("positions", "values"), ("weights",), ("process",)),
    *(("nfe", "num", "seed"), ("budgets",), ("template",), ("forbid",), ("labels", "guidance"), ("temperature",)),
    ("colour",),
)
"""Settings that stand beside each other."""
HEADERS = ["sequence", "weight"]


def component(one: Parameter, value: Any, allowed: Allowed) -> Any:
    """The part of a form that asks for a setting, with this value to begin with."""
    label = LABELS.get(one.name, one.name.capitalize())
    about: dict[str, Any] = {"label": label, "info": one.knob.help}
    about |= {"elem_classes": f"tl-{one.name}", "min_width": 80}
    if one.name == "model":
        return gr.Dropdown(allowed.names, value=value, allow_custom_value=allowed.files, **about)
    if one.name == "solver":
        return gr.Dropdown([AUTO, EXACT, *SOLVERS], value=value, allow_custom_value=True, **about)
    if one.name == "solvers":
        names = [AUTO, EXACT, *SOLVERS]
        return gr.Dropdown(names, value=split(value), multiselect=True, allow_custom_value=True, **about)
    if one.knob.choices:
        return gr.Radio([(CHOICES.get(choice, choice), choice) for choice in one.knob.choices], value=value, **about)
    if one.hint in (int, float) and one.name != "seed":  # seeds are larger than the numbers of a browser
        return gr.Number(value=value, **about)
    return gr.Textbox(value=str(value), max_lines=3, **about)


def default(kind: type, allowed: Allowed) -> Any:
    """The settings of a tab to begin with."""
    with_model = "model" in {one.name for one in fields(kind)} and allowed.models
    return kind(model=allowed.models[0]) if with_model else kind()


def laid_out(name: str, kind: type, code: Callable[..., str], allowed: Allowed) -> Tab:
    """The components of a tab: the form, and beside it what is found."""
    known, inputs, more = parameters(kind), dict[str, Any](), dict[str, Any]()
    begin = default(kind, allowed)
    with gr.Tab(name.capitalize(), id=name) as tab, gr.Row():
        with gr.Column(scale=1, min_width=300):
            for group in GROUPS:
                if set(group) & set(known):
                    with gr.Row(equal_height=True):
                        some = [key for key in group if key in known]
                        inputs |= {key: component(known[key], getattr(begin, key), allowed) for key in some}
            if kind is truth.Truth:
                more["law"] = gr.Dropdown(list(truth.LAWS), value=None, label="Start from", info="A law to edit.")
                more["table"] = gr.Dataframe(
                    truth.table_of(begin),
                    headers=HEADERS,
                    type="array",
                    static_columns=[0],
                    label="Joint law",
                    column_count=2,
                    interactive=True,
                    max_height=340,
                    elem_classes="tl-law",
                )
        with gr.Column(scale=2, min_width=300, elem_classes="tl-tab"):
            with gr.Row():
                run = gr.Button("Run", variant="primary", elem_classes="tl-run", min_width=80)
                stop = gr.Button("Stop", elem_classes="tl-stop", min_width=80)
            status = gr.HTML(elem_classes="tl-line")
            if kind in (watch.Watch, race.Race):
                what = "Step" if kind is watch.Watch else "Evaluations"
                more["step"] = gr.Slider(0, 1, value=0, step=1, label=what, interactive=True, elem_classes="tl-step")
                more["kept"] = gr.State(None, time_to_live=KEPT)
            result = gr.HTML(elem_classes="tl-result")
            if kind is ranking.Ranking:
                more["csv"] = gr.DownloadButton("Download as CSV", interactive=False, elem_classes="tl-csv")
            program = gr.Code(
                code(begin, allowed),
                language="python",
                label="The same in Python",
                interactive=False,
                wrap_lines=True,
                elem_classes="tl-code",
            )
            link = gr.Textbox(label="Link", interactive=False, buttons=["copy"], max_lines=9, elem_classes="tl-link")
    inputs = {key: inputs[key] for key in known}
    tab.select(None, link, link, js=LINKS, **QUIET)
    return Tab(name, kind, code, inputs, status, result, program, link, run, stop, more)


def running(tab: Tab, work: Callable[..., Iterator[Update]], allowed: Allowed, turns: Turns) -> Callable[..., Any]:
    """A run of a tab, with errors as a line; a newer one of the same visitor ends it."""

    def run(request: gr.Request, *values: Any) -> Iterator[Update]:
        visitor = str(request.session_hash)
        turns.end(visitor, tab.name)
        try:
            settings = tab.settings(values)
        except Exception as error:
            yield {tab.status: paint.error(in_words(error))}
            return
        still = turns.begin(visitor, tab.name, settings)
        ended = paint.line(AGAIN)
        try:
            yield {tab.status: paint.line("started", 0.0), tab.program: tab.code(settings, allowed)}
            for update in work(tab, settings, allowed):
                if not still():
                    return
                yield update
        except Exception as error:
            ended = paint.error(in_words(error))
        if turns.say(visitor, tab.name, ended, still):
            yield {tab.status: ended if paint.ERROR in ended else gr.skip()}

    return run


def described(tab: Tab, allowed: Allowed, turns: Turns) -> Callable[..., Update]:
    """What follows from a change of the form: its Python and its link. What is shown is then of other settings, unless
    it was changed back."""

    def describe(request: gr.Request, status: str, *values: Any) -> Update:
        visitor = str(request.session_hash)
        try:
            settings = tab.settings(values)
            told = tab.told(settings, allowed)
            if turns.of(visitor, tab.name, settings):
                wrong = paint.WRONG.search(status or "")
                return {**told, tab.status: turns.lines.get((visitor, tab.name), gr.skip()) if wrong else gr.skip()}
            turns.end(visitor, tab.name)
            return {**told, tab.status: paint.stale(CHANGED)}
        except Exception as error:
            turns.end(visitor, tab.name)
            return {tab.status: paint.error(in_words(error))}

    return describe


def page(allowed: Allowed) -> gr.Blocks:
    """The whole page."""
    turns = Turns()
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT, KEPT)) as blocks:
        gr.HTML(f"<h1>{TITLE}</h1><p>{ABOUT}</p>")
        with gr.Tabs(overflow_behavior="wrap"):
            tabs = {
                laid_out("watch", watch.Watch, watch.code, allowed): in_watch,
                laid_out("race", race.Race, race.code, allowed): in_race,
                laid_out("truth", truth.Truth, truth.code, allowed): in_truth,
                laid_out("compare", ranking.Ranking, ranking.code, allowed): in_compare,
            }
        start = gr.State("")
        opening = opened(list(tabs), start, allowed)
        tables = [tab.more["table"] for tab in tabs if "table" in tab.more]
        parts = [part for tab in tabs for part in (*tab.inputs.values(), tab.status, tab.program, tab.link)]
        loaded = blocks.load(opening, None, [start, *parts, *tables], **QUIET)
        links = [tab.link for tab in tabs]
        loaded.then(None, links, links, js=LINKS, **QUIET)
        for tab, work in tabs.items():
            wire(tab, running(tab, work, allowed, turns), loaded, start, allowed, turns)

        def left(request: gr.Request) -> None:
            turns.forget(str(request.session_hash))

        blocks.unload(left)
    return blocks


def wire(tab: Tab, run: Callable[..., Any], loaded: Any, start: Any, allowed: Allowed, turns: Turns) -> None:
    """What happens on a click, or on a change of the form."""
    form, typed = list(tab.inputs.values()), [one for one in tab.inputs.values() if isinstance(one, gr.Textbox)]

    def first(request: gr.Request, wanted: str, *values: Any) -> Iterator[Update]:
        yield from run(request, *values) if wanted == tab.name else [{tab.status: gr.skip()}]

    def stop(request: gr.Request) -> str:
        turns.say(str(request.session_hash), tab.name, paint.line("stopped"))
        return paint.line("stopped")

    def linked(event: Any) -> Any:
        return event.then(None, tab.link, tab.link, js=LINKS, **QUIET)

    loaded.then(first, [start, *form], tab.outputs, **WORK)
    gr.on([tab.run.click, *(one.submit for one in typed)], run, form, tab.outputs, **WORK)
    tab.stop.click(stop, None, tab.status, **QUIET)
    describe = described(tab, allowed, turns)
    before = [tab.status, *form]
    if tab.kind is truth.Truth:

        def anew(request: gr.Request, status: str, *values: Any) -> Iterator[Update]:
            done = paint.STALE not in (status or "")
            yield from [{tab.status: gr.skip()}] if done else run(request, *values)

        for event in wire_law(tab):
            linked(event.then(describe, before, tab.outputs, **LIVE)).then(anew, before, tab.outputs, **WORK)
        return
    linked(gr.on(_changes(tab, "colour"), describe, before, tab.outputs, **LIVE))
    if "step" in tab.more:
        step, kept = tab.more["step"], tab.more["kept"]
        step.input(frame(tab), [kept, step], [tab.result], **LIVE)
        if "colour" in tab.inputs:
            recolour = recoloured(tab, allowed, turns)
            linked(tab.inputs["colour"].input(recolour, [kept, step, *form], tab.outputs, **WORK))


def _changes(tab: Tab, *without: str) -> list[Any]:
    """The events of changes of a form by its visitor. Of text, `input` is of keys alone; what is pasted shows later."""
    parts = [one for key, one in tab.inputs.items() if key not in without]
    return [one.input for one in parts] + [one.blur for one in parts if isinstance(one, gr.Textbox)]


def frame(tab: Tab) -> Callable[..., Any]:
    """What is shown at another place of the slider."""

    def at(kept: Any, place: Any) -> Any:
        if kept is None or not finite(place):  # the field of the slider may be empty
            return gr.skip()
        if isinstance(kept, race.Standing):
            return views.lanes(kept, max(0, int(place)))
        return paint.samples(kept[0], _step(kept[0], place))

    return at


def _step(film: watch.Film, place: Any) -> int:
    """The step at a place of the slider, which may be of an earlier run."""
    last = len(film.moments) - 1
    return min(max(0, int(place)), last) if finite(place) else last


def recoloured(tab: Tab, allowed: Allowed, turns: Turns) -> Callable[..., Iterator[Update]]:
    """The same run in other colours."""

    def recolour(request: gr.Request, kept: Any, place: Any, *values: Any) -> Iterator[Update]:
        try:
            settings = tab.settings(values)
            yield tab.told(settings, allowed)
            if kept is None:
                return
            film, before = replace(kept[0], sure=None), kept[1]
            if settings.colour == watch.SURE:
                for news in listen(lambda report: watch.with_sureness(kept[0], report)):
                    if isinstance(news, watch.Film):
                        film = news
                    else:
                        yield progress(tab, news)
            step = _step(film, place)
            now = replace(before, colour=settings.colour)
            told = paint.line(watch.status(film, step, now.nfe)) if now == settings else paint.stale(CHANGED)
            turns.begin(str(request.session_hash), tab.name, now)
            turns.say(str(request.session_hash), tab.name, paint.line(AGAIN))
            yield {tab.result: paint.samples(film, step), tab.more["kept"]: (film, now), tab.status: told}
        except Exception as error:
            yield {tab.status: paint.error(in_words(error))}

    return recolour


def wire_law(tab: Tab) -> list[Any]:
    """The table of a law, its weights and its size follow each other; gives the events of all changes of the form."""
    form, table, law = list(tab.inputs.values()), tab.more["table"], tab.more["law"]
    positions, values, weights = (tab.inputs[key] for key in ("positions", "values", "weights"))

    def in_a_line(change: Callable[..., Update]) -> Callable[..., Update]:
        def changed(*now: Any) -> Update:
            try:
                return change(*now)
            except Exception as error:
                return {tab.status: paint.error(in_words(error))}

        return changed

    def sized(*now: Any) -> Update:
        size = tab.settings((*now[:2], "1", *now[3:]))
        flat = replace(size, weights=",".join(["1"] * len(size.sequences)))
        return {weights: flat.weights, table: truth.table_of(flat)}

    def chosen(name: str) -> Update:
        require_choice("law", name, truth.LAWS)
        made = truth.Truth(*truth.LAWS[name])
        return {positions: made.positions, values: made.values, weights: made.weights, table: truth.table_of(made)}

    def edited(cells: Any, *now: Any) -> Update:
        return {weights: truth.rows_of(cells, tab.settings((*now[:2], "1", *now[3:])))}

    def typed(*now: Any) -> Update:
        return {table: truth.table_of(tab.settings(now))}

    parts = [positions, values, weights, table, tab.status]
    others = _changes(tab, "positions", "values", "weights")
    return [
        gr.on([positions.input, values.input], in_a_line(sized), form, parts, **LIVE),
        law.input(in_a_line(chosen), law, parts, **LIVE),
        table.input(in_a_line(edited), [table, *form], parts, **{**LIVE, "preprocess": True}),
        gr.on([weights.input, weights.blur], in_a_line(typed), form, parts, **LIVE),
        gr.on(others, lambda: gr.skip(), None, tab.status, **LIVE),
    ]


def opened(tabs: list[Tab], start: Any, allowed: Allowed) -> Callable[..., Update]:
    """What a link asks for: the form of its tab, which is then run. All else stays as it was laid out, but for links: an
    empty one leaves the address bar as it is until it was read."""

    def load(request: gr.Request) -> Update:
        asked = {key: value for key, value in dict(request.query_params).items() if not key.startswith("__")}
        wanted = asked.pop("tab", tabs[0].name)
        links = {tab.link: query(tab.name, default(tab.kind, allowed)) for tab in tabs}
        shown = tabs[0]
        try:
            require_choice("tab", wanted, [tab.name for tab in tabs])
            shown = next(tab for tab in tabs if tab.name == wanted)
            begin = default(shown.kind, allowed)
            settings = read(shown.kind, {one.name: getattr(begin, one.name) for one in fields(begin)} | asked)
            told = shown.told(settings, allowed) | shown.filled(settings, begin)
            if shown.kind is truth.Truth:
                told[shown.more["table"]] = truth.table_of(settings)
            return {start: wanted, **links, **told}
        except Exception as error:
            return {start: "", **links, shown.status: paint.error(in_words(error))}

    return load
