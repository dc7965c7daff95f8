"""Measures which messages nats-server loses in a power cut, and the cost of `sync_interval: always`.

`python tests/bench/bench_durability.py`, three minutes.

Power cuts need root on Linux. Each server's store is a separate ext4 file system on a loop device. The bench shuts it
down as at a power cut (EXT4_IOC_SHUTDOWN without flushing its log), kills the server, mounts the file system again
and starts the server. Data that ext4 had not written to its device is lost. A disk that also loses written data that
was not flushed loses more where nothing is synced.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))

from archiving import store_all
from bench_table import PAYLOAD, print_machine, print_table
from restoring import Capturing

from natty import Natty, NattyError
from natty.testing import NatsCluster, NatsServer, ServerOptions, find_server, server_version

STREAM = "BENCH"
SETTINGS = {"default, 2m": "", "always": "always"}
ONE_BY_ONE = 200  # calls
PUBLISH_AT_ONCE = 4.0  # seconds of publishing on each path
CAPTURED = 5_000  # messages
PATIENT = {"ack_timeout": 60.0, "give_up": 120.0}
PUBLISH_FOR = 12.0  # seconds before the power is cut
READY = {"connect_timeout": 60.0, "timeout": 30.0}
SHUTDOWN, NO_FLUSH = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN and its flag
IMAGE_BYTES = 600 << 20


@contextmanager
def running(replicas: int, sync: str, folder: Path) -> Iterator[NatsServer | NatsCluster]:
    options = ServerOptions(sync_interval=sync)
    servers = NatsCluster(replicas, options, folder=folder) if replicas > 1 else NatsServer(options, folder=folder)
    try:
        yield servers
    finally:
        servers.close()


def each(servers: NatsServer | NatsCluster) -> list[NatsServer]:
    return list(servers) if isinstance(servers, NatsCluster) else [servers]


async def millis(count: int, work: Any) -> tuple[float, float]:
    """Return the median and the 99th percentile of so many calls, milliseconds."""
    took = []
    for number in range(count):
        began = time.perf_counter()
        await work(number)
        took.append(1000 * (time.perf_counter() - began))
    return median(took), quantiles(took, n=100)[98]


async def rate(natty: Natty, path: str) -> float:
    began, count = time.perf_counter(), 0
    async with natty.publisher(STREAM, path=path, **PATIENT) as publisher:
        while time.perf_counter() < began + PUBLISH_AT_ONCE:
            await publisher.publish(f"{STREAM}.one", PAYLOAD)
            count += 1
    return count / (time.perf_counter() - began)


async def captured(natty: Natty, folder: Path, name: str) -> float:
    """Store the stream in blocks and acknowledge it, as a node does, in an archive of this name; messages a second."""
    await natty.purge_stream(STREAM, keep=CAPTURED)
    count = (await natty.jetstream.request(f"STREAM.INFO.{STREAM}"))["state"]["messages"]
    stock = Capturing(natty, STREAM, folder, archive=name, durable=name)
    began = time.perf_counter()
    await store_all(natty, stock.config, stock.store)
    return float(count / (time.perf_counter() - began))


async def costs(servers: NatsServer | NatsCluster, replicas: int) -> dict[str, float]:
    """Return a figure for each kind of work."""
    found: dict[str, float] = {}
    async with Natty(**servers.connect_options(), **READY) as natty:
        await natty.create_stream(STREAM, subjects=[f"{STREAM}.>"], num_replicas=replicas, allow_batched=True)
        found["publish, awaited, ms"], found["  p99"] = await millis(
            ONE_BY_ONE, lambda _: natty.publish(f"{STREAM}.one", PAYLOAD)
        )
        async with natty.leader("bench", lease=30.0) as term:
            commits = await millis(ONE_BY_ONE, lambda number: term.commit("position", b"%d" % number))
            found["fenced commit of a leader, ms"], found["  p99 "] = commits
        bucket = await natty.create_bucket("KEYS")
        found["compare-and-set of a key, ms"], found["  p99  "] = await millis(
            ONE_BY_ONE, lambda _: bucket.put("key", PAYLOAD)
        )
        await natty.purge_stream(STREAM)
        found["publisher, window, msg/s"] = await rate(natty, "window")
        found["publisher, fast ingest, msg/s"] = await rate(natty, "fast")
        with tempfile.TemporaryDirectory() as folder:
            rates = [await captured(natty, Path(folder) / name, name) for name in ("first", "second", "third")]
            found["capture, explicit acks, msg/s"] = median(rates)
    return found


async def measure(replicas: int) -> None:
    figures: dict[str, dict[str, float]] = {}
    for name, sync in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder, running(replicas, sync, Path(folder)) as servers:
            await asyncio.to_thread(servers.start)
            figures[name] = await costs(servers, replicas)
    first, second = figures.values()
    rows = [[work, f"{one:,.2f}", f"{second[work]:,.2f}", f"{second[work] / one:.2f}"] for work, one in first.items()]
    print_table(f"sync_interval, {replicas} replica(s)", ("", *figures, "ratio"), rows)


class Disk:
    """A file system of its own for a server's store, whose power can be cut."""

    def __init__(self, image: Path, mounted: Path) -> None:
        self.image, self.mounted = image, mounted
        mounted.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self.image, self.mounted], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", self.mounted], check=True)

    def cut(self) -> None:
        opened = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(opened, SHUTDOWN, struct.pack("I", NO_FLUSH))
        finally:
            os.close(opened)


