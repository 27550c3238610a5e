"""What all commands share: the application, its errors, and how things are shown."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from .. import __version__
from ..core.checks import require
from ..registry import Target

COMMANDS = {
    "demo": "reproduce:demo",
    "models": "catalog:list_models",
    "solvers": "catalog:list_solvers",
    "sample": "sample:sample",
    "compare": "compare:compare",
    "evaluate": "evaluate:evaluate",
    "chat": "chat:chat",
    "train": "train:train",
    "reproduce": "reproduce:reproduce",
}
"""Where each command is."""


class Commands(TyperGroup):
    """Commands that are imported when they are run. Errors, where the library raised them, are one red line and exit
    code 2."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and command_of(name or ""), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, TypeError, ImportError) as error:
            if not _ours(error):
                raise
            console = Console(stderr=True)
            # the terminal would break lines within words, a log should not break them at all
            console.print(
                f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=not console.is_terminal
            )
            raise typer.Exit(2) from None


def command_of(name: str) -> Any:
    """The command itself, with all its options."""
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(name)(Target(f"{__package__}.{COMMANDS[name]}").load())
    return typer.main.get_command(alone)


def _ours(error: Exception) -> bool:
    """Whether this package raised `error`: such errors say what to do, others need their traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return module.partition(".")[0] == __name__.partition(".")[0]


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _listed() -> None:
    """What `--help` shows of a command."""


for _name, _place in COMMANDS.items():
    _said = ast.get_docstring(Target(f"{__package__}.{_place}").source()) or ""
    app.command(_name, help=_said.partition("\n\n")[0])(_listed)


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


def table_of(*columns: str) -> Table:
    """An empty table; a column that begins with # is one of numbers, set to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    return table


def print_lines(lines: dict[str, str]) -> None:
    console, width = Console(), max(map(len, lines))
    for name, value in lines.items():
        # unbroken, so that a long path can be copied
        console.print(f"[bold]{escape(name.ljust(width))}[/]  {escape(value)}", highlight=False, soft_wrap=True)


def require_folder(folder: Path) -> Path:
    """`folder`, if it is one or can become one. Experiments make it, once they know their arguments are right."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    require(there.is_dir(), "out", str(folder), f"{str(there)!r} is a file; give a folder")
    require(os.access(there, os.W_OK), "out", str(folder), f"{str(there)!r} is not yours to write to; give another")
    return folder


def print_report(text: str, written: Iterable[Path]) -> None:
    typer.echo(text)
    for path in written:
        typer.echo(f"wrote {path}")
