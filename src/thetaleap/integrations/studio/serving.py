"""The server of the page."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from .allowed import Allowed

FOLDER = "GRADIO_TEMP_DIR"
"""The variable that says where gradio, and so the page, keeps files."""
FONTS = "MPLCONFIGDIR"
"""And that for what matplotlib notes of fonts."""
DIRECT = "no_proxy"
"""And that for machines which are asked directly, without a proxy."""
STREAM = "/queue/data"
"""Where gradio's page listens to its events."""

log = logging.getLogger(__name__)


class Streams:
    """ASGI middleware: the streams of a page that is left end without an error.

    gradio's page closes its stream before it is left, and opens another if an event was on its way. gradio's server forgets
    the session when the first of the two is cut. The second then fails: with a 404 in the middle of its answer, or, when it is
    cut as well, with a ``KeyError``. By then nobody reads it, and both would be tracebacks in the log of the server.
    """

    def __init__(self, app: Callable[..., Any]) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(STREAM):
            await self.app(scope, receive, send)
            return
        left = False

        async def heard() -> Any:
            nonlocal left
            message = await receive()
            left |= message["type"] == "http.disconnect"
            return message

        try:
            await self.app(scope, heard, send)
        except Exception as error:
            if not left:
                if not _is_not_found(error):
                    raise
                await send({"type": "http.response.body"})  # the end of an answer that has begun
            log.debug("the stream of a page that was left", exc_info=True)


def _is_not_found(error: BaseException) -> bool:
    """Whether a session is not known (any more): gradio has said so in the stream before it raised this."""
    from starlette.exceptions import HTTPException  # pyright: ignore[reportMissingImports]

    cause: Any = error.__cause__
    return isinstance(cause, HTTPException) and cause.status_code == 404


def serve(
    allowed: Allowed, *, host: str = "127.0.0.1", port: int = 7860, ready: Callable[[str], None] | None = None
) -> None:
    """Serve the page until Ctrl-C. All files are in a folder that is removed at the end.

    Args:
        allowed: what visitors may ask for.
        host: the address to serve at.
        port: and the port.
        ready: called with the address of the page, once it can be opened.
    """
    with tempfile.TemporaryDirectory(prefix="thetaleap-studio-") as folder:
        os.environ |= {FOLDER: folder, FONTS: folder, "GRADIO_ANALYTICS_ENABLED": "False"}
        direct = os.environ.get(DIRECT, os.environ.get(DIRECT.upper(), ""))
        os.environ[DIRECT] = ",".join(filter(None, [direct, "127.0.0.1", "localhost", host]))  # gradio asks its server
        from starlette.middleware import Middleware  # pyright: ignore[reportMissingImports]

        from . import page  # with gradio and matplotlib, which look at these as they are imported
        from .paint import CSS

        blocks = page.page(allowed)
        without = ("share", "pwa", "ssr_mode", "mcp_server", "enable_monitoring", "run_history")
        settings = {"server_name": host, "server_port": port, "theme": page.THEME, "css": CSS, "footer_links": []}
        settings["app_kwargs"] = {"middleware": [Middleware(Streams)]}
        _, url, _ = blocks.launch(**settings, **dict.fromkeys(without, False), quiet=True, prevent_thread_lock=True)
        try:
            if ready is not None:
                ready(url)
            threading.Event().wait()
        finally:
            blocks.close(verbose=False)
