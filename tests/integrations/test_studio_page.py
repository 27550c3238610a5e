"""The studio in a real browser, used as a person would."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.studio import PATIENCE, Server, Visit, chromium, monkey, served, visit
from tests.integrations.test_studio import pasted
from thetaleap.integrations.studio.serving import STREAM, Streams

pytestmark = pytest.mark.studio

QUICK = "?tab=watch&model=chain64&nfe=6"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("studio") / "s") as running:
        yield running
    left = [path.name for path in (running.folder / "tmp").iterdir() if path.name.startswith("thetaleap")]
    assert left == [], "its folder is gone with it"
    assert running.errors() == ["ended"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def open_page(server: Server, browser: Any) -> Iterator[Any]:
    """Opens pages, of which none may complain."""
    visits: list[Visit] = []

    def opened(link: str = "", **more: Any) -> Visit:
        visits.append(visit(browser, server.url + link, **more))
        return visits[-1]

    yield opened
    for one in visits:
        assert one.complaints == []
        one.page.context.close()
    assert server.errors() == []


def numbers(one: Visit) -> list[int]:
    """The tokens that are shown."""
    texts = one.page.locator(".tl-result:visible .tl-text span").all_inner_texts()
    return [-1 if text == "·" else int(text) for text in texts]


def wait_until_shown(one: Visit, tokens: list[int]) -> None:
    """Wait until these tokens are shown, and no others."""
    texts = ["·" if token < 0 else str(token) for token in tokens]
    shown = (
        "[...document.querySelectorAll('.tl-text span')].filter(one => one.checkVisibility()).map(one => one.innerText)"
    )
    one.page.wait_for_function(f"texts => JSON.stringify({shown}) === JSON.stringify(texts)", arg=texts)


def test_watch_with_mouse_and_keyboard(open_page: Any) -> None:
    one = open_page("?tab=watch&model=cube3&nfe=2")
    one.wait_for("done")
    page = one.page
    page.locator(".tl-model:visible input").click()
    page.get_by_role("option", name="chain64", exact=True).click()
    one.wait_for("The settings have changed")
    page.locator(".tl-nfe:visible input").fill("5")
    page.locator(".tl-template:visible textarea, .tl-template:visible input").first.fill("3 _ 5")
    page.keyboard.press("Tab")
    page.wait_for_function(
        "document.querySelector('.tl-code:not([hidden]) .cm-content').innerText.includes(\"'3 _ 5'\")"
    )
    one.run()
    one.wait_for("done: step")
    assert numbers(one) == pasted(one.code())["samples"].x[0].tolist()
    assert page.locator(".tl-given[title=given]:visible").all_inner_texts() == ["3", "5"]
    slider = page.locator(".tl-step:visible input[type=range]")
    slider.focus()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.querySelectorAll('.tl-mask').length > 0")
    step, names = int(slider.input_value()), pasted(one.code())
    masked = names["steps"][step].x[0]
    wait_until_shown(one, torch.where(masked == 16, -1, masked).tolist())
    page.get_by_label("how sure the model was").check()
    page.get_by_text("100% sure").wait_for()
    assert "sure = sureness(model, steps)" in one.code()


def test_race(open_page: Any) -> None:
    one = open_page("?tab=race&model=chain64&nfe=4&num=12&seed=2")
    one.wait_for("done. At 4 evaluations")
    names = pasted(one.code())
    lanes = one.page.locator(".tl-lanes:visible section")
    assert lanes.count() == 3
    for n, (name, samples) in enumerate(names["samples"].items()):
        lane = lanes.nth(n)
        assert lane.locator("h3").inner_text().startswith(f"{name}, ")
        shown = [int(text) for text in lane.locator(".tl-text span").all_inner_texts()]
        assert shown == samples.x[0].tolist()
        row = next(row for row in names["comparison"].rows if row.contender == name)
        assert f"rank {row.rank} of 3, from 12 samples" in lane.inner_text()
    one.page.locator(".tl-step:visible input[type=range]").focus()
    one.page.keyboard.press("Home")
    one.page.locator("h3", has_text="auto, 0 evaluations").wait_for()


def test_truth_follows_the_table(open_page: Any) -> None:
    one = open_page("?tab=truth&positions=2&values=2&weights=9,1,1,9&solvers=tweedie&nfe=1")
    one.wait_for("done: exact laws")
    page = one.page
    kl = page.locator(".tl-scroll:visible tbody tr").first.locator("td").nth(2)
    assert kl.inner_text() == "0.368"
    cell = page.locator(".tl-law:visible [data-testid=cell-0-1]").first
    cell.dblclick()
    cell.locator("input, textarea, [contenteditable=true]").first.wait_for()
    page.keyboard.press("Control+A")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "document.querySelector('.tl-code:not([hidden])') && [...document.querySelectorAll('.tl-weights textarea, .tl-weights input')].some(one => one.value === '1,1,1,9')"
    )
    one.wait_for("done: exact laws")
    page.wait_for_function(
        "(document.querySelector('.tl-scroll tbody td:nth-child(3)')?.innerText ?? '0.368') !== '0.368'"
    )
    one.wait_for("done: exact laws")
    names = pasted(one.code())
    row = next(row for row in names["comparison"].rows if row.budget == 1)
    assert kl.inner_text() == f"{row.figures['kl'].value:.3g}"
    told = page.locator(".tl-bar[title^=tweedie]:visible").evaluate_all("all => all.map(one => one.title)")
    law = names["laws"]["tweedie"].flatten().tolist()
    assert told == [f"tweedie: {value:.6f}" for value in law]
    page.locator(".tl-weights:visible textarea, .tl-weights:visible input").first.fill("1,1,1,x")
    page.keyboard.press("Tab")
    page.locator("[role=alert]:visible", has_text="weights='1,1,1,x': give numbers").wait_for()


def test_compare_and_its_file(open_page: Any, tmp_path: Path) -> None:
    one = open_page("?tab=compare&model=cube3&solvers=auto,tweedie&budgets=2,3&num=5", accept_downloads=True)
    one.wait_for("done")
    with one.page.expect_download() as waiting:
        one.page.locator(".tl-csv:visible").click()
    path = tmp_path / "comparison.csv"
    waiting.value.save_as(path)
    rows, again = list(csv.DictReader(path.read_text().splitlines())), pasted(one.code())["comparison"].rows
    assert [(row["contender"], row["budget"]) for row in rows] == [(row.contender, str(row.budget)) for row in again]
    for row, same in zip(rows, again, strict=True):
        assert float(row["kl"]) == pytest.approx(same.figures["kl"].value, rel=1e-9, abs=1e-12)
    assert one.page.locator(".tl-figure:visible").count() == 1


def test_a_link_opens_what_was_seen(open_page: Any) -> None:
    one = open_page(QUICK)
    one.wait_for("done")
    one.page.locator(".tl-seed:visible input, .tl-seed:visible textarea").first.fill("18446744073709551615")
    one.page.keyboard.press("Tab")
    one.page.wait_for_function("location.href.includes('seed=18446744073709551615')")
    one.run()
    one.wait_for("done")
    shown, link = (
        numbers(one),
        one.page.locator(".tl-link:visible textarea, .tl-link:visible input").first.input_value(),
    )
    assert link == one.page.url
    other = open_page(link[link.index("?") :])
    other.wait_for("done")
    assert (numbers(other), other.code()) == (shown, one.code())


def test_two_visitors_do_not_disturb_each_other(open_page: Any, server: Server) -> None:
    """One stops work that takes minutes while the other's goes on; then both have what their own settings give."""
    first, second = open_page(QUICK), open_page("?tab=compare&model=sums&solvers=&budgets=4,8,16,32&num=500")
    second.wait_for("500 samples, ")
    first.go(f"{server.url}?tab=watch&model=chain64&nfe=40&seed=1")
    second.page.locator(".tl-stop:visible").click()
    second.wait_for("stopped")
    first.wait_for("done")
    second.go(f"{server.url}?tab=watch&model=chain64&nfe=40&seed=2")
    second.wait_for("done")
    for one in (first, second):
        assert numbers(one) == pasted(one.code())["samples"].x[0].tolist()
    assert numbers(first) != numbers(second)


