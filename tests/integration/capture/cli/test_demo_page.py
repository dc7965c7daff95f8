"""The status page of `capture demo --watch`: opened in a browser without its secret path in a command line."""

import asyncio
import io
import re
import stat
import urllib.request
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from patient import PATIENCE
from rich.console import Console

from capture.cli.demo.screen import Screen
from capture.cli.demo.watch import watch
from capture.config.settings import CaptureConfig


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A browser that writes down its command line; the file that has it."""
    program, said = tmp_path / "browser", tmp_path / "said"
    program.write_text(f"#!/bin/sh\ntr '\\0' ' ' < /proc/$$/cmdline > {said}.new; mv {said}.new {said}\n")
    program.chmod(0o700)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", webbrowser.GenericBrowser(str(program)).open)
    return said


async def test_the_browsers_command_line_has_a_private_file_that_leads_to_the_page(natty, natty_name, tmp_path, opened):
    text = io.StringIO()
    screen = Screen(console=Console(file=text, force_terminal=True, width=1000))
    config = CaptureConfig(stream="S", store=str(tmp_path / "lake"), archive=natty_name("lake"))
    async with watch(natty, config, screen):
        async with asyncio.timeout(PATIENCE):
            while not opened.exists():
                await asyncio.sleep(0.01)
        [place] = re.findall(r"file://\S+", opened.read_text())
        file = Path(urlsplit(place).path)
        [address] = set(re.findall(r"http://[^\s\"]+", file.read_text()))
        assert address in text.getvalue()
        assert urlsplit(address).path.strip("/") not in opened.read_text()
        modes = [stat.S_IMODE(one.stat().st_mode) for one in (file, file.parent)]
        assert modes == [0o600, 0o700]
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(address, timeout=PATIENCE).read())
        assert b"page.js" in page
    assert not file.parent.exists()
