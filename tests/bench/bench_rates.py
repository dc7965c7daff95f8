"""CPU of readers while messages come at a steady rate: `python tests/bench/bench_rates.py [seconds]`.

A publisher in this process keeps to the rate. A reader is a process of its own: a capture node, which stores NDJSON by
subject, or a handler of `consume` that does nothing, without `read_pause` and with. Its CPU and the server's are read
after a start of START seconds, for the given seconds, 10 by default; the server also stores the messages. With and
without mutual TLS.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from bench_capture import CONSUMER, DURABLE, STREAM, SUBJECTS, WITHIN, Run, cpu_seconds, start, until
from bench_table import loops, print_machine, print_table

from natty import Message, Natty
from natty.publishing.publisher import Publisher
from natty.testing import NatsServer, ServerOptions, find_server, server_version

SECONDS = 10.0
START = 3.0
RATES = {128: (500, 5_000, 20_000), 1024: (10_000,)}  # messages a second, by the bytes of a payload
STEP = 0.0005  # seconds
PAUSE = 0.01  # seconds; what a node asks for
READERS = {"node": None, "handler": 0.0, f"handler, read_pause={PAUSE:g}": PAUSE}  # the pauses of handlers


async def publish(publisher: Publisher, rate: int, size: int, seconds: float) -> int:
    """Publish at this rate for so long; return how many messages."""
    began, count, payload = time.perf_counter(), 0, b"x" * size
    while (passed := time.perf_counter() - began) < seconds:
        while count < passed * rate:
            await publisher.publish(f"bench.s{count % SUBJECTS}", payload)
            count += 1
        await asyncio.sleep(STEP)
    await publisher.flush()
    return count


def begin(server: NatsServer, pause: float | None, folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a reader: a node, or a handler with this pause."""
    if pause is None:
        return start(server, folder, Run("ndjson"), log)
    words = [json.dumps(server.connect_options()), str(pause)]
    return subprocess.Popen([sys.executable, __file__, "handle", *words], stdout=log, stderr=log, env=os.environ)


async def handle(options: dict[str, Any], pause: float) -> None:
    """Consume with a handler that does nothing, until SIGTERM."""

    async def nothing(message: Message) -> None:
        pass

    async with Natty(**options) as natty:
        await natty.consume(STREAM, DURABLE, nothing, read_pause=pause)


async def measure(server: NatsServer, pause: float | None, rate: int, size: int, seconds: float) -> tuple[str, ...]:
    async with Natty(**server.connect_options()) as natty:
        await natty.ensure_stream(STREAM, subjects=["bench.>"], allow_batched=True)
        await natty.ensure_consumer(STREAM, DURABLE, **CONSUMER)
        with tempfile.TemporaryDirectory(prefix="bench-rates-") as folder:
            with (Path(folder) / "reader.log").open("wb") as log:
                reader = begin(server, pause, Path(folder), log)
            async with natty.publisher(STREAM) as publisher:
                warm = await publish(publisher, rate, size, START)
                await until(natty, lambda state: state["delivered"]["stream_seq"] >= warm, [reader])
                assert server.pid is not None
                ours, servers = cpu_seconds(reader.pid), cpu_seconds(server.pid)
                count = await publish(publisher, rate, size, seconds)
                ours, servers = cpu_seconds(reader.pid) - ours, cpu_seconds(server.pid) - servers
            await until(natty, lambda state: state["ack_floor"]["stream_seq"] >= warm + count, [reader])
            reader.send_signal(signal.SIGTERM)
            reader.wait(WITHIN)
        await natty.jetstream.request(f"STREAM.DELETE.{STREAM}")
    return (
        f"{ours / seconds:.1%}",
        f"{ours / count * 1e6:.1f}",
        f"{servers / count * 1e6:.1f}",
        f"{count / seconds:,.0f}",
    )


async def run_all(seconds: float) -> None:
    rows = []
    for tls in (None, "mutual"):
        with NatsServer(ServerOptions(tls=tls)) as server:
            for name, pause in READERS.items():
                for size, rate in ((size, rate) for size, rates in RATES.items() for rate in rates):
                    figures = await measure(server, pause, rate, size, seconds)
                    rows.append((f"{name}, {size} bytes, {'mutual TLS' if tls else 'plain'}", f"{rate:,}", *figures))
    header = ("", "a second", "of a core", "reader µs/msg", "server µs/msg", "published")
    print_table("CPU of readers at a steady rate", header, rows)


def main(words: list[str]) -> None:
    loop, factory = list(loops().items())[-1]  # what a node runs on
    with asyncio.Runner(loop_factory=factory) as runner:
        if words[:1] == ["handle"]:
            runner.run(handle(json.loads(words[1]), float(words[2])))
        else:
            print_machine(f"nats-server {server_version(find_server())}", loop)
            runner.run(run_all(float(words[0]) if words else SECONDS))


if __name__ == "__main__":
    main(sys.argv[1:])
