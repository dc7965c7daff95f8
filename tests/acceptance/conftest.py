import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import settings_of
from commands import the_line
from electing import vacated_archive
from patient import FILLING, PATIENCE, PATIENT
from typer.main import get_command

from capture.cli import app as capture_app
from capture.errors import CaptureError
from natty import Natty, NattyError
from natty.cli import app as natty_app
from natty.cli.run import run as run_command
from natty.testing import NatsServer

PROGRAMS = {
    "natty": (get_command(natty_app.make_app()), (NattyError,)),
    "capture": (get_command(capture_app.make_app()), (CaptureError, NattyError)),
}


FOLDER = Path(__file__).parent
QUICK = ("test_pages_", "test_signals")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Put tests that start programs into the long tier, but for a few seconds of them."""
    for item in items:
        name = item.path.name
        if FOLDER in item.path.parents and name.startswith("test_") and not name.startswith(QUICK):
            item.add_marker(pytest.mark.long)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def complaint(self):
        """The one sentence on standard error; log lines above it are left out."""
        return the_line(self.err)


def clean_environment():
    """Return this process's environment without settings of natty or capture."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CAPTURE_", "NATS_"))}


class Shell:
    """Runs `capture` and `natty` as processes in a folder of the test's, with mutual TLS to the session's server."""

    def __init__(self, folder, options):
        self.folder = folder
        spark_classes = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        self.environment = clean_environment() | settings_of(options, folder) | {"XDG_CACHE_HOME": spark_classes}
        self.started = []

    def start(self, program, *arguments, **environment):
        """Start a command of Python's."""
        return self.execute([sys.executable, "-m", program, *arguments], **environment)

    def execute(self, command, **environment):
        """Start a command, in a process group of its own as a shell does."""
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, program, *arguments, within=PATIENCE, **environment):
        """Run a command to its end; one that takes longer than `within` seconds fails the test."""
        return self.finish(self.start(program, *arguments, **environment), within=within)

    def finish(self, process, within=PATIENCE):
        """Wait for the end of a command."""
        out, err = process.communicate(timeout=within)
        return Done(process.returncode, out, err)

    def capture(self, *arguments, **options):
        """Run `capture …`."""
        return self.run("capture", *arguments, **options)

    def natty(self, *arguments, **options):
        """Run `natty …`."""
        return self.run("natty", *arguments, **options)


class QuickShell(Shell):
    """A shell that runs a command to its end in this process: what is started is a process all the same."""

    def __init__(self, folder, options, monkeypatch, capsys):
        super().__init__(folder, options)
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def run(self, program, *arguments, within=PATIENCE, **environment):
        """Run a command to its end; another program than `natty` and `capture` as a process."""
        if program not in PROGRAMS:
            return super().run(program, *arguments, within=within, **environment)
        with self._monkeypatch.context() as patch, Path(os.devnull).open() as nothing:
            patch.chdir(self.folder)
            for name in os.environ.keys() - self.environment.keys():
                patch.delenv(name)
            for name, value in (self.environment | environment).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", [program, *map(str, arguments)])
            patch.setattr(sys, "stdin", nothing)
            self._capsys.readouterr()
            command, errors = PROGRAMS[program]
            return Done(run_command(command, program, errors), *self._capsys.readouterr())


def _ended(shell):
    for process in shell.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def shell(nats_server, tmp_path):
    shell = Shell(tmp_path, nats_server.connect_options())
    yield shell
    _ended(shell)


@pytest.fixture
def quick_shell(nats_server, tmp_path, monkeypatch, capsys):
    shell = QuickShell(tmp_path, nats_server.connect_options(), monkeypatch, capsys)
    yield shell
    _ended(shell)


@pytest.fixture(scope="module")
def page_server(natty_tls, nats_server_binary, tmp_path_factory):
    """A server of the test file's own, since every page has a stream ORDERS."""
    folder = tmp_path_factory.mktemp("page-server")
    with NatsServer(folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture(scope="module")
def shells():
    """Return a function that makes shells, each in a folder and with a server of the test's choice."""
    made = []

    def make(folder, options):
        made.append(Shell(folder, options))
        return made[-1]

    yield make
    for shell in made:
        _ended(shell)


@pytest.fixture(scope="module")
def served(nats_server):
    """Return a function that runs `work(natty)`, a coroutine, with a client of the session's server."""

    def run(work):
        async def connected():
            async with Natty(**nats_server.connect_options(), **PATIENT) as natty:
                return await work(natty)

        return asyncio.run(connected())

    return run


@pytest.fixture(scope="module")
def make_stream(served):
    """Return a function that makes a stream on `<name>.*` with so many messages, JSON objects, over two tokens."""

    def make(name, messages=0):
        async def work(natty):
            await natty.election("any").prepare()  # its bucket, whose maker is warned that one server is one copy
            await natty.ensure_stream(name, subjects=[f"{name}.*"], allow_batched=True)
            await vacated_archive(natty, name)
            async with natty.publisher(name, **FILLING) as publisher:
                for number in range(messages):
                    payload = json.dumps({"n": number, "odd": number % 2 == 1}).encode()
                    await publisher.publish(f"{name}.{'us' if number % 2 else 'eu'}", payload)
                await publisher.flush()
            return name

        return served(work)

    return make


def processes(*words):
    """Return {pid: command line} of the processes whose command line or working folder holds all of these words."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = (folder / "cwd").readlink()
        except OSError:
            continue
        if int(folder.name) != os.getpid() and all(word in f"{command} {where}" for word in words):
            found[int(folder.name)] = command
    return found


@pytest.fixture
def processes_of():
    return processes


def capture_until(shell, last, stream, served, *arguments, within=PATIENCE, **environment):
    """Run `capture run` until every sequence up to `last` is acknowledged, then stop it with SIGTERM; return it."""
    process = shell.start("capture", "run", *arguments, **environment)

    async def acked(natty):
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and process.poll() is None:
            try:
                state = await natty.jetstream.request(f"CONSUMER.INFO.{stream}.capture")
                done = state["ack_floor"]["stream_seq"] >= last and not state["num_ack_pending"]
                if done and state["num_waiting"]:  # it asks for more: then it also listens to signals
                    return
            except Exception:
                pass
            await asyncio.sleep(0.1)
        raise AssertionError(f"not everything was acknowledged within {within} s, or the node ended")

    served(acked)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out, err


@pytest.fixture
def captured(shell, served):
    """Return a function that captures a stream with a node until everything is acknowledged."""

    def run(stream, last, *arguments, **options):
        return capture_until(shell, last, stream, served, "--stream", stream, *arguments, **options)

    return run
