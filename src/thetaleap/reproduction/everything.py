"""Every experiment on the models that come with the package, and one page with all of it."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import pandas as pd

from .. import __version__
from ..evaluation.figures import write_json, write_text
from .images import LEAST
from .pages import Job, experiment, plain, render
from .rules import VERDICTS, Report

MOST_ROWS = 60
"""Of a table in the page; the rest is in its file."""


@dataclass(frozen=True)
class Part:
    """One experiment that was run."""

    name: str
    about: str
    report: Report
    minutes: float

    def pictures(self) -> dict[str, str]:
        """By name, as data."""
        found = [file for file in self.report.files if file.suffix == ".png"]
        return {file.stem: base64.b64encode(file.read_bytes()).decode() for file in found}

    def tables(self) -> dict[str, tuple[int, str]]:
        """By file, the number of rows and the first of them; empty columns left out, numbers to five digits."""
        found = {file.name: pd.read_csv(file) for file in self.report.files if file.suffix == ".csv"}
        style = {"index": False, "na_rep": "", "border": 0, "float_format": "{:.5g}".format}
        short = {name: one.dropna(axis=1, how="all").head(MOST_ROWS).to_html(**style) for name, one in found.items()}
        return {name: (len(one), short[name]) for name, one in found.items()}


@experiment(least=LEAST)  # what the last of them would refuse half an hour later
def run(job: Job, experiments: Mapping[str, tuple[str, Callable[..., Report]]]) -> Report:
    """Run `experiments`, each in a folder of its own; after each, write ``report.html`` and ``claims.json`` anew.

    They are given by name, what each shows and its ``run``, and each has as many samples as it calls for, or `num`.
    """
    folder, parts = job.folder, list[Part]()
    for name, (about, start) in experiments.items():
        began = time.monotonic()
        report = start(folder / name, num=job.num, seed=job.seed, progress=job.progress)
        parts.append(Part(name, about, report, (time.monotonic() - began) / 60))
        write_text(folder / "report.html", render("report.html.j2", parts=parts, most=MOST_ROWS))
        listed = [{"experiment": part.name, **asdict(claim)} for part in parts for claim in part.report.claims]
        write_json(folder / "claims.json", plain({"version": __version__, "claims": listed}))
    claims = [claim for part in parts for claim in part.report.claims]
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    text = render("everything.j2", parts=parts, counts=counts)
    return Report(text, [folder / "report.html", folder / "claims.json"], claims)
