"""Every experiment on the models that come with the package, and one page with all of it.

Tables are files of comma-separated values in ``paper``, and ``paper.md`` is made from these alone (`page_of`), so that the
page in the documents can be made again from the tables beside it.
"""

from __future__ import annotations

import base64
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from .. import __version__
from ..evaluation.figures import write_csv, write_json, write_text
from .images import GUIDANCE, LEAST
from .looks import EVEN, LOOKS
from .methods import AUTO, EXACT, MINE, SAFE, SEVERAL
from .pages import Job, experiment, plain, render
from .rules import VERDICTS, Report
from .study import UNUSUAL, Row, fullest, shown

NAMES = ("toy", "uniformization", "text", "positivity", "theta", "images", "sums", "legacy")
"""Experiments that the page has, if they were run."""
LOOKING = ("text", "theta", "images", "sums")
"""Those that draw until their claims are decided."""
MOST_ROWS = 60
"""Of a table in the page; the rest is in its file."""
TABLES, PAGE = "paper", "paper.md"
GPU, SPEED = "A100", 0.4 * 312e12
"""What open claims are estimated for: two fifths of its peak in bfloat16, in operations per second."""
READ = {
    "text": (["perplexity", "entropy"], "nfe"),
    "images": (["distance", "accuracy"], "nfe"),
    "sums": (["accuracy"], "nfe"),
    "positivity": (["positive"], "nfe"),
    "toy": (["kl_exact", "tv_exact"], "steps"),
}
"""Figures of tables that the page shows, methods down and budgets along."""
CLAIMS = ("paper", "verdict", "found", "number", "samples", "short", "command", "evaluations", "flops")


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
    """Run `experiments`, each in a folder of its own; after each, write ``report.html``, ``claims.json``, ``paper.md`` and
    its tables anew.

    They are given by name, what each shows and its ``run``, and each has as many samples as it calls for, or `num`.
    """
    folder, parts = job.folder, list[Part]()
    for name, (about, start) in experiments.items():
        began = time.monotonic()
        manner = {"progress": job.progress, "full": job.full, "hours": job.hours}
        report = start(folder / name, num=job.num, seed=job.seed, **manner)
        parts.append(Part(name, about, report, (time.monotonic() - began) / 60))
        write_text(folder / "report.html", render("report.html.j2", parts=parts, most=MOST_ROWS))
        listed = [{"experiment": part.name, **asdict(claim)} for part in parts for claim in part.report.claims]
        write_json(folder / "claims.json", plain({"version": __version__, "claims": listed}))
        collect(folder, list(experiments))
    claims = [claim for part in parts for claim in part.report.claims]
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    text = render("everything.j2", parts=parts, counts=counts)
    return Report(text, [folder / "report.html", folder / "claims.json", folder / PAGE], claims)


# --- the page, from tables


def collect(folder: Path, names: Sequence[str]) -> Path | None:
    """Put the tables and figures of all experiments of `names` that were run in `folder` into one place, and make the page
    of them."""
    cards = {name: json.loads(file.read_text()) for name in names if (file := folder / name / f"{name}.json").is_file()}
    if not cards:
        return None
    tables = folder / TABLES
    tables.mkdir(parents=True, exist_ok=True)
    for name, card in cards.items():
        write_csv(tables / f"{name}.csv", card["rows"])
        shutil.copyfile(folder / name / f"{name}.png", tables / f"{name}.png")
    runs = [{"experiment": name, **_about(card)} for name, card in cards.items()]
    write_csv(tables / "runs.csv", runs)
    claims = [
        {"experiment": name, **{key: claim.get(key) for key in CLAIMS}}
        for name in cards
        for claim in cards[name]["claims"]
    ]
    write_csv(tables / "claims.csv", claims)
    return write_text(folder / PAGE, page_of(tables))


def _about(card: Mapping[str, Any]) -> dict[str, Any]:
    settings = card["settings"]
    weights = settings.get("weights", "")
    told = weights if isinstance(weights, dict) else {settings.get("model", ""): weights}
    named = "; ".join(f"{model} {known}".strip() for model, known in told.items() if model)
    return {
        "minutes": card["minutes"],
        "full": card["full"],
        "seed": settings["seed"],
        "models": named or "; ".join(settings.get("models", [])),
        "version": card["version"],
    }


def page_of(tables: Path) -> str:
    """``paper.md``, from the tables in a folder and nothing else; figures that are there are shown."""
    found = {file.stem: _records(file) for file in sorted(tables.glob("*.csv"))}
    runs, claims = (found.pop(name) for name in ("runs", "claims"))
    counts = {verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in VERDICTS}
    share = run_share(found)
    for claim in claims:
        if claim["evaluations"]:
            claim["hours"] = claim["evaluations"] * share * claim["flops"] / SPEED / 3600
    known = [one["experiment"] for one in runs]
    wide = {
        name: [_wide(found[name], figure, READ[name][1]) for figure in READ[name][0]] for name in known if name in READ
    }
    figures = {file.stem for file in tables.glob("*.png")}
    told = {"figures": figures, "claims": claims, "counts": counts, "runs": runs, "wide": wide, "share": share}
    told |= {
        "legacy": found.get("legacy", []),
        "advice": advice(found),
        "plain": without_guidance(found),
        "left": [name for name in NAMES if name not in known],
    }
    told |= {"groups": [(name, own) for name in known if (own := [c for c in claims if c["experiment"] == name])]}
    names = {"AUTO": AUTO, "EXACT": EXACT, "MINE": MINE, "SAFE": SAFE}
    return render("paper.md.j2", gpu=GPU, looks=LOOKS, even=EVEN, looking=LOOKING, names=names, **told)


