"""The command line: ``thetaleap sample``, ``models``, ``solvers``, ``reproduce`` and ``demo``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from .. import __version__, files, sampling
from ..checks import require, require_choice
from ..models import BUILT_IN, load
from ..processes import Masked, Process, RateMatrix, Uniform
from ..sampling import Samples
from ..solvers import Solver
from .names import AS_NEEDED, GRIDS, HYPER, PLANNERS, SOLVERS, build, defaults, planned_contenders

PREVIEW = 8
"""Samples shown when there is no file to put them in."""


class PlainErrors(TyperGroup):
    """Commands whose errors, where the library raised them, are one red line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, TypeError) as error:
            if not _ours(error):
                raise
            console = Console(stderr=True)
            # the terminal would break lines within words, a log should not break them at all
            console.print(
                f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=not console.is_terminal
            )
            raise typer.Exit(2) from None


def _ours(error: Exception) -> bool:
    """Whether this package raised `error`: such errors say what to do, others need their traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return module.partition(".")[0] == __name__.partition(".")[0]


app = typer.Typer(
    cls=PlainErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"thetaleap {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Sample from discrete diffusion models with as few network evaluations as possible.

    First steps: [cyan]thetaleap demo[/], then [cyan]thetaleap models[/] and [cyan]thetaleap solvers[/], then
    [cyan]thetaleap sample chain64 --nfe 64[/].
    """


def _budget(help: str, show_default: bool | str = True) -> Any:
    return typer.Option(help=help, show_default=show_default, rich_help_panel="How much, and when")


def _hyper(name: str, help: str) -> Any:
    """An option that sets the hyper-parameter `name` of the solvers that have it."""
    owners = {solver: defaults(entry.solver) for solver, entry in SOLVERS.items() if name in defaults(entry.solver)}
    values = dict.fromkeys(str(has[name]) for has in owners.values() if has[name] is not None)
    default = f" [dim]\\[default: {' or '.join(values)}][/]" if values else ""
    about = f"{help} For {', '.join(owners)}.{default}"
    return typer.Option(help=about, show_default=False, rich_help_panel="Solver")


def _output(help: str, *names: str, show_default: bool | str = True, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, show_default=show_default, metavar=metavar, rich_help_panel="Samples")


NFE = (
    "The most network evaluations to spend on a sample, at least 1. Give this or --steps; leave both out for "
    f"{' and '.join(AS_NEEDED)}, which spend what they need."
)
DELTA = (
    "The time at which to stop, from 0 (data) to below the model's horizon; the noise that is left goes in one more "
    "evaluation."
)
OUT = "The file to write: .parquet (tokens, nfe, and how they were made), .jsonl (tokens, nfe) or .npy (tokens)."


