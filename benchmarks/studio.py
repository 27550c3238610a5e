"""The studio in a browser: how fast it opens, pictures of it for the documents, and a monkey that clicks at random."""

from __future__ import annotations

import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PATIENCE = 300
"""Seconds to wait for anything, on a machine that has other work."""
NOWHERE = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
"""A proxy that does not answer: whatever the server asked of another machine would fail."""
STARTED = "serving "
"""How the line begins that a server says when it is ready."""
LEAVING = ("console: AbortError: signal is aborted", "console: Unexpected error Connection errored out")
"""What gradio's page says of its own stream, which it closes before another page comes."""
PICTURES = {
    "studio.png": (1440, "?tab=watch&model=shakespeare&nfe=32&seed=4&template=KING+RICHARD:%0A"),
    "studio-truth.png": (1440, "?tab=truth"),
}
"""Of the documents: a width, and a link."""


@dataclass(frozen=True)
class Server:
    """A studio that runs."""

    url: str
    log: Path
    folder: Path
    """Where it runs: its working folder, its home and its temporary files are in there."""
    process: subprocess.Popen[bytes]

    def errors(self) -> list[str]:
        """Lines of its log that should not be there."""
        return [line for line in self.log.read_text().splitlines() if not line.startswith(STARTED)]


COMMAND = ("-m", "thetaleap", "studio")


