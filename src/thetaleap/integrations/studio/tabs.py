"""Tabs: what a run changes on the page. `page` lays them out."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr  # pyright: ignore[reportMissingImports]

from ...core.checks import of_this_package
from ...evaluation.choice import split
from ...evaluation.compare import Comparison
from . import paint, race, ranking, truth, views, watch
from .allowed import Allowed
from .serving import FOLDER
from .settings import query, read
from .work import listen

SHORTEST = 1 / 25
"""Seconds between two pictures: quick runs are shown more slowly, but"""
LONGEST = 3.0
"""no longer than this altogether."""

Update = dict[Any, Any]
log = logging.getLogger(__name__)


class Turns:
    """The latest run of each visitor in each tab, its settings, and the line it ended with: a newer one, or a stop, ends
    those before it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.latest: dict[tuple[str, str], object] = {}
        self.settings: dict[tuple[str, str], Any] = {}
        self.lines: dict[tuple[str, str], str] = {}

    def begin(self, visitor: str, tab: str, settings: Any) -> Callable[[], bool]:
        """A new run; gives a function that says whether it is still the latest."""
        mine = object()
        with self.lock:
            self.latest[visitor, tab], self.settings[visitor, tab] = mine, settings
            self.lines.pop((visitor, tab), None)
        return lambda: self.latest.get((visitor, tab)) is mine

    def say(self, visitor: str, tab: str, line: str, still: Callable[[], bool] = lambda: True) -> bool:
        """The latest run has ended, with this line; gives whether it was `still` the latest."""
        with self.lock:
            if not still():
                return False
            self.latest.pop((visitor, tab), None)
            self.lines[visitor, tab] = line
            return True

    def of(self, visitor: str, tab: str, settings: Any) -> bool:
        """Whether what is shown in a tab is of these settings: a run that goes on, or one that was not cut short."""
        key = visitor, tab
        return settings == self.settings.get(key) and (key in self.latest or key in self.lines)

    def end(self, visitor: str, tab: str) -> None:
        """Stop what a visitor runs in a tab."""
        with self.lock:
            self.latest.pop((visitor, tab), None)

    def forget(self, visitor: str) -> None:
        """The visitor has left: stop all of it."""
        with self.lock:
            for known in (self.latest, self.settings, self.lines):
                for key in [key for key in known if key[0] == visitor]:
                    del known[key]


@dataclass(frozen=True, eq=False)
class Tab:
    """The components of a tab."""

    name: str
    kind: type
    code: Callable[..., str]
    inputs: dict[str, Any]
    """By the names of the settings."""
    status: Any
    result: Any
    program: Any
    link: Any
    run: Any
    stop: Any
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> list[Any]:
        return [self.status, self.result, self.program, self.link, *self.more.values()]

    def settings(self, values: tuple[Any, ...]) -> Any:
        """What the values of the form stand for."""
        return read(self.kind, dict(zip(self.inputs, values, strict=True)))

    def told(self, settings: Any, allowed: Allowed) -> Update:
        """The Python and the link of some settings."""
        return {self.program: self.code(settings, allowed), self.link: query(self.name, settings)}

    def filled(self, settings: Any, before: Any) -> Update:
        """The form with these settings, where they are others than before."""
        values = {name: getattr(settings, name) for name in self.inputs}
        return {
            one: gr.update(value=split(values[name]) if name == "solvers" else values[name])
            for name, one in self.inputs.items()
            if values[name] != getattr(before, name)
        }


def in_words(error: Exception) -> str:
    """An error as a line: what this package says of what it was given. Others are logged whole, to be mended."""
    if isinstance(error, ValueError | TypeError | ImportError) and of_this_package(error):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'file'}: {error.strerror or error}"
    log.error("studio", exc_info=error)
    return f"an error of the studio itself ({type(error).__name__}: {error}); its log has the traceback"


# --- what each tab does, as updates of its components


def progress(tab: Tab, news: tuple[float, str] | None) -> Update:
    """A share of the work and a note, or nothing new."""
    return {tab.status: gr.skip() if news is None else paint.line(news[1], news[0])}


def in_watch(tab: Tab, settings: watch.Watch, allowed: Allowed) -> Iterator[Update]:
    step, kept = tab.more["step"], tab.more["kept"]
    pause, since = min(SHORTEST, LONGEST / (settings.nfe + 2)), 0.0
    told = ""
    for news in listen(lambda report: watch.run(settings, allowed, report)):
        if isinstance(news, watch.Film):
            time.sleep(max(0.0, since + pause - time.monotonic()))
            since, last = time.monotonic(), len(news.moments) - 1
            slider = gr.update(maximum=max(1, last), value=last)
            told = watch.status(news, last, settings.nfe)
            bar = paint.line(told, min(1.0, last / (settings.nfe + 1)))
            yield {tab.result: paint.samples(news, last), tab.status: bar, step: slider, kept: (news, settings)}
        else:
            yield progress(tab, news)
    yield {tab.status: paint.line(f"done: {told}")}


def in_race(tab: Tab, settings: race.Race, allowed: Allowed) -> Iterator[Update]:
    yield {tab.more["step"]: gr.update(maximum=settings.nfe, value=settings.nfe)}
    told = ""
    for news in listen(lambda report: race.run(settings, allowed, report)):
        if isinstance(news, race.Standing):
            program = {tab.program: race.code(settings, allowed, news.num)} if news.num else {}
            told = race.verdict(news)
            yield {tab.result: views.lanes(news, settings.nfe), tab.more["kept"]: news, **program}
        else:
            yield progress(tab, news)
    yield {tab.status: paint.line(f"done. {told}")}


def in_truth(tab: Tab, settings: truth.Truth, allowed: Allowed) -> Iterator[Update]:
    for news in listen(lambda report: truth.run(settings, allowed, report)):
        if isinstance(news, truth.Laws):
            share = len({row.budget for row in news.curves} - {None}) / len(truth.BUDGETS)
            yield {tab.result: views.laws(settings, news), tab.status: paint.line("computing exact laws", share)}
        else:
            yield {tab.status: gr.skip()}
    yield {tab.status: paint.line("done: exact laws, without sampling")}


def in_compare(tab: Tab, settings: ranking.Ranking, allowed: Allowed) -> Iterator[Update]:
    yield {tab.more["csv"]: gr.update(value=None, interactive=False)}
    for news in listen(lambda report: ranking.run(settings, allowed, report)):
        if isinstance(news, Comparison):
            csv, *_ = news.save(tempfile.mkdtemp(prefix="compare-", dir=os.environ.get(FOLDER)))
            button = gr.update(value=str(csv), interactive=True)
            yield {tab.result: views.ranked(news), tab.status: paint.line("done"), tab.more["csv"]: button}
        else:
            yield progress(tab, news)