@app.command()
def sample(
    model: Annotated[
        str, typer.Argument(help="A built-in model: [cyan]thetaleap models[/] lists them.", metavar="MODEL")
    ],
    solver: Annotated[str, typer.Option(help="The method: [cyan]thetaleap solvers[/] lists them.")] = "trapezoidal",
    nfe: Annotated[int | None, _budget(NFE, show_default=False)] = None,
    steps: Annotated[
        int | None, _budget("The number of steps, at least 1, instead of --nfe.", show_default=False)
    ] = None,
    grid: Annotated[str, _budget(f"How the steps are spaced in time: {', '.join(GRIDS)}.")] = "uniform",
    delta: Annotated[float | None, _budget(DELTA, show_default="0 if the solver can step there, else 0.001")] = None,
    theta: Annotated[
        float | None, _hyper("theta", "Where in the step the second evaluation is: in (0, 1), for rk2 in (0, 1].")
    ] = None,
    rule: Annotated[
        str | None, _hyper("rule", "Several events at one site overwrite each other (exact) or are dropped (reject).")
    ] = None,
    align: Annotated[
        str | None,
        _hyper("align", "Intensities of two states are added by destination, by displacement, or on a ring (cyclic)."),
    ] = None,
    order: Annotated[
        str | None, _hyper("order", "Which sites of a block go first: the surest (confidence) or any (random).")
    ] = None,
    block_length: Annotated[
        int | None, _hyper("block_length", "Sites per block, at least 1; one block if not given.")
    ] = None,
    randomness: Annotated[float | None, _hyper("randomness", "Noise on the confidence, at least 0.")] = None,
    extrapolation: Annotated[str | None, _hyper("extrapolation", "Of conditionals: linear or logit.")] = None,
    weight: Annotated[
        float | None, _hyper("weight", "How far to extrapolate, at least 0; if not given, by rule.")
    ] = None,
    window: Annotated[int | None, _hyper("window", "Steps between the two looks, at least 1.")] = None,
    floor: Annotated[float | None, _hyper("floor", "What share of a probability to keep at least, 0 to 1.")] = None,
    planner: Annotated[str | None, _hyper("planner", f"Which masked sites go together: {', '.join(PLANNERS)}.")] = None,
    num: Annotated[int, _output("How many samples, at least 1.")] = 16,
    seed: Annotated[
        int, _output("From 0 to 2^64 - 1. Sample i depends on the seed and i alone, not on --num or --batch-size.")
    ] = 0,
    batch_size: Annotated[
        int | None, _output("Samples run together, at least 1.", show_default="as fits 128 MiB")
    ] = None,
    out: Annotated[Path | None, _output(OUT, metavar="FILE", show_default="none, show a few samples")] = None,
    force: Annotated[bool, _output("Replace the file if it exists.", "--force")] = False,
) -> None:
    """Draw samples from a model, and write them to a file or show a few.

    Example: [cyan]thetaleap sample chain64 --solver trapezoidal --theta 0.5 --nfe 64 --num 1000 --out x.parquet[/]
    """
    options = locals()
    method = build(solver, {name: options[name] for name in HYPER})
    require_choice("grid", grid, GRIDS)
    require_budget(solver, nfe, steps)
    if out is not None:
        files.check_target(out, force)
    denoiser = load(model)
    start = time.perf_counter()
    samples = sampling.sample(
        denoiser,
        method,
        nfe=nfe,
        steps=steps,
        grid=GRIDS[grid],
        num=num,
        seed=seed,
        delta=delta,
        batch_size=batch_size,
    )
    seconds = time.perf_counter() - start
    if out is None:
        Console().print(preview(samples))
    else:
        walk = {"nfe": nfe, "steps": steps, "grid": grid, "delta": delta}
        card = {"model": model, "solver": repr(method), **walk, "seed": seed, "version": __version__}
        files.write(out, samples, card)
    _print_lines(summary(model, method, samples, seconds, out))


def require_budget(name: str, nfe: int | None, steps: int | None) -> None:
    """Ask for --nfe or --steps where a solver needs one."""
    if name not in AS_NEEDED and nfe is None and steps is None:
        raise ValueError(f"--nfe and --steps are missing: say how much {name} may spend, for example --nfe 64")


