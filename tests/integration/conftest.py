import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from command_line import CommandLine
from electing import vacated_archive
from healing import configured  # noqa: F401
from node_beside import start_beside  # noqa: F401
from patient import FILLING, NEVER, PATIENCE
from secret import write_secret
from stores import azure, azurite, bare_environment, careless_s3, rclone, s3, seaweedfs  # noqa: F401
from stores_faults import faulty  # noqa: F401

from natty.elections import candidacy
from natty.elections import options as election_options
from natty.elections.options import Rules
from natty.testing import NatsCluster, NatsServer
from natty.wire.background import cancel_all

SETTINGS = {
    "decoder": "json",
    "partition": "subject:1",
    "ack_wait": 30.0,
    "lease": 1.0,
    "limits.max_age": 1.0,
    "compaction.min_files": 1_000_000,  # no Spark, unless a test wants it
    "compaction.max_wait": 1e9,
    "sweep.every": 0.3,
    "nats.connect_timeout": PATIENCE,
    "nats.timeout": PATIENCE,
    "nats.ping_interval": NEVER,
}


def toml(settings):
    """Return settings as TOML; a dot in a name stands for a table."""
    tables = {}
    for name, value in settings.items():
        table, _, last = name.rpartition(".")
        tables.setdefault(table, []).append(f"{last} = {json.dumps(value)}")
    return "\n".join(line for table in sorted(tables) for line in ([f"[{table}]"] if table else []) + tables[table])


class Fleet:
    """Capture nodes as processes, on a stream and an archive of their own."""

    def __init__(self, natty, options, stream, folder):
        self.natty = natty
        self.stream = stream
        self.folder = folder
        self.store = folder / "lake"
        self.options = options
        self.started = []

    def configure(self, name="capture.toml", **settings):
        """Write a configuration and return its path."""
        given = {"stream": self.stream, "store": str(self.store), **SETTINGS}
        given |= {f"nats.{key}": value for key, value in self.options.items()}
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        path = self.folder / name
        return write_secret(path, toml(given))

    def start(self, node, config, *, script=None, arguments=(), options=()):
        """Start a node: `capture run`, or a script of the test's that is given the configuration's path."""
        options = ["--log-level", "info", "run", "--config", str(config), "--node-name", node, *options]
        command = ["-m", "capture", *options] if script is None else ["-c", script, str(config), *map(str, arguments)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("CAPTURE_", "NATS_"))}
        with self.log(node).open("ab") as output:
            process = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output, env=environment)
        self.started.append(process)
        return process

    def log(self, node):
        """Return the file of what a node says."""
        return self.folder / f"{node}.log"

    def logs(self):
        """Return the last of what each node said."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log"))

    async def said(self, node, words, times=1):
        """Wait until a node has said something so often."""
        async with asyncio.timeout(2 * PATIENCE):
            while self.log(node).read_text().count(words) < times:
                await asyncio.sleep(0.02)

    async def ended(self, process, within=2 * PATIENCE):
        """Return the exit status of a node that is about to end."""
        return await asyncio.to_thread(process.wait, within)

    async def stop(self, process):
        """Send SIGTERM and return the exit status."""
        process.send_signal(signal.SIGTERM)
        return await self.ended(process)

    async def create(self, **settings):
        """Make the stream, on subjects `<name>.*`."""
        await self.natty.ensure_stream(self.stream, subjects=[f"{self.stream}.*"], allow_batched=True, **settings)
        await vacated_archive(self.natty, self.stream)

    async def publish(self, payloads, token=lambda number: ("eu", "us", "asia")[number % 3]):
        """Publish payloads, each under a token of its number in this call."""
        async with self.natty.publisher(self.stream, **FILLING) as publisher:
            for number, payload in enumerate(payloads):
                await publisher.publish(f"{self.stream}.{token(number)}", payload)
            await publisher.flush()

    async def consumer(self):
        """Return the consumer's state; its settings too."""
        return await self.natty.jetstream.request(f"CONSUMER.INFO.{self.stream}.capture")

    async def until(self, condition, within=PATIENCE, every=0.05):
        """Wait until the consumer's state meets a condition; show it if it never does."""
        deadline = time.monotonic() + within
        state = None
        while time.monotonic() < deadline:
            try:
                state = await self.consumer()
            except Exception as error:
                state = error
            else:
                if condition(state):
                    return state
            await asyncio.sleep(every)
        raise AssertionError(f"not within {within} s; the consumer: {state}\n{self.logs()}")

    async def until_all_acked(self, last, within=PATIENCE):
        """Wait until every sequence up to `last` is acknowledged."""
        return await self.until(
            lambda state: state["ack_floor"]["stream_seq"] >= last and not state["num_ack_pending"], within
        )


@pytest.fixture(scope="module")
def nats_cluster(natty_tls, nats_server_binary, tmp_path_factory):
    """The plugin's cluster, for one file: replicated streams that tests leave cost CPU as long as its servers run."""
    folder = tmp_path_factory.mktemp("nats-cluster")
    with NatsCluster(folder=folder, tls_files=natty_tls, binary=nats_server_binary) as cluster:
        yield cluster


@pytest.fixture
def natty_commands(nats_server, tmp_path, monkeypatch, capsys):
    """Runs `natty …` in this process against the session's server."""
    return CommandLine(nats_server.connect_options(), tmp_path, monkeypatch, capsys)


@pytest.fixture
async def fleet(natty, nats_server, natty_name, tmp_path):
    fleet = Fleet(natty, nats_server.connect_options(), natty_name("orders"), tmp_path)
    await fleet.create()
    yield fleet
    for process in fleet.started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
async def start(natty):
    """Start a consumption, `start(stream, handler, **options)`; those that still run after the test are cancelled."""
    tasks = []

    def run(stream, handler, durable="d", client=natty, **options):
        consumption = client.consume(stream, durable, handler, **options)
        tasks.append(asyncio.ensure_future(consumption.run()))
        return consumption, tasks[-1]

    yield run
    while running := [task for task in tasks if not task.done()]:
        for task in running:  # more than once: the first time its handlers may finish
            task.cancel()
        await asyncio.wait(running, timeout=0.1)
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def released_without_hurry(monkeypatch):
    """Give a lease back however long that takes; by default others wait for its end if that took a second."""
    monkeypatch.setattr(candidacy, "LEAVE_WITHIN", PATIENCE)


@pytest.fixture
def renewed_often(monkeypatch):
    """Renew ten times a second, however long the lease is."""
    monkeypatch.setattr(Rules, "renew_every", property(lambda rules: 0.1))


@pytest.fixture
def told_early(monkeypatch, renewed_often):
    """Tell work to stop 1.2 s after the last renewal of a lease of 60 s: the rest of it is left until the deadline."""
    monkeypatch.setattr(election_options, "GRACE", 0.96)


@pytest.fixture
async def running():
    """Return a function that runs a coroutine in the background, until the end of the test."""
    tasks = []
    yield lambda coroutine: tasks.append(asyncio.create_task(coroutine)) or tasks[-1]
    await cancel_all(tasks)


@pytest.fixture(scope="module")
def own_server(request, natty_tls, nats_server_binary, tmp_path_factory):
    """A server that the tests of a file may stop, kill and pause; `SERVER_OPTIONS` of the file are its options."""
    options = getattr(request.module, "SERVER_OPTIONS", None)
    folder = tmp_path_factory.mktemp("own-server")
    with NatsServer(options, folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture
def victim(own_server):
    """That server, running again after the test."""
    yield own_server
    own_server.resume()
    own_server.start()