def test_long_work_can_be_stopped(open_page: Any) -> None:
    one = open_page("?tab=compare&model=sums&solvers=&budgets=4,8,16,32&num=500")
    one.wait_for("500 samples, ")
    assert one.page.locator("progress:visible").count() == 1
    one.page.locator(".tl-stop:visible").click()
    one.wait_for("stopped")
    one.page.get_by_role("tab", name="Truth").click()
    one.run()
    one.wait_for("done: exact laws")
    one.page.get_by_role("tab", name="Compare").click()
    assert one.status() == "stopped"


LINES = {
    "?tab=watch&seed=abc": "seed='abc': give a whole number",
    "?tab=nowhere": "tab='nowhere': choose one of watch, race, truth, compare",
    "?tab=watch&model=trained:/etc": "model='trained:/etc': files are opened only",
    "?tab=truth&weights=1,2": "weights='1,2': give 8, one for each",
    "?tab=watch&model=chain64&template=99": "template[0, 0]=99: this is no token",
}


def test_bad_input_is_a_line(open_page: Any, server: Server) -> None:
    one = open_page(QUICK)
    for link, line in LINES.items():
        one.go(server.url + link)
        one.page.locator("[role=alert]:visible", has_text=line).wait_for()
        assert one.page.locator(".toast-body").count() == 0
    one.page.locator(".tl-template:visible textarea").fill("5")
    one.page.keyboard.press("Tab")
    one.wait_for("The settings have changed")
    one.run()
    one.wait_for("done")


