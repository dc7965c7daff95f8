"""CPU of a capture node while messages come at a steady rate: `python tests/bench/bench_rates.py [seconds]`.

A publisher in this process keeps to the rate, and a node, `capture run` in a process of its own, stores NDJSON by
subject. Its CPU and the server's are read after a start of START seconds, for the given seconds, 10 by default; the
server also stores the messages. With and without mutual TLS.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench_capture import CONSUMER, DURABLE, STREAM, SUBJECTS, WITHIN, Run, cpu_seconds, start, until
from bench_table import loops, print_machine, print_table

from natty import Natty
from natty.publishing.publisher import Publisher
from natty.testing import NatsServer, ServerOptions, find_server, server_version

SECONDS = 10.0
START = 3.0
RATES = {128: (500, 5_000, 20_000), 1024: (10_000,)}  # messages a second, by the bytes of a payload
STEP = 0.0005  # seconds


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


async def measure(server: NatsServer, rate: int, size: int, seconds: float) -> tuple[str, ...]:
    async with Natty(**server.connect_options()) as natty:
        await natty.ensure_stream(STREAM, subjects=["bench.>"], allow_batched=True)
        await natty.ensure_consumer(STREAM, DURABLE, **CONSUMER)
        with tempfile.TemporaryDirectory(prefix="bench-rates-") as folder:
            with (Path(folder) / "node.log").open("wb") as log:
                node = start(server, Path(folder), Run("ndjson"), log)
            async with natty.publisher(STREAM) as publisher:
                warm = await publish(publisher, rate, size, START)
                await until(natty, lambda state: state["delivered"]["stream_seq"] >= warm, [node])
                assert server.pid is not None
                ours, servers = cpu_seconds(node.pid), cpu_seconds(server.pid)
                count = await publish(publisher, rate, size, seconds)
                ours, servers = cpu_seconds(node.pid) - ours, cpu_seconds(server.pid) - servers
            await until(natty, lambda state: state["ack_floor"]["stream_seq"] >= warm + count, [node])
            node.send_signal(signal.SIGTERM)
            node.wait(WITHIN)
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
            for size, rates in RATES.items():
                for rate in rates:
                    figures = await measure(server, rate, size, seconds)
                    rows.append((f"{size} bytes, {'mutual TLS' if tls else 'plain'}", f"{rate:,}", *figures))
    header = ("messages", "a second", "of a core", "node µs/msg", "server µs/msg", "published")
    print_table("CPU of a node at a steady rate", header, rows)


def main(seconds: float) -> None:
    loop, factory = list(loops().items())[-1]  # what a node runs on
    print_machine(f"nats-server {server_version(find_server())}", loop)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run_all(seconds))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
