"""JetStream as a Spark source and sink: `python tests/bench/bench_spark_source.py [messages] [rounds]`.

Reads a stream of small messages into a DataFrame's count, into Parquet by micro-batches, and back into a stream, in
plain text and over mutual TLS; beside them a bare natty pull of the same stream. Figures are medians of the rounds,
after the JVM was warmed up; CPU is that of Spark, its Python workers and the server together.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from capture.spark.options import SparkOptions
from capture.spark.session import start
from natty import Natty
from natty.testing import NatsServer, ServerOptions

MESSAGES, ROUNDS = 1_000_000, 3
GOAL = 100_000  # messages a second into a count, with two cores
PAYLOAD = b"x" * 128
MICRO_BATCH = 500_000
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Took:
    wall: float
    cpu: float


def descendants(process: int) -> Iterator[int]:
    """Yield a process and all that it has started, directly or not."""
    yield process
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                yield from descendants(int(child))
        except OSError:
            continue


def cpu() -> float:
    """CPU seconds of this process and all below it, with those of their children that have ended."""
    ticks = 0
    for process in descendants(os.getpid()):
        try:
            ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / TICKS


async def fill(server: NatsServer, messages: int) -> None:
    async with Natty(**server.connect_options()) as natty:
        await natty.create_stream("READ", subjects=["read.>"], allow_batched=True, allow_direct=True)
        async with natty.publisher("READ") as publisher:
            for number in range(messages):
                await publisher.publish(f"read.{number % 100}", PAYLOAD)


async def pulled(server: NatsServer, messages: int) -> None:
    """Read it with natty alone, batch by batch and without acks."""
    async with Natty(**server.connect_options()) as natty:
        await natty.create_consumer("READ", "bench", ack_policy="none")
        pull, left = natty.pull("READ", "bench", max_messages=16_384), messages
        async with aclosing(pull.__aiter__()) as batches:
            async for batch in batches:
                left -= len(batch)
                pull.finish(len(batch))
                if not left:
                    pull.stop()
        await natty.delete_consumer("READ", "bench")


async def anew(server: NatsServer, stream: str) -> None:
    async with Natty(**server.connect_options()) as natty:
        await natty.delete_stream(stream)
        await natty.create_stream(stream, subjects=["write.>"], allow_batched=True)


def options_of(server: NatsServer, stream: str) -> dict[str, str]:
    given = server.connect_options()
    names = {"servers": given["servers"][0], "tlsCa": given.get("tls_ca"), "tlsCert": given.get("tls_cert")}
    names |= {"tlsKey": given.get("tls_key"), "stream": stream}
    return {name: str(value) for name, value in names.items() if value}


def ways(spark: SparkSession, server: NatsServer, messages: int) -> dict[str, Callable[[], Any]]:
    def table(**more: str) -> Any:
        return spark.read.format("jetstream").options(**options_of(server, "READ"), **more)

    def count() -> None:
        assert table().load().count() == messages

    def count_two() -> None:
        assert table().schema("sequence BIGINT, payload BINARY").load().count() == messages

    def count_consumer() -> None:
        assert table(readBy="consumer").load().count() == messages

    def parquet() -> None:
        folder = tempfile.mkdtemp()
        rows = spark.readStream.format("jetstream").options(**options_of(server, "READ"))
        rows = rows.option("maxMessagesPerTrigger", str(MICRO_BATCH)).load()
        writing = rows.writeStream.format("parquet").option("path", f"{folder}/rows")
        writing = writing.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        writing.start().awaitTermination()
        shutil.rmtree(folder)

    def write() -> None:
        asyncio.run(anew(server, "WRITE"))
        rows = table().load().selectExpr("concat('write.', sequence % 100) AS subject", "payload")
        rows.write.format("jetstream").options(**options_of(server, "WRITE")).mode("append").save()

    return {
        "natty alone, pull": lambda: asyncio.run(pulled(server, messages)),
        "count, all columns": count,
        "count, two columns": count_two,
        "count, readBy consumer": count_consumer,
        "micro-batches to Parquet": parquet,
        "read and write to a stream": write,
    }


def show(name: str, rows: list[Took], messages: int) -> float:
    """Print the medians, and return messages a second."""
    rate = messages / statistics.median(took.wall for took in rows)
    busy = statistics.median(took.cpu for took in rows)
    print(f"{name:<40}{rate:10,.0f} msg/s {1e6 * busy / messages:7.1f} CPU µs/msg", flush=True)
    return rate


def main(messages: int = MESSAGES, rounds: int = ROUNDS) -> None:
    warnings.filterwarnings("ignore", category=FutureWarning)
    print(f"{messages:,} messages of {len(PAYLOAD)} bytes, {os.cpu_count()} cores, medians of {rounds} rounds")
    rates: dict[str, float] = {}
    with start(SparkOptions(master="local[2]")) as spark:
        for wire in ("plain text", "mutual TLS"):
            with NatsServer(ServerOptions(tls=wire != "plain text")) as server:
                asyncio.run(fill(server, messages))
                for name, run in ways(spark, server, messages).items():
                    took = [measure(run) for _ in range(1 + rounds)]
                    rates[f"{name}, {wire}"] = show(f"{name}, {wire}", took[1:], messages)  # the first one warms up
    rate = rates["count, all columns, plain text"]
    print(f"goal {GOAL:,} msg/s into a count: {rate:,.0f}, {'reached' if rate >= GOAL else 'NOT REACHED'}")


def measure(run: Callable[[], Any]) -> Took:
    wall, busy = time.perf_counter(), cpu()
    run()
    return Took(time.perf_counter() - wall, cpu() - busy)


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("CPU times of other processes are read from /proc")
    main(*map(int, sys.argv[1:]))