def test_a_wrong_template_stays_wrong(open_page: Any) -> None:
    """Narrow and dark, by keys alone: what has failed is not called the result of its settings when they come again."""
    one = open_page(QUICK, width=390, scheme="dark")
    one.wait_for("done")
    page = one.page
    page.locator(".tl-template:visible textarea").focus()
    changed, wrong = "The settings have changed", "template[0, 0]=99: this is no token"
    steps = [("9 9", changed), ("Enter", wrong), ("Backspace Tab", changed), ("Shift+Tab End 9", wrong)]
    steps += [("Backspace Tab", changed), ("Shift+Tab Enter", "done"), ("End 9", changed)]
    for keys, line in [*steps, ("Backspace Tab", "The result is of these settings")]:
        for key in keys.split():
            page.keyboard.press(key)
        one.wait_for(line)
    assert numbers(one) == pasted(one.code())["samples"].x[0].tolist()


CONTRAST = """() => {
  const paper = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const read = (css) => {
    paper.clearRect(0, 0, 1, 1);
    paper.fillStyle = css;
    paper.fillRect(0, 0, 1, 1);
    return paper.getImageData(0, 0, 1, 1).data;
  };
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, share, n) =>
    sum + share * (rgb[n] <= 10 ? rgb[n] / 3294 : ((rgb[n] / 255 + 0.055) / 1.055) ** 2.4), 0);
  const ground = (one) => read(getComputedStyle(one).backgroundColor);
  const below = (one) => !one ? [255, 255, 255] : ground(one)[3] === 255 ? ground(one) : below(one.parentElement);
  const all = document.querySelectorAll("h1, p, button[role=tab], .tl-run, .tl-stop, .tl-status, [data-testid=block-info], .info-text");
  return [...all].filter((one) => one.checkVisibility() && one.innerText.trim()).map((one) => {
    const [low, high] = [light(read(getComputedStyle(one).color)), light(below(one))].sort((a, b) => a - b);
    return [one.innerText.trim(), (high + 0.05) / (low + 0.05)];
  });
}"""
"""Of texts on their ground, as WCAG has it."""


