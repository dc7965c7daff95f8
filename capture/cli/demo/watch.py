"""The demo's status page, opened in the user's browser while the demo runs."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from capture.cli.demo.screen import Screen
from capture.config.settings import CaptureConfig
from capture.node.status.pipelines import PipelinesLook
from capture.node.status.status import look
from natty import Natty


@asynccontextmanager
async def watch(natty: Natty, config: CaptureConfig, screen: Screen) -> AsyncIterator[None]:
    """Serve the status page on a free port of the loopback during the block, and open it in a browser.

    Prints its address, whose path is secret: browsers refuse the requests of a page whose address has a password. The
    demo continues if no browser can be opened.
    """
    from capture.node.status.status_page import StatusPage  # here, since they need aiohttp
    from natty.metrics import http

    path = f"/{secrets.token_urlsafe(24)}"
    pipelines = PipelinesLook(config)
    page = StatusPage(lambda: look(natty, [config]), pipelines=lambda: pipelines.read(natty))
    served = http.serve(page.application(path), "127.0.0.1", 0, None, has_tokens=False)
    with TemporaryDirectory(prefix="capture-demo-page-") as folder:  # only this user may look into it
        async with served as url:
            address = f"{url}{path}/"
            _show(address, Path(folder), screen)
            yield


def _show(address: str, folder: Path, screen: Screen) -> None:
    """Print the address, and open it in a browser if there is a display."""
    if screen.is_terminal and has_display():
        screen.say(f"The status page, while the demo runs: {address}")
        # A thread that the demo does not wait for: some browsers return when they are closed.
        threading.Thread(target=_open, args=(_write_forward(address, folder), screen), daemon=True).start()
    else:
        why = "there is no display" if screen.is_terminal else "the output is not a terminal"
        screen.say(f"The status page, while the demo runs ({why}: open it yourself): {address}")


def _write_forward(address: str, folder: Path) -> str:
    """Return the URL of a new file that sends a browser on: other users see the command lines of processes."""
    file = folder / "status.html"
    file.touch(0o600)
    file.write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={address}"><a href="{address}">status</a>'
    )
    return file.as_uri()


def has_display() -> bool:
    """Return whether a browser would have a window: in a terminal, Python would start a text browser in the demo's."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(address: str, screen: Screen) -> None:
    try:
        opened = webbrowser.open(address)
    except Exception:  # a browser may raise anything: the demo continues
        opened = False
    if not opened:
        screen.say("No browser could be opened: open the address of the status page yourself")
