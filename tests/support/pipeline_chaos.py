"""Strikes at nodes that run pipelines, over TLS, and the proof that the tables are those of one clean batch run.

python tests/support/pipeline_chaos.py --strikes 100 [--nodes 2] [--seed 0]
"""

import argparse
import asyncio
import contextlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from capture_chaos_nodes import StuckError, environment
from patient import NEVER, PATIENCE
from pipeline_chaos_faults import Faults, schedule
from pipeline_chaos_tables import (
    NAMES,
    OF_STREAM,
    PIPELINES,
    check_files,
    compare,
    compare_with_expected,
    expect,
    find_leftovers,
    make_order,
    read_tables,
)
from pipeline_nodes import STREAM, are_announced, read_document, write_config

from capture.errors import CaptureError
from natty import Natty, NattyError
from natty.testing import NatsServer
from natty.testing.spawner import spawn

PROGRAM = str(Path(__file__).with_name("pipeline_chaos_node.py"))
HASTY = str(Path(__file__).with_name("pipeline_chaos_hasty.py"))  # the control
SETTLE = 6 * PATIENCE  # seconds until the tables have all messages, after the last strike
PROPERTIES = """\
spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1
spark.sql.codegen.wholeStage=false
spark.sql.codegen.factoryMode=NO_CODEGEN
spark.sql.adaptive.enabled=false
spark.sql.shuffle.partitions=1
spark.ui.enabled=false
"""  # of Spark: a session that lives for seconds has no time to compile what it runs
FAILED = re.compile(r"ERROR +capture\.pipelines:").search
LEADS = re.compile(rf" leads 'capture\.{STREAM}\.pipelines'").search
RECOVERY = 6 * PATIENCE  # seconds until a run is committed after a strike


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run. Times are in seconds."""

    strikes: int = 100
    nodes: int = 2
    seed: int = 0
    rate: float = 10.0  # orders a second
    lease: float = 2.0
    grace: float = 20.0
    in_recovery: float = 0.6  # of the strikes do not wait until the last one is recovered from
    broken: bool = False  # the control: files and progress are two commits, and the leader is killed between them
    struck: tuple[tuple[str, str], ...] = ()  # these (kind, phase), instead of those from `strikes` and `seed`

    def settings(self):
        """Return the settings for capture.toml."""
        return {
            "partition": "subject:1",
            "limits": {"max_age": 1.0, "max_messages": 200},
            "ack_wait": 6.0,
            "lease": 1.0,
            "redeliver_after": [0.2, 1.0],
            "sweep": {"every": 0.5, "grace": self.grace},
            "compaction": {"lease": self.lease, "every": 3600.0},
            "table": {"keep_for": 2.0},
        }


@dataclass
class Outcome:
    """What was found."""

    options: Options
    played: Counter = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    orders: int = 0
    runs: int = 0  # that were committed
    failed: int = 0  # runs whose failures were logged
    terms: int = 0
    starts: int = 0
    files: int = 0
    leftovers: float = 0.0  # seconds until none was left
    seconds: float = 0.0
    wrongs: list[str] = field(default_factory=list)

    def summary(self):
        """The counts, for people."""
        times = sorted(self.recoveries) or [0.0]
        words = ", ".join(f"{count} {kind}" for kind, count in self.played.most_common())
        return (
            f"seed {self.options.seed}: {self.played.total()} strikes ({words}) in {self.seconds:.0f} s\n"
            f"  {self.orders:,} orders; {self.runs:,} runs committed, {self.failed:,} failures logged, {self.terms:,} "
            f"terms, {self.starts:,} starts of {self.options.nodes} nodes\n"
            f"  {len(times)} recoveries: median {times[len(times) // 2]:.1f} s, longest {times[-1]:.1f} s\n"
            f"  {self.files:,} files in the tables; no leftovers {self.leftovers:.0f} s after the last run\n"
            f"  wrong: {len(self.wrongs)}"
        )


class Node:
    """A sequence of processes of one node."""

    def __init__(self, name, folder, config, program=PROGRAM):
        self.name, self.log = name, folder / f"{name}.log"
        self._folder, self._config, self._program = folder, config, program
        self.process, self.starts, self.retiring = None, 0, False

    @property
    def lives(self):
        return self.process is not None and self.process.poll() is None

    async def run(self):
        """Start a process, and another one whenever it ends."""
        command = [sys.executable, self._program, "--log-level", "info", "run", "--config", str(self._config)]
        try:
            while not self.retiring:
                with self.log.open("ab") as output:
                    self.process = spawn(command, output=output, folder=self._folder, environ=environment({}))
                self.starts += 1
                while self.lives:
                    await asyncio.sleep(0.02)
        finally:
            self.kill()

    def kill(self):
        if self.lives:
            self.process.kill()

    async def stop(self):
        """Stop it as operators do; return the exit status."""
        self.retiring = True
        self.process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(asyncio.to_thread(self.process.wait), 4 * PATIENCE)
        except TimeoutError:
            raise StuckError(f"{self.name} did not end; see {self.log}") from None


class Chaos:
    """Nodes, their pipelines, the orders, and the strikes."""

    def __init__(self, natty, server, folder, options, say):
        self.natty, self.server, self.folder, self.options, self._say = natty, server, folder, options, say
        self.store = str(folder / "archive")
        self.outcome = Outcome(options)
        self.nodes = {name: self._make_node(name) for name in (f"node-{n}" for n in range(options.nodes))}
        self.faults = Faults(natty, self.nodes, server, self.store, options.lease)
        self._began, self._publishing = time.monotonic(), True

    def _make_node(self, name, **more):
        properties = self.folder / "spark.properties"
        properties.write_text(PROPERTIES)
        settings = self.options.settings() | {"spark": {"properties_file": str(properties)}} | more
        link = self.server.connect_options() | {"ping_interval": 1.0}
        config = write_config(self.folder, name, self.store, link, PIPELINES, **settings)
        return Node(name, self.folder, config, HASTY if self.options.broken and not more else PROGRAM)

    async def run(self):
        """Strike, let the tables catch up, and compare them."""
        await self.natty.ensure_stream(STREAM, subjects=["orders.>"])
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(node.run()) for node in self.nodes.values()]
                publishing = tasks.create_task(self._publish())
                await self._until_run(0)
                await self._strike()
                self._publishing = False
                await publishing
                await self._settle(SETTLE)
                await self._judge(running)
                await self._run_clean(tasks)
        except* (StuckError, TimeoutError) as stuck:
            self.outcome.wrongs += [f"HANG: {error!r}" for error in stuck.exceptions]
        self.outcome.seconds = time.monotonic() - self._began
        self._count_logs()
        return self.outcome

    async def _publish(self):
        """Publish the orders one by one, each until it is acknowledged: so its sequence is its number."""
        began, number = time.monotonic(), 0
        while self._publishing:
            number += 1
            subject, payload, headers = make_order(self.options.seed, number)
            while True:
                with contextlib.suppress(NattyError):
                    ack = await self.natty.publish(
                        subject, payload, headers=headers or None, msg_id=str(number), timeout=2.0
                    )
                    break
                await asyncio.sleep(0.1)
            if ack.seq != number:
                self.outcome.wrongs.append(f"order {number} has the sequence {ack.seq}")
            self.outcome.orders = number
            await asyncio.sleep(max(0.0, began + number / self.options.rate - time.monotonic()))

    async def _strike(self):
        struck = self.options.struck or schedule(self.options.strikes, self.options.seed)
        if self.options.broken:
            struck = [("leader", "announced")] * len(struck)
        for index, (kind, phase) in enumerate(struck):
            dice = random.Random(f"{self.options.seed} {index}")
            done = await asyncio.wait_for(self.faults.play(kind, phase, dice), 4 * PATIENCE)
            self.outcome.played[kind] += 1
            now, runs = time.monotonic(), await self._count_runs()
            if dice.random() >= self.options.in_recovery or index == len(struck) - 1:
                await self._until_run(runs)
                self.outcome.recoveries.append(time.monotonic() - now)
                done += f"; recovered in {self.outcome.recoveries[-1]:.1f} s"
            self._say(f"{now - self._began:7.1f} s  {index + 1}: {done}; {runs} runs, {self.outcome.orders} orders")

    async def _count_runs(self):
        with contextlib.suppress(CaptureError, OSError):
            document = await read_document(self.store)
            return sum(one.number for one in document.tables.values())
        return 0

    async def _until_run(self, known):
        try:
            async with asyncio.timeout(RECOVERY):
                while await self._count_runs() <= known:
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise StuckError(f"no run was committed after {known}") from None

    async def _settle(self, within):
        """Wait until each table has all orders."""
        last, lacking = self.outcome.orders, {}
        try:
            async with asyncio.timeout(within):
                while True:
                    document = await read_document(self.store)
                    held = {one: document.progress.streams.get(f"{one} {STREAM}") for one in OF_STREAM}
                    lacking = {one: total and total.held.count for one, total in held.items()}
                    if all(count == last for count in lacking.values()):
                        tables = document.tables
                        beside = tables.get("large_by_country")
                        as_new = beside and beside.inputs.get("large") == tables["large"].number
                        if as_new and await are_announced(self.store, document, NAMES):
                            return
                    await asyncio.sleep(0.3)
        except TimeoutError:
            raise StuckError(f"the tables have not all {last} orders: {lacking}") from None

    async def _judge(self, running):
        """Compare the tables with what Python computes, and look for leftovers; then stop the nodes."""
        outcome, began = self.outcome, time.monotonic()
        outcome.runs = await self._count_runs()
        self.expected = expect(self.options.seed, outcome.orders)
        self.struck = await asyncio.to_thread(read_tables, self.store)
        outcome.wrongs += compare_with_expected(self.struck, self.expected)
        left = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(6 * self.options.grace + PATIENCE):
                while left := await find_leftovers(self.store):
                    await asyncio.sleep(0.5)
        outcome.leftovers = time.monotonic() - began
        outcome.wrongs += [f"nothing names {one}" for one in left or ()]
        if await asyncio.to_thread(read_tables, self.store) != self.struck:
            outcome.wrongs.append("the tables changed when leftovers were deleted")
        outcome.files, wrongs = await check_files(self.store)
        outcome.wrongs += wrongs
        for node in self.nodes.values():
            if status := await node.stop():
                outcome.wrongs.append(f"{node.name} ended with {status}")
        await asyncio.gather(*running)
        await asyncio.sleep(1.0)
        outcome.wrongs += [f"process {pid} of Spark outlived its node" for pid in self.faults.find_survivors()]
        self._say(f"judged: {outcome.wrongs or 'nothing is wrong'}")

    async def _run_clean(self, tasks):
        """Make all tables by one run each, by another election in an empty home, and compare."""
        home = self.folder / "archive" / "_pipelines"
        await asyncio.to_thread(shutil.move, home, self.folder / "struck")
        node = self._make_node("clean", pipelines_name="clean")
        running = tasks.create_task(node.run())
        while not home.exists():
            await asyncio.sleep(0.2)
        await self._settle(SETTLE)
        document = await read_document(self.store)
        if {one.number for one in document.tables.values()} != {1}:
            self.outcome.wrongs.append(f"the clean run was not one run: {document.tables}")
        clean = await asyncio.to_thread(read_tables, self.store)
        self.outcome.wrongs += compare(self.struck, clean)
        await node.stop()
        await running

    def _count_logs(self):
        lines = [line for node in self.nodes.values() for line in _read_lines(node.log)]
        self.outcome.starts = sum(node.starts for node in self.nodes.values())
        self.outcome.failed = sum(bool(FAILED(line)) for line in lines)
        self.outcome.terms = sum(bool(LEADS(line)) for line in lines)
        self.outcome.wrongs += [f"in a log: {line}" for line in lines if "Traceback" in line or "exception" in line]


def _read_lines(path):
    return path.read_text(errors="replace").splitlines() if path.exists() else []


async def play(server, folder, options, say=print):
    """Play a run; return its outcome."""
    async with Natty(**server.connect_options(), connect_timeout=PATIENCE, ping_interval=NEVER) as natty:
        return await Chaos(natty, server, folder, options, say).run()


def main():
    """Play the long run; keep its folder if there are problems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strikes", type=int, default=Options.strikes)
    parser.add_argument("--nodes", type=int, default=Options.nodes)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--rate", type=float, default=Options.rate, help="orders a second")
    parser.add_argument("--grace", type=float, default=Options.grace, help="seconds that leftovers stay")
    parser.add_argument("--broken", action="store_true", help="the control: progress is committed after the files")
    options = Options(**vars(parser.parse_args()))
    folder = Path(tempfile.mkdtemp(prefix="pipeline-chaos-"))
    print(f"in {folder}: {len(NAMES)} pipelines", flush=True)
    with NatsServer(folder=folder / "nats") as server:
        outcome = asyncio.run(play(server, folder, options, lambda text: print(text, flush=True)))
    print(outcome.summary(), *outcome.wrongs, sep="\n")
    if outcome.wrongs:
        print(f"what is left of it: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
