"""Runs `natty …`: in this process, which is fast, or as a process on a terminal, as users do."""

import asyncio
import os
import pty
import select
import subprocess
import sys
import time
from dataclasses import dataclass

from patient import PATIENCE, PATIENT
from typer.main import get_command

from natty import Natty, NattyError
from natty.cli.app import make_app
from natty.cli.run import run

COMMANDS = get_command(make_app())  # made once: that takes a tenth of a second
END_OF_INPUT = b"\x04"  # what Ctrl-D sends


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    status: int
    out: str
    err: str


def settings_of(options, home):
    """Return the environment in which `natty` talks to the server that these options connect to."""
    return {
        "HOME": str(home),
        "COLUMNS": "200",
        "NATS_URL": ",".join(options["servers"]),
        "NATS_CA": options["tls_ca"],
        "NATS_CERT": options["tls_cert"],
        "NATS_KEY": options["tls_key"],
        "NATS_TIMEOUT": f"{PATIENCE}s",
        "NATS_CONNECT_TIMEOUT": f"{PATIENCE}s",
    }


class CommandLine:
    """Runs `natty …` in this process, in a folder of the test's, against a server."""

    def __init__(self, options, folder, monkeypatch, capsys):
        self.options, self.folder, self._monkeypatch, self._capsys = options, folder, monkeypatch, capsys
        self.environment = settings_of(options, folder)
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder)

    def __call__(self, *words, typed=None):
        """Run a command and return its result. With `typed` (lines), its standard input is a terminal.

        A command that asks for more lines gets the end of input.
        """
        self._monkeypatch.setattr(sys, "argv", ["natty", *map(str, words)])
        self._capsys.readouterr()
        if typed is None:
            return Done(run(COMMANDS, "natty", (NattyError,)), *self._capsys.readouterr())
        ours, theirs = pty.openpty()
        os.write(ours, "".join(f"{line}\n" for line in typed).encode() + END_OF_INPUT)
        try:
            with self._monkeypatch.context() as patch, open(theirs, closefd=False) as terminal:
                patch.setattr(sys, "stdin", terminal)
                return Done(run(COMMANDS, "natty", (NattyError,)), *self._capsys.readouterr())
        finally:
            os.close(ours)
            os.close(theirs)

    def served(self, work):
        """Run `work(natty)`, a coroutine, with a client of the same server."""

        async def connected():
            async with Natty(**self.options, **PATIENT) as natty:
                return await work(natty)

        return asyncio.run(connected())


class Terminal:
    """`natty …` as a process with a terminal as standard input and standard error; use it with `with`."""

    def __init__(self, environment, folder, *words):
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "natty", *map(str, words)],
            cwd=folder,
            env=os.environ | environment,
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        os.close(theirs)
        self.said = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()
        os.close(self._ours)

    def asks(self, question):
        """Wait until the terminal shows this text, and forget all text before it."""
        deadline = time.monotonic() + PATIENCE
        while question not in self.said:
            ready, _, _ = select.select([self._ours], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{question!r} was not asked: {self.said!r}"
            self.said += os.read(self._ours, 65536).decode()
        self.said = self.said.partition(question)[2]

    def types(self, line):
        """Type a line."""
        os.write(self._ours, f"{line}\n".encode())

    def ends(self):
        """Return the exit status and the standard output."""
        out, _ = self._process.communicate(timeout=PATIENCE)
        return self._process.returncode, out
