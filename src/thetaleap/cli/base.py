"""What all commands share: the application, and how things are shown."""

from __future__ import annotations

import ast
import inspect
import os
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..core.checks import require
from ..registry import Target
from .errors import TYPED, Typed, in_one_line

COMMANDS = {
    "demo": "reproduce:demo",
    "models": "catalog:list_models",
    "solvers": "catalog:list_solvers",
    "sample": "sample:sample",
    "compare": "compare:compare",
    "evaluate": "evaluate:evaluate",
    "chat": "chat:chat",
    "train": "train:train",
    "studio": "studio:studio",
    "reproduce": "reproduce:reproduce",
}
"""Where each command is."""
METAVARS = {int: "N", float: "X", Path: "FILE", str: "TEXT"}
"""What stands for the value of an option, unless the option says it."""
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def _flags(params: list[Any]) -> list[Any]:
    """`params`, of which flags take no value, and are shown so."""
    for param in params:
        if param.param_type_name == "option" and param.is_flag:
            param.metavar = ""
    return params


class Command(TyperCommand):
    """A command that notes what was typed, so that errors can say it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        TYPED.set(Typed(ctx, list(args)))
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # from here on there may be something to tidy up
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return super().invoke(ctx)


class Commands(TyperGroup):
    """Commands that are imported when they are run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or name is None:
            return name, command, rest
        if ctx.resilient_parsing:  # a shell completes a line, and should not wait for torch
            from .completion import outline

            return name, outline(name), rest
        return name, command_of(name), rest

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        TYPED.set(None)
        with in_one_line():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with in_one_line():
            return super().invoke(ctx)


def command_of(name: str) -> Any:
    """The command itself, with all its options."""
    function = Target(f"{__package__}.{COMMANDS[name]}").load()
    function.__signature__ = signature = inspect.signature(function, eval_str=True)
    for one in signature.parameters.values():
        kind, option = get_args(one.annotation)[:2]
        kinds = [each for each in get_args(kind) or (kind,) if each in METAVARS]
        if option.metavar is None and kinds:
            option.metavar = METAVARS[kinds[0]]
    return alone(name, function)


def alone(name: str, function: Callable[..., None]) -> Any:
    """A command made of a function."""
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(name, cls=Command, context_settings=SETTINGS)(function)
    return typer.main.get_command(app)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=SETTINGS,
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
    [cyan]thetaleap sample shakespeare[/].
    """


def table_of(*columns: str) -> Table:
    """An empty table; a column that begins with # is one of numbers, set to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    return table


def print_lines(lines: dict[str, str]) -> None:
    console, width = Console(emoji=False), max(map(len, lines))
    for name, value in lines.items():
        # unbroken, so that a long path can be copied
        console.print(f"[bold]{escape(name.ljust(width))}[/]  {escape(value)}", highlight=False, soft_wrap=True)


def default_folder(*words: str) -> Path:
    """Where results go unless it is said: a folder of `runs` whose name any file system takes."""
    return Path("runs") / re.sub(r"[^\w.-]+", "-", "-".join(words)).strip("-")


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
