"""How soon other engines see a message: `python tests/bench/bench_fresh.py [--seconds 600] [--fresh 2.0]`.

nats-server over TLS, a capture node with Spark, the REST catalog over TLS, and a reader for each engine: processes of
their own. DuckDB's own extension and Spark 3.5 are read by, if `--engines` names them; they come from PyPI into virtual
environments of their own. A message counts from its acknowledgement to the end of the first answer that has it. Prints
where that time goes, the table's size over time, and the CPU of the node; `--without` measures that without fresh, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
sys.path[:0] = [str(ROOT), str(SUPPORT)]

import iceberg_on_duckdb  # noqa: E402
import iceberg_on_spark  # noqa: E402
from bench_table import print_machine, print_table  # noqa: E402
from capture_chaos_nodes import environment, toml  # noqa: E402
from iceberg_engines import prepare  # noqa: E402

from capture.archive import chain  # noqa: E402
from capture.archive.heads import COMPACTION, SWEEP  # noqa: E402
from capture.archive.index.contents import Indexes  # noqa: E402
from capture.archive.index.page import Entry  # noqa: E402
from capture.archive.index.version import Version  # noqa: E402
from capture.archive.manifest import Manifest  # noqa: E402
from capture.archive.sequences import Sequences  # noqa: E402
from capture.archive.table import Table  # noqa: E402
from capture.stores import open_store  # noqa: E402
from natty import Natty  # noqa: E402
from natty.cli.run import run_async  # noqa: E402
from natty.testing import NatsServer, find_server, free_ports, server_version  # noqa: E402

STREAM = "FRESH"
GOAL, GOAL_FILES = 5.0, 200  # seconds at the 99th percentile; live files of a key and day
AT_ONCE = 20  # messages that are published together
LOOK = 0.1  # seconds between two looks at the heads
WARM_UP, SETTLE = 30.0, 15.0  # seconds: of publishing before messages count; for the last answers
WITHIN = 120.0  # seconds until the table is there
DAY = 86_400
TICKS = os.sysconf("SC_CLK_TCK")


class Look(NamedTuple):
    """The table after a commit: its time, its live files (blocks among them), the most of a key and day, its bytes."""

    at: float
    files: int
    blocks: int
    most: int
    document: int
    metadata: int
    snapshots: int


class Answers:
    """The answers of an engine: when each message was in one for the first time."""

    def __init__(self) -> None:
        self.came: dict[int, float] = {}
        self.took: list[float] = []
        self.errors: list[str] = []
        self.twice: list[int] = []

    def take(self, line: bytes) -> None:
        """Note an answer."""
        said = json.loads(line)
        if "error" in said:
            self.errors.append(said["error"])
            return
        if not self.came:
            self.errors.clear()  # there was no table
        self.took.append(said["came"] - said["asked"])
        self.twice += said["twice"]
        for first, last in said["runs"]:
            for one in range(first, last + 1):
                self.came.setdefault(one, said["came"])


class Observer:
    """Follows the heads: when each message was in a block, in the manifest and in the committed table."""

    def __init__(self, natty: Natty, folder: Path) -> None:
        self.stored: dict[int, float] = {}
        self.adopted: dict[int, float] = {}
        self.shown: dict[int, float] = {}
        self.looks: list[Look] = []
        self.documents: Counter[str] = Counter()  # commits of each head
        self._store = open_store(str(folder))
        self._folder = folder
        self._indexes = Indexes(self._store)
        self._heads = {Manifest: SWEEP.reader(natty, STREAM), Table: COMPACTION.reader(natty, STREAM)}
        self._last: dict[Any, Any] = {}
        self._versions: dict[str, Version] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            for kind, read in self._heads.items():
                head = await read()
                if head is None or head == self._last.get(kind):
                    continue
                before, self._last[kind] = self._last.get(kind), head
                self.documents[kind.__name__] += head.number - (before.number if before else 0)
                document = await chain.read(self._store, head, kind)
                at = (self._folder / head.path).stat().st_mtime
                if isinstance(document, Manifest):
                    await self._see_blocks(document.index, at)
                elif isinstance(document, Table):
                    await self._see_table(document, at, (self._folder / head.path).stat().st_size)
            await asyncio.sleep(LOOK)

    async def _see_blocks(self, version: Version, at: float) -> None:
        for one in await self._differ("blocks", version):
            for sequence in await self._sequences(self._indexes.blocks, one):
                self.stored.setdefault(sequence, one.stored_ns / 1e9)
                self.adopted.setdefault(sequence, at)

    async def _see_table(self, table: Table, at: float, size: int) -> None:
        for name, version in (("shown", table.shown), ("files", table.index)):
            for one in await self._differ(name, version):
                for sequence in await self._sequences(self._indexes.files, one):
                    self.shown.setdefault(sequence, at)
        live: Counter[tuple[str, int]] = Counter()
        for version in table.list_versions():
            async for part in self._indexes.files.scan(version):
                live.update((one.key, one.interval // DAY) for one in part)
        iceberg = table.iceberg.get(STREAM)
        metadata = (self._folder / iceberg.metadata).stat().st_size if iceberg else 0
        most, snapshots = max(live.values(), default=0), len(iceberg.snapshots) if iceberg else 0
        self.looks.append(Look(at, live.total(), table.shown.objects, most, size, metadata, snapshots))

    async def _differ(self, name: str, version: Version) -> list[Entry]:
        index = self._indexes.blocks if name == "blocks" else self._indexes.files
        _, came = await index.differ(self._versions.get(name, Version()), version)
        self._versions[name] = version
        return came

    async def _sequences(self, index: Any, one: Entry) -> Iterable[int]:
        return Sequences.from_bytes((await index.whole(one)).sequences)


def cpu_seconds(process: Process) -> tuple[float, float]:
    """Return the CPU seconds of a process, and of its descendants that live and that it has waited for."""
    parents, used = dict[int, int](), dict[int, float]()
    waited = 0.0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS
                if int(entry.name) == process.pid:
                    waited = (int(fields[13]) + int(fields[14])) / TICKS
    family, size = {process.pid}, 0
    while len(family) > size:
        size = len(family)
        family |= {one for one, parent in parents.items() if parent in family}
    return used[process.pid], waited + sum(used[one] for one in family if one != process.pid)


async def publish(natty: Natty, given: argparse.Namespace, acked: dict[int, float]) -> None:
    """Publish at an even rate; note the time of each message's acknowledgement by its sequence."""
    payload = b'{"n": 1, "text": "' + b"." * 90 + b'"}'
    began, count = time.monotonic(), 0

    async def one(number: int) -> None:
        ack = await natty.publish(f"{STREAM}.k{number % given.keys}", payload)
        acked[ack.seq] = time.time()

    while (now := time.monotonic()) < began + given.seconds:
        while count < (now - began) * given.rate:
            await asyncio.gather(*map(one, range(count, count + AT_ONCE)))
            count += AT_ONCE
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(folder: Path, name: str, *command: str) -> AsyncIterator[Process]:
    """Run a program of ours until the block ends; its output is in a file."""
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "capture", *command), cwd=folder, env=environment({}), stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


