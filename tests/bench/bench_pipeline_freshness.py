"""How soon a pipeline's table has a message: `python tests/bench/bench_pipeline_freshness.py [--seconds 120]`.

nats-server over TLS, a capture node with Spark whose pipeline follows the stream, and a reader by pyiceberg: processes
of their own. 1,000 messages a second are published. A message counts from its acknowledgement to the commit in which
the table has it, and to the end of the first answer of the reader that has it. Prints the median and the 99th
percentile for each schedule, and how large the document of the tables has become.
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
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
sys.path[:0] = [str(ROOT), str(SUPPORT)]

from bench_table import print_machine, print_table  # noqa: E402
from capture_chaos_nodes import environment  # noqa: E402
from pipeline_nodes import write_config  # noqa: E402

from capture.archive import chain  # noqa: E402
from capture.archive.heads import PIPELINES  # noqa: E402
from capture.archive.index.tree import Index  # noqa: E402
from capture.archive.index.update import held_of  # noqa: E402
from capture.pipelines.document import Pipelines, progress_of  # noqa: E402
from capture.stores import open_store  # noqa: E402
from natty import Natty  # noqa: E402
from natty.cli.run import run_async  # noqa: E402
from natty.testing import NatsServer, find_server  # noqa: E402

STREAM, NAME = "ORDERS", "rows"
LOOK = 0.05  # seconds between two looks at the head
AT_ONCE = 20  # messages that are published together
WARM_UP, SETTLE = 15.0, 15.0  # seconds: of publishing before messages count; for the last answers
WITHIN = 180.0  # seconds until the table is there
KINDS: Mapping[str, Mapping[str, object]] = {
    "append": {"sql": f"SELECT sequence, country, total FROM {STREAM}", "mode": "append"},
    "upsert": {
        "sql": f"SELECT country, max(sequence) AS sequence, sum(total) AS total FROM {STREAM} GROUP BY country",
        "mode": "upsert",
        "key": ["country"],
        "buckets": 4,
    },
}


def read_table(location: str) -> None:
    """Read the table again and again; print the time and the highest sequence of each answer. Runs until killed."""
    from pyiceberg.table import StaticTable

    while True:
        try:
            rows = StaticTable.from_metadata(location).scan(selected_fields=("sequence",)).to_arrow()
            highest = max(rows["sequence"].to_pylist(), default=0)
        except Exception:  # there is no table yet, or its files were replaced
            highest = 0
        print(json.dumps([time.time(), highest]), flush=True)
        time.sleep(LOOK)


async def publish(natty: Natty, seconds: float, rate: float, acked: list[float]) -> None:
    """Publish so many messages a second, and note when each was acknowledged."""

    async def one(number: int) -> None:
        body = {"country": "abcdefgh"[number % 8], "total": number % 100}
        ack = await natty.publish(f"orders.{number % 8}", json.dumps(body).encode())
        acked[ack.seq - 1] = time.time()

    began, number = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        acked.extend([0.0] * AT_ONCE)
        await asyncio.gather(*(one(number + more) for more in range(AT_ONCE)))
        number += AT_ONCE
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))


async def watch(natty: Natty, home: Path, came: list[tuple[float, int]]) -> None:
    """Note when the table has the messages up to which sequence, until cancelled."""
    store, read = open_store(str(home)), PIPELINES.reader(natty, STREAM)
    index, last = Index(store, Pipelines.PAGES), None
    while True:
        head = await read()
        if head is not None and head != last:
            at, last = time.time(), head
            document = await chain.read(store, head, Pipelines)
            held = await held_of(index, document.progress, progress_of(NAME, STREAM))
            came.append((at, held.last if held else 0))
        await asyncio.sleep(LOOK)


def measure(acked: list[float], came: list[tuple[float, int]], after: float) -> list[float]:
    """Return for how many seconds each message that was acknowledged after a time was not there yet."""
    found, at = [], iter(came)
    now, highest = next(at, (0.0, 0))
    for sequence, when in enumerate(acked, 1):
        while highest < sequence:
            try:
                now, highest = next(at)
            except StopIteration:
                return found
        if when > after:
            found.append(max(0.0, now - when))
    return found


async def run_once(kind: str, every: str, seconds: float, rate: float) -> list[str]:
    """Return a row of figures."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshness-")))
        server = stack.enter_context(NatsServer(folder=folder / "nats", binary=find_server()))
        pipeline = {
            "name": NAME,
            "trigger": "stream",
            "schedule": f"every {every}",
            "schema": "country STRING, total BIGINT",
            **KINDS[kind],
        }
        limits = {"limits": {"max_age": 10.0, "max_messages": 100_000}}
        store = folder / "archive"
        path = write_config(folder, "one", str(store), server.connect_options(), [pipeline], **limits)
        came: list[tuple[float, int]] = []
        answers: list[tuple[float, int]] = []
        acked: list[float] = []
        async with Natty(**server.connect_options()) as natty:
            await natty.ensure_stream(STREAM, subjects=["orders.>"], allow_direct=True)
            node = await start("-m", "capture", "run", "--config", str(path), folder=folder)
            location = f"{store}/_pipelines/iceberg/{NAME}"
            reader = await start(str(Path(__file__)), "--read", location, folder=folder)
            watching = asyncio.create_task(watch(natty, store / "_pipelines", came))
            reading = asyncio.create_task(take(reader, answers))
            try:
                await publish(natty, 1.0, rate, acked)  # the table begins
                async with asyncio.timeout(WITHIN):
                    while not came or not came[-1][1]:
                        await asyncio.sleep(LOOK)
                after = time.time() + WARM_UP
                await publish(natty, seconds + WARM_UP, rate, acked)
                await asyncio.sleep(SETTLE)
            finally:
                for task in (watching, reading):
                    task.cancel()
                reader.kill()
                node.send_signal(signal.SIGTERM)
                await node.wait()
                await reader.wait()
        committed, answered = measure(acked, came, after), measure(acked, answers, after)
        documents = [one.stat().st_size for one in (store / "_pipelines" / "_pipeline").glob("*.json")]
        commits = len({highest for _, highest in came})
        load = os.getloadavg()[0]
        figures = [*describe(committed), *describe(answered)]
        return [kind, every, f"{len(committed):,}", *figures, f"{commits:,}", f"{max(documents):,}", f"{load:.1f}"]


