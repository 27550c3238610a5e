"""Every experiment on the models that come with the package, and one page with all of it."""

from __future__ import annotations

import base64
import csv
import html
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import __version__
from ..core.checks import require
from ._output import Claim, Report, write_json, write_text
from .images import LEAST

MOST_ROWS = 60
"""Of a table in the page; the rest is in its file."""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1rem; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: 13px; line-height: 1.4; }
table { border-collapse: collapse; font-size: 14px; } th, td { padding: .3rem .6rem; border-bottom: 1px solid #e5e5e5;
text-align: left; vertical-align: top; } img { max-width: 100%; } .wide { overflow-x: auto; }
.agrees { color: #006b4f; font-weight: 600; } .differs { color: #b03a00; font-weight: 600; } .open { color: #777; }
summary { cursor: pointer; color: #555; }
"""


@dataclass(frozen=True)
class Part:
    """One experiment that was run."""

    name: str
    about: str
    report: Report
    minutes: float


def run(
    folder: Path,
    experiments: Mapping[str, tuple[str, Callable[..., Report]]],
    *,
    num: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Report:
    """Run `experiments`, each in a folder of its own; after each, write ``report.html`` and ``claims.json`` anew.

    Args:
        folder: where to; it is made.
        experiments: by name, what each shows and its ``run``.
        num: samples for each; by default as many as it calls for.
        seed: of all.
        progress: show bars; by default if standard error is a terminal.
    """
    # what the last of them would refuse half an hour later
    require(num is None or num >= LEAST, "num", num, f"give a whole number of at least {LEAST}")
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Part] = []
    for name, (about, start) in experiments.items():
        began = time.monotonic()
        report = start(folder / name, num=num, seed=seed, progress=progress)
        parts.append(Part(name, about, report, (time.monotonic() - began) / 60))
        write_text(folder / "report.html", page(parts))
        listed = [{"experiment": part.name, **asdict(claim)} for part in parts for claim in part.report.claims]
        write_json(folder / "claims.json", {"version": __version__, "claims": listed})
    claims = [claim for part in parts for claim in part.report.claims]
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    minutes = ", ".join(f"{part.name} {part.minutes:.1f}" for part in parts)
    text = (
        f"{len(parts)} experiments in {sum(part.minutes for part in parts):.1f} minutes ({minutes}).\n"
        f"Claims of the paper: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}.\n"
        "report.html has every table and figure."
    )
    return Report(text, [folder / "report.html", folder / "claims.json"], claims)


VERDICTS = {"agrees": "agrees", "differs": "differs", "cannot be checked here": "open"}
"""And how each is shown."""


def page(parts: Sequence[Part]) -> str:
    """All reports as one page that needs no other file."""
    rows = [(part.name, claim) for part in parts for claim in part.report.claims]
    took = sum(part.minutes for part in parts)
    body = [
        "<h1>The paper's experiments, run again</h1>",
        f"<p>thetaleap {html.escape(__version__)}; {len(parts)} experiments in {took:.0f} minutes. First what the "
        "paper says, and what was found; then every experiment with its figures, its table and its files.</p>",
        "<h2>Claims of the paper</h2>",
        _claims(rows),
        *[_part(part) for part in parts],
    ]
    head = f'<meta charset="utf-8"><title>thetaleap: the paper again</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"


def _claims(rows: Sequence[tuple[str, Claim]]) -> str:
    lines = [
        f'<tr><td>{html.escape(claim.paper)}</td><td class="{VERDICTS[claim.verdict]}">{html.escape(claim.verdict)}'
        f'</td><td>{html.escape(claim.found)}</td><td><a href="#{name}">{name}</a></td></tr>'
        for name, claim in rows
    ]
    head = "<tr><th>the paper</th><th>here</th><th>found</th><th>experiment</th></tr>"
    return f'<div class="wide"><table>{head}{"".join(lines)}</table></div>'


def _part(part: Part) -> str:
    pictures = [file for file in part.report.files if file.suffix == ".png"]
    tables = [file for file in part.report.files if file.suffix == ".csv"]
    files = ", ".join(html.escape(f"{part.name}/{file.name}") for file in part.report.files)
    return "\n".join(
        [
            f'<h2 id="{part.name}">{html.escape(part.name)}</h2>',
            f"<p>{html.escape(part.about)}. Took {part.minutes:.1f} minutes.</p>",
            *[f'<img alt="{html.escape(file.stem)}" src="{_embedded(file)}">' for file in pictures],
            f"<pre>{html.escape(part.report.text)}</pre>",
            *[_table(file) for file in tables],
            f"<p>Files: {files}</p>",
        ]
    )


def _embedded(file: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def _table(file: Path) -> str:
    """A CSV, folded up."""
    with file.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines)
    shown = rows[:MOST_ROWS]
    rest = f"<p>{len(rows) - len(shown)} more rows are in the file.</p>" if len(rows) > len(shown) else ""
    cells = "".join(f"<tr>{''.join(f'<td>{html.escape(_short(cell))}</td>' for cell in row)}</tr>" for row in shown)
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    table = f'<div class="wide"><table><tr>{names}</tr>{cells}</table></div>'
    return f"<details><summary>{html.escape(file.name)}, {len(rows)} rows</summary>{table}{rest}</details>"


def _short(cell: str) -> str:
    """Numbers to five digits."""
    try:
        return f"{float(cell):.5g}" if "." in cell or "e" in cell else cell
    except ValueError:
        return cell