@contextlib.asynccontextmanager
async def reading(folder: Path, engine: str, answers: Answers, uri: str, token: str, ca: Path) -> AsyncIterator[None]:
    """Read by an engine until the block ends."""
    work = folder / engine
    work.mkdir()
    program = [str(SUPPORT / "fresh_readers.py"), engine, uri, f"{STREAM}.{STREAM}", str(ca), f"{PAUSES[engine]:g}"]
    overriding = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # the authority that the reader names
    environ = {name: value for name, value in environment({}).items() if name not in overriding}
    with (work / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(PYTHONS[engine]()), *program), cwd=work, env=environ, stdin=PIPE, stdout=PIPE, stderr=log
        )
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{token}\n".encode())

    async def take(lines: asyncio.StreamReader) -> None:
        async for line in lines:
            answers.take(line)

    task = asyncio.create_task(take(process.stdout))
    try:
        yield
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHIN):
                await task
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


PYTHONS: dict[str, Callable[[], Path]] = {
    "pyiceberg": lambda: Path(sys.executable),
    "polars": lambda: Path(sys.executable),
    "duckdb": lambda: Path(sys.executable),
    "duckdb-alone": partial(prepare, iceberg_on_duckdb.ENVIRONMENT, iceberg_on_duckdb.PACKAGES),
    "spark": partial(prepare, iceberg_on_spark.ENVIRONMENT, iceberg_on_spark.SPARK, iceberg_on_spark.RUNTIME),
}
PAUSES = dict.fromkeys(PYTHONS, 0.5)  # seconds between two questions of an engine