def describe(seconds: list[float]) -> list[str]:
    """Return the median and the 99th percentile."""
    if len(seconds) < 100:
        return ["-", "-"]
    return [f"{statistics.median(seconds):.2f} s", f"{statistics.quantiles(seconds, n=100)[98]:.2f} s"]


async def start(*words: str, folder: Path) -> asyncio.subprocess.Process:
    """Start Python."""
    log = (folder / "log").open("ab")
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE if "--read" in words else log, stderr=log,
        env=environment({}), cwd=folder,
    )  # fmt: skip


async def take(reader: asyncio.subprocess.Process, answers: list[tuple[float, int]]) -> None:
    """Note the answers of the reader, until cancelled."""
    assert reader.stdout
    while line := await reader.stdout.readline():
        at, highest = json.loads(line)
        answers.append((at, highest))


async def main() -> None:
    """Measure each kind of table with each schedule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second")
    parser.add_argument("--every", nargs="+", default=["1s", "5s"])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    wanted = parser.parse_args()
    print_machine()
    rows = [await run_once(kind, every, wanted.seconds, wanted.rate) for kind in wanted.kinds for every in wanted.every]
    columns = ["table", "schedule", "messages", "commit: median", "p99", "reader: median", "p99"]
    print_table("from the acknowledgement to", [*columns, "commits", "largest document", "load"], rows)


if __name__ == "__main__":
    if "--read" in sys.argv:
        read_table(sys.argv[-1])
    run_async(main())
