"""A real browser, headless Chromium from npm, for tests of pages."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import npm
from patient import PATIENCE

BROWSER = Path(__file__).parent / "browser"


class Browser:
    """Runs commands in the browser; see look.mjs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, **told: Any) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the browser ended, told {told}: {self._process.communicate()[1][-2000:]}")
        return json.loads(answer)


@contextlib.contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Run a browser within the block, with its files in this folder."""
    node, place = npm.installed(BROWSER)
    script = place / "look.mjs"
    shutil.copy(BROWSER / script.name, script)  # beside its imports
    pipe = subprocess.PIPE
    environment = {"TMPDIR": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen([node, str(script)], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
    try:
        yield Browser(process)
    finally:
        try:
            process.communicate(timeout=PATIENCE)  # the end of its input ends it
        except subprocess.TimeoutExpired:
            process.kill()
            raise
