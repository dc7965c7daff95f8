"""Administration on a real server over mutual TLS: `python tests/bench/bench_admin.py [streams [consumers of each]]`.

Measures `natty stream ls` and `natty stream report` on a thousand streams with five thousand consumers, as processes:
from the shell's Enter to the last line. Then the same in this process, without Python's start, with the number of
requests.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from bench_table import print_machine, print_table

from natty import Natty
from natty.config import tls
from natty.pulling.take import take
from natty.streams.listing import all_streams, stream_names
from natty.testing import NatsServer, find_server

STREAMS = 1000
CONSUMERS = 5  # of a stream
AT_ONCE = 100  # requests while they are made
ROUNDS = 5
TAKES = 200  # messages that are taken one by one

Rows = list[tuple[str, str, str]]
Measure = Callable[[Natty, NatsServer], Awaitable[Rows]]


async def make(natty: Natty, streams: int, consumers: int) -> None:
    """Make streams in memory, each with consumers."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def make_one(number: int) -> None:
        async with turn:
            name = f"STREAM_{number:04}"
            await natty.create_stream(name, subjects=[f"s{number}.>"], storage="memory")
            for consumer in range(consumers):
                await natty.create_consumer(name, f"consumer_{consumer}")

    async with asyncio.TaskGroup() as group:
        for number in range(streams):
            group.create_task(make_one(number))


def command(server: NatsServer, *words: str) -> tuple[list[float], float]:
    """Return the seconds that `natty …` takes as a process, round by round, and the CPU seconds of one."""
    options = server.connect_options()
    environment = os.environ | {
        "COLUMNS": "160",
        "NATS_URL": options["servers"][0],
        "NATS_CA": options["tls_ca"],
        "NATS_CERT": options["tls_cert"],
        "NATS_KEY": options["tls_key"],
    }
    took, before = [], os.times()
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "natty", *words], env=environment, check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - begun)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return took, cpu / ROUNDS


def row(name: str, took: list[float], note: str = "") -> tuple[str, str, str]:
    """Return a line of the table: the median and the slowest round, in milliseconds."""
    return name, f"{statistics.median(took) * 1000:.0f} ms ({max(took) * 1000:.0f})", note


async def measure_streams(natty: Natty, server: NatsServer) -> Rows:
    """What `natty stream …` takes on all of them."""
    words = (("ls",), ("ls", "--json"), ("ls", "--names"), ("report",), ("report", "--json"), ("info", "STREAM_0000"))
    rows = []
    for each in words:
        took, cpu = await asyncio.to_thread(command, server, "stream", *each)
        rows.append(row(f"natty stream {' '.join(each)}", took, f"process, {cpu * 1000:.0f} ms of CPU"))
    for name, read in (("all_streams", all_streams), ("stream_names", stream_names)):
        took, requests = [], 0
        for _ in range(ROUNDS):
            begun, before = time.perf_counter(), await asked(natty)
            await read(natty.jetstream)
            took.append(time.perf_counter() - begun)
            requests = await asked(natty) - before - 1  # one of them is the question how many
        rows.append(row(name, took, f"in this process, {requests} requests"))
    return rows


async def measure_consumers(natty: Natty, server: NatsServer) -> Rows:
    """What `natty consumer …` takes, and how often it asks for facts: what `next` sends for messages is no question."""
    stream = "STREAM_0000"
    for number in range(ROUNDS + TAKES):
        await natty.publish("s0.a", b"%d" % number)
    rows = []
    for words in (("next", stream, "consumer_0"), ("ls", stream), ("report", stream), ("info", stream, "consumer_0")):
        before = await asked(natty)
        took, cpu = await asyncio.to_thread(command, server, "consumer", *words)
        sent = (await asked(natty) - before - 1) / ROUNDS  # one of them is the question how many
        note = f"process, {cpu * 1000:.0f} ms of CPU, {sent:g} requests that ask for facts"
        rows.append(row(f"natty consumer {words[0]}", took, note))
    took, infos = [], []
    for _ in range(TAKES):
        begun = time.perf_counter()
        async with aclosing(take(natty.jetstream, stream, "consumer_0", 1, wait=60.0)) as taken:
            async for batch in taken:
                for message in batch:
                    message.ack()
        took.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await natty.jetstream.request(f"CONSUMER.INFO.{stream}.consumer_0")
        infos.append(time.perf_counter() - begun)
    mine, other = statistics.median(took) * 1000, statistics.median(infos) * 1000
    note = f"in this process, {TAKES} times; one request for facts: {other:.2f} ms"
    return [*rows, ("take, a message", f"{mine:.2f} ms", note)]


async def asked(natty: Natty) -> int:
    """Return how many requests the account has made of JetStream."""
    return int((await natty.jetstream.request("INFO"))["api"]["total"])


MEASURES: tuple[Measure, ...] = (measure_streams, measure_consumers)


async def main(streams: int, consumers: int) -> None:
    print_machine(f"{streams} streams, {streams * consumers} consumers")
    with tempfile.TemporaryDirectory() as folder:
        files = tls.DevCA.create("bench").write(Path(folder) / "tls")
        with NatsServer(folder=Path(folder) / "server", tls_files=files, binary=find_server()) as server:
            async with Natty(**server.connect_options(), timeout=60.0) as natty:
                begun = time.perf_counter()
                await make(natty, streams, consumers)
                print(f"made in {time.perf_counter() - begun:.1f} s", flush=True)
                rows = [row for measure in MEASURES for row in await measure(natty, server)]
    print_table("", ("", f"median of {ROUNDS} (slowest)", ""), rows)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    asyncio.run(main(*(given + [STREAMS, CONSUMERS][len(given) :])))
