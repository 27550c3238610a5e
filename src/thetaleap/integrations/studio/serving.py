"""The server of the page."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable

from .allowed import Allowed

FOLDER = "GRADIO_TEMP_DIR"
"""The variable that says where gradio, and so the page, keeps files."""
FONTS = "MPLCONFIGDIR"
"""And that for what matplotlib notes of fonts."""


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
        from . import page  # with gradio and matplotlib, which look at these as they are imported
        from .paint import CSS

        blocks = page.page(allowed)
        without = ("share", "pwa", "ssr_mode", "mcp_server", "enable_monitoring", "run_history")
        settings = {"server_name": host, "server_port": port, "theme": page.THEME, "css": CSS, "footer_links": []}
        _, url, _ = blocks.launch(**settings, **dict.fromkeys(without, False), quiet=True, prevent_thread_lock=True)
        try:
            if ready is not None:
                ready(url)
            threading.Event().wait()
        finally:
            blocks.close(verbose=False)
