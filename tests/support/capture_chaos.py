"""Capture nodes as real processes on real servers and stores over TLS, faults, and the proof that no message is lost.

python tests/support/capture_chaos.py --messages 1000000 --kills 200 [--store folder] [--cluster] [--spark] [--broken]

`--help` lists the other options.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import ssl
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from capture_chaos_faults import Faults, schedule
from capture_chaos_judge import Findings, judge
from capture_chaos_load import Load
from capture_chaos_nodes import FRESH, HASTY, PAGED, PRODUCT, Bucket, Folder, Node, StuckError, environment, toml
from capture_chaos_snapshots import Snapshots
from group_members import partitioned
from patient import NEVER, PATIENCE
from stores import running_seaweedfs

from capture.config.consumers import Position
from capture.config.load import load as load_config
from capture.ingest.board import Board
from capture.stores import open_store
from natty import Natty, NattyError
from natty.testing import NatsCluster, NatsServer

GROUP, PARTITIONS = "g", 4
AT_ONCE = 4  # faults
SETTLE = 5 * PATIENCE  # seconds until everything must be stored, all being mended
SLOWEST = 500  # messages a second that are stored then, at least
TOLD_EVERY = 25  # faults
ALARM = "MISSING"  # what a sweep's leader logs if something seems to be
REASON = "could not be stored in"  # the leader has to store it then, during a fault of the store


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run. Times are in seconds; `every` is the average time from one fault to the next."""

    stream: str = "CHAOS"
    messages: int = 1_000_000
    kills: int = 200
    nodes: int = 3
    seed: int = 0
    every: float = 2.0
    max_age: float = 1.0
    max_messages: int = 5000
    ack_wait: float = 6.0
    lease: float = 1.0
    grace: float = 60.0
    replicas: int = 1
    ack: str = "explicit"  # "all" for one node, or "group": nodes share the partitions of a group
    buffers: str = "memory"
    layout: str = "hive"
    spark: bool = False
    faults: tuple[str, ...] = ()  # these, in this order, instead of the faults from `kills` and `seed`
    broken: bool = False  # the control: nodes ack too early
    pages: bool = False  # small ones in the archive's index
    fresh: float = 0.0  # nodes show blocks so often, merge without Spark, and every snapshot is read

    def settings(self):
        """Return the settings for capture.toml, without the addresses of NATS and the store."""
        return {
            "stream": self.stream,
            "decoder": "json",
            "partition": "subject:2" if self.ack == "group" else "subject:1",
            **({"group": GROUP} if self.ack == "group" else {"ack": self.ack}),
            "ack_wait": self.ack_wait,
            "lease": self.lease,
            "store_attempts": 3,
            "redeliver_after": [0.2, 1.0],
            "buffers": {"kind": self.buffers},
            "layout": self.layout,
            "limits": {"max_age": self.max_age, "max_messages": self.max_messages},
            "sweep": {"every": 0.5, "grace": self.grace},
            "compaction": {"every": 5.0, "min_files": 2, "lease": 3.0},
            "spark": {} if self.spark else {"java": "none"},
            **({"table": {"fresh": self.fresh}} if self.fresh else {}),
        }


@dataclass
class Outcome:
    """The faults that were played, and what was found afterwards."""

    options: Options
    store: str
    load: Load
    faults: Faults
    nodes: list[Node]
    seconds: float = 0.0  # from the first message published to the last one acknowledged by a node
    findings: Findings = field(default_factory=Findings)
    verified: int | None = None  # exit status
    wrongs: list[str] = field(default_factory=list)
    snapshots: Snapshots | None = None  # of a fresh table

    @property
    def wrong(self):
        """All problems, in words."""
        said = [] if self.verified == 0 else [f"capture verify --deep ended with {self.verified}"]
        return [*self.wrongs, *self.findings.wrongs, *said]

    def _tell_snapshots(self):
        if self.snapshots is None:
            return ""
        return f"  {self.snapshots.count} snapshots were read, {self.snapshots.with_blocks} of them with blocks\n"

    def summary(self):
        """The counts, for people."""
        found, load, played = self.findings, self.load, self.faults.played
        statuses = sum((node.statuses for node in self.nodes), Counter())
        ended = ", ".join(f"{count:,} with {status}" for status, count in sorted(statuses.items()))
        words = ", ".join(f"{count:,} {kind}" for kind, count in played.most_common())
        return (
            f"seed {self.options.seed}, store {self.store}: {load.published:,} messages published, "
            f"{len(load.acknowledged):,} acknowledged, {found.messages:,} in the stream\n"
            f"  {self.faults.kills:,} kills of {len(self.nodes)} nodes, {played.total():,} faults ({words})\n"
            f"  processes: {sum(node.started for node in self.nodes):,} started, ended {ended}\n"
            f"  {found.blocks:,} blocks, {found.files:,} table files, {found.orphans:,} orphans of dead writers; "
            f"{found.undecodable:,} undecodable\n"
            f"  {found.duplicates:,} rows are there again, {found.again:,} had been delivered before, "
            f"{found.healed:,} were healed; {found.removed:,} messages were removed from the stream\n"
            f"{self._tell_snapshots()}"
            f"  {self.seconds:.1f} s, {load.published / max(self.seconds, 0.001):,.0f} messages a second; "
            f"wrong: {len(self.wrong)}"
        )


