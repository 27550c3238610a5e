"""The command line: ``thetaleap sample``, ``models``, ``solvers``, ``compare``, ``reproduce`` and ``demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from ..core.checks import require, require_choice
from ..models import ADAPTERS, BUILT_IN, load
from .base import app, print_report, require_folder, table_of
from .chat import chat
from .evaluate import register
from .names import AS_NEEDED, AUTO, SOLVERS, defaults, planned_contenders, works_for
from .sample import DTYPES, PREVIEW, sample
from .train import train_command

__all__ = ["AS_NEEDED", "PREVIEW", "SOLVERS", "app", "chat", "defaults", "sample", "train_command", "works_for"]

register(app)


@app.command()
def models() -> None:
    """List the models: name, process, length (positions), states (values per position), and what it is.

    Example: [cyan]thetaleap models[/]
    """
    table = table_of("model", "process", "#length", "#states", "what it is")
    for name, entry in {**BUILT_IN, **{f"{kind}:SOURCE": entry for kind, entry in ADAPTERS.items()}}.items():
        if entry.options:  # from elsewhere, and maybe not here
            table.add_row(name, "", "", "", escape(entry.about))
            continue
        model = entry.make()
        process = type(model.process).__name__
        table.add_row(name, process, str(model.length), str(model.process.states), escape(entry.about))
    Console().print(table)


@app.command("solvers")
def list_solvers() -> None:
    """List the solvers: name, class with its defaults, evaluations per step, processes, and when to use which.

    Example: [cyan]thetaleap solvers[/]
    """
    table = table_of("solver", "#per step", "processes", "when to use it, class and defaults")
    table.add_row(
        AUTO, "1-2", "any", "what measured best for models of this kind at --nfe; it says why\n[cyan]recommend()[/]"
    )
    for name, entry in SOLVERS.items():
        solver = entry.solver()
        cost = "varies" if solver.evaluations is None else str(solver.evaluations)
        table.add_row(name, cost, works_for(solver), f"{escape(entry.when)}\n[cyan]{escape(repr(solver))}[/]")
    Console().print(table)


@app.command()
def compare(
    model: Annotated[
        str, typer.Argument(help="A built-in model: [cyan]thetaleap models[/] lists them.", metavar="MODEL")
    ],
    solvers: Annotated[
        str, typer.Option(help="Contenders, with commas between, or all. A wrong name lists them.")
    ] = "all",
    nfe: Annotated[str, typer.Option(help="Budgets in evaluations, with commas between.")] = "4,8,16,32",
    plan: Annotated[
        bool, typer.Option("--plan", help="Also plan the counts of masked models from 300 pilot samples.")
    ] = False,
    num: Annotated[
        int | None, typer.Option(help="Samples per contender and budget.", show_default="2000, none where exact")
    ] = None,
    seed: Annotated[int, typer.Option(help="From 0 to 2^64 - 1.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to.", metavar="FOLDER", show_default="runs/compare-MODEL")
    ] = None,
) -> None:
    """Compare solvers at equal evaluations on one model: a table, and files with a figure.

    Example: [cyan]thetaleap compare chain64 --solvers tweedie,multistep,low-discrepancy --nfe 4,8[/]
    """
    from ..evaluation import compare as comparison  # matplotlib is slow to import

    budgets = parse_budgets(nfe)
    denoiser = load(model)
    contenders = comparison.default_contenders(denoiser)
    if plan:
        contenders |= planned_contenders(denoiser, seed)
    if solvers != "all":
        for name in solvers.split(","):
            require_choice("solvers", name, contenders)
        contenders = {name: contenders[name] for name in solvers.split(",")}
    folder = require_folder(out or Path("runs") / f"compare-{model}")
    result = comparison.compare(denoiser, contenders, budgets, num=num, seed=seed)
    print_report(result.text(), result.save(folder))


def parse_budgets(text: str) -> list[int]:
    """Whole numbers with commas between."""
    parts = text.split(",")
    good = all(part.strip().isdigit() and int(part) > 0 for part in parts)
    require(good, "nfe", text, "give whole numbers of at least 1, with commas between, as in 4,8,16")
    return [int(part) for part in parts]


def _asked(help: str, *names: str, metavar: str | None = None) -> Any:
    """An option that some experiments take."""
    panel = "For some experiments"
    return typer.Option(*names, help=help, metavar=metavar, show_default=False, rich_help_panel=panel)


@app.command()
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
    seed: Annotated[int, typer.Option(help="From 0 to 2^64 - 1.")] = 0,
    model: Annotated[
        str | None, _asked("Another model: radd:SOURCE for text, maskgit: for images, llada: for gsm8k.")
    ] = None,
    judge: Annotated[
        str | None, _asked("Who judges text: plays, smollm2, gpt2-large, llama-3-8b, a hub id or a folder.")
    ] = None,
    nfe: Annotated[str | None, _asked("Budgets in evaluations, with commas between.")] = None,
    legacy: Annotated[
        bool, _asked("Also draw as published code does, in float32 and with argmax at the end: text.", "--legacy")
    ] = False,
    data: Annotated[
        Path | None,
        _asked("GSM8K's test.jsonl; for images MNIST's idx file, for precision and recall.", metavar="FILE"),
    ] = None,
    vqgan: Annotated[Path | None, _asked("The decoder of maskgit:'s codes.", metavar="FILE")] = None,
    reference: Annotated[Path | None, _asked("Real images, or their statistics, for FID.", metavar="PATH")] = None,
    guidance: Annotated[float | None, _asked("The weight of guidance, at least 0: images.")] = None,
    batch_size: Annotated[int | None, _asked("Samples drawn together, at least 1.")] = None,
    device: Annotated[str | None, _asked("Where the network runs, as in cuda:0.")] = None,
    dtype: Annotated[str | None, _asked(f"The network's precision: {', '.join(DTYPES)}.")] = None,
    trust_remote_code: Annotated[
        bool, _asked("Run the code that comes with the model, which published ones need.", "--trust-remote-code")
    ] = False,
) -> None:
    """Run an experiment of the paper again: print its result, and write its figures and tables.

    Example: [cyan]thetaleap reproduce text --nfe 16,64 --out runs/text[/]; everything, in 40 minutes:
    [cyan]thetaleap reproduce all[/]
    """
    from ..reproduction import EXPERIMENTS  # matplotlib is slow to import

    if name is None:
        table = table_of("experiment", "what it shows")
        for known, experiment in EXPERIMENTS.items():
            table.add_row(known, escape(experiment.about))
        Console().print(table)
        return
    require_choice("experiment", name, EXPERIMENTS)
    asked = {"model": model, "judge": judge, "data": data, "vqgan": vqgan, "reference": reference}
    asked |= {"guidance": guidance, "batch_size": batch_size, "device": device, "dtype": dtype}
    more: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    more |= {key: True for key, said in (("legacy", legacy), ("trust_remote_code", trust_remote_code)) if said}
    more |= {} if nfe is None else {"budgets": parse_budgets(nfe)}
    for key, value in more.items():
        flag = "--nfe" if key == "budgets" else f"--{key.replace('_', '-')}"
        require(key in EXPERIMENTS[name].options, flag, value, f"{name} takes no such option; leave it out")
    folder = require_folder(out or Path("runs") / name)
    report = EXPERIMENTS[name].run(folder, num=num, seed=seed, progress=None, **more)
    print_report(report.text, report.files)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.", metavar="FOLDER")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="From 0 to 2^64 - 1.")] = 0,
) -> None:
    """See in a minute what the library does: run a small comparison, print it, and write its figures.

    Example: [cyan]thetaleap demo[/]
    """
    from ..reproduction import demo  # matplotlib is slow to import

    report = demo.run(require_folder(out), seed=seed, progress=None)
    print_report(report.text, report.files)
