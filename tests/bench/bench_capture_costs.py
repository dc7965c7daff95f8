"""The costs of capture with different settings: `python tests/bench/bench_capture_costs.py [messages]`.

One node as a process: with and without TLS, with decoders, with ten times the messages. Then the time from publishing
a message to its ack, when its block is durable, at a steady rate.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench_capture import BLOCK, CONSUMER, DURABLE, STREAM, SUBJECTS, WITHIN, Run, bare, captured, fill, info, start
from bench_table import Took, loops, print_machine, print_table

from natty import Natty
from natty.testing import NatsServer, ServerOptions, find_server, server_version

MESSAGES = 300_000
TYPED = "bench_event:Event"
RUNS = {
    "ndjson": Run("ndjson"),
    "ndjson, JSON decoded": Run("ndjson", decoder="json"),
    "ndjson, JSON of a type": Run("ndjson", decoder=TYPED),
    "parquet": Run("parquet"),
    "parquet, a column for each field of a type": Run("parquet", decoder=TYPED),
}
TIMES = 10  # as many messages

RATE, LASTS, MAX_AGE = 2_000, 20, 1.0  # messages a second, seconds, seconds
PORTIONS = 40  # a second


def row(name: str, took: Took, peak: int, beside: Took | None = None) -> tuple[str, ...]:
    ratio = "" if beside is None else f"{took.rate / beside.rate:.2f} ×"
    return name, f"{took.rate:,.0f}", f"{took.micros:.1f}", ratio, f"{peak / 2**20:.0f} MiB" if peak else ""


async def costs(server: NatsServer, title: str, runs: dict[str, Run], messages: int) -> None:
    async with Natty(**server.connect_options()) as natty:
        await fill(natty, messages)
        loop = await bare(natty, messages)
        rows = [row("bare consume loop", loop, 0)]
        for name, run in runs.items():
            took, peak, _, _ = await captured(natty, server, messages, run)
            rows.append(row(name, took, peak, loop))
        await natty.delete_stream(STREAM)
    print_table(f"{title}, {messages:,} messages", ("", "msg/s", "CPU µs/msg", "of the loop", "peak"), rows)


async def delays(server: NatsServer) -> None:
    """Print how long after its publishing a message was acknowledged, and so durable."""
    async with Natty(**server.connect_options()) as natty:
        await natty.ensure_stream(STREAM, subjects=["bench.>"])
        await natty.ensure_consumer(STREAM, DURABLE, **CONSUMER)
        with tempfile.TemporaryDirectory(prefix="bench-capture-") as folder, (Path(folder) / "log").open("wb") as log:
            node = start(server, Path(folder), Run("ndjson", max_age=MAX_AGE), log)
            try:
                took = await followed(natty)
            finally:
                node.send_signal(signal.SIGTERM)
                node.wait(WITHIN)
        await natty.delete_stream(STREAM)
    took.sort()
    middle, late = took[len(took) // 2], took[int(len(took) * 0.99)]
    print(
        f"\n{RATE:,} messages a second, max_age {MAX_AGE:g} s: durable and acked after {middle:.2f} s (median),"
        f" {late:.2f} s (99th percentile), {took[-1]:.2f} s at most; goal max_age + 1 s"
        f" {'reached' if late <= MAX_AGE + 1 else 'NOT REACHED'}"
    )


async def followed(natty: Natty) -> list[float]:
    """Publish at a steady rate, and return for each message how long it took until the ack floor had reached it."""
    published, took = [0.0], []

    async def publish() -> None:
        begin = time.monotonic()
        async with natty.publisher(STREAM) as publisher:
            for portion in range(LASTS * PORTIONS):
                await asyncio.sleep(max(0.0, begin + portion / PORTIONS - time.monotonic()))
                for number in range(RATE // PORTIONS):
                    published.append(time.monotonic())
                    await publisher.publish(f"bench.s{number % SUBJECTS}.k", b"." * 128)

    await natty.publish("bench.s0.k", b"the node is there when this is acked")
    while (await info(natty))["ack_floor"]["stream_seq"] < 1:
        await asyncio.sleep(0.05)
    published.append(time.monotonic())
    publishing, seen = asyncio.create_task(publish()), 1
    while seen < 1 + LASTS * RATE:
        floor, now = (await info(natty))["ack_floor"]["stream_seq"], time.monotonic()
        took += [now - published[sequence] for sequence in range(seen + 1, floor + 1)]
        seen = floor
        await asyncio.sleep(0.02)
    await publishing
    return took


def main(messages: int) -> None:
    began = time.monotonic()
    messages -= messages % (SUBJECTS * BLOCK)
    loop, factory = list(loops().items())[-1]  # what a node runs on
    print_machine(f"nats-server {server_version(find_server())}", loop)
    only = {"ndjson": RUNS["ndjson"]}
    for title, options in (("plain", ServerOptions(tls=None)), ("mutual TLS", ServerOptions())):
        with NatsServer(options) as server, asyncio.Runner(loop_factory=factory) as runner:
            runner.run(costs(server, title, RUNS, messages))
            runner.run(costs(server, title, only, TIMES * messages))
            runner.run(delays(server))
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
