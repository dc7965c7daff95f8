"""The nodes of a chaos run: `capture run` as processes that are restarted whenever they end, as in production."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections import Counter
from pathlib import Path

from patient import PATIENCE
from stores import SETTINGS
from stores_faults import FaultyHTTP

from natty.testing import Proxy
from natty.testing.spawner import spawn

ROOT = Path(__file__).parents[2]
PRODUCT = ("-m", "capture")
PAGED = (str(Path(__file__).with_name("capture_chaos_paged.py")),)  # an index of many pages
FRESH = (str(Path(__file__).with_name("capture_chaos_fresh.py")),)  # which merges in its own process
HASTY = (str(Path(__file__).with_name("capture_chaos_hasty.py")),)  # the control: acks before it stores
PING_INTERVAL = 1.0  # seconds: a dead link is noticed while it is dead
LOOK = 0.02  # seconds between two looks at a process
LAST_LINES = 12  # of a log, shown if a node does not behave as expected


class StuckError(Exception):
    """An expected event did not happen in time."""


def toml(settings):
    """Return the text of a capture.toml; tables are dictionaries."""
    tables = {name: value for name, value in settings.items() if isinstance(value, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if name not in tables]
    for table, values in tables.items():
        lines += ["", f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return "\n".join([*lines, ""])


def environment(more):
    """Return this process's environment without settings of ours or of a cloud, plus `more`."""
    foreign = ("CAPTURE_", "NATS_", *SETTINGS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def nothing(request):
    """No fault of a store's proxy."""


class Node:
    """A sequence of processes behind the same proxies, with one log."""

    def __init__(self, name, server, store, folder, settings, program=PRODUCT):
        self.name, self._store, self._folder, self._program = name, store, folder / name, program
        self.nats = Proxy.to(server)
        self.http = store.proxy()
        self.process = None
        self.retiring = False
        self.started = 0
        self.statuses = Counter()  # of processes that ended
        self._settings = settings

    def __repr__(self):
        return f"Node({self.name}, started {self.started} times, ended with {dict(self.statuses)})"

    async def run(self):
        """Start a process, and restart it until the node is retiring and it ends."""
        self._folder.mkdir()
        config, log = self._folder / "capture.toml", self._folder / "log"
        async with self.nats, self.http or contextlib.nullcontext():
            url = self._store.url(self.http)
            link = self.nats.options | {"ping_interval": PING_INTERVAL, "ignore_discovered_servers": True}
            config.write_text(toml(self._settings | {"node": self.name, "store": url, "nats": link}))
            command = [sys.executable, *self._program, "run", "--config", str(config)]
            try:
                while not self.retiring:
                    with log.open("ab") as output:
                        environ = environment(self._store.environment)
                        self.process = spawn(command, output=output, folder=self._folder, environ=environ)
                    self.started += 1
                    self.statuses[await self.ended(self.process)] += 1
            finally:
                self.kill()

    async def ended(self, process, within=None):
        """Wait for the end of one of its processes; return the exit status. StuckError."""
        try:
            async with asyncio.timeout(within):
                while process.poll() is None:
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            raise StuckError(f"{self.name} did not end within {within:g} s; {self.last_lines()}") from None
        return process.returncode

    async def at_work(self):
        """Wait until it is connected and listens to SIGTERM. StuckError."""
        try:
            async with asyncio.timeout(4 * PATIENCE):
                while not self._is_at_work():
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            raise StuckError(f"{self.name} did not come to work; {self.last_lines()}") from None

    def _is_at_work(self):
        if not self.nats.connections or self.process is None or self.process.poll() is not None:
            return False
        with contextlib.suppress(OSError):  # it has just gone
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
        return False

    def signal(self, number):
        """Send a signal if the process is alive; return whether it is."""
        lives = self.process is not None and self.process.poll() is None
        if lives:
            os.kill(self.process.pid, number)
        return lives

    def kill(self):
        """Kill the process; return whether it was alive."""
        return self.signal(signal.SIGKILL)

    def limit(self, what, most):
        """Make the kernel limit a resource of the process; None removes the limit."""
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(self.process.pid, what)
            resource.prlimit(self.process.pid, what, (hard if most is None else most, hard))

    @property
    def log(self):
        """The lines that it has logged."""
        return (self._folder / "log").read_text(errors="replace").splitlines()

    def last_lines(self):
        """Return the end of its log."""
        return "\n  ".join(["its log ends:", *self.log[-LAST_LINES:]])


class Folder:
    """An archive in a folder of this machine."""

    kind = "folder"

    def __init__(self, root):
        self.root, self.environment = root, {}

    def proxy(self):
        """Return None: there is no proxy between a process and a folder."""

    def url(self, http=None):
        """Return the value of `store` in capture.toml."""
        return str(self.root)


class Bucket:
    """An archive on an S3 server; each node reaches it only through its own proxy."""

    kind = "s3"

    def __init__(self, server, context, prefix="chaos", timeout=3.0):
        self.server, self._context, self._prefix, self._timeout = server, context, prefix, timeout
        self.environment = server.environment

    def proxy(self):
        """Return the proxy between a node and the server."""
        http = FaultyHTTP(self.server.plain_port, self._context)
        http.fault = nothing
        return http

    def url(self, http=None):
        """Return the value of `store` in capture.toml: through a proxy, or directly."""
        return self.server.url(self._prefix, **({"endpoint": http.endpoint, "timeout": self._timeout} if http else {}))
