"""Runs `capture …` in this process, without a server: on a terminal of so many columns, or in a pipe."""

import os
import pty
import re
import sys
import threading
from contextlib import suppress

from patient import PATIENCE
from typer.main import get_command

from capture.cli.app import make_app
from capture.errors import CaptureError
from natty.cli.run import run
from natty.errors import NattyError

COMMANDS = get_command(make_app())
STYLES = re.compile(r"\x1b\[[\d;]*m")


def calling(monkeypatch, capsys):
    """Return a function that runs a command in this process: (status, standard output, standard error)."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["capture", *map(str, arguments)])
        status = run(make_app(), "capture", (CaptureError, NattyError))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return call


class CaptureCommand:
    """Runs commands on the archive in `lake`, in a folder of the test's."""

    def __init__(self, monkeypatch, folder, capfd):
        monkeypatch.chdir(folder)
        for name in [name for name in os.environ if name.startswith(("CAPTURE_", "NATS_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("TERM", "xterm")
        self._monkeypatch, self._capfd = monkeypatch, capfd

    def __call__(self, *words, columns=0, store="lake"):
        """Return status, standard output and standard error. With `columns`, standard output is a terminal."""
        ours, theirs = pty.openpty() if columns else os.pipe()
        got = []

        def read():
            with suppress(OSError):  # a terminal whose other end is closed
                while some := os.read(ours, 1 << 16):
                    got.append(some)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            with self._monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as output:
                patch.setenv("COLUMNS", str(columns or 40))
                patch.setattr(sys, "stdout", output)
                patch.setattr(sys, "argv", ["capture", *words, *(["--store", store] if store else [])])
                status = run(COMMANDS, "capture", (CaptureError,))
                output.flush()
        finally:
            reader.join(PATIENCE)
            os.close(ours)
        err = self._capfd.readouterr().err
        assert "Traceback" not in err
        return status, STYLES.sub("", b"".join(got).decode().replace("\r\n", "\n")), err