async def measure(given: argparse.Namespace, fresh: float, engines: Sequence[str]) -> tuple[float, float]:
    """Run everything once and print what was found; return the node's CPU seconds a minute, and its Spark's."""
    print(f"\nfresh = {fresh:g}, {given.rate:,} messages a second to {given.keys} keys for {given.seconds:g} s")
    print_machine(f"nats-server {server_version(find_server())}", "TLS")
    with tempfile.TemporaryDirectory(prefix="bench-fresh-") as name, NatsServer() as server:
        folder, [port] = Path(name), free_ports(1)
        config, token, files = folder / "capture.toml", folder / "token", server.tls_files
        assert files
        settings = {
            "stream": STREAM,
            "store": str(folder / "archive"),
            "partition": "subject:1",
            "nats": server.connect_options(),
            "limits": {"max_age": given.max_age},
            "table": {"fresh": fresh},
            "compaction": {"every": given.every},
            "logging": {"level": "info"},
        }
        config.write_text(toml(settings))
        token.write_text("a token of the bench\n")
        token.chmod(0o600)
        acked: dict[int, float] = {}
        found = {one: Answers() for one in engines}
        serve = ["--port", str(port), "--cert", files.server_cert, "--key", files.server_key, "--token-file", token]
        async with Natty(**server.connect_options()) as natty, contextlib.AsyncExitStack() as stack:
            await natty.ensure_stream(STREAM, subjects=[f"{STREAM}.>"])
            node = await stack.enter_async_context(running(folder, "node", "run", "--config", str(config)))
            publishing = asyncio.create_task(publish(natty, given, acked))
            observer = Observer(natty, folder / "archive")
            await until((folder / "archive" / "_manifest").exists, node)
            looking = asyncio.create_task(observer.run())
            said = map(str, ["catalog", "serve", "--config", config, *serve])
            catalog = await stack.enter_async_context(running(folder, "catalog", *said))
            await until(lambda: b" served on " in (folder / "catalog.log").read_bytes(), catalog)
            for one in engines:
                uri = f"https://127.0.0.1:{port}"
                await stack.enter_async_context(
                    reading(folder, one, found[one], uri, token.read_text().strip(), files.ca)
                )
            await until(lambda: all(one.came for one in found.values()) or publishing.done(), node)
            await asyncio.sleep(given.warm_up)
            counts_from, before, began = max(acked), cpu_seconds(node), time.monotonic()
            await publishing
            minutes, after = (time.monotonic() - began) / 60, cpu_seconds(node)
            await asyncio.sleep(SETTLE)
            looking.cancel()
            await asyncio.wait([looking])
            if not looking.cancelled():
                looking.result()
        counted = {one: at for one, at in acked.items() if one > counts_from}
        cpu = (after[0] - before[0]) / minutes, (after[1] - before[1]) / minutes
        show(counted, observer, found, fresh, min(acked.values()))
        print(f"CPU seconds a minute: node {cpu[0]:.1f}, its Spark {cpu[1]:.1f}")
        show_logs(folder, [one for one, answers in found.items() if not answers.came])
        return cpu


async def until(done: Callable[[], bool], process: Process) -> None:
    """Wait for something that a process does. RuntimeError if it ends, or takes too long."""
    deadline = time.monotonic() + WITHIN
    while not done():
        if process.returncode is not None or time.monotonic() > deadline:
            raise RuntimeError(f"it did not come to work (status {process.returncode})")
        await asyncio.sleep(LOOK)


def seconds(times: Sequence[float]) -> list[str]:
    """Return the median, the 99th percentile and the most of some seconds, as text."""
    ordered = sorted(times) or [float("nan")]
    at_99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return [f"{statistics.median(ordered):.2f}", f"{at_99:.2f}", f"{ordered[-1]:.2f}"]