async def publish_until(natty: Natty, stop: asyncio.Event, acked: dict[int, float]) -> None:
    """Publish without pause; note which sequences were acknowledged, and when."""
    while not stop.is_set():
        with suppress(NattyError):
            acks = await asyncio.gather(*(natty.publish(f"{STREAM}.one", PAYLOAD, timeout=2.0) for _ in range(50)))
            acked.update({ack.seq: time.monotonic() for ack in acks})


async def survived(natty: Natty) -> set[int]:
    """Return the sequences that the stream holds; none if it is gone."""
    with suppress(NattyError):
        answer = await natty.jetstream.request(f"STREAM.INFO.{STREAM}", {"deleted_details": True}, timeout=60.0)
        state = answer["state"]
        return set(range(max(1, state["first_seq"]), state["last_seq"] + 1)) - set(state.get("deleted") or [])
    return set()


async def cut_power(replicas: int, sync: str, how_many: int, folder: Path) -> tuple[int, int, float]:
    """Cut the power of so many servers; return acknowledged, lost, and how old the oldest lost message was, seconds."""
    with running(replicas, sync, folder) as servers:
        disks = [Disk(folder / f"{one.name}.img", one.folder / "jetstream") for one in each(servers)]
        try:
            await asyncio.to_thread(servers.start)
            acked: dict[int, float] = {}
            stop = asyncio.Event()
            async with Natty(**servers.connect_options(), **READY) as natty:
                await natty.create_stream(STREAM, subjects=[f"{STREAM}.>"], num_replicas=replicas)
                await natty.publish(f"{STREAM}.one", PAYLOAD)
                os.sync()  # the stream is there for good; what follows is what is judged
                publishing = asyncio.create_task(publish_until(natty, stop, acked))
                await asyncio.sleep(PUBLISH_FOR)
                for disk in disks[:how_many]:
                    disk.cut()
                for one in each(servers)[:how_many]:
                    one.kill()
                at, known = time.monotonic(), dict(acked)
                stop.set()
                await publishing
            for disk in disks[:how_many]:
                disk.unmount()
                disk.mount()
            await asyncio.to_thread(servers.start)
            async with Natty(**servers.connect_options(), **READY) as natty:
                lost = set(known) - await survived(natty)
            return len(known), len(lost), at - min((known[one] for one in lost), default=at)
        finally:
            for one in each(servers):
                one.kill()
            for disk in disks:
                disk.unmount()


async def cuts() -> None:
    rows = []
    for replicas, how_many in ((1, 1), (3, 3), (3, 1)):
        for name, sync in SETTINGS.items():
            with tempfile.TemporaryDirectory() as folder:
                acked, lost, age = await cut_power(replicas, sync, how_many, Path(folder))
            rows.append([f"{how_many} of {replicas}, {name}", f"{acked:,}", f"{lost:,}", f"{age:.1f}"])
    print_table("power cuts", ("servers, sync_interval", "acknowledged", "lost", "oldest lost, s"), rows)


async def main() -> None:
    print_machine(f"nats-server {server_version(find_server())}, mutual TLS")
    for replicas in (1, 3):
        await measure(replicas)
    if sys.platform != "linux" or os.geteuid() != 0:
        print("\npower cuts: left out, they need root on Linux")
        return
    await cuts()


if __name__ == "__main__":
    asyncio.run(main())
