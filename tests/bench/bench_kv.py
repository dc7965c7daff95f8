"""Key-value on a real server over mutual TLS: `python tests/bench/bench_kv.py [buckets]`.

Watches a thousand buckets on one connection: the time until every picture is complete, the cost at rest (CPU of
this process and of the server, memory), the time until a write is seen, and the time until all are live again after
the server was killed. Then the duration of single operations. nats-py's watcher is measured beside ours, with fewer
buckets.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import nats
from bench_table import PAYLOAD, print_machine, print_table

from natty import Natty
from natty.config import tls
from natty.kv import Entry, Gone, PictureComplete
from natty.testing import NatsServer, ServerOptions, find_server, server_version

BUCKETS = 1000
KEYS = 10  # of a bucket
AT_REST = 20.0  # seconds
OPERATIONS = 2000
TICK = os.sysconf("SC_CLK_TCK")


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_of(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Watched:
    """What all watches together have seen."""

    def __init__(self) -> None:
        self.pictures = 0
        self.entries = 0
        self.seen: asyncio.Event = asyncio.Event()

    async def read(self, natty: Natty, bucket: str) -> None:
        async for event in natty.watch(bucket):
            match event:
                case PictureComplete():
                    self.pictures += 1
                case Entry() | Gone():
                    self.entries += 1
            self.seen.set()

    async def until(self, *, pictures: int = 0, entries: int = 0) -> None:
        async with asyncio.timeout(120):
            while self.pictures < pictures or self.entries < entries:
                self.seen.clear()
                await self.seen.wait()


async def make(natty: Natty, buckets: list[str]) -> None:
    for start in range(0, len(buckets), 50):
        await asyncio.gather(*(natty.create_bucket(name, storage="file") for name in buckets[start : start + 50]))
    for name in buckets:
        await asyncio.gather(*(natty.put(name, f"key.{number}", PAYLOAD) for number in range(KEYS)))


async def at_rest(server: NatsServer) -> tuple[float, float]:
    """Return the share of a core that this process and the server use while nothing happens, in percent."""
    pids, began = (os.getpid(), server.pid or 0), time.perf_counter()
    before = [cpu_of(pid) for pid in pids]
    await asyncio.sleep(AT_REST)
    took = time.perf_counter() - began
    ours, theirs = (100 * (cpu_of(pid) - used) / took for pid, used in zip(pids, before, strict=True))
    return ours, theirs


async def watch_all(server: NatsServer, count: int) -> list[tuple[str, str]]:
    rows = []
    async with Natty(**server.connect_options(), timeout=60) as writer, Natty(**server.connect_options()) as natty:
        buckets = [f"watched_{number}" for number in range(count)]
        await make(writer, buckets)
        idle, _ = await at_rest(server)
        empty, watched = memory_of(os.getpid()), Watched()
        began = time.perf_counter()
        tasks = [asyncio.create_task(watched.read(natty, name)) for name in buckets]
        await watched.until(pictures=count)
        rows.append((f"{count} pictures of {KEYS} keys complete after", f"{time.perf_counter() - began:.2f} s"))
        rows.append(("memory for them", f"{memory_of(os.getpid()) - empty:.1f} MiB"))
        ours, theirs = await at_rest(server)
        rows.append(("CPU at rest, this process", f"{ours:.1f} % of a core ({idle:.1f} % without watches)"))
        rows.append(("CPU at rest, the server", f"{theirs:.1f} % of a core"))
        late = []
        for name in buckets[:200]:
            seen, began = watched.entries, time.perf_counter()
            await writer.put(name, "key.0", PAYLOAD)
            await watched.until(entries=seen + 1)
            late.append(1000 * (time.perf_counter() - began))
        rows.append(("a write is seen after, from before the put, median", f"{statistics.median(late):.2f} ms"))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        began, seen = time.perf_counter(), watched.entries
        await asyncio.gather(*(writer.put(name, "after", PAYLOAD) for name in buckets))
        await watched.until(entries=seen + count)
        rows.append(("server killed: all live after its return within", f"{time.perf_counter() - began:.2f} s"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return rows


async def watch_by_nats_py(server: NatsServer, count: int) -> list[tuple[str, str]]:
    files = server.tls_files
    assert files
    context = tls.client_context(ca=files.ca, cert=files.client_cert, key=files.client_key)
    client = await nats.connect(server.url, tls=context)
    began = time.perf_counter()
    watchers = [await (await client.jetstream().key_value(f"watched_{number}")).watchall() for number in range(count)]
    for watcher in watchers:
        while await watcher.updates(timeout=10) is not None:
            pass
    rows = [(f"nats-py: {count} pictures complete after", f"{time.perf_counter() - began:.2f} s")]
    ours, theirs = await at_rest(server)
    rows.append(("nats-py: CPU at rest, this process / the server", f"{ours:.1f} % / {theirs:.1f} % of a core"))
    for watcher in watchers:
        await watcher.stop()
    await client.close()
    return rows


async def single(server: NatsServer) -> list[tuple[str, str]]:
    async with Natty(**server.connect_options()) as natty:
        bucket, rows = await natty.create_bucket("single"), []

        async def measure(name: str, work, times: int = OPERATIONS) -> None:
            began, cpu = time.perf_counter(), time.process_time()
            for number in range(times):
                await work(number)
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu
            rows.append((name, f"{1e6 * wall / times:,.0f} µs, {1e6 * cpu / times:,.0f} µs of our CPU"))

        await measure("put", lambda number: bucket.put(f"k.{number}", PAYLOAD))
        await measure("get", lambda number: bucket.get(f"k.{number}"))
        await measure("create", lambda number: bucket.create(f"c.{number}", PAYLOAD))
        entry = await bucket.get("k.0")

        async def refresh(number: int) -> None:
            nonlocal entry
            entry = await bucket.refresh(entry)

        await measure("refresh of an entry", refresh)
        await measure("modify", lambda number: bucket.modify("n", lambda old: b"%d" % (int(old or 0) + 1)))
        await measure(f"keys, {2 * OPERATIONS + 1:,} of them", lambda number: bucket.keys(), 5)
        await measure("keys of one filter, 1 of them", lambda number: bucket.keys(f"*.{number}"), 200)
    return rows


def main(count: int) -> None:
    began = time.monotonic()
    print_machine(f"nats-server {server_version(find_server())}", f"nats-py {version('nats-py')}")
    with NatsServer(ServerOptions(tls="mutual")) as server:
        print_table(f"{count} buckets watched on one connection", ("", ""), asyncio.run(watch_all(server, count)))
        print_table("the same by nats-py", ("", ""), asyncio.run(watch_by_nats_py(server, min(count, 200))))
        print_table("one after the other", ("", "each"), asyncio.run(single(server)))
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else BUCKETS)