class Chaos:
    """Nodes that capture one stream into one store, the messages published to it, and the faults."""

    def __init__(self, natty, servers, store, folder, options, say):
        self.natty, self.options, self._say = natty, options, say
        self._folder, self._consumers = folder, ["capture"]
        program = HASTY if options.broken else FRESH if options.fresh else PAGED if options.pages else PRODUCT
        self.nodes = [
            Node(f"node-{number}", servers[number % len(servers)], store, folder, options.settings(), program)
            for number in range(options.nodes)
        ]
        kind = "fresh" if options.fresh else store.kind
        self._struck = options.faults or schedule(kind, options.kills, options.seed)
        rate = options.messages / (options.every * len(self._struck))
        self._load = Load(options.stream, seed=options.seed, messages=options.messages, rate=rate)
        faults = Faults(natty, self.nodes, servers, store, options)
        self.outcome = Outcome(options, store.kind, self._load, faults, self.nodes)
        operator = options.settings() | {"store": store.url(), "nats": servers[0].connect_options()}
        self._operator = folder / "operator.toml"
        self._operator.write_text(toml(operator))
        self._environment = environment(store.environment)
        if options.fresh:
            self.outcome.snapshots = Snapshots(open_store(store.url()), options.stream)

    async def run(self):
        """Publish, play and repair faults, wait until all is stored, stop, and check the store."""
        stream, grouped = self.options.stream, self.options.ack == "group"
        settings = {"num_replicas": self.options.replicas, "allow_batched": True, "allow_rollup_hdrs": True}
        if grouped:
            settings |= partitioned(stream, PARTITIONS)
        await self.natty.ensure_stream(stream, **{"subjects": [f"{stream}.>"]} | settings)
        if grouped:
            group = self.natty.static_group(stream, GROUP)
            await group.create(PARTITIONS, members=[f"p{number}" for number in range(PARTITIONS)])
            self._consumers = [group.consumer_name(f"p{number}") for number in range(PARTITIONS)]
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._play(tasks)
        except* StuckError as stuck:
            self.outcome.wrongs += [f"HANG: {error}" for error in stuck.exceptions]
        else:
            await self._look()
        return self.outcome

    async def _look(self):
        if snapshots := self.outcome.snapshots:
            await snapshots.look(self.natty)
        if self.options.spark and (status := await self._capture("compact", "--all", "--wait", f"{2 * PATIENCE:g}")):
            self.outcome.wrongs.append(f"capture compact --all ended with {status}")
        self.outcome.findings = await judge(
            self.natty, load_config(self._operator, environment={}), self._load, self.outcome.faults.removed
        )
        self.outcome.verified = await self._capture("verify", "--deep")
        if snapshots:
            await snapshots.look(self.natty)
            self.outcome.wrongs += snapshots.compare(self.outcome.findings.known)
        if self.outcome.verified == 0:
            alarms = [line for node in self.nodes for line in node.log if ALARM in line and REASON not in line]
            self.outcome.wrongs += [f"a false alarm: {line}" for line in alarms]

    async def _play(self, tasks):
        reading = tasks.create_task(self.outcome.snapshots.run()) if self.outcome.snapshots else None
        for node in self.nodes:
            tasks.create_task(node.run())
        for node in self.nodes:
            await node.at_work()
        if not self.options.broken:
            await self.outcome.faults.play("forget", self.nodes[-1], random.Random(self.options.seed))
        began = time.monotonic()
        publishing = tasks.create_task(self._load.run(self.natty))
        await self._strike(tasks)
        self._load.ending = True
        await publishing
        await self._settle()
        if not self.options.broken:
            await self._healed()
        self.outcome.seconds = time.monotonic() - began
        await self._stop()
        if reading:
            reading.cancel()

    async def _strike(self, tasks):
        """Begin one fault after the other, in step with publishing; return when all are over and repaired."""
        going, options = set(), self.options
        for index, kind in enumerate(self._struck):
            dice = random.Random(f"{options.seed} {index}")
            await asyncio.sleep(options.every * dice.uniform(0.3, 1.7))
            await self._until_published(options.messages * index // len(self._struck))
            while len(going) >= AT_ONCE:
                _, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
            going.add(tasks.create_task(self.outcome.faults.play(kind, dice.choice(self.nodes), dice)))
            if index % TOLD_EVERY == TOLD_EVERY - 1:
                self._say(f"{index + 1} faults begun, {self._load.published:,} messages published, {self.nodes}")
        await asyncio.gather(*going)

    async def _until_published(self, count):
        try:
            async with asyncio.timeout(SETTLE):
                while self._load.published < count:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise StuckError(f"publishing stands still at {self._load.published:,}") from None

    async def _settle(self):
        """Wait until every message in the stream is acknowledged."""
        state, stream = {}, self.options.stream
        try:
            async with asyncio.timeout(SETTLE + self._load.published / SLOWEST):
                while True:
                    with contextlib.suppress(NattyError):
                        last = (await self.natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
                        state = await self._position()
                        reached = self.options.ack == "group" or state.floor >= last
                        if reached and not (state.pending or state.unacked):
                            return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            logs = "\n".join(f"{node!r}: {node.last_lines()}" for node in self.nodes)
            raise StuckError(f"not everything was acknowledged, all being mended: {state}\n{logs}") from None

    async def _healed(self):
        """Wait until the sweep's leader finds nothing to store in sweeps that begin from now on."""
        board, seen, state = Board(self.natty, self.options.stream), set(), None
        try:
            async with asyncio.timeout(SETTLE):
                while len(seen) < 3:
                    with contextlib.suppress(NattyError):
                        state = (await board.read()).state
                        if state and not any(one.awaited or one.missing for one in state.streams):
                            seen.add(state.swept)
                        else:
                            seen.clear()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise StuckError(f"not everything was stored, all being mended: {state}") from None

    async def _position(self):
        asked = (f"CONSUMER.INFO.{self.options.stream}.{name}" for name in self._consumers)
        return Position.of([await self.natty.jetstream.request(one) for one in asked])

    async def _stop(self):
        """Stop the nodes without faults."""
        for node in self.nodes:
            await node.at_work()
            node.retiring = True
            process = node.process
            node.signal(signal.SIGTERM)
            if status := await node.ended(process, within=4 * PATIENCE):
                self.outcome.wrongs.append(f"{node!r}, stopped in peace, ended with {status}; {node.last_lines()}")

    async def _capture(self, *command):
        """Run a command of `capture`, without a terminal; return its exit status."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "capture", *command, "--config", str(self._operator)),
            cwd=self._folder,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        self._say(f"capture {' '.join(command)}: {said.decode().strip()}")
        return process.returncode


async def chaos(servers, store, folder, options, say=print):
    """Play a run on these servers, in this folder; return its outcome."""
    nats = servers[0].connect_options() | {"servers": [server.url for server in servers]}
    with patch.dict(os.environ, store.environment):
        async with Natty(**nats, connect_timeout=PATIENCE, ping_interval=NEVER) as natty:
            return await Chaos(natty, servers, store, folder, options, say).run()


def tls_context(files):
    """Return the TLS context of a proxy in front of the store."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.server_cert, files.server_key)
    return context


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=Options.messages)
    parser.add_argument("--kills", type=int, default=Options.kills)
    parser.add_argument("--nodes", type=int, default=Options.nodes)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--every", type=float, default=Options.every, help="seconds from one fault to the next")
    parser.add_argument("--store", choices=("s3", "folder"), default="s3")
    parser.add_argument("--cluster", action="store_true", help="three servers, of which one at a time is killed")
    parser.add_argument("--ack", choices=("explicit", "all", "group"), default=Options.ack)
    parser.add_argument("--buffers", choices=("memory", "disk"), default=Options.buffers)
    parser.add_argument("--layout", default=Options.layout)
    parser.add_argument("--spark", action="store_true", help="compact, too")
    parser.add_argument("--pages", action="store_true", help="small pages in the archive's index")
    parser.add_argument("--fresh", type=float, default=Options.fresh, help="keep the table fresh; needs a folder")
    parser.add_argument("--broken", action="store_true", help="the control: nodes that ack too early")
    return parser.parse_args()


def main():
    """Play the long run; keep its folder if there are problems."""
    given = vars(_arguments())
    kind, cluster = given.pop("store"), given.pop("cluster")
    options = Options(**given, replicas=3 if cluster else 1)
    folder = Path(tempfile.mkdtemp(prefix="capture-chaos-"))
    with contextlib.ExitStack() as stack:
        kind_of_servers = NatsCluster if cluster else NatsServer
        servers = stack.enter_context(kind_of_servers(folder=folder / "nats"))
        files = servers.tls_files
        store = Folder(folder / "archive")
        if kind == "s3":
            store = Bucket(stack.enter_context(running_seaweedfs(folder / "s3", files)), tls_context(files))
        outcome = asyncio.run(chaos(list(servers) if cluster else [servers], store, folder, options))
    print(outcome.summary(), *outcome.wrong, sep="\n")
    if outcome.wrong:
        print(f"what is left of it: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
