"""The page: forms, results and what happens on a click. What is shown is worked out elsewhere."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import gradio as gr

from ...core.checks import require_choice
from ...core.fields import Parameter, parameters
from ...evaluation.choice import AUTO, split
from ...evaluation.contenders import EXACT
from ...registry import SOLVERS
from . import paint, race, ranking, truth, views, watch
from .allowed import Allowed
from .settings import read
from .tabs import FOLDER, Tab, Turns, Update, in_compare, in_race, in_truth, in_watch, in_words
from .work import listen

TITLE = "thetaleap studio"
ABOUT = "Solvers of discrete diffusion models, to look at. Every result has a link, and the Python that makes it."
CHANGED = "The settings have changed: press Run."
LINK = """(link) => {
  if (!link) return link;
  const url = new URL(window.location), theme = url.searchParams.get("__theme");
  url.search = new URL(link, url).search;
  if (theme) url.searchParams.set("__theme", theme);
  history.replaceState(null, "", url);
  return url.href;
}"""
"""Puts a link into the address bar, and gives it whole."""
AT_ONCE = 4
"""Runs at the same time; others wait."""
KEPT = 3600
"""Seconds that a run which nobody looks at is kept."""
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
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
GIVEN = ("template", "forbid", "labels", "guidance", "temperature")
"""Settings of `Watch` that stand apart."""
HEADERS = ["sequence", "weight"]


def component(one: Parameter, allowed: Allowed) -> Any:
    """The part of a form that asks for a setting."""
    label = LABELS.get(one.name, one.name.capitalize())
    about: dict[str, Any] = {"label": label, "info": one.knob.help, "elem_id": None, "elem_classes": f"tl-{one.name}"}
    if one.name == "model":
        return gr.Dropdown(allowed.names, value=one.default, allow_custom_value=allowed.files, **about)
    if one.name == "solver":
        return gr.Dropdown([AUTO, EXACT, *SOLVERS], value=one.default, allow_custom_value=True, **about)
    if one.name == "solvers":
        names = [AUTO, EXACT, *SOLVERS]
        return gr.Dropdown(names, value=split(one.default), multiselect=True, allow_custom_value=True, **about)
    if one.knob.choices:
        return gr.Radio([(CHOICES.get(value, value), value) for value in one.knob.choices], value=one.default, **about)
    if one.hint in (int, float) and one.name != "seed":  # seeds are larger than the numbers of a browser
        return gr.Number(value=one.default, **about)
    return gr.Textbox(value=str(one.default), max_lines=3, **about)


def laid_out(name: str, kind: type, code: Callable[..., str], allowed: Allowed) -> Tab:
    """The components of a tab: the form, and beside it what is found."""
    known, more = parameters(kind), dict[str, Any]()
    with gr.Tab(name.capitalize(), id=name) as tab, gr.Row():
        with gr.Column(scale=1, min_width=300):
            inputs = {key: component(one, allowed) for key, one in known.items() if key not in GIVEN}
            if kind is watch.Watch:
                with gr.Accordion("What is given, and how it is drawn", open=True):
                    inputs |= {key: component(known[key], allowed) for key in GIVEN}
            if kind is truth.Truth:
                more["law"] = gr.Dropdown(list(truth.LAWS), value=None, label="Begin with", info="A law to change.")
                more["table"] = gr.Dataframe(
                    truth.table_of(truth.Truth()),
                    headers=HEADERS,
                    type="array",
                    static_columns=[0],
                    label="The law",
                    column_count=2,
                    interactive=True,
                    max_height=340,
                    elem_classes="tl-law",
                )
            with gr.Row():
                run = gr.Button("Run", variant="primary", elem_classes="tl-run", min_width=80)
                stop = gr.Button("Stop", elem_classes="tl-stop", min_width=80)
        with gr.Column(scale=2, min_width=300, elem_classes="tl-tab"):
            status = gr.HTML(elem_classes="tl-line")
            if kind in (watch.Watch, race.Race):
                what = "Step" if kind is watch.Watch else "Evaluations"
                more["step"] = gr.Slider(0, 1, value=0, step=1, label=what, interactive=True, elem_classes="tl-step")
                more["kept"] = gr.State(None, time_to_live=KEPT)
            result = gr.HTML(elem_classes="tl-result")
            if kind is ranking.Ranking:
                more["csv"] = gr.DownloadButton("Download as CSV", interactive=False, elem_classes="tl-csv")
            program = gr.Code(language="python", label="The same in Python", interactive=False, elem_classes="tl-code")
            link = gr.Textbox(label="Link", interactive=False, buttons=["copy"], max_lines=2, elem_classes="tl-link")
    inputs = {key: inputs[key] for key in known}
    made = Tab(name, kind, code, inputs, status, result, program, link, run, stop, more)
    tab.select(None, link, link, js=LINK, **QUIET)
    return made


def running(tab: Tab, work: Callable[..., Iterator[Update]], allowed: Allowed, turns: Turns) -> Callable[..., Any]:
    """A run of a tab, with errors as a line; a newer one of the same visitor ends it."""

    def run(request: gr.Request, *values: Any) -> Iterator[Update]:
        still = turns.begin(str(request.session_hash), tab.name)
        try:
            settings = tab.settings(values)
            yield {tab.status: paint.line("begun", 0.0), **tab.told(settings, allowed)}
            for update in work(tab, settings, allowed):
                if not still():
                    return
                yield update
        except Exception as error:
            if still():
                yield {tab.status: paint.error(in_words(error))}

    return run


def described(tab: Tab, allowed: Allowed, turns: Turns) -> Callable[..., Update]:
    """What follows from a change of the form: its Python and its link; what is shown is of other settings then."""

    def describe(request: gr.Request, *values: Any) -> Update:
        turns.end(str(request.session_hash), tab.name)
        try:
            return {**tab.told(tab.settings(values), allowed), tab.status: paint.stale(CHANGED)}
        except Exception as error:
            return {tab.status: paint.error(in_words(error))}

    return describe


def page(allowed: Allowed) -> gr.Blocks:
    """The whole page."""
    turns = Turns()
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT, KEPT)) as blocks:
        gr.HTML(f"<h1>{TITLE}</h1><p>{ABOUT}</p>")
        with gr.Tabs() as shown:
            tabs = {
                laid_out("watch", watch.Watch, watch.code, allowed): in_watch,
                laid_out("race", race.Race, race.code, allowed): in_race,
                laid_out("truth", truth.Truth, truth.code, allowed): in_truth,
                laid_out("compare", ranking.Ranking, ranking.code, allowed): in_compare,
            }
        start = gr.State("")
        opening = opened(list(tabs), shown, start, allowed)
        parts = [shown, start, *(part for tab in tabs for part in (*tab.inputs.values(), *tab.outputs))]
        loaded = blocks.load(opening, None, parts, **QUIET)
        for tab, work in tabs.items():
            wire(tab, running(tab, work, allowed, turns), loaded, start, allowed, turns)

        def left(request: gr.Request) -> None:
            turns.end(str(request.session_hash))

        blocks.unload(left)
    return blocks


def wire(tab: Tab, run: Callable[..., Any], loaded: Any, start: Any, allowed: Allowed, turns: Turns) -> None:
    """What happens on a click, or on a change of the form."""
    form, typed = list(tab.inputs.values()), [one for one in tab.inputs.values() if isinstance(one, gr.Textbox)]

    def first(request: gr.Request, wanted: str, *values: Any) -> Iterator[Update]:
        yield from run(request, *values) if wanted == tab.name else [{tab.status: gr.skip()}]

    def stop(request: gr.Request) -> str:
        turns.end(str(request.session_hash), tab.name)
        return paint.line("stopped")

    def linked(event: Any) -> None:
        event.then(None, tab.link, tab.link, js=LINK, **QUIET)

    loaded.then(first, [start, *form], tab.outputs, **WORK)
    linked(gr.on([tab.run.click, *(one.submit for one in typed)], run, form, tab.outputs, **WORK))
    tab.stop.click(stop, None, tab.status, **QUIET)
    if tab.kind is truth.Truth:
        wire_law(tab, run, linked)
        return
    others = [one for key, one in tab.inputs.items() if key != "colour"]
    linked(gr.on([one.input for one in others], described(tab, allowed, turns), form, tab.outputs, **LIVE))
    if "step" in tab.more:
        step, kept = tab.more["step"], tab.more["kept"]
        step.input(frame(tab), [kept, step], [tab.result], **LIVE)
    if "colour" in tab.inputs:
        events = tab.inputs["colour"].input(recoloured(tab, allowed), [kept, step, *form], tab.outputs, **WORK)
        linked(events)


def frame(tab: Tab) -> Callable[..., Any]:
    """What is shown at another place of the slider."""

    def at(kept: Any, place: float) -> Any:
        if isinstance(kept, race.Standing):
            return views.lanes(kept, int(place))
        return gr.skip() if kept is None else paint.samples(kept[0], min(int(place), len(kept[0].moments) - 1))

    return at


def recoloured(tab: Tab, allowed: Allowed) -> Callable[..., Iterator[Update]]:
    """The same run in other colours."""

    def recolour(kept: Any, place: float, *values: Any) -> Iterator[Update]:
        try:
            settings = tab.settings(values)
            yield tab.told(settings, allowed)
            if kept is None:
                return
            film, before = kept
            sure = settings.colour == watch.SURE
            if sure and film.sure is None:
                for film in listen(lambda report: watch.with_sureness(kept[0], report)):
                    if not isinstance(film, watch.Film):
                        yield {tab.status: gr.skip() if film is None else paint.line(film[1], film[0])}
            film = film if sure else replace(film, sure=None)
            step = min(int(place), len(film.moments) - 1)
            now = replace(before, colour=settings.colour)
            told = paint.line(watch.status(film, step, now.nfe)) if now == settings else paint.stale(CHANGED)
            yield {tab.result: paint.samples(film, step), tab.more["kept"]: (film, now), tab.status: told}
        except Exception as error:
            yield {tab.status: paint.error(in_words(error))}

    return recolour


def wire_law(tab: Tab, run: Callable[..., Any], linked: Callable[[Any], None]) -> None:
    """The table of a law, its weights and its size follow each other, and laws of solvers follow at once."""
    form, table, law = list(tab.inputs.values()), tab.more["table"], tab.more["law"]
    positions, values, weights = (tab.inputs[key] for key in ("positions", "values", "weights"))

    def sized(*now: Any) -> Update:
        try:
            size = truth.Truth(positions=tab.settings((*now[:2], "1", *now[3:])).positions, values=int(now[1]))
        except Exception as error:
            return {tab.status: paint.error(in_words(error))}
        flat = replace(size, weights=",".join(["1"] * len(size.sequences)))
        return {weights: flat.weights, table: truth.table_of(flat)}

    def chosen(name: str) -> Update:
        require_choice("law", name, truth.LAWS)
        count, states, text = truth.LAWS[name]
        made = truth.Truth(count, states, text)
        return {positions: count, values: states, weights: text, table: truth.table_of(made)}

    def edited(cells: Any, *now: Any) -> Update:
        try:
            return {weights: truth.rows_of(cells, tab.settings((*now[:2], "1", *now[3:])))}
        except Exception as error:
            return {tab.status: paint.error(in_words(error))}

    def typed(*now: Any) -> Update:
        try:
            made = tab.settings(now)
            made.numbers()
            return {table: truth.table_of(made)}
        except Exception as error:
            return {tab.status: paint.error(in_words(error))}

    before = [
        gr.on([positions.input, values.input], sized, form, [weights, table, tab.status], **LIVE),
        law.input(chosen, law, [positions, values, weights, table], **LIVE),
        table.input(edited, [table, *form], [weights, tab.status], **LIVE),
        weights.input(typed, form, [table, tab.status], **LIVE),
    ]
    for event in before:
        linked(event.then(run, form, tab.outputs, **WORK))
    others = [one for key, one in tab.inputs.items() if key not in ("positions", "values", "weights")]
    linked(gr.on([one.input for one in others], run, form, tab.outputs, **WORK))


def opened(tabs: list[Tab], shown: Any, start: Any, allowed: Allowed) -> Callable[..., Update]:
    """What a link asks for: the form of its tab, which is then run."""

    def default(tab: Tab) -> Any:
        with_model = "model" in {one.name for one in fields(tab.kind)} and allowed.models
        return tab.kind(model=allowed.models[0]) if with_model else tab.kind()

    def load(request: gr.Request) -> Update:
        asked = {key: value for key, value in dict(request.query_params).items() if not key.startswith("__")}
        wanted, updates = asked.pop("tab", tabs[0].name), dict[Any, Any]()
        try:
            require_choice("tab", wanted, [tab.name for tab in tabs])
        except ValueError as error:
            wanted, asked = tabs[0].name, {}
            updates[tabs[0].status] = paint.error(in_words(error))
        for tab in tabs:
            settings, good = default(tab), not updates
            try:
                if tab.name == wanted:
                    settings = read(
                        tab.kind, {one.name: getattr(settings, one.name) for one in fields(settings)} | asked
                    )
                updates |= tab.told(settings, allowed)
            except Exception as error:
                settings, good = default(tab), False
                updates |= {**tab.told(settings, allowed), tab.status: paint.error(in_words(error))}
            updates |= tab.filled(settings)
            if tab.kind is truth.Truth:
                updates[tab.more["table"]] = truth.table_of(settings)
            if tab.name == wanted:
                updates |= {shown: gr.update(selected=wanted), start: wanted if good else ""}
        return updates

    return load


def serve(
    allowed: Allowed, *, host: str = "127.0.0.1", port: int = 7860, ready: Callable[[str], None] | None = None
) -> None:
    """Serve the page until Ctrl-C, with all files in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="thetaleap-studio-") as folder:
        os.environ[FOLDER] = folder
        blocks = page(allowed)
        theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
        _, url, _ = blocks.launch(
            server_name=host,
            server_port=port,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            footer_links=[],
            run_history=False,
            pwa=False,
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
            theme=theme,
            css=paint.CSS,
        )
        if ready is not None:
            ready(url)
        try:
            threading.Event().wait()
        finally:
            blocks.close(verbose=False)
