"""Nodes of an earlier commit beside nodes of this one: `make test-upgrade BASE=commit`. Needs the history of git.

The earlier code runs with the packages of .venv. UPGRADE_BASE names its commit.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path

import pytest
from patient import FILLING, PATIENCE

from capture.archive.manifest import Manifest
from natty.errors import ConsumerNotFoundError

ROOT = Path(__file__).parents[3]
BASE = os.environ["UPGRADE_BASE"]
OPTIONS = ("--config", "capture.toml")
BATCH = 200
REFUSED = re.compile(r"has format \d+; this version reads up to \d+")  # verify puts its own words behind it
CONFIG = """
stream = "{stream}"
store = "lake"
partition = "subject:1"
ack_wait = 5.0
start_timeout = 5.0
[limits]
max_age = 0.3
[sweep]
every = 0.5
grace = 900.0
[compaction]
min_files = 1
max_wait = 1.0
"""


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """Write the packages of the earlier commit into a folder; return it."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=BytesIO(git("archive", BASE, "capture", "natty"))) as file:
        file.extractall(folder, filter="data")
    return folder


class Fleet:
    """Nodes of both versions on one stream and archive."""

    def __init__(self, shell, served, stream, earlier):
        self.shell, self.served, self.stream, self.earlier = shell, served, stream, earlier
        self.published = 0
        (shell.folder / "capture.toml").write_text(CONFIG.format(stream=stream))

    def start(self, *words, version):
        """Start `capture …` of a version: "old" or "new"."""
        folder = self.earlier if version == "old" else ROOT
        command = [sys.executable, "-c", "from capture.cli import main; main()", *words]
        return self.shell.execute(command, PYTHONPATH=str(folder), PYTHONSAFEPATH="1", PYTHONUNBUFFERED="1")

    def capture(self, *words, version="new"):
        """Run `capture …` of a version to its end."""
        return self.shell.finish(self.start(*words, *OPTIONS, version=version), within=3 * PATIENCE)

    def node(self, name, version):
        """Start a node of a version."""
        return self.start("--log-level", "info", "run", *OPTIONS, "--node-name", name, version=version)

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        done = self.shell.finish(process)
        assert done.status == 0, done.err
        return done.err

    def publish(self):
        """Publish some messages, and wait until nodes have acknowledged all."""

        async def work(natty):
            async with natty.publisher(self.stream, **FILLING) as publisher:
                for _ in range(BATCH):
                    self.published += 1
                    payload = json.dumps({"n": self.published}).encode()
                    await publisher.publish(f"{self.stream}.{self.published % 5}", payload)
                await publisher.flush()
            await _until(lambda: self._acked(natty))

        self.served(work)

    async def _acked(self, natty):
        try:
            state = await natty.jetstream.request(f"CONSUMER.INFO.{self.stream}.capture")
        except ConsumerNotFoundError:
            return False
        return state["ack_floor"]["stream_seq"] >= self.published and not state["num_ack_pending"]

    def until(self, condition):
        """Wait until a condition holds."""

        async def wait():
            async def holds():
                return condition()

            await _until(holds)

        asyncio.run(wait())

    def leads(self, node):
        """Return whether this node led the sweep when the state was last published."""
        done = self.capture("status", "--json")
        return done.status in (0, 3) and json.loads(done.out)["state"]["leader"] == node

    def format(self):
        """Return the format of the newest manifest."""
        newest = max((self.shell.folder / "lake" / "_manifest").glob("*.json"))
        return json.loads(newest.read_bytes())["format"]

    def verify(self):
        """Check that every message is stored."""
        done = self.capture("verify", "--deep")
        assert done.status == 0, done
        assert f"{self.published:,} stored" in done.out
        return done.out


async def _until(condition):
    deadline = time.monotonic() + 2 * PATIENCE
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


@pytest.fixture
def fleet(shell, served, make_stream, natty_name, earlier):
    return Fleet(shell, served, make_stream(natty_name("fleet")), earlier)


def test_a_rolling_upgrade_and_the_way_back_lose_nothing(fleet):
    old = fleet.node("old-1", "old")
    fleet.publish()
    fleet.until(lambda: fleet.leads("old-1"))
    written = fleet.format()

    new = fleet.node("new-1", "new")  # the fleet is mixed, an old node leads
    fleet.publish()
    assert fleet.leads("old-1")
    assert fleet.format() == written
    fleet.verify()

    fleet.stop(old)
    fleet.publish()
    fleet.until(lambda: fleet.leads("new-1"))
    fleet.until(lambda: fleet.format() == Manifest.FORMAT)
    fleet.verify()

    old = fleet.node("old-2", "old")  # mixed again, a new node leads
    fleet.publish()
    assert fleet.leads("new-1")
    fleet.verify()

    fleet.stop(new)  # back to the earlier version: it captures in any case, and leads if it knows the format
    fleet.publish()
    if written == Manifest.FORMAT:
        fleet.until(lambda: fleet.leads("old-2"))
        fleet.verify()
    else:
        fleet.until(lambda: REFUSED.search(fleet.capture("status").out))
        for command in ("verify", "cat", "ls"):
            done = fleet.capture(command, version="old")
            assert done.status in (1, 3)  # verify of versions before NewerFormatError also called the messages missing
            assert REFUSED.search(done.out + done.err)

    new = fleet.node("new-2", "new")
    fleet.publish()
    fleet.stop(old)
    fleet.until(lambda: fleet.leads("new-2"))
    fleet.publish()
    fleet.until(lambda: "not acknowledged" not in fleet.verify())
    rows = fleet.capture("sql", "SELECT COUNT(*) AS n, COUNT(DISTINCT sequence) AS d FROM messages", "--json")
    assert json.loads(rows.out) == [{"n": fleet.published, "d": fleet.published}]
    fleet.stop(new)
    compacted = fleet.capture("compact")
    assert compacted.status == 0, compacted
    assert any((fleet.shell.folder / "lake" / "table").rglob("*.parquet"))
    fleet.verify()