def show(acked: dict[int, float], observer: Observer, found: dict[str, Answers], fresh: float, began: float) -> None:
    """Print what was found of the messages that count."""

    def row(what: str, after: dict[int, float], before: dict[int, float], *more: str) -> list[str]:
        times = [after[one] - before[one] for one in acked if one in after and one in before]
        missing = sum(one not in after for one in acked)
        return [what, *seconds(times), f"{len(times):,}", f"{missing:,}", *more]

    steps = [
        row("acknowledged → in a block", observer.stored, acked),
        row("in a block → adopted by the sweep", observer.adopted, observer.stored),
        row("adopted → committed to the table", observer.shown, observer.adopted),
        row("acknowledged → committed to the table", observer.shown, acked),
    ]
    header = ["seconds", "median", "99th", "most", "messages", "never"]
    print_table("where the time goes", header, steps)
    if fresh:
        rows = [row(name, one.came, acked, *seconds(one.took)[:2], f"{len(one.took)}") for name, one in found.items()]
        title = f"acknowledged → in an engine's answer (goal: {GOAL:g} s at the 99th percentile)"
        print_table(title, [*header, "query", "99th", "answers"], rows)
        for name, one in found.items():
            errors, twice = Counter(one.errors).most_common(3), one.twice
            if errors or twice:
                print(f"  {name}: {len(one.errors)} errors {errors}, sequences that it saw twice: {twice[:10]}")
    show_sizes(observer, began)


def show_logs(folder: Path, silent: Sequence[str]) -> None:
    """Print what the node has compacted and complained about, and the last words of engines that did not answer."""
    for line in (folder / "node.log").read_text(errors="replace").splitlines():
        if "ERROR" in line or "compacted" in line:
            print(f"  {line[:200]}")
    logs = [folder / one / "log" for one in silent] + [folder / "catalog.log"] * bool(silent)
    for log in logs:
        print(f"  {log.relative_to(folder)} ends:", *log.read_text(errors="replace").splitlines()[-5:], sep="\n    ")


def show_sizes(observer: Observer, began: float) -> None:
    """Print the table's size over time."""
    looks, rows = observer.looks, []
    if not looks:
        return
    for part in range(1, 11):
        at = looks[0].at + (looks[-1].at - looks[0].at) * part / 10
        one = max((look for look in looks if look.at <= at), key=lambda look: look.at)
        figures = f"{one.files}", f"{one.blocks}", f"{one.most}", f"{one.document / 1e3:.0f}"
        rows.append([f"{one.at - began:.0f} s", *figures, f"{one.metadata / 1e3:.0f}", f"{one.snapshots}"])
    most = [f"{max(getattr(one, name) for one in looks)}" for name in ("files", "blocks", "most")]
    sizes = [f"{max(getattr(one, name) for one in looks) / 1e3:.0f}" for name in ("document", "metadata")]
    rows.append(["most", *most, *sizes, f"{max(one.snapshots for one in looks)}"])
    names = ["after", "live files", "blocks", "of a key and day", "document kB", "metadata kB", "snapshots"]
    print_table(f"the table (goal: at most {GOAL_FILES} live files of a key and day)", names, rows)
    day = datetime.fromtimestamp(looks[-1].at, UTC)
    print(f"commits: {dict(observer.documents)}; the run ended at {day:%H:%M} UTC")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--fresh", type=float, nargs="+", default=[2.0])
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    parser.add_argument("--keys", type=int, default=4)
    parser.add_argument("--max-age", type=float, default=1.0)
    parser.add_argument("--every", type=float, default=300.0, help="seconds between two compactions")
    parser.add_argument("--engines", nargs="*", choices=PYTHONS, default=["pyiceberg", "polars", "duckdb"])
    parser.add_argument("--warm-up", type=float, default=WARM_UP)
    parser.add_argument("--without", action="store_true", help="also measure the node's CPU without fresh")
    given = parser.parse_args()
    for one in given.engines:
        PYTHONS[one]()
    for fresh in given.fresh:
        run_async(measure(given, fresh, given.engines))
    if given.without:
        run_async(measure(given, 0.0, []))


if __name__ == "__main__":
    main()