def _table(*columns: str) -> Table:
    """An empty table; a column that begins with # is one of numbers, set to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    return table


def preview(samples: Samples) -> Table:
    """The first few samples, cut at the width of the terminal."""
    table = _table("#sample", "#nfe", "tokens")
    for n, (tokens, nfe) in enumerate(zip(samples.x[:PREVIEW].tolist(), samples.nfe.tolist(), strict=False)):
        row = Text(" ".join(map(str, tokens)), no_wrap=True, overflow="ellipsis")
        table.add_row(str(n), str(nfe), row)
    return table


def summary(model: str, solver: Solver, samples: Samples, seconds: float, out: Path | None) -> dict[str, str]:
    """What was done, and at what cost."""
    nfe, num = samples.nfe, len(samples.nfe)
    return {
        "model": model,
        "solver": repr(solver),
        "samples": str(num),
        "evaluations": f"{float(nfe.double().mean()):.1f} per sample ({int(nfe.min())} to {int(nfe.max())})",
        **{name: f"{value:.4f}" for name, value in samples.info.items()},
        "seconds": f"{seconds:.2f} ({num / seconds:.1f} samples per second)",
        "file": "none (keep them with --out samples.parquet)" if out is None else str(out),
    }


def _print_lines(lines: dict[str, str]) -> None:
    console, width = Console(), max(map(len, lines))
    for name, value in lines.items():
        # unbroken, so that a long path can be copied
        console.print(f"[bold]{escape(name.ljust(width))}[/]  {escape(value)}", highlight=False, soft_wrap=True)


@app.command()
def models() -> None:
    """List the built-in models: name, process, length (sites), states (values per site), and what it is.

    Example: [cyan]thetaleap models[/]
    """
    table = _table("model", "process", "#length", "#states", "what it is")
    for name, entry in BUILT_IN.items():
        model = entry.make()
        process = type(model.process).__name__
        table.add_row(name, process, str(model.length), str(model.process.states), escape(entry.about))
    Console().print(table)


@app.command("solvers")
def list_solvers() -> None:
    """List the solvers: name, class with its defaults, evaluations per step, processes, and when to use which.

    Example: [cyan]thetaleap solvers[/]
    """
    table = _table("solver", "#per step", "processes", "when to use it, class and defaults")
    for name, entry in SOLVERS.items():
        solver = entry.solver()
        cost = "varies" if solver.evaluations is None else str(solver.evaluations)
        table.add_row(name, cost, works_for(solver), f"{escape(entry.when)}\n[cyan]{escape(repr(solver))}[/]")
    Console().print(table)


def works_for(solver: Solver) -> str:
    """The processes that `solver` accepts."""
    every = (Masked(2), Uniform(2), RateMatrix.ring(3))
    accepted = [type(process).__name__ for process in every if _accepts(solver, process)]
    return "any" if len(accepted) == len(every) else ", ".join(accepted)


def _accepts(solver: Solver, process: Process) -> bool:
    try:
        solver.check(process, length=2)
    except ValueError:
        return False
    return True


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
    from .. import comparison  # matplotlib is slow to import

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
    _print_report(result.text(), result.save(folder))


def parse_budgets(text: str) -> list[int]:
    """Whole numbers with commas between."""
    parts = text.split(",")
    good = all(part.strip().isdigit() and int(part) > 0 for part in parts)
    require(good, "nfe", text, "give whole numbers of at least 1, with commas between, as in 4,8,16")
    return [int(part) for part in parts]


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="The experiment; leave it out to list them.", metavar="NAME")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to.", metavar="FOLDER", show_default="runs/NAME")
    ] = None,
    num: Annotated[
        int | None, typer.Option(help="How many samples, at least 1.", show_default="the experiment's own")
    ] = None,
    seed: Annotated[int, typer.Option(help="From 0 to 2^64 - 1.")] = 0,
) -> None:
    """Run an experiment of the paper again: print its result, and write its figures and tables.

    Example: [cyan]thetaleap reproduce uniformization --num 1000 --out runs/uniformization[/]
    """
    from ..experiments import EXPERIMENTS  # matplotlib is slow to import

    if name is None:
        table = _table("experiment", "what it shows")
        for known, experiment in EXPERIMENTS.items():
            table.add_row(known, escape(experiment.about))
        Console().print(table)
        return
    require_choice("experiment", name, EXPERIMENTS)
    folder = require_folder(out or Path("runs") / name)
    report = EXPERIMENTS[name].run(folder, num=num, seed=seed, progress=None)
    _print_report(report.text, report.files)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.", metavar="FOLDER")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="From 0 to 2^64 - 1.")] = 0,
) -> None:
    """See in a minute what the library does: run a small comparison, print it, and write its figures.

    Example: [cyan]thetaleap demo[/]
    """
    from ..experiments import demo  # matplotlib is slow to import

    report = demo.run(require_folder(out), seed=seed, progress=None)
    _print_report(report.text, report.files)


def require_folder(folder: Path) -> Path:
    """`folder`, if it is one or can become one. Experiments make it, once they know their arguments are right."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    require(there.is_dir(), "out", str(folder), f"{str(there)!r} is a file; give a folder")
    require(os.access(there, os.W_OK), "out", str(folder), f"{str(there)!r} is not yours to write to; give another")
    return folder


def _print_report(text: str, written: Iterable[Path]) -> None:
    typer.echo(text)
    for path in written:
        typer.echo(f"wrote {path}")
