"""A capture node without a consumer beside one with: `python tests/bench/bench_direct.py [messages] [rounds]`.

Both nodes are processes, `capture run`, that store the same old stream in Parquet blocks on a local disk, over mutual
TLS. Measured from the first stored block to the last one: messages a second, and CPU of the node and of the server for
each message. No leader is elected, so nothing but capturing is measured.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench_table import loops, print_machine, print_table

from natty import Natty
from natty.testing import NatsServer, ServerOptions, find_server, server_version

MESSAGES = 400_000
ROUNDS = 3
BLOCK = 10_000  # messages of a block
SIZES = (128, 1024)  # bytes of payloads
SOURCES = ("consumer", "direct")
WITHIN = 300.0  # seconds that a node may take
POLL = 0.01  # seconds
TICKS = os.sysconf("SC_CLK_TCK")


class Took(NamedTuple):
    """The figures of a run: messages a second, and microseconds of CPU for each message."""

    rate: float
    node: float
    server: float


async def fill(natty: Natty, size: int, messages: int) -> str:
    stream = f"BENCH{size}"
    await natty.ensure_stream(stream, subjects=[f"bench{size}.>"], allow_batched=True, allow_direct=True)
    chance = random.Random(1)
    async with natty.publisher(stream) as publisher:
        for index in range(messages):
            text = b'{"number":%d,"text":"%b"}' % (index, chance.randbytes(45).hex().encode())
            await publisher.publish(f"bench{size}.s{index % 10}", text.ljust(size))
    return stream


async def run(server: NatsServer, stream: str, source: str, messages: int) -> Took:
    with tempfile.TemporaryDirectory(prefix="bench-direct-") as folder, (Path(folder) / "log").open("wb") as log:
        node = subprocess.Popen(
            command(server, Path(folder) / "archive", stream),
            stdout=log,
            stderr=log,
            env=os.environ
            | {
                "CAPTURE_SOURCE": source,
                "CAPTURE_CANDIDATES": "none",
                "CAPTURE_ARCHIVE": Path(folder).name,
                "CAPTURE_DURABLE": Path(folder).name,
            },
        )
        try:
            return await watch(node, server, Path(folder) / "archive" / "blocks", messages)
        except BaseException:
            print((Path(folder) / "log").read_text(), file=sys.stderr)
            raise
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(WITHIN)


def command(server: NatsServer, archive: Path, stream: str) -> list[str]:
    files = server.tls_files
    tls = {"--tlsca": files.ca, "--tlscert": files.client_cert, "--tlskey": files.client_key} if files else {}
    options = tls | {"--server": server.url, "--stream": stream, "--store": archive, "--max-messages": BLOCK}
    return [sys.executable, "-m", "capture", "run", *(str(word) for option in options.items() for word in option)]


async def watch(node: subprocess.Popen[bytes], server: NatsServer, blocks: Path, messages: int) -> Took:
    """Measure from the first block to the last one."""
    began = await until(node, blocks, 1)
    first = time.perf_counter(), cpu_seconds(node.pid), cpu_seconds(server.pid or 0)
    await until(node, blocks, messages // BLOCK)
    wall, ours, servers = (
        now - before
        for now, before in zip(
            (time.perf_counter(), cpu_seconds(node.pid), cpu_seconds(server.pid or 0)), first, strict=True
        )
    )
    stored = messages - began * BLOCK
    return Took(stored / wall, ours / stored * 1e6, servers / stored * 1e6)


async def until(node: subprocess.Popen[bytes], blocks: Path, count: int) -> int:
    """Wait until there are so many blocks; return how many there are."""
    deadline = time.monotonic() + WITHIN
    while (found := sum(1 for _ in blocks.rglob("*.parquet"))) < count:
        if node.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{found} of {count} blocks were stored; the node's status is {node.poll()}")
        await asyncio.sleep(POLL)
    return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU of a process, all threads, children not included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def measure(server: NatsServer, messages: int, rounds: int) -> dict[tuple[int, str], list[Took]]:
    figures: dict[tuple[int, str], list[Took]] = {}
    async with Natty(**server.connect_options()) as natty:
        for size in SIZES:
            stream = await fill(natty, size, messages)
            for _ in range(rounds):
                for source in SOURCES:
                    figures.setdefault((size, source), []).append(await run(server, stream, source, messages))
            await natty.jetstream.request(f"STREAM.DELETE.{stream}")
    return figures


def main(messages: int, rounds: int) -> None:
    messages -= messages % BLOCK
    loop, factory = list(loops().items())[-1]  # what a node runs on
    print_machine(f"nats-server {server_version(find_server())}", "mutual TLS", loop)
    print(f"{messages:,} messages, Parquet blocks of {BLOCK:,}, medians of {rounds} rounds")
    with NatsServer(ServerOptions()) as server, asyncio.Runner(loop_factory=factory) as runner:
        figures = runner.run(measure(server, messages, rounds))
    rows = [
        (
            f"{size:,} bytes, {source}",
            f"{median(one.rate for one in figures[size, source]):,.0f}",
            f"{median(one.node for one in figures[size, source]):.1f}",
            f"{median(one.server for one in figures[size, source]):.1f}",
        )
        for size in SIZES
        for source in SOURCES
    ]
    print_table("", ("", "msg/s", "node, CPU µs/msg", "server, CPU µs/msg"), rows)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [MESSAGES, ROUNDS][len(given) :]))
