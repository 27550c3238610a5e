"""``thetaleap studio``."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from ..core.checks import require
from ..core.storage import installed
from ..integrations.studio.allowed import Allowed, loaded
from ..integrations.studio.serving import serve
from .errors import about
from .options import REMOTE

MODELS = (
    "Models to offer besides the built-in ones, the first one selected: a folder of thetaleap train, or KIND:SOURCE."
)
HOST = "The address to serve at; 0.0.0.0 serves everyone who can reach this machine."
FILES = "Let visitors type models: folders and files of this machine, and ids of the Hugging Face hub."


def studio(
    models: Annotated[list[str] | None, typer.Argument(help=MODELS, metavar="[MODEL]...", show_default=False)] = None,
    port: Annotated[int, typer.Option(help="The port to serve at.")] = 7860,
    host: Annotated[str, typer.Option(help=HOST, metavar="ADDRESS")] = "127.0.0.1",
    allow_files: Annotated[bool, typer.Option("--allow-files", help=FILES, show_default=False)] = False,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help=REMOTE, show_default=False)] = False,
) -> None:
    """A page in the browser: watch solvers write, race them, and measure them against the truth.

    Works offline. Ctrl-C ends it and removes its files.

    Example: [cyan]thetaleap studio --port 7860[/], or with a model of yours: [cyan]thetaleap studio runs/plays[/]
    """
    if not installed("gradio"):
        raise ImportError(
            "gradio is not installed: pip install 'thetaleap[studio]', or make studio-setup in a checkout"
        )
    require(0 < port < 2**16, "port", port, "give a number from 1 to 65535")
    _require_free(host, port)
    allowed = Allowed(tuple(models or ()), allow_files, trust_remote_code)
    for name in allowed.models:
        with about("models", name):
            loaded(allowed.load(name))
    try:
        serve(allowed, host=host, port=port, ready=lambda url: typer.echo(f"serving {url} (Ctrl-C ends it)"))
    except KeyboardInterrupt:
        typer.echo("ended", err=True)


def _require_free(host: str, port: int) -> None:
    """Raise ``ValueError`` if nothing can be served there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except socket.gaierror:
            raise ValueError(
                f"host={host!r}: is no address of this machine; give 127.0.0.1, or 0.0.0.0 for everyone"
            ) from None
        except OSError as error:
            raise ValueError(f"port={port}: cannot be used ({error.strerror}); give another") from None