PAIRS = {"text": ("perplexity", MINE), "images": ("distance", f"{MINE} (1/3)"), "sums": ("accuracy", SAFE)}
"""For tables that have our advice in them, what it is measured by, and the paper's method."""


def advice(tables: Mapping[str, Sequence[Row]]) -> list[Row]:
    """By table and budget: the paper's method, our advice, and the best of the table, whosoever it is.

    The best has the smallest distance or the most right; of text, the perplexity nearest to that of exact sampling.
    """
    made: list[Row] = []
    for name, (figure, theirs) in PAIRS.items():
        own = [one for one in tables.get(name, []) if one.get(figure) is not None]
        exact = next((one[figure] for one in own if one["method"] == EXACT), None)
        for nfe in sorted({int(one["nfe"]) for one in own if one["nfe"]}):
            found = [one for one in own if one["nfe"] == nfe]
            here = {one["method"]: one for one in (fullest(found) if figure == "distance" else found)}
            if AUTO not in here or (figure == "perplexity" and exact is None):
                continue
            off = {"perplexity": lambda v, exact=exact: abs(math.log(v / exact)), "accuracy": lambda v: -v}
            best = min(here.values(), key=lambda one: off.get(figure, float)(one[figure]))
            told = [
                shown(one, figure, 100 if figure == "accuracy" else 1) if one else "-"
                for one in (here.get(theirs), here[AUTO], best)
            ]
            ratio = here[AUTO].get("ratio")
            line = {"experiment": name, "figure": figure, "nfe": nfe, "ratio": ratio, "which": best["method"]}
            made.append(line | dict(zip(("paper", "auto", "best"), told, strict=True)))
    return made


def without_guidance(tables: Mapping[str, Sequence[Row]]) -> Row | None:
    """How far exact samples of guided images are from real ones, without the bias of their number; and, of the table of
    theta, which draws without guidance, our advice and the paper's method at its best theta by evaluations. Nothing is said
    where guided images are not surely further than ours without."""
    exact = [one for one in tables.get("images", []) if one["method"] == SEVERAL and one["ratio"] == 1]
    plain = [one for one in tables.get("theta", []) if one.get("distance") is not None]
    if not exact or not plain:
        return None
    value, error = exact[0]["distance"] - exact[0]["bias"], exact[0]["distance_se"]
    told, furthest = [], 0.0
    for nfe in sorted({int(one["nfe"]) for one in plain}):
        here = fullest([one for one in plain if one["nfe"] == nfe and one["method"] in (AUTO, MINE)])
        ours = next((one for one in here if one["method"] == AUTO), None)
        best = min((one for one in here if one["method"] == MINE), key=lambda one: one["distance"], default=None)
        if ours is not None and best is not None:
            furthest = max(furthest, ours["distance"])
            told.append({"nfe": nfe, "auto": shown(ours, "distance"), "paper": shown(best, "distance")})
    if not told or value - UNUSUAL * error <= furthest:
        return None
    return {"exact": f"{value:.0f} ± {error:.0f}", "told": told, "guidance": f"{GUIDANCE:g}"}


def run_share(tables: Mapping[str, Sequence[Row]]) -> float:
    """Of a budget, how much of it the network was run for: a sample that has not changed is not evaluated again."""
    rows = [one for table in tables.values() for one in table if one.get("network") and one.get("nfe")]
    return sum(one["network"] for one in rows) / sum(one["nfe"] for one in rows) if rows else 1.0


def _records(file: Path) -> list[Row]:
    table = pd.read_csv(file)
    return [
        {str(key): one[key] for key in one}
        for one in table.astype(object).where(table.notna(), None).to_dict("records")
    ]


def _wide(table: Sequence[Row], figure: str, by: str) -> dict[str, Any]:
    """Methods down, budgets along, each figure with its error; what has no budget stands under None. A distance of fewer
    samples than others has their number behind it."""
    own, scale = [one for one in table if one.get(figure) is not None], 100 if figure == "accuracy" else 1
    rows: dict[str, dict[int | None, str]] = {}
    most = fullest(own) if figure == "distance" else own
    for one in own:
        place = None if one.get(by) is None else int(one[by])
        told = shown(one, figure, scale, 1 if scale > 1 else None)
        told += f" ({one['num']:.0f})" if figure == "distance" and one not in most else ""
        rows.setdefault(one["method"], {})[place] = told
    places = sorted({place for cells in rows.values() for place in cells if place is not None})
    ours = {one["method"] for one in own if one.get("kind") == "ours"}
    return {"figure": figure, "by": by, "places": places, "rows": rows, "ours": ours}
