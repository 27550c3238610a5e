"""``thetaleap reproduce`` and ``thetaleap demo``."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from ..core.checks import as_device, require, require_choice
from ..evaluation.choice import flag
from .base import default_folder, print_report, require_folder, table_of
from .many import ENGINE_OPTIONS, Address, CpusPerWorker, EngineName, GpusPerWorker, Workers, engine_of
from .options import DEVICE, DTYPE, SEED, option, parse_budgets


def _asked(help: str, *names: str, metavar: str | None = None) -> Any:
    """An option that some experiments take."""
    return option("For some experiments", help, *names, show=False, metavar=metavar)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="The experiment, or all; leave it out to list them.", metavar="NAME")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to.", metavar="FOLDER", show_default="runs/NAME")
    ] = None,
    num: Annotated[
        int | None, typer.Option(help="How many samples, at least 1.", show_default="the experiment's own")
    ] = None,
    seed: Annotated[int, typer.Option(help=SEED)] = 0,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Draw until every claim is decided, for hours; type it again to go on after a stop."
        ),
    ] = False,
    hours: Annotated[
        float | None,
        typer.Option(
            help="With --full: hours of an experiment after which it begins no further look.", show_default="none"
        ),
    ] = None,
    model: Annotated[
        str | None, _asked("Another model: radd:SOURCE for text, maskgit: for images, llada: for gsm8k.")
    ] = None,
    judge: Annotated[
        str | None, _asked("Who judges text: plays, smollm2, gpt2-large, llama-3-8b, a hub id or a folder.")
    ] = None,
    nfe: Annotated[str | None, _asked("Budgets in evaluations, with commas between.")] = None,
    legacy: Annotated[bool, _asked("Also draw as published code does: text and images.", "--legacy")] = False,
    data: Annotated[
        Path | None,
        _asked("GSM8K's test.jsonl; for images MNIST's idx file, for precision and recall.", metavar="FILE"),
    ] = None,
    vqgan: Annotated[Path | None, _asked("The decoder of maskgit:'s codes.", metavar="FILE")] = None,
    reference: Annotated[Path | None, _asked("Real images, or their statistics, for FID.", metavar="PATH")] = None,
    guidance: Annotated[float | None, _asked("The weight of guidance, at least 0: images.")] = None,
    batch_size: Annotated[int | None, _asked("Samples drawn together, at least 1.")] = None,
    device: Annotated[str | None, _asked(DEVICE, metavar="DEVICE")] = None,
    dtype: Annotated[str | None, _asked(DTYPE, metavar="DTYPE")] = None,
    trust_remote_code: Annotated[
        bool, _asked("Run the code that comes with the model, which published ones need.", "--trust-remote-code")
    ] = False,
    engine: EngineName = None,
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
    cpus_per_worker: CpusPerWorker = None,
) -> None:
    """Run an experiment of the paper again: print its result, and write its figures and tables.

    Example: [cyan]thetaleap reproduce text --nfe 16,64 --out runs/text[/]; everything, with one look each:
    [cyan]thetaleap reproduce all[/]
    """
    given = {
        key: value
        for key, value in locals().items()
        if key not in ("name", "out", "num", "seed", "nfe", "full", "hours")
    }
    drawer = engine_of(given.pop("engine"), **{key: given.pop(key) for key in ENGINE_OPTIONS})
    from ..reproduction import EXPERIMENTS

    if name is None:
        table = table_of("experiment", "what it shows")
        for known, experiment in EXPERIMENTS.items():
            table.add_row(known, escape(experiment.about))
        Console().print(table)
        return
    require_choice("experiment", name, EXPERIMENTS)
    if device is not None:
        as_device(device)
    more: dict[str, Any] = {key: value for key, value in given.items() if value is not None and value is not False}
    more |= {} if nfe is None else {"budgets": parse_budgets(nfe)}
    if drawer is not None:
        from ..integrations.ray import sample

        more["sampler"] = partial(sample, engine=drawer)
    for key, value in more.items():
        asked = {"budgets": "--nfe", "sampler": "--engine"}.get(key) or flag(key)
        value = engine if key == "sampler" else value
        require(key in EXPERIMENTS[name].options, asked, value, f"{name} takes no such option; leave it out")
    folder = require_folder(out or default_folder(name))
    more |= {"full": True} if full else {}
    more |= {} if hours is None else {"hours": hours}
    with nullcontext() if drawer is None else drawer.running():
        report = EXPERIMENTS[name].run(folder, num=num, seed=seed, progress=None, **more)
    print_report(report.text, report.files)


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.", metavar="FOLDER")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help=SEED)] = 0,
) -> None:
    """See in a minute what the library does: run a small comparison, print it, and write its figures.

    Example: [cyan]thetaleap demo[/]
    """
    from ..reproduction import demo

    report = demo.run(require_folder(out), seed=seed, progress=None)
    print_report(report.text, report.files)