def test_narrow_and_wide_light_and_dark(open_page: Any) -> None:
    one = open_page("?tab=watch&model=cube3&nfe=2")
    one.wait_for("done")
    for width, scheme in ((390, "light"), (390, "dark"), (1440, "dark"), (1440, "light")):
        one.page.set_viewport_size({"width": width, "height": 900})
        one.page.emulate_media(color_scheme=scheme)
        one.go(one.page.url)
        one.wait_for("done")
        for name in ("Race", "Truth", "Compare", "Watch"):
            one.page.get_by_role("tab", name=name).click()
            one.page.locator(".tl-run:visible").wait_for()
            assert one.page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
        ground, text = one.page.evaluate(
            "[document.body, document.querySelector('h1')].map((one, n) => getComputedStyle(one)[n ? 'color' : 'backgroundColor'])"
        )
        assert [found for found in one.page.evaluate(CONTRAST) if found[1] < 4.5] == []
        light = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 765 for colour in (ground, text)]
        assert (light[0] > 0.8 and light[1] < 0.4) if scheme == "light" else (light[0] < 0.2 and light[1] > 0.7)


def test_by_keyboard_alone(open_page: Any) -> None:
    one = open_page(QUICK)
    one.wait_for("done")
    page, seen = one.page, []
    page.locator("body").press("Home")
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.closest('.tl-seed, .tl-run, [role=tab]')?.className ?? ''"))
        if "tl-seed" in seen[-1]:
            page.keyboard.press("Control+A")
            page.keyboard.type("77")
        if "tl-run" in seen[-1]:
            page.keyboard.press("Enter")
            break
    page.wait_for_function("document.querySelector('.tl-code .cm-content').innerText.includes('seed=77')")
    one.wait_for("done")
    assert numbers(one) == pasted(one.code())["samples"].x[0].tolist()


def test_nothing_is_written_elsewhere(open_page: Any, server: Server) -> None:
    one = open_page("?tab=compare&model=cube3&solvers=auto&budgets=2&num=3")
    one.wait_for("done")
    assert list((server.folder / "work").rglob("*")) == []
    assert [path for path in (server.folder / "home").rglob("*") if path.is_file()] == []


def test_a_page_is_left_while_streams_are_open(server: Server) -> None:
    """As gradio's page does it: a second stream of one visitor, both are cut, and a third comes too late."""
    httpx, session = import_module("httpx"), {"session_hash": "leaving"}
    with httpx.Client(base_url=f"{server.url}gradio_api", timeout=PATIENCE) as client:
        events = client.get(f"{server.url}config").json()["dependencies"]
        load = next(one["id"] for one in events if one["targets"][0][1] == "load")
        client.post("/queue/join", json={"data": [], "fn_index": load, **session}).raise_for_status()
        assert '"process_completed"' in client.get(STREAM, params=session).text
        for _ in range(2):
            client.send(client.build_request("GET", STREAM, params=session), stream=True)
    with httpx.Client(base_url=f"{server.url}gradio_api", timeout=PATIENCE) as client:
        assert '"session_not_found":true' in client.get(STREAM, params=session).text
    time.sleep(1)  # for what the server might yet say
    assert server.errors() == []


def test_other_errors_of_streams_are_raised() -> None:
    async def broken(*_: Any) -> None:
        raise KeyError("visitor")

    async def heard() -> dict[str, str]:
        return {"type": "http.request"}

    with pytest.raises(KeyError, match="visitor"):
        Streams(broken)({"type": "http", "path": STREAM}, heard, broken).send(None)  # the browser has a loop of its own


def test_a_monkey(server: Server, browser: Any) -> None:
    """Seeded; `make studio-monkey` has ten minutes of it."""
    one = visit(browser, server.url + QUICK)
    monkey(one, server, times=30, seed=1)
    one.go(server.url + QUICK)
    one.wait_for("done")
    one.page.context.close()


def test_a_port_that_is_taken_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = import_module("tests.cli.test_cli").failed
    port = server.url.rsplit(":", 1)[1].strip("/")
    assert failed("studio", "--port", port) == f"--port {port}: cannot be used (Address already in use); give another"
