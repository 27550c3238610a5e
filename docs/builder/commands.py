"""The page of the command line: what ``--help`` prints, command by command."""

from __future__ import annotations

from typer.testing import CliRunner

from thetaleap.cli import app
from thetaleap.cli.base import COMMANDS

PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def page() -> str:
    """One section per command, as Markdown."""
    sections = [f"## thetaleap {name}\n\n```text\n{helped(name)}\n```" for name in COMMANDS]
    about = "What `--help` prints. `thetaleap --install-completion` teaches your shell these names."
    return "\n\n".join(["# Command line", about, *sections]) + "\n"


def helped(name: str) -> str:
    """The help of a command, without colours."""
    said = CliRunner().invoke(app, [name, "--help"], env=PLAIN, prog_name="thetaleap").stdout
    return "\n".join(line.rstrip() for line in said.strip("\n").splitlines())