@contextmanager
def served(folder: Path, *options: str, program: tuple[str, ...] = COMMAND) -> Iterator[Server]:
    """A studio in a folder of its own, without a way to other machines; Ctrl-C ends it."""
    for name in ("work", "home", "tmp"):
        (folder / name).mkdir(parents=True)
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    source = str(Path(__file__).parent.parent / "src")
    places = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PYTHONPATH": source}
    command = [sys.executable, *program, "--port", str(port), *options]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder / "work",
            env={**os.environ, **NOWHERE, **places, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=out,
        )
    try:
        end = time.monotonic() + PATIENCE
        while f"\n{STARTED}" not in f"\n{log.read_text()}":
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, "the studio has not started"
            time.sleep(0.1)
        yield Server(f"http://127.0.0.1:{port}/", log, folder, process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's, with a fresh profile."""
    with import_module("playwright.sync_api").sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page, and all that is wrong with it."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def status(self) -> str:
        """The line that says how far the work is."""
        return self.page.locator(".tl-status:visible").first.inner_text()

    def wait_for(self, text: str) -> None:
        """Wait until the line of the tab begins with `text`."""
        self.page.locator(".tl-status:visible", has_text=text).first.wait_for(timeout=PATIENCE * 1000)

    def code(self) -> str:
        """The Python that is shown."""
        return "\n".join(self.page.locator(".tl-code:visible .cm-line").all_inner_texts()).replace("\u200b", "")

    def go(self, url: str) -> None:
        """Another page. What gradio says while it cuts the connections of the old one is no complaint."""
        before = len(self.complaints)
        self.page.goto(url, wait_until="commit")
        self.complaints[before:] = [one for one in self.complaints[before:] if not one.startswith(LEAVING)]
        self.page.locator(".tl-run:visible").wait_for()

    def run(self) -> None:
        """Press Run."""
        self.page.locator(".tl-run:visible").click()


def visit(browser: Any, url: str, width: int = 1440, scheme: str = "light", **more: Any) -> Visit:
    """A visitor of their own, who notes errors of the console, failed answers and requests to other machines."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    made = Visit(context.new_page())
    page, told = made.page, made.complaints
    page.set_default_timeout(PATIENCE * 1000)
    page.on("console", lambda one: told.append(f"console: {one.text}") if one.type == "error" else None)
    page.on("pageerror", lambda error: told.append(f"page: {error}"))
    page.on("response", lambda one: told.append(f"{one.status}: {one.url}") if one.status >= 400 else None)
    home = url.split("?")[0]
    page.on("request", lambda one: None if _near(one.url, home) else told.append(f"outside: {one.url}"))
    page.goto(url)
    page.locator(".tl-run:visible").wait_for()
    return made


def _near(url: str, home: str) -> bool:
    return url.startswith((home, "data:", "blob:"))


# --- the monkey

JUNK = (
    "",
    "0",
    "-1",
    "1e9",
    "abc",
    "2.5",
    "<b>&\"'",
    "_",
    "3 _ _",
    "ü🙂",
    "9" * 40,
    "Tweedie(",
    "../../etc/passwd",
    "7",
)
QUIET_MODELS = ("chain64", "cube3", "cube3-uniform", "ising4x16", "toy15", "latin4")
"""Models that answer at once, of which the monkey chooses most often."""


def monkey(one: Visit, server: Server, seconds: float = math.inf, times: float = math.inf, seed: int = 0) -> int:
    """Click, type and press keys at random, for so long or so often; gives how often. The page and the server must
    survive it."""
    dice, page, end, done = random.Random(seed), one.page, time.monotonic() + seconds, 0
    while time.monotonic() < end and done < times:
        act = dice.choice((_click, _click, _type, _type, _press, _slide, _choose, _follow))
        try:
            act(one, dice, server.url)
        except import_module("playwright.sync_api").TimeoutError:
            pass  # what it aimed at was gone, or covered
        done += 1
        assert page.locator("h1", has_text="thetaleap studio").count() == 1, f"the page is lost after {act.__name__}"
        assert server.process.poll() is None, "the server has ended"
        assert one.complaints == [], one.complaints
        assert server.errors() == [], server.errors()
    return done


def _some(page: Any, dice: random.Random, what: str) -> Any:
    found = page.locator(what)
    count = found.count()
    return found.nth(dice.randrange(count)) if count else page.locator("h1")


def _click(one: Visit, dice: random.Random, url: str) -> None:
    _some(one.page, dice, "button:visible, input[type=radio]:visible").click(timeout=2000)


def _type(one: Visit, dice: random.Random, url: str) -> None:
    _some(one.page, dice, "input:not([type=radio], [type=range]):visible, textarea:visible").click(timeout=2000)
    one.page.keyboard.press("Control+A")
    one.page.keyboard.type(dice.choice(JUNK))


def _press(one: Visit, dice: random.Random, url: str) -> None:
    for _ in range(dice.randrange(1, 6)):
        one.page.keyboard.press(
            dice.choice(("Tab", "Tab", "Enter", "Space", "ArrowRight", "ArrowLeft", "Escape", "Backspace"))
        )


def _slide(one: Visit, dice: random.Random, url: str) -> None:
    slider = _some(one.page, dice, "input[type=range]:visible")
    slider.focus(timeout=2000)
    one.page.keyboard.press(dice.choice(("ArrowLeft", "ArrowRight", "Home", "End")))


def _choose(one: Visit, dice: random.Random, url: str) -> None:
    field = _some(one.page, dice, ".tl-model:visible input, .tl-solver:visible input, .tl-solvers:visible input")
    field.click(timeout=2000)
    one.page.keyboard.type(dice.choice((*QUIET_MODELS, "tweedie", "multistep", "rk2", "exact", "nobody")))
    one.page.keyboard.press("Enter")


def _follow(one: Visit, dice: random.Random, url: str) -> None:
    tab = dice.choice(("watch", "race", "truth", "compare", "nowhere"))
    model = dice.choice((*QUIET_MODELS, "sums", "trained:x"))
    one.go(f"{url}?tab={tab}&model={model}&seed={dice.choice(JUNK)}" if dice.random() < 0.5 else f"{url}?tab={tab}")


# --- commands


def cpu_seconds(top: int) -> float:
    """The processor time of a process, and of all that it has started."""
    known: dict[int, tuple[int, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:  # has ended meanwhile
            continue
        known[int(stat.parent.name)] = int(words[1]), sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    def below(pid: int) -> bool:
        return pid == top or (pid in known and below(known[pid][0]))

    return sum(spent for pid, (_, spent) in known.items() if below(pid))


TIMED = """
import sys, time
import torch, thetaleap.cli.studio, thetaleap.integrations.studio.page
from thetaleap.integrations.studio.allowed import Allowed
from thetaleap.integrations.studio.serving import serve
begin, spent = time.monotonic(), time.process_time()
serve(Allowed(), port=int(sys.argv[2]), ready=lambda url: print(
    "serving", url, spent, time.monotonic() - begin, time.process_time() - spent, flush=True))
"""
"""A server that says what its imports cost, and what it took after them."""


def opening(times: int = 5) -> dict[str, list[float]]:
    """Seconds and processor seconds: of the imports of a server, of what it does after them until it serves, and from
    asking for the page to a form that is filled and answers. Each visitor comes with an empty cache."""
    found: dict[str, list[float]] = {"the page, wall": [], "the page, processor of the server": []}
    found["the page, processor of the browser"] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder) / "s", program=("-c", TIMED)) as server,
        chromium() as browser,
    ):
        told = server.log.read_text().split()[2:5]
        names = ("imports, processor", "server after them, wall", "server after them, processor")
        start = {name: [float(text)] for name, text in zip(names, told, strict=True)}
        mine = os.getpid()
        for _ in range(times):
            begin, spent, served_in = time.monotonic(), cpu_seconds(mine), cpu_seconds(server.process.pid)
            one = visit(browser, f"{server.url}?tab=watch&model=cube3")
            one.page.locator(".tl-status:visible").first.wait_for()
            wall = time.monotonic() - begin
            of_server = cpu_seconds(server.process.pid) - served_in
            for values, value in zip(
                found.values(), (wall, of_server, cpu_seconds(mine) - spent - of_server), strict=True
            ):
                values.append(value)
            one.page.context.close()
    return start | found


def pictures(folder: Path) -> None:
    """The pictures of the documents."""
    with tempfile.TemporaryDirectory() as place, served(Path(place) / "s") as server, chromium() as browser:
        for name, (width, link) in PICTURES.items():
            one = visit(browser, server.url + link, width)
            one.wait_for("done")
            one.page.screenshot(path=folder / name, full_page=True)
            print(f"wrote {folder / name}")


def main() -> None:
    """``opening``, ``pictures FOLDER`` or ``monkey SECONDS [SEED]``."""
    what, *more = sys.argv[1:] or ["opening"]
    if what == "opening":
        for name, values in opening().items():
            print(f"{name}: {statistics.median(values):.1f} s (median of {[round(one, 1) for one in values]})")
    elif what == "pictures":
        pictures(Path(more[0]))
    else:
        seconds, seed = float(more[0]), int(more[1]) if len(more) > 1 else 0
        with tempfile.TemporaryDirectory() as place, served(Path(place) / "s") as server, chromium() as browser:
            one = visit(browser, server.url)
            done = monkey(one, server, seconds, seed=seed)
            one.go(f"{server.url}?tab=watch&model=chain64&nfe=8")
            one.wait_for("done")
        print(f"{done} things done at random in {seconds:.0f} s (seed {seed}): no error, and the page still works")


if __name__ == "__main__":
    main()
